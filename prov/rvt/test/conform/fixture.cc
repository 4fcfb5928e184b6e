// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The two sides of the conformance fixture.
#include "conform/fixture.h"

#include <algorithm>

namespace rvt::conform {
namespace {

std::byte pattern(std::size_t i, int seed) {
    return static_cast<std::byte>((i * 131 + static_cast<std::size_t>(seed) * 17 + (i >> 8)) &
                                  0xff);
}

}  // namespace

Side::Side(Device& on, const Options& options)
    : device(&on),
      context(open_device(on).value()),
      pd((options.keys != nullptr ? alloc_pd(*context, *options.keys) : alloc_pd(*context))
             .value()) {
    channel = create_comp_channel(*context).value();
    send_cq = create_cq(*context, options.cq_depth, channel).value();
    recv_cq = create_cq(*context, options.cq_depth, channel).value();
    const iovec whole{.iov_base = memory.data(), .iov_len = memory.size()};
    mr = reg_mr(*pd, {.segments = {&whole, 1}, .access = options.memory_access}).value();
    if (options.has_srq) {
        SrqAttr attr = options.srq;
        attr.tm_cq = recv_cq;
        srq = create_srq(*pd, attr).value();
    }
    qp = create_qp(*pd, {.type = options.type,
                         .send_cq = send_cq,
                         .recv_cq = recv_cq,
                         .srq = srq,
                         .sink = options.sink,
                         .cap = options.cap,
                         .signal_all = options.signal_all})
             .value();
}

Side::~Side() {
    // What a sentence destroyed itself it has set to nullptr.
    if (qp != nullptr) {
        [[maybe_unused]] const Status s = destroy_qp(qp);
    }
    if (ah != nullptr) {
        [[maybe_unused]] const Status s = destroy_ah(ah);
    }
    if (srq != nullptr) {
        [[maybe_unused]] const Status s = destroy_srq(srq);
    }
    if (mr != nullptr) {
        [[maybe_unused]] const Status s = dereg_mr(mr);
    }
    [[maybe_unused]] const Status results[] = {destroy_cq(send_cq), destroy_cq(recv_cq),
                                               destroy_comp_channel(channel), dealloc_pd(pd),
                                               close_device(context)};
}

void Side::fill(std::size_t offset, std::size_t bytes, int seed) {
    for (std::size_t i = 0; i < bytes; ++i) {
        memory[offset + i] = pattern(i, seed);
    }
}

bool Side::holds(std::size_t offset, std::size_t bytes, int seed) const {
    for (std::size_t i = 0; i < bytes; ++i) {
        if (memory[offset + i] != pattern(i, seed)) {
            return false;
        }
    }
    return true;
}

std::uint64_t Side::word(std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, memory.data() + offset, sizeof value);
    return value;
}

void Side::set_word(std::size_t offset, std::uint64_t value) {
    std::memcpy(memory.data() + offset, &value, sizeof value);
}

Status Side::post_recv(std::uint64_t wr_id, std::size_t offset, std::size_t bytes) {
    const Sge element = sge(offset, bytes);
    const RecvWr wr{.wr_id = wr_id, .sg_list = {&element, 1}};
    return srq != nullptr ? srq->post_recv(wr) : qp->post_recv(wr);
}

std::optional<EventType> Side::event() const {
    const auto event = context->events().poll();
    return event ? std::optional(event->type) : std::nullopt;
}

Card Side::card() const {
    return {.address = device->address(),
            .qpn = qp->qpn(),
            .rkey = mr != nullptr ? mr->rkey() : 0,
            .base = at(0)};
}

QpAttr attr_for(QpState state, const Side& own, const Card& other, const Options& options) {
    return {.state = state,
            .access = options.qp_access,
            .ah = {.dest = other.address},
            .dest_qpn = other.qpn,
            .qkey = kQkey,
            .rq_psn = other.qpn & kQpnMask,
            .sq_psn = own.qp->qpn() & kQpnMask,
            .max_rd_atomic = options.rd_atomic,
            .max_dest_rd_atomic = options.dest_rd_atomic,
            .min_rnr_timer = 1,
            .timeout = options.timeout,
            .retry_cnt = 7,
            .rnr_retry = options.rnr_retry,
            .extended_atomics = options.extended_atomics,
            .keeps_early = options.keeps_early || (test::seed_in_play & 4) != 0};
}

QpMask mask_for(QpState state, QpType type) {
    using enum QpMask;
    const bool rc = type == QpType::kRc;
    const bool ud = type == QpType::kUd;
    switch (state) {
        case QpState::kInit: return QpMask::kState | kPkeyIndex | kPort | (ud ? kQkey : kAccess);
        case QpState::kRtr:
            return QpMask::kState | (ud ? kNone : kAv | kPathMtu | kDestQpn | kRqPsn) |
                   (rc ? kMaxDestRdAtomic | kMinRnrTimer | kExtendedAtomics | kKeepsEarly : kNone);
        case QpState::kRts:
            return QpMask::kState | kSqPsn |
                   (rc ? kTimeout | kRetryCnt | kRnrRetry | kMaxRdAtomic : kNone);
        case QpState::kReset:
        case QpState::kSqd:
        case QpState::kSqe:
        case QpState::kErr: return QpMask::kState;
    }
    return QpMask::kState;
}

Status post(Side& from, const Card& to, const Op& op) {
    Sge element = from.sge(op.offset, op.bytes);
    element.lkey = op.lkey.value_or(element.lkey);
    const bool ud = from.qp->type() == QpType::kUd;
    return from.qp->post_send({.wr_id = op.wr_id,
                               .opcode = op.opcode,
                               .flags = op.flags,
                               .imm = op.imm,
                               .sg_list = {&element, op.opcode == WrOpcode::kFlush ? 0u : 1u},
                               .remote_addr = to.base + op.remote_offset,
                               .rkey = op.rkey.value_or(to.rkey),
                               .compare_add = op.compare_add,
                               .swap = op.swap,
                               .ah = ud ? from.ah : nullptr,
                               .remote_qpn = ud ? to.qpn : 0,
                               .remote_qkey = op.qkey.value_or(kQkey),
                               .flush = op.flush,
                               .atomic = op.atomic});
}

}  // namespace rvt::conform
