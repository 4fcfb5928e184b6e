// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The life of an RDM endpoint: binding, enabling, names, options, aliases, closing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <rdma/fi_ext_rvt.h>

#include "common/epoll_sets.h"
#include "common/own_network.h"
#include "common/process.h"
#include "core/rd_records.h"
#include "ofi/compat.h"
#include "ofi/pair.h"
#include "ofi/ways.h"
#include "util/local_addresses.h"

using namespace rvt::test;

namespace {

Owned<fid_ep> endpoint(const Opened& open) {
    return opened<fid_ep>(
        [&](fid_ep** ep) { return fi_endpoint(open.domain.get(), open.info.get(), ep, nullptr); });
}

/// Returns: what the vector calls the endpoint.
fi_addr_t insert_name(fid_av& av, fid_ep& ep) {
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&ep.fid, &name, &bytes));
    fi_addr_t address = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(&av, &name, 1, &address, 0, nullptr), 1);
    return address;
}

/// Sends small messages, which nobody receives, until one has to stay. Returns: how many have left.
std::size_t fill(Pair& pair) {
    static const std::array<char, 8> word{};
    constexpr int kLooks = 1000;
    for (std::size_t left = 0;; ++left) {
        pair.post([&] {
            return fi_tsend(pair.a.ep.get(), word.data(), word.size(), nullptr, pair.a.peer, 1,
                            nullptr);
        });
        int looks = 0;
        while (pair.a.is_quiet() && ++looks < kLooks) {
            pair.drive();
        }
        if (looks == kLooks) {
            return left;
        }
    }
}

void receive(Pair& pair, std::size_t messages) {
    std::vector<char> in(std::size_t{64} << 10);
    for (std::size_t i = 0; i < messages; ++i) {
        RVT_OK(fi_trecv(pair.b.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, 1, 0,
                        nullptr));
        pair.b.next();
    }
}

}  // namespace

Test(ep_rdm, messages_that_wait_take_no_more_memory_than_they_may, .timeout = 60) {
    constexpr std::size_t kRoom = std::size_t{1} << 20;
    Pair pair({.total_buffered_recv = kRoom});
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "first", 6, pair.a.peer, 1); });
    receive(pair, 1);
    const std::size_t kept = fill(pair);
    RVT_ASSERT(kept * sizeof(rvt::core::RdInbound) < 2 * kRoom);  // with those in the rings
    receive(pair, kept + 1);
    pair.a.next();
}

Test(ep_rdm, keeps_messages_where_any_number_of_bytes_may_wait) {
    Pair pair({.total_buffered_recv = SIZE_MAX});
    const std::array<char, 8> word{};
    // A receiver without room asks for headers only, and messages stay with the sender.
    for (int i = 0; i < 100; ++i) {
        pair.post([&] {
            return fi_tsend(pair.a.ep.get(), word.data(), word.size(), nullptr, pair.a.peer, 1,
                            nullptr);
        });
        pair.a.next();
    }
}

/// fi_cq(3) names no flags; there are programs that hand in the size of the entry.
Test(ep_rdm, its_errors_are_read_whatever_the_flags) {
    End end({});
    for (const std::uint64_t flags :
         {std::uint64_t{FI_SEND}, std::uint64_t{sizeof(fi_cq_err_entry)}}) {
        char buffer = 0;
        RVT_OK(fi_recv(end.ep.get(), &buffer, 1, nullptr, FI_ADDR_UNSPEC, &buffer));
        RVT_OK(fi_cancel(&end.ep->fid, &buffer));
        fi_cq_err_entry error{};
        RVT_EQ(fi_cq_readerr(end.cq.get(), &error, flags | FI_PEEK), 1);
        RVT_EQ(fi_cq_readerr(end.cq.get(), &error, flags), 1);
        RVT_EQ(error.err, FI_ECANCELED);
        RVT_EQ(fi_cq_readerr(end.cq.get(), &error, flags), -FI_EAGAIN);
    }
}

