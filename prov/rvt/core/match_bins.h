// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A hash table from (tag, source) to the positions of the entries that carry them, oldest first.
// The queues of the matching engine (match_posted_queue.h, match_unexpected_queue.h) keep such
// tables while they are long.
//
// A position counts the entries ever appended to a queue, modulo 2^32, so comparing two positions
// compares age. Positions of one bin are chained through links that the queue keeps beside its
// ring, one for each of its slots; a bin of one position (the usual case) touches no link.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "util/cpu.h"
#include "util/status.h"
#include "util/table_memory.h"

namespace rvt::core {

/// The source of a receive that takes messages from anybody. No peer has this number.
inline constexpr std::uint32_t kAnySourceId = 0xffffffff;

/// Whether position `a` was appended before `b`. Precondition: less than 2^31 apart.
RVT_ALWAYS_INLINE bool is_older(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::int32_t>(a - b) < 0;
}

/// The neighbours of a position in its bin; undefined at the ends.
struct MatchLink {
    std::uint32_t prev;
    std::uint32_t next;
};

/// The links of a ring of slots. Freed with the object; a capacity of 0 means none.
class MatchLinks {
  public:
    MatchLinks() = default;
    ~MatchLinks() { std::free(links_); }
    MatchLinks(const MatchLinks&) = delete;
    MatchLinks& operator=(const MatchLinks&) = delete;

    /// Makes room for `capacity` slots (a power of two) and keeps the links of positions [head,
    /// tail). Returns: ENOMEM, and then nothing has changed.
    util::Status reserve(std::uint32_t capacity, std::uint32_t head, std::uint32_t tail) noexcept {
        if (links_ != nullptr && mask_ + 1 == capacity) {
            return util::kOk;
        }
        auto* links = static_cast<MatchLink*>(util::allocate_table(sizeof(MatchLink) * capacity));
        if (links == nullptr) {
            return ENOMEM;
        }
        for (std::uint32_t pos = head; links_ != nullptr && pos != tail; ++pos) {
            links[pos & (capacity - 1)] = links_[pos & mask_];
        }
        std::free(links_);
        links_ = links;
        mask_ = capacity - 1;
        return util::kOk;
    }
    void release() noexcept {
        std::free(std::exchange(links_, nullptr));
        mask_ = 0;
    }
    std::uint32_t capacity() const noexcept { return links_ == nullptr ? 0 : mask_ + 1; }
    MatchLink& operator[](std::uint32_t pos) noexcept { return links_[pos & mask_]; }

  private:
    MatchLink* links_ = nullptr;
    std::uint32_t mask_ = 0;
};

/// A chain of positions, oldest first. Never empty: whoever holds one knows when it has become so.
struct MatchChain {
    std::uint32_t head;
    std::uint32_t tail;

    void push(MatchLinks& links, std::uint32_t pos) noexcept {
        links[tail].next = pos;
        links[pos].prev = tail;
        tail = pos;
    }
    /// Returns: false when `pos` was the last one; the chain is then as it was.
    bool remove(MatchLinks& links, std::uint32_t pos) noexcept {
        if (head == tail) {
            return false;
        }
        if (pos == head) {
            head = links[pos].next;
        } else if (pos == tail) {
            tail = links[pos].prev;
        } else {
            const MatchLink link = links[pos];
            links[link.prev].next = link.next;
            links[link.next].prev = link.prev;
        }
        return true;
    }
    /// The entry at `from` is now at `to`; its order among the others is the same.
    void move(MatchLinks& links, std::uint32_t from, std::uint32_t to) noexcept {
        if (head == tail) {
            head = tail = to;
            return;
        }
        const MatchLink link = links[from];
        (from == head ? head : links[link.prev].next) = to;
        (from == tail ? tail : links[link.next].prev) = to;
        links[to] = link;
    }
};

/// Open addressing with linear probing; a bin goes when its last position goes, so there are no
/// tombstones. Three quarters stay free: a probe that goes on is a mispredicted branch and, in a
/// table beyond the cache, costs more than the memory. A bin names its oldest record, so that the
/// caller need not wait for the entry in the ring.
template <class Record>
class MatchBins {
  public:
    struct Bin {
        std::uint64_t tag;
        Record* oldest;  // the record at chain.head; nullptr in an unused bin
        std::uint32_t source;
        MatchChain chain;
    };
    static_assert(sizeof(Bin) <= 32);

    MatchBins() = default;
    ~MatchBins() { std::free(bins_); }
    MatchBins(const MatchBins&) = delete;
    MatchBins& operator=(const MatchBins&) = delete;

