// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: each opcode, its operands and flags, on the types of pair that take it.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

template <class Backend>
void send_puts_the_bytes_into_the_receive() {
    Pair<Backend> pair;
    pair.a().fill(0, 300, 1);
    RVT_OK(pair.b().post_recv(9, 4096, 1024));
    RVT_OK(pair.post_send({.wr_id = 5, .bytes = 300}));
    const Wc sent = pair.sent();
    RVT_EQ(sent.wr_id, 5);
    RVT_EQ(sent.status, WcStatus::kSuccess);
    RVT_EQ(sent.opcode, WcOpcode::kSend);
    const Wc received = pair.received();
    RVT_EQ(received.wr_id, 9);
    RVT_EQ(received.opcode, WcOpcode::kRecv);
    RVT_EQ(received.byte_len, 300);
    RVT_EQ(received.qpn, pair.b().qp->qpn());
    RVT_ASSERT(pair.b().holds(4096, 300, 1));
}
RVT_CONFORM_RC(send_puts_the_bytes_into_the_receive)
RVT_CONFORM_NIC(send_puts_the_bytes_into_the_receive)

template <class Backend>
void a_send_of_no_bytes_completes_a_receive_of_no_bytes() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(9, 0, 0));
    RVT_OK(pair.post_send({.bytes = 0}));
    RVT_EQ(pair.received().byte_len, 0);
}
RVT_CONFORM_RC(a_send_of_no_bytes_completes_a_receive_of_no_bytes)
RVT_CONFORM_NIC(a_send_of_no_bytes_completes_a_receive_of_no_bytes)

template <class Backend>
void a_long_message_arrives_whole() {
    Pair<Backend> pair;
    pair.a().fill(0, 100000, 3);
    RVT_OK(pair.b().post_recv(9, 1000, 100000));
    RVT_OK(pair.post_send({.bytes = 100000}));
    RVT_EQ(pair.received().byte_len, 100000);
    RVT_ASSERT(pair.b().holds(1000, 100000, 3));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC_SEEDS(a_long_message_arrives_whole, 50)
RVT_CONFORM_NIC(a_long_message_arrives_whole)

template <class Backend>
void immediate_data_arrives_with_the_message() {
    for (QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_OK(pair.b().post_recv(9));
        RVT_OK(pair.post_send({.opcode = WrOpcode::kSendImm, .imm = 0xabcd1234}));
        const Wc received = pair.received();
        RVT_EQ(received.imm, 0xabcd1234);
        RVT_ASSERT(has_all(received.flags, WcFlags::kWithImm));
    }
}
RVT_CONFORM(immediate_data_arrives_with_the_message)
RVT_CONFORM_NIC(immediate_data_arrives_with_the_message)

template <class Backend>
void write_changes_the_peers_memory_and_completes_no_receive() {
    for (QpType type : {QpType::kRc, QpType::kUc}) {
        Pair<Backend> pair({.type = type});
        pair.a().fill(0, 5000, 2);
        RVT_OK(pair.b().post_recv(9));
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 5000, .remote_offset = 777}));
        RVT_EQ(pair.sent().opcode, WcOpcode::kWrite);
        RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
        RVT_ASSERT(pair.b().holds(777, 5000, 2));
    }
}
RVT_CONFORM(write_changes_the_peers_memory_and_completes_no_receive)
RVT_CONFORM_NIC(write_changes_the_peers_memory_and_completes_no_receive)

