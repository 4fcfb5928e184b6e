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

/// Of keys.
struct CountedHash {
    static inline std::size_t uses = 0;

    std::size_t operator()(std::uint64_t key) const noexcept {
        ++uses;
        return key;
    }
};
using Book = RdRegionBook<Mapped, CountedHash>;
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
        book.answered(*book.find(key), key, std::make_unique<Mapped>());
    }
    /// An access of a few bytes, as far as the book is asked for it.
    void access(std::uint64_t user_key, std::uint32_t key) {
        RVT_ASSERT(book.own_key(user_key) == key);
        asks(key, kSmall);
        RVT_ASSERT(book.find(key) != nullptr);
        book.learn_own_key(user_key, key);
    }
    void refuse(std::uint32_t key) { book.answered(*book.find(key), key, nullptr); }
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
    peer.book.answered(*peer.book.find(key), key, std::make_unique<Mapped>());
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

// ---- what was found last ----

Test(rd_region_book, nothing_is_looked_up_for_one_region_again_and_again) {
    Peer peer;
    const std::uint32_t key = peer.add();
    const std::uint32_t other = peer.add();
    peer.book.learn_own_key(1, key);
    peer.book.learn_own_key(2, other);
    for (const std::uint64_t user_key : {1u, 2u, 1u}) {
        const std::uint32_t own = user_key == 1 ? key : other;
        peer.access(user_key, own);
        const std::size_t before = CountedHash::uses;
        for (unsigned i = 0; i < 100; ++i) {
            peer.access(user_key, own);
        }
        RVT_EQ(CountedHash::uses, before);
    }
    RVT_EQ(peer.book.find(key)->accesses, 202);
    RVT_EQ(peer.book.find(other)->accesses, 101);
}

Test(rd_region_book, nothing_is_found_any_more_of_a_peer_that_is_gone) {
    Peer peer;
    const std::uint32_t key = peer.add();
    peer.book.learn_own_key(1, key);
    peer.access(1, key);
    peer.book.clear();
    RVT_ASSERT(!peer.book.own_key(1).has_value());
    RVT_ASSERT(peer.book.find(key) == nullptr);
    RVT_EQ(peer.book.enter(key).accesses, 0);
    peer.book.learn_own_key(1, key);
    RVT_EQ(peer.book.size(), 2);
}

Test(rd_region_book, one_that_is_erased_is_not_found_any_more_and_others_are) {
    Peer peer;
    const std::uint32_t key = peer.add();
    const std::uint32_t other = peer.add();
    peer.book.enter(other).accesses = 2;
    peer.book.enter(key).accesses = 1;
    peer.book.erase(other);
    RVT_EQ(peer.book.find(key)->accesses, 1);
    peer.book.erase(key);
    RVT_ASSERT(peer.book.find(key) == nullptr);
    RVT_ASSERT(peer.book.find(other) == nullptr);
    RVT_EQ(peer.book.enter(key).accesses, 0);
}

Test(rd_region_book, a_key_that_is_forgotten_is_not_found_any_more_and_others_are) {
    Peer peer;
    const std::uint32_t key = peer.add();
    const std::uint32_t other = peer.add();
    peer.book.learn_own_key(2, other);
    peer.book.learn_own_key(1, key);
    RVT_ASSERT(peer.book.forget_own_key(2));
    RVT_ASSERT(peer.book.own_key(1) == key);
    RVT_ASSERT(peer.book.forget_own_key(1));
    RVT_ASSERT(!peer.book.own_key(1).has_value());
    RVT_ASSERT(!peer.book.own_key(2).has_value());
    RVT_ASSERT(!peer.book.forget_own_key(1));
    peer.book.learn_own_key(1, key);
    RVT_EQ(peer.book.size(), 1);
}

Test(rd_region_book, what_is_closed_is_not_found_any_more_once_others_need_its_room) {
    Peer peer;
    const std::uint32_t closed = peer.add();
    constexpr std::uint32_t kRoom = 64;  // then what is closed is looked for
    for (std::uint32_t i = 0; i < kRoom; ++i) {
        const std::uint32_t key = i == 0 ? closed : peer.add();
        peer.book.enter(key).accesses = 1;
        peer.book.learn_own_key(i, key);
    }
    RVT_ASSERT(peer.book.own_key(0) == closed);
    RVT_EQ(peer.book.find(closed)->accesses, 1);
    peer.remove(closed);
    const std::uint32_t next = peer.add();
    peer.book.enter(next);
    peer.book.learn_own_key(kRoom, next);
    RVT_EQ(peer.book.size(), 2 * kRoom);  // as before: there was one that was closed
    RVT_ASSERT(!peer.book.own_key(0).has_value());
    RVT_ASSERT(peer.book.find(closed) == nullptr);
    RVT_EQ(peer.book.enter(closed).accesses, 0);
    peer.access(kRoom, next);
}

