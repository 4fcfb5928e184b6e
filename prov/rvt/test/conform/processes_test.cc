// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance between two processes: what a peer of the same process cannot show. Side A is the
// test, side B a forked process; each has a device of the shm backend. B answers questions with
// what it saw, all assertions are A's.
#include "common/own_network.h"
#include "common/process.h"
#include "conform/fixture.h"
#include "util/udp_port.h"

#include <chrono>
#include <memory>
#include <thread>

#include <endian.h>

using namespace rvt;
using namespace rvt::conform;
using rvt::test::Process;
using SteadyClock = std::chrono::steady_clock;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

/// One process's device and objects, and the line to the other process.
struct End {
    Process* other;
    Options options;
    core::Registry registry;
    std::unique_ptr<shm::SegmentDevice> device;
    std::unique_ptr<Side> side;
    Card far{};

    End(Process& to, const Options& with, util::SockAddr at)
        : other(&to),
          options(with),
          device(shm::SegmentDevice::open(registry, {.address = at}).take()),
          side(std::make_unique<Side>(device->device(), options)) {}
    ~End() {
        side.reset();
        [[maybe_unused]] const Status closed = device->close();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    /// Until the other side has come as far.
    void meet() {
        other->put(true);
        other->get<bool>();
    }
    bool go(QpState state) {
        return side->qp->modify(attr_for(state, *side, far, options), mask_for(state, options.type))
            .is_ok();
    }
    bool connect() {
        other->put(side->card());
        far = other->get<Card>();
        const bool ready = go(QpState::kInit) && go(QpState::kRtr);
        if (options.type == QpType::kUd) {
            side->ah = create_ah(*side->pd, {.dest = far.address}).value();
        }
        meet();
        return go(QpState::kRts) && ready;
    }
    Status post(const Op& op = {}) { return conform::post(*side, far, op); }
    /// The next completion; one of status kGeneralErr when none comes.
    Wc next(VerbsCq* cq) {
        Wc wc{.status = WcStatus::kGeneralErr};
        for (const auto begin = SteadyClock::now(); SteadyClock::now() - begin < kPatience;) {
            if (cq->poll({&wc, 1}) == 1) {
                return wc;
            }
            std::this_thread::yield();
        }
        return wc;
    }
    Wc sent() { return next(side->send_cq); }
    Wc received() { return next(side->recv_cq); }
    bool moves(const Op& op) { return post(op).is_ok() && sent().status == WcStatus::kSuccess; }
    /// Moves what comes until the other process has a word, and takes the word.
    void serve() {
        while (!other->has_word()) {
            device->device().progress();
            std::this_thread::yield();
        }
        other->get<bool>();
    }
};

constexpr util::SockAddr kAnyPort = {.family = AF_INET, .ip = {127, 0, 0, 1}};

/// Side B as a process runs it; it says at the end whether all went well there.
template <class Body>
auto side_b(const Options& options, Body body, util::SockAddr at = kAnyPort) {
    return [=](Process& parent) {
        End end(parent, options, at);
        const bool ready = end.connect();
        parent.put(ready && body(end));
        parent.get<bool>();  // stays until it is killed
    };
}

/// Side A, connected.
struct Here : End {
    explicit Here(Process& to, const Options& with = {}) : End(to, with, kAnyPort) {
        RVT_ASSERT(connect());
    }
    /// So that the connection is there for certain, and the peer's rights are known.
    void await_connection() {
        RVT_ASSERT(moves({.opcode = WrOpcode::kWrite, .bytes = 8}));
        other->put(true);
    }
};

/// A process's answer.
bool agrees(Process& other) {
    return other.get<bool>();
}

constexpr std::size_t kSizes[] = {0, 1, 63, 4096, 40000, 200000};

}  // namespace

