// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The parts of the completion queue that are off the fast path: creation, overflow, waking.
#include "core/cq.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::core {

util::Result<std::unique_ptr<Cq>> Cq::create(std::size_t depth) {
    constexpr std::size_t kMaxDepth = std::size_t{1} << 26;
    constexpr std::size_t kMadeAtOnce = 1024;
    if (depth > kMaxDepth) {
        return EINVAL;
    }
    const std::size_t rounded = std::bit_ceil(depth == 0 ? 1 : depth);
    // Entries are written as a whole, so that none has to be made before: a queue that holds few of
    // many takes memory for those few.
    static_assert(std::is_trivially_copyable_v<Cqe> && std::is_trivially_destructible_v<Cqe>);
    Ring ring(static_cast<Cqe*>(std::aligned_alloc(alignof(Cqe), rounded * sizeof(Cqe))));
    if (!ring) {
        return ENOMEM;
    }
    // An emptied ring begins anew: these are used again and again, and their first use is no time
    // to find memory.
    std::uninitialized_default_construct_n(ring.get(), std::min(rounded, kMadeAtOnce));
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