template <class Backend>
void write_with_immediate_uses_a_receive_but_not_its_buffer() {
    Pair<Backend> pair;
    pair.a().fill(0, 2500, 2);
    pair.b().fill(0, 64, 9);
    RVT_OK(pair.b().post_recv(9, 0, 64));
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kWriteImm, .bytes = 2500, .remote_offset = 1024, .imm = 77}));
    const Wc received = pair.received();
    RVT_EQ(received.wr_id, 9);
    RVT_EQ(received.opcode, WcOpcode::kRecvWriteImm);
    RVT_EQ(received.imm, 77);
    RVT_EQ(received.byte_len, 2500);
    RVT_ASSERT(pair.b().holds(0, 64, 9));
    RVT_ASSERT(pair.b().holds(1024, 2500, 2));
}
RVT_CONFORM_RC(write_with_immediate_uses_a_receive_but_not_its_buffer)
RVT_CONFORM_NIC(write_with_immediate_uses_a_receive_but_not_its_buffer)

template <class Backend>
void read_brings_the_peers_memory() {
    Pair<Backend> pair;
    pair.b().fill(512, 9000, 4);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .bytes = 9000, .remote_offset = 512}));
    const Wc wc = pair.sent();
    RVT_EQ(wc.status, WcStatus::kSuccess);
    RVT_EQ(wc.opcode, WcOpcode::kRead);
    RVT_EQ(wc.byte_len, 9000);
    RVT_ASSERT(pair.a().holds(0, 9000, 4));
}
RVT_CONFORM_RC(read_brings_the_peers_memory)
RVT_CONFORM_NIC(read_brings_the_peers_memory)

template <class Backend>
void compare_and_swap_swaps_where_the_value_is_equal() {
    Pair<Backend> pair;
    pair.b().set_word(64, 41);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kCas,
                           .bytes = 8,
                           .remote_offset = 64,
                           .compare_add = 41,
                           .swap = 99}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.a().word(0), 41);
    RVT_EQ(pair.b().word(64), 99);
}
RVT_CONFORM_RC(compare_and_swap_swaps_where_the_value_is_equal)
RVT_CONFORM_NIC(compare_and_swap_swaps_where_the_value_is_equal)

template <class Backend>
void compare_and_swap_leaves_another_value_and_returns_it() {
    Pair<Backend> pair;
    pair.b().set_word(64, 40);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kCas,
                           .bytes = 8,
                           .remote_offset = 64,
                           .compare_add = 41,
                           .swap = 99}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(pair.a().word(0), 40);
    RVT_EQ(pair.b().word(64), 40);
}
RVT_CONFORM_RC(compare_and_swap_leaves_another_value_and_returns_it)
RVT_CONFORM_NIC(compare_and_swap_leaves_another_value_and_returns_it)

template <class Backend>
void fetch_and_add_adds_and_returns_what_was_there() {
    Pair<Backend> pair;
    pair.b().set_word(8, ~0ull);
    RVT_OK(pair.post_send(
        {.opcode = WrOpcode::kFetchAdd, .bytes = 8, .remote_offset = 8, .compare_add = 3}));
    RVT_EQ(pair.sent().opcode, WcOpcode::kFetchAdd);
    RVT_EQ(pair.a().word(0), ~0ull);
    RVT_EQ(pair.b().word(8), 2);
}
RVT_CONFORM_RC(fetch_and_add_adds_and_returns_what_was_there)
RVT_CONFORM_NIC(fetch_and_add_adds_and_returns_what_was_there)

template <class Backend>
void unreliable_pairs_refuse_reads_and_atomics() {
    for (QpType type : {QpType::kUc, QpType::kUd}) {
        Pair<Backend> pair({.type = type});
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kRead}), EINVAL);
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kCas, .bytes = 8}), EINVAL);
        RVT_EQ(pair.post_send({.opcode = WrOpcode::kSendInv}), EINVAL);
    }
}
RVT_CONFORM(unreliable_pairs_refuse_reads_and_atomics)
RVT_CONFORM_NIC(unreliable_pairs_refuse_reads_and_atomics)

template <class Backend>
void datagram_pairs_refuse_writes() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kWrite}), EINVAL);
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kWriteImm}), EINVAL);
}
RVT_CONFORM(datagram_pairs_refuse_writes)
RVT_CONFORM_NIC(datagram_pairs_refuse_writes)

