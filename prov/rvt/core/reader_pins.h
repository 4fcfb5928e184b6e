// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Pins: a thread that is about to look up a key and touch the memory behind it pins itself first,
// and who takes memory away waits until each thread that was pinned has let go. Pinning is two
// plain stores to a line of the thread's own; the side that waits pays for the ordering.
#pragma once

#include <atomic>
#include <cstdint>

namespace rvt::core {

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

    void enter() noexcept;
    void leave() noexcept;
};
static_assert(sizeof(PinSlot) == 64);

/// The calling thread's slot. The first call of a thread takes one, the thread's end frees it.
/// An engine that is only ever entered by one thread at a time may own a slot instead.
PinSlot& thread_pin_slot() noexcept;

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