Test(conform_processes, messages_of_all_sizes_arrive_in_order, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        bool good = true;
        for (std::size_t i = 0; i < std::size(kSizes); ++i) {
            good &= b.side->post_recv(i, 0, kMemoryBytes).is_ok();
            const Wc wc = b.received();
            good &= wc.wr_id == i && wc.byte_len == kSizes[i] &&
                    b.side->holds(0, kSizes[i], static_cast<int>(i));
        }
        return good;
    }));
    Here a(peer);
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
        a.side->fill(0, kSizes[i], static_cast<int>(i));
        RVT_ASSERT(a.moves({.wr_id = i, .bytes = kSizes[i]}));
    }
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, both_flood_each_other_before_either_receives, .timeout = 60) {
    static constexpr int kMessages = 32;
    static constexpr std::size_t kBytes = 60000;  // far more than the rings hold
    const auto flood = [](End& end) {
        bool good = true;
        for (std::uint64_t i = 0; i < kMessages; ++i) {
            good &= end.post({.opcode = WrOpcode::kSendImm,
                              .bytes = kBytes,
                              .imm = static_cast<std::uint32_t>(i)})
                        .is_ok();
        }
        end.meet();
        for (std::uint64_t i = 0; i < kMessages; ++i) {
            good &= end.side->post_recv(i, 100000, kBytes).is_ok();
        }
        for (std::uint32_t i = 0; i < kMessages; ++i) {
            const Wc wc = end.received();
            good &= wc.status == WcStatus::kSuccess && wc.wr_id == i && wc.imm == i;
        }
        for (std::uint64_t i = 0; i < kMessages; ++i) {
            good &= end.sent().status == WcStatus::kSuccess;
        }
        end.other->put(true);
        end.serve();  // the other side may need more answers
        return good;
    };
    Process peer(side_b({}, flood));
    Here a(peer);
    RVT_ASSERT(flood(a));
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, a_receiver_that_is_not_ready_holds_the_sender, .timeout = 60) {
    Process peer(side_b({.has_srq = true}, [](End& b) {
        b.serve();
        return b.side->post_recv(7).is_ok() && b.received().wr_id == 7;
    }));
    Here a(peer);
    RVT_ASSERT(a.post().is_ok());
    Wc wc;
    for (int i = 0; i < 1000; ++i) {
        RVT_EQ(a.side->send_cq->poll({&wc, 1}), 0u);
    }
    peer.put(true);
    RVT_EQ(a.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, writes_reads_and_atomics_reach_the_peers_memory, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.side->set_word(128000, 40);
        const bool ready = b.side->post_recv(1).is_ok();
        b.meet();
        const Wc wc = b.received();  // WRITE_IMM
        b.serve();
        return ready && wc.imm == 5 && b.side->holds(100, 50000, 3) && b.side->word(128000) == 9;
    }));
    Here a(peer);
    a.meet();
    a.side->fill(0, 50000, 3);
    RVT_ASSERT(
        a.moves({.opcode = WrOpcode::kWriteImm, .bytes = 50000, .remote_offset = 100, .imm = 5}));
    RVT_ASSERT(a.moves(
        {.opcode = WrOpcode::kRead, .offset = 60000, .bytes = 50000, .remote_offset = 100}));
    RVT_ASSERT(a.side->holds(60000, 50000, 3));
    RVT_ASSERT(a.moves({.opcode = WrOpcode::kFetchAdd,
                        .offset = 136000,
                        .bytes = 8,
                        .remote_offset = 128000,
                        .compare_add = 2}));
    RVT_EQ(a.side->word(136000), std::uint64_t{40});
    RVT_ASSERT(a.moves({.opcode = WrOpcode::kCas,
                        .offset = 136000,
                        .bytes = 8,
                        .remote_offset = 128000,
                        .compare_add = 42,
                        .swap = 9}));
    RVT_EQ(a.side->word(136000), std::uint64_t{42});
    peer.put(true);
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, one_sided_access_needs_no_progress_at_the_peer, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        // Asleep in a read of the line until the other side says that it is done.
        b.other->put(true);
        b.other->get<bool>();
        return b.side->holds(0, 200000, 8);
    }));
    Here a(peer);
    a.await_connection();
    peer.get<bool>();
    a.side->fill(0, 200000, 8);
    RVT_ASSERT(a.moves({.opcode = WrOpcode::kWrite, .bytes = 200000}));
    RVT_ASSERT(a.moves({.opcode = WrOpcode::kRead, .offset = 200000, .bytes = 50000}));
    for (std::size_t i = 0; i < 50000; ++i) {
        RVT_ASSERT(a.side->memory[i] == a.side->memory[200000 + i]);
    }
    peer.put(true);
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, memory_goes_while_a_peer_reads_it_and_the_peer_is_told, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        const bool gone = dereg_mr(b.side->mr).is_ok();
        b.side->mr = nullptr;
        b.serve();
        return gone;
    }));
    Here a(peer);
    const Op read{.opcode = WrOpcode::kRead, .bytes = 200000};
    for (int i = 0; i < 20; ++i) {
        RVT_ASSERT(a.moves(read));
    }
    peer.put(true);
    Wc wc;
    do {
        RVT_ASSERT(a.post(read).is_ok());
        wc = a.sent();
    } while (wc.status == WcStatus::kSuccess);
    RVT_EQ(wc.status, WcStatus::kRemAccessErr);
    peer.put(true);
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, a_key_that_nobody_made_is_refused, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        return b.side->event() == EventType::kQpAccessErr;
    }));
    Here a(peer);
    RVT_ASSERT(a.moves({.opcode = WrOpcode::kWrite, .bytes = 8}));
    RVT_ASSERT(a.post({.opcode = WrOpcode::kWrite, .rkey = a.far.rkey ^ 0x100}).is_ok());
    RVT_EQ(a.sent().status, WcStatus::kRemAccessErr);
    peer.put(true);
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, datagrams_arrive_with_the_senders_address, .timeout = 60) {
    const Options options{.type = QpType::kUd};
    Process peer(side_b(options, [](End& b) {
        const bool posted = b.side->post_recv(3, 1000, 340).is_ok();
        b.meet();
        const Wc wc = b.received();
        return posted && wc.byte_len == 340 && wc.src_qpn == b.far.qpn &&
               b.side->holds(1040, 300, 6);
    }));
    Here a(peer, options);
    a.side->fill(0, 300, 6);
    a.meet();
    RVT_ASSERT(a.moves({.bytes = 300}));
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, unreliable_messages_arrive_where_there_is_room, .timeout = 60) {
    const Options options{.type = QpType::kUc};
    Process peer(side_b(options, [](End& b) {
        const bool posted = b.side->post_recv(3, 0, 100000).is_ok();
        b.meet();
        return posted && b.received().byte_len == 100000 && b.side->holds(0, 100000, 4);
    }));
    Here a(peer, options);
    a.side->fill(0, 100000, 4);
    a.meet();
    RVT_ASSERT(a.moves({.bytes = 100000}));
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, a_message_wakes_a_peer_that_sleeps, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        bool good = true;
        for (std::uint64_t i = 0; i < 100; ++i) {
            good &= b.side->post_recv(i).is_ok() && b.side->recv_cq->req_notify(false).is_ok();
            b.meet();
            good &= b.side->channel->get_event(10000).is_ok() && b.received().wr_id == i;
        }
        return good;
    }));
    Here a(peer);
    for (std::uint64_t i = 0; i < 100; ++i) {
        a.meet();
        RVT_ASSERT(a.moves({.wr_id = i}));
    }
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, death_of_a_peer_fails_what_is_under_way_and_flushes_the_rest,
     .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        return true;  // from here on it answers nothing
    }));
    Here a(peer);
    a.await_connection();
    RVT_ASSERT(agrees(peer));
    for (std::uint64_t i = 0; i < 3; ++i) {
        RVT_ASSERT(a.post({.wr_id = i}).is_ok());
        RVT_ASSERT(a.side->post_recv(10 + i).is_ok());
    }
    const auto killed = SteadyClock::now();
    peer.kill();
    RVT_EQ(a.sent().status, WcStatus::kRetryExcErr);
    RVT_EQ(a.sent().status, WcStatus::kWrFlushErr);
    RVT_EQ(a.sent().status, WcStatus::kWrFlushErr);
    for (std::uint64_t i = 0; i < 3; ++i) {
        const Wc wc = a.received();
        RVT_EQ(wc.status, WcStatus::kWrFlushErr);
        RVT_EQ(wc.wr_id, 10 + i);
    }
    RVT_ASSERT(SteadyClock::now() - killed < test::kNotice);
    RVT_EQ(a.side->qp->state(), QpState::kErr);
    RVT_EQ(a.side->event().value(), EventType::kQpFatal);
}

