// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When datagrams between addresses of one host's networks go through shared memory, and when by
// UDP. That the datagrams themselves are the same either way is in ep_dgram_test.cc.
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "common/process.h"
#include "ofi/host_wire.h"
#include "ofi/ways.h"
#include "util/params.h"

using namespace rvt::test;

namespace {

EndOptions on_network(EndOptions options = {}) {
    options.type = FI_EP_DGRAM;
    options.caps = std::uint64_t{FI_MSG | FI_SOURCE};
    options.node = own_node.c_str();
    return options;
}

/// In a network that nobody else sends in.
struct Neighbours : Pair {
    explicit Neighbours(const EndOptions& options = {}) : Pair(on_network(options)) {}
};

void let_share(bool is_wanted) {
    rvt::util::set_param_number(rvt::util::ParamId::kDgramSharedMemory, is_wanted ? 1 : 0);
}

std::string port_text(const End& end) {
    return std::to_string(ntohs(port_of(*end.ep)));
}

}  // namespace

Test(dgram_host_wire, datagrams_to_this_host_do_not_go_by_udp) {
    use_host_wire();
    Neighbours ends;
    meet_by_host(ends);
    for (int i = 0; i < 100; ++i) {
        RVT_ASSERT(!sends_by_udp(ends, ends.a));
        RVT_ASSERT(!sends_by_udp(ends, ends.b));
    }
}

Test(dgram_host_wire, who_only_answers_does_so_through_shared_memory) {
    use_host_wire();
    Neighbours ends;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (sends_by_udp(ends, ends.a) && std::chrono::steady_clock::now() < end) {
    }
    RVT_ASSERT(!sends_by_udp(ends, ends.b));  // its first: a has connected the two
}

