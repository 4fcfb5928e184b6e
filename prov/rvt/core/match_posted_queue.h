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
#include <span>

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
        Entry* const entry = ring_.append_short();
        if (entry == nullptr) [[unlikely]] {
            return push_long(tag, ignore, source, record);
        }
        entry->fill(tag, ignore, source, record);
        return util::kOk;
    }

    /// Removes the oldest receive that takes this message. Returns: nullptr when there is none.
    RVT_ALWAYS_INLINE T* match(std::uint64_t tag, std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            return match_long(tag, source);
        }
        const std::uint32_t pos = find_short(tag, source);
        return pos == ring_.tail() ? nullptr : ring_.take_short(pos);
    }

    /// Asks for the memory in which match() will look for the receive, and a while later for that
    /// of the receive. Precondition: is_long().
    void prefetch(std::uint64_t tag, std::uint32_t source) noexcept {
        for (const Class& each : known_classes()) {
            each.bins.prefetch(tag & each.care, each.directed != 0 ? source : kAnySourceId);
        }
    }
    void prefetch_receive(std::uint64_t tag, std::uint32_t source) noexcept {
        for (Class& each : known_classes()) {
            const Bin* const bin =
                each.bins.find(tag & each.care, each.directed != 0 ? source : kAnySourceId);
            if (bin != nullptr) {
                util::prefetch_write(bin->oldest);
            }
        }
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
        const auto is_it = [record](const Entry& entry) { return entry.payload == record; };
        const std::uint32_t pos = ring_.find_short(is_it);
        assert(pos != ring_.tail());
        ring_.take_short(pos);
    }

    std::size_t size() const noexcept { return ring_.size(); }
    bool is_empty() const noexcept { return ring_.size() == 0; }

    /// The oldest receive for which `is_it(record)` holds, or nullptr. Cost: linear.
    template <class IsIt>
    T* find(IsIt is_it) {
        return ring_.find_record(is_it);
    }

    /// Calls visit(record) for each receive, oldest first. `visit` must not change the queue.
    template <class Visit>
    void for_each(Visit visit) {
        ring_.find_record([&](T& record) {
            visit(record);
            return false;
        });
    }

    /// Removes the receives for which `drop(record)` holds, asked oldest first. `drop` must not
    /// change the queue.
    template <class Drop>
    void remove_if(Drop drop) {
        if (!ring_.is_long()) {
            for (std::uint32_t i = 0; i < ring_.size();) {
                const std::uint32_t pos = ring_.head() + i;
                drop(*ring_.at(pos).payload) ? void(ring_.take_short(pos)) : void(++i);
            }
            return;
        }
        const std::uint32_t end = ring_.tail();
        for (std::uint32_t pos = ring_.head(); pos != end; ++pos) {
            if (ring_.has_entry(pos) && drop(*ring_.at(pos).payload)) {
                erase_long(pos);
            }
        }
        shrink_if_short();
    }

    /// Forgets all receives and gives the memory back.
    void clear() noexcept {
        release_index();
        ring_.reset();
        indexed_end_ = ring_.head();
    }

    bool is_long() const noexcept { return ring_.is_long(); }
    /// Heap memory held, in bytes.
    std::size_t memory() const noexcept {
        std::size_t bytes = ring_.memory() + links_.capacity() * sizeof(MatchLink);
        for (const Class& each : classes_) {
            bytes += each.bins.capacity() * sizeof(Bin);
        }
        return bytes;
    }

  private:
    using Bin = typename MatchBins<T>::Bin;

    static constexpr unsigned kMaxClasses = 8;
    static constexpr std::uint32_t kLookAhead = 4;  // two cache lines

    // Two a cache line. A message fits when no bit that the receive cares for differs.
    struct Entry {
        std::uint64_t tag;
        std::uint64_t care;
        T* payload;
        std::uint32_t source;
        std::uint32_t source_care;

        RVT_ALWAYS_INLINE void fill(std::uint64_t a_tag, std::uint64_t ignore,
                                    std::uint32_t a_source, T* record) noexcept {
            tag = a_tag;
            care = kHasTags ? ~ignore : 0;
            payload = record;
            source = a_source;
            source_care = a_source == kAnySourceId ? 0 : ~0u;
        }
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
        MatchBins<T> bins;

        bool is_used() const noexcept { return directed + undirected != 0; }
    };

    struct Found {
        std::uint32_t pos = 0;
        bool is_found = false;
        Class* its_class = nullptr;
        Bin* bin = nullptr;  // known when a class offered it

        void offer(std::uint32_t other, Class* other_class, Bin* other_bin) noexcept {
            if (!is_found || is_older(other, pos)) {
                *this = {
                    .pos = other, .is_found = true, .its_class = other_class, .bin = other_bin};
            }
        }
    };

    RVT_ALWAYS_INLINE std::uint32_t find_short(std::uint64_t tag, std::uint32_t source) noexcept {
        return ring_.find_short([=](const Entry& entry) { return entry.fits(tag, source); });
    }

    [[gnu::noinline]] util::Status push_long(std::uint64_t tag, std::uint64_t ignore,
                                             std::uint32_t source, T* record) noexcept {
        if (!ring_.has_room()) {
            if (const util::Status made = make_room(); !made.is_ok()) {
                return made;
            }
        }
        record->match_slot = ring_.tail();
        ring_.append_long().fill(tag, ignore, source, record);
        return util::kOk;
    }

    util::Status make_room() noexcept {
        if (!ring_.is_long()) {
            indexed_end_ = ring_.head();
            return ring_.grow();
        }
        if (ring_.size() > ring_.capacity() / 2) {
            return ring_.grow();
        }
        compact();
        return util::kOk;
    }

    void compact() noexcept {
        clamp_indexed_end();
        indexed_end_ = ring_.skip_holes(indexed_end_);
        const bool is_all = indexed_end_ == ring_.tail();
        std::uint32_t new_end = indexed_end_;
        const auto coming = [this](const Entry& entry) {
            if (const Class* its_class = find_class(entry.care)) {
                its_class->bins.prefetch(entry.tag & entry.care, entry.source);
            }
        };
        ring_.compact(coming, [&](std::uint32_t from, std::uint32_t to) {
            if (is_older(from, indexed_end_)) {
                relink(from, to);
            } else if (from == indexed_end_) {
                new_end = to;
            }
        });
        indexed_end_ = is_all ? ring_.tail() : new_end;
    }

    void relink(std::uint32_t from, std::uint32_t to) noexcept {
        const Entry& entry = ring_.at(to);
        Class* its_class = find_class(entry.care);
        MatchChain& chain = its_class != nullptr
                                ? its_class->bins.find(entry.tag & entry.care, entry.source)->chain
                                : unclassed_;
        chain.move(links_, from, to);
    }

    std::span<Class> known_classes() noexcept { return {classes_.data(), class_count_}; }

    Class* find_class(std::uint64_t care) noexcept {
        for (Class& each : known_classes()) {
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
        if (unclassed_count_ != 0) {
            return nullptr;
        }
        for (Class& each : known_classes()) {
            if (!each.is_used()) {
                each.care = care;
                return &each;
            }
        }
        if (class_count_ == kMaxClasses) {
            return nullptr;
        }
        Class& unknown = classes_[class_count_++];
        unknown.care = care;
        return &unknown;
    }

    void index(std::uint32_t pos, Class* its_class) noexcept {
        const Entry& entry = ring_.at(pos);
        if (its_class != nullptr) {
            ++(entry.source_care != 0 ? its_class->directed : its_class->undirected);
            its_class->bins.append(links_, entry.tag & entry.care, entry.source, pos,
                                   entry.payload);
            return;
        }
        if (unclassed_count_++ == 0) {
            unclassed_ = {pos, pos};
        } else {
            unclassed_.push(links_, pos);
        }
    }

    // Indexes what was posted since the last time. Returns: false when there is no memory for that.
    bool index_the_rest() noexcept {
        clamp_indexed_end();
        if (!links_.reserve(ring_.capacity(), ring_.head(), indexed_end_).is_ok()) {
            return false;
        }
        for (; indexed_end_ != ring_.tail(); ++indexed_end_) {
            const Entry& entry = ring_.at(indexed_end_);
            if (ring_.has_entry(indexed_end_)) {
                Class* its_class = class_for(entry.care);
                if (its_class != nullptr && !its_class->bins.reserve_one().is_ok()) {
                    return false;
                }
                index(indexed_end_, its_class);
            }
        }
        return true;
    }

    Found find_long(std::uint64_t tag, std::uint32_t source) noexcept {
        const auto fits = [=](const Entry& entry) { return entry.fits(tag, source); };
        // Programs that match in the order of posting never come to need the index.
        const std::uint32_t near = ring_.head() + std::min(kLookAhead, ring_.tail() - ring_.head());
        if (const std::uint32_t pos = ring_.search(fits, near); pos != near) {
            return {.pos = pos, .is_found = true};
        }
        if (!index_the_rest()) [[unlikely]] {
            const std::uint32_t pos = ring_.search(fits, ring_.tail());
            return {.pos = pos, .is_found = pos != ring_.tail()};
        }
        return find_indexed(tag, source);
    }

    Found find_indexed(std::uint64_t tag, std::uint32_t source) noexcept {
        Found found;
        for (Class& each : known_classes()) {
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
        if (Bin* bin = its_class.bins.find(tag & its_class.care, source)) {
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
        T* record = nullptr;
        if (found.bin != nullptr) {
            record = found.bin->oldest;
            unlink(*found.its_class, *found.bin, found.pos);
        } else {
            record = ring_.at(found.pos).payload;
            unlink_if_indexed(found.pos);
        }
        ring_.erase_long(found.pos);
        clamp_indexed_end();
        shrink_if_short();
        return record;
    }

    void unlink(Class& its_class, Bin& bin, std::uint32_t pos) noexcept {
        --(bin.source != kAnySourceId ? its_class.directed : its_class.undirected);
        its_class.bins.remove(links_, bin, pos, ring_);
    }

    void unlink_if_indexed(std::uint32_t pos) noexcept {
        if (!is_older(pos, indexed_end_)) {
            return;
        }
        const Entry& entry = ring_.at(pos);
        if (Class* its_class = find_class(entry.care)) {
            unlink(*its_class, *its_class->bins.find(entry.tag & entry.care, entry.source), pos);
            return;
        }
        unclassed_.remove(links_, pos);
        --unclassed_count_;
    }

    void erase_long(std::uint32_t pos) noexcept {
        unlink_if_indexed(pos);
        ring_.erase_long(pos);
        clamp_indexed_end();
    }

    // The ring gives up positions at both ends; those at its tail will be used again.
    RVT_ALWAYS_INLINE void clamp_indexed_end() noexcept {
        if (is_older(indexed_end_, ring_.head())) {
            indexed_end_ = ring_.head();
        }
        if (is_older(ring_.tail(), indexed_end_)) {
            indexed_end_ = ring_.tail();
        }
    }

    RVT_ALWAYS_INLINE void shrink_if_short() noexcept {
        if (ring_.size() <= ring_.kShortAgain && ring_.is_long()) [[unlikely]] {
            shrink();
        }
    }
    [[gnu::noinline]] void shrink() noexcept {
        // One by one: the tables may be far larger than what is left in them.
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            if (ring_.has_entry(pos)) {
                unlink_if_indexed(pos);
            }
        }
        ring_.shrink();
        indexed_end_ = ring_.head();
        class_count_ = 0;
        if (ring_.heap_capacity() == 0) {
            release_index();
        }
    }

    void release_index() noexcept {
        for (Class& each : classes_) {
            each.directed = each.undirected = 0;
            each.bins.release();
        }
        class_count_ = unclassed_count_ = 0;
        links_.release();
    }

    MatchRing<Entry> ring_;
    // While the queue is long. Older receives than indexed_end_ are in a class or in unclassed_.
    std::uint32_t indexed_end_ = ring_.head();
    MatchLinks links_;
    MatchChain unclassed_{};
    std::uint32_t unclassed_count_ = 0;
    std::array<Class, kMaxClasses> classes_;
    std::uint32_t class_count_ = 0;  // those in front that have been used
};

}  // namespace rvt::core
