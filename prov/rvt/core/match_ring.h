// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the two queues of the matching engine have in common: entries in order of arrival in a ring
// whose holes (entries taken from the middle) are skipped and closed lazily.
//
// A short ring lies in the object. A long one is on the heap, and then the queue keeps indexes of
// positions; it comes back into the object when it is nearly empty, and large memory goes back to
// the system.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "core/match_bins.h"
#include "util/cpu.h"
#include "util/status.h"

namespace rvt::core {

/// What the caller's record must offer: a word where a long queue notes the record's position.
template <class T>
concept Matchable = requires(T record) {
    { record.match_slot } -> std::same_as<std::uint32_t&>;
};

/// Entry: trivially copyable, with a member `payload` that is nullptr in a hole.
///
/// Invariant: the entries at head_ and tail_ - 1 are no holes.
template <class Entry>
class MatchRing {
  public:
    static constexpr std::uint32_t kShortEntries = 64;  // above, the queue is long
    static constexpr std::uint32_t kShortAgain =
        12;  // at this many entries a long queue becomes short
    static constexpr std::uint32_t kKeptEntries =
        1024;  // up to this size a short queue keeps the long ring's memory
    static constexpr std::uint32_t kMaxEntries = 1u << 30;

    MatchRing() = default;
    ~MatchRing() { std::free(heap_); }
    MatchRing(const MatchRing&) = delete;
    MatchRing& operator=(const MatchRing&) = delete;

    RVT_ALWAYS_INLINE Entry& at(std::uint32_t pos) noexcept { return slots_[pos & mask_]; }
    RVT_ALWAYS_INLINE std::uint32_t head() const noexcept { return head_; }
    RVT_ALWAYS_INLINE std::uint32_t tail() const noexcept { return tail_; }
    RVT_ALWAYS_INLINE std::uint32_t size() const noexcept { return live_; }
    RVT_ALWAYS_INLINE bool is_long() const noexcept { return slots_ != short_; }
    RVT_ALWAYS_INLINE bool is_full() const noexcept { return tail_ - head_ > mask_; }
    /// Whether append() may be called on a short ring as it is.
    RVT_ALWAYS_INLINE bool has_short_room() const noexcept { return tail_ - head_ < short_room_; }
    std::uint32_t capacity() const noexcept { return mask_ + 1; }
    /// Entries of heap memory held.
    std::uint32_t heap_capacity() const noexcept { return heap_capacity_; }

    /// Precondition: not full. Returns: the position.
    RVT_ALWAYS_INLINE std::uint32_t append(const Entry& entry) noexcept {
        at(tail_) = entry;
        ++live_;
        return tail_++;
    }

    RVT_ALWAYS_INLINE void erase(std::uint32_t pos) noexcept {
        at(pos).payload = nullptr;
        --live_;
        if (live_ == 0) {
            head_ = tail_ = 0;  // the next entry uses the same cache line again
            return;
        }
        while (at(head_).payload == nullptr) {
            ++head_;
        }
        while (at(tail_ - 1).payload == nullptr) {
            --tail_;
        }
    }

    /// Moves all entries to the front, in order. Positions change.
    [[gnu::noinline]] void compact() noexcept {
        std::uint32_t to = head_;
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            if (at(pos).payload != nullptr) {
                at(to++) = at(pos);
            }
        }
        tail_ = to;
    }

    /// Doubles the ring; a short one becomes long. Positions stay.
    /// Returns: ENOMEM, and then nothing has changed.
    [[gnu::noinline]] util::Status grow() noexcept {
        const std::uint32_t wanted = 2 * capacity();
        Entry* heap = heap_;
        if (is_long() || heap_capacity_ < wanted) {
            if (wanted > kMaxEntries) {
                return ENOMEM;
            }
            heap =
                static_cast<Entry*>(std::aligned_alloc(util::kCacheLine, sizeof(Entry) * wanted));
            if (heap == nullptr) {
                return ENOMEM;
            }
        }
        const std::uint32_t new_capacity = heap == heap_ ? heap_capacity_ : wanted;
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            heap[pos & (new_capacity - 1)] = at(pos);
        }
        if (heap != heap_) {
            std::free(std::exchange(heap_, heap));
        }
        slots_ = heap;
        heap_capacity_ = new_capacity;
        mask_ = new_capacity - 1;
        short_room_ = 0;
        return util::kOk;
    }

    /// Takes the entries back into the object. Positions change. Precondition: they fit there.
    [[gnu::noinline]] void shrink() noexcept {
        std::uint32_t to = 0;
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            if (at(pos).payload != nullptr) {
                short_[to++] = at(pos);
            }
        }
        head_ = 0;
        tail_ = to;
        slots_ = short_;
        mask_ = kShortEntries - 1;
        short_room_ = kShortEntries;
        if (heap_capacity_ > kKeptEntries) {
            release_heap();
        }
    }

    /// Forgets all entries and gives the memory back.
    void reset() noexcept {
        live_ = 0;
        head_ = tail_ = 0;
        shrink();
        release_heap();
    }

  private:
    void release_heap() noexcept {
        std::free(std::exchange(heap_, nullptr));
        heap_capacity_ = 0;
    }

    Entry* slots_ = short_;
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
    std::uint32_t live_ = 0;
    std::uint32_t mask_ = kShortEntries - 1;
    std::uint32_t short_room_ = kShortEntries;  // 0 while the ring is long
    std::uint32_t heap_capacity_ = 0;
    Entry* heap_ = nullptr;
    alignas(util::kCacheLine) Entry short_[kShortEntries];
};

}  // namespace rvt::core
