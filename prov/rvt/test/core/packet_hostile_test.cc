// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets that no honest peer sends: whatever comes, nothing is written but into memory that a key
// opened or a receive offered, and the pair can be used again.
#include "conform/fixture.h"
#include "core/early_packets.h"
#include "core/early_room.h"
#include "core/message_sink.h"
#include "protocol/headers.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <span>
#include <utility>
#include <vector>

using namespace rvt;
using namespace rvt::conform;
using namespace rvt::protocol;

namespace {

// Of B's memory: what a key opens, and what receives offer. The rest belongs to nobody.
constexpr std::size_t kOpened = 64 * 1024;
constexpr std::size_t kOffered = 128 * 1024;
constexpr std::size_t kAreaBytes = 16 * 1024;
constexpr int kPackets = 30'000;

struct Attack {
    Pair<Packets> pair;
    Mr* opened;
    std::mt19937_64 random;

    Attack(QpType type, std::uint64_t seed)
        : pair({.type = type,
                .qp_access = kRemoteAll | Access::kFlushGlobal,
                .extended_atomics = type == QpType::kRc}),
          random(seed) {
        std::fill(pair.b().memory.begin(), pair.b().memory.end(), std::byte{0x77});
        const iovec area{.iov_base = pair.b().memory.data() + kOpened, .iov_len = kAreaBytes};
        opened = reg_mr(*pair.b().pd,
                        {.segments = {&area, 1}, .access = kAllAccess | Access::kFlushGlobal})
                     .value();
    }
    ~Attack() { RVT_OK(dereg_mr(opened)); }
    Attack(const Attack&) = delete;
    Attack& operator=(const Attack&) = delete;

    std::uint64_t below(std::uint64_t bound) { return random() % bound; }
    bool once_in(std::uint64_t n) { return below(n) == 0; }

    /// A header that is mostly right: what is all wrong gets nowhere.
    PacketHeader header() {
        Qp& qp = *pair.b().qp;
        const QpAttr attr = qp.query();
        const std::uint64_t opened_at = pair.b().at(kOpened);
        return {.opcode = static_cast<Opcode>(once_in(10) ? 0xc0 + below(2) : below(0x70)),
                .solicited = once_in(2),
                .ack_request = once_in(2),
                .dest_qpn = once_in(20) ? static_cast<std::uint32_t>(below(1 << 24)) : qp.qpn(),
                .psn = Psn(attr.rq_psn) + static_cast<std::uint32_t>(below(64)) - 16,
                .qkey = kQkey,
                .src_qpn = pair.a().qp->qpn(),
                .flush = static_cast<std::uint32_t>(once_in(4) ? random() : below(32)),
                .remote_addr = opened_at + below(2 * kAreaBytes) - kAreaBytes / 2,
                .rkey = once_in(10) ? static_cast<std::uint32_t>(random()) : opened->rkey(),
                .dma_bytes = static_cast<std::uint32_t>(once_in(20) ? random() : below(2048)),
                .swap_add = random(),
                .compare = random(),
                .syndrome = static_cast<std::uint8_t>(random()),
                .msn = static_cast<std::uint32_t>(random()),
                .original = random(),
                .imm = once_in(2) ? opened->rkey() : static_cast<std::uint32_t>(random()),
                .atomic =
                    static_cast<std::uint32_t>(below(6) << 24 | below(17) << 16 | below(21) << 8)};
    }

    std::vector<std::byte> packet() {
        PacketHeader head = header();
        if (opcode_info(static_cast<std::uint8_t>(head.opcode)) == nullptr) {
            head.opcode = Opcode::kRcSendOnly;
        }
        std::size_t payload = once_in(3) ? 256 : below(300);
        if (head.opcode == Opcode::kRvtAtomic && !once_in(4)) {
            head.dma_bytes = 16u << below(5);
            payload = head.dma_bytes * below(3);
        }
        head.pad = once_in(10) ? static_cast<std::uint8_t>(below(4))
                               : static_cast<std::uint8_t>(-payload & 3);
        std::vector<std::byte> bytes(kMaxHeaderBytes);
        bytes.resize(encode(head, bytes.data()));
        if (head.info().has_payload) {
            bytes.resize(bytes.size() + payload + head.pad, static_cast<std::byte>(random()));
        }
        if (once_in(10)) {
            bytes[below(bytes.size())] ^= static_cast<std::byte>(1u << below(8));
        }
        if (once_in(20)) {
            bytes.resize(below(bytes.size() + 1));
        }
        return bytes;
    }

