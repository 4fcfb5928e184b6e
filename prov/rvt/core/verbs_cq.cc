// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Completion queues of verbs, and the channels that announce them.
#include "core/verbs_cq.h"

#include "core/device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::core {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// Milliseconds left until `end`, at least 0; -1 when there is no end.
int ms_until(SteadyClock::time_point end, bool endless) noexcept {
    if (endless) {
        return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

}  // namespace

// ---- CompChannel ----

CompChannel::~CompChannel() {
    close(fd_);
}

/// A forked child shares the descriptor with its parent, whose queue has what it has counted.
bool CompChannel::is_inherited() const noexcept {
    return generation_ != util::fork_generation();
}

void CompChannel::notify(VerbsCq& cq) noexcept {
    const util::Guard guard(lock_);
    queue_.push_back(&cq);
    if (is_inherited()) {
        return;
    }
    // A full counter is as readable as one more.
    [[maybe_unused]] const int ignored = eventfd_write(fd_, 1);
}

VerbsCq* CompChannel::take() noexcept {
    const util::Guard guard(lock_);
    if (queue_.empty()) {
        return nullptr;
    }
    VerbsCq* cq = queue_.front();
    queue_.pop_front();
    show_emptiness_locked();
    return cq;
}

void CompChannel::clear() noexcept {
    const util::Guard guard(lock_);
    if (!queue_.empty()) {
        queue_.clear();
        show_emptiness_locked();
    }
}

void CompChannel::forget(const VerbsCq& cq) noexcept {
    const util::Guard guard(lock_);
    if (std::erase(queue_, &cq) != 0) {
        show_emptiness_locked();
    }
}

/// Nobody is woken for what is not there any more.
void CompChannel::show_emptiness_locked() noexcept {
    if (queue_.empty() && !is_inherited()) {
        eventfd_t value = 0;
        [[maybe_unused]] const int ignored = eventfd_read(fd_, &value);
    }
}

Result<VerbsCq*> CompChannel::get_event(int timeout_ms) {
    Device& device = context_.device();
    const bool endless = timeout_ms < 0;
    const auto end = SteadyClock::now() + std::chrono::milliseconds(endless ? 0 : timeout_ms);
    for (;;) {
        if (VerbsCq* cq = take()) {
            return cq;
        }
        device.progress();
        if (VerbsCq* cq = take()) {
            return cq;
        }
        const int left = ms_until(end, endless);
        if (left == 0) {
            return EAGAIN;
        }
        device.sleep_on(fd_, left);
    }
}

Result<CompChannel*> create_comp_channel(Context& context) {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        return errno;
    }
    return new CompChannel(context, fd);
}

Status destroy_comp_channel(CompChannel* channel) {
    if (Status status = channel->is_unused(); !status.is_ok()) {
        return status;
    }
    delete channel;
    return kOk;
}

// ---- VerbsCq ----

VerbsCq::VerbsCq(Context& context, std::size_t depth, std::unique_ptr<Cq> ring,
                 CompChannel* channel) noexcept
    : context_(context),
      poll_cq_(context.device().ops().poll_cq),
      context_use_(context),
      channel_(channel),
      depth_(depth),
      is_backends_(context.device().grade() == Grade::kVerb),
      ring_(std::move(ring)),
      may_have_entries_(is_backends_) {
    if (channel_ != nullptr) {
        channel_use_ = Use(*channel_);
    }
}

Status VerbsCq::req_notify(bool solicited_only) noexcept {
    return channel_ == nullptr ? Status(EINVAL)
                               : context_.device().ops().req_notify_cq(*this, solicited_only);
}

bool VerbsCq::is_overrun() const noexcept {
    const util::Guard guard(lock_);
    return overrun_;
}

bool VerbsCq::take_overrun() noexcept {
    const util::Guard guard(lock_);
    return std::exchange(overrun_, false);
}

bool VerbsCq::push(const Wc& wc, bool solicited) noexcept {
    bool first_overrun = false;
    bool announce = false;
    {
        const util::Guard guard(lock_);
        Cqe* slot = overrun_ ? nullptr : ring_->claim();
        if (slot != nullptr) {
            *slot = to_cqe(wc);
            ring_->commit();
            // relaxed: see may_have_entries().
            may_have_entries_.store(true, std::memory_order_relaxed);
            if (channel_ != nullptr) {
                channel_->note_completion();
            }
            const bool wakes = solicited || wc.status != WcStatus::kSuccess;
            announce = armed_ == Armed::kAny || (armed_ == Armed::kSolicited && wakes);
            armed_ = announce ? Armed::kNo : armed_;
        } else {
            first_overrun = !overrun_;
            overrun_ = true;
        }
        if (slot != nullptr && !announce) [[likely]] {
            return true;
        }
    }
    if (announce) {
        channel_->notify(*this);
        return true;
    }
    if (first_overrun) {
        context_.events().post({.type = EventType::kCqErr, .object = this});
    }
    return false;
}

bool VerbsCq::fail() noexcept {
    // relaxed: makes one thread of several raise the event, under whose lock it is read.
    if (has_failed_.exchange(true, std::memory_order_relaxed)) {
        return false;
    }
    context_.events().post({.type = EventType::kCqErr, .object = this});
    if (channel_ != nullptr) {
        channel_->notify(*this);
    }
    return true;
}

void VerbsCq::remove_qp(std::uint32_t qpn) noexcept {
    const util::Guard guard(lock_);
    ring_->remove_if([&](const Cqe& cqe) { return from_cqe(cqe).qpn == qpn; });
}

unsigned VerbsCq::take_from_ring(std::span<Wc> to) noexcept {
    const util::Guard guard(lock_);
    unsigned taken = 0;
    for (; taken < to.size() && !ring_->is_empty(); ++taken) {
        to[taken] = from_cqe(*ring_->front());
        ring_->pop();
    }
    may_have_entries_.store(!ring_->is_empty(), std::memory_order_relaxed);  // relaxed: as above
    return taken;
}

unsigned VerbsCq::poll_ring(std::span<Wc> to) noexcept {
    const unsigned taken = take_from_ring(to);
    if (taken != 0 || to.empty()) {
        return taken;
    }
    context_.device().progress();
    return take_from_ring(to);
}

Status VerbsCq::arm_ring(bool solicited_only) noexcept {
    const util::Guard guard(lock_);
    // Asking for any completion outweighs asking for solicited ones, in either order.
    if (!solicited_only) {
        armed_ = Armed::kAny;
    } else if (armed_ == Armed::kNo) {
        armed_ = Armed::kSolicited;
    }
    return kOk;
}

Result<VerbsCq*> create_cq(Context& context, std::uint32_t depth, CompChannel* channel) {
    Device& device = context.device();
    if (depth == 0 || depth > device.limits().max_cqe) {
        return EINVAL;
    }
    const bool is_backends = device.grade() == Grade::kVerb;
    auto ring = Cq::create(is_backends ? 1 : depth);
    if (!ring.is_ok()) {
        return ring.status();
    }
    const std::size_t made = is_backends ? depth : ring.value()->depth();
    auto cq = std::make_unique<VerbsCq>(context, made, ring.take(), channel);
    if (Status status = device.ops().create_cq(*cq); !status.is_ok()) {
        return status;
    }
    return cq.release();
}

Status destroy_cq(VerbsCq* cq) {
    if (Status status = cq->is_unused(); !status.is_ok()) {
        return status;
    }
    Context& context = cq->context();
    context.device().ops().destroy_cq(*cq);
    context.events().forget(*cq);
    cq->forget_notifications();
    delete cq;
    return kOk;
}

}  // namespace rvt::core