Test(ep_rdm, cancels_many_receives_in_any_order_and_none_in_vain, .timeout = 60) {
    constexpr std::size_t kReceives = 600;  // of each kind
    Pair pair;
    fid_ep* const ep = pair.b.ep.get();
    std::vector<fi_context2> contexts(2 * kReceives);
    const auto post = [&](std::size_t i) {
        fi_context2* const context = &contexts[i];
        RVT_OK(i % 2 == 0 ? fi_recv(ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, context)
                          : fi_trecv(ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, i, 0, context));
    };
    const auto cancel = [&](std::size_t i) {
        RVT_OK(fi_cancel(&ep->fid, &contexts[i]));
        RVT_ASSERT(pair.b.next_error().op_context == &contexts[i]);
        RVT_EQ(fi_cancel(&ep->fid, &contexts[i]), -FI_ENOENT);
    };
    for (std::size_t step : {1u, 7u, 1199u}) {  // the last one is newest first
        for (std::size_t i = 0; i < contexts.size(); ++i) {
            post(i);
        }
        for (std::size_t i = 0; i < contexts.size(); ++i) {
            cancel((i + 1) * step % contexts.size());
        }
    }
}

Test(ep_rdm, cancels_what_has_not_left, .timeout = 60) {
    Pair pair({}, {.is_enabled = false});  // nothing leaves before the peer can be met
    fid_ep* const ep = pair.a.ep.get();
    std::array<fi_context2, 3> contexts{};
    RVT_EQ(fi_cancel(&ep->fid, &contexts[1]), -FI_ENOENT);
    for (fi_context2& context : contexts) {
        RVT_OK(fi_tsend(ep, "abc", 4, nullptr, pair.a.peer, 1, &context));
    }
    for (const std::size_t i : {1u, 2u, 0u}) {
        RVT_OK(fi_cancel(&ep->fid, &contexts[i]));
        RVT_ASSERT(pair.a.next_error().op_context == &contexts[i]);
        RVT_EQ(fi_cancel(&ep->fid, &contexts[i]), -FI_ENOENT);
    }
}

Test(ep_rdm, cannot_transfer_before_it_is_enabled) {
    const Opened open;
    const auto ep = endpoint(open);
    char buffer[8];
    RVT_EQ(fi_send(ep.get(), buffer, 8, nullptr, 0, nullptr), -FI_EOPBADSTATE);
    RVT_EQ(fi_trecv(ep.get(), buffer, 8, nullptr, 0, 0, 0, nullptr), -FI_EOPBADSTATE);
    RVT_EQ(fi_write(ep.get(), buffer, 8, nullptr, 0, 0, 0, nullptr), -FI_EOPBADSTATE);
}

Test(ep_rdm, needs_an_address_vector_and_queues) {
    const Opened open;
    const auto av = open.av();
    const auto cq = open.cq();
    const auto ep = endpoint(open);
    RVT_EQ(fi_enable(ep.get()), -FI_ENOAV);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_EQ(fi_enable(ep.get()), -FI_ENOCQ);
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT));
    RVT_EQ(fi_enable(ep.get()), -FI_ENOCQ);
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    RVT_EQ(fi_enable(ep.get()), -FI_EOPBADSTATE);
    RVT_EQ(fi_ep_bind(ep.get(), &cq->fid, FI_RECV), -FI_EOPBADSTATE);
}

Test(ep_rdm, binds_only_what_belongs_to_its_domain_and_only_once) {
    const Opened open;
    const Opened other;
    const auto foreign = other.cq();
    const auto cq = open.cq();
    const auto ep = endpoint(open);
    RVT_EQ(fi_ep_bind(ep.get(), &foreign->fid, FI_TRANSMIT), -FI_EDOMAIN);
    RVT_EQ(fi_ep_bind(ep.get(), &cq->fid, 0), -FI_EBADFLAGS);
    RVT_EQ(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | 1ull << 40), -FI_EBADFLAGS);
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT));
    RVT_EQ(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT), -FI_EINVAL);
}

/// As Sandia OpenSHMEM does.
Test(ep_rdm, takes_counters_when_it_is_enabled_already, .timeout = 30) {
    const Opened open;
    const auto av = open.av();
    const auto cq = open.cq();
    auto ep = endpoint(open);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    auto sends = open.cntr();
    const auto second = open.cntr();
    RVT_OK(fi_ep_bind(ep.get(), &sends->fid, FI_SEND));
    RVT_EQ(fi_ep_bind(ep.get(), &second->fid, FI_SEND), -FI_EINVAL);
    RVT_EQ(fi_ep_bind(ep.get(), &second->fid, 0), -FI_EBADFLAGS);
    RVT_EQ(fi_ep_bind(ep.get(), &av->fid, 0), -FI_EOPBADSTATE);

    const fi_addr_t self = insert_name(*av, *ep);
    char word[] = "word";
    char heard[sizeof word] = {};
    RVT_OK(fi_recv(ep.get(), heard, sizeof heard, nullptr, self, nullptr));
    while (fi_send(ep.get(), word, sizeof word, nullptr, self, nullptr) == -FI_EAGAIN) {
        fi_cntr_read(sends.get());
    }
    RVT_OK(fi_cntr_wait(sends.get(), 1, -1));
    RVT_EQ(fi_close(&sends->fid), -FI_EBUSY);
    ep.reset();
    RVT_OK(fi_close(&sends.release()->fid));
}

