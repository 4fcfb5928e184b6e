// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Random traffic in both directions over wires that lose, duplicate, reorder, corrupt and delay:
// each operation takes effect once, in order, whole. A failure names its seed.
#include "conform/fixture.h"
#include "core/joined_packets.h"

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/seeds.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

// Each side's memory: what it sends from, where the peer's SENDs land, what the peer writes, where
// READs put what they fetch, a counter for atomics, and a word for ATOMIC WRITEs.
constexpr std::size_t kSource = 0;
constexpr std::size_t kReceives = 16 * 1024;
constexpr std::size_t kWritten = 96 * 1024;
constexpr std::size_t kFetched = 160 * 1024;
constexpr std::size_t kCounter = 220 * 1024;
constexpr std::size_t kStamp = kCounter + 64;
constexpr std::size_t kMostBytes = 3000;
constexpr std::uint64_t kMostUnderWay = 12;
constexpr std::uint64_t kReceiveCount = 16;
constexpr int kOps = 60;

/// One side's half of the traffic.
struct Talker {
    Side& own;
    Side& peer;
    std::mt19937_64& random;
    std::uint64_t seed;
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
    std::uint64_t added = 0;             // by fetch-and-adds
    std::uint64_t stamp = 0;             // written last, by ATOMIC WRITEs
    std::uint64_t stamp_seen = 0;        // at the peer
    std::vector<std::uint32_t> sends{};  // immediates in flight to the peer, in order
    std::uint64_t received = 0;          // of the peer's
    std::uint64_t receives_posted = 0;

    /// Where the operation with this number puts what it fetches.
    static std::size_t fetched_at(std::uint64_t number) {
        return kFetched + number % kMostUnderWay * kMostBytes;
    }
    void expect(bool is_so, const char* what) const {
        if (!is_so) {
            cr_fatal("seed %llu: %s", static_cast<unsigned long long>(seed), what);
        }
    }
    std::size_t pick(std::size_t most) { return random() % (most + 1); }

    void post_receives() {
        for (; receives_posted < received + kReceiveCount; ++receives_posted) {
            const std::size_t at = kReceives + receives_posted % kReceiveCount * 4096;
            RVT_OK(own.post_recv(receives_posted, at, 4096));
        }
    }

    void post_one() {
        static constexpr WrOpcode kKinds[] = {
            WrOpcode::kSendImm,  WrOpcode::kWrite,       WrOpcode::kWriteImm, WrOpcode::kRead,
            WrOpcode::kFetchAdd, WrOpcode::kAtomicWrite, WrOpcode::kFlush};
        const auto seed = static_cast<std::uint32_t>(random() % 1000);
        Op op{.opcode = kKinds[pick(6)],
              .wr_id = posted,
              .bytes = pick(kMostBytes),
              .remote_offset = kWritten,
              .imm = seed,
              .flush = {.type = FlushType::kGlobal, .length = kMostBytes}};
        if (op.opcode == WrOpcode::kFetchAdd) {
            op = {.opcode = op.opcode,
                  .wr_id = posted,
                  .offset = fetched_at(posted),
                  .bytes = 8,
                  .remote_offset = kCounter,
                  .compare_add = seed};
            added += seed;
        } else if (op.opcode == WrOpcode::kAtomicWrite) {
            op.offset = fetched_at(posted);
            op.bytes = 8;
            op.remote_offset = kStamp;
            stamp = posted + 1;
            own.set_word(op.offset, stamp);
        } else if (op.opcode == WrOpcode::kRead) {
            op.offset = fetched_at(posted);
            op.remote_offset = kSource;
        }
        if (op.opcode == WrOpcode::kSendImm || op.opcode == WrOpcode::kWriteImm) {
            sends.push_back(seed);
        }
        RVT_OK(post(own, peer, op));
        ++posted;
    }

    /// Whether `bytes` from `at` on are the beginning of what the peer sends from.
    [[nodiscard]] bool holds_source(std::size_t at, std::uint64_t bytes) const {
        return std::memcmp(own.memory.data() + at, peer.memory.data() + kSource, bytes) == 0;
    }

