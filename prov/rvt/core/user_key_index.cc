// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The chains behind UserKeyIndex.
#include "core/user_key_index.h"

#include "core/key_table.h"

#include <cstdlib>
#include <new>

namespace rvt::core {

/// calloc'ed, so that pages of a large table cost nothing before their first use.
struct UserKeyIndex::Links {
    std::uint32_t buckets;
    std::atomic<std::uint32_t>* heads;
    std::atomic<std::uint32_t>* next;  // by place
};

namespace {

std::atomic<std::uint32_t>* zeroed_words(std::uint32_t count) {
    void* words = std::calloc(count, sizeof(std::atomic<std::uint32_t>));
    if (words == nullptr) {
        throw std::bad_alloc();
    }
    return static_cast<std::atomic<std::uint32_t>*>(words);
}

}  // namespace

UserKeyIndex::~UserKeyIndex() {
    // relaxed: nobody else uses the table any more.
    Links* links = links_.load(std::memory_order_relaxed);
    if (links != nullptr) {
        std::free(links->heads);
        std::free(links->next);
        delete links;
    }
}

std::uint32_t UserKeyIndex::bucket_of(const Links& links, std::uint64_t key) noexcept {
    // Applications number their keys 0, 1, 2, ... or use addresses: mix before taking low bits.
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u;
    return static_cast<std::uint32_t>(key >> 32) & (links.buckets - 1);
}

std::uint32_t UserKeyIndex::find(const KeyEntry* entries, std::uint64_t user_key) const noexcept {
    // acquire: pairs with the release in insert(); the arrays are there.
    const Links* links = links_.load(std::memory_order_acquire);
    if (links == nullptr) {
        return kNone;
    }
    // acquire: pairs with the release in insert(); the entry's fields are there.
    std::uint32_t place = links->heads[bucket_of(*links, user_key)].load(std::memory_order_acquire);
    // relaxed: the entry's user key was written before the link that led here.
    while (place != kNone && entries[place].user_key.load(std::memory_order_relaxed) != user_key) {
        // acquire: pairs with the release in insert().
        place = links->next[place].load(std::memory_order_acquire);
    }
    return place;
}

void UserKeyIndex::insert(const KeyEntry* entries, std::uint32_t capacity, std::uint32_t place) {
    // relaxed: only the caller, who is alone, writes it.
    Links* links = links_.load(std::memory_order_relaxed);
    if (links == nullptr) {
        auto fresh = std::make_unique<Links>();
        fresh->buckets = capacity >= 8 ? capacity / 4 : 2;
        fresh->heads = zeroed_words(fresh->buckets);
        fresh->next = zeroed_words(capacity);
        links = fresh.release();
        // release: pairs with the acquire in find().
        links_.store(links, std::memory_order_release);
    }
    // relaxed: only the caller writes entries, heads and links.
    const std::uint64_t user_key = entries[place].user_key.load(std::memory_order_relaxed);
    auto& head = links->heads[bucket_of(*links, user_key)];
    // relaxed: as above; the place is not in a chain yet.
    const std::uint32_t first = head.load(std::memory_order_relaxed);
    // release: pairs with the acquire in find(), as does the next one.
    links->next[place].store(first, std::memory_order_release);
    head.store(place, std::memory_order_release);
}

void UserKeyIndex::erase(const KeyEntry* entries, std::uint32_t place) noexcept {
    // relaxed: only the caller, who is alone, writes what is read here.
    constexpr auto kAlone = std::memory_order_relaxed;
    Links* links = links_.load(kAlone);
    if (links == nullptr) {
        return;
    }
    auto* link = &links->heads[bucket_of(*links, entries[place].user_key.load(kAlone))];
    while (link->load(kAlone) != kNone && link->load(kAlone) != place) {
        link = &links->next[link->load(kAlone)];
    }
    if (link->load(kAlone) == place) {
        // release: pairs with the acquire in find(); readers at `place` still find the way on.
        link->store(links->next[place].load(kAlone), std::memory_order_release);
    }
}

}  // namespace rvt::core
