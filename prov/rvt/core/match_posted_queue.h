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

#include "core/match_links.h"
#include "core/match_ring.h"
#include "core/match_table.h"
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
        return push_short(tag, ignore, source, record) ? util::kOk
                                                       : push_long(tag, ignore, source, record);
    }

    /// The same where it takes no more than a few stores. Returns: false where it takes more, and
    /// then nothing has changed.
    RVT_ALWAYS_INLINE bool push_short(std::uint64_t tag, std::uint64_t ignore, std::uint32_t source,
                                      T* record) noexcept {
        Entry* const entry = ring_.append_short();
        if (entry == nullptr) [[unlikely]] {
            return false;
        }
        entry->fill(tag, ignore, source, record);
        return true;
    }

    /// Removes the oldest receive that takes this message. Returns: nullptr when there is none.
    RVT_ALWAYS_INLINE T* match(std::uint64_t tag, std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            return match_long(tag, source);
        }
        if (T* const oldest = ring_.take_oldest_short(
                [=](const Entry& entry) { return entry.fits(tag, source); })) [[likely]] {
            return oldest;
        }
        return match_short(tag, source);
    }

    /// Asks for the memory in which match() will look for the receive, and a while later for that
    /// of the receive. Precondition: is_long().
    void prefetch(std::uint64_t tag, std::uint32_t source) noexcept {
        for (const Class& each : known_classes()) {
            each.table.prefetch(tag, each.directed != 0 ? source : kAnySourceId);
        }
    }
    void prefetch_receive(std::uint64_t tag, std::uint32_t source) noexcept {
        for (Class& each : known_classes()) {
            util::prefetch_write(
                each.table.likely(tag, each.directed != 0 ? source : kAnySourceId));
        }
    }

    /// As match(), but the receive stays (multi-receive buffers). remove() takes it out.
    RVT_ALWAYS_INLINE T* peek_match(std::uint64_t tag, std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            return find_long(tag, source).record;
        }
        const std::uint32_t pos = find_short(tag, source);
        return pos == ring_.tail() ? nullptr : ring_.at(pos).payload;
    }

    /// Takes a receive out. Precondition: it is in this queue.
    void remove(T* record) noexcept {
        if (ring_.is_long()) {
            erase_long(record);
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
        return note_found(ring_.find_record(is_it));
    }
    /// In a long queue, one for which the same holds and that is near the one found last, if there
    /// is such a one. Cost: a few looks. Receives that are asked for in the order of posting, or in
    /// the opposite one, are all found so.
    template <class IsIt>
    T* find_near(IsIt is_it) {
        return ring_.is_long() ? note_found(ring_.find_near(found_at_, is_it)) : nullptr;
    }

    /// Calls visit(record) for each receive, oldest first. `visit` must not change the queue.
    template <class Visit>
    void for_each(Visit visit) {
        ring_.find_record([&](T& record) {
            visit(record);
            return false;
        });
    }

    /// Removes the receives for which `drop(record)` holds, asked oldest first. `drop` changes
    /// neither the queue nor the record.
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
                erase_long(ring_.at(pos).payload);
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
        std::size_t bytes = ring_.memory() + links_.memory();
        for (const Class& each : classes_) {
            bytes += each.table.memory();
        }
        return bytes;
    }

  private:
    using Slot = typename MatchTable<T>::Slot;

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

    // Receives with one mask. A mask that has unclassed receives has no class.
    struct Class {
        std::uint32_t directed = 0;    // receives that name a source
        std::uint32_t undirected = 0;  // receives from anybody
        MatchTable<T> table;

        bool is_used() const noexcept { return directed + undirected != 0; }
    };

    struct Found {
        T* record = nullptr;
        Class* its_class = nullptr;
        Slot* slot = nullptr;  // known when a class offered it

        void offer(T* other, Class* other_class, Slot* other_slot) noexcept {
            if (record == nullptr || is_older(other->match_slot, record->match_slot)) {
                *this = {.record = other, .its_class = other_class, .slot = other_slot};
            }
        }
    };

    T* note_found(T* record) noexcept {
        if (record != nullptr && ring_.is_long()) {
            found_at_ = record->match_slot;
        }
        return record;
    }

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
        clamp_indexed_end();
        const bool is_blank = indexed_end_ == ring_.head();
        const util::Status fits = is_blank ? util::kOk : fit_links();
        if (!fits.is_ok()) {
            return fits;
        }
        compact();
        return util::kOk;
    }

    // The ring may have grown since the links were made for it.
    // Returns: ENOMEM, and then nothing has changed.
    util::Status fit_links() noexcept {
        clamp_indexed_end();
        return links_.reserve(ring_.capacity(), ring_.head(), indexed_end_);
    }

    // Precondition: fit_links(), unless nothing is indexed; positions move all over the ring.
    void compact() noexcept {
        indexed_end_ = ring_.skip_holes(indexed_end_);
        const bool is_all = indexed_end_ == ring_.tail();
        std::uint32_t new_end = indexed_end_;
        ring_.compact([&](std::uint32_t from, std::uint32_t to) {
            if (is_older(from, indexed_end_)) {
                relink(from, to);
            } else if (from == indexed_end_) {
                new_end = to;
            }
        });
        indexed_end_ = is_all ? ring_.tail() : new_end;
    }

    void relink(std::uint32_t from, std::uint32_t to) noexcept {
        links_.move(from, to);
        if (from == first_unclassed_) {
            first_unclassed_ = to;
        }
    }

    std::span<Class> known_classes() noexcept { return {classes_.data(), class_count_}; }

    Class* find_class(std::uint64_t care) noexcept {
        for (Class& each : known_classes()) {
            if (each.is_used() && each.table.care() == care) {
                return &each;
            }
        }
        return nullptr;
    }

    // nullptr: no class is free, or older receives with this mask may already be unclassed.
    Class* class_for(std::uint64_t care) noexcept {
        if (Class* known = find_class(care)) {
            return known;
        }
        if (unclassed_count_ != 0) {
            return nullptr;
        }
        for (Class& each : known_classes()) {
            if (!each.is_used()) {
                each.table.set_key(care, true);
                return &each;
            }
        }
        if (class_count_ == kMaxClasses) {
            return nullptr;
        }
        Class& unknown = classes_[class_count_++];
        unknown.table.set_key(care, true);
        return &unknown;
    }

    void index(std::uint32_t pos, Class* its_class) noexcept {
        const Entry& entry = ring_.at(pos);
        if (its_class != nullptr) {
            ++(entry.source_care != 0 ? its_class->directed : its_class->undirected);
            its_class->table.append(links_, entry.tag, entry.source, pos, entry.payload);
        } else if (unclassed_count_++ == 0) {
            first_unclassed_ = pos;
            links_.start(pos);
        } else {
            links_.append(first_unclassed_, pos);
        }
    }

    // Indexes what was posted since the last time. Returns: false when there is no memory for that.
    bool index_the_rest() noexcept {
        if (!fit_links().is_ok()) {
            return false;
        }
        for (; indexed_end_ != ring_.tail(); ++indexed_end_) {
            const Entry& entry = ring_.at(indexed_end_);
            if (ring_.has_entry(indexed_end_)) {
                Class* its_class = class_for(entry.care);
                if (its_class != nullptr && !its_class->table.reserve_one().is_ok()) {
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
            util::prefetch_write(ring_.record_ahead(pos));
            return {.record = ring_.at(pos).payload};
        }
        if (!index_the_rest()) [[unlikely]] {
            const std::uint32_t pos = ring_.search(fits, ring_.tail());
            return {.record = pos == ring_.tail() ? nullptr : ring_.at(pos).payload};
        }
        return find_indexed(tag, source);
    }

    Found find_indexed(std::uint64_t tag, std::uint32_t source) noexcept {
        Found found;
        for (Class& each : known_classes()) {
            if (each.directed != 0) {
                offer_slot(found, each, tag, source);
            }
            if (each.undirected != 0) {
                offer_slot(found, each, tag, kAnySourceId);
            }
        }
        if (unclassed_count_ != 0) [[unlikely]] {
            search_unclassed(found, tag, source);
        }
        return found;
    }

    RVT_ALWAYS_INLINE void offer_slot(Found& found, Class& its_class, std::uint64_t tag,
                                      std::uint32_t source) noexcept {
        if (Slot* const slot = its_class.table.find(tag, source)) {
            found.offer(slot->oldest(), &its_class, slot);
        }
    }

    [[gnu::noinline]] void search_unclassed(Found& found, std::uint64_t tag,
                                            std::uint32_t source) noexcept {
        std::uint32_t pos = first_unclassed_;
        do {
            if (found.record != nullptr && is_older(found.record->match_slot, pos)) {
                return;
            }
            const Entry& entry = ring_.at(pos);
            if (entry.fits(tag, source)) {
                found.offer(entry.payload, nullptr, nullptr);
                return;
            }
            pos = links_.next(pos);
        } while (pos != first_unclassed_);
    }

    [[gnu::noinline]] T* match_short(std::uint64_t tag, std::uint32_t source) noexcept {
        const std::uint32_t pos = find_short(tag, source);
        return pos == ring_.tail() ? nullptr : ring_.take_short(pos);
    }

    [[gnu::noinline]] T* match_long(std::uint64_t tag, std::uint32_t source) noexcept {
        const Found found = find_long(tag, source);
        if (found.record == nullptr) {
            return nullptr;
        }
        if (found.slot != nullptr) {
            unlink(*found.its_class, *found.slot, found.record);
        } else {
            unlink_if_indexed(found.record);
        }
        ring_.erase_long(found.record->match_slot);
        clamp_indexed_end();
        shrink_if_short();
        return found.record;
    }

    void unlink(Class& its_class, Slot& slot, T* record) noexcept {
        --(record->match_source() != kAnySourceId ? its_class.directed : its_class.undirected);
        its_class.table.remove(links_, slot, record, ring_);
    }

    void unlink_if_indexed(T* record) noexcept {
        const std::uint32_t pos = record->match_slot;
        if (!is_older(pos, indexed_end_)) {
            return;
        }
        const Entry& entry = ring_.at(pos);
        if (Class* const its_class = find_class(entry.care)) {
            unlink(*its_class, *its_class->table.find(entry.tag, entry.source), record);
            return;
        }
        const std::uint32_t next = links_.remove(pos);
        if (pos == first_unclassed_) {
            first_unclassed_ = next;
        }
        --unclassed_count_;
    }

    void erase_long(T* record) noexcept {
        unlink_if_indexed(record);
        ring_.erase_long(record->match_slot);
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
                unlink_if_indexed(ring_.at(pos).payload);
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
            each.table.release();
        }
        class_count_ = unclassed_count_ = 0;
        links_.release();
    }

    MatchRing<Entry> ring_;
    // While the queue is long. Older receives than indexed_end_ are in a class or unclassed.
    std::uint32_t indexed_end_ = ring_.head();
    MatchLinks links_;
    std::uint32_t first_unclassed_ = 0;  // while there are any
    std::uint32_t unclassed_count_ = 0;
    std::array<Class, kMaxClasses> classes_;
    std::uint32_t class_count_ = 0;  // those in front that have been used
    std::uint32_t found_at_ = 0;  // where find() or find_near() was last; a hint, may be anything
};

}  // namespace rvt::core
