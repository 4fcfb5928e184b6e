// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion queues and counters without endpoints: formats, waiting, signals, wait objects.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/process.h"
#include "core/progress_source.h"
#include "ofi/cntr.h"
#include "ofi/cq.h"
#include "ofi/fixture.h"
#include "ofi/sleeper.h"

using namespace rvt::test;

namespace {

fi_cq_attr waiting(fi_wait_obj kind) {
    fi_cq_attr attr{};
    attr.wait_obj = kind;
    return attr;
}

std::atomic<unsigned> yields{0};

unsigned yields_so_far() {
    // relaxed: read by the thread that polls.
    return yields.load(std::memory_order_relaxed);
}

constexpr std::chrono::microseconds kPollTime{10'000'000};

/// Waits poll until what they wait for is there.
void poll_for_long() {
    setenv("FI_RVT_BUSY_POLL_US", std::to_string(kPollTime.count()).c_str(), 1);
}

/// A thread that does something as soon as the one that has made it polls, which shows by its
/// yields: never, where that sleeps.
template <class Act>
std::thread when_polling(Act act) {
    const unsigned before = yields_so_far();
    return std::thread([before, act] {
        while (yields_so_far() - before < 3) {
        }
        act();
    });
}

/// A source of which a test knows when it is asked for its descriptor.
class AskedSource final : public rvt::core::ProgressSource {
  public:
    AskedSource() {
        progress = [](ProgressSource*) noexcept { return 0U; };
    }
    rvt::util::Status arm_locked() noexcept override { return rvt::util::kOk; }
    void disarm_locked() noexcept override {}
    int wake_fd() const noexcept override {
        if (const auto act = std::exchange(when_asked, nullptr)) {
            act();
        }
        return event.get();
    }

    mutable std::function<void()> when_asked;  // once
    const rvt::util::UniqueFd event{eventfd(0, EFD_CLOEXEC)};
};

/// One endpoint leaves a queue or counter while another one that has the same source joins it.
template <class Object>
void source_that_comes_while_it_goes_is_slept_on(Object& object) {
    AskedSource source;
    RVT_OK(object.add_source(source));
    std::thread joining;
    source.when_asked = [&] {
        const unsigned before = yields_so_far();
        joining = std::thread([&] { RVT_OK(object.add_source(source)); });
        while (yields_so_far() - before < 3) {  // it waits for the lock that the one who leaves has
        }
    };
    object.remove_source(source);
    joining.join();
    pollfd set{.fd = object.wait.epoll_fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&set, 1, 0), 0);
    RVT_EQ(eventfd_write(source.event.get(), 1), 0);
    RVT_EQ(poll(&set, 1, 0), 1);
    object.remove_source(source);
}

}  // namespace

// The provider calls this one.
extern "C" [[gnu::visibility("default")]] int sched_yield() noexcept {
    // relaxed: a count.
    yields.fetch_add(1, std::memory_order_relaxed);
    return static_cast<int>(syscall(SYS_sched_yield));
}

Test(cq, an_empty_queue_says_again_in_every_format) {
    const Opened open;
    for (const fi_cq_format format : {FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG,
                                      FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED}) {
        fi_cq_attr attr{};
        attr.format = format;
        const auto cq = open.cq(attr);
        fi_cq_tagged_entry entries[4];
        fi_addr_t sources[4];
        RVT_EQ(fi_cq_read(cq.get(), entries, 4), -FI_EAGAIN);
        RVT_EQ(fi_cq_readfrom(cq.get(), entries, 4, sources), -FI_EAGAIN);
    }
}

Test(cq, who_reads_an_empty_queue_for_long_lets_others_run) {
    const Opened open;
    const auto cq = open.cq();
    fi_cq_entry entry;
    const unsigned before = yields_so_far();
    for (int polls = 0; polls < 100'000; ++polls) {
        RVT_EQ(fi_cq_read(cq.get(), &entry, 1), -FI_EAGAIN);
    }
    RVT_ASSERT(yields_so_far() - before >= 20);
}