    void take_completions(const Talker& from) {
        const std::uint64_t stamped = peer.word(kStamp);
        expect(stamped >= stamp_seen, "an ATOMIC WRITE took effect twice");
        stamp_seen = stamped;
        Wc wc;
        while (own.send_cq->poll({&wc, 1}) == 1) {
            expect(wc.status == WcStatus::kSuccess, to_string(wc.status));
            expect(wc.wr_id == completed, "a completion out of order");
            expect(wc.opcode != WcOpcode::kRead || holds_source(fetched_at(wc.wr_id), wc.byte_len),
                   "a READ brought other bytes");
            expect(wc.opcode != WcOpcode::kAtomicWrite || stamped >= wc.wr_id + 1,
                   "an ATOMIC WRITE took no effect");
            ++completed;
        }
        while (own.recv_cq->poll({&wc, 1}) == 1) {
            const std::size_t at = kReceives + wc.wr_id % kReceiveCount * 4096;
            expect(wc.status == WcStatus::kSuccess, to_string(wc.status));
            expect(wc.wr_id == received, "a receive out of order");
            expect(wc.imm == from.sends.at(received), "a message out of order");
            expect(wc.opcode != WcOpcode::kRecv || holds_source(at, wc.byte_len),
                   "a SEND brought other bytes");
            ++received;
        }
    }
};

const Options kOptions{.cap = {.max_send_wr = 16, .max_recv_wr = 64},
                       .qp_access = kRemoteAll | Access::kFlushGlobal,
                       .memory_access = kAllAccess | Access::kFlushGlobal,
                       .rd_atomic = 2};

/// Runs both directions until everything has completed.
template <class Backend>
void talk(Pair<Backend>& pair, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    pair.a().fill(kSource, kMostBytes, 1);
    pair.b().fill(kSource, kMostBytes, 2);
    pair.a().set_word(kCounter, 0);
    pair.b().set_word(kCounter, 0);
    pair.a().set_word(kStamp, 0);
    pair.b().set_word(kStamp, 0);
    Talker talkers[2] = {{pair.a(), pair.b(), random, seed}, {pair.b(), pair.a(), random, seed}};
    const auto is_done = [](const Talker& t) { return t.completed == kOps; };
    for (int turn = 0; !is_done(talkers[0]) || !is_done(talkers[1]); ++turn) {
        talkers[0].expect(turn < 200'000, "it hangs");
        for (int i : {0, 1}) {
            Talker& t = talkers[i];
            t.post_receives();
            while (t.posted < kOps && t.posted - t.completed < kMostUnderWay && random() % 4 != 0) {
                t.post_one();
            }
            t.take_completions(talkers[1 - i]);
        }
        pair.pass_us(5);
    }
    for (int i : {0, 1}) {
        talkers[i].expect(talkers[1 - i].received == talkers[i].sends.size(),
                          "a message is missing");
        talkers[i].expect(pair[1 - i].word(kCounter) == talkers[i].added,
                          "a fetch-and-add took effect not at all, or twice");
        talkers[i].expect(pair[1 - i].word(kStamp) == talkers[i].stamp,
                          "an older ATOMIC WRITE came last");
    }
}

protocol::FaultPlan plan_of(const char* faults, std::uint64_t seed) {
    auto plan = protocol::parse_faults(faults).value();
    plan.seed = seed;
    return plan;
}

void talk_over_fake_wire(const char* faults, std::uint64_t seed) {
    Pair<Packets> pair(kOptions);
    pair.backend().wire().set_faults(plan_of(faults, seed));
    talk(pair, seed);
}

void talk_over_udp(const char* faults, std::uint64_t seed) {
    RoceAs::attr.faults = plan_of(faults, seed);
    Pair<RoceAs> pair(kOptions);
    talk(pair, seed);
}

void talk_with_many_seeds(const char* faults, std::uint64_t count,
                          void (*talk_once)(const char*, std::uint64_t) = talk_over_fake_wire) {
    test::for_each_seed(count, [&](std::uint64_t seed) { talk_once(faults, seed); });
}

}  // namespace

