// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The table of queue pairs.
#include "core/qp_table.h"

#include "rvt/types.h"
#include "util/cpu.h"

#include <bit>
#include <new>

namespace rvt::core {
namespace {

constexpr std::uint32_t kMinSlots = 4;
constexpr std::uint32_t kMaxSlots = 1u << 18;  // leaves six bits of generation

bool is_given_out(std::uint32_t qpn) noexcept {
    return qpn > 1 && qpn < kMulticastQpn;
}

}  // namespace

QpTable::QpTable(std::uint32_t max_qp)
    : slots_count_(std::bit_ceil(max_qp < kMinSlots   ? kMinSlots
                                 : max_qp > kMaxSlots ? kMaxSlots
                                                      : max_qp)),
      // The first numbers of a device differ from run to run: a message to an earlier process
      // misses.
      first_((static_cast<std::uint32_t>(util::cpu_ticks() >> 8) * slots_count_) & kQpnMask),
      slots_(make_slots(slots_count_)),
      next_(static_cast<std::uint32_t>(util::cpu_ticks()) & (slots_count_ - 1)) {}

std::unique_ptr<QpTable::Slot[], QpTable::Free> QpTable::make_slots(std::uint32_t count) {
    auto* const slots = static_cast<Slot*>(std::calloc(count, sizeof(Slot)));
    if (slots == nullptr) {
        throw std::bad_alloc();
    }
    return std::unique_ptr<Slot[], Free>(slots);
}

std::uint32_t QpTable::next_number(std::uint32_t index) noexcept {
    std::uint32_t qpn = number_in(index);
    do {
        qpn = (qpn + slots_count_) & kQpnMask;
    } while (!is_given_out(qpn));
    return qpn;
}

/// The next number of the next free place. Precondition: there is one.
std::uint32_t QpTable::next_number() noexcept {
    // relaxed: only holders of the lock write it.
    while (slots_[next_].qp.load(std::memory_order_relaxed) != nullptr) {
        next_ = (next_ + 1) & (slots_count_ - 1);
    }
    const std::uint32_t qpn = next_number(next_);
    next_ = (next_ + 1) & (slots_count_ - 1);
    return qpn;
}

Result<std::uint32_t> QpTable::add(Qp& qp, std::uint32_t wanted) {
    if (wanted != 0 && !is_given_out(wanted)) {
        return EINVAL;
    }
    const util::Guard guard(lock_);
    if (used_ == slots_count_) {
        return ENOMEM;
    }
    const std::uint32_t qpn = wanted != 0 ? wanted : next_number();
    const std::uint32_t index = qpn & (slots_count_ - 1);
    Slot& slot = slots_[index];
    // relaxed: only holders of the lock write it.
    if (slot.qp.load(std::memory_order_relaxed) != nullptr) {
        return EADDRINUSE;
    }
    ++used_;
    // relaxed: published by the next store.
    slot.turn.store((qpn - first_number(index)) & kQpnMask, std::memory_order_relaxed);
    // release: pairs with the acquire in find().
    slot.qp.store(&qp, std::memory_order_release);
    return qpn;
}

void QpTable::remove(std::uint32_t qpn) noexcept {
    const util::Guard guard(lock_);
    // release: pairs with the acquire in find(); the number stays, so the next one is higher.
    slots_[qpn & (slots_count_ - 1)].qp.store(nullptr, std::memory_order_release);
    --used_;
}

std::uint32_t QpTable::size() const noexcept {
    const util::Guard guard(lock_);
    return used_;
}

}  // namespace rvt::core
