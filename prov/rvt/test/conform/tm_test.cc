// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: shared receive queues that match tags.
#include "conform/fixture.h"

#include <endian.h>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr Options kTagged = {.has_srq = true, .srq = {.max_wr = 8, .max_tags = 4}};
constexpr std::size_t kHeader = sizeof(TmHeader);
constexpr std::size_t kRoom = 4096;  // where buffers begin in B's memory

/// Writes a message of `bytes` behind a header into A's memory and sends it.
template <class Backend>
Status send_tagged(Pair<Backend>& pair, std::uint64_t tag, std::size_t bytes,
                   TmHeader::Op op = TmHeader::Op::kEager) {
    const TmHeader header{.op = op, .app_ctx = htobe32(77), .tag = htobe64(tag)};
    std::memcpy(pair.a().memory.data(), &header, sizeof header);
    pair.a().fill(kHeader, bytes, static_cast<int>(tag));
    return pair.post_send({.bytes = kHeader + bytes});
}

/// A buffer for a tag at `offset`, which is also the wr_id of its completion.
template <class Backend>
TmOp add_op(Pair<Backend>& pair, std::uint64_t tag, std::size_t offset, Sge& element,
            std::size_t bytes = 1024) {
    element = pair.b().sge(offset, bytes);
    return {.wr_id = tag,
            .opcode = TmOpcode::kAdd,
            .recv_wr_id = offset,
            .sg_list = {&element, 1},
            .tag = tag};
}

template <class Backend>
std::uint32_t add(Pair<Backend>& pair, std::uint64_t tag, std::size_t offset = kRoom,
                  std::size_t bytes = 1024) {
    Sge element;
    TmOp op = add_op(pair, tag, offset, element, bytes);
    RVT_OK(pair.b().srq->post_op(op));
    return op.handle;
}

template <class Backend>
void sync(Pair<Backend>& pair, std::uint32_t handled) {
    TmOp op{.wr_id = 5,
            .opcode = TmOpcode::kSync,
            .flags = TmFlags::kSignaled,
            .unexpected_count = handled};
    RVT_OK(pair.b().srq->post_op(op));
    const Wc wc = pair.received();
    RVT_EQ(wc.opcode, WcOpcode::kTmSync);
    RVT_EQ(wc.flags, WcFlags::kNone);
}

template <class Backend>
void a_message_fills_the_buffer_of_its_tag_without_its_header() {
    Pair<Backend> pair(kTagged);
    add(pair, 9);
    RVT_OK(send_tagged(pair, 9, 200));
    const Wc wc = pair.received();
    RVT_EQ(wc.opcode, WcOpcode::kTmRecv);
    RVT_EQ(wc.flags, WcFlags::kTmMatch | WcFlags::kTmDataValid);
    RVT_EQ(wc.wr_id, kRoom);
    RVT_EQ(wc.byte_len, 200);
    RVT_EQ(wc.tm_tag, 9);
    RVT_EQ(wc.tm_app_ctx, 77);
    RVT_EQ(wc.qpn, pair.b().qp->qpn());
    RVT_ASSERT(pair.b().holds(kRoom, 200, 9));
}
RVT_CONFORM_RC(a_message_fills_the_buffer_of_its_tag_without_its_header)

template <class Backend>
void a_message_of_many_parts_fills_the_buffer_of_its_tag() {
    Pair<Backend> pair(kTagged);
    add(pair, 9, kRoom, 70000);
    RVT_OK(send_tagged(pair, 9, 70000));
    RVT_EQ(pair.received().byte_len, 70000);
    RVT_ASSERT(pair.b().holds(kRoom, 70000, 9));
}
RVT_CONFORM_RC(a_message_of_many_parts_fills_the_buffer_of_its_tag)

template <class Backend>
void a_header_alone_is_a_message_of_no_bytes() {
    Pair<Backend> pair(kTagged);
    add(pair, 9);
    RVT_OK(send_tagged(pair, 9, 0));
    RVT_EQ(pair.received().byte_len, 0);
}
RVT_CONFORM_RC(a_header_alone_is_a_message_of_no_bytes)

template <class Backend>
void a_message_that_no_tag_takes_goes_whole_into_a_plain_receive() {
    Pair<Backend> pair(kTagged);
    add(pair, 8);
    RVT_OK(pair.b().post_recv(1, kRoom));
    RVT_OK(send_tagged(pair, 9, 200));
    const Wc wc = pair.received();
    RVT_EQ(wc.opcode, WcOpcode::kTmRecv);
    RVT_EQ(wc.flags, WcFlags::kNone);
    RVT_EQ(wc.wr_id, 1);
    RVT_EQ(wc.byte_len, 200 + kHeader);
    RVT_ASSERT(std::memcmp(pair.a().memory.data(), pair.b().memory.data() + kRoom, kHeader) == 0);
    RVT_ASSERT(pair.b().holds(kRoom + kHeader, 200, 9));
}
RVT_CONFORM_RC(a_message_that_no_tag_takes_goes_whole_into_a_plain_receive)

