// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages that arrived before a receive that takes them, in order of arrival; a receive takes the
// oldest that fits.
//
// Short queues are searched from the oldest on. A long one gets an index for each kind of question
// when that is first asked: one ignore mask, with a source or without. An index that nobody asks
// any more is dropped; kinds of question beyond kMaxIndexes are answered by a search.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "core/match_bins.h"
#include "core/match_ring.h"
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
        const Entry entry{.tag = tag, .payload = record, .source = source};
        if (!ring_.has_short_room()) [[unlikely]] {
            return push_slow(entry);
        }
        ring_.append(entry);
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
        if (pos == ring_.tail()) {
            return nullptr;
        }
        U* record = ring_.at(pos).payload;
        ring_.erase(pos);
        return record;
    }

    /// As match(), but the message stays. remove() takes it out.
    U* peek(std::uint64_t tag, std::uint64_t ignore, std::uint32_t source) noexcept {
        const Question question{tag, ignore, source};
        const std::uint32_t pos = ring_.is_long() ? find_long(question) : find_short(question);
        return pos == ring_.tail() ? nullptr : ring_.at(pos).payload;
    }

    /// Takes a message out. Precondition: it is in this queue.
    void remove(U* record) noexcept {
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

    /// The oldest message for which `is_it(record)` holds, or nullptr. Cost: linear.
    template <class IsIt>
    U* find(IsIt is_it) {
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            U* record = ring_.at(pos).payload;
            if (record != nullptr && is_it(*record)) {
                return record;
            }
        }
        return nullptr;
    }

    /// Calls visit(record) for each message, oldest first. `visit` must not change the queue.
    template <class Visit>
    void for_each(Visit visit) {
        find([&](U& record) {
            visit(record);
            return false;
        });
    }

    /// Removes the messages for which `drop(record)` holds, asked oldest first. `drop` must not
    /// change the queue.
    template <class Drop>
    void remove_if(Drop drop) {
        const std::uint32_t end = ring_.tail();
        for (std::uint32_t pos = ring_.head(); pos != end; ++pos) {
            U* record = ring_.at(pos).payload;
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

    /// Forgets all messages and gives the memory back.
    void clear() noexcept {
        release_indexes();
        ring_.reset();
    }

    /// Indexes kept now; for tests and counters.
    unsigned indexes() const noexcept {
        unsigned count = 0;
        for (const Index& each : indexes_) {
            count += each.is_used;
        }
        return count;
    }
    bool is_long() const noexcept { return ring_.is_long(); }
    /// Heap memory held, in bytes.
    std::size_t memory() const noexcept {
        std::size_t bytes = ring_.heap_capacity() * sizeof(Entry);
        for (const Index& each : indexes_) {
            bytes += each.bins.capacity() * sizeof(MatchBins::Bin) +
                     each.links.capacity() * sizeof(MatchLink);
        }
        return bytes;
    }

  private:
    static constexpr unsigned kMaxIndexes = 8;

    struct Entry {
        std::uint64_t tag;
        U* payload;
        std::uint32_t source;
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
        RVT_ALWAYS_INLINE bool takes(const Entry& entry) const noexcept {
            const std::uint64_t difference = (source ^ entry.source) & source_care;
            if constexpr (kHasTags) {
                return (((tag ^ entry.tag) & care) | difference) == 0;
            } else {
                return difference == 0;
            }
        }
    };

    // All messages by (tag & care, source or kAnySourceId).
    struct Index {
        std::uint64_t care = 0;
        std::uint32_t source_care = 0;
        bool is_used = false;
        std::uint32_t idle = 0;   // messages appended since it was asked last
        std::uint32_t limit = 0;  // of `idle`
        MatchBins bins;
        MatchLinks links;

        std::uint64_t tag_of(const Entry& entry) const noexcept { return entry.tag & care; }
        std::uint32_t source_of(const Entry& entry) const noexcept {
            return source_care != 0 ? entry.source : kAnySourceId;
        }
        bool append(const Entry& entry, std::uint32_t pos) noexcept {
            if (!bins.reserve_one().is_ok()) {
                return false;
            }
            bins.append(links, tag_of(entry), source_of(entry), pos);
            return true;
        }
        void remove(const Entry& entry, std::uint32_t pos) noexcept {
            bins.remove(links, *bins.find(tag_of(entry), source_of(entry)), pos);
        }
        void release() noexcept {
            is_used = false;
            bins.release();
            links.release();
        }
    };

    RVT_ALWAYS_INLINE std::uint32_t find_short(const Question& question) noexcept {
        const std::uint32_t tail = ring_.tail();
        std::uint32_t pos = ring_.head();
        for (; pos != tail; ++pos) {
            const Entry& entry = ring_.at(pos);
            if (question.takes(entry) && entry.payload != nullptr) {
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
        const std::uint32_t pos = ring_.append(entry);
        if (!ring_.is_long()) {
            return util::kOk;
        }
        entry.payload->match_slot = pos;
        for (Index& each : indexes_) {
            // An index is a convenience: without memory, or without use, there is none.
            if (each.is_used && (each.idle++ == each.limit || !each.append(entry, pos)))
                [[unlikely]] {
                each.release();
            }
        }
        return util::kOk;
    }

    util::Status make_room() noexcept {
        const bool was_long = ring_.is_long();
        if (ring_.size() <= ring_.capacity() / 2) {
            ring_.compact();
            if (was_long) {
                note_positions();
                rebuild_indexes();
            }
            return util::kOk;
        }
        if (const util::Status grown = ring_.grow(); !grown.is_ok()) {
            return grown;
        }
        if (!was_long) {
            note_positions();
        }
        for (Index& each : indexes_) {
            if (each.is_used &&
                !each.links.reserve(ring_.capacity(), ring_.head(), ring_.tail()).is_ok()) {
                each.release();
            }
        }
        return util::kOk;
    }

    void note_positions() noexcept {
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            if (U* record = ring_.at(pos).payload) {
                record->match_slot = pos;
            }
        }
    }

    void rebuild_indexes() noexcept {
        for (Index& each : indexes_) {
            if (each.is_used) {
                each.bins.clear();
                fill(each);
            }
        }
    }

    // Precondition: the index is empty.
    [[gnu::noinline]] void fill(Index& index) noexcept {
        index.is_used = index.links.reserve(ring_.capacity(), 0, 0).is_ok();
        for (std::uint32_t pos = ring_.head(); index.is_used && pos != ring_.tail(); ++pos) {
            const Entry& entry = ring_.at(pos);
            index.is_used = entry.payload == nullptr || index.append(entry, pos);
        }
        if (!index.is_used) {
            index.release();
        }
    }

    Index* index_for(const Question& question) noexcept {
        for (Index& each : indexes_) {
            if (each.is_used && each.care == question.care &&
                each.source_care == question.source_care) {
                each.idle = 0;
                return &each;
            }
        }
        return make_index(question);
    }

    // Returns: nullptr when all are in use or there is no memory.
    [[gnu::noinline]] Index* make_index(const Question& question) noexcept {
        for (Index& each : indexes_) {
            if (!each.is_used) {
                each.care = question.care;
                each.source_care = question.source_care;
                each.idle = 0;
                each.limit =
                    4 *
                    ring_.capacity();  // to make it again would cost less than that many appends
                fill(each);
                return each.is_used ? &each : nullptr;
            }
        }
        return nullptr;
    }

    // tail() when there is none.
    std::uint32_t find_long(const Question& question) noexcept {
        if (Index* index = index_for(question)) [[likely]] {
            const MatchBins::Bin* bin =
                index->bins.find(question.tag & question.care, question.source);
            return bin == nullptr ? ring_.tail() : bin->chain.head;
        }
        return find_short(question);
    }

    [[gnu::noinline]] U* match_long(const Question& question) noexcept {
        const std::uint32_t pos = find_long(question);
        if (pos == ring_.tail()) {
            return nullptr;
        }
        U* record = ring_.at(pos).payload;
        erase_long(pos);
        shrink_if_short();
        return record;
    }

    void erase_long(std::uint32_t pos) noexcept {
        for (Index& each : indexes_) {
            if (each.is_used) {
                each.remove(ring_.at(pos), pos);
            }
        }
        ring_.erase(pos);
    }

    RVT_ALWAYS_INLINE void shrink_if_short() noexcept {
        if (ring_.size() <= ring_.kShortAgain && ring_.is_long()) [[unlikely]] {
            shrink();
        }
    }
    [[gnu::noinline]] void shrink() noexcept {
        for (Index& each : indexes_) {
            if (each.is_used) {
                empty(each);
            }
        }
        ring_.shrink();
        if (ring_.heap_capacity() == 0) {
            release_indexes();
        }
    }
    // One by one: the table may be far larger than what is left in it. Its memory stays for the
    // next time.
    void empty(Index& index) noexcept {
        for (std::uint32_t pos = ring_.head(); pos != ring_.tail(); ++pos) {
            if (ring_.at(pos).payload != nullptr) {
                index.remove(ring_.at(pos), pos);
            }
        }
        index.is_used = false;
    }

    void release_indexes() noexcept {
        for (Index& each : indexes_) {
            each.release();
        }
    }

    MatchRing<Entry> ring_;
    std::array<Index, kMaxIndexes> indexes_;  // while the queue is long
};

}  // namespace rvt::core