    void post_receives() {
        while (pair.b().qp->state() == QpState::kRts &&
               pair.b().post_recv(1, kOffered + below(kAreaBytes - 1024), 1024).is_ok()) {
        }
    }

    void connect_again() {
        for (int i : {kA, kB}) {
            RVT_OK(pair.go(i, QpState::kReset));
        }
        for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
            for (int i : {kA, kB}) {
                RVT_OK(pair.go(i, state));
            }
        }
    }

    void run() {
        for (int i = 0; i < kPackets; ++i) {
            post_receives();
            // Work under way at B, so that answers to it are believed.
            if (once_in(8)) {
                [[maybe_unused]] const Status posted = pair.post_send_from_b(
                    {.opcode = once_in(2) ? WrOpcode::kSend : WrOpcode::kWrite, .offset = kOpened});
            }
            const std::vector<std::byte> bytes = packet();
            deliver_packet(*pair.b().device, pair.a().device->address(), pair.b().device->address(),
                           bytes);
            if (once_in(16)) {
                pair.pass_us(once_in(10) ? 5000 : 5);
                Wc wc;
                while (pair.b().recv_cq->poll({&wc, 1}) == 1 ||
                       pair.b().send_cq->poll({&wc, 1}) == 1) {
                }
            }
            if (pair.b().qp->state() != QpState::kRts || pair.a().qp->state() != QpState::kRts) {
                connect_again();
            }
        }
    }

    bool is_untouched_outside() {
        for (std::size_t i = 0; i < kMemoryBytes; ++i) {
            const bool is_open = (i >= kOpened && i < kOpened + kAreaBytes) ||
                                 (i >= kOffered && i < kOffered + kAreaBytes);
            if (!is_open && pair.b().memory[i] != std::byte{0x77}) {
                return false;
            }
        }
        return true;
    }

    bool works_again() {
        connect_again();
        RVT_OK(pair.b().post_recv(7, kOffered, 1024));
        RVT_OK(pair.post_send({.wr_id = 5}));
        return pair.received().wr_id == 7 && pair.sent().wr_id == 5;
    }
};

void attack(QpType type) {
    for (const std::uint64_t seed : {1, 2, 3}) {
        Attack attack(type, seed);
        attack.run();
        // Some of it was carried out: else this would show nothing.
        RVT_ASSERT(attack.pair.b().device->stats().sum(Stat::kMessagesReceived) > 100);
        cr_assert(attack.is_untouched_outside(), "seed %d", static_cast<int>(seed));
        cr_assert(attack.works_again(), "seed %d", static_cast<int>(seed));
    }
}

}  // namespace

Test(packet_hostile, a_reliable_pair_takes_no_harm, .timeout = 60) {
    attack(QpType::kRc);
}
Test(packet_hostile, an_unreliable_pair_takes_no_harm, .timeout = 60) {
    attack(QpType::kUc);
}
Test(packet_hostile, a_datagram_pair_takes_no_harm, .timeout = 60) {
    attack(QpType::kUd);
}

Test(packet_hostile, an_unreliable_message_that_lies_about_its_length_takes_no_receive) {
    Pair<Packets> pair({.type = QpType::kUc});
    RVT_OK(pair.b().post_recv(9));
    const PacketHeader lie{.opcode = Opcode::kUcWriteOnlyImm,
                           .dest_qpn = pair.b().qp->qpn(),
                           .psn = Psn(pair.b().qp->query().rq_psn),
                           .remote_addr = pair.b().at(0),
                           .rkey = pair.b().mr->rkey(),
                           .dma_bytes = 8};
    std::vector<std::byte> bytes(kMaxHeaderBytes);
    bytes.resize(encode(lie, bytes.data()));
    bytes.resize(bytes.size() + 4);
    deliver_packet(*pair.b().device, pair.a().device->address(), pair.b().device->address(), bytes);
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_OK(pair.post_send());
    const Wc wc = pair.received();
    RVT_EQ(wc.wr_id, 9);
    RVT_EQ(wc.status, WcStatus::kSuccess);
}

