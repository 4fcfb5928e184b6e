// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A hash table from (tag, source) to the oldest record that carries them. The queues of the
// matching engine (match_posted_queue.h, match_unexpected_queue.h) keep such tables while they are
// long.
//
// The table has to be small more than anything: in a queue of 100,000 each look at it, and each at
// a record, is a cache line from far away. So it holds eight bytes for each key and a byte of its
// hash, and has the key compared in the record, which the caller needs next anyway. A bucket is one
// cache line: seven keys, and the number of those that found it full and went on to the next.
#pragma once

#include <bit>
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/match_links.h"
#include "util/cpu.h"
#include "util/status.h"
#include "util/table_memory.h"

namespace rvt::core {

/// The source of a receive that takes messages from anybody. No peer has this number.
inline constexpr std::uint32_t kAnySourceId = 0xffffffff;

/// What the caller's record must offer: a word where a long queue notes the record's position, and
/// the tag and the source with which it was pushed.
template <class T>
concept Matchable = requires(T record, const T& constant) {
    { record.match_slot } -> std::same_as<std::uint32_t&>;
    { constant.match_tag() } -> std::same_as<std::uint64_t>;
    { constant.match_source() } -> std::same_as<std::uint32_t>;
};

/// The usual hash of a key.
struct MatchHash {
    std::uint64_t operator()(std::uint64_t tag, std::uint32_t source) const noexcept {
        // An odd factor keeps tags in a row apart.
        const std::uint64_t factor = (std::uint64_t{source} << 1) ^ 0xd6e8feb86659fd93;
        const unsigned __int128 product =
            static_cast<unsigned __int128>(tag ^ 0x9e3779b97f4a7c15) * factor;
        return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
    }
};

template <Matchable Record, class Hash = MatchHash>
class MatchTable {
  public:
    /// The oldest record of one key. Valid until the next append() or removal.
    class Slot {
      public:
        Record* oldest() const noexcept { return reinterpret_cast<Record*>(word_ & ~kHasMore); }

      private:
        friend class MatchTable;
        static constexpr std::uintptr_t kHasMore = 1;  // links lead from the oldest to others

        void set(Record* record, bool has_more) noexcept {
            word_ = reinterpret_cast<std::uintptr_t>(record) | std::uintptr_t{has_more};
        }
        bool has_more() const noexcept { return (word_ & kHasMore) != 0; }

        std::uintptr_t word_;
    };

    MatchTable() = default;
    ~MatchTable() { std::free(buckets_); }
    MatchTable(const MatchTable&) = delete;
    MatchTable& operator=(const MatchTable&) = delete;

    /// From now on a key is the tag's bits in `care`, and the source, if `has_source`.
    /// Precondition: the table is empty.
    void set_key(std::uint64_t care, bool has_source) noexcept {
        care_ = care;
        no_source_ = has_source ? 0 : ~0u;
    }
    std::uint64_t care() const noexcept { return care_; }
    bool has_source() const noexcept { return no_source_ == 0; }

    /// Returns: nullptr when there is none.
    Slot* find(std::uint64_t tag, std::uint32_t source) noexcept {
        if (used_ == 0) {
            return nullptr;
        }
        const Key key = key_of(tag, source);
        return find(key, hash(key));
    }

    /// Asks for the memory in which find() will look first.
    void prefetch(std::uint64_t tag, std::uint32_t source) const noexcept {
        if (used_ != 0) {
            util::prefetch_write(buckets_ + (hash(key_of(tag, source)) & mask_));
        }
    }
    /// What find() will look at next; may be another record. Returns: nullptr when there is none.
    Record* likely(std::uint64_t tag, std::uint32_t source) const noexcept {
        if (used_ == 0) {
            return nullptr;
        }
        const std::uint64_t hashed = hash(key_of(tag, source));
        const Bucket& bucket = buckets_[hashed & mask_];
        const std::uint64_t here = bucket.slots_with(mark_of(hashed));
        return here == 0 ? nullptr : bucket.slots[first_of(here)].oldest();
    }

    /// Makes sure that the next append() finds room. Returns: ENOMEM, and then nothing has changed.
    util::Status reserve_one() noexcept { return used_ < limit_ ? util::kOk : grow(); }

    /// Adds a record at its position. Precondition: reserve_one() since the last append(); it is
    /// younger than all that the table holds.
    void append(MatchLinks& links, std::uint64_t tag, std::uint32_t source, std::uint32_t pos,
                Record* record) noexcept {
        const Key key = key_of(tag, source);
        const std::uint64_t hashed = hash(key);
        if (Slot* const slot = find(key, hashed)) {
            links.append(slot->oldest()->match_slot, pos);
            slot->set(slot->oldest(), true);
            return;
        }
        links.start(pos);
        Slot slot;
        slot.set(record, false);
        place(hashed, slot);
        ++used_;
    }

    /// Takes a record out. Precondition: it is of the key of `slot`, and still in the ring.
    ///
    /// @param ring  Asked for the record that is the oldest then.
    template <class Ring>
    void remove(MatchLinks& links, Slot& slot, Record* record, Ring& ring) noexcept {
        if (!slot.has_more()) {
            erase(slot);
            return;
        }
        const std::uint32_t next = links.remove(record->match_slot);
        Record* const oldest = slot.oldest() == record ? ring.at(next).payload : slot.oldest();
        slot.set(oldest, !links.is_alone(next));
    }
    /// The same for a record that was not looked up.
    template <class Ring>
    void remove(MatchLinks& links, Record* record, Ring& ring) noexcept {
        remove(links, *find(record->match_tag(), record->match_source()), record, ring);
    }