/// Who waits for what another endpoint brings polls that one alone.
Test(ep_rdm, sends_what_waits_for_room_when_another_of_its_domain_is_polled, .timeout = 30) {
    for (const fi_threading threading : {FI_THREAD_SAFE, FI_THREAD_DOMAIN}) {
        EndOptions options;
        options.threading = threading;
        options.data_progress = FI_PROGRESS_MANUAL;
        const End polled(options);
        const Opened& open = polled.open;
        End peer(options);
        const auto cq = open.cq();
        const auto ep = endpoint(open);
        RVT_OK(fi_ep_bind(ep.get(), &polled.av->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
        RVT_OK(fi_enable(ep.get()));
        const fi_addr_t to = insert_name(*polled.av, *peer.ep);

        const std::array<char, 4096> sent{};
        std::array<char, 4096> received{};
        std::size_t posted = 0;
        ssize_t result = 0;
        while (posted < 5000 && result == 0) {
            result = fi_inject(ep.get(), sent.data(), sent.size(), to);
            posted += result == 0 ? 1 : 0;
        }
        for (std::size_t arrived = 0; arrived < posted; ++arrived) {
            RVT_OK(fi_recv(peer.ep.get(), received.data(), received.size(), nullptr, FI_ADDR_UNSPEC,
                           nullptr));
            fi_cq_tagged_entry entry{};
            while (fi_cq_read(peer.cq.get(), &entry, 1) != 1) {
                fi_cq_read(polled.cq.get(), &entry, 1);
            }
        }
    }
}

Test(ep_rdm, keeps_what_it_is_bound_to_from_closing) {
    const Opened open;
    auto av = open.av();
    auto cq = open.cq();
    auto cntr = open.cntr();
    auto ep = endpoint(open);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_ep_bind(ep.get(), &cntr->fid, FI_SEND));
    RVT_EQ(fi_close(&av->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&cq->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&cntr->fid), -FI_EBUSY);
    ep.reset();
    RVT_OK(fi_close(&av.release()->fid));
    RVT_OK(fi_close(&cq.release()->fid));
    RVT_OK(fi_close(&cntr.release()->fid));
}

// What waits on a queue or counter before an endpoint joins it is not asleep for ever.

Test(ep_rdm, enabled_late_makes_the_descriptors_it_joins_readable) {
    const Opened open;
    const auto av = open.av();
    const auto cq = open.cq(with<fi_cq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_FD; }));
    const auto cntr = open.cntr(
        {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD, .wait_set = nullptr, .flags = 0});
    const auto ep = endpoint(open);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_ep_bind(ep.get(), &cntr->fid, FI_RECV));
    pollfd sources[] = {{-1, POLLIN, 0}, {-1, POLLIN, 0}};
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &sources[0].fd));
    RVT_OK(fi_control(&cntr->fid, FI_GETWAIT, &sources[1].fd));
    fid* fids[] = {&cq->fid, &cntr->fid};
    RVT_OK(fi_trywait(open.fabric.get(), fids, 2));
    RVT_EQ(poll(sources, 2, 0), 0);
    RVT_OK(fi_enable(ep.get()));
    RVT_EQ(poll(sources, 2, 0), 2);
    // Only once: who has looked again can sleep.
    RVT_OK(fi_trywait(open.fabric.get(), fids, 2));
    RVT_EQ(poll(sources, 2, 0), 0);
}

// What is in a set costs more with each packet.
Test(ep_rdm, has_its_socket_in_the_set_of_sleepers_when_somebody_sleeps) {
    const std::string node = network_node();
    const End end({.wait_obj = FI_WAIT_FD, .node = node.c_str()});
    RVT_EQ(places_in_sets(is_udp_socket), 1);  // the control thread's
    fid* queue = &end.cq->fid;
    RVT_OK(fi_trywait(end.open.fabric.get(), &queue, 1));
    RVT_EQ(places_in_sets(is_udp_socket), 2);
}