Test(packet_hostile, bytes_that_are_no_packet_are_counted) {
    Pair<Packets> pair;
    std::mt19937_64 random(1);
    std::vector<std::byte> bytes;
    for (int i = 0; i < 20'000; ++i) {
        bytes.resize(random() % 80);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
        deliver_packet(*pair.b().device, pair.a().device->address(), pair.b().device->address(),
                       bytes);
    }
    Stats& stats = pair.b().device->stats();
    RVT_EQ(stats.sum(Stat::kBadPackets) + stats.sum(Stat::kDrops), 20'000);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}

namespace {

/// A packet of A to B with the next number but `behind`.
std::vector<std::byte> packet_of(Pair<Packets>& pair, PacketHeader head, std::size_t payload,
                                 unsigned behind = 0) {
    head.dest_qpn = pair.b().qp->qpn();
    head.psn = Psn(pair.b().qp->query().rq_psn) + behind;
    head.pad = static_cast<std::uint8_t>(-payload & 3);
    head.rkey = pair.b().mr->rkey();
    std::vector<std::byte> bytes(kMaxHeaderBytes);
    bytes.resize(encode(head, bytes.data()));
    bytes.resize(bytes.size() + payload + head.pad, std::byte{1});
    return bytes;
}

/// Addresses that a packet of the peer does not come from. Port 0 is that of all who send from any.
std::vector<Address> strangers(const Address& peer) {
    Address elsewhere = peer;
    elsewhere.gid[15] ^= 1;
    return {{.gid = peer.gid, .port = static_cast<std::uint16_t>(peer.port + 1)},
            elsewhere,
            {.gid = elsewhere.gid, .port = 0}};
}

/// Has B take it in.
void deliver(Pair<Packets>& pair, const PacketHeader& head, std::size_t payload,
             unsigned behind = 0) {
    deliver_packet(*pair.b().device, pair.a().device->address(), pair.b().device->address(),
                   packet_of(pair, head, payload, behind));
}

}  // namespace

Test(packet_hostile, an_atomic_write_of_another_length_is_an_invalid_request) {
    for (const auto& [named, sent] :
         {std::pair{4u, 4u}, {16u, 16u}, {8u, 4u}, {4u, 8u}, {8u, 0u}}) {
        Pair<Packets> pair;
        pair.b().set_word(0, 7);
        deliver(
            pair,
            {.opcode = Opcode::kRcAtomicWrite, .remote_addr = pair.b().at(0), .dma_bytes = named},
            sent);
        RVT_EQ(pair.b().qp->state(), QpState::kErr);
        RVT_EQ(pair.b().device->stats().sum(Stat::kRequestNaks), 1);
        RVT_EQ(pair.b().word(0), 7);
    }
}

Test(packet_hostile, an_atomic_write_that_comes_again_is_answered_but_not_written) {
    Pair<Packets> pair;
    const PacketHeader write{
        .opcode = Opcode::kRcAtomicWrite, .remote_addr = pair.b().at(0), .dma_bytes = 8};
    deliver(pair, write, 8);
    RVT_EQ(pair.b().word(0), 0x0101010101010101);
    pair.b().set_word(0, 7);
    deliver(pair, write, 8);
    RVT_EQ(pair.b().word(0), 7);
    RVT_EQ(pair.b().device->stats().sum(Stat::kDuplicates), 1);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}

/// What is far ahead is no packet of the window, and what is far behind is taken for one that was
/// executed long ago: nothing is written.
Test(packet_hostile, requests_out_of_the_window_are_counted_and_write_nothing) {
    constexpr unsigned kHalf = 1u << 23;  // of all numbers
    constexpr unsigned kAhead[] = {core::EarlyPackets::kMost, 100'000, kHalf - 1};
    constexpr unsigned kBehind[] = {1, 512, 100'000, kHalf};
    Pair<Packets> pair;
    pair.b().set_word(0, 7);
    const PacketHeader write{
        .opcode = Opcode::kRcWriteOnly, .remote_addr = pair.b().at(0), .dma_bytes = 8};
    for (const unsigned ahead : kAhead) {
        deliver(pair, write, 8, ahead);
    }
    for (const unsigned behind : kBehind) {
        deliver(pair, write, 8, 0u - behind);
    }
    Stats& stats = pair.b().device->stats();
    RVT_EQ(stats.sum(Stat::kSequenceErrors), std::size(kAhead));
    RVT_EQ(stats.sum(Stat::kDuplicates), std::size(kBehind));
    RVT_EQ(pair.b().word(0), 7);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
    deliver(pair, write, 8);
    RVT_EQ(pair.b().word(0), 0x0101010101010101);
}

Test(packet_hostile, reserved_bits_of_a_flush_are_not_looked_at) {
    const auto state_after = [](std::uint32_t feth) {
        Pair<Packets> pair({.qp_access = kRemoteAll | Access::kFlushGlobal,
                            .memory_access = kAllAccess | Access::kFlushGlobal});
        deliver(pair,
                {.opcode = Opcode::kRcFlush,
                 .flush = feth,
                 .remote_addr = pair.b().at(0),
                 .dma_bytes = 64},
                0);
        return pair.b().qp->state();
    };
    RVT_EQ(state_after(0xffffffc1), QpState::kRts);
    RVT_EQ(state_after(0x00000021), QpState::kErr);  // no level
    RVT_EQ(state_after(0x00000000), QpState::kErr);  // no type
    RVT_EQ(state_after(0x00000004), QpState::kErr);  // an unknown type
}

// ---- packets of a message for a sink ----

namespace {

constexpr std::size_t kFull = 256;  // payload of a packet that is not a message's last

struct CountingSink final : MessageSink {
    bool has_room() noexcept override { return !is_full; }
    bool will_tell() const noexcept override { return false; }
    void take(std::span<const std::byte> part, bool starts, bool ends) noexcept override {
        parts += 1;
        bytes += part.size();
        messages += ends ? 1 : 0;
        begun += starts ? 1 : 0;
    }
    bool is_full = false;
    std::size_t parts = 0;
    std::size_t bytes = 0;
    std::size_t begun = 0;
    std::size_t messages = 0;
};

}  // namespace

Test(packet_hostile, a_sink_gets_each_part_of_a_message_once) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    deliver(pair, {.opcode = Opcode::kRcSendFirst}, kFull, 0);
    for (unsigned psn : {1u, 2u, 2u, 1u, 3u}) {
        deliver(pair, {.opcode = Opcode::kRcSendMiddle}, kFull, psn);
    }
    deliver(pair, {.opcode = Opcode::kRcSendLast, .ack_request = true}, 10, 4);
    RVT_EQ(sink.parts, 5u);
    RVT_EQ(sink.bytes, 4 * kFull + 10);
    RVT_EQ(sink.begun, 1u);
    RVT_EQ(sink.messages, 1u);
    RVT_EQ(pair.b().device->stats().sum(Stat::kDuplicates), 2u);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}

Test(packet_hostile, a_sink_gets_messages_of_one_packet_while_it_has_room) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    for (unsigned psn : {0u, 1u, 0u, 2u}) {
        deliver(pair, {.opcode = Opcode::kRcSendOnly, .ack_request = true}, 10, psn);
    }
    sink.is_full = true;
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, 10, 3);
    RVT_EQ(sink.messages, 3u);
    RVT_EQ(pair.b().device->stats().sum(Stat::kRnrNaks), 1u);
    sink.is_full = false;
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, 0, 3);
    RVT_EQ(sink.messages, 4u);
    RVT_EQ(sink.begun, 4u);
    RVT_EQ(sink.bytes, 30u);
    RVT_EQ(pair.b().device->stats().sum(Stat::kDuplicates), 1u);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
}