template <class Backend>
void a_message_without_a_tag_goes_into_a_plain_receive() {
    Pair<Backend> pair(kTagged);
    add(pair, 9);
    RVT_OK(pair.b().post_recv(1, kRoom));
    RVT_OK(send_tagged(pair, 9, 20, TmHeader::Op::kNoTag));
    const Wc wc = pair.received();
    RVT_EQ(wc.opcode, WcOpcode::kTmNoTag);
    RVT_EQ(wc.wr_id, 1);
    RVT_EQ(wc.byte_len, 20 + kHeader);
}
RVT_CONFORM_RC(a_message_without_a_tag_goes_into_a_plain_receive)

template <class Backend>
void bits_outside_the_mask_do_not_matter() {
    Pair<Backend> pair(kTagged);
    Sge element;
    TmOp op = add_op(pair, 0xff00, kRoom, element);
    op.mask = ~0xffull;
    RVT_OK(pair.b().srq->post_op(op));
    RVT_OK(send_tagged(pair, 0xff42, 20));
    const Wc wc = pair.received();
    RVT_EQ(wc.wr_id, kRoom);
    RVT_EQ(wc.tm_tag, 0xff42);
}
RVT_CONFORM_RC(bits_outside_the_mask_do_not_matter)

template <class Backend>
void of_equal_tags_the_oldest_is_taken() {
    Pair<Backend> pair(kTagged);
    add(pair, 9, kRoom);
    add(pair, 9, 2 * kRoom);
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, kRoom);
    RVT_EQ(pair.received().wr_id, 2 * kRoom);
}
RVT_CONFORM_RC(of_equal_tags_the_oldest_is_taken)

template <class Backend>
void operations_complete_when_they_are_signaled() {
    Pair<Backend> pair(kTagged);
    Sge element;
    TmOp op = add_op(pair, 9, kRoom, element);
    RVT_OK(pair.b().srq->post_op(op));
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    op.flags = TmFlags::kSignaled;
    RVT_OK(pair.b().srq->post_op(op));
    const Wc added = pair.received();
    RVT_EQ(added.opcode, WcOpcode::kTmAdd);
    RVT_EQ(added.wr_id, 9);
    op.opcode = TmOpcode::kDel;
    RVT_OK(pair.b().srq->post_op(op));
    RVT_EQ(pair.received().opcode, WcOpcode::kTmDel);
}
RVT_CONFORM_RC(operations_complete_when_they_are_signaled)

template <class Backend>
void a_tag_taken_back_takes_no_message() {
    Pair<Backend> pair(kTagged);
    TmOp op{.opcode = TmOpcode::kDel, .handle = add(pair, 9)};
    RVT_OK(pair.b().srq->post_op(op));
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, 1);
}
RVT_CONFORM_RC(a_tag_taken_back_takes_no_message)

template <class Backend>
void taking_back_a_tag_that_a_message_took_completes_in_error() {
    Pair<Backend> pair(kTagged);
    TmOp op{.wr_id = 3, .opcode = TmOpcode::kDel, .handle = add(pair, 9)};
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().opcode, WcOpcode::kTmRecv);
    RVT_OK(pair.b().srq->post_op(op));
    const Wc wc = pair.received();
    RVT_EQ(wc.status, WcStatus::kTmErr);
    RVT_EQ(wc.wr_id, 3);
}
RVT_CONFORM_RC(taking_back_a_tag_that_a_message_took_completes_in_error)

template <class Backend>
void new_tags_wait_until_unexpected_messages_are_handled() {
    Pair<Backend> pair(kTagged);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, 1);
    // The application adds the tag before it knows of the message.
    Sge element;
    TmOp op = add_op(pair, 9, kRoom, element);
    op.flags = TmFlags::kSignaled;
    RVT_OK(pair.b().srq->post_op(op));
    RVT_EQ(pair.received().flags, WcFlags::kTmSyncReq);
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, 2);
    sync(pair, 2);
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, kRoom);
}
RVT_CONFORM_RC(new_tags_wait_until_unexpected_messages_are_handled)

template <class Backend>
void a_tag_that_reports_itself_takes_messages_at_once() {
    Pair<Backend> pair(kTagged);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(send_tagged(pair, 8, 20));
    RVT_EQ(pair.received().wr_id, 1);
    Sge element;
    TmOp op = add_op(pair, 9, kRoom, element);
    op.flags = TmFlags::kSync;
    op.unexpected_count = 1;
    RVT_OK(pair.b().srq->post_op(op));
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, kRoom);
}
RVT_CONFORM_RC(a_tag_that_reports_itself_takes_messages_at_once)

