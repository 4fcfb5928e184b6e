// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Work requests over a segment channel: hostile segments, broken channels, one-sided access.
#include "core/segment_transport.h"

#include "conform/fixture.h"
#include "core/nic_pages.h"
#include "core/requester.h"

#include <cstddef>
#include <random>
#include <vector>

using namespace rvt;
using namespace rvt::conform;

namespace {

/// A pair over segments, with the peer's end of the channel in the test's hands.
struct Wire {
    Pair<Segments> pair;
    SegmentHeader header{};

    explicit Wire(const Options& options = {}) : pair(options) {
        header.version = SegmentHeader::kVersion;
        header.kind = SegmentKind::kRequest;
        header.qp_type = static_cast<std::uint8_t>(options.type);
        header.src_qpn = pair.a().qp->qpn();
        header.dest_qpn = pair.b().qp->qpn();
        header.msn = pair.a().qp->qpn();  // the fixture's sq_psn
        header.message_bytes = 64;
    }
    Device& b() { return *pair.b().device; }
    Channel& channel() { return static_cast<SegmentFlow*>(pair.b().qp->flow())->channel(); }
    void inject(std::size_t payload_bytes = 64, std::size_t header_bytes = sizeof(SegmentHeader)) {
        std::vector<std::byte> payload(payload_bytes);
        const iovec piece{.iov_base = payload.data(), .iov_len = payload.size()};
        deliver_segment(b(), channel(), std::as_bytes(std::span(&header, 1)).first(header_bytes),
                        {&piece, 1});
    }
    std::uint64_t bad() { return b().stats().sum(Stat::kBadSegments); }
};

}  // namespace

Test(segment, the_header_is_what_the_backend_has_room_for) {
    RVT_ASSERT(sizeof(SegmentHeader) <= kMaxSegmentHeader);
}

Test(segment, a_wish_for_a_run_is_heeded_where_another_channel_fails) {
    Wire wire;
    core::Qp& qp = *wire.pair.b().qp;
    qp.run_again = 1;  // as by who posts while the failing one is looked for
    channel_failed(wire.b(), static_cast<SegmentFlow*>(wire.pair.a().qp->flow())->channel());
    RVT_ASSERT(not(core::wants_run(qp)));
    RVT_EQ(qp.state(), QpState::kRts);
}

Test(segment, a_header_that_is_cut_short_is_counted_and_dropped) {
    Wire wire;
    wire.inject(64, sizeof(SegmentHeader) - 1);
    wire.inject(64, 0);
    RVT_EQ(wire.bad(), 2);
}

Test(segment, an_unknown_version_kind_type_or_opcode_is_counted_and_dropped) {
    Wire wire;
    const SegmentHeader good = wire.header;
    wire.header.version = SegmentHeader::kVersion + 1;
    wire.inject();
    wire.header = good;
    wire.header.kind = static_cast<SegmentKind>(9);
    wire.inject();
    wire.header = good;
    wire.header.qp_type = 4;
    wire.inject();
    wire.header = good;
    wire.header.opcode = kWrOpcodes;
    wire.inject();
    RVT_EQ(wire.bad(), 4);
    RVT_EQ(wire.pair.b().qp->state(), QpState::kRts);
}

Test(segment, more_bytes_than_the_message_has_fail_the_pair_and_write_nothing_beyond) {
    Wire wire;
    RVT_OK(wire.pair.b().post_recv(3, 0, 64));
    wire.pair.b().fill(64, 64, 5);
    wire.inject(128);
    RVT_EQ(wire.pair.received().status, WcStatus::kWrFlushErr);
    RVT_ASSERT(wire.pair.b().holds(64, 64, 5));
    RVT_EQ(wire.pair.b().qp->state(), QpState::kErr);
}

Test(segment, a_later_part_cannot_change_what_the_first_part_said) {
    Wire wire;
    RVT_OK(wire.pair.b().post_recv(3, 4096, 64));
    wire.pair.b().fill(4096, 64, 5);
    wire.header.opcode = static_cast<std::uint8_t>(WrOpcode::kWrite);
    wire.header.remote_addr = wire.pair.b().at(0);
    wire.header.rkey = wire.pair.b().mr->rkey();
    wire.inject(32);
    wire.header.opcode = static_cast<std::uint8_t>(WrOpcode::kSend);
    wire.header.offset = 32;
    wire.inject(32);
    RVT_ASSERT(wire.pair.b().holds(4096, 64, 5));
    RVT_ASSERT(wire.pair.is_silent(wire.pair.b().recv_cq));
}

Test(segment, a_part_out_of_place_fails_the_pair) {
    Wire wire;
    RVT_OK(wire.pair.b().post_recv(3, 0, 64));
    wire.inject(16);
    wire.header.offset = 48;
    wire.inject(16);
    RVT_EQ(wire.pair.b().qp->state(), QpState::kErr);
}

Test(segment, a_request_out_of_order_is_dropped) {
    Wire wire;
    RVT_OK(wire.pair.b().post_recv(3, 0, 64));
    wire.header.msn += 1;
    wire.inject();
    RVT_ASSERT(wire.pair.is_silent(wire.pair.b().recv_cq));
    RVT_EQ(wire.b().stats().sum(Stat::kDrops), 1);
}

