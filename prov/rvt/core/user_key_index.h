// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Finds the place in the key table of a key that the application chose: a hash of chains that
// readers walk without a lock. Part of KeyTable; nobody else calls it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace rvt::core {

struct KeyEntry;

/// Chains of places, linked through an array of their own beside the table.
///
/// A place that was taken out keeps its link, and the table reuses it only after the readers that
/// were pinned at its removal are gone: so a walk never strays into another chain.
///
/// field   | written by        | read by | order
/// heads_  | lock holder       | all     | release / acquire
/// next_   | lock holder       | all     | release / acquire
class UserKeyIndex {
  public:
    UserKeyIndex() = default;
    ~UserKeyIndex();
    UserKeyIndex(const UserKeyIndex&) = delete;
    UserKeyIndex& operator=(const UserKeyIndex&) = delete;

    static constexpr std::uint32_t kNone = 0;  // place 0 is the table's header

    /// The place whose entry holds `user_key`, or kNone.
    /// Threads: any that holds a ReadPin.
    [[nodiscard]] std::uint32_t find(const KeyEntry* entries,
                                     std::uint64_t user_key) const noexcept;

    /// Adds a place whose entry already holds its user key. The first call allocates for `capacity`
    /// places and may throw bad_alloc. Threads: one at a time.
    void insert(const KeyEntry* entries, std::uint32_t capacity, std::uint32_t place);

    /// Takes a place out, if it is in. Threads: one at a time.
    void erase(const KeyEntry* entries, std::uint32_t place) noexcept;

  private:
    struct Links;
    [[nodiscard]] static std::uint32_t bucket_of(const Links& links, std::uint64_t key) noexcept;

    std::atomic<Links*> links_{nullptr};
};

}  // namespace rvt::core
