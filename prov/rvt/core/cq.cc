// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The parts of the completion queue that are off the fast path: creation, overflow, waking.
#include "core/cq.h"

#include <bit>
#include <new>

#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::core {

util::Result<std::unique_ptr<Cq>> Cq::create(std::size_t depth) {
    constexpr std::size_t kMaxDepth = std::size_t{1} << 26;
    if (depth > kMaxDepth) {
        return EINVAL;
    }
    const std::size_t rounded = std::bit_ceil(depth == 0 ? 1 : depth);
    std::unique_ptr<Cqe[]> ring(new (std::nothrow) Cqe[rounded]);
    if (!ring) {
        return ENOMEM;
    }
    return std::unique_ptr<Cq>(new Cq(std::move(ring), rounded));
}

Cq::~Cq() {
    if (wake_fd_ >= 0) {
        close(wake_fd_);
    }
}

Cqe& Cq::append_overflow() noexcept {
    has_overflow_ = true;
    limit_ = tail_;  // nothing goes past what waits
    return overflow_.emplace_back();
}

void Cq::refill() noexcept {
    while (!overflow_.empty() && tail_ - head_ <= mask_) {
        ring_[tail_++ & mask_] = overflow_.front();
        overflow_.pop_front();
    }
    has_overflow_ = !overflow_.empty();
    limit_ = tail_;
}

bool Cq::find_room() noexcept {
    limit_ = has_overflow_ ? tail_ : head_ + mask_ + 1;
    return tail_ != limit_;
}

util::Status Cq::open_wake_fd() noexcept {
    if (wake_fd_ < 0) {
        wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    return wake_fd_ < 0 ? util::Status(errno) : util::kOk;
}

util::Status Cq::arm() noexcept {
    const util::Status opened = open_wake_fd();
    is_armed_ = opened.is_ok();
    return opened;
}

void Cq::wake() noexcept {
    is_armed_ = false;
    if (wake_fd_ >= 0) {
        // A full counter (EAGAIN) is as readable as one more; nothing is lost by ignoring it.
        [[maybe_unused]] const int ignored = eventfd_write(wake_fd_, 1);
    }
}

void Cq::clear_wake_fd() noexcept {
    eventfd_t value = 0;
    if (wake_fd_ >= 0) {
        // EAGAIN means that nobody had signalled, which is the state asked for.
        [[maybe_unused]] const int ignored = eventfd_read(wake_fd_, &value);
    }
}

}  // namespace rvt::core
