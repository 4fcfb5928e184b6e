// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Queue pair numbers: gives them out, and finds the pair that a number names without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "rvt/status.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

class Qp;

/// A number is [ generation | index ], 24 bits. Numbers 0, 1 and 0xffffff are never given out, and
/// the number of a destroyed pair comes back as late as it can, so that late messages to it find
/// nobody.
class QpTable {
  public:
    /// @param max_qp  Pairs at a time; rounded up to a power of two.
    explicit QpTable(std::uint32_t max_qp);

    /// @param wanted  The number to give; 0: any.
    /// Returns: ENOMEM when all numbers are taken, EADDRINUSE when the place of the wanted one is,
    ///          EINVAL for a number that is never given out.
    Result<std::uint32_t> add(Qp& qp, std::uint32_t wanted = 0);
    void remove(std::uint32_t qpn) noexcept;

    /// Threads: any that holds a ReadPin; the pair lives until the pin is let go.
    [[nodiscard]] Qp* find(std::uint32_t qpn) const noexcept {
        const std::uint32_t index = qpn & (slots_count_ - 1);
        // acquire: pairs with the release in add().
        Qp* const qp = slots_[index].qp.load(std::memory_order_acquire);
        return number_in(index) == qpn ? qp : nullptr;
    }

    /// Calls `visit(qp)` for each pair. Threads: any that holds a ReadPin.
    template <class Visit>
    void for_each(Visit visit) const {
        for (std::uint32_t i = 0; i < slots_count_; ++i) {
            // acquire: pairs with the release in add().
            if (Qp* qp = slots_[i].qp.load(std::memory_order_acquire)) {
                visit(*qp);
            }
        }
    }

    [[nodiscard]] std::uint32_t size() const noexcept;

  private:
    /// All bits are 0 where no pair has been yet: most of a table is never touched, and takes no
    /// memory.
    ///
    /// field | written by  | read by | order
    /// turn  | lock holder | find()  | before qp is published, after it is taken back
    /// qp    | lock holder | find()  | release / acquire
    struct Slot {
        std::atomic<Qp*> qp;
        std::atomic<std::uint32_t> turn;  // its number, less the first one of the place
    };
    struct Free {
        void operator()(Slot* slots) const noexcept { std::free(slots); }
    };

    static std::unique_ptr<Slot[], Free> make_slots(std::uint32_t count);
    [[nodiscard]] std::uint32_t first_number(std::uint32_t index) const noexcept {
        return first_ | index;
    }
    /// The number in the place, whether or not a pair has it now.
    [[nodiscard]] std::uint32_t number_in(std::uint32_t index) const noexcept {
        // relaxed: the caller holds the lock, or a pin that keeps the pair and so its number.
        const std::uint32_t turn = slots_[index].turn.load(std::memory_order_relaxed);
        return (first_number(index) + turn) & kQpnMask;
    }

    [[nodiscard]] std::uint32_t next_number(std::uint32_t index) noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] std::uint32_t next_number() noexcept RVT_REQUIRES(lock_);

    const std::uint32_t slots_count_;
    const std::uint32_t first_;  // generation of the first numbers
    const std::unique_ptr<Slot[], Free> slots_;
    mutable util::Mutex lock_;  // order: innermost
    std::uint32_t next_ RVT_GUARDED_BY(lock_) = 0;
    std::uint32_t used_ RVT_GUARDED_BY(lock_) = 0;
};

}  // namespace rvt::core
