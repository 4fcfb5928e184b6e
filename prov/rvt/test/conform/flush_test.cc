// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: FLUSH and ATOMIC WRITE (IBTA vol. 1, annex A19), their operands, rights and order.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr Access kWithFlush = kAllAccess | Access::kFlushGlobal;
constexpr Flush kGlobalRange{.type = FlushType::kGlobal, .length = 64};
constexpr Flush kGlobalRegion{.type = FlushType::kGlobal, .level = FlushLevel::kRegion};

Options flushing() {
    return {.qp_access = kRemoteAll | Access::kFlushGlobal, .memory_access = kWithFlush};
}

template <class Backend>
void flush_of_a_range_completes_behind_the_write_before_it() {
    Pair<Backend> pair(flushing());
    pair.a().fill(0, 5000, 2);
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kWrite, .wr_id = 1, .bytes = 5000, .remote_offset = 512}));
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kFlush,
         .wr_id = 2,
         .remote_offset = 512,
         .flush = {.type = FlushType::kGlobal, .level = FlushLevel::kRange, .length = 5000}}));
    RVT_EQ(pair.sent().wr_id, 1);
    const Wc wc = pair.sent();
    RVT_EQ(wc.wr_id, 2);
    RVT_EQ(wc.status, WcStatus::kSuccess);
    RVT_EQ(wc.opcode, WcOpcode::kFlush);
    RVT_ASSERT(pair.b().holds(512, 5000, 2));
}
RVT_CONFORM_RC(flush_of_a_range_completes_behind_the_write_before_it)

template <class Backend>
void flush_of_a_region_looks_at_the_key_alone() {
    Pair<Backend> pair(flushing());
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kFlush,
         .remote_offset = 100 * kMemoryBytes,
         .flush = {
             .type = FlushType::kGlobal, .level = FlushLevel::kRegion, .length = 0x7fffffff}}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(flush_of_a_region_looks_at_the_key_alone)

template <class Backend>
void flush_of_a_range_past_the_region_is_refused() {
    Pair<Backend> pair(flushing());
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kFlush, .remote_offset = kMemoryBytes - 10, .flush = kGlobalRange}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    RVT_EQ(pair.event(kB), EventType::kQpAccessErr);
}
RVT_CONFORM(flush_of_a_range_past_the_region_is_refused)

template <class Backend>
void flush_needs_the_right_of_the_region() {
    for (const Flush& flush : {kGlobalRange, kGlobalRegion, Flush{.type = FlushType::kGlobal}}) {
        Options options = flushing();
        options.memory_access = kAllAccess;
        Pair<Backend> pair(options);
        RVT_OK(pair.post_send({.opcode = WrOpcode::kFlush, .flush = flush}));
        RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    }
}
RVT_CONFORM(flush_needs_the_right_of_the_region)

template <class Backend>
void flush_needs_the_right_of_the_pair() {
    Options options = flushing();
    options.qp_access = kRemoteAll;
    Pair<Backend> pair(options);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kFlush, .flush = kGlobalRange}));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
    RVT_EQ(pair.event(kB), EventType::kQpReqErr);
}
RVT_CONFORM(flush_needs_the_right_of_the_pair)

