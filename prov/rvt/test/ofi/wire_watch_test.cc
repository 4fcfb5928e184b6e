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

/// A wire on which something has arrived, and an owner who was interrupted amid a poll.
class HeldWire final : public WatchedWire {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::size_t kCalls = 5;

    std::uint64_t owner_polls() const noexcept override { return 0; }
    bool poll_for_owner() noexcept override {
        if (calls < kCalls) {
            times[calls] = Clock::now();
            ++calls;
        }
        return false;
    }
    bool send_held() noexcept override { return true; }
    std::uint64_t wire_due_us() noexcept override { return ~std::uint64_t{0}; }
    std::uint64_t wire_now_us() noexcept override { return 0; }
    int wire_fd() noexcept override { return fd.get(); }

    UniqueFd fd{eventfd(1, EFD_CLOEXEC)};
    std::array<Clock::time_point, kCalls> times;
    std::atomic<std::size_t> calls{0};
};

}  // namespace

Test(wire_watch, leaves_the_processor_to_an_owner_who_is_inside_a_poll, .timeout = 30) {
    HeldWire wire;
    std::atomic<bool> is_hot{false};
    const auto thread = ControlThread::acquire().take();
    std::optional<WireWatch> watch;
    thread->run([&] {
        watch.emplace(*thread, wire, is_hot);
        RVT_OK(watch->start());
    });
    while (wire.calls < HeldWire::kCalls) {
        std::this_thread::yield();
    }
    thread->run([&] { watch.reset(); });
    for (std::size_t i = 1; i < HeldWire::kCalls; ++i) {
        RVT_ASSERT(wire.times[i] - wire.times[i - 1] >= 1ms);
    }
}