template <class Backend>
void a_number_that_is_no_opcode_is_refused() {
    Pair<Backend> pair;
    RVT_EQ(pair.post_send({.opcode = static_cast<WrOpcode>(200)}), EINVAL);
}
RVT_CONFORM_RC(a_number_that_is_no_opcode_is_refused)
RVT_CONFORM_NIC(a_number_that_is_no_opcode_is_refused)

template <class Backend>
void an_atomic_must_name_eight_bytes() {
    Pair<Backend> pair;
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kFetchAdd, .bytes = 4}), EINVAL);
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kFetchAdd, .bytes = 16}), EINVAL);
}
RVT_CONFORM_RC(an_atomic_must_name_eight_bytes)

template <class Backend>
void reads_are_refused_where_none_may_be_outstanding() {
    Pair<Backend> pair({.rd_atomic = 0});
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kRead}), EINVAL);
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kCas, .bytes = 8}), EINVAL);
}
RVT_CONFORM_RC(reads_are_refused_where_none_may_be_outstanding)

template <class Backend>
void more_reads_than_may_be_outstanding_all_complete_in_order() {
    Pair<Backend> pair({.rd_atomic = 2, .dest_rd_atomic = 2});
    pair.b().fill(0, 4000, 6);
    for (std::uint64_t i = 0; i < 20; ++i) {
        RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .wr_id = i, .bytes = 4000}));
    }
    for (std::uint64_t i = 0; i < 20; ++i) {
        RVT_EQ(pair.sent().wr_id, i);
    }
    RVT_ASSERT(pair.a().holds(0, 4000, 6));
}
RVT_CONFORM_RC_SEEDS(more_reads_than_may_be_outstanding_all_complete_in_order, 50)
RVT_CONFORM_NIC(more_reads_than_may_be_outstanding_all_complete_in_order)

template <class Backend>
void inline_data_is_taken_before_the_post_returns() {
    Pair<Backend> pair({.cap = {.max_inline_bytes = 128}});
    pair.a().fill(0, 100, 1);
    RVT_OK(pair.b().post_recv(9, 4096, 1024));
    RVT_OK(pair.post_send({.bytes = 100, .flags = SendFlags::kInline}));
    pair.a().fill(0, 100, 2);
    pair.received();
    RVT_ASSERT(pair.b().holds(4096, 100, 1));
}
RVT_CONFORM_RC(inline_data_is_taken_before_the_post_returns)
RVT_CONFORM_NIC(inline_data_is_taken_before_the_post_returns)

