// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posted receives that wait for messages, in the order of posting; a message takes the oldest that
// fits it.
//
// Short queues are searched from the oldest on. Long ones are indexed: receives with the same
// ignore mask form a class with one hash table, and a message asks each class for its oldest
// fitting receive. Masks beyond kMaxClasses wait in a list that is searched.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "core/match_bins.h"
#include "core/match_ring.h"
#include "util/cpu.h"
#include "util/status.h"

namespace rvt::core {

/// T is the caller's record of a receive; the queue owns none. kHasTags = false: only sources are
/// compared.
///
/// Threads: one at a time.
/// Cost:    a few instructions when the oldest receive fits; flat in the length of the queue.
template <Matchable T, bool kHasTags = true>
class PostedQueue {
  public:
    PostedQueue() = default;

    /// Appends a receive that takes messages whose tag agrees in all bits that are 0 in `ignore`.
    ///
    /// @param source  The peer, or kAnySourceId.
    /// Returns:   ENOMEM, and then nothing has changed.
    RVT_ALWAYS_INLINE util::Status push(std::uint64_t tag, std::uint64_t ignore,
                                        std::uint32_t source, T* record) noexcept {
        const Entry entry{.tag = tag,
                          .care = kHasTags ? ~ignore : 0,
                          .payload = record,
                          .source = source,
                          .source_care = source == kAnySourceId ? 0 : ~0u};
        if (!ring_.has_short_room()) [[unlikely]] {
            return push_slow(entry);
        }
        ring_.append(entry);
        return util::kOk;
    }

    /// Removes the oldest receive that takes this message. Returns: nullptr when there is none.
    RVT_ALWAYS_INLINE T* match(std::uint64_t tag, std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            return match_long(tag, source);
        }
        const std::uint32_t pos = find_short(tag, source);
        if (pos == ring_.tail()) {
            return nullptr;
        }
        T* record = ring_.at(pos).payload;
        ring_.erase(pos);
        return record;
    }

