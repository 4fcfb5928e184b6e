// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages that arrived before a receive that takes them, in order of arrival; a receive takes the
// oldest that fits.
//
// Short queues are searched from the oldest on. A long one gets an index for each kind of question
// when that is first asked: one ignore mask, with a source or without. An index that nobody asks
// any more is dropped; kinds of question beyond kMaxIndexes are answered by a search.
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

/// U is the caller's record of a message; the queue owns none. kHasTags = false: only sources are
/// compared.
///
/// Threads: one at a time.
/// Cost:    a few instructions when the oldest message fits; flat in the length of the queue.
template <Matchable U, bool kHasTags = true>
class UnexpectedQueue {
  public:
    UnexpectedQueue() = default;

    /// Appends a message.
    /// Returns: ENOMEM, and then nothing has changed.
    RVT_ALWAYS_INLINE util::Status push(std::uint64_t tag, std::uint32_t source,
                                        U* record) noexcept {
        Entry* const entry = ring_.append_short();
        if (entry == nullptr) [[unlikely]] {
            return push_long(tag, source, record);
        }
        entry->fill(tag, source, record);
        return util::kOk;
    }

    /// Removes the oldest message that a receive with this tag, mask and source (or kAnySourceId)
    /// takes. Returns: nullptr when there is none.
    RVT_ALWAYS_INLINE U* match(std::uint64_t tag, std::uint64_t ignore,
                               std::uint32_t source) noexcept {
        if (ring_.is_long()) [[unlikely]] {
            return match_long({tag, ignore, source});
        }
        const std::uint32_t pos = find_short({tag, ignore, source});
        return pos == ring_.tail() ? nullptr : ring_.take_short(pos);
    }

    /// Asks for the memory in which match() will look for the message, and a while later for that
    /// of the message. Precondition: is_long().
    void prefetch(std::uint64_t tag, std::uint64_t ignore, std::uint32_t source) noexcept {
        const Question question{tag, ignore, source};
        if (Index* const index = known_index(question)) {
            index->table.prefetch(tag, source);
        }
    }
    void prefetch_message(std::uint64_t tag, std::uint64_t ignore, std::uint32_t source) noexcept {
        const Question question{tag, ignore, source};
        if (Index* const index = known_index(question)) {
            prefetch_record(index->table.likely(tag, source));
        }
    }

    /// As match(), but the message stays. remove() takes it out.
    U* peek(std::uint64_t tag, std::uint64_t ignore, std::uint32_t source) noexcept {
        const Question question{tag, ignore, source};
        if (ring_.is_long()) {
            return find_long(question).record;
        }
        const std::uint32_t pos = find_short(question);
        return pos == ring_.tail() ? nullptr : ring_.at(pos).payload;
    }

