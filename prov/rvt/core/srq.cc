// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Shared receive queues.
#include "core/srq.h"

#include "core/device.h"

namespace rvt::core {

SrqAttr Srq::query() const noexcept {
    // relaxed: a number on its own.
    return {.max_wr = queue_.max_wr(),
            .max_sge = queue_.max_sge(),
            .limit = limit_.load(std::memory_order_relaxed),
            .max_tags = tags_ != nullptr ? tags_->max_tags() : 0,
            .tm_cq = tags_ != nullptr ? &tags_->cq() : nullptr};
}

Status Srq::set_limit(std::uint32_t limit) noexcept {
    if (limit > queue_.max_wr()) {
        return EINVAL;
    }
    // relaxed: a number on its own.
    limit_.store(limit, std::memory_order_relaxed);
    check_limit();
    return kOk;
}

void Srq::check_limit() noexcept {
    // relaxed: a number on its own.
    std::uint32_t limit = limit_.load(std::memory_order_relaxed);
    // relaxed: the exchange only makes one thread of several raise the event.
    if (limit != 0 && queue_.size() < limit &&
        limit_.compare_exchange_strong(limit, 0, std::memory_order_relaxed)) {
        pd_.context().events().post({.type = EventType::kSrqLimitReached, .object = this});
    }
}

Status Srq::post_recv(const RecvWr& wr) noexcept {
    return post_recvs({&wr, 1});
}

Status Srq::post_recvs(std::span<const RecvWr> wrs) noexcept {
    return pd_.device().ops().post_srq_recv(*this, wrs);
}

Status Srq::enqueue_recvs(std::span<const RecvWr> wrs) noexcept {
    for (const RecvWr& wr : wrs) {
        if (const Status status = queue_.post(wr); !status.is_ok()) {
            return status;
        }
        pd_.device().wake_waiting(&queue_);
    }
    return kOk;
}

Status Srq::post_op(TmOp& op) noexcept {
    return tags_ == nullptr ? Status(EINVAL) : pd_.device().ops().post_srq_op(*this, op);
}

Status Srq::execute_op(TmOp& op) noexcept {
    const Status status = tags_->execute(op);
    if (status.is_ok()) {
        pd_.device().wake_waiting(&queue_);  // a message that waits may have its tag now
    }
    return status;
}

Result<Srq*> create_srq(Pd& pd, const SrqAttr& attr) {
    const DeviceLimits& limits = pd.device().limits();
    if (attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr || attr.max_sge > limits.max_sge ||
        attr.max_sge > limits.max_srq_sge || attr.max_sge > Receive::kMaxSge ||
        attr.limit > attr.max_wr || attr.max_tags > limits.max_srq_tags ||
        (attr.max_tags != 0 && attr.tm_cq == nullptr)) {
        return EINVAL;
    }
    auto srq = std::make_unique<Srq>(pd, attr);
    if (Status status = pd.device().ops().create_srq(*srq); !status.is_ok()) {
        return status;
    }
    return srq.release();
}

Status destroy_srq(Srq* srq) {
    if (Status status = srq->is_unused(); !status.is_ok()) {
        return status;
    }
    srq->pd().device().ops().destroy_srq(*srq);
    srq->pd().context().events().forget(*srq);
    delete srq;
    return kOk;
}

}  // namespace rvt::core
