// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What this process knows of a peer's regions: the peer's own key for one that the application
// chose, and whether the memory is open here. Regions come and go, and the peer says so of few of
// them: its key table does, of all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/key_table.h"

namespace rvt::core {

/// @tparam Region  Memory of the peer that is open here.
/// @tparam Hash    Of keys; another one counts look-ups for tests.
///
/// Memory:  in proportion to the regions that the peer has registered now and that were accessed.
/// Threads: one at a time.
template <class Region, class Hash = std::hash<std::uint64_t>>
class RdRegionBook {
  public:
    struct Entry {
        enum class State : std::uint8_t { kUnknown, kAsked, kRefused, kOpen };
        State state = State::kUnknown;
        std::uint32_t accesses = 0;  // before it was asked for
        std::uint32_t version = 0;   // KeyHit::version of the region that all this is about
        std::unique_ptr<Region> region;
    };

    /// A region is asked for once it has been accessed so often,
    static constexpr std::uint32_t kAccessesBeforeAsking = 8;
    /// or for so many bytes at once,
    static constexpr std::uint64_t kBytesBeforeAsking = 16 * 1024;
    /// unless so many were asked for in vain: to look up what memory is costs the peer far more
    /// than a copy. Memory that an application registers for one transfer is seldom of a kind that
    /// can be opened.
    static constexpr unsigned kMostInVain = 4;

    /// Begins anew, with a peer whose table this is, and whose keys are those of that domain.
    void open(const KeyView& table, std::uint32_t pd) noexcept {
        clear();
        table_ = table;
        pd_ = pd;
    }
    void clear() noexcept {
        last_entry_ = nullptr;
        last_key_.reset();
        entries_.clear();
        own_keys_.clear();
        entries_limit_ = own_keys_limit_ = kLeastLimit;
        in_vain_ = 0;
    }

    /// The peer's own key for the application's, if it is known.
    [[nodiscard]] std::optional<std::uint32_t> own_key(std::uint64_t user_key) noexcept {
        if (last_key_.has_value() && last_key_->user == user_key) [[likely]] {
            return last_key_->own;
        }
        const auto known = own_keys_.find(user_key);
        if (known == own_keys_.end()) {
            return std::nullopt;
        }
        last_key_ = OwnKey{.user = user_key, .own = known->second};
        return known->second;
    }
    void learn_own_key(std::uint64_t user_key, std::uint32_t own) {
        const OwnKey learnt{.user = user_key, .own = own};
        if (last_key_ == learnt) [[likely]] {
            return;
        }
        const auto is_live = [this](const auto& one) { return is_registered(one.second); };
        make_room(own_keys_, own_keys_limit_, is_live);
        own_keys_[user_key] = own;
        last_key_ = learnt;
    }
    /// Returns: whether it was known.
    bool forget_own_key(std::uint64_t user_key) noexcept {
        if (last_key_.has_value() && last_key_->user == user_key) {
            last_key_.reset();
        }
        return own_keys_.erase(user_key) != 0;
    }

    /// Returns: nullptr for a region of which nothing is known. Valid until the next enter(),
    ///          find_current(), count_access(), erase().
    [[nodiscard]] Entry* find(std::uint32_t own) noexcept {
        if (last_entry_ != nullptr && last_own_ == own) [[likely]] {
            return last_entry_;
        }
        const auto known = entries_.find(own);
        return known != entries_.end() ? &remember(own, known->second) : nullptr;
    }
    /// As find(), but there may be nothing known yet.
    Entry& enter(std::uint32_t own) {
        if (Entry* const known = find(own)) [[likely]] {
            return *known;
        }
        const auto is_live = [this](const auto& one) { return is_registered(one.first); };
        make_room(entries_, entries_limit_, is_live);
        Entry& entry = entries_[own];
        entry.version = table_.version_of(own);
        return remember(own, entry);
    }
    /// As find(), of a region that was just looked up. What is known of one that the peer has
    /// changed in its place since is forgotten, or will be when the peer has answered.
    [[nodiscard]] Entry* find_current(std::uint32_t own, std::uint32_t version) noexcept {
        Entry* const known = find(own);
        if (known != nullptr && known->version != version) [[unlikely]] {
            erase(own);
            return nullptr;
        }
        return known;
    }
    /// One that is asked for stays until the peer has answered: its answer is not taken for that to
    /// a later question.
    void erase(std::uint32_t own) noexcept {
        const auto known = entries_.find(own);
        if (known != entries_.end() && known->second.state == State::kAsked) {
            known->second.version = kNoVersion;
            return;
        }
        if (last_own_ == own) {
            last_entry_ = nullptr;
        }
        if (known != entries_.end()) {
            entries_.erase(known);
        }
    }

