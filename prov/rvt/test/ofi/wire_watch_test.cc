// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When the control thread acts for the owner of a wire.
#include "wire_watch.h"

#include <criterion/criterion.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"
#include "common/epoll_sets.h"
#include "util/control_thread.h"
#include "util/unique_fd.h"

using namespace std::chrono_literals;
using rvt::WatchedWire;
using rvt::WireWatch;
using rvt::util::ControlThread;
using rvt::util::UniqueFd;

namespace {

using Clock = std::chrono::steady_clock;

/// When something was called; the first few times.
class Calls {
  public:
    static constexpr std::size_t kMost = 9;

    // Threads: one.
    void note() {
        if (count_ < kMost) {
            times_[count_] = Clock::now();
            ++count_;
        }
    }
    // Threads: any.
    [[nodiscard]] bool are(std::size_t number) const { return count_ >= number; }
    /// How long before the call with this number the one before it was. Precondition:
    /// are(number + 1).
    [[nodiscard]] Clock::duration pause(std::size_t number) const {
        return times_[number] - times_[number - 1];
    }

  private:
    std::array<Clock::time_point, kMost> times_;
    std::atomic<std::size_t> count_{0};
};

/// A wire on which something has arrived.
class Wire : public WatchedWire {
  public:
    std::uint64_t owner_polls() const noexcept override { return 0; }
    bool poll_for_owner() noexcept override { return true; }
    bool send_held() noexcept override { return true; }
    std::uint64_t wire_due_us() noexcept override { return ~std::uint64_t{0}; }
    std::uint64_t wire_now_us() noexcept override { return 0; }
    int wire_fd() noexcept override { return fd.get(); }

    UniqueFd fd{eventfd(1, EFD_CLOEXEC)};
    mutable Calls calls;

  protected:
    ~Wire() = default;
};

/// Its owner was interrupted amid a poll.
class HeldWire final : public Wire {
  public:
    bool poll_for_owner() noexcept override {
        calls.note();
        return false;
    }
};

/// Its owner polls all the time, and a NIC carries everything.
class NicWire final : public Wire {
  public:
    std::uint64_t owner_polls() const noexcept override {
        calls.note();
        return ++polls;
    }
    bool is_left_to_nic() const noexcept override { return true; }

    mutable std::uint64_t polls = 0;
};

/// Nothing has come, and nothing is due but what the test says.
class QuietWire final : public Wire {
  public:
    explicit QuietWire(std::uint64_t due) : due_us(due) {
        eventfd_t taken = 0;
        RVT_EQ(eventfd_read(wire_fd(), &taken), 0);
    }
    std::uint64_t owner_polls() const noexcept override {
        calls.note();
        return 0;
    }
    std::uint64_t wire_due_us() noexcept override { return due_us; }

    const std::uint64_t due_us;
};

/// Counts how often it is told that something has arrived. Its owner is inside a poll, so that
/// nobody but the test leaves it to the watch.
class CountingWire final : public Wire {
  public:
    bool poll_for_owner() noexcept override { return false; }
    void wire_is_ready() noexcept override { ++arrivals; }

    std::atomic<unsigned> arrivals{0};
};

/// Its owner computes. Only the control thread looks at the members once there is a watch.
class AwayWire final : public Wire {
  public:
    bool poll_for_owner() noexcept override {
        ++polls;
        eventfd_t arrived = 0;
        pollfd arrival{.fd = fd.get(), .events = POLLIN, .revents = 0};
        if (poll(&arrival, 1, 0) == 1 && eventfd_read(fd.get(), &arrived) == 0) {
            ++traffic;
        }
        return true;
    }
    std::uint64_t wire_traffic_us() const noexcept override { return traffic; }
    bool let_go() noexcept override {
        ++let_gos;
        return let_gos > refused;
    }

    /// The first packet, for which the owner has a while to come back.
    void begin(WireWatch& watch) const {
        watch.on_ready(EPOLLIN);
        RVT_EQ(polls, 0);
        do {
            watch.on_timer();  // a turn may be over before the wire has been found quiet
        } while (let_gos == 0);
        RVT_EQ(traffic, 1);
    }
    /// Another one, and what the watch does of it.
    void bring_packet_to(WireWatch& watch) const {
        RVT_EQ(eventfd_write(fd.get(), 1), 0);
        watch.on_ready(EPOLLIN);
    }

