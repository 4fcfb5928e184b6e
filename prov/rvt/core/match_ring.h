// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the two queues of the matching engine have in common: entries in order of arrival in a ring.
//
// A short ring lies in the object and has no holes: an entry taken from the middle is closed up at
// once. A long ring is on the heap; there the entry leaves a hole that is skipped and closed
// lazily, so that positions stay what they are and the queue can keep indexes of them. Bits say
// where the holes are: an entry that an index has found is taken out without a look at it. A ring
// becomes short again when it is nearly empty, and then large memory goes back to the system.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/match_links.h"
#include "util/cpu.h"
#include "util/status.h"
#include "util/table_memory.h"

namespace rvt::core {

/// Entry: trivially copyable, with a member `payload` that points to a record (Matchable).
///
/// Invariant: the entries at head() and tail() - 1 are no holes.
template <class Entry>
class MatchRing {
  public:
    static constexpr std::uint32_t kShortEntries = 64;  // above, the queue is long
    static constexpr std::uint32_t kShortAgain =
        12;  // at this many entries a long queue becomes short
    static constexpr std::uint32_t kKeptEntries =
        1024;  // up to this size the memory of a long ring is kept
    static constexpr std::uint32_t kMaxEntries = 1u << 30;

    MatchRing() = default;
    ~MatchRing() { std::free(heap_); }
    MatchRing(const MatchRing&) = delete;
    MatchRing& operator=(const MatchRing&) = delete;

    RVT_ALWAYS_INLINE Entry& at(std::uint32_t pos) noexcept { return slots_[pos & mask_]; }
    RVT_ALWAYS_INLINE std::uint32_t head() const noexcept { return head_; }
    RVT_ALWAYS_INLINE std::uint32_t tail() const noexcept { return tail_; }
    RVT_ALWAYS_INLINE std::uint32_t size() const noexcept {
        return is_long() ? live_ : tail_ - head_;
    }
    RVT_ALWAYS_INLINE bool is_long() const noexcept { return short_room_ == 0; }
    std::uint32_t capacity() const noexcept { return mask_ + 1; }
    /// Entries of heap memory held, and what they take in bytes.
    std::uint32_t heap_capacity() const noexcept { return heap_capacity_; }
    std::size_t memory() const noexcept { return bytes_of(heap_capacity_); }
    /// Whether there is an entry, or a hole. Precondition: head() <= pos < tail().
    RVT_ALWAYS_INLINE bool has_entry(std::uint32_t pos) const noexcept {
        return !is_long() || ((bits_[(pos & mask_) / 64] >> (pos % 64)) & 1) != 0;
    }

    /// Appends an entry to a short ring, to be written in place (core/cq.h says why).
    /// Returns: nullptr when the ring is full or long; use append_long().
    RVT_ALWAYS_INLINE Entry* append_short() noexcept {
        if (tail_ - head_ >= short_room_) [[unlikely]] {
            return nullptr;
        }
        return &short_[tail_++ & (kShortEntries - 1)];
    }

    /// Takes the oldest entry of a short ring out if it `fits(entry)`. Returns: its record, or
    /// nullptr.
    template <class Fits>
    RVT_ALWAYS_INLINE auto* take_oldest_short(Fits fits) noexcept {
        const Entry& oldest = short_[head_ & (kShortEntries - 1)];
        auto* const record = head_ != tail_ && fits(oldest) ? oldest.payload : nullptr;
        head_ += record != nullptr ? 1 : 0;
        return record;
    }
    /// The position of the oldest entry of a short ring that `fits(entry)`, or tail().
    template <class Fits>
    RVT_ALWAYS_INLINE std::uint32_t find_short(Fits fits) const noexcept {
        std::uint32_t pos = head_;
        while (pos != tail_ && !fits(short_[pos & (kShortEntries - 1)])) {
            ++pos;
        }
        return pos;
    }
    /// The position of the oldest entry of a long ring that `fits(entry)` before `end`, or `end`.
    template <class Fits>
    std::uint32_t search(Fits fits, std::uint32_t end) noexcept {
        std::uint32_t pos = head_;
        while (pos != end && !(fits(at(pos)) && has_entry(pos))) {
            ++pos;
        }
        return pos;
    }