Test(packet_traffic, arrives_whole_over_a_clean_wire, .timeout = 60) {
    talk_with_many_seeds("", 20);
}
Test(packet_traffic, survives_loss, .timeout = 60) {
    talk_with_many_seeds("drop=10%", 60);
}
Test(packet_traffic, survives_duplicates_and_disorder, .timeout = 60) {
    talk_with_many_seeds("duplicate=20%,reorder=20%", 60);
}
Test(packet_traffic, survives_delay, .timeout = 60) {
    talk_with_many_seeds("delay=20%:3000us", 60);
}
Test(packet_traffic, survives_all_at_once, .timeout = 60) {
    talk_with_many_seeds("drop=5%,duplicate=5%,reorder=5%,corrupt=5%,delay=5%:500us", 120);
}
Test(packet_traffic, survives_all_at_once_over_udp, .timeout = 60) {
    talk_with_many_seeds("drop=5%,duplicate=5%,reorder=5%,corrupt=5%,delay=5%:500us", 20,
                         talk_over_udp);
}

Test(packet_traffic, a_doubled_refusal_costs_one_retry) {
    Pair<Packets> pair({.rnr_retry = 2});
    pair.backend().wire().set_faults(protocol::parse_faults("duplicate=100%").value());
    RVT_OK(pair.post_send());
    // Each sending comes twice, and each is refused.
    while (pair.b().device->stats().sum(Stat::kRnrNaks) < 4) {
        pair.pass_us(20);  // twice what the receiver asks for
    }
    RVT_OK(pair.b().post_recv(3));
    RVT_EQ(pair.received().wr_id, 3);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}

Test(packet_traffic, a_doubled_refusal_fails_one_request) {
    Pair<Packets> pair({.rnr_retry = 0});
    pair.backend().wire().set_faults(protocol::parse_faults("duplicate=100%").value());
    for (std::uint64_t i = 0; i < 3; ++i) {
        RVT_OK(pair.post_send({.wr_id = i}));
    }
    RVT_EQ(pair.sent().status, WcStatus::kRnrRetryExcErr);
    for (std::uint64_t i = 1; i < 3; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.wr_id, i);
        RVT_EQ(wc.status, WcStatus::kWrFlushErr);
    }
}

/// The first packet of many comes behind others: they are asked for again, and then it is refused.
Test(packet_traffic, a_refusal_counts_that_comes_before_what_is_sent_again) {
    test::for_each_seed(40, [](std::uint64_t seed) {
        Pair<Packets> pair;
        protocol::FaultPlan faults = protocol::parse_faults("reorder=30%").value();
        faults.seed = seed;
        pair.backend().wire().set_faults(faults);
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 8 * 1024, .rkey = 77}));
        RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    });
}

Test(packet_traffic, a_message_that_is_sent_again_counts_once) {
    constexpr std::size_t kBytes = 1000;  // several packets
    Pair<Packets> pair({.rnr_retry = 7});
    const core::Stats& stats = pair.a().device->stats();
    RVT_OK(pair.post_send({.bytes = kBytes}));
    while (stats.sum(Stat::kRetries) == 0) {
        pair.pass_us(5);
    }
    RVT_OK(pair.b().post_recv(1));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(stats.sum(Stat::kMessagesSent), 1);
    RVT_EQ(stats.sum(Stat::kBytesSent), kBytes);
}

// The peer takes the first packets in while the next ones leave.
Test(packet_traffic, behind_a_pause_a_long_message_begins_with_half_of_what_a_call_takes) {
    constexpr std::size_t kPackets = 100;
    constexpr std::size_t kPacketBytes = 256;
    Pair<Packets> pair(Options{});
    RVT_OK(pair.b().post_recv(1, 0, kPackets * kPacketBytes));
    std::vector<unsigned> come;  // to the peer, as each call is made
    bool is_answer = false;
    pair.backend().wire().on_send = [&] {
        if (!std::exchange(is_answer, true)) {
            come.push_back(pair.b().device->progress());
            is_answer = false;
        }
    };
    RVT_OK(pair.post_send({.bytes = kPackets * kPacketBytes}));
    RVT_EQ(come.size(), 2u);
    RVT_EQ(come[1], core::most_joined(kPacketBytes) / 2);
    pair.backend().wire().on_send = nullptr;
    RVT_EQ(pair.received().byte_len, kPackets * kPacketBytes);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}

// Who computes next would keep the sender waiting: nothing is known yet of this one.
Test(packet_traffic, a_message_of_a_pair_is_acknowledged_with_the_poll_that_brings_it) {
    Pair<Packets> pair(Options{});
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send());
    pair.b().device->progress();
    pair.a().device->progress();
    Wc wc;
    RVT_EQ(pair.a().send_cq->poll({&wc, 1}), 1);
    RVT_EQ(wc.status, WcStatus::kSuccess);
}
