// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When the control thread acts for the owner of a wire.
#include "wire_watch.h"

#include <criterion/criterion.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include <sys/eventfd.h>

#include "common/check.h"
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
    [[nodiscard]] bool are_all() const { return count_ == kMost; }
    /// How long before the call with this number the one before it was. Precondition: are_all().
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

/// Watches the wire until its calls are noted.
void watch(Wire& wire) {
    std::atomic<bool> is_hot{false};
    const auto thread = ControlThread::acquire().take();
    std::optional<WireWatch> watch;
    thread->run([&] {
        watch.emplace(*thread, wire, is_hot);
        RVT_OK(watch->start());
    });
    while (!wire.calls.are_all()) {
        std::this_thread::yield();
    }
    thread->run([&] { watch.reset(); });
}

}  // namespace

Test(wire_watch, leaves_the_processor_to_an_owner_who_is_inside_a_poll, .timeout = 30) {
    HeldWire wire;
    watch(wire);
    for (std::size_t i = 1; i < Calls::kMost; ++i) {
        RVT_ASSERT(wire.calls.pause(i) >= 1ms);
    }
}

Test(wire_watch, disturbs_little_who_polls_a_nic, .timeout = 30) {
    NicWire wire;
    watch(wire);
    RVT_ASSERT(wire.calls.pause(Calls::kMost - 1) >= 20ms);  // the first ones are shorter
}