Test(packet_hostile, a_sink_gets_nothing_of_what_is_no_packet_of_its_peer) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    const Address own = pair.b().device->address();
    const Address peer = pair.a().device->address();
    const std::vector<std::byte> good = packet_of(pair, {}, 8);
    const auto with = [&](std::size_t at, int bits) {
        std::vector<std::byte> bytes = good;
        bytes[at] ^= static_cast<std::byte>(bits);
        return bytes;
    };
    deliver_packet(*pair.b().device, peer, own, with(1, 0x01));  // version
    deliver_packet(*pair.b().device, peer, own, with(3, 0x01));  // P_Key
    deliver_packet(*pair.b().device, peer, own, with(7, 0x08));  // pair
    for (const Address& stranger : strangers(peer)) {
        deliver_packet(*pair.b().device, stranger, own, good);
    }
    std::vector<std::byte> unpadded = with(1, 0x30);
    unpadded.resize(kBthBytes + 2);
    deliver_packet(*pair.b().device, peer, own, unpadded);
    RVT_EQ(sink.parts, 0u);
    RVT_EQ(pair.b().device->stats().sum(Stat::kBadPackets), 3u);
    RVT_EQ(pair.b().device->stats().sum(Stat::kDrops), 4u);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
    deliver_packet(*pair.b().device, peer, own, good);
    RVT_EQ(sink.bytes, 8u);
}