    /// Counts an access of `bytes`. Returns: whether the peer is to be asked for the region now,
    ///                                       which has been noted.
    bool count_access(Entry& entry, std::uint32_t own, std::uint64_t bytes) noexcept {
        const bool is_often = ++entry.accesses >= kAccessesBeforeAsking;
        if (entry.state == State::kRefused && entry.accesses % kAccessesPerLook == 0 &&
            entry.version != table_.version_of(own)) {
            begin_anew(entry, own);  // changed in its place: it may be one that can be opened
            return false;
        }
        if (entry.state != State::kUnknown ||
            (!is_often && (bytes < kBytesBeforeAsking || is_in_vain(own)))) {
            return false;
        }
        entry.state = State::kAsked;
        ++in_vain_;
        return true;
    }
    /// The peer's answer for an entry that is kAsked; nullptr: it cannot be opened. With one that
    /// can, those go that the peer has closed: their memory is not free before. Of a region that
    /// was changed since nothing is known again.
    void answered(Entry& entry, std::uint32_t own, std::unique_ptr<Region> region) noexcept {
        if (entry.version != table_.version_of(own)) {
            begin_anew(entry, own);  // the answer is about what the region was
            return;
        }
        entry.state = region != nullptr ? State::kOpen : State::kRefused;
        entry.region = std::move(region);
        if (entry.region != nullptr) {
            in_vain_ = 0;
            last_entry_ = nullptr;  // it may be among them
            std::erase_if(entries_, [&](const auto& one) {
                return &one.second != &entry && one.second.region != nullptr &&
                       !is_registered(one.first);
            });
        }
    }

    /// Of regions, and of keys that the application chose. For tests.
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size() + own_keys_.size(); }

  private:
    using State = typename Entry::State;

    struct OwnKey {
        std::uint64_t user;
        std::uint32_t own;

        bool operator==(const OwnKey&) const noexcept = default;
    };

    static constexpr std::size_t kLeastLimit = 64;
    /// To look for a change of a region that was refused costs a line of the peer's key table.
    static constexpr std::uint32_t kAccessesPerLook = 64;
    static constexpr std::uint32_t kNoVersion = 1;  // they are even

    void begin_anew(Entry& entry, std::uint32_t own) noexcept {
        entry.state = State::kUnknown;
        entry.accesses = 0;
        entry.version = table_.version_of(own);
        entry.region.reset();
    }

    Entry& remember(std::uint32_t own, Entry& entry) noexcept {
        last_own_ = own;
        last_entry_ = &entry;
        return entry;
    }

    [[nodiscard]] bool is_registered(std::uint32_t own) const noexcept {
        return table_.access_of(own, pd_).is_ok();
    }

    /// What is of a device, or in several buffers, is another matter.
    [[nodiscard]] bool is_in_vain(std::uint32_t own) const noexcept {
        if (in_vain_ < kMostInVain) {
            return false;
        }
        const auto region = table_.region(own, pd_, Access::kNone);
        return !region.is_ok() || !region.value().indirect;
    }

    /// Before one comes in, which is what was found last from then on. What the peer has no more is
    /// looked for as often as the map doubles.
    template <class Map, class IsLive>
    static void make_room(Map& map, std::size_t& limit, IsLive is_live) noexcept {
        if (map.size() >= limit) {
            std::erase_if(map, [&](const auto& one) { return !is_live(one); });
            limit = std::max(kLeastLimit, 2 * map.size());
        }
    }

    // What was found last in the two maps, as it stands there: most look-ups are for the same
    // again, several for each access.
    Entry* last_entry_ = nullptr;  // a node of the map, which does not move; nullptr: none
    std::uint32_t last_own_ = 0;   // its key
    std::optional<OwnKey> last_key_;
    KeyView table_;
    std::uint32_t pd_ = 0;
    unsigned in_vain_ = 0;  // asked for since the last one that was opened
    std::unordered_map<std::uint32_t, Entry, Hash> entries_;  // by the peer's own key
    std::size_t entries_limit_ = kLeastLimit;
    std::unordered_map<std::uint64_t, std::uint32_t, Hash> own_keys_;  // by the application's
    std::size_t own_keys_limit_ = kLeastLimit;
};

}  // namespace rvt::core