template <class Backend>
void inline_data_needs_no_key() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(9));
    RVT_OK(pair.post_send({.bytes = 32, .flags = SendFlags::kInline, .lkey = 0xbad}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(inline_data_needs_no_key)
RVT_CONFORM_NIC(inline_data_needs_no_key)

template <class Backend>
void more_inline_data_than_the_pair_takes_is_refused() {
    Pair<Backend> pair({.cap = {.max_inline_bytes = 64}});
    RVT_EQ(pair.post_send({.bytes = 65, .flags = SendFlags::kInline}), EINVAL);
}
RVT_CONFORM_RC(more_inline_data_than_the_pair_takes_is_refused)
RVT_CONFORM_NIC(more_inline_data_than_the_pair_takes_is_refused)

template <class Backend>
void reads_cannot_be_inline() {
    Pair<Backend> pair;
    RVT_EQ(pair.post_send({.opcode = WrOpcode::kRead, .flags = SendFlags::kInline}), EINVAL);
}
RVT_CONFORM_RC(reads_cannot_be_inline)
RVT_CONFORM_NIC(reads_cannot_be_inline)

template <class Backend>
void only_signaled_work_completes_where_the_pair_signals_on_request() {
    Pair<Backend> pair({.signal_all = false});
    for (std::uint64_t i = 0; i < 3; ++i) {
        RVT_OK(pair.b().post_recv(i));
    }
    RVT_OK(pair.post_send({.wr_id = 1}));
    RVT_OK(pair.post_send({.wr_id = 2}));
    RVT_OK(pair.post_send({.wr_id = 3, .flags = SendFlags::kSignaled}));
    RVT_EQ(pair.sent().wr_id, 3);
    RVT_ASSERT(pair.is_silent(pair.a().send_cq));
}
RVT_CONFORM_RC(only_signaled_work_completes_where_the_pair_signals_on_request)
RVT_CONFORM_NIC(only_signaled_work_completes_where_the_pair_signals_on_request)

template <class Backend>
void a_list_of_elements_is_gathered_and_scattered() {
    Pair<Backend> pair;
    pair.a().fill(0, 90, 1);
    const Sge from[] = {pair.a().sge(0, 10), pair.a().sge(10, 50), pair.a().sge(60, 30)};
    const Sge to[] = {pair.b().sge(100, 45), pair.b().sge(145, 200)};
    RVT_OK(pair.b().qp->post_recv({.wr_id = 4, .sg_list = to}));
    RVT_OK(pair.a().qp->post_send({.wr_id = 5, .sg_list = from}));
    RVT_EQ(pair.received().byte_len, 90);
    RVT_ASSERT(pair.b().holds(100, 90, 1));
}
RVT_CONFORM_RC(a_list_of_elements_is_gathered_and_scattered)
RVT_CONFORM_NIC(a_list_of_elements_is_gathered_and_scattered)

template <class Backend>
void more_elements_than_the_pair_takes_are_refused() {
    Pair<Backend> pair({.cap = {.max_send_sge = 2, .max_recv_sge = 1}});
    const Sge list[] = {pair.a().sge(0, 1), pair.a().sge(1, 1), pair.a().sge(2, 1)};
    RVT_EQ(pair.a().qp->post_send({.sg_list = list}), EINVAL);
    RVT_EQ(pair.a().qp->post_recv({.sg_list = list}), EINVAL);
}
RVT_CONFORM_RC(more_elements_than_the_pair_takes_are_refused)
RVT_CONFORM_NIC(more_elements_than_the_pair_takes_are_refused)

template <class Backend>
void a_full_receive_queue_is_enomem() {
    Pair<Backend> pair({.cap = {.max_recv_wr = 3}});
    for (std::uint64_t i = 0; i < 3; ++i) {
        RVT_OK(pair.b().post_recv(i));
    }
    RVT_EQ(pair.b().post_recv(3), ENOMEM);
}
RVT_CONFORM_RC(a_full_receive_queue_is_enomem)
RVT_CONFORM_NIC(a_full_receive_queue_is_enomem)

template <class Backend>
void a_full_send_queue_is_enomem_and_recovers() {
    Pair<Backend> pair({.cap = {.max_send_wr = 4}});
    for (std::uint64_t i = 0; i < 4; ++i) {
        RVT_OK(pair.post_send({.wr_id = i}));  // nobody receives: they stay
    }
    RVT_EQ(pair.post_send(), ENOMEM);
    RVT_OK(pair.b().post_recv(1));
    pair.pass_us(1000);
    RVT_EQ(pair.sent().wr_id, 0);
    RVT_OK(pair.post_send());
}
RVT_CONFORM_RC(a_full_send_queue_is_enomem_and_recovers)

template <class Backend>
void local_invalidate_takes_effect_in_order() {
    Pair<Backend> pair;
    const std::uint32_t key = pair.a().mr->rkey();
    RVT_OK(pair.a().qp->post_send({.wr_id = 1, .opcode = WrOpcode::kLocalInv, .rkey = key}));
    const Wc wc = pair.sent();
    RVT_EQ(wc.status, WcStatus::kSuccess);
    RVT_EQ(wc.opcode, WcOpcode::kLocalInv);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.wr_id = 2}));
    RVT_EQ(pair.sent().status, WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(local_invalidate_takes_effect_in_order)

/// Gives B a window on all of its memory. Returns: its key.
template <class Backend>
std::uint32_t bind_at_b(Pair<Backend>& pair, const Mw& window) {
    const std::uint32_t key = (window.key() & ~0xffu) | 0x11;
    const BindMw bind{.mw_key = window.key(),
                      .new_key = key,
                      .lkey = pair.b().mr->lkey(),
                      .addr = pair.b().at(0),
                      .length = kMemoryBytes,
                      .access = Access::kRemoteRead};
    RVT_OK(pair.b().qp->post_send({.wr_id = 1, .opcode = WrOpcode::kBindMw, .bind = bind}));
    RVT_EQ(pair.next(pair.b().send_cq).status, WcStatus::kSuccess);
    return key;
}

template <class Backend>
void a_send_can_invalidate_a_window_of_the_receiver() {
    Pair<Backend> pair({.memory_access = Access::kLocalWrite | Access::kMwBind});
    Mw* window = alloc_mw(*pair.b().pd).value();
    const std::uint32_t key = bind_at_b(pair, *window);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kSendInv, .imm = key}));
    const Wc received = pair.received();
    RVT_ASSERT(has_all(received.flags, WcFlags::kWithInv));
    RVT_EQ(received.imm, key);
    RVT_EQ(pair.b().device->key_view().access_of(key, pair.b().pd->id()), ENOENT);
    RVT_OK(dealloc_mw(window, key));
}
RVT_CONFORM_RC(a_send_can_invalidate_a_window_of_the_receiver)