Test(cntr, who_reads_a_counter_in_vain_for_long_lets_others_run) {
    const Opened open;
    const auto cntr = open.cntr();
    const unsigned before = yields_so_far();
    for (int polls = 0; polls < 100'000; ++polls) {
        RVT_EQ(fi_cntr_read(cntr.get()), 0);
    }
    RVT_ASSERT(yields_so_far() - before >= 20);
}

Test(cq, an_empty_queue_has_no_error) {
    const Opened open;
    const auto cq = open.cq();
    fi_cq_err_entry error{};
    RVT_EQ(fi_cq_readerr(cq.get(), &error, 0), -FI_EAGAIN);
}

Test(cq, what_cannot_be_is_refused) {
    const Opened open;
    fid_cq* cq = nullptr;
    fi_cq_attr attr{};
    attr.format = static_cast<fi_cq_format>(99);
    RVT_EQ(fi_cq_open(open.domain.get(), &attr, &cq, nullptr), -FI_ENOSYS);
    attr = {};
    attr.wait_obj = static_cast<fi_wait_obj>(99);
    RVT_EQ(fi_cq_open(open.domain.get(), &attr, &cq, nullptr), -FI_ENOSYS);
    attr = {};
    attr.flags = 1ull << 40;
    RVT_EQ(fi_cq_open(open.domain.get(), &attr, &cq, nullptr), -FI_EBADFLAGS);
    attr = {};
    attr.size = SIZE_MAX;
    RVT_EQ(fi_cq_open(open.domain.get(), &attr, &cq, nullptr), -FI_EINVAL);
}

Test(cq, without_a_wait_object_nobody_can_wait) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_NONE));
    fi_cq_entry entry;
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, 10), -FI_EINVAL);
    RVT_EQ(fi_cq_signal(cq.get()), -FI_EINVAL);
}

Test(cq, a_wait_ends_at_its_time_limit_with_every_wait_object) {
    const Opened open;
    for (const fi_wait_obj kind : {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD}) {
        const auto cq = open.cq(waiting(kind));
        fi_cq_entry entry;
        const auto start = std::chrono::steady_clock::now();
        RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
        RVT_ASSERT(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
    }
}

Test(cq, a_signal_ends_a_wait, .timeout = 30) {
    const Opened open;
    for (const fi_wait_obj kind : {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD}) {
        const auto cq = open.cq(waiting(kind));
        std::thread signaller([&] { fi_cq_signal(cq.get()); });
        fi_cq_entry entry;
        RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
        signaller.join();
    }
}

Test(cq, a_signal_ends_one_wait_on_its_descriptor) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_FD));
    fid* const waited = &cq->fid;
    fid* list[] = {waited};
    int fd = -1;
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &fd));
    RVT_OK(fi_trywait(open.fabric.get(), list, 1));
    RVT_OK(fi_cq_signal(cq.get()));
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&one, 1, 0), 1);
    RVT_EQ(fi_trywait(open.fabric.get(), list, 1), -FI_EAGAIN);
    RVT_OK(fi_trywait(open.fabric.get(), list, 1));
    RVT_EQ(poll(&one, 1, 0), 0);
}

// Without SA_RESTART or with it: whoever waits for events looks at what its handler has set.
Test(cq, a_signal_of_the_system_ends_a_wait, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_UNSPEC));
    const auto eq = open.eq(with<fi_eq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_UNSPEC; }));
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    RVT_OK(sigaction(SIGUSR1, &action, nullptr));
    const pthread_t waiter = pthread_self();
    std::atomic<int> ended{0};
    // relaxed: a count; what the signals find is not known here, so they are repeated.
    std::thread signaller([&] {
        while (ended.load(std::memory_order_relaxed) != 2) {
            pthread_kill(waiter, SIGUSR1);
            sched_yield();
        }
    });
    fi_cq_entry entry;
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
    // relaxed: as above.
    ended.fetch_add(1, std::memory_order_relaxed);
    std::uint32_t event = 0;
    RVT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, -1, 0), -FI_EAGAIN);
    ended.fetch_add(1, std::memory_order_relaxed);  // relaxed: as above.
    signaller.join();
}