Test(conform_processes, death_in_the_middle_of_a_message_flushes_its_receive, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        const Sge whole = b.side->sge(0, kMemoryBytes);
        const Sge list[] = {whole, whole, whole, whole};  // far more than the rings hold
        return b.side->qp->post_send({.sg_list = list}).is_ok();
    }));
    Here a(peer);
    const Sge whole = a.side->sge(0, kMemoryBytes);
    const Sge list[] = {whole, whole, whole, whole};
    RVT_OK(a.side->qp->post_recv({.wr_id = 3, .sg_list = list}));
    RVT_OK(a.side->post_recv(4));
    a.await_connection();
    RVT_ASSERT(agrees(peer));
    a.device->device().progress();
    RVT_ASSERT(a.side->qp->inbound().has_receive);
    peer.kill();
    for (std::uint64_t wr_id : {3u, 4u}) {
        const Wc wc = a.received();
        RVT_EQ(wc.status, WcStatus::kWrFlushErr);
        RVT_EQ(wc.wr_id, wr_id);
    }
}

Test(conform_processes, messages_with_tags_fill_the_buffers_of_their_tags, .timeout = 60) {
    constexpr std::size_t kBytes = 50000;
    const Options options{.has_srq = true, .srq = {.max_tags = 4}};
    Process peer(side_b(options, [](End& b) {
        const Sge element = b.side->sge(1000, kBytes);
        TmOp op{.recv_wr_id = 6, .sg_list = {&element, 1}, .tag = 9};
        const bool posted = b.side->srq->post_op(op).is_ok();
        b.meet();
        const Wc wc = b.received();
        return posted && wc.opcode == WcOpcode::kTmRecv && wc.wr_id == 6 && wc.tm_tag == 9 &&
               wc.byte_len == kBytes && b.side->holds(1000, kBytes, 2);
    }));
    Here a(peer);
    a.meet();
    const TmHeader header{.tag = htobe64(9)};
    std::memcpy(a.side->memory.data(), &header, sizeof header);
    a.side->fill(sizeof header, kBytes, 2);
    RVT_ASSERT(a.moves({.bytes = sizeof header + kBytes}));
    RVT_ASSERT(agrees(peer));
}

