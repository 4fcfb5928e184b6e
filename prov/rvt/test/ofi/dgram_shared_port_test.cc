// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DGRAM endpoints at the UDP port that all endpoints of an address share. What they do as any other
// is in ep_dgram_test.cc and mc_test.cc; which messages they send in core/ud_resolver_test.cc.
#include <atomic>
#include <cstdlib>
#include <thread>

#include <unistd.h>

#include "common/process.h"
#include "ofi/msg_pair.h"
#include "ofi/pair.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

EndOptions dgram(const char* service = nullptr) {
    EndOptions options;
    options.type = FI_EP_DGRAM;
    options.caps = FI_MSG | FI_SOURCE;
    options.node = own_node.c_str();
    options.service = service;
    return options;
}

std::uint16_t number_of(const End& end) {
    return ntohs(name_of(&end.ep->fid).sin_port);
}

fi_addr_t insert(End& end, const std::string& node, std::uint16_t number) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(number);
    inet_pton(AF_INET, node.c_str(), &address.sin_addr);
    fi_addr_t to = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(end.av.get(), &address, 1, &to, 0, nullptr), 1);
    return to;
}

void add_second_address() {
    RVT_OK(std::system("ip addr add 192.0.2.2/24 dev wire0"));  // NOLINT(concurrency-mt-unsafe)
}

/// Sends until it gets EAGAIN, or `most`. Returns: how many.
std::size_t fill(End& end, fi_addr_t to, std::size_t most) {
    static char byte = 0;
    std::size_t sent = 0;
    while (sent < most && fi_send(end.ep.get(), &byte, 1, nullptr, to, nullptr) == 0) {
        ++sent;
    }
    return sent;
}

}  // namespace

Test(dgram_shared_port, endpoints_of_both_types_have_one_device_and_numbers_of_their_own) {
    share_roce_port();
    const End one(dgram("18515"));
    const End other(dgram());
    RVT_EQ(number_of(one), 18515);
    RVT_NE(number_of(other), 18515);
    RVT_ASSERT(number_of(other) >= 32768);
    const MsgFabric fabric(ask_msg().info);
    const auto pep = opened<fid_pep>([&](fid_pep** p) {
        return fi_passive_ep(fabric.fabric.get(), fabric.info.get(), p, nullptr);
    });
    sockaddr_in same = name_of(&one.ep->fid);
    RVT_OK(fi_setname(&pep->fid, &same, sizeof same));  // another space
}

Test(dgram_shared_port, a_number_is_taken_once) {
    share_roce_port();
    const End one(dgram("18515"));
    const Opened open(ask(End::hints_of(dgram()), own_node.c_str(), "18515", FI_SOURCE).info);
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_EQ(fi_getname(&ep->fid, &name, &bytes), -FI_EADDRINUSE);
}

