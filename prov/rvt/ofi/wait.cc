// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sleeping on descriptors, and the thread that turns them into a condition variable for those who
// ask for one.
#include "ofi/wait.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ofi/wait_set.h"
#include "util/fork_guard.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt::ofi {

const timespec* TimeLimit::left(timespec& storage) const noexcept {
    if (is_endless_) {
        return nullptr;
    }
    const auto left = std::max(end_ - std::chrono::steady_clock::now(),
                               std::chrono::steady_clock::duration::zero());
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    storage.tv_sec = nanoseconds / 1'000'000'000;
    storage.tv_nsec = nanoseconds % 1'000'000'000;
    return &storage;
}

namespace {

util::Status add_to_epoll(int epoll_fd, int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? util::kOk : util::Status(errno);
}

}  // namespace

/// FI_WAIT_MUTEX_COND: a thread that sleeps on the epoll descriptor in the application's stead and
/// broadcasts the condition. After a broadcast it rests until the application is about to wait
/// again.
class ConditionSignaller {
  public:
    static util::Result<std::unique_ptr<ConditionSignaller>> start(int epoll_fd) {
        util::UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
        if (!doorbell.is_open()) {
            return errno;
        }
        std::unique_ptr<ConditionSignaller> made(
            new ConditionSignaller(epoll_fd, std::move(doorbell)));
        const int error = made->start_thread();
        if (error != 0) {
            return error;
        }
        return made;
    }

    ~ConditionSignaller() {
        if (generation_ != util::fork_generation()) {
            return;  // its parent has the thread, and maybe others that wait
        }
        if (is_started_) {
            // relaxed: the write to the doorbell orders it.
            is_ending_.store(true, std::memory_order_relaxed);
            rearm();
            pthread_join(thread_, nullptr);
        }
        pthread_cond_destroy(&condition_);
        pthread_mutex_destroy(&mutex_);
    }
    ConditionSignaller(const ConditionSignaller&) = delete;
    ConditionSignaller& operator=(const ConditionSignaller&) = delete;

    void rearm() noexcept {
        [[maybe_unused]] const int ignored = eventfd_write(doorbell_.get(), 1);
    }
    fi_mutex_cond handles() noexcept { return {&mutex_, &condition_}; }

  private:
    ConditionSignaller(int epoll_fd, util::UniqueFd doorbell) noexcept
        : epoll_fd_(epoll_fd), doorbell_(std::move(doorbell)) {}

    /// Signals of the application are not for this thread.
    int start_thread() noexcept {
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        const int error = pthread_create(&thread_, nullptr, run, this);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        is_started_ = error == 0;
        return error;
    }

    static void* run(void* self) noexcept {
        static_cast<ConditionSignaller*>(self)->loop();
        return nullptr;
    }

    void loop() noexcept {
        while (take_ring() && await_source()) {
            pthread_mutex_lock(&mutex_);
            pthread_cond_broadcast(&condition_);
            pthread_mutex_unlock(&mutex_);
        }
    }

    /// Waits for one. Returns: false at the end.
    bool take_ring() noexcept {
        eventfd_t value = 0;
        // relaxed: the read of the doorbell orders it.
        return eventfd_read(doorbell_.get(), &value) == 0 &&
               !is_ending_.load(std::memory_order_relaxed);
    }

    /// Who rings meanwhile is about to wait for the same. Returns: false at the end.
    bool await_source() noexcept {
        for (;;) {
            pollfd sources[] = {{epoll_fd_, POLLIN, 0}, {doorbell_.get(), POLLIN, 0}};
            const int ready = poll(sources, 2, -1);
            if (sources[0].revents != 0 || (ready < 0 && errno != EINTR)) {
                return true;  // after an error the application looks for itself
            }
            if (sources[1].revents != 0 && !take_ring()) {
                return false;
            }
        }
    }

    const int epoll_fd_;
    util::UniqueFd doorbell_;
    std::atomic<bool> is_ending_{false};
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
    pthread_t thread_{};
    bool is_started_ = false;
    const unsigned generation_ = util::fork_generation();  // of the process that has the thread
};

WaitObject::WaitObject() noexcept
    : busy_poll(std::chrono::microseconds(util::param_number(util::ParamId::kBusyPollUs))) {}

WaitObject::~WaitObject() {
    if (wait_set_ != nullptr) {
        WaitSet::from(wait_set_).remove_source(epoll_.get());
    }
}