template <class Backend>
void a_waiting_tag_can_be_taken_back() {
    Pair<Backend> pair(kTagged);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(send_tagged(pair, 8, 20));
    RVT_EQ(pair.received().wr_id, 1);
    TmOp op{.opcode = TmOpcode::kDel, .handle = add(pair, 9)};
    RVT_OK(pair.b().srq->post_op(op));
    sync(pair, 1);
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_EQ(pair.received().wr_id, 2);
}
RVT_CONFORM_RC(a_waiting_tag_can_be_taken_back)

template <class Backend>
void a_message_that_was_not_ready_finds_a_tag_that_comes_later() {
    Pair<Backend> pair(kTagged);
    RVT_OK(send_tagged(pair, 9, 20));
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    add(pair, 9);
    pair.pass_us(1000);
    RVT_EQ(pair.received().wr_id, kRoom);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM_RC(a_message_that_was_not_ready_finds_a_tag_that_comes_later)

template <class Backend>
void a_message_longer_than_its_tags_buffer_fails_the_pair() {
    Pair<Backend> pair(kTagged);
    add(pair, 9, kRoom, 100);
    pair.b().fill(kRoom + 100, 100, 1);
    RVT_OK(send_tagged(pair, 9, 101));
    const Wc wc = pair.received();
    RVT_EQ(wc.status, WcStatus::kLocLenErr);
    RVT_EQ(wc.wr_id, kRoom);
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
    RVT_ASSERT(pair.b().holds(kRoom + 100, 100, 1));
}
RVT_CONFORM_RC(a_message_longer_than_its_tags_buffer_fails_the_pair)

template <class Backend>
void rendezvous_is_refused_as_an_invalid_request() {
    for (TmHeader::Op op :
         {TmHeader::Op::kRndv, TmHeader::Op::kFin, static_cast<TmHeader::Op>(9)}) {
        Pair<Backend> pair(kTagged);
        add(pair, 9);
        RVT_OK(pair.b().post_recv(1));
        RVT_OK(send_tagged(pair, 9, 20, op));
        RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
        RVT_EQ(pair.event(kB), EventType::kQpReqErr);
    }
}
RVT_CONFORM_RC(rendezvous_is_refused_as_an_invalid_request)

template <class Backend>
void a_message_too_short_for_a_header_is_refused_as_an_invalid_request() {
    Pair<Backend> pair(kTagged);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.bytes = kHeader - 1}));
    RVT_EQ(pair.sent().status, WcStatus::kRemInvReqErr);
}
RVT_CONFORM_RC(a_message_too_short_for_a_header_is_refused_as_an_invalid_request)

template <class Backend>
void operations_that_cannot_be_are_refused() {
    Pair<Backend> pair(kTagged);
    Sge element;
    TmOp op = add_op(pair, 9, kRoom, element);
    op.flags = TmFlags::kSync;
    op.unexpected_count = 1;  // of none that came
    RVT_EQ(pair.b().srq->post_op(op), EINVAL);
    op.flags = TmFlags::kNone;
    const Sge many[5] = {};
    op.sg_list = many;
    RVT_EQ(pair.b().srq->post_op(op), EINVAL);
    TmOp del{.opcode = TmOpcode::kDel, .handle = 4};
    RVT_EQ(pair.b().srq->post_op(del), EINVAL);
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        add(pair, tag);
    }
    op.sg_list = {};
    RVT_EQ(pair.b().srq->post_op(op), ENOMEM);
    Pair<Backend> plain({.has_srq = true});
    RVT_EQ(plain.b().srq->post_op(op), EINVAL);
}
RVT_CONFORM_RC(operations_that_cannot_be_are_refused)

template <class Backend>
void only_reliable_connections_match_tags_and_only_with_a_completion_queue() {
    Pair<Backend> pair(kTagged);
    Side& b = pair.b();
    RVT_EQ(
        create_qp(*b.pd,
                  {.type = QpType::kUc, .send_cq = b.send_cq, .recv_cq = b.recv_cq, .srq = b.srq}),
        EINVAL);
    RVT_EQ(create_srq(*b.pd, {.max_tags = 4}), EINVAL);
    RVT_EQ(create_srq(*b.pd, {.max_tags = b.device->limits().max_srq_tags + 1, .tm_cq = b.recv_cq}),
           EINVAL);
    RVT_EQ(b.srq->query().max_tags, 4);
}
RVT_CONFORM(only_reliable_connections_match_tags_and_only_with_a_completion_queue)

}  // namespace
