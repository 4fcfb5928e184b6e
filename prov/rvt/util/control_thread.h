// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The control thread: one for each process, from the first who needs it to the last. It sleeps
// until a descriptor, a timer or a command wakes it, and never touches what it does not own.
//
// Threads: acquire(), post(), run() from any thread but this one; everything else on the control
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pthread.h>

#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/mutex.h"
#include "util/status.h"

namespace rvt::util {

class ControlThread {
  public:
    using Clock = std::chrono::steady_clock;
    using Command = std::function<void()>;

    /// Something that waits for a descriptor, a time, or both. It is let go when it is destroyed.
    class Handler {
      public:
        explicit Handler(ControlThread& thread) noexcept : thread_(thread) {}
        virtual ~Handler();
        Handler(const Handler&) = delete;
        Handler& operator=(const Handler&) = delete;

        /// The watched descriptor has something. May destroy the handler.
        virtual void on_ready([[maybe_unused]] std::uint32_t events) {}
        /// The time has come. May destroy the handler.
        virtual void on_timer() {}

      protected:
        ControlThread& thread() const noexcept { return thread_; }
        /// Watches one descriptor for epoll(7) events, in place of the former one. It stays open
        /// until unwatch(): whose own it is calls that in its destructor, since a closed one is
        /// watched for as long as another process has a copy. Returns: ENOMEM, ENOSPC.
        Status watch(int fd, std::uint32_t events);
        /// The same until the first event, and after each rearm() until the next. Meanwhile the
        /// descriptor is in no set, as EPOLLONESHOT would leave it: the kernel goes through the
        /// set at each packet of a socket, sent or received, whether anybody is to hear of it.
        Status watch_once(int fd, std::uint32_t events);
        void unwatch() noexcept;
        /// Asks for the next event of watch_once(). Where one is asked for or on its way, that is
        /// it. Returns: as watch(). Threads: any, while it is watched.
        Status rearm() noexcept;
        /// Asks for on_timer(), once, in place of an earlier wish.
        void set_timer(Clock::time_point when);
        void cancel_timer() noexcept;
        bool has_timer() const noexcept { return timer_id_ != 0; }
        /// For how long this process has been stopped, as far as the present timer or the last one
        /// tells, which comes so late; 0: it is no later than on a busy machine.
        Clock::duration stopped_for() const noexcept;

      private:
        friend class ControlThread;
        Status begin_watch(int fd, std::uint32_t events, bool is_once);

        ControlThread& thread_;
        std::uint64_t watch_id_ = 0;  // 0: none
        int watched_fd_ = -1;
        std::uint32_t watched_events_ = 0;
        bool is_once_ = false;
        std::uint64_t timer_id_ = 0;  // 0: none
        Clock::time_point due_;
    };

    /// The thread of this process; starts it when there is none.
    /// Returns: EAGAIN (no thread can be made), EMFILE, ENOMEM.
    static Result<std::shared_ptr<ControlThread>> acquire();
    /// Ends and joins the thread.
    ~ControlThread();
    ControlThread(const ControlThread&) = delete;
    ControlThread& operator=(const ControlThread&) = delete;

    /// Whether this process is a forked child of the one that started the thread: there is no
    /// thread here.
    bool is_inherited() const noexcept { return fork_generation() != generation_; }

    /// Has a command executed later. In a forked child: does nothing.
    void post(Command command);
    /// Has a command executed and waits for its end. In a forked child: does nothing.
    void run(const Command& command);

  private:
    using TimerKey = std::pair<Clock::time_point, std::uint64_t>;

    ControlThread() = default;
    Status start();
    static void* entry(void* self);
    void loop();
    Status add(int fd, std::uint32_t events, std::uint64_t id) noexcept;  // Threads: any
    int timeout() const noexcept;
    void run_commands();
    void run_timers();
    void dispatch(std::uint64_t id, std::uint32_t events);
    void signal() noexcept;

    const unsigned generation_ = fork_generation();
    pthread_t thread_{};
    bool is_started_ = false;
    bool is_stopping_ = false;  // control thread only; set by a command
    ProcessFd epoll_;
    ProcessFd event_;

    Mutex lock_;  // order: after ForkHold; before none
    std::vector<Command> commands_ RVT_GUARDED_BY(lock_);

    std::uint64_t next_id_ = 1;
    std::unordered_map<std::uint64_t, Handler*> watches_;
    std::map<TimerKey, Handler*> timers_;
};

}  // namespace rvt::util