Test(dgram_shared_port, two_addresses_reach_each_other_and_know_the_sender) {
    share_roce_port();
    add_second_address();
    End a(dgram());
    own_node = "192.0.2.2";
    End b(dgram());
    a.peer = Pair::introduce(a, b);
    b.peer = Pair::introduce(b, a);
    a.other = &b;
    b.other = &a;
    char out = 7;
    char in = 0;
    const auto carry = [&](End& from, End& to) {
        in = 0;
        RVT_OK(fi_recv(to.ep.get(), &in, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        RVT_OK(fi_inject(from.ep.get(), &out, 1, from.peer));
        fi_cq_tagged_entry entry{};
        fi_addr_t source = 0;
        ssize_t got = -FI_EAGAIN;
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            to.drive_other();
            got = fi_cq_readfrom(to.cq.get(), &entry, 1, &source);
        }
        RVT_EQ(got, 1);
        RVT_EQ(in, 7);
        return source;
    };
    RVT_EQ(carry(a, b), FI_ADDR_NOTAVAIL);
    RVT_EQ(carry(b, a), a.peer);
    RVT_EQ(carry(a, b), b.peer);
}

Test(dgram_shared_port, a_number_that_nobody_has_is_an_error_and_later_ones_find_it) {
    share_roce_port();
    End end(dgram());
    const fi_addr_t to = insert(end, own_node, 18515);
    char byte = 0;
    RVT_OK(fi_send(end.ep.get(), &byte, 1, nullptr, to, &byte));
    const fi_cq_err_entry error = end.next_error();
    RVT_EQ(error.err, FI_EHOSTUNREACH);
    RVT_ASSERT(error.op_context == &byte);
    RVT_EQ(fi_cntr_readerr(end.cntrs[0].get()), 1);
    End late(dgram("18515"));
    RVT_OK(fi_recv(late.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_send(end.ep.get(), &byte, 1, nullptr, to, nullptr));
    end.other = &late;
    late.other = &end;
    end.next();
    RVT_EQ(late.next().len, 1);
}

Test(dgram_shared_port, an_address_where_nobody_has_the_udp_port_is_an_error) {
    share_roce_port();
    add_second_address();
    End end(dgram());
    const fi_addr_t to = insert(end, "192.0.2.2", 18515);
    char byte = 0;
    RVT_OK(fi_send(end.ep.get(), &byte, 1, nullptr, to, nullptr));
    RVT_EQ(end.next_error().err, FI_EHOSTUNREACH);
}

Test(dgram_shared_port, who_does_not_answer_is_an_error_in_time_and_keeps_few) {
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "300", 1);
    share_roce_port();
    add_second_address();
    const int deaf = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(4791);
    inet_pton(AF_INET, "192.0.2.2", &address.sin_addr);
    RVT_OK(bind(deaf, reinterpret_cast<sockaddr*>(&address), sizeof address));
    End end(dgram());
    const fi_addr_t to = insert(end, "192.0.2.2", 18515);
    const std::size_t kept = fill(end, to, 1000);
    RVT_EQ(kept, 64);
    for (std::size_t i = 0; i < kept; ++i) {
        RVT_EQ(end.next_error().err, FI_ETIMEDOUT);
    }
    RVT_EQ(fill(end, to, 1), 1);
    close(deaf);
}

/// Other processes have the address one after the other. They are made before this one has threads.
Test(dgram_shared_port, a_process_that_restarts_is_found_again) {
    share_roce_port();
    add_second_address();
    const auto answer = [](Process& parent) {
        if (!parent.get<bool>()) {
            return;  // it is not this one's turn any more
        }
        own_node = "192.0.2.2";
        End end(dgram("18515"));
        const End more(dgram());  // so that pairs get other numbers
        char byte = 0;
        RVT_OK(fi_recv(end.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        parent.put(true);
        end.next();
    };
    Process first(answer);
    Process second(answer);
    End end(dgram());
    const fi_addr_t to = insert(end, "192.0.2.2", 18515);
    for (Process* peer : {&first, &second}) {
        peer->put(true);
        RVT_ASSERT(peer->get<bool>());
        char byte = 0;
        const auto over = std::chrono::steady_clock::now() + kPatience;
        while (!peer->has_word() && std::chrono::steady_clock::now() < over) {
            fi_inject(end.ep.get(), &byte, 1, to);
            fi_cntr_read(end.cntrs[0].get());
        }
        RVT_EQ(peer->wait(), 0);
    }
}

Test(dgram_shared_port, who_comes_second_is_refused) {
    share_roce_port();
    const int taken = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(4791);
    inet_pton(AF_INET, own_node.c_str(), &address.sin_addr);
    RVT_OK(bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof address));
    const Opened open(ask(End::hints_of(dgram()), own_node.c_str(), nullptr, FI_SOURCE).info);
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_EQ(fi_getname(&ep->fid, &name, &bytes), -FI_EADDRINUSE);
    close(taken);
}

Test(dgram_shared_port, endpoints_of_this_host_alone_have_ports_of_their_own) {
    share_roce_port();
    own_node = "127.0.0.1";
    const End end(dgram());
    const int free = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = name_of(&end.ep->fid);
    address.sin_port = htons(4791);
    RVT_OK(bind(free, reinterpret_cast<sockaddr*>(&address), sizeof address));
    close(free);
}

/// Each poll of one takes in what has come for all.
Test(dgram_shared_port, a_reader_sleeps_while_others_poll_the_device) {
    share_roce_port();
    End a(dgram());
    End b(dgram());
    End busy(dgram());
    a.peer = Pair::introduce(a, b);
    char byte = 0;
    RVT_OK(fi_recv(b.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_send(a.ep.get(), &byte, 1, nullptr, a.peer, nullptr));
    a.other = &b;
    a.next();
    b.next();
    std::atomic<bool> is_over{false};
    std::thread poller([&] {
        // relaxed: nothing goes with it.
        while (!is_over.load(std::memory_order_relaxed)) {
            fi_cntr_read(busy.cntrs[0].get());
        }
    });
    for (int i = 0; i < 200; ++i) {
        RVT_OK(fi_recv(b.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        std::thread sender([&] { fi_inject(a.ep.get(), &byte, 1, a.peer); });
        fi_cq_tagged_entry entry{};
        const ssize_t got = fi_cq_sread(b.cq.get(), &entry, 1, nullptr, 10'000);
        sender.join();
        RVT_EQ(got, 1);
    }
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above
    poller.join();
}