Test(dgram_host_wire, without_shared_memory_at_one_end_datagrams_go_by_udp) {
    use_host_wire();
    for (const bool is_first : {true, false}) {
        let_share(is_first);
        End a(on_network());
        let_share(!is_first);
        End b(on_network());
        a.peer = Pair::introduce(a, b);
        b.peer = Pair::introduce(b, a);
        char byte = 0;
        for (int i = 0; i < 20; ++i) {
            RVT_OK(fi_recv(b.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
            const std::uint64_t before = udp_sent();
            RVT_OK(fi_inject(a.ep.get(), "x", 1, a.peer));
            fi_cq_tagged_entry entry{};
            fi_addr_t from = FI_ADDR_UNSPEC;
            const auto end = std::chrono::steady_clock::now() + kPatience;
            ssize_t got = -FI_EAGAIN;
            while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
                got = fi_cq_readfrom(b.cq.get(), &entry, 1, &from);
            }
            RVT_EQ(got, 1);
            RVT_EQ(from, b.peer);
            RVT_EQ(udp_sent(), before + 1);
        }
    }
}

/// What its ring has no room for goes where it would have found it without: into its socket.
Test(dgram_host_wire, a_peer_that_does_not_read_loses_nothing_and_keeps_nobody_awake) {
    constexpr int kMany = 150;  // more than the ring takes, less than the socket
    use_host_wire();
    Neighbours ends({.wait_obj = FI_WAIT_FD});
    meet_by_host(ends);
    std::array<char, kMany> room{};
    for (char& byte : room) {
        RVT_OK(fi_recv(ends.b.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        RVT_OK(fi_inject(ends.a.ep.get(), "x", 1, ends.a.peer));
    }
    fid* queue = &ends.a.cq->fid;
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (fi_trywait(ends.a.open.fabric.get(), &queue, 1) != 0) {
        RVT_ASSERT(std::chrono::steady_clock::now() < limit);
        RVT_ASSERT(ends.a.is_quiet());
    }
    fid_cntr* const received = ends.b.cntrs[1].get();
    while (fi_cntr_read(received) != kMany && std::chrono::steady_clock::now() < limit) {
    }
    RVT_EQ(fi_cntr_read(received), kMany);
}

/// They have been sent: nothing more is asked of the sender.
Test(dgram_host_wire, what_the_ring_has_no_room_for_leaves_without_the_senders_help) {
    constexpr std::uint64_t kMany = 150;  // more than the ring takes, less than the socket
    use_host_wire();
    Neighbours ends({.data_progress = FI_PROGRESS_MANUAL});
    meet_by_host(ends);
    std::array<char, kMany> room{};
    const std::uint64_t before = udp_sent();
    for (char& byte : room) {
        RVT_OK(fi_recv(ends.b.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        RVT_OK(fi_inject(ends.a.ep.get(), "x", 1, ends.a.peer));
    }
    fid_cntr* const received = ends.b.cntrs[1].get();
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (fi_cntr_read(received) != kMany && std::chrono::steady_clock::now() < limit) {
    }
    RVT_EQ(fi_cntr_read(received), kMany);
    RVT_ASSERT(udp_sent() > before);
}

/// A fault is one of packets.
Test(dgram_host_wire, where_packets_have_faults_all_are_packets) {
    setenv("FI_RVT_FAULT", "delay=100%:10us", 1);
    use_host_wire();
    Neighbours ends;
    for (int i = 0; i < 20; ++i) {
        RVT_ASSERT(sends_by_udp(ends, ends.a));
    }
}

/// Both while it polls for neighbours and when it sleeps.
Test(dgram_host_wire, who_has_neighbours_hears_the_wire_as_well) {
    use_host_wire();
    Neighbours ends({.wait_obj = FI_WAIT_FD});
    meet_by_host(ends);
    let_share(false);
    End far(on_network());
    far.peer = Pair::introduce(far, ends.a);
    const std::array<const End*, 2> senders{&far, &ends.b};
    char byte = 0;
    fid_cntr* const received = ends.a.cntrs[1].get();
    for (std::uint64_t heard = 0; heard < 40; heard += 2) {
        for (const End* from : senders) {
            RVT_OK(fi_recv(ends.a.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
            RVT_OK(fi_inject(from->ep.get(), "x", 1, from->peer));
        }
        ends.until([&] { return fi_cntr_read(received) == heard + 2; });
        ends.a.next();
        ends.a.next();
        for (const End* from : senders) {
            fi_cq_tagged_entry entry{};
            RVT_OK(fi_recv(ends.a.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
            RVT_OK(fi_inject(from->ep.get(), "x", 1, from->peer));
            RVT_EQ(fi_cq_sread(ends.a.cq.get(), &entry, 1, nullptr, 30'000), 1);
        }
        RVT_OK(fi_cntr_set(received, heard + 2));
    }
}

/// Its name is there for those who look for datagram endpoints, too.
Test(dgram_host_wire, an_endpoint_of_another_kind_is_left_alone) {
    use_host_wire();
    Neighbours ends;
    meet_by_host(ends);
    EndOptions rdm;
    rdm.node = own_node.c_str();
    const End other(rdm);
    std::array<char, 64> name{};
    std::size_t bytes = name.size();
    RVT_OK(fi_getname(&other.ep->fid, name.data(), &bytes));
    fi_addr_t there = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(ends.a.av.get(), name.data(), 1, &there, 0, nullptr), 1);
    for (int i = 0; i < 100; ++i) {
        RVT_OK(fi_inject(ends.a.ep.get(), "x", 1, there));
        RVT_ASSERT(!sends_by_udp(ends, ends.a));
    }
    RVT_EQ(fi_cntr_readerr(ends.a.cntrs[0].get()), 0);
}

/// By UDP until the one in its place is found.
Test(dgram_host_wire, a_peer_that_restarts_is_found_again) {
    use_host_wire();
    auto first = std::make_unique<Neighbours>();
    meet_by_host(*first);
    const std::string port = port_text(first->b);
    EndOptions same = on_network();
    same.service = port.c_str();
    const fi_addr_t there = first->a.peer;
    first->b.ep.reset();
    End second(same);
    char byte = 0;
    bool is_by_udp = true;
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (is_by_udp && std::chrono::steady_clock::now() < limit) {
        const std::uint64_t before = udp_sent();
        const std::uint64_t heard = fi_cntr_read(second.cntrs[1].get());
        RVT_OK(fi_recv(second.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
        while (fi_cntr_read(second.cntrs[1].get()) == heard &&
               std::chrono::steady_clock::now() < limit) {
            RVT_OK(fi_inject(first->a.ep.get(), "x", 1, there));  // the first ones may be lost
            fi_cntr_read(first->a.cntrs[0].get());
        }
        is_by_udp = udp_sent() != before;
    }
    RVT_ASSERT(!is_by_udp);
}

/// Who says nothing any more, with datagrams for it in the ring.
Test(dgram_host_wire, a_peer_that_is_killed_disturbs_nobody) {
    use_host_wire();
    Process child([](Process& parent) {
        End end(on_network());
        parent.put(port_of(*end.ep));
        for (;;) {
            fi_cntr_read(end.cntrs[0].get());
        }
    });
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = child.get<in_port_t>();
    inet_pton(AF_INET, own_node.c_str(), &name.sin_addr);
    Neighbours ends;
    meet_by_host(ends);
    fi_addr_t there = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(ends.a.av.get(), &name, 1, &there, 0, nullptr), 1);
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t before = 0;
    do {
        before = udp_sent();
        RVT_OK(fi_inject(ends.a.ep.get(), "x", 1, there));
        ends.drive();
    } while (udp_sent() != before && std::chrono::steady_clock::now() < limit);
    RVT_EQ(udp_sent(), before);
    child.kill();
    for (int i = 0; i < 5000; ++i) {
        ends.post([&] { return fi_inject(ends.a.ep.get(), "x", 1, there); });
    }
    meet_by_host(ends);
}