Test(ep_rdm, enabled_late_wakes_a_thread_that_sleeps, .timeout = 30) {
    End sender({});
    const Opened open(ask(End::hints_of({.threading = FI_THREAD_SAFE})).info);
    const auto av = open.av();
    const auto cq = open.cq(with<fi_cq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_UNSPEC; }));
    char in[8] = "";
    fi_cq_entry entry{};
    ssize_t got = 0;
    std::thread sleeper([&] { got = fi_cq_sread(cq.get(), &entry, 1, nullptr, -1); });
    const auto ep = endpoint(open);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    RVT_OK(fi_recv(ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, in));
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&ep->fid, &name, &bytes));
    RVT_EQ(fi_av_insert(sender.av.get(), &name, 1, &sender.peer, 0, nullptr), 1);
    while (fi_inject(sender.ep.get(), "abc", 4, sender.peer) == -FI_EAGAIN) {
        fi_cntr_read(sender.cntrs[0].get());
    }
    // It may wait for the connection, and then progress sends it.
    while (fi_cntr_read(sender.cntrs[0].get()) == 0) {
    }
    sleeper.join();
    RVT_EQ(got, 1);
    RVT_ASSERT(entry.op_context == in);
}

/// Closes an endpoint, and opens another one, behind the destructors of what was made after it.
struct Late {
    std::string node;
    std::optional<End> end;

    void open() { end.emplace(EndOptions{.node = node.c_str()}); }
    ~Late() {
        end.reset();
        open();
    }
};

Test(ep_rdm, can_be_closed_and_opened_during_exit, .timeout = 60) {
    enter_own_network();
    Process child([](Process&) {
        alarm(30);
        static Late late;  // before the provider is loaded
        late.node = default_node();
        late.open();
        std::exit(0);  // NOLINT(concurrency-mt-unsafe): one thread calls it
    });
    RVT_EQ(child.wait(), 0);
}

Test(ep_rdm, who_may_make_small_files_alone_is_short_of_memory_for_a_peer) {
    Pair pair;
    rlimit limit{};
    RVT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
    RVT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    pair.post([&] { return fi_send(pair.a.ep.get(), "", 1, nullptr, pair.a.peer, nullptr); });
    const int error = pair.a.next_error().err;
    RVT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);  // the test runner wants larger ones
    RVT_EQ(error, FI_ENOMEM);
}

/// What sends end with, to its own address and to one that may be of this host.
std::array<int, 2> errors_without_descriptors(Pair& pair) {
    sockaddr_in other{};
    other.sin_family = AF_INET;
    other.sin_port = htons(9);
    other.sin_addr.s_addr = inet_addr("192.0.2.9");
    fi_addr_t number = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(pair.a.av.get(), &other, 1, &number, 0, nullptr), 1);
    rlimit limit{};
    RVT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    RVT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    std::array<int, 2> errors{};
    pair.post([&] { return fi_send(pair.a.ep.get(), "", 1, nullptr, pair.a.peer, nullptr); });
    errors[0] = pair.a.next_error().err;
    pair.post([&] { return fi_send(pair.a.ep.get(), "", 1, nullptr, number, nullptr); });
    errors[1] = pair.a.next_error().err;
    RVT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);  // the test runner wants some too
    return errors;
}

Test(ep_rdm, without_descriptors_is_short_of_memory_for_a_peer_of_its_host, .timeout = 60) {
    RVT_ASSERT(enter_own_network());
    setenv("FI_RVT_ROCE", "0", 1);
    Pair pair({.node = "192.0.2.1"});
    const std::array<int, 2> errors = errors_without_descriptors(pair);
    RVT_EQ(errors[0], FI_ENOMEM);
    RVT_EQ(errors[1], FI_ENOMEM);
}

Test(ep_rdm, has_a_name_with_a_port_even_before_it_is_enabled) {
    const Opened open;
    const auto ep = endpoint(open);
    sockaddr_in name{};
    std::size_t bytes = 4;
    RVT_EQ(fi_getname(&ep->fid, &name, &bytes), -FI_ETOOSMALL);
    RVT_EQ(bytes, sizeof name);
    RVT_OK(fi_getname(&ep->fid, &name, &bytes));
    RVT_NE(name.sin_port, 0);
    const auto own = rvt::util::SockAddr::from(reinterpret_cast<sockaddr*>(&name), bytes);
    RVT_ASSERT(rvt::util::is_local_address(own.value()).value() && !own.value().is_any());
}

