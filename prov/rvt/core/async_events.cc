// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The queue of asynchronous events.
#include "core/async_events.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::core {

Result<std::unique_ptr<AsyncEvents>> AsyncEvents::create() {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        return errno;
    }
    return std::unique_ptr<AsyncEvents>(new AsyncEvents(fd));
}

AsyncEvents::~AsyncEvents() {
    close(fd_);
}

/// Makes the descriptor say whether the queue holds something.
void AsyncEvents::show_locked() noexcept {
    has_some_.store(!queue_.empty(), std::memory_order_relaxed);  // relaxed: see may_have_some()
    // A forked child shares the descriptor with its parent, who has another queue.
    if (generation_ != util::fork_generation()) {
        return;
    }
    eventfd_t value = 0;
    // Errors can be ignored: a write to a full counter and a read of an empty one change nothing.
    [[maybe_unused]] const int ignored =
        queue_.empty() ? eventfd_read(fd_, &value) : eventfd_write(fd_, 1);
}

void AsyncEvents::post(AsyncEvent event) noexcept {
    const util::Guard guard(lock_);
    queue_.push_back(event);
    show_locked();
}

std::optional<AsyncEvent> AsyncEvents::poll() noexcept {
    const util::Guard guard(lock_);
    if (queue_.empty()) {
        return std::nullopt;
    }
    const AsyncEvent event = queue_.front();
    queue_.pop_front();
    show_locked();
    return event;
}

std::optional<AsyncEvent> AsyncEvents::wait(int timeout_ms) noexcept {
    pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
    std::optional<AsyncEvent> event = poll();
    while (!event && ::poll(&readable, 1, timeout_ms) > 0) {
        event = poll();  // another thread may have been quicker: wait again
    }
    return event;
}

void AsyncEvents::forget(const Object& object) noexcept {
    const util::Guard guard(lock_);
    std::erase_if(queue_, [&](const AsyncEvent& event) { return event.object == &object; });
    show_locked();
}

}  // namespace rvt::core