    unsigned polls = 0;
    std::uint64_t traffic = 0;
    unsigned let_gos = 0;
    unsigned refused = 0;  // so many times something has come meanwhile
};

/// A watch on the control thread.
class Watched {
  public:
    /// @param then  Done before anything happens on the control thread.
    explicit Watched(
        Wire& wire, const std::function<void(WireWatch&)>& then = [](WireWatch&) {}) {
        thread_->run([&] {
            watch.emplace(*thread_, wire, is_hot);
            RVT_OK(watch->start());
            then(*watch);
        });
    }
    ~Watched() {
        thread_->run([&] { watch.reset(); });
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

    /// On the control thread, whose own turns wait for it.
    void run(const ControlThread::Command& command) { thread_->run(command); }

    std::optional<WireWatch> watch;
    std::atomic<bool> is_hot{false};

  private:
    const std::shared_ptr<ControlThread> thread_ = ControlThread::acquire().take();
};

template <class Condition>
void wait_until(Condition condition) {
    while (!condition()) {
        std::this_thread::yield();
    }
}

/// Watches the wire until so many of its calls are noted.
void watch(Wire& wire, std::size_t calls) {
    const Watched watched(wire);
    wait_until([&] { return wire.calls.are(calls); });
}

unsigned sets_with(int fd) {
    return rvt::test::places_in_sets([fd](int other) { return other == fd; });
}

}  // namespace

Test(wire_watch, leaves_the_processor_to_an_owner_who_is_inside_a_poll, .timeout = 30) {
    HeldWire wire;
    watch(wire, Calls::kMost);
    for (std::size_t i = 1; i < Calls::kMost; ++i) {
        RVT_ASSERT(wire.calls.pause(i) >= 1ms);
    }
}

Test(wire_watch, disturbs_little_who_polls_a_nic, .timeout = 30) {
    NicWire wire;
    watch(wire, Calls::kMost);
    RVT_ASSERT(wire.calls.pause(Calls::kMost - 1) >= 20ms);  // the first ones are shorter
}

Test(wire_watch, sleeps_ever_longer_where_nothing_comes_or_is_due, .timeout = 30) {
    QuietWire wire(~std::uint64_t{0});
    watch(wire, 4);
    for (std::size_t i = 1; i < 4; ++i) {
        RVT_ASSERT(wire.calls.pause(i) >= 50ms * (1U << i));
    }
}

Test(wire_watch, looks_every_50_ms_while_something_is_due_some_time, .timeout = 30) {
    QuietWire wire(1'000'000'000);
    const Clock::time_point before = Clock::now();
    watch(wire, 9);
    RVT_ASSERT(Clock::now() - before < 50ms * (1 + 2 + 4 + 8 + 5 * 16));
}

Test(wire_watch, answers_at_once_for_an_owner_who_is_away, .timeout = 30) {
    AwayWire wire;
    const Watched watched(wire, [&](WireWatch& watch) {
        wire.begin(watch);
        wire.bring_packet_to(watch);
        RVT_EQ(wire.traffic, 2);
    });
}

Test(wire_watch, polls_no_longer_than_pays_for_an_owner_who_is_away, .timeout = 30) {
    AwayWire wire;
    unsigned brief = 0;
    const Watched watched(wire, [&](WireWatch& watch) {
        wire.begin(watch);
        for (int i = 0; i < 200; ++i) {
            const unsigned before = wire.polls;
            wire.bring_packet_to(watch);
            // One that found it, one that found nothing, unless the turn was over before.
            brief += wire.polls - before <= 2 ? 1 : 0;
        }
    });
    RVT_ASSERT(brief >= 100);  // some are long where others want the processor
}

Test(wire_watch, goes_on_where_something_comes_while_it_leaves, .timeout = 30) {
    AwayWire wire;
    wire.refused = 3;
    const Watched watched(wire, [&](WireWatch& watch) {
        wire.begin(watch);
        while (wire.let_gos <= wire.refused) {
            watch.on_timer();  // its turn may have been over
        }
        RVT_ASSERT(wire.polls > wire.let_gos);  // before each, and the one that found the packet
        wire.bring_packet_to(watch);
        RVT_EQ(wire.traffic, 2);  // at once: it has been left to the watch
    });
}

// In a set, each packet costs who sends or receives it more.
Test(wire_watch, has_what_it_watches_in_a_set_only_until_something_comes, .timeout = 30) {
    CountingWire wire;
    Watched watched(wire);
    wait_until([&] { return wire.arrivals == 1; });
    RVT_EQ(sets_with(wire.wire_fd()), 0);
    eventfd_t taken = 0;
    RVT_EQ(eventfd_read(wire.wire_fd(), &taken), 0);
    watched.watch->leave_to_watch();
    RVT_EQ(sets_with(wire.wire_fd()), 1);
    watched.watch->leave_to_watch();  // another one who polls may find it quiet, too
    RVT_EQ(sets_with(wire.wire_fd()), 1);
    RVT_EQ(eventfd_write(wire.wire_fd(), 1), 0);
    wait_until([&] { return wire.arrivals == 2; });
    RVT_EQ(sets_with(wire.wire_fd()), 0);
}

// A file, which the kernel takes into no set, stands for a set that has no room.
Test(wire_watch, leaves_the_wire_to_its_owner_where_it_cannot_watch, .timeout = 30) {
    CountingWire wire;
    Watched watched(wire);
    wait_until([&] { return wire.arrivals == 1 && watched.is_hot; });
    const UniqueFd watchable(dup(wire.wire_fd()));
    const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
    RVT_EQ(dup2(file.get(), wire.wire_fd()), wire.wire_fd());
    bool is_left = true;
    watched.run([&] {
        watched.is_hot = false;
        watched.watch->leave_to_watch();
        is_left = !watched.is_hot;
    });
    RVT_ASSERT(not(is_left));
    RVT_EQ(dup2(watchable.get(), wire.wire_fd()), wire.wire_fd());
}