Test(cq, several_waiters_are_all_let_go_by_signals, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_UNSPEC));
    std::thread waiters[3];
    for (std::thread& waiter : waiters) {
        waiter = std::thread([&] {
            fi_cq_entry entry;
            RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
        });
    }
    std::atomic<bool> is_over{false};
    // A signal lets one waiter go; they are repeated until all have been seen to go.
    std::thread signaller([&] {
        while (!is_over.load(std::memory_order_relaxed)) {  // relaxed: only ends the loop
            fi_cq_signal(cq.get());
            std::this_thread::yield();
        }
    });
    for (std::thread& waiter : waiters) {
        waiter.join();
    }
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above
    signaller.join();
}

Test(cq, its_descriptor_is_readable_after_a_signal) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_FD));
    int fd = -1;
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &fd));
    fid* fids[] = {&cq->fid};
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    pollfd source{fd, POLLIN, 0};
    RVT_EQ(poll(&source, 1, 0), 0);
    RVT_OK(fi_cq_signal(cq.get()));
    RVT_EQ(poll(&source, 1, 0), 1);
}

void wait_for_signal(const Opened& open, fid_cq* cq, const fi_mutex_cond& wait) {
    fid* fids[] = {&cq->fid};
    pthread_mutex_lock(wait.mutex);
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    std::thread signaller([&] { fi_cq_signal(cq); });
    RVT_OK(pthread_cond_wait(wait.cond, wait.mutex));
    pthread_mutex_unlock(wait.mutex);
    signaller.join();
}

Test(cq, its_condition_is_signalled, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_MUTEX_COND));
    fi_mutex_cond wait{};
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &wait));
    wait_for_signal(open, cq.get(), wait);
}

int wait_for_50_ms(const fi_mutex_cond& wait) {
    timespec end{};
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += 50'000'000;
    end.tv_sec += end.tv_nsec / 1'000'000'000;
    end.tv_nsec %= 1'000'000'000;
    return pthread_cond_timedwait(wait.cond, wait.mutex, &end);
}

Test(cq, its_condition_is_not_signalled_for_who_waits_again, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_MUTEX_COND));
    fi_mutex_cond wait{};
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &wait));
    fid* fids[] = {&cq->fid};
    for (int i = 0; i < 3; ++i) {
        pthread_mutex_lock(wait.mutex);
        RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
        RVT_EQ(wait_for_50_ms(wait), ETIMEDOUT);
        pthread_mutex_unlock(wait.mutex);
    }
    wait_for_signal(open, cq.get(), wait);
}

Test(cq, a_forked_child_closes_it_though_its_parent_waits_for_its_condition, .timeout = 60) {
    const Opened open;
    auto cq = open.cq(waiting(FI_WAIT_MUTEX_COND));
    fi_mutex_cond wait{};
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &wait));
    bool is_over = false;
    Sleeper waiter([&] {
        pthread_mutex_lock(wait.mutex);
        while (!is_over) {
            pthread_cond_wait(wait.cond, wait.mutex);
        }
        pthread_mutex_unlock(wait.mutex);
    });
    waiter.await_sleep();
    Process child([&](Process&) {
        alarm(20);
        _exit(fi_close(&cq.release()->fid) == 0 ? 0 : 1);
    });
    RVT_EQ(child.wait(), 0);
    pthread_mutex_lock(wait.mutex);
    is_over = true;
    pthread_cond_broadcast(wait.cond);
    pthread_mutex_unlock(wait.mutex);
    waiter.join();
}

std::set<pid_t> threads_so_far() {
    std::set<pid_t> threads;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
        threads.insert(std::stoi(thread.path().filename()));
    }
    return threads;
}

/// The one thread that this process has beside those.
pid_t thread_beside(const std::set<pid_t>& others) {
    std::vector<pid_t> added;
    std::ranges::set_difference(threads_so_far(), others, std::back_inserter(added));
    RVT_EQ(added.size(), 1);
    return added.front();
}

std::atomic<bool> is_handled{false};