    /// The oldest record for which `is_it(record)` holds, or nullptr.
    template <class IsIt>
    auto* find_record(IsIt is_it) {
        std::uint32_t pos = head_;
        while (pos != tail_ && (!has_entry(pos) || !is_it(*at(pos).payload))) {
            ++pos;
        }
        return pos == tail_ ? nullptr : at(pos).payload;
    }

    /// One near `pos` for which the same holds, closer ones being asked first, or nullptr.
    /// Precondition: the ring is long.
    template <class IsIt>
    auto* find_near(std::uint32_t pos, IsIt is_it) {
        const std::uint32_t middle = is_older(pos, head_)   ? head_
                                     : is_older(tail_, pos) ? tail_
                                                            : pos;
        const auto is_at = [&](std::uint32_t where) {
            return where - head_ < tail_ - head_ && has_entry(where) && is_it(*at(where).payload);
        };
        for (std::uint32_t distance = 0; distance < kNear; ++distance) {
            for (const std::uint32_t where : {middle + distance, middle - distance - 1}) {
                if (is_at(where)) {
                    return at(where).payload;
                }
            }
        }
        return decltype(Entry::payload){};
    }

    /// The record that a program which goes on in the order of the ring will want some records
    /// after the one at `pos`; for prefetching only, as it may be gone. nullptr at the end.
    auto* record_ahead(std::uint32_t pos) noexcept {
        constexpr std::uint32_t kRecords = 16;
        return tail_ - pos > kRecords ? at(pos + kRecords).payload : nullptr;
    }

    /// The first position from `pos` on that holds an entry, or tail().
    std::uint32_t skip_holes(std::uint32_t pos) noexcept {
        while (pos != tail_ && !has_entry(pos)) {
            ++pos;
        }
        return pos;
    }

    /// Takes an entry of a short ring out. Returns: its record.
    RVT_ALWAYS_INLINE auto* take_short(std::uint32_t pos) noexcept {
        auto* record = short_[pos & (kShortEntries - 1)].payload;
        if (pos == head_) [[likely]] {
            ++head_;
        } else {
            close_gap(pos);
        }
        return record;
    }

    /// Appends an entry to a ring that is or becomes long, to be written in place; the record notes
    /// tail() as its match_slot. Precondition: has_room().
    RVT_ALWAYS_INLINE Entry& append_long() noexcept {
        ++live_;
        set_bit(tail_);
        return at(tail_++);
    }
    bool has_room() const noexcept { return tail_ - head_ <= mask_; }

    /// Takes an entry of a long ring out. tail() can go back, even to a position used before.
    void erase_long(std::uint32_t pos) noexcept {
        clear_bit(pos);
        if (--live_ == 0) {
            head_ = tail_;
            return;
        }
        while (!has_entry(head_)) {
            ++head_;
        }
        while (!has_entry(tail_ - 1)) {
            --tail_;
        }
    }

    /// Closes the holes in the emptier half of a long ring; in order, calls moved(from, to) for
    /// each entry there, also where both are the same. Precondition: no more than half of the ring
    /// is in use, so that a quarter of it becomes free.
    template <class Moved>
    [[gnu::noinline]] void compact(Moved moved) noexcept {
        const std::uint32_t middle = head_ + (tail_ - head_) / 2;
        if (count_entries(middle) <= live_ / 2) {
            std::uint32_t to = middle;
            for (std::uint32_t pos = middle; pos-- != head_;) {
                announce(pos - head_ >= kAhead ? pos - kAhead : pos);
                move_into_hole(pos, to - 1, moved) ? void(--to) : void();
            }
            head_ = to;
        } else {
            std::uint32_t to = middle;
            for (std::uint32_t pos = middle; pos != tail_; ++pos) {
                announce(tail_ - pos > kAhead ? pos + kAhead : pos);
                move_into_hole(pos, to, moved) ? void(++to) : void();
            }
            tail_ = to;
        }
    }