Test(packet_hostile, a_request_from_another_address_is_dropped) {
    for (const auto& [type, opcode] :
         {std::pair{QpType::kRc, Opcode::kRcSendOnly}, {QpType::kUc, Opcode::kUcSendOnly}}) {
        for (const std::uint16_t from_any_port : {0, 1}) {
            Pair<Packets> pair({.type = type});
            RVT_OK(pair.b().post_recv(9));
            Address peer = pair.a().device->address();
            const Address own = pair.b().device->address();
            const std::vector<std::byte> bytes = packet_of(pair, {.opcode = opcode}, 8);
            for (const Address& stranger : strangers(peer)) {
                deliver_packet(*pair.b().device, stranger, own, bytes);
            }
            RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
            RVT_EQ(pair.b().device->stats().sum(Stat::kDrops), 3u);
            peer.port = from_any_port != 0 ? std::uint16_t{0} : peer.port;
            deliver_packet(*pair.b().device, peer, own, bytes);
            RVT_EQ(pair.received().wr_id, 9);
        }
    }
}

Test(packet_hostile, an_answer_from_another_address_is_none) {
    Pair<Packets> pair;
    RVT_OK(pair.post_send({.wr_id = 5}));  // for which there is no receive
    Side& a = pair.a();
    const Address peer = pair.b().device->address();
    const PacketHeader ack{
        .opcode = Opcode::kRcAck, .dest_qpn = a.qp->qpn(), .psn = Psn(a.qp->query().sq_psn)};
    std::vector<std::byte> bytes(kMaxHeaderBytes);
    bytes.resize(encode(ack, bytes.data()));
    Wc wc;
    for (const Address& stranger : strangers(peer)) {
        deliver_packet(*a.device, stranger, a.device->address(), bytes);
        RVT_EQ(a.send_cq->poll({&wc, 1}), 0u);
    }
    RVT_EQ(a.device->stats().sum(Stat::kDrops), 3u);
    deliver_packet(*a.device, peer, a.device->address(), bytes);
    RVT_EQ(a.send_cq->poll({&wc, 1}), 1u);
    RVT_EQ(wc.wr_id, 5);
}

Test(packet_hostile, parts_for_a_sink_that_come_too_early_are_handed_over_in_order) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    deliver(pair, {.opcode = Opcode::kRcSendFirst}, kFull, 0);
    deliver(pair, {.opcode = Opcode::kRcSendMiddle}, kFull, 2);
    deliver(pair, {.opcode = Opcode::kRcSendMiddle}, kFull, 3);
    RVT_EQ(sink.parts, 1u);
    deliver(pair, {.opcode = Opcode::kRcSendMiddle}, kFull, 1);
    RVT_EQ(sink.parts, 4u);
    deliver(pair, {.opcode = Opcode::kRcSendMiddle}, kFull, 4);
    RVT_EQ(sink.parts, 5u);
}

