// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The loop of the control thread: epoll(7), timers, commands.
#include "util/control_thread.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <condition_variable>
#include <cstring>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <csignal>

#include "util/log.h"

namespace rvt::util {
namespace {

constexpr const char* kThreadName = "rvt-control";
constexpr std::uint64_t kCommandsId = 0;  // handlers count from 1
/// By so much a timer of a process that runs may come late.
constexpr std::chrono::milliseconds kLongestDelay{500};

Mutex current_lock;  // order: after ForkHold, so that no child finds it taken

/// Outlives static destruction: the first user may come late.
std::weak_ptr<ControlThread>& current() noexcept RVT_REQUIRES(current_lock) {
    static auto* const kCurrent = new std::weak_ptr<ControlThread>;
    return *kCurrent;
}

}  // namespace

// ---- handlers ----

ControlThread::Handler::~Handler() {
    unwatch();
    cancel_timer();
}

Status ControlThread::Handler::watch(int fd, std::uint32_t events) {
    return begin_watch(fd, events, false);
}

Status ControlThread::Handler::watch_once(int fd, std::uint32_t events) {
    return begin_watch(fd, events, true);
}

Status ControlThread::Handler::begin_watch(int fd, std::uint32_t events, bool is_once) {
    unwatch();
    const std::uint64_t id = thread_.next_id_++;
    if (const Status added = thread_.add(fd, events, id); !added.is_ok()) {
        return added;
    }
    thread_.watches_[id] = this;
    watch_id_ = id;
    watched_fd_ = fd;
    watched_events_ = events;
    is_once_ = is_once;
    return kOk;
}

void ControlThread::Handler::unwatch() noexcept {
    if (watch_id_ != 0) {
        [[maybe_unused]] const int gone =
            epoll_ctl(thread_.epoll_.get(), EPOLL_CTL_DEL, watched_fd_, nullptr);
        assert(gone == 0 || (is_once_ && errno == ENOENT) || thread_.is_inherited());
        thread_.watches_.erase(watch_id_);
        watch_id_ = 0;
    }
}

Status ControlThread::Handler::rearm() noexcept {
    const Status added = thread_.add(watched_fd_, watched_events_, watch_id_);
    return added.error() == EEXIST ? kOk : added;
}

void ControlThread::Handler::set_timer(Clock::time_point when) {
    cancel_timer();
    timer_id_ = thread_.next_id_++;
    due_ = when;
    thread_.timers_[{due_, timer_id_}] = this;
}

void ControlThread::Handler::cancel_timer() noexcept {
    if (timer_id_ != 0) {
        thread_.timers_.erase({due_, timer_id_});
        timer_id_ = 0;
    }
}

ControlThread::Clock::duration ControlThread::Handler::stopped_for() const noexcept {
    const Clock::duration late = Clock::now() - due_;
    const bool has_been_set = due_ != Clock::time_point{};
    return has_been_set && late > kLongestDelay ? late : Clock::duration{};
}

// ---- life ----

Result<std::shared_ptr<ControlThread>> ControlThread::acquire() {
    const ForkHold hold;
    const Guard guard(current_lock);
    std::shared_ptr<ControlThread> thread = current().lock();
    if (thread != nullptr && !thread->is_inherited()) {
        return thread;
    }
    thread.reset(new ControlThread);
    const Status status = thread->start();
    if (!status.is_ok()) {
        RVT_WARN(kEpCtrl, "cannot start control thread: %s%s", strerrordesc_np(status.error()),
                 status.error() == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "");
        return status;
    }
    current() = thread;
    return thread;
}

Status ControlThread::start() {
    epoll_ = ProcessFd(UniqueFd(epoll_create1(EPOLL_CLOEXEC)));
    event_ = ProcessFd(UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!epoll_.is_open() || !event_.is_open()) {
        return errno;
    }
    if (const Status added = add(event_.get(), EPOLLIN, kCommandsId); !added.is_ok()) {
        return added;
    }
    // Signals of the application are not for this thread.
    sigset_t all{};
    sigset_t before{};
    sigfillset(&all);
    // But for those of what it does itself: util/fault_guard.h.
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread_, nullptr, entry, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    is_started_ = error == 0;
    return error;
}

ControlThread::~ControlThread() {
    if (is_started_ && !is_inherited()) {
        post([this] { is_stopping_ = true; });
        pthread_join(thread_, nullptr);
    }
}

void* ControlThread::entry(void* self) {
    pthread_setname_np(pthread_self(), kThreadName);
    static_cast<ControlThread*>(self)->loop();
    return nullptr;
}

// ---- commands ----

void ControlThread::post(Command command) {
    if (is_inherited()) {
        return;
    }
    {
        const Guard guard(lock_);
        commands_.push_back(std::move(command));
    }
    signal();
}

void ControlThread::run(const Command& command) {
    if (is_inherited()) {
        return;
    }
    std::mutex done_lock;
    std::condition_variable done;
    bool is_done = false;
    post([&] {
        command();
        const std::lock_guard guard(done_lock);
        is_done = true;
        done.notify_one();
    });
    std::unique_lock guard(done_lock);
    done.wait(guard, [&is_done] { return is_done; });
}

void ControlThread::signal() noexcept {
    // EAGAIN: the counter is full, so the thread will wake anyway.
    [[maybe_unused]] const int ignored = eventfd_write(event_.get(), 1);
}

// ---- the loop ----

void ControlThread::loop() {
    std::array<epoll_event, 64> events{};
    while (!is_stopping_) {
        const int count =
            epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout());
        const ForkHold hold;
        run_commands();
        for (int i = 0; i < count; ++i) {
            dispatch(events[static_cast<std::size_t>(i)].data.u64,
                     events[static_cast<std::size_t>(i)].events);
        }
        run_timers();
    }
}

Status ControlThread::add(int fd, std::uint32_t events, std::uint64_t id) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? kOk : Status(errno);
}

int ControlThread::timeout() const noexcept {
    if (timers_.empty()) {
        return -1;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60 * 60 * 1000));
}

void ControlThread::run_commands() {
    std::vector<Command> taken;
    {
        const Guard guard(lock_);
        taken.swap(commands_);
    }
    for (const Command& command : taken) {
        command();
    }
}

void ControlThread::dispatch(std::uint64_t id, std::uint32_t events) {
    if (id == kCommandsId) {
        eventfd_t ignored = 0;
        eventfd_read(event_.get(), &ignored);
        run_commands();  // posted before the counter was read, and maybe after the first look
        return;
    }
    // An earlier event of the same round may have ended this watch.
    const auto found = watches_.find(id);
    if (found == watches_.end()) {
        return;
    }
    Handler& handler = *found->second;
    if (handler.is_once_) {
        // Before the handler hears of it: what it sets off may ask for the next event at once.
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handler.watched_fd_, nullptr);
    }
    handler.on_ready(events);
}

void ControlThread::run_timers() {
    const Clock::time_point now = Clock::now();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
        Handler* const handler = timers_.begin()->second;
        handler->cancel_timer();
        handler->on_timer();
    }
}

}  // namespace rvt::util