Test(conform_processes, death_wakes_who_sleeps, .timeout = 60) {
    Process peer(side_b({}, [](End& b) {
        b.serve();
        return true;
    }));
    Here a(peer);
    a.await_connection();
    RVT_ASSERT(agrees(peer));
    RVT_ASSERT(a.side->post_recv(1).is_ok());
    RVT_ASSERT(a.side->recv_cq->req_notify(false).is_ok());
    peer.kill();
    RVT_OK(a.side->channel->get_event(10000));
    RVT_EQ(a.received().status, WcStatus::kWrFlushErr);
}

Test(conform_processes, death_of_one_peer_leaves_the_others_alone, .timeout = 60) {
    const auto receive_one = [](End& b) {
        const bool posted = b.side->post_recv(1).is_ok();
        b.serve();
        return posted && b.received().status == WcStatus::kSuccess;
    };
    Process first(side_b({}, receive_one));
    Process second(side_b({}, receive_one));
    Here a(first);
    const std::unique_ptr<Side> doomed = std::move(a.side);
    a.side = std::make_unique<Side>(a.device->device(), a.options);
    a.other = &second;
    RVT_ASSERT(a.connect());
    first.kill();
    RVT_OK(doomed->post_recv(1));
    RVT_EQ(a.next(doomed->recv_cq).status, WcStatus::kWrFlushErr);
    second.put(true);
    RVT_ASSERT(a.moves({}));
    RVT_ASSERT(agrees(second));
}

Test(conform_processes, a_device_that_closes_is_as_a_peer_that_died, .timeout = 60) {
    Process peer([](Process& parent) {
        End end(parent, {}, kAnyPort);
        end.connect();
    });
    Here a(peer);
    RVT_ASSERT(a.post().is_ok());
    RVT_EQ(a.sent().status, WcStatus::kRetryExcErr);
    RVT_EQ(a.side->qp->state(), QpState::kErr);
}

Test(conform_processes, a_device_that_came_again_is_reached_by_new_pairs, .timeout = 60) {
    // Where nobody is given the port meanwhile.
    cr_assert(test::enter_own_network(), "no network of its own");
    const auto receive_one = [](End& b) {
        return b.side->post_recv(1).is_ok() && b.received().status == WcStatus::kSuccess;
    };
    const util::SockAddr at = util::bind_udp_port(kAnyPort).value().address;
    Process first(side_b({}, receive_one, at));
    Process second([&](Process& parent) {
        parent.get<bool>();
        side_b({}, receive_one, at)(parent);
    });
    Here a(first);
    RVT_ASSERT(a.moves({}));
    first.kill();
    RVT_ASSERT(a.side->post_recv(1).is_ok());
    RVT_EQ(a.received().status, WcStatus::kWrFlushErr);
    a.side = std::make_unique<Side>(a.device->device(), a.options);
    a.other = &second;
    second.put(true);
    RVT_ASSERT(a.connect());
    RVT_EQ(a.far.address.port, at.port);
    RVT_ASSERT(a.moves({}));
    RVT_ASSERT(agrees(second));
}

Test(conform_processes, nobody_at_an_address_is_an_error_in_bounded_time, .timeout = 60) {
    core::Registry registry;
    auto device = shm::SegmentDevice::open(registry, {.address = kAnyPort}).take();
    {
        Side side(device->device(), {});
        Card nobody = side.card();
        const util::UdpPort quiet = util::bind_udp_port(kAnyPort).take();  // kept from all others
        nobody.address.port = quiet.address.port;
        for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
            RVT_OK(
                side.qp->modify(attr_for(state, side, nobody, {}), mask_for(state, QpType::kRc)));
        }
        RVT_OK(post(side, nobody, {}));
        Wc wc;
        const auto begin = SteadyClock::now();
        while (side.send_cq->poll({&wc, 1}) == 0) {
            RVT_ASSERT(SteadyClock::now() - begin < kPatience);
            std::this_thread::yield();
        }
        RVT_EQ(wc.status, WcStatus::kRetryExcErr);
    }
    RVT_OK(device->close());
}