Test(ep_rdm, all_who_ask_for_its_name_are_told_the_same, .timeout = 60) {
    const Opened open;
    for (int round = 0; round < 50; ++round) {
        const auto ep = endpoint(open);
        in_port_t told = 0;
        in_port_t told_too = 0;
        do_at_once([&] { told = port_of(*ep); }, [&] { told_too = port_of(*ep); });
        RVT_EQ(told, told_too);
    }
}

Test(ep_rdm, keeps_the_name_that_is_asked_for_while_it_is_enabled, .timeout = 60) {
    const Opened open;
    const auto av = open.av();
    const auto cq = open.cq();
    for (int round = 0; round < 50; ++round) {
        const auto ep = endpoint(open);
        RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
        in_port_t told = 0;
        do_at_once([&] { told = port_of(*ep); }, [&] { RVT_OK(fi_enable(ep.get())); });
        RVT_EQ(told, port_of(*ep));
    }
}

Test(ep_rdm, takes_the_port_that_was_asked_for) {
    be_alone();
    const Opened probe(ask(new_hints(), "127.0.0.1", nullptr, FI_SOURCE).info);
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    {
        const auto ep = endpoint(probe);
        RVT_OK(fi_getname(&ep->fid, &name, &bytes));
    }
    const std::string service = std::to_string(ntohs(name.sin_port));
    const Opened open(ask(new_hints(), "127.0.0.1", service.c_str(), FI_SOURCE).info);
    const auto ep = endpoint(open);
    sockaddr_in second{};
    RVT_OK(fi_getname(&ep->fid, &second, &bytes));
    RVT_EQ(second.sin_port, name.sin_port);
    const auto twin = endpoint(open);
    RVT_EQ(fi_getname(&twin->fid, &second, &bytes), -FI_EADDRINUSE);
}

Test(ep_rdm, answers_options_with_the_errors_applications_expect) {
    const Opened open;
    const auto ep = endpoint(open);
    std::size_t size = 777;
    std::size_t bytes = sizeof size;
    RVT_OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, sizeof size));
    size = 0;
    RVT_OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, &bytes));
    RVT_EQ(size, 777);
    bytes = 2;
    RVT_EQ(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, &bytes),
           -FI_ETOOSMALL);
    bytes = sizeof size;
    RVT_EQ(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, 9999, &size, &bytes), -FI_ENOPROTOOPT);
    RVT_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 9999, &size, bytes), -FI_ENOPROTOOPT);
    RVT_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &size, bytes), -FI_EOPNOTSUPP);
    RVT_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, rvt::ofi::kOptMaxMsgSize, &size, bytes),
           -FI_EOPNOTSUPP);
    RVT_EQ(fi_getopt(&ep->fid, 5, FI_OPT_MIN_MULTI_RECV, &size, &bytes), -FI_ENOPROTOOPT);
    RVT_EQ(fi_setopt(&ep->fid, 5, FI_OPT_MIN_MULTI_RECV, &size, bytes), -FI_ENOPROTOOPT);
}

Test(ep_rdm, its_default_flags_can_be_read_and_changed) {
    const Pair pair;
    std::uint64_t flags = FI_DELIVERY_COMPLETE | FI_TRANSMIT;
    RVT_OK(fi_control(&pair.a.ep->fid, FI_SETOPSFLAG, &flags));
    flags = FI_TRANSMIT;
    RVT_OK(fi_control(&pair.a.ep->fid, FI_GETOPSFLAG, &flags));
    RVT_EQ(flags, FI_DELIVERY_COMPLETE);
    flags = FI_TRANSMIT | FI_RECV;
    RVT_EQ(fi_control(&pair.a.ep->fid, FI_GETOPSFLAG, &flags), -FI_EINVAL);
}

Test(ep_rdm, what_it_was_not_opened_for_does_not_exist) {
    EndOptions options;
    options.caps = FI_TAGGED;
    const Pair pair(options);
    char buffer[8];
    RVT_EQ(fi_send(pair.a.ep.get(), buffer, 8, nullptr, 0, nullptr), -FI_ENOSYS);
    RVT_EQ(fi_read(pair.a.ep.get(), buffer, 8, nullptr, 0, 0, 0, nullptr), -FI_ENOSYS);
    RVT_EQ(fi_atomic(pair.a.ep.get(), buffer, 1, nullptr, 0, 0, 0, FI_UINT64, FI_SUM, nullptr),
           -FI_ENOSYS);
}

