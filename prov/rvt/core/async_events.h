// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The asynchronous events of a context: a queue with a descriptor that is readable while it is not
// empty. ibv_get_async_event(3). IBTA vol. 1, 11.6.3.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "core/object.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

struct AsyncEvent {
    EventType type;
    const Object* object;  // the queue, pair or device that it is about
};

class AsyncEvents {
  public:
    static Result<std::unique_ptr<AsyncEvents>> create();
    ~AsyncEvents();
    AsyncEvents(const AsyncEvents&) = delete;
    AsyncEvents& operator=(const AsyncEvents&) = delete;

    void post(AsyncEvent event) noexcept;

    /// False when there is none; one that comes right now may be seen later. Threads: any.
    [[nodiscard]] bool may_have_some() const noexcept {
        // relaxed: who is told takes them under the lock.
        return has_some_.load(std::memory_order_relaxed);
    }
    /// The oldest event, if there is one. Threads: any.
    std::optional<AsyncEvent> poll() noexcept;
    /// Waits for one at most `timeout_ms`; -1: for ever.
    std::optional<AsyncEvent> wait(int timeout_ms) noexcept;

    /// Forgets what is queued about an object that is being destroyed.
    void forget(const Object& object) noexcept;

    /// Readable while events are queued. Belongs to the queue; for poll(2), not for read(2).
    [[nodiscard]] int fd() const noexcept { return fd_; }

  private:
    explicit AsyncEvents(int fd) noexcept : fd_(fd) {}
    void show_locked() noexcept RVT_REQUIRES(lock_);

    const int fd_;
    const unsigned generation_ = util::fork_generation();  // whose descriptor it is
    util::Mutex lock_;                                     // order: innermost
    std::deque<AsyncEvent> queue_ RVT_GUARDED_BY(lock_);
    std::atomic<bool> has_some_{false};
};

}  // namespace rvt::core