// It may be open to others, too.
template <class Backend>
void a_send_cannot_invalidate_a_region_of_the_receiver() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kSendInv, .imm = pair.b().mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kRemOpErr);
    RVT_EQ(pair.received().status, WcStatus::kLocProtErr);
    RVT_OK(pair.b().device->key_view().access_of(pair.b().mr->rkey(), pair.b().pd->id()).status());
}
RVT_CONFORM_RC(a_send_cannot_invalidate_a_region_of_the_receiver)

template <class Backend>
void a_bound_window_opens_its_range_and_nothing_else() {
    Pair<Backend> pair({.memory_access = Access::kLocalWrite | Access::kMwBind});
    Mw* window = alloc_mw(*pair.b().pd).value();
    const std::uint32_t key = (window->key() & ~0xffu) | 0x11;
    const BindMw bind{.mw_key = window->key(),
                      .new_key = key,
                      .lkey = pair.b().mr->lkey(),
                      .addr = pair.b().at(4096),
                      .length = 4096,
                      .access = Access::kRemoteWrite};
    RVT_OK(pair.b().qp->post_send({.wr_id = 1, .opcode = WrOpcode::kBindMw, .bind = bind}));
    RVT_EQ(pair.next(pair.b().send_cq).status, WcStatus::kSuccess);
    pair.a().fill(0, 64, 5);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .remote_offset = 5000, .rkey = key}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(5000, 64, 5));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .remote_offset = 8190, .rkey = key}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    RVT_OK(dealloc_mw(window, key));
}
RVT_CONFORM_RC(a_bound_window_opens_its_range_and_nothing_else)

template <class Backend>
void a_window_cannot_be_bound_to_memory_without_the_right() {
    Pair<Backend> pair;  // memory without kMwBind
    Mw* window = alloc_mw(*pair.a().pd).value();
    const BindMw bind{.mw_key = window->key(),
                      .new_key = window->key(),
                      .lkey = pair.a().mr->lkey(),
                      .addr = pair.a().at(0),
                      .length = 64,
                      .access = Access::kRemoteRead};
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kBindMw, .bind = bind}));
    RVT_EQ(pair.sent().status, WcStatus::kMwBindErr);
    RVT_OK(dealloc_mw(window, window->key()));
}
RVT_CONFORM_RC(a_window_cannot_be_bound_to_memory_without_the_right)

}  // namespace