/// Whether the signal waits for a thread that does not take it.
bool is_pending(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    return status.find("SigPnd:\t0000000000000000") == std::string::npos;
}

Test(cq, its_condition_is_signalled_though_a_signal_has_come, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_MUTEX_COND));
    fi_mutex_cond wait{};
    const std::set<pid_t> before = threads_so_far();
    RVT_OK(fi_control(&cq->fid, FI_GETWAIT, &wait));
    const pid_t thread = thread_beside(before);
    struct sigaction action {};
    action.sa_handler = [](int) {
        is_handled.store(true, std::memory_order_relaxed);  // relaxed: a flag and no more
    };
    RVT_OK(sigaction(SIGUSR1, &action, nullptr));
    RVT_OK(tgkill(getpid(), thread, SIGUSR1));
    // relaxed: as above.
    while (!is_handled.load(std::memory_order_relaxed) && !is_pending(thread)) {
    }
    wait_for_signal(open, cq.get(), wait);
}

// ---- polling before sleep ----

Test(cq, who_waits_polls_first, .timeout = 30) {
    poll_for_long();
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_UNSPEC));
    fi_cq_entry entry;
    std::thread signaller = when_polling([&] { fi_cq_signal(cq.get()); });
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
    signaller.join();
}

Test(cq, who_polls_first_heeds_the_timeout, .timeout = 30) {
    poll_for_long();
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_UNSPEC));
    fi_cq_entry entry;
    const auto start = std::chrono::steady_clock::now();
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
    RVT_ASSERT(std::chrono::steady_clock::now() - start < kPollTime / 2);
}

Test(cq, who_is_told_not_to_poll_sleeps) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_UNSPEC));
    fi_cq_entry entry;
    const unsigned before = yields_so_far();
    RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
    RVT_EQ(yields_so_far(), before);
}

Test(cq, sleep_is_not_allowed_where_polling_finds_something, .timeout = 30) {
    poll_for_long();
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_FD));
    fid* fids[] = {&cq->fid};
    std::thread signaller = when_polling([&] { fi_cq_signal(cq.get()); });
    RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
    signaller.join();
}

Test(cntr, sleep_is_not_allowed_where_polling_sees_a_count, .timeout = 30) {
    poll_for_long();
    const Opened open;
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    const auto cntr = open.cntr(attr);
    fid* fids[] = {&cntr->fid};
    std::thread counting = when_polling([&] { fi_cntr_add(cntr.get(), 1); });
    RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
    counting.join();
}

Test(cntr, a_count_that_was_set_back_and_is_reached_again_lets_nobody_sleep) {
    const Opened open;
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    const auto cntr = open.cntr(attr);
    fid* fids[] = {&cntr->fid};
    RVT_OK(fi_cntr_add(cntr.get(), 1));
    RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    RVT_OK(fi_cntr_set(cntr.get(), 0));
    RVT_OK(fi_cntr_add(cntr.get(), 1));
    RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
    RVT_OK(fi_trywait(open.fabric.get(), fids, 1));
    RVT_OK(fi_cntr_adderr(cntr.get(), 1));
    RVT_OK(fi_cntr_seterr(cntr.get(), 0));
    RVT_EQ(fi_trywait(open.fabric.get(), fids, 1), -FI_EAGAIN);
}

Test(cntr, who_waits_polls_first, .timeout = 30) {
    poll_for_long();
    const Opened open;
    const auto cntr = open.cntr();
    std::thread counting = when_polling([&] { fi_cntr_add(cntr.get(), 1); });
    RVT_OK(fi_cntr_wait(cntr.get(), 1, -1));
    counting.join();
}

Test(cntr, who_polls_first_heeds_the_timeout, .timeout = 30) {
    poll_for_long();
    const Opened open;
    const auto cntr = open.cntr();
    const auto start = std::chrono::steady_clock::now();
    RVT_EQ(fi_cntr_wait(cntr.get(), 1, 20), -FI_ETIMEDOUT);
    RVT_ASSERT(std::chrono::steady_clock::now() - start < kPollTime / 2);
}