Test(ep_rdm, of_another_type_is_refused) {
    Opened open;
    open.info->ep_attr->type = FI_EP_SOCK_STREAM;
    fid_ep* ep = nullptr;
    RVT_EQ(fi_endpoint(open.domain.get(), open.info.get(), &ep, nullptr), -FI_ENOSYS);
}

Test(ep_rdm, an_alias_sends_with_flags_of_its_own) {
    EndOptions options;
    options.is_selective = true;
    options.caps = FI_TAGGED;
    Pair pair(options);
    fid_ep* made = nullptr;
    RVT_OK(fi_ep_alias(pair.a.ep.get(), &made, FI_TRANSMIT | FI_COMPLETION));
    const Owned<fid_ep> alias(made);
    RVT_EQ(fi_close(&pair.a.ep->fid), -FI_EBUSY);

    char in[8] = "";
    RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
    pair.post([&] { return fi_tsend(pair.a.ep.get(), "quiet", 6, nullptr, pair.a.peer, 1, in); });
    pair.until([&] { return fi_cntr_read(pair.b.cntrs[1].get()) == 1; });
    RVT_ASSERT(pair.a.is_quiet());
    pair.post([&] { return fi_tsend(alias.get(), "loud", 5, nullptr, pair.a.peer, 1, in); });
    RVT_ASSERT(pair.a.next().op_context == in);
}

Test(ep_rdm, says_how_a_peer_is_reached) {
    Pair pair;
    fi_rvt_ops_ep* ops = nullptr;
    void* table = nullptr;
    RVT_EQ(fi_open_ops(&pair.a.ep->fid, "nothing of ours", 0, &table, nullptr), -FI_ENOSYS);
    RVT_OK(fi_open_ops(&pair.a.ep->fid, FI_RVT_EP_OPS, 0, &table, nullptr));
    ops = static_cast<fi_rvt_ops_ep*>(table);
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
    pair.b.next();
    char text[1024] = "";
    std::size_t bytes = 5;
    RVT_OK(ops->describe_peer(pair.a.ep.get(), pair.a.peer, text, &bytes));
    RVT_EQ(strlen(text), 4);
    bytes = sizeof text;
    RVT_OK(ops->describe_peer(pair.a.ep.get(), pair.a.peer, text, &bytes));
    cr_assert(strstr(text, "shared memory") != nullptr, "%s", text);
    RVT_EQ(bytes, strlen(text) + 1);
}

Test(ep_rdm, an_alias_has_the_name_of_its_owner) {
    const Pair pair;
    fid_ep* made = nullptr;
    RVT_OK(fi_ep_alias(pair.a.ep.get(), &made, FI_TRANSMIT));
    const Owned<fid_ep> alias(made);
    sockaddr_in own{};
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&pair.a.ep->fid, &own, &bytes));
    RVT_OK(fi_getname(&alias->fid, &name, &bytes));
    RVT_EQ(name.sin_port, own.sin_port);
    RVT_ASSERT(fi_setname(&alias->fid, &name, sizeof name) ==
               fi_setname(&pair.a.ep->fid, &name, sizeof name));
    RVT_EQ(fi_connect(alias.get(), &name, nullptr, 0), -FI_ENOSYS);
}

Test(ep_rdm, the_flags_of_an_alias_can_be_changed) {
    EndOptions options;
    options.is_selective = true;
    options.caps = FI_TAGGED;
    Pair pair(options);
    fid_ep* made = nullptr;
    RVT_OK(fi_ep_alias(pair.a.ep.get(), &made, FI_TRANSMIT));
    const Owned<fid_ep> alias(made);
    std::uint64_t both = FI_TRANSMIT | FI_RECV;
    RVT_EQ(fi_control(&alias->fid, FI_GETOPSFLAG, &both), -FI_EINVAL);
    RVT_EQ(fi_control(&alias->fid, FI_SETOPSFLAG, &both), -FI_EINVAL);
    std::uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
    RVT_OK(fi_control(&alias->fid, FI_SETOPSFLAG, &flags));
    flags = FI_TRANSMIT;
    RVT_OK(fi_control(&alias->fid, FI_GETOPSFLAG, &flags));
    RVT_EQ(flags, FI_COMPLETION);
    char in[8] = "";
    RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
    pair.post([&] { return fi_tsend(alias.get(), "loud", 5, nullptr, pair.a.peer, 1, in); });
    RVT_ASSERT(pair.a.next().op_context == in);
}