    /// As match(), but the receive stays (multi-receive buffers). remove() takes it out.
    RVT_ALWAYS_INLINE T* peek_match(std::uint64_t tag, std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            const Found found = find_long(tag, source);
            return found.is_found ? ring_.at(found.pos).payload : nullptr;
        }
        const std::uint32_t pos = find_short(tag, source);
        return pos == ring_.tail() ? nullptr : ring_.at(pos).payload;
    }

    /// Takes a receive out. Precondition: it is in this queue.
    void remove(T* record) noexcept {
        if (ring_.is_long()) {
            erase_long(record->match_slot);
            shrink_if_short();
            return;
        }
        std::uint32_t pos = ring_.head();
        while (ring_.at(pos).payload != record) {
            ++pos;
            assert(pos != ring_.tail());
        }
        ring_.erase(pos);
    }

    std::size_t size() const noexcept { return ring_.size(); }
    bool is_empty() const noexcept { return ring_.size() == 0; }

    /// The oldest receive for which `is_it(record)` holds, or nullptr. Cost: linear.
    template <class IsIt>
    T* find(IsIt is_it) {
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            T* record = ring_.at(pos).payload;
            if (record != nullptr && is_it(*record)) {
                return record;
            }
        }
        return nullptr;
    }

    /// Calls visit(record) for each receive, oldest first. `visit` must not change the queue.
    template <class Visit>
    void for_each(Visit visit) {
        find([&](T& record) {
            visit(record);
            return false;
        });
    }

    /// Removes the receives for which `drop(record)` holds, asked oldest first. `drop` must not
    /// change the queue.
    template <class Drop>
    void remove_if(Drop drop) {
        const std::uint32_t end = ring_.tail();
        for (std::uint32_t pos = ring_.head(); pos != end; ++pos) {
            T* record = ring_.at(pos).payload;
            if (record == nullptr || !drop(*record)) {
                continue;
            }
            const bool is_last = ring_.size() == 1;
            ring_.is_long() ? erase_long(pos) : ring_.erase(pos);
            if (is_last) {
                break;
            }
        }
        shrink_if_short();
    }

    /// Forgets all receives and gives the memory back.
    void clear() noexcept {
        drop_index();
        release_index();
        ring_.reset();
    }

    /// Whether the queue is indexed now; for tests and counters.
    bool is_indexed() const noexcept { return ring_.is_long(); }
    /// Heap memory held, in bytes.
    std::size_t memory() const noexcept {
        std::size_t bytes = ring_.heap_capacity() * (sizeof(Entry) + sizeof(MatchLink));
        for (const Class& each : classes_) {
            bytes += each.bins.capacity() * sizeof(MatchBins::Bin);
        }
        return bytes;
    }

  private:
    static constexpr unsigned kMaxClasses = 8;

    // Two a cache line. A message fits when no bit that the receive cares for differs.
    struct Entry {
        std::uint64_t tag;
        std::uint64_t care;
        T* payload;
        std::uint32_t source;
        std::uint32_t source_care;

        RVT_ALWAYS_INLINE bool fits(std::uint64_t other_tag,
                                    std::uint32_t other_source) const noexcept {
            const std::uint64_t difference = (source ^ other_source) & source_care;
            if constexpr (kHasTags) {
                return (((tag ^ other_tag) & care) | difference) == 0;
            } else {
                return difference == 0;
            }
        }
    };
    static_assert(sizeof(Entry) == 32);

    // Receives with one mask. A mask that has receives in unclassed_ has no class.
    struct Class {
        std::uint64_t care = 0;
        std::uint32_t directed = 0;    // receives that name a source
        std::uint32_t undirected = 0;  // receives from anybody
        MatchBins bins;

        bool is_used() const noexcept { return directed + undirected != 0; }
    };

    struct Found {
        std::uint32_t pos = 0;
        bool is_found = false;
        Class* where = nullptr;  // nullptr: unclassed_
        MatchBins::Bin* bin = nullptr;

        void offer(std::uint32_t other, Class* other_class, MatchBins::Bin* other_bin) noexcept {
            if (!is_found || is_older(other, pos)) {
                *this = {.pos = other, .is_found = true, .where = other_class, .bin = other_bin};
            }
        }
    };

    RVT_ALWAYS_INLINE std::uint32_t find_short(std::uint64_t tag, std::uint32_t source) noexcept {
        const std::uint32_t tail = ring_.tail();
        std::uint32_t pos = ring_.head();
        for (; pos != tail; ++pos) {
            const Entry& entry = ring_.at(pos);
            if (entry.fits(tag, source) && entry.payload != nullptr) {
                break;
            }
        }
        return pos;
    }

    [[gnu::noinline]] util::Status push_slow(const Entry& entry) noexcept {
        if (ring_.is_full()) {
            if (const util::Status made = make_room(); !made.is_ok()) {
                return made;
            }
        }
        if (!ring_.is_long()) {
            ring_.append(entry);
            return util::kOk;
        }
        Class* its_class = class_for(entry.care);
        if (its_class != nullptr && !its_class->bins.reserve_one().is_ok()) {
            return ENOMEM;
        }
        index(ring_.append(entry), its_class);
        return util::kOk;
    }

    util::Status make_room() noexcept {
        if (ring_.size() <= ring_.capacity() / 2) {
            ring_.compact();
            if (ring_.is_long()) {
                index_all();
            }
            return util::kOk;
        }
        const bool was_long = ring_.is_long();
        const std::uint32_t wanted =
            was_long ? 2 * ring_.capacity() : std::max(2 * ring_.capacity(), ring_.heap_capacity());
        if (!links_.reserve(wanted, ring_.head(), ring_.tail()).is_ok()) {
            return ENOMEM;
        }
        if (!ring_.grow().is_ok()) {
            return ENOMEM;
        }
        if (!was_long) {
            index_all();
        }
        return util::kOk;
    }

    Class* find_class(std::uint64_t care) noexcept {
        for (Class& each : classes_) {
            if (each.care == care && each.is_used()) {
                return &each;
            }
        }
        return nullptr;
    }

    // nullptr: no class is free, or older receives with this mask may already be in unclassed_.
    Class* class_for(std::uint64_t care) noexcept {
        if (Class* known = find_class(care)) {
            return known;
        }
        for (Class& each : classes_) {
            if (!each.is_used() && unclassed_count_ == 0) {
                each.care = care;
                return &each;
            }
        }
        return nullptr;
    }

    void index(std::uint32_t pos, Class* its_class) noexcept {
        const Entry& entry = ring_.at(pos);
        entry.payload->match_slot = pos;
        if (its_class != nullptr) {
            ++(entry.source_care != 0 ? its_class->directed : its_class->undirected);
            its_class->bins.append(links_, entry.tag & entry.care, entry.source, pos);
            return;
        }
        if (unclassed_count_++ == 0) {
            unclassed_ = {pos, pos};
        } else {
            unclassed_.push(links_, pos);
        }
    }

    // Without memory for the tables everything goes to the list that is searched: slower, not
    // wrong.
    [[gnu::noinline]] void index_all() noexcept {
        drop_index();
        bool has_memory = true;
        for (std::uint32_t pos = ring_.head(); has_memory && pos != ring_.tail(); ++pos) {
            if (ring_.at(pos).payload != nullptr) {
                Class* its_class = class_for(ring_.at(pos).care);
                has_memory = its_class == nullptr || its_class->bins.reserve_one().is_ok();
                if (has_memory) {
                    index(pos, its_class);
                }
            }
        }
        if (!has_memory) {
            drop_index();
            for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
                if (ring_.at(pos).payload != nullptr) {
                    index(pos, nullptr);
                }
            }
        }
    }

    Found find_long(std::uint64_t tag, std::uint32_t source) noexcept {
        Found found;
        for (Class& each : classes_) {
            if (each.directed != 0) {
                offer_bin(found, each, tag, source);
            }
            if (each.undirected != 0) {
                offer_bin(found, each, tag, kAnySourceId);
            }
        }
        if (unclassed_count_ != 0) [[unlikely]] {
            search_unclassed(found, tag, source);
        }
        return found;
    }

    RVT_ALWAYS_INLINE void offer_bin(Found& found, Class& its_class, std::uint64_t tag,
                                     std::uint32_t source) noexcept {
        if (MatchBins::Bin* bin = its_class.bins.find(tag & its_class.care, source)) {
            found.offer(bin->chain.head, &its_class, bin);
        }
    }

    [[gnu::noinline]] void search_unclassed(Found& found, std::uint64_t tag,
                                            std::uint32_t source) noexcept {
        for (std::uint32_t pos = unclassed_.head;; pos = links_[pos].next) {
            if (found.is_found && is_older(found.pos, pos)) {
                return;
            }
            if (ring_.at(pos).fits(tag, source)) {
                found.offer(pos, nullptr, nullptr);
                return;
            }
            if (pos == unclassed_.tail) {
                return;
            }
        }
    }

    [[gnu::noinline]] T* match_long(std::uint64_t tag, std::uint32_t source) noexcept {
        const Found found = find_long(tag, source);
        if (!found.is_found) {
            return nullptr;
        }
        T* record = ring_.at(found.pos).payload;
        unlink(found);
        ring_.erase(found.pos);
        shrink_if_short();
        return record;
    }

    // Takes a position out of the index.
    void unlink(const Found& found) noexcept {
        const Entry& entry = ring_.at(found.pos);
        if (found.where == nullptr) {
            unclassed_.remove(links_, found.pos);
            --unclassed_count_;
            return;
        }
        --(entry.source_care != 0 ? found.where->directed : found.where->undirected);
        found.where->bins.remove(links_, *found.bin, found.pos);
    }

    void unlink(std::uint32_t pos) noexcept {
        const Entry& entry = ring_.at(pos);
        Class* its_class = find_class(entry.care);
        MatchBins::Bin* bin = its_class == nullptr
                                  ? nullptr
                                  : its_class->bins.find(entry.tag & entry.care, entry.source);
        unlink(Found{.pos = pos, .is_found = true, .where = its_class, .bin = bin});
    }

    void erase_long(std::uint32_t pos) noexcept {
        unlink(pos);
        ring_.erase(pos);
    }

    RVT_ALWAYS_INLINE void shrink_if_short() noexcept {
        if (ring_.size() <= ring_.kShortAgain && ring_.is_long()) [[unlikely]] {
            shrink();
        }
    }
    [[gnu::noinline]] void shrink() noexcept {
        // One by one: the tables may be far larger than what is left in them.
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            if (ring_.at(pos).payload != nullptr) {
                unlink(pos);
            }
        }
        ring_.shrink();
        if (ring_.heap_capacity() == 0) {
            release_index();
        }
    }

    void drop_index() noexcept {
        for (Class& each : classes_) {
            each.directed = each.undirected = 0;
            each.bins.clear();
        }
        unclassed_count_ = 0;
    }
    void release_index() noexcept {
        for (Class& each : classes_) {
            each.bins.release();
        }
        links_.release();
    }

    MatchRing<Entry> ring_;
    // While the queue is long:
    MatchLinks links_;
    MatchChain unclassed_{};
    std::uint32_t unclassed_count_ = 0;
    std::array<Class, kMaxClasses> classes_;
};

}  // namespace rvt::core
