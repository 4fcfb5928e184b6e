// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Pins: a thread that is about to look up a key and touch the memory behind it pins itself first,
// and who takes memory away waits until each thread that was pinned has let go. Pinning is two
// plain stores to a line of the thread's own; the side that waits pays for the ordering.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/cpu.h"

namespace rvt::core {

namespace pin_detail {
/// Whether the waiting side can order the pinning side's store and load for it.
extern const bool kHasMembarrier;
void full_fence() noexcept;
}  // namespace pin_detail

/// The pin word of one thread. Odd while the thread is inside, one higher at each way in and out.
///
/// field  | written by  | read by          | order
/// phase  | its thread  | waiting threads  | see enter(), leave() and readers_are_gone()
/// depth  | its thread  | its thread       | plain
struct alignas(64) PinSlot {
    std::atomic<std::uint64_t> phase{0};
    std::uint32_t depth = 0;
    std::atomic<bool> taken{false};
    PinSlot* next = nullptr;

    void enter() noexcept {
        if (depth++ != 0) {
            return;
        }
        // relaxed: only this thread writes it; the fence orders the store before the first load of
        // a key entry.
        phase.store(phase.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        if (pin_detail::kHasMembarrier) [[likely]] {
            util::compiler_barrier();  // that of who waits is the other half
        } else {
            pin_detail::full_fence();
        }
    }
    void leave() noexcept {
        if (--depth != 0) {
            return;
        }
        // release: pairs with the acquire in readers_are_gone(); accesses made under the pin are
        // over. The load: only this thread writes it.
        phase.store(phase.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
};
static_assert(sizeof(PinSlot) == 64);

namespace pin_detail {
// Without a destructor of its own, so that no access has to look whether it exists.
extern constinit thread_local PinSlot* of_thread;
PinSlot& take_of_thread() noexcept;
}  // namespace pin_detail

/// The calling thread's slot. The first call of a thread takes one, the end of its thread storage
/// frees it; who calls later still has another one, which nobody gets after it.
/// An engine that is only ever entered by one thread at a time may own a slot instead.
inline PinSlot& thread_pin_slot() noexcept {
    PinSlot* const known = pin_detail::of_thread;
    return known != nullptr ? *known : pin_detail::take_of_thread();
}

/// Adds a slot that is not a thread's own to those that are waited for; see thread_pin_slot().
PinSlot& take_pin_slot() noexcept;
void free_pin_slot(PinSlot& slot) noexcept;

/// Holds the pin for a scope. Pins nest.
class ReadPin {
  public:
    explicit ReadPin(PinSlot& slot = thread_pin_slot()) noexcept : slot_(slot) { slot_.enter(); }
    ~ReadPin() { slot_.leave(); }
    ReadPin(const ReadPin&) = delete;
    ReadPin& operator=(const ReadPin&) = delete;

  private:
    PinSlot& slot_;
};

/// Waits for the pins that were held when it was made, and for no later one: who pins after the
/// caller's invalidation finds the key invalid.
///
/// Threads: one; not one that holds a pin itself (its own pin would never be seen to go).
/// Cost:    a membarrier(2) to make, then one line read for each thread at each question.
class ReaderWait {
  public:
    ReaderWait() noexcept;

    /// Whether each pin held at construction has been let go at least once since.
    bool readers_are_gone() noexcept;

  private:
    PinSlot* slot_;  // those before it in the list are known to have let go
    std::uint64_t phase_;
};

}  // namespace rvt::core
