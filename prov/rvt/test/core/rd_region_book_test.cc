// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is remembered of a peer's regions, and when the peer is asked for one.
#include "core/rd_region_book.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/check.h"

using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using rvt::Access;

namespace {

struct Mapped {};
using Book = RdRegionBook<Mapped>;
using State = Book::Entry::State;

constexpr std::uint32_t kPd = 3;
constexpr std::size_t kMany = 5000;
constexpr std::uint64_t kSmall = 64;
constexpr std::uint64_t kLarge = Book::kBytesBeforeAsking;

/// A peer's key table, and what is known of it.
struct Peer {
    Peer() { book.open(table->view(), kPd); }

    std::uint32_t add(bool indirect = false) {
        return table
            ->add({.addr = 4096,
                   .length = 1 << 20,
                   .access = Access::kRemoteWrite,
                   .pd = kPd,
                   .indirect = indirect})
            .value();
    }
    void remove(std::uint32_t key) { RVT_ASSERT(table->remove(key, 0).is_ok()); }
    /// Whether an access of so many bytes has the peer asked for the region.
    bool asks(std::uint32_t key, std::uint64_t bytes) {
        return book.count_access(book.enter(key), key, bytes);
    }
    void open(std::uint32_t key) {
        RVT_ASSERT(asks(key, kLarge));
        book.answered(*book.find(key), std::make_unique<Mapped>());
    }
    void refuse(std::uint32_t key) { book.answered(*book.find(key), nullptr); }
    /// Asks for regions that cannot be opened until it is not done any more.
    void refuse_many() {
        for (unsigned i = 0; i < Book::kMostInVain; ++i) {
            const std::uint32_t key = add();
            RVT_ASSERT(asks(key, kLarge));
            refuse(key);
        }
    }

    std::size_t bytes = KeyTable::block_bytes(2 * kMany);
    std::unique_ptr<void, void (*)(void*)> block{calloc_aligned(bytes), std::free};
    std::unique_ptr<KeyTable> table = KeyTable::create(block.get(), bytes).take();
    Book book;

  private:
    static void* calloc_aligned(std::size_t bytes) {
        return std::memset(std::aligned_alloc(64, bytes), 0, bytes);
    }
};

}  // namespace

Test(rd_region_book, regions_that_come_and_go_leave_little_behind) {
    Peer peer;
    for (std::size_t i = 0; i < kMany; ++i) {
        const std::uint32_t key = peer.add();
        peer.book.learn_own_key(i, key);
        RVT_ASSERT(!peer.asks(key, kSmall));
        peer.remove(key);
        RVT_ASSERT(peer.book.size() <= 256);
    }
}

Test(rd_region_book, what_is_registered_is_remembered_among_what_comes_and_goes) {
    Peer peer;
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < kMany; ++i) {
        const std::uint32_t key = peer.add();
        peer.book.learn_own_key(i, key);
        peer.book.enter(key).accesses = 1;
        if (i % 10 == 0) {
            kept.push_back(key);
        } else {
            peer.remove(key);
        }
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
        RVT_ASSERT(peer.book.own_key(10 * i) == kept[i]);
        RVT_ASSERT(peer.book.find(kept[i]) != nullptr);
        RVT_EQ(peer.book.find(kept[i])->accesses, 1);
    }
}

Test(rd_region_book, a_region_is_asked_for_once_when_it_is_used_for_much_or_often) {
    Peer peer;
    const std::uint32_t large = peer.add();
    RVT_ASSERT(peer.asks(large, kLarge));
    RVT_ASSERT(!peer.asks(large, kLarge));
    const std::uint32_t often = peer.add();
    for (std::uint32_t i = 1; i < Book::kAccessesBeforeAsking; ++i) {
        RVT_ASSERT(!peer.asks(often, kSmall));
    }
    RVT_ASSERT(peer.asks(often, kSmall));
    peer.refuse(often);
    RVT_ASSERT(!peer.asks(often, kSmall));
}

Test(rd_region_book, after_several_in_vain_a_region_is_asked_for_when_it_is_used_often) {
    Peer peer;
    peer.refuse_many();
    const std::uint32_t key = peer.add();
    for (std::uint32_t i = 1; i < Book::kAccessesBeforeAsking; ++i) {
        RVT_ASSERT(!peer.asks(key, kLarge));
    }
    RVT_ASSERT(peer.asks(key, kLarge));
}

Test(rd_region_book, those_that_are_not_answered_yet_count_as_in_vain) {
    Peer peer;
    for (unsigned i = 0; i < Book::kMostInVain; ++i) {
        RVT_ASSERT(peer.asks(peer.add(), kLarge));
    }
    RVT_ASSERT(!peer.asks(peer.add(), kLarge));
}

Test(rd_region_book, one_that_is_opened_makes_up_for_those_in_vain) {
    Peer peer;
    peer.refuse_many();
    const std::uint32_t key = peer.add();
    while (!peer.asks(key, kLarge)) {
    }
    peer.book.answered(*peer.book.find(key), std::make_unique<Mapped>());
    RVT_ASSERT(peer.book.find(key)->state == State::kOpen);
    RVT_ASSERT(peer.asks(peer.add(), kLarge));
}

Test(rd_region_book, regions_of_devices_are_asked_for_however_many_others_were_in_vain) {
    Peer peer;
    peer.refuse_many();
    RVT_ASSERT(peer.asks(peer.add(true), kLarge));
}

Test(rd_region_book, with_one_that_is_opened_those_go_that_are_closed) {
    Peer peer;
    const std::uint32_t closed = peer.add();
    const std::uint32_t kept = peer.add();
    peer.open(closed);
    peer.open(kept);
    peer.remove(closed);
    const std::uint32_t next = peer.add();
    peer.open(next);
    RVT_ASSERT(peer.book.find(closed) == nullptr);
    RVT_ASSERT(peer.book.find(kept)->region != nullptr);
    RVT_ASSERT(peer.book.find(next)->region != nullptr);
}

Test(rd_region_book, another_peer_begins_with_an_empty_page) {
    Peer peer;
    peer.refuse_many();
    peer.book.learn_own_key(1, peer.add());
    peer.book.open(peer.table->view(), kPd);
    RVT_EQ(peer.book.size(), 0);
    RVT_ASSERT(!peer.book.own_key(1).has_value());
    RVT_ASSERT(peer.asks(peer.add(), kLarge));
}