// What it wants of the peer it asks for once, and keeps no more than a packet holds.
Test(packet_hostile, what_comes_too_early_and_is_too_long_is_not_kept) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull + 4, 1);
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 0);
    RVT_EQ(sink.parts, 1u);
    RVT_EQ(pair.b().qp->state(), QpState::kRts);
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 1);
    RVT_EQ(sink.parts, 2u);
}

// What a pair keeps of them ends with it, whichever way.
Test(packet_hostile, what_comes_too_early_is_forgotten_by_a_pair_that_takes_in_no_more) {
    CountingSink sink;
    for (const QpState end : {QpState::kErr, QpState::kReset}) {
        Pair<Packets> pair({.sink = &sink});
        deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 1);
        EarlyRoom& room = pair.b().device->early_room();
        RVT_ASSERT(room.used() > kFull);
        RVT_OK(pair.go(kB, end));
        RVT_EQ(room.used(), 0u);
    }
}

Test(packet_hostile, what_comes_too_early_is_forgotten_by_a_pair_that_the_peer_ends) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 2);
    deliver(pair, {.opcode = Opcode::kRcSendLast}, kFull, 0);  // of no message
    RVT_EQ(pair.b().qp->state(), QpState::kErr);
    RVT_EQ(pair.b().device->early_room().used(), 0u);
}

Test(packet_hostile, what_comes_too_early_is_forgotten_with_its_pair) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    EarlyRoom& room = pair.b().device->early_room();
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 1);
    RVT_ASSERT(room.used() > kFull);
    RVT_OK(destroy_qp(std::exchange(pair.b().qp, nullptr)));
    RVT_EQ(room.used(), 0u);
}

// Pairs with gaps, of one device: the packets come again when theirs is filled.
Test(packet_hostile, what_comes_too_early_to_a_device_without_room_is_lost) {
    CountingSink sink;
    Pair<Packets> pair({.sink = &sink});
    EarlyRoom& room = pair.b().device->early_room();
    RVT_ASSERT(room.take(EarlyRoom::kBytes));
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 1);
    RVT_EQ(room.used(), EarlyRoom::kBytes);
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 0);
    RVT_EQ(sink.parts, 1u);
    room.give_back(EarlyRoom::kBytes);
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 2);
    deliver(pair, {.opcode = Opcode::kRcSendOnly}, kFull, 1);
    RVT_EQ(sink.parts, 3u);
    RVT_EQ(room.used(), 0u);
}

Test(packet_hostile, a_part_for_a_sink_that_is_not_one_ends_the_pair) {
    struct Wrong {
        PacketHeader header;
        std::size_t payload;
        bool is_begun;
    };
    const Wrong all[] = {
        {.header = {.opcode = Opcode::kRcSendMiddle}, .payload = kFull, .is_begun = false},
        {.header = {.opcode = Opcode::kRcSendMiddle}, .payload = kFull - 4, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendMiddle}, .payload = kFull + 4, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendMiddle}, .payload = 0, .is_begun = true},
        {.header = {.opcode = Opcode::kRcWriteMiddle}, .payload = kFull, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendOnly}, .payload = kFull, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendOnly}, .payload = kFull + 4, .is_begun = false},
        {.header = {.opcode = Opcode::kRcSendFirst}, .payload = kFull, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendFirst}, .payload = kFull - 4, .is_begun = false},
        {.header = {.opcode = Opcode::kRcSendFirst}, .payload = kFull + 4, .is_begun = false},
        {.header = {.opcode = Opcode::kRcSendLast}, .payload = 8, .is_begun = false},
        {.header = {.opcode = Opcode::kRcSendLast}, .payload = kFull + 4, .is_begun = true},
        {.header = {.opcode = Opcode::kRcSendLast}, .payload = 0, .is_begun = true},
    };
    for (const Wrong& wrong : all) {
        CountingSink sink;
        Pair<Packets> pair({.sink = &sink});
        if (wrong.is_begun) {
            deliver(pair, {.opcode = Opcode::kRcSendFirst}, kFull, 0);
        }
        deliver(pair, wrong.header, wrong.payload, wrong.is_begun ? 1 : 0);
        RVT_EQ(sink.parts, wrong.is_begun ? 1u : 0u);
        RVT_EQ(pair.b().qp->state(), QpState::kErr);
    }
}