    /// Forgets all records; keeps the memory.
    void clear() noexcept {
        if (used_ != 0) {
            std::memset(static_cast<void*>(buckets_), 0, memory());
            used_ = 0;
        }
    }
    /// Forgets all records and gives the memory back.
    void release() noexcept {
        std::free(std::exchange(buckets_, nullptr));
        mask_ = used_ = limit_ = 0;
    }
    std::size_t memory() const noexcept {
        return buckets_ == nullptr ? 0 : sizeof(Bucket) * (mask_ + 1);
    }

  private:
    static constexpr unsigned kSlots = 7;
    static constexpr std::size_t kFirstBuckets = 64;
    static constexpr std::size_t kFill = 4;  // keys for each bucket, at most, on average

    struct Key {
        std::uint64_t tag;
        std::uint32_t source;
    };

    struct Bucket {
        std::uint8_t marks[kSlots];  // of the keys' hashes; 0: the slot is free
        std::uint8_t passed;         // keys that went on from here; kMany stays
        Slot slots[kSlots];

        static constexpr std::uint8_t kMany = 255;

        /// The top bit of the byte of each slot that has this mark.
        std::uint64_t slots_with(std::uint8_t mark) const noexcept {
            constexpr std::uint64_t kEach = 0x0101010101010101;
            constexpr std::uint64_t kLow7 = 0x7f * kEach;
            constexpr std::uint64_t kOfSlots = ~std::uint64_t{0} >> (64 - 8 * kSlots);
            std::uint64_t bytes = 0;
            std::memcpy(&bytes, marks, sizeof bytes);
            bytes ^= kEach * mark;
            return ~(((bytes & kLow7) + kLow7) | bytes | kLow7) & kOfSlots;
        }
        void note_passed() noexcept { passed != kMany ? void(++passed) : void(); }
        void forget_passed() noexcept { passed != kMany ? void(--passed) : void(); }
    };
    static_assert(sizeof(Bucket) == util::kCacheLine);
    static_assert(std::endian::native == std::endian::little);
    static_assert(alignof(Record) > Slot::kHasMore);

    static unsigned first_of(std::uint64_t slots) noexcept {
        return static_cast<unsigned>(std::countr_zero(slots)) / 8;
    }

    Key key_of(std::uint64_t tag, std::uint32_t source) const noexcept {
        return {.tag = tag & care_, .source = source | no_source_};
    }
    static std::uint64_t hash(const Key& key) noexcept { return Hash{}(key.tag, key.source); }
    Key key_of(const Record& record) const noexcept {
        return key_of(record.match_tag(), record.match_source());
    }
    static std::uint8_t mark_of(std::uint64_t hashed) noexcept {
        return static_cast<std::uint8_t>((hashed >> 57) | 0x80);
    }

    Slot* find(const Key& key, std::uint64_t hashed) noexcept {
        const std::uint8_t mark = mark_of(hashed);
        std::size_t i = hashed & mask_;
        for (std::size_t others = mask_;; --others, i = (i + 1) & mask_) {
            Bucket& bucket = buckets_[i];
            for (std::uint64_t here = bucket.slots_with(mark); here != 0; here &= here - 1) {
                Slot& slot = bucket.slots[first_of(here)];
                const Key other = key_of(*slot.oldest());
                if (other.tag == key.tag && other.source == key.source) [[likely]] {
                    return &slot;
                }
            }
            if (bucket.passed == 0 || others == 0) {
                return nullptr;
            }
        }
    }

    void place(std::uint64_t hashed, const Slot& slot) noexcept {
        for (std::size_t i = hashed & mask_;; i = (i + 1) & mask_) {
            Bucket& bucket = buckets_[i];
            if (const std::uint64_t free = bucket.slots_with(0); free != 0) [[likely]] {
                bucket.marks[first_of(free)] = mark_of(hashed);
                bucket.slots[first_of(free)] = slot;
                return;
            }
            bucket.note_passed();
        }
    }

    void erase(Slot& slot) noexcept {
        const auto at = reinterpret_cast<const std::byte*>(&slot);
        const auto from_start = at - reinterpret_cast<const std::byte*>(buckets_);
        const std::size_t its = static_cast<std::size_t>(from_start) / sizeof(Bucket);
        const std::size_t home = hash(key_of(*slot.oldest())) & mask_;
        for (std::size_t i = home; i != its; i = (i + 1) & mask_) {
            buckets_[i].forget_passed();
        }
        buckets_[its].marks[&slot - buckets_[its].slots] = 0;
        --used_;
    }

    [[gnu::noinline]] util::Status grow() noexcept {
        const std::size_t old_buckets = buckets_ == nullptr ? 0 : mask_ + 1;
        const std::size_t new_buckets = old_buckets == 0 ? kFirstBuckets : 2 * old_buckets;
        auto* const buckets =
            static_cast<Bucket*>(util::allocate_table(new_buckets * sizeof(Bucket)));
        if (buckets == nullptr) {
            return ENOMEM;
        }
        std::memset(static_cast<void*>(buckets), 0, new_buckets * sizeof(Bucket));
        Bucket* const old = std::exchange(buckets_, buckets);
        mask_ = new_buckets - 1;
        limit_ = kFill * new_buckets;
        for (std::size_t i = 0; i < old_buckets; ++i) {
            for (unsigned n = 0; n < kSlots; ++n) {
                if (old[i].marks[n] != 0) {
                    const Slot& slot = old[i].slots[n];
                    place(hash(key_of(*slot.oldest())), slot);
                }
            }
        }
        std::free(old);
        return util::kOk;
    }

    std::uint64_t care_ = 0;
    std::uint32_t no_source_ = 0;  // all bits, if the source is not in the key
    Bucket* buckets_ = nullptr;
    std::size_t mask_ = 0;
    std::size_t used_ = 0;
    std::size_t limit_ = 0;
};

}  // namespace rvt::core