template <class Backend>
void flush_to_persistence_needs_a_region_that_has_it() {
    Options options = flushing();
    options.qp_access = options.qp_access | Access::kFlushPersistent;
    Pair<Backend> pair(options);
    const Flush both{.type = FlushType::kGlobal | FlushType::kPersistent, .length = 64};
    RVT_OK(pair.post_send({.opcode = WrOpcode::kFlush, .flush = both}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}
RVT_CONFORM(flush_to_persistence_needs_a_region_that_has_it)

template <class Backend>
void flush_must_go_somewhere_and_carry_nothing() {
    Pair<Backend> pair(flushing());
    const auto flush = [&](FlushType type, FlushLevel level) {
        return pair.post_send(
            {.opcode = WrOpcode::kFlush, .flush = {.type = type, .level = level}});
    };
    RVT_EQ(flush(FlushType::kNone, FlushLevel::kRange), EINVAL);
    RVT_EQ(flush(static_cast<FlushType>(4), FlushLevel::kRange), EINVAL);
    RVT_EQ(flush(FlushType::kGlobal, static_cast<FlushLevel>(2)), EINVAL);
    const Sge element = pair.a().sge(0, 8);
    RVT_EQ(pair.a().qp->post_send(
               {.opcode = WrOpcode::kFlush, .sg_list = {&element, 1}, .flush = kGlobalRange}),
           EINVAL);
}
RVT_CONFORM(flush_must_go_somewhere_and_carry_nothing)

template <class Backend>
void atomic_write_changes_the_word_behind_the_write_before_it() {
    Pair<Backend> pair;
    pair.a().fill(64, 3000, 5);
    pair.a().set_word(0, 0x1122334455667788);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite,
                           .wr_id = 1,
                           .offset = 64,
                           .bytes = 3000,
                           .remote_offset = 64}));
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kAtomicWrite, .wr_id = 2, .bytes = 8, .remote_offset = 8}));
    RVT_EQ(pair.sent().wr_id, 1);
    const Wc wc = pair.sent();
    RVT_EQ(wc.wr_id, 2);
    RVT_EQ(wc.status, WcStatus::kSuccess);
    RVT_EQ(wc.opcode, WcOpcode::kAtomicWrite);
    RVT_EQ(pair.b().word(8), 0x1122334455667788);
    RVT_ASSERT(pair.b().holds(64, 3000, 5));
}
RVT_CONFORM_RC(atomic_write_changes_the_word_behind_the_write_before_it)

template <class Backend>
void atomic_write_may_be_inline() {
    Pair<Backend> pair;
    pair.a().set_word(0, 77);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kAtomicWrite,
                           .bytes = 8,
                           .remote_offset = 16,
                           .flags = SendFlags::kInline}));
    pair.a().set_word(0, 78);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.b().word(16), 77);
}
RVT_CONFORM_RC(atomic_write_may_be_inline)

template <class Backend>
void atomic_write_must_name_eight_bytes() {
    Pair<Backend> pair;
    for (const std::size_t bytes : {0, 4, 16}) {
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kAtomicWrite, .bytes = bytes}), EINVAL);
    }
}
RVT_CONFORM(atomic_write_must_name_eight_bytes)

template <class Backend>
void atomic_write_to_an_odd_address_is_an_invalid_request() {
    Pair<Backend> pair;
    pair.b().set_word(8, 5);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kAtomicWrite, .bytes = 8, .remote_offset = 12}));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
    RVT_EQ(pair.b().word(8), 5);
}
RVT_CONFORM(atomic_write_to_an_odd_address_is_an_invalid_request)

template <class Backend>
void atomic_write_needs_the_right_to_write() {
    Options options;
    options.memory_access = Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteAtomic;
    Pair<Backend> pair(options);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kAtomicWrite, .bytes = 8}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}
RVT_CONFORM(atomic_write_needs_the_right_to_write)

/// More than the peer answers at a time: what is over waits for its turn.
template <class Backend>
void many_of_them_under_way_keep_their_order() {
    Pair<Backend> pair(flushing());
    constexpr std::uint64_t kTimes = 40;
    for (std::uint64_t i = 1; i <= kTimes; i += 2) {
        pair.a().set_word(8 * i, i);
        RVT_OK(pair.post_send({.opcode = WrOpcode::kAtomicWrite,
                               .wr_id = i,
                               .offset = 8 * i,
                               .bytes = 8,
                               .remote_offset = 0}));
        RVT_OK(pair.post_send({.opcode = WrOpcode::kFlush, .wr_id = i + 1, .flush = kGlobalRange}));
    }
    for (std::uint64_t i = 1; i <= kTimes; ++i) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.status, WcStatus::kSuccess);
        RVT_EQ(wc.wr_id, i);
    }
    RVT_EQ(pair.b().word(0), kTimes - 1);
}
RVT_CONFORM_RC(many_of_them_under_way_keep_their_order)

template <class Backend>
void unreliable_pairs_refuse_them() {
    for (const QpType type : {QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kFlush, .flush = kGlobalRange}), EINVAL);
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kAtomicWrite, .bytes = 8}), EINVAL);
    }
}
RVT_CONFORM(unreliable_pairs_refuse_them)
RVT_CONFORM_NIC(unreliable_pairs_refuse_them)

template <class Backend>
void they_count_as_reads_do() {
    Pair<Backend> pair({.rd_atomic = 0});
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kFlush, .flush = kGlobalRange}), EINVAL);
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kAtomicWrite, .bytes = 8}), EINVAL);
}
RVT_CONFORM(they_count_as_reads_do)

}  // namespace