Test(rd_region_book, one_that_is_closed_goes_though_it_was_found_last) {
    Peer peer;
    const std::uint32_t closed = peer.add();
    const std::uint32_t next = peer.add();
    peer.open(closed);
    RVT_ASSERT(peer.asks(next, kLarge));
    Book::Entry& asked = *peer.book.find(next);
    RVT_ASSERT(peer.book.find(closed)->state == State::kOpen);
    peer.remove(closed);
    peer.book.answered(asked, next, std::make_unique<Mapped>());
    RVT_ASSERT(peer.book.find(closed) == nullptr);
    RVT_ASSERT(peer.book.enter(closed).state == State::kUnknown);
    RVT_ASSERT(peer.book.find(next)->state == State::kOpen);
}

/// The peer has registered other memory by the application's key.
Test(rd_region_book, a_key_stands_for_what_was_learnt_last) {
    Peer peer;
    const std::uint32_t first = peer.add();
    const std::uint32_t second = peer.add();
    peer.book.learn_own_key(1, first);
    peer.access(1, first);
    peer.book.learn_own_key(1, second);
    peer.access(1, second);
    peer.book.learn_own_key(2, first);
    RVT_ASSERT(peer.book.own_key(1) == second);
    RVT_ASSERT(peer.book.own_key(2) == first);
}

/// What the engine does when the peer's table does not permit an access, since the peer's own key
/// is another region's by now.
Test(rd_region_book, a_key_that_has_come_round_is_the_other_regions_alone) {
    Peer peer;
    const std::uint32_t key = peer.add();
    peer.book.learn_own_key(1, key);
    peer.open(key);
    peer.access(1, key);
    peer.book.learn_own_key(2, key);
    RVT_ASSERT(peer.book.own_key(1) == key);
    peer.book.erase(key);
    RVT_ASSERT(peer.book.forget_own_key(1));
    RVT_ASSERT(!peer.book.own_key(1).has_value());
    RVT_ASSERT(peer.book.own_key(2) == key);
    RVT_ASSERT(peer.book.find(key) == nullptr);
    RVT_ASSERT(peer.book.enter(key).state == State::kUnknown);
}

/// Another file lies there now, or the key leads elsewhere.
Test(rd_region_book, what_is_known_of_a_region_ends_when_the_peer_changes_it_in_its_place) {
    Peer peer;
    const KeyView view = peer.table->view();
    const std::uint32_t key = peer.add();
    peer.open(key);
    RVT_ASSERT(peer.book.find_current(key, view.version_of(key)) == peer.book.find(key));
    RVT_ASSERT(peer.table->renew(key).is_ok());
    RVT_ASSERT(peer.book.find_current(key, view.version_of(key)) == nullptr);
    RVT_ASSERT(peer.book.find(key) == nullptr);
    peer.open(key);
    RVT_ASSERT(peer.book.find_current(key, view.version_of(key))->state == State::kOpen);
    RVT_ASSERT(peer.table->replace(key, {.addr = 64, .length = 64, .pd = kPd}, 0).is_ok());
    RVT_ASSERT(peer.book.find_current(key, view.version_of(key)) == nullptr);
}

/// An access finds the change before the answer to the first question comes.
Test(rd_region_book, a_late_answer_is_not_taken_for_that_to_a_later_question) {
    Peer peer;
    const std::uint32_t key = peer.add();
    RVT_ASSERT(peer.asks(key, kLarge));
    RVT_ASSERT(peer.table->renew(key).is_ok());
    RVT_ASSERT(peer.book.find_current(key, peer.table->view().version_of(key)) == nullptr);
    peer.book.erase(key);
    RVT_ASSERT(!peer.asks(key, kLarge));
    peer.book.answered(*peer.book.find(key), key, std::make_unique<Mapped>());
    RVT_ASSERT(peer.book.find(key)->region == nullptr);
    RVT_ASSERT(peer.asks(key, kLarge));
}

Test(rd_region_book, a_refused_region_that_was_changed_is_asked_for_again) {
    Peer peer;
    const std::uint32_t key = peer.add();
    RVT_ASSERT(peer.asks(key, kLarge));
    peer.book.answered(*peer.book.find(key), key, nullptr);
    RVT_ASSERT(peer.table->renew(key).is_ok());
    bool asks = false;
    for (unsigned i = 0; i < 100; ++i) {
        asks = asks || peer.asks(key, 8);
    }
    RVT_ASSERT(asks);
}

/// The peer's answer may be of what was there before.
Test(rd_region_book, a_region_that_changes_while_it_is_asked_for_is_asked_for_again) {
    Peer peer;
    const std::uint32_t key = peer.add();
    RVT_ASSERT(peer.asks(key, kLarge));
    RVT_ASSERT(peer.table->renew(key).is_ok());
    peer.book.answered(*peer.book.find(key), key, std::make_unique<Mapped>());
    const Book::Entry* const known =
        peer.book.find_current(key, peer.table->view().version_of(key));
    RVT_ASSERT(known != nullptr && known->region == nullptr);
    RVT_ASSERT(peer.asks(key, kLarge));
}