    /// Doubles the ring; a short one becomes long. Positions stay.
    /// Returns: ENOMEM, and then nothing has changed.
    [[gnu::noinline]] util::Status grow() noexcept {
        const bool is_kept = !is_long() && heap_ != nullptr;
        const std::uint32_t wanted = is_kept ? heap_capacity_ : 2 * capacity();
        if (wanted > kMaxEntries) {
            return ENOMEM;
        }
        Entry* heap = is_kept ? heap_ : static_cast<Entry*>(util::allocate_table(bytes_of(wanted)));
        if (heap == nullptr) {
            return ENOMEM;
        }
        auto* const bits = reinterpret_cast<std::uint64_t*>(heap + wanted);
        std::memset(bits, 0, wanted / 8);
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            const std::uint32_t slot = pos & (wanted - 1);
            heap[slot] = at(pos);
            bits[slot / 64] |= std::uint64_t{has_entry(pos)} << (slot % 64);
        }
        if (!is_long()) {
            become_long();
        }
        if (heap != heap_) {
            std::free(std::exchange(heap_, heap));
        }
        slots_ = heap;
        bits_ = bits;
        heap_capacity_ = wanted;
        mask_ = wanted - 1;
        return util::kOk;
    }

    /// Takes the entries back into the object. Positions change. Precondition: they fit there.
    [[gnu::noinline]] void shrink() noexcept {
        std::uint32_t to = kFirstPosition;
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            if (has_entry(pos)) {
                short_[to++ & (kShortEntries - 1)] = at(pos);
            }
        }
        head_ = kFirstPosition;
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
        head_ = tail_;
        shrink();
        release_heap();
    }

  private:
    static constexpr std::uint32_t kAhead = 24;  // positions; most of them may be holes
    static constexpr std::uint32_t kNear = 16;   // positions, on each side

    /// The entries, and behind them a bit for each.
    static constexpr std::size_t bytes_of(std::uint32_t entries) noexcept {
        return sizeof(Entry) * entries + entries / 8;
    }
    void set_bit(std::uint32_t pos) noexcept {
        bits_[(pos & mask_) / 64] |= std::uint64_t{1} << (pos % 64);
    }
    void clear_bit(std::uint32_t pos) noexcept {
        bits_[(pos & mask_) / 64] &= ~(std::uint64_t{1} << (pos % 64));
    }

    void become_long() noexcept {
        live_ = tail_ - head_;
        short_room_ = 0;
        for (std::uint32_t pos = head_; pos != tail_; ++pos) {
            at(pos).payload->match_slot = pos;
        }
    }

    /// How many there are before `end`.
    std::uint32_t count_entries(std::uint32_t end) const noexcept {
        std::uint32_t count = 0;
        for (std::uint32_t pos = head_; pos != end; ++pos) {
            count += std::uint32_t{has_entry(pos)};
        }
        return count;
    }

    void announce(std::uint32_t pos) noexcept {
        if (has_entry(pos)) {
            util::prefetch_write(&at(pos).payload->match_slot);
        }
    }

    // Returns: false when there is no entry at `from`.
    template <class Moved>
    bool move_into_hole(std::uint32_t from, std::uint32_t to, Moved& moved) noexcept {
        if (!has_entry(from)) {
            return false;
        }
        if (from != to) {
            at(to) = at(from);
            set_bit(to);
            clear_bit(from);
            at(to).payload->match_slot = to;
        }
        moved(from, to);
        return true;
    }

    // Moves the shorter part of a short ring over the entry at `pos`.
    [[gnu::noinline]] void close_gap(std::uint32_t pos) noexcept {
        constexpr std::uint32_t kMask = kShortEntries - 1;
        if (pos - head_ < tail_ - pos) {
            for (; pos != head_; --pos) {
                short_[pos & kMask] = short_[(pos - 1) & kMask];
            }
            ++head_;
        } else {
            --tail_;
            for (; pos != tail_; ++pos) {
                short_[pos & kMask] = short_[(pos + 1) & kMask];
            }
        }
    }

    void release_heap() noexcept {
        std::free(std::exchange(heap_, nullptr));
        heap_capacity_ = 0;
    }

    // Positions wrap. They start shortly before that, so that it is nothing rare.
    static constexpr std::uint32_t kFirstPosition = 0u - 128;

    std::uint32_t head_ = kFirstPosition;
    std::uint32_t tail_ = kFirstPosition;
    std::uint32_t short_room_ = kShortEntries;  // 0 while the ring is long
    std::uint32_t mask_ = kShortEntries - 1;
    Entry* slots_ = short_;
    std::uint32_t live_ = 0;  // while the ring is long
    std::uint32_t heap_capacity_ = 0;
    Entry* heap_ = nullptr;
    std::uint64_t* bits_ = nullptr;  // behind the entries in heap_, while the ring is long
    alignas(util::kCacheLine) Entry short_[kShortEntries];
};

}  // namespace rvt::core