Test(segment, an_answer_that_nobody_waits_for_is_counted_and_dropped) {
    Wire wire;
    wire.header.kind = SegmentKind::kAck;
    wire.inject();
    wire.header.kind = SegmentKind::kReadData;
    wire.inject();
    wire.header.kind = SegmentKind::kNak;
    wire.header.nak = 200;
    wire.inject();
    RVT_EQ(wire.bad(), 3);
}

Test(segment, a_request_for_a_write_outside_the_region_changes_nothing) {
    Wire wire;
    wire.header.opcode = static_cast<std::uint8_t>(WrOpcode::kWrite);
    wire.header.remote_addr = wire.pair.b().at(kMemoryBytes - 32);
    wire.header.rkey = wire.pair.b().mr->rkey();
    wire.inject();
    RVT_EQ(wire.pair.event(kB), EventType::kQpAccessErr);
}

Test(segment, random_headers_never_crash_nor_touch_memory_without_a_key, .timeout = 60) {
    std::mt19937 random(20);
    Wire wire;
    for (int i = 0; i < 20000; ++i) {
        auto* bytes = reinterpret_cast<std::uint8_t*>(&wire.header);
        for (std::size_t n = random() % 8; n > 0; --n) {
            bytes[random() % sizeof wire.header] = static_cast<std::uint8_t>(random());
        }
        wire.header.version = SegmentHeader::kVersion;
        wire.header.dest_qpn = wire.pair.b().qp->qpn();
        wire.inject(random() % 200);
        if (wire.pair.b().qp->state() != QpState::kRts) {
            RVT_OK(wire.pair.go(kB, QpState::kReset));
            for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
                RVT_OK(wire.pair.go(kB, state));
            }
        }
        while (wire.pair.b().event()) {
        }
    }
}

Test(segment, a_broken_channel_fails_what_is_under_way_and_flushes_the_rest) {
    Pair<Segments> pair;
    for (std::uint64_t i = 0; i < 3; ++i) {
        RVT_OK(pair.post_send({.wr_id = i}));
        RVT_OK(pair.a().post_recv(10 + i));
    }
    pair.backend().break_channels();
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
    RVT_EQ(pair.sent().status, WcStatus::kWrFlushErr);
    RVT_EQ(pair.sent().status, WcStatus::kWrFlushErr);
    RVT_EQ(pair.next(pair.a().recv_cq).status, WcStatus::kWrFlushErr);
    RVT_EQ(pair.event(kA), EventType::kQpFatal);
}

Test(segment, memory_deregistered_in_the_middle_of_a_message_is_not_read) {
    Pair<Segments> pair;
    RVT_OK(pair.b().post_recv(1, 0, 100000));
    RVT_OK(pair.post_send({.bytes = 100000}));  // far more than the channel holds
    RVT_OK(dereg_mr(pair.a().mr));
    pair.a().mr = nullptr;
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
}

Test(segment, memory_deregistered_in_the_middle_of_a_read_is_refused) {
    Pair<Segments> pair;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .bytes = 100000}));
    pair.b().device->progress();  // the first segments of the answer are on their way
    RVT_OK(dereg_mr(pair.b().mr));
    pair.b().mr = nullptr;
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}

Test(segment, a_backend_that_reaches_memory_writes_and_reads_without_the_peer) {
    Pair<Segments> pair;
    pair.backend().port(kA).reaches_memory = true;
    // The first answer tells which domain and which rights the peer's pair has.
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 8}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.backend().port(kA).one_sided, 0);
    pair.a().fill(0, 5000, 3);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 5000, .remote_offset = 100}));
    RVT_ASSERT(pair.b().holds(100, 5000, 3));  // nobody has moved the peer
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kRead, .offset = 8192, .bytes = 5000, .remote_offset = 100}));
    RVT_ASSERT(pair.a().holds(8192, 5000, 3));
    RVT_EQ(pair.backend().port(kA).one_sided, 2);
    RVT_EQ(pair.sent().opcode, WcOpcode::kWrite);
    RVT_EQ(pair.sent().opcode, WcOpcode::kRead);
}

Test(segment, memory_that_the_devices_table_does_not_name_is_asked_for_at_once) {
    test::Pages memory(0, core::KeyTable::block_bytes(64));
    const auto keys = core::KeyTable::create(memory.memory, memory.bytes).take();
    Pair<Segments> pair({.keys = keys.get()});
    pair.backend().port(kA).reaches_memory = true;
    for (int i = 0; i < 2; ++i) {  // the second knows the peer's domain
        pair.a().fill(0, 5000, i);
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 5000, .remote_offset = 100}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
        RVT_ASSERT(pair.b().holds(100, 5000, i));
    }
    RVT_EQ(pair.backend().port(kA).attempts, 0);
}

Test(segment, one_sided_access_waits_for_what_was_posted_before_it) {
    Pair<Segments> pair;
    pair.backend().port(kA).reaches_memory = true;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 8}));
    pair.sent();
    RVT_OK(pair.post_send());  // no receive: it stays under way
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 64}));
    RVT_EQ(pair.backend().port(kA).one_sided, 0);
}

Test(segment, one_sided_access_that_the_key_refuses_fails_as_any_other) {
    Pair<Segments> pair;
    pair.backend().port(kA).reaches_memory = true;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 8}));
    pair.sent();
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .rkey = 0x777}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    RVT_EQ(pair.event(kB), EventType::kQpAccessErr);
}