// ---- sources ----

Test(cq, a_source_that_comes_while_it_goes_is_slept_on, .timeout = 30) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_FD));
    source_that_comes_while_it_goes_is_slept_on(rvt::ofi::Cq::from(cq.get()));
}

Test(cntr, a_source_that_comes_while_it_goes_is_slept_on, .timeout = 30) {
    const Opened open;
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    const auto cntr = open.cntr(attr);
    source_that_comes_while_it_goes_is_slept_on(rvt::ofi::Cntr::from(cntr.get()));
}

Test(cq, tells_which_wait_object_it_has) {
    const Opened open;
    const auto cq = open.cq(waiting(FI_WAIT_FD));
    fi_wait_obj kind = FI_WAIT_NONE;
    RVT_OK(fi_control(&cq->fid, FI_GETWAITOBJ, &kind));
    RVT_EQ(kind, FI_WAIT_FD);
}

Test(cq, errors_have_a_text) {
    const Opened open;
    const auto cq = open.cq();
    char text[128] = "";
    RVT_ASSERT(fi_cq_strerror(cq.get(), 15, nullptr, text, sizeof text) == text);
    RVT_ASSERT(strlen(text) > 10);
    RVT_ASSERT(fi_cq_strerror(cq.get(), -3, nullptr, nullptr, 0) != nullptr);
}

// ---- counters ----

Test(cntr, counts_what_is_added_and_set) {
    const Opened open;
    const auto cntr = open.cntr();
    RVT_OK(fi_cntr_add(cntr.get(), 5));
    RVT_OK(fi_cntr_add(cntr.get(), 2));
    RVT_EQ(fi_cntr_read(cntr.get()), 7);
    RVT_OK(fi_cntr_set(cntr.get(), 3));
    RVT_EQ(fi_cntr_read(cntr.get()), 3);
    RVT_OK(fi_cntr_adderr(cntr.get(), 4));
    RVT_EQ(fi_cntr_readerr(cntr.get()), 4);
    RVT_OK(fi_cntr_seterr(cntr.get(), 1));
    RVT_EQ(fi_cntr_readerr(cntr.get()), 1);
}

Test(cntr, a_wait_ends_at_its_time_limit) {
    const Opened open;
    const auto cntr = open.cntr();
    RVT_EQ(fi_cntr_wait(cntr.get(), 1, 20), -FI_ETIMEDOUT);
}

Test(cntr, a_wait_ends_when_the_count_is_reached, .timeout = 30) {
    const Opened open;
    const auto cntr = open.cntr();
    std::thread adder([&] {
        for (int i = 0; i < 10; ++i) {
            fi_cntr_add(cntr.get(), 1);
        }
    });
    RVT_OK(fi_cntr_wait(cntr.get(), 10, -1));
    adder.join();
}

Test(cntr, two_threads_may_wait_for_different_counts, .timeout = 30) {
    const Opened open;
    const auto cntr = open.cntr();
    const auto await = [&](std::uint64_t count) {
        RVT_OK(fi_cntr_wait(cntr.get(), count, -1));
        RVT_ASSERT(fi_cntr_read(cntr.get()) >= count);
    };
    std::thread first(await, 50);
    std::thread second(await, 100);
    for (int i = 0; i < 100; ++i) {
        fi_cntr_add(cntr.get(), 1);
        std::this_thread::yield();
    }
    first.join();
    second.join();
    RVT_EQ(fi_cntr_read(cntr.get()), 100);
}

Test(cntr, an_error_ends_a_wait, .timeout = 30) {
    const Opened open;
    const auto cntr = open.cntr();
    std::atomic<bool> is_over{false};
    std::thread adder([&] {
        // The wait compares with the errors at its start: errors are added until it has seen one.
        while (!is_over.load(std::memory_order_relaxed)) {  // relaxed: only ends the loop
            fi_cntr_adderr(cntr.get(), 1);
            std::this_thread::yield();
        }
    });
    RVT_EQ(fi_cntr_wait(cntr.get(), 10, -1), -FI_EAVAIL);
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above
    adder.join();
}