util::Status WaitObject::open(fi_wait_obj kind, fid_wait* wait_set) {
    kind_ = kind;
    switch (kind) {
        case FI_WAIT_NONE:
        case FI_WAIT_UNSPEC:
        case FI_WAIT_YIELD: return util::kOk;
        case FI_WAIT_FD:
        case FI_WAIT_MUTEX_COND:
        case FI_WAIT_SET: break;
        default: return ENOSYS;
    }
    const util::Status opened = open_epoll();
    if (!opened.is_ok() || kind != FI_WAIT_SET) {
        return opened;
    }
    if (wait_set == nullptr) {
        return EINVAL;
    }
    const util::Status added = WaitSet::from(wait_set).add_source(epoll_.get());
    if (added.is_ok()) {
        wait_set_ = wait_set;
    }
    return added;
}

util::Status WaitObject::open_epoll() {
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    util::Status result = epoll_.is_open() ? util::kOk : util::Status(errno);
    for (const int fd : sources_) {
        if (result.is_ok()) {
            result = add_to_epoll(epoll_.get(), fd);
        }
    }
    if (!result.is_ok()) {
        epoll_.reset();  // one with a part of the sources would be slept on
    }
    return result;
}

util::Status WaitObject::add_source(int fd) {
    const std::lock_guard guard(lock_);
    if (fd < 0 || !can_sleep() || std::ranges::find(sources_, fd) != sources_.end()) {
        return util::kOk;
    }
    util::Status added;
    if (!epoll_.is_open() && sources_.size() == kMaxPolled) {
        added = open_epoll();
    }
    if (added.is_ok() && epoll_.is_open()) {
        added = add_to_epoll(epoll_.get(), fd);
    }
    if (added.is_ok()) {
        sources_.push_back(fd);
    }
    return added;
}

void WaitObject::remove_source(int fd) noexcept {
    const std::lock_guard guard(lock_);
    // A forked child shares the set with its parent, who still sleeps on the descriptor.
    const bool has_own_set = epoll_.is_open() && generation_ == util::fork_generation();
    if (std::erase(sources_, fd) != 0 && has_own_set) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
}

bool WaitObject::sleep(const TimeLimit& limit) noexcept {
    if (kind_ == FI_WAIT_YIELD) {
        sched_yield();
        return true;
    }
    std::array<pollfd, kMaxPolled> polled{};
    std::size_t count = 0;
    {
        const std::lock_guard guard(lock_);
        if (sources_.size() > kMaxPolled) {
            polled[count++] = {epoll_.get(), POLLIN, 0};
        } else {
            for (const int fd : sources_) {
                polled[count++] = {fd, POLLIN, 0};
            }
        }
    }
    timespec left{};
    return ppoll(polled.data(), count, limit.left(left), nullptr) >= 0 || errno != EINTR;
}

void WaitObject::about_to_wait() noexcept {
    const std::lock_guard guard(lock_);
    if (signaller_) {
        signaller_->rearm();
    }
}

int WaitObject::control(int command, void* argument) noexcept {
    if (argument == nullptr) {
        return -FI_EINVAL;
    }
    switch (command) {
        case FI_GETWAIT: return get_wait(argument);
        case FI_GETWAITOBJ: *static_cast<fi_wait_obj*>(argument) = kind_; return 0;
        default: return -FI_ENOSYS;
    }
}

util::Status WaitObject::open_descriptor() {
    const std::lock_guard guard(lock_);
    return epoll_.is_open() ? util::Status(util::kOk) : open_epoll();
}

int WaitObject::get_wait(void* argument) noexcept {
    switch (kind_) {
        case FI_WAIT_FD: *static_cast<int*>(argument) = epoll_.get(); return 0;
        case FI_WAIT_SET: *static_cast<fid_wait**>(argument) = wait_set_; return 0;
        case FI_WAIT_MUTEX_COND: break;
        default: return -FI_ENODATA;
    }
    const std::lock_guard guard(lock_);
    if (!signaller_) {
        util::Result<std::unique_ptr<ConditionSignaller>> started =
            ConditionSignaller::start(epoll_.get());
        if (!started.is_ok()) {
            RVT_WARN(kCore, "cannot start the thread of a FI_WAIT_MUTEX_COND object: %s",
                     strerrordesc_np(started.error()));
            return -started.error();
        }
        signaller_ = started.take();
    }
    *static_cast<fi_mutex_cond*>(argument) = signaller_->handles();
    return 0;
}

}  // namespace rvt::ofi
