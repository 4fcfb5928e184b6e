// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The table of queue pairs.
#include "core/qp_table.h"

#include "rvt/types.h"
#include "util/cpu.h"

#include <bit>

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
      slots_(std::make_unique<Slot[]>(slots_count_)) {
    // The first numbers of a device differ from run to run: a message to an earlier process misses.
    next_ = static_cast<std::uint32_t>(util::cpu_ticks()) & (slots_count_ - 1);
    const auto start = static_cast<std::uint32_t>(util::cpu_ticks() >> 8);
    for (std::uint32_t i = 0; i < slots_count_; ++i) {
        // relaxed: nobody else sees the table yet.
        slots_[i].qpn.store(((start * slots_count_) & kQpnMask) | i, std::memory_order_relaxed);
    }
}

std::uint32_t QpTable::next_number(std::uint32_t index) noexcept {
    // relaxed: only holders of the lock write it.
    std::uint32_t qpn = slots_[index].qpn.load(std::memory_order_relaxed);
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
    Slot& slot = slots_[qpn & (slots_count_ - 1)];
    // relaxed: only holders of the lock write it.
    if (slot.qp.load(std::memory_order_relaxed) != nullptr) {
        return EADDRINUSE;
    }
    ++used_;
    // relaxed: published by the next store.
    slot.qpn.store(qpn, std::memory_order_relaxed);
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

Qp* QpTable::find(std::uint32_t qpn) const noexcept {
    const Slot& slot = slots_[qpn & (slots_count_ - 1)];
    // acquire: pairs with the release in add().
    Qp* qp = slot.qp.load(std::memory_order_acquire);
    // relaxed: while the caller's pin keeps qp, its number does not change.
    return slot.qpn.load(std::memory_order_relaxed) == qpn ? qp : nullptr;
}

std::uint32_t QpTable::size() const noexcept {
    const util::Guard guard(lock_);
    return used_;
}

}  // namespace rvt::core
