// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The list of pin slots and the asymmetric fence between pinning threads and waiting ones.
#include "core/reader_pins.h"

#include "util/cpu.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rvt::core {
namespace {

std::atomic<PinSlot*> list_head{nullptr};

long membarrier(int command) noexcept {
    return syscall(SYS_membarrier, command, 0, 0);
}

/// In a forked child, which has one thread: those that were inside are not there, and their slots
/// may get other owners. Nobody forks under a pin.
void forget_pins() noexcept {
    // relaxed: here and below, there is one thread.
    for (PinSlot* s = list_head.load(std::memory_order_relaxed); s != nullptr; s = s->next) {
        s->depth = 0;
        const std::uint64_t phase = s->phase.load(std::memory_order_relaxed);
        s->phase.store(phase + (phase & 1), std::memory_order_relaxed);  // relaxed: as above
    }
}

[[maybe_unused]] const int kForgetsPins = pthread_atfork(nullptr, nullptr, forget_pins);

bool register_membarrier() noexcept {
    return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

}  // namespace

const bool pin_detail::kHasMembarrier = register_membarrier();

constinit thread_local PinSlot* pin_detail::of_thread = nullptr;

/// A store-load fence.
void pin_detail::full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
    // The thread sanitizer does not know fences, but it executes in order.
    static std::atomic<std::uint32_t> word{0};
    // pairs with the same exchange on the other side: the two are in one order.
    word.exchange(0, std::memory_order_seq_cst);
#else
    // pairs with the same fence on the other side: one of the two sees the other's store.
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

namespace {

/// Between the invalidation of a key entry and the first load of a pin.
void heavy_fence() noexcept {
    pin_detail::full_fence();
    if (pin_detail::kHasMembarrier) {
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    }
}

// Of the calling thread: what had a destructor is gone. It may pin all the same: thread storage
// ends before the destructors of pthread_key_create(3), and that of the main thread before what
// atexit(3) has been given.
constinit thread_local bool storage_has_ended = false;

struct ThreadSlot {
    PinSlot& slot = take_pin_slot();
    ThreadSlot() = default;
    ~ThreadSlot() {
        pin_detail::of_thread = nullptr;
        storage_has_ended = true;
        free_pin_slot(slot);
    }
    ThreadSlot(const ThreadSlot&) = delete;
    ThreadSlot& operator=(const ThreadSlot&) = delete;
};

}  // namespace

PinSlot& take_pin_slot() noexcept {
    // acquire: pairs with the release below; a slot found in the list has its `next`.
    for (PinSlot* s = list_head.load(std::memory_order_acquire); s != nullptr; s = s->next) {
        bool free = false;
        // acquire: pairs with the release in free_pin_slot(); the last holder's phase is even.
        if (s->taken.compare_exchange_strong(free, true, std::memory_order_acquire)) {
            return *s;
        }
    }
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without it no thread may read at all
    auto* slot = new PinSlot;  // kept for good: a waiter may be reading it at any time
    // relaxed: nobody else sees the slot yet.
    slot->taken.store(true, std::memory_order_relaxed);
    // relaxed: the exchange below re-reads it where it was too old.
    slot->next = list_head.load(std::memory_order_relaxed);
    // release: pairs with the acquire loads of the list's head.
    while (!list_head.compare_exchange_weak(slot->next, slot, std::memory_order_release)) {
    }
    return *slot;
}

void free_pin_slot(PinSlot& slot) noexcept {
    // release: pairs with the acquire in take_pin_slot().
    slot.taken.store(false, std::memory_order_release);
}

PinSlot& pin_detail::take_of_thread() noexcept {
    if (storage_has_ended) [[unlikely]] {
        of_thread = &take_pin_slot();  // kept for good: nothing tells when the thread calls no more
        return *of_thread;
    }
    static thread_local ThreadSlot mine;
    of_thread = &mine.slot;
    return mine.slot;
}

ReaderWait::ReaderWait() noexcept : slot_(nullptr), phase_(0) {
    heavy_fence();
    // acquire: pairs with the release in take_pin_slot().
    slot_ = list_head.load(std::memory_order_acquire);
    if (slot_ != nullptr) {
        // acquire: pairs with the release in leave(), where the pin has been let go already.
        phase_ = slot_->phase.load(std::memory_order_acquire);
    }
}

bool ReaderWait::readers_are_gone() noexcept {
    while (slot_ != nullptr) {
        // acquire: pairs with the release in leave().
        const std::uint64_t now = slot_->phase.load(std::memory_order_acquire);
        const bool was_inside = (phase_ & 1) != 0;
        if (was_inside && now == phase_) {
            return false;
        }
        slot_ = slot_->next;
        if (slot_ != nullptr) {
            // acquire: pairs with the release in leave(). Read later than at construction, so a
            // pin taken meanwhile is waited for too: longer than needed, never too short.
            phase_ = slot_->phase.load(std::memory_order_acquire);
        }
    }
    return true;
}

}  // namespace rvt::core