    /// The bin, or nullptr. Valid until the next append() or removal.
    Bin* find(std::uint64_t tag, std::uint32_t source) noexcept {
        if (used_ == 0) {
            return nullptr;
        }
        for (std::size_t i = home(tag, source);; i = (i + 1) & mask_) {
            Bin& bin = bins_[i];
            if (bin.oldest == nullptr) {
                return nullptr;
            }
            if (bin.tag == tag && bin.source == source) {
                return &bin;
            }
        }
    }

    /// Asks for the memory in which find() will look first.
    void prefetch(std::uint64_t tag, std::uint32_t source) const noexcept {
        if (bins_ != nullptr) {
            util::prefetch_write(bins_ + home(tag, source));
        }
    }

    /// Makes sure that the next append() finds room. Returns: ENOMEM, and then nothing has changed.
    util::Status reserve_one() noexcept { return used_ + 1 <= limit_ ? util::kOk : grow(); }

    /// Precondition: reserve_one() since the last append(); `pos` is younger than all that the
    /// table holds.
    void append(MatchLinks& links, std::uint64_t tag, std::uint32_t source, std::uint32_t pos,
                Record* record) noexcept {
        std::size_t i = home(tag, source);
        for (; bins_[i].oldest != nullptr; i = (i + 1) & mask_) {
            if (bins_[i].tag == tag && bins_[i].source == source) {
                bins_[i].chain.push(links, pos);
                return;
            }
        }
        bins_[i] = Bin{.tag = tag, .oldest = record, .source = source, .chain = {pos, pos}};
        ++used_;
    }

    /// @param ring  Asked for the record that is the oldest then.
    /// Precondition: `pos` is in the bin.
    template <class Ring>
    void remove(MatchLinks& links, Bin& bin, std::uint32_t pos, Ring& ring) noexcept {
        const bool was_oldest = bin.chain.head == pos;
        if (!bin.chain.remove(links, pos)) {
            erase(static_cast<std::size_t>(&bin - bins_));
        } else if (was_oldest) {
            bin.oldest = ring.at(bin.chain.head).payload;
        }
    }

    /// Forgets all positions; keeps the memory.
    void clear() noexcept {
        if (used_ != 0) {
            std::memset(static_cast<void*>(bins_), 0, sizeof(Bin) * (mask_ + 1));
            used_ = 0;
        }
    }
    /// Forgets all positions and gives the memory back.
    void release() noexcept {
        std::free(std::exchange(bins_, nullptr));
        mask_ = used_ = limit_ = 0;
    }
    std::size_t capacity() const noexcept { return bins_ == nullptr ? 0 : mask_ + 1; }

  private:
    static constexpr std::size_t kFirstBins = 512;

    static std::uint64_t hash(std::uint64_t tag, std::uint32_t source) noexcept {
        // An odd factor keeps tags in a row apart.
        const std::uint64_t factor = (std::uint64_t{source} << 1) ^ 0xd6e8feb86659fd93;
        const unsigned __int128 product =
            static_cast<unsigned __int128>(tag ^ 0x9e3779b97f4a7c15) * factor;
        return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
    }
    std::size_t home(std::uint64_t tag, std::uint32_t source) const noexcept {
        return hash(tag, source) & mask_;
    }

    // Closes the gap: whatever probed past it moves back.
    void erase(std::size_t gap) noexcept {
        for (std::size_t i = (gap + 1) & mask_; bins_[i].oldest != nullptr; i = (i + 1) & mask_) {
            const std::size_t from_home = (i - home(bins_[i].tag, bins_[i].source)) & mask_;
            if (from_home >= ((i - gap) & mask_)) {
                bins_[gap] = bins_[i];
                gap = i;
            }
        }
        bins_[gap].oldest = nullptr;
        --used_;
    }

    [[gnu::noinline]] util::Status grow() noexcept {
        const std::size_t old_capacity = capacity();
        const std::size_t new_capacity = old_capacity == 0 ? kFirstBins : 2 * old_capacity;
        auto* bins = static_cast<Bin*>(util::allocate_table(new_capacity * sizeof(Bin)));
        if (bins == nullptr) {
            return ENOMEM;
        }
        std::memset(static_cast<void*>(bins), 0, new_capacity * sizeof(Bin));
        Bin* old_bins = std::exchange(bins_, bins);
        mask_ = new_capacity - 1;
        limit_ = new_capacity / 4;
        for (std::size_t i = 0; i < old_capacity; ++i) {
            if (old_bins[i].oldest != nullptr) {
                place(old_bins[i]);
            }
        }
        std::free(old_bins);
        return util::kOk;
    }
    void place(const Bin& bin) noexcept {
        std::size_t i = home(bin.tag, bin.source);
        while (bins_[i].oldest != nullptr) {
            i = (i + 1) & mask_;
        }
        bins_[i] = bin;
    }

    Bin* bins_ = nullptr;
    std::size_t mask_ = 0;
    std::size_t used_ = 0;
    std::size_t limit_ = 0;
};

}  // namespace rvt::core
