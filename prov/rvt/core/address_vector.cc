// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Numbers for addresses: chunks of entries that never move, and a hash from the address back to its
// numbers.
#include "core/address_vector.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <new>

namespace rvt::core {
namespace {

constexpr std::size_t kMinHashSlots = 64;

struct Place {
    std::size_t chunk;
    std::size_t offset;
};

/// Chunk k covers the numbers from first * (2^k - 1) up to first * (2^(k+1) - 1).
Place place_of(std::uint64_t index, std::size_t first) noexcept {
    const std::uint64_t power = std::bit_floor(index / first + 1);  // 2^k
    return {static_cast<std::size_t>(std::countr_zero(power)), index - first * (power - 1)};
}

}  // namespace

AddressVector::~AddressVector() {
    for (std::atomic<Entry*>& chunk : chunks_) {
        // relaxed: nobody else is left.
        std::free(chunk.load(std::memory_order_relaxed));
    }
}

AddressVector::Entry* AddressVector::entry_at(std::uint64_t index) const noexcept {
    if (index >= kFirstChunk * ((std::uint64_t{1} << kMaxChunks) - 1)) {
        return nullptr;
    }
    const Place place = place_of(index, kFirstChunk);
    // acquire: pairs with the release in add_chunk_of_locked().
    Entry* chunk = chunks_[place.chunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + place.offset;
}

const util::SockAddr* AddressVector::at(std::uint64_t index) const noexcept {
    const Entry* entry = entry_at(index);
    // acquire: pairs with the release in insert(): who sees the mark sees the address.
    const bool is_used = entry != nullptr && entry->is_used.load(std::memory_order_acquire);
    return is_used ? &entry->address : nullptr;
}

util::Result<std::uint64_t> AddressVector::insert(const util::SockAddr& address) {
    const std::shared_lock telling(telling_);
    std::vector<AddressObserver*> observers;
    std::uint64_t index = 0;
    {
        const util::Guard guard(lock_);
        reserve_hash_locked();
        observers = observers_;
        util::Result<std::uint64_t> taken = take_index_locked();
        if (!taken.is_ok()) {
            return taken.status();
        }
        index = taken.value();
        Entry* entry = entry_at(index);
        entry->address = address;
        // release: pairs with the acquire in at().
        entry->is_used.store(true, std::memory_order_release);
        hash_locked(index);
        ++count_;
    }
    for (AddressObserver* observer : observers) {
        observer->address_inserted(index, address);
    }
    return index;
}

util::Status AddressVector::remove(std::uint64_t index) {
    const std::shared_lock telling(telling_);
    std::vector<AddressObserver*> observers;
    util::SockAddr address;
    {
        const util::Guard guard(lock_);
        if (at(index) == nullptr) {
            return ENOENT;
        }
        reserve_free_locked();
        observers = observers_;
        Entry* entry = entry_at(index);
        address = entry->address;
        unhash_locked(index);
        // release: pairs with the acquire in at().
        entry->is_used.store(false, std::memory_order_release);
        --count_;
        ++leaving_;
    }
    for (AddressObserver* observer : observers) {
        observer->address_removed(index, address);
    }
    // Only now may the number be given out again: the observers have forgotten it.
    const util::Guard guard(lock_);
    free_.push_back(index);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
    --leaving_;
    return util::kOk;
}

util::Result<std::uint64_t> AddressVector::find(const util::SockAddr& address) const {
    const util::Guard guard(lock_);
    if (by_hash_.empty()) {
        return ENOENT;
    }
    const std::size_t mask = by_hash_.size() - 1;
    std::uint64_t lowest = ~std::uint64_t{0};
    for (std::size_t slot = address.hash() & mask; by_hash_[slot] != 0; slot = (slot + 1) & mask) {
        const std::uint64_t index = by_hash_[slot] - 1;
        if (index < lowest && entry_at(index)->address == address) {
            lowest = index;
        }
    }
    if (lowest == ~std::uint64_t{0}) {
        return ENOENT;
    }
    return lowest;
}

std::size_t AddressVector::size() const noexcept {
    const util::Guard guard(lock_);
    return count_;
}

void AddressVector::add_observer(AddressObserver* observer) {
    const util::Guard guard(lock_);
    observers_.push_back(observer);
}

void AddressVector::remove_observer(AddressObserver* observer) {
    const std::unique_lock told(telling_);
    const util::Guard guard(lock_);
    std::erase(observers_, observer);
}

util::Result<std::uint64_t> AddressVector::take_index_locked() {
    if (!free_.empty()) {
        std::pop_heap(free_.begin(), free_.end(), std::greater<>());
        const std::uint64_t index = free_.back();
        free_.pop_back();
        return index;
    }
    if (entry_at(next_) == nullptr) {
        const util::Status added = add_chunk_of_locked(next_);
        if (!added.is_ok()) {
            return added;
        }
    }
    return next_++;
}

util::Status AddressVector::add_chunk_of_locked(std::uint64_t index) {
    const Place place = place_of(index, kFirstChunk);
    if (place.chunk >= kMaxChunks) {
        return ENOMEM;
    }
    // calloc: pages that no entry has reached yet cost nothing; all-zero is an unused entry.
    auto* chunk = static_cast<Entry*>(std::calloc(kFirstChunk << place.chunk, sizeof(Entry)));
    if (chunk == nullptr) {
        return ENOMEM;
    }
    // release: pairs with the acquire in entry_at().
    chunks_[place.chunk].store(chunk, std::memory_order_release);
    return util::kOk;
}

/// Makes room for one more removed number, besides those that other threads are about to give back.
void AddressVector::reserve_free_locked() {
    const std::size_t needed = free_.size() + leaving_ + 1;
    if (needed > free_.capacity()) {
        free_.reserve(std::max(needed, free_.capacity() * 2));
    }
}

/// Keeps the table at most three quarters full, one more address included.
void AddressVector::reserve_hash_locked() {
    if ((count_ + 1) * 4 <= by_hash_.size() * 3) {
        return;
    }
    const std::size_t slots = std::max(kMinHashSlots, by_hash_.size() * 2);
    std::vector<std::uint32_t> old(slots);
    old.swap(by_hash_);
    for (const std::uint32_t slot : old) {
        if (slot != 0) {
            hash_locked(slot - 1);
        }
    }
}

void AddressVector::hash_locked(std::uint64_t index) {
    const std::size_t mask = by_hash_.size() - 1;
    std::size_t slot = entry_at(index)->address.hash() & mask;
    while (by_hash_[slot] != 0) {
        slot = (slot + 1) & mask;
    }
    by_hash_[slot] = static_cast<std::uint32_t>(index + 1);
}

std::size_t AddressVector::slot_of_locked(std::uint64_t index) const {
    const std::size_t mask = by_hash_.size() - 1;
    std::size_t slot = entry_at(index)->address.hash() & mask;
    while (by_hash_[slot] != index + 1) {
        slot = (slot + 1) & mask;
    }
    return slot;
}

/// Takes an entry out and moves later ones of its run back, so that no search stops too early.
void AddressVector::unhash_locked(std::uint64_t index) {
    const std::size_t mask = by_hash_.size() - 1;
    std::size_t hole = slot_of_locked(index);
    for (std::size_t slot = (hole + 1) & mask; by_hash_[slot] != 0; slot = (slot + 1) & mask) {
        const std::size_t home = entry_at(by_hash_[slot] - 1)->address.hash() & mask;
        if (((slot - home) & mask) >= ((slot - hole) & mask)) {
            by_hash_[hole] = by_hash_[slot];
            hole = slot;
        }
    }
    by_hash_[hole] = 0;
}

}  // namespace rvt::core