    /// Takes a message out. Precondition: it is in this queue.
    void remove(U* record) noexcept {
        if (ring_.is_long()) {
            erase_long({.record = record});
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

    /// The oldest message for which `is_it(record)` holds, or nullptr. Cost: linear.
    template <class IsIt>
    U* find(IsIt is_it) {
        return ring_.find_record(is_it);
    }

    /// Calls visit(record) for each message, oldest first. `visit` must not change the queue.
    template <class Visit>
    void for_each(Visit visit) {
        ring_.find_record([&](U& record) {
            visit(record);
            return false;
        });
    }

    /// Removes the messages for which `drop(record)` holds, asked oldest first. `drop` changes
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
                erase_long({.record = ring_.at(pos).payload});
            }
        }
        shrink_if_short();
    }

    /// Forgets all messages and gives the memory back.
    void clear() noexcept {
        release_indexes();
        ring_.reset();
    }

    bool is_long() const noexcept { return ring_.is_long(); }
    /// Heap memory held, in bytes.
    std::size_t memory() const noexcept {
        std::size_t bytes = ring_.memory();
        for (const Index& each : indexes_) {
            bytes += each.table.memory() + each.links.memory();
        }
        return bytes;
    }

  private:
    using Slot = typename MatchTable<U>::Slot;

    static constexpr unsigned kMaxIndexes = 8;
    static constexpr std::uint32_t kLookAhead = 4;  // two cache lines

    struct Entry {
        std::uint64_t tag;
        U* payload;
        std::uint32_t source;

        RVT_ALWAYS_INLINE void fill(std::uint64_t a_tag, std::uint32_t a_source,
                                    U* record) noexcept {
            tag = a_tag;
            payload = record;
            source = a_source;
        }
    };
    static_assert(sizeof(Entry) == 24);

    struct Question {
        std::uint64_t tag;
        std::uint64_t care;  // bits that must agree
        std::uint32_t source;
        std::uint32_t source_care;

        RVT_ALWAYS_INLINE Question(std::uint64_t a_tag, std::uint64_t ignore,
                                   std::uint32_t a_source) noexcept
            : tag(a_tag),
              care(kHasTags ? ~ignore : 0),
              source(a_source),
              source_care(a_source == kAnySourceId ? 0 : ~0u) {}
        bool has_source() const noexcept { return source_care != 0; }
        RVT_ALWAYS_INLINE bool takes(const Entry& entry) const noexcept {
            const std::uint64_t difference = (source ^ entry.source) & source_care;
            if constexpr (kHasTags) {
                return (((tag ^ entry.tag) & care) | difference) == 0;
            } else {
                return difference == 0;
            }
        }
    };

    // The messages older than `end`, by tag and perhaps source.
    struct Index {
        std::uint32_t end = 0;
        std::uint64_t last_asked = 0;  // in questions
        MatchTable<U> table;
        MatchLinks links;

        bool answers(const Question& question) const noexcept {
            return table.care() == question.care && table.has_source() == question.has_source();
        }
        void remove(U* record, MatchRing<Entry>& ring) noexcept {
            if (is_older(record->match_slot, end)) {
                table.remove(links, record, ring);
            }
        }
        // The ring gives up positions at both ends; those at its tail will be used again.
        RVT_ALWAYS_INLINE void clamp(const MatchRing<Entry>& ring) noexcept {
            if (is_older(end, ring.head())) {
                end = ring.head();
            }
            if (is_older(ring.tail(), end)) {
                end = ring.tail();
            }
        }
        // The ring may have grown since the links were made for it.
        // Returns: ENOMEM, and then nothing has changed.
        util::Status fit_links(const MatchRing<Entry>& ring) noexcept {
            clamp(ring);
            return links.reserve(ring.capacity(), ring.head(), end);
        }
        void release() noexcept {
            table.release();
            links.release();
        }
    };

    struct Found {
        U* record = nullptr;
        Index* index = nullptr;
        Slot* slot = nullptr;  // known when an index has answered
    };

    std::span<Index> used() noexcept { return {indexes_.data(), used_}; }

    /// The first lines of a record, if there is one, come together.
    static void prefetch_record(U* record) noexcept {
        if (record == nullptr) {
            return;
        }
        constexpr std::size_t kBytes = std::min<std::size_t>(sizeof(U), 2 * util::kCacheLine);
        for (std::size_t at = 0; at < kBytes; at += util::kCacheLine) {
            util::prefetch_write(reinterpret_cast<std::byte*>(record) + at);
        }
    }

    RVT_ALWAYS_INLINE std::uint32_t find_short(const Question& question) noexcept {
        return ring_.find_short([&](const Entry& entry) { return question.takes(entry); });
    }

    [[gnu::noinline]] util::Status push_long(std::uint64_t tag, std::uint32_t source,
                                             U* record) noexcept {
        if (!ring_.has_room()) {
            if (const util::Status made = make_room(); !made.is_ok()) {
                return made;
            }
        }
        record->match_slot = ring_.tail();
        ring_.append_long().fill(tag, source, record);
        return util::kOk;
    }

    util::Status make_room() noexcept {
        if (!ring_.is_long() || ring_.size() > ring_.capacity() / 2) {
            return ring_.grow();
        }
        for (Index& each : used()) {
            each.clamp(ring_);
            const bool is_blank = each.end == ring_.head();
            const util::Status fits = is_blank ? util::kOk : each.fit_links(ring_);
            if (!fits.is_ok()) {
                return fits;
            }
        }
        compact();
        return util::kOk;
    }

    // Precondition: fit_links() of each index that has entries; positions move all over the ring.
    void compact() noexcept {
        std::array<std::uint32_t, kMaxIndexes> new_end{};
        for (unsigned i = 0; i < used_; ++i) {
            new_end[i] = indexes_[i].end = ring_.skip_holes(indexes_[i].end);
        }
        const std::uint32_t old_tail = ring_.tail();
        ring_.compact([&](std::uint32_t from, std::uint32_t to) {
            for (unsigned i = 0; i < used_; ++i) {
                if (is_older(from, indexes_[i].end)) {
                    indexes_[i].links.move(from, to);
                } else if (from == indexes_[i].end) {
                    new_end[i] = to;
                }
            }
        });
        for (unsigned i = 0; i < used_; ++i) {
            indexes_[i].end = indexes_[i].end == old_tail ? ring_.tail() : new_end[i];
        }
    }

    // Adds what has arrived since the last time. Returns: false when there is no memory for that.
    bool index_the_rest(Index& index) noexcept {
        if (!index.fit_links(ring_).is_ok()) {
            return false;
        }
        for (; index.end != ring_.tail(); ++index.end) {
            const Entry& entry = ring_.at(index.end);
            if (ring_.has_entry(index.end)) {
                if (!index.table.reserve_one().is_ok()) {
                    return false;
                }
                index.table.append(index.links, entry.tag, entry.source, index.end, entry.payload);
            }
        }
        return true;
    }

    Index* known_index(const Question& question) noexcept {
        for (Index& each : used()) {
            if (each.answers(question)) {
                return &each;
            }
        }
        return nullptr;
    }

    Index* index_for(const Question& question) noexcept {
        ++questions_;
        if (Index* const known = known_index(question)) {
            known->last_asked = questions_;
            return known;
        }
        return start_index(question);
    }

    // Returns: nullptr when all are in use.
    [[gnu::noinline]] Index* start_index(const Question& question) noexcept {
        Index* index = nullptr;
        if (used_ < kMaxIndexes) {
            index = &indexes_[used_++];
        } else {
            index = &*std::min_element(
                indexes_.begin(), indexes_.end(),
                [](const Index& a, const Index& b) { return a.last_asked < b.last_asked; });
            // To fill an index takes a while: one that is in use stays.
            if (questions_ - index->last_asked < ring_.capacity()) {
                return nullptr;
            }
        }
        index->last_asked = questions_;
        index->table.clear();
        index->table.set_key(question.care, question.has_source());
        index->end = ring_.head();
        return index;
    }

    Found find_long(const Question& question) noexcept {
        const auto takes = [&](const Entry& entry) { return question.takes(entry); };
        // Programs that receive in the order of arrival never come to need an index.
        const std::uint32_t near = ring_.head() + std::min(kLookAhead, ring_.tail() - ring_.head());
        if (const std::uint32_t pos = ring_.search(takes, near); pos != near) {
            prefetch_record(ring_.record_ahead(pos));
            return {.record = ring_.at(pos).payload};
        }
        Index* index = index_for(question);
        if (index == nullptr || !index_the_rest(*index)) [[unlikely]] {
            const std::uint32_t pos = ring_.search(takes, ring_.tail());
            return {.record = pos == ring_.tail() ? nullptr : ring_.at(pos).payload};
        }
        Slot* const slot = index->table.find(question.tag, question.source);
        return {.record = slot == nullptr ? nullptr : slot->oldest(), .index = index, .slot = slot};
    }

    [[gnu::noinline]] U* match_long(const Question& question) noexcept {
        const Found found = find_long(question);
        if (found.record == nullptr) {
            return nullptr;
        }
        prefetch_record(found.record);
        erase_long(found);
        shrink_if_short();
        return found.record;
    }

    void erase_long(const Found& found) noexcept {
        for (Index& each : used()) {
            if (&each == found.index) {
                each.table.remove(each.links, *found.slot, found.record, ring_);
            } else {
                each.remove(found.record, ring_);
            }
        }
        ring_.erase_long(found.record->match_slot);
        for (Index& each : used()) {
            each.clamp(ring_);
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
                for (Index& each : used()) {
                    each.remove(ring_.at(pos).payload, ring_);
                }
            }
        }
        ring_.shrink();
        used_ = 0;
        if (ring_.heap_capacity() == 0) {
            release_indexes();
        }
    }

    void release_indexes() noexcept {
        used_ = 0;
        for (Index& each : indexes_) {
            each.release();
        }
    }

    MatchRing<Entry> ring_;
    // While the queue is long:
    std::array<Index, kMaxIndexes> indexes_;
    unsigned used_ = 0;
    std::uint64_t questions_ = 0;
};

}  // namespace rvt::core
