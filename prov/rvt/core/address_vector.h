// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The address vector: numbers for the addresses of peers, as address handles of verbs. Shared by
// the endpoints that are bound to it (fi_av(3)).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "util/annotations.h"
#include "util/mutex.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::core {

/// Told of changes, so that an endpoint can connect what it knows of a peer with the peer's number.
class AddressObserver {
  public:
    virtual ~AddressObserver() = default;
    /// Threads: the caller of insert() or remove(); the vector's own lock is not held.
    virtual void address_inserted(std::uint64_t index, const util::SockAddr& address) noexcept = 0;
    virtual void address_removed(std::uint64_t index, const util::SockAddr& address) noexcept = 0;
};

/// Threads: any. at() takes no lock; entries never move.
/// Cost:    at most 48 bytes for an address that is never used.
class AddressVector {
  public:
    AddressVector() = default;
    ~AddressVector();
    AddressVector(const AddressVector&) = delete;
    AddressVector& operator=(const AddressVector&) = delete;

    /// Gives the address a number: the lowest free one. An address inserted twice gets two numbers.
    /// Returns: ENOMEM.
    util::Result<std::uint64_t> insert(const util::SockAddr& address);
    /// Returns: ENOENT when the number is not in use.
    util::Status remove(std::uint64_t index);
    /// The address of a number, or nullptr. Valid until the number is removed.
    const util::SockAddr* at(std::uint64_t index) const noexcept;
    /// The lowest number of an address. Returns: ENOENT.
    util::Result<std::uint64_t> find(const util::SockAddr& address) const;
    std::size_t size() const noexcept;

    void add_observer(AddressObserver* observer);
    /// It is told of nothing from then on. Precondition: the caller holds no lock that observers
    /// take.
    void remove_observer(AddressObserver* observer);

  private:
    // Chunk k holds kFirstChunk << k entries, so a few pointers serve any size.
    static constexpr std::size_t kFirstChunk = 256;
    static constexpr std::size_t kMaxChunks = 17;  // 32 Mi addresses
    struct Entry {
        util::SockAddr address;
        std::atomic<bool> is_used{false};
    };
    static_assert(sizeof(Entry) <= 28);

    Entry* entry_at(std::uint64_t index) const noexcept;
    util::Result<std::uint64_t> take_index_locked() RVT_REQUIRES(lock_);
    util::Status add_chunk_of_locked(std::uint64_t index) RVT_REQUIRES(lock_);
    void reserve_free_locked() RVT_REQUIRES(lock_);
    void reserve_hash_locked() RVT_REQUIRES(lock_);
    std::size_t slot_of_locked(std::uint64_t index) const RVT_REQUIRES(lock_);
    void hash_locked(std::uint64_t index) RVT_REQUIRES(lock_);
    void unhash_locked(std::uint64_t index) RVT_REQUIRES(lock_);

    // Held shared while observers are told; order: before theirs.
    std::shared_mutex telling_;
    mutable util::Mutex lock_;  // order: innermost, held only inside this class
    std::array<std::atomic<Entry*>, kMaxChunks> chunks_{};
    std::vector<std::uint64_t> free_ RVT_GUARDED_BY(lock_);  // a heap, lowest first
    std::size_t leaving_ RVT_GUARDED_BY(lock_) = 0;  // numbers that are neither used nor free yet
    std::uint64_t next_ RVT_GUARDED_BY(lock_) = 0;
    std::size_t count_ RVT_GUARDED_BY(lock_) = 0;
    // Open addressing from the hash of an address to its numbers plus one (0: free).
    std::vector<std::uint32_t> by_hash_ RVT_GUARDED_BY(lock_);
    std::vector<AddressObserver*> observers_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::core