Test(ep_rdm, works_with_counters_alone) {
    EndOptions options;
    options.has_queue = false;
    Pair pair(options);
    std::uint64_t target = 0;
    std::uint64_t value = 5;
    const auto mr = pair.b.reg(&target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
    const std::uint64_t address = pair.b.address_of(&target);
    const std::uint64_t key = fi_mr_key(mr.get());
    const auto counted = [&](End& end, std::size_t which, std::uint64_t count) {
        pair.until([&] { return fi_cntr_read(end.cntrs[which].get()) == count; });
    };
    char in[64] = "";
    // In one line, in several, and far more than is sent unasked.
    std::vector<char> large(1 << 20, 'x');
    std::vector<char> place(large.size());
    std::uint64_t received = 0;
    for (const std::size_t size : {sizeof value, std::size_t{100}, large.size()}) {
        RVT_OK(fi_recv(pair.b.ep.get(), place.data(), size, nullptr, FI_ADDR_UNSPEC, nullptr));
        pair.post([&] {
            return fi_send(pair.a.ep.get(), large.data(), size, nullptr, pair.a.peer, nullptr);
        });
        counted(pair.b, 1, ++received);
        counted(pair.a, 0, received);
    }
    // Flags of a call do not bring a queue into being.
    iovec out{large.data(), 8};
    const fi_msg message{&out, nullptr, 1, pair.a.peer, nullptr, 0};
    pair.post([&] { return fi_sendmsg(pair.a.ep.get(), &message, FI_COMPLETION); });
    iovec room{in, sizeof in};
    const fi_msg receive{&room, nullptr, 1, FI_ADDR_UNSPEC, nullptr, 0};
    RVT_OK(fi_recvmsg(pair.b.ep.get(), &receive, FI_COMPLETION));
    counted(pair.b, 1, ++received);
    pair.post([&] {
        return fi_write(pair.a.ep.get(), &value, sizeof value, nullptr, pair.a.peer, address, key,
                        nullptr);
    });
    counted(pair.a, 3, 1);
    RVT_EQ(target, 5);
    const fi_rma_iov remote{address, sizeof value, key};
    iovec local{&value, sizeof value};
    const fi_msg_rma access{&local, nullptr, 1, pair.a.peer, &remote, 1, nullptr, 0};
    pair.post([&] { return fi_readmsg(pair.a.ep.get(), &access, FI_COMPLETION); });
    counted(pair.a, 2, 1);
    pair.post([&] {
        return fi_atomic(pair.a.ep.get(), &value, 1, nullptr, pair.a.peer, address, key, FI_UINT64,
                         FI_SUM, nullptr);
    });
    counted(pair.a, 3, 2);
    RVT_EQ(target, 10);
}

Test(ep_rdm, a_question_without_a_queue_for_the_answer_is_refused) {
    EndOptions options;
    options.has_queue = false;
    options.caps = FI_TAGGED;
    const Pair pair(options);
    const fi_msg_tagged asked{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 1, 0, nullptr, 0};
    RVT_EQ(fi_trecvmsg(pair.a.ep.get(), &asked, FI_PEEK), -FI_ENOCQ);
    RVT_EQ(fi_trecvmsg(pair.a.ep.get(), &asked, FI_PEEK | FI_CLAIM), -FI_ENOCQ);
    RVT_EQ(fi_trecvmsg(pair.a.ep.get(), &asked, FI_PEEK | FI_DISCARD), -FI_ENOCQ);
}

Test(ep_rdm, a_counter_of_remote_accesses_without_events_is_warned_of) {
    keep_log();
    for (const bool has_events : {true, false}) {
        const Info hints = new_hints();
        hints->caps = FI_RMA | (has_events ? FI_RMA_EVENT : 0);
        const Opened open(ask(hints).info);
        const auto cntr = open.cntr();
        const auto ep = endpoint(open);
        RVT_OK(fi_ep_bind(ep.get(), &cntr->fid, FI_REMOTE_WRITE));
        RVT_EQ(logged_warnings.find("FI_RMA_EVENT was not asked for") == std::string::npos,
               has_events);
    }
}
