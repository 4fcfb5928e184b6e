// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a queue or counter sleeps on: the descriptors that become readable when it may have
// something, and the form in which the application asked for them. fi_cq(3), fi_cntr(3), fi_eq(3),
// "wait_obj".
//
// | wait_obj           | the application sleeps in   | on                                  |
// |--------------------|-----------------------------|-------------------------------------|
// | FI_WAIT_NONE       | nothing                     | nothing                             |
// | FI_WAIT_UNSPEC     | sread, wait                 | the sources themselves              |
// | FI_WAIT_FD, _SET   | the same, or its own poll   | an epoll descriptor of the sources  |
// | FI_WAIT_MUTEX_COND | the same, or its own wait   | a condition that a thread signals   |
// | FI_WAIT_YIELD      | sread, wait                 | nothing: it polls and yields        |
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include <poll.h>

#include "ofi/compat.h"
#include "util/busy_poll.h"
#include "util/fork_guard.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::ofi {

class ConditionSignaller;

/// Time left of a timeout in milliseconds; a negative one never ends.
class TimeLimit {
  public:
    explicit TimeLimit(int timeout_ms) noexcept
        : is_endless_(timeout_ms < 0),
          end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms)) {}
    [[nodiscard]] bool is_over() const noexcept {
        return !is_endless_ && std::chrono::steady_clock::now() >= end_;
    }
    /// For ppoll(2): nullptr when endless.
    const timespec* left(timespec& storage) const noexcept;

  private:
    bool is_endless_;
    std::chrono::steady_clock::time_point end_;
};

/// Threads: any number may sleep at a time, also while sources are added and removed. Who sleeps
/// already does not look at a source that comes: its owner wakes it, through one it has.
class WaitObject {
  public:
    WaitObject() noexcept;
    ~WaitObject();
    WaitObject(const WaitObject&) = delete;
    WaitObject& operator=(const WaitObject&) = delete;

    /// Returns: ENOSYS for a kind that is not known, EMFILE, ENOMEM.
    util::Status open(fi_wait_obj kind, fid_wait* wait_set);

    /// A descriptor that is readable when the object may have something. Returns: as epoll_ctl(2).
    util::Status add_source(int fd);
    void remove_source(int fd) noexcept;

    [[nodiscard]] fi_wait_obj kind() const noexcept { return kind_; }
    [[nodiscard]] bool can_sleep() const noexcept { return kind_ != FI_WAIT_NONE; }

    /// What its waits do before they sleep.
    util::BusyPoll busy_poll;

    /// Sleeps until a source is readable, the limit is over, or a signal comes. Precondition: the
    /// sources are armed. Returns: false where a signal has ended it.
    bool sleep(const TimeLimit& limit) noexcept;

    /// The application is about to sleep on its own; see fi_trywait(3).
    void about_to_wait() noexcept;

    /// FI_GETWAIT and FI_GETWAITOBJ. Returns: a negative FI_E*.
    int control(int command, void* argument) noexcept;
    /// Opens an epoll descriptor as FI_WAIT_FD has, unless there is one. Returns: as
    /// epoll_create1(2), epoll_ctl(2).
    util::Status open_descriptor();

    /// The epoll descriptor, or -1.
    [[nodiscard]] int epoll_fd() const noexcept { return epoll_.get(); }

  private:
    // More sources than this are polled through the epoll descriptor.
    static constexpr std::size_t kMaxPolled = 16;

    util::Status open_epoll();
    int get_wait(void* argument) noexcept;

    fi_wait_obj kind_ = FI_WAIT_NONE;
    std::mutex lock_;  // order: innermost; of sources_ and signaller_; nobody sleeps with it
    std::vector<int> sources_;
    util::UniqueFd epoll_;
    const unsigned generation_ = util::fork_generation();  // whose set it is
    fid_wait* wait_set_ = nullptr;
    std::unique_ptr<ConditionSignaller> signaller_;
};

/// Who sleeps on one descriptor in a call, by what he had seen when he fell asleep. As long as one
/// has seen less than there is, the descriptor stays readable for him; it must not be for longer,
/// as it keeps all of them awake. Threads: under a lock of who has it.
template <class Sight>
class Onlookers {
  public:
    /// Returns: what to hand back to wake_up().
    unsigned fall_asleep(const Sight& sight) noexcept {
        if (sight != latest_) {
            latest_ = sight;
            ++look_;
            up_to_date_ = 0;
        }
        ++up_to_date_;
        ++count_;
        return look_;
    }
    void wake_up(unsigned look) noexcept {
        up_to_date_ -= look == look_ ? 1 : 0;
        --count_;
    }
    [[nodiscard]] bool have_seen(const Sight& sight) const noexcept {
        return count_ == 0 || (count_ == up_to_date_ && sight == latest_);
    }

  private:
    Sight latest_{};
    unsigned look_ = 0;        // number of that
    unsigned up_to_date_ = 0;  // of the sleepers, who have seen it
    unsigned count_ = 0;
};

}  // namespace rvt::ofi
