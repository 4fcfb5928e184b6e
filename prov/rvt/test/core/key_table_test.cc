// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The key table: what lookups grant and refuse, how keys come and go, and that memory outlives its
// readers.
#include "core/key_table.h"

#include "common/check.h"
#include "common/process.h"
#include "core/reader_pins.h"

#include <atomic>
#include <cstring>
#include <latch>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>

using namespace rvt;
using namespace rvt::core;

namespace {

constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();
constexpr Access kAllRights = Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteWrite;

/// A table in anonymous memory, as a backend without peers makes it.
struct Table {
    std::size_t bytes;
    void* block;
    std::unique_ptr<KeyTable> keys;

    explicit Table(std::uint32_t entries = 100)
        : bytes(KeyTable::block_bytes(entries)),
          block(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
          keys(KeyTable::create(block, bytes).take()) {}
    ~Table() { munmap(block, bytes); }
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    std::uint32_t add(std::uint64_t addr, std::uint64_t length, Access access = kAllRights) {
        return keys->add({.addr = addr, .length = length, .iova = addr, .access = access, .pd = 7})
            .value();
    }
    KeyVerdict ask(std::uint32_t key, std::uint64_t addr, std::uint64_t length,
                   Access access = Access::kRemoteRead, std::uint32_t pd = 7) const {
        return keys->view()
            .lookup({.key = key, .pd = pd, .addr = addr, .length = length, .access = access})
            .verdict;
    }
};

constexpr int kSoon = 5000;  // milliseconds
constexpr int kAtOnce = 0;

}  // namespace

Test(key_table, entry_is_one_cache_line) {
    RVT_EQ(sizeof(KeyEntry), 64);
}

Test(key_table, grants_the_whole_region_and_its_parts) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    RVT_EQ(t.ask(key, 0x1000, 0x100), KeyVerdict::kOk);
    RVT_EQ(t.ask(key, 0x10ff, 1), KeyVerdict::kOk);
}

Test(key_table, answers_with_the_owners_address_of_the_range) {
    Table t;
    const std::uint32_t key =
        t.keys->add({.addr = 0x5000, .length = 64, .iova = 0x9000, .access = kAllRights, .pd = 7})
            .value();
    const KeyHit hit = t.keys->view().lookup({.key = key, .pd = 7, .addr = 0x9010, .length = 8});
    RVT_ASSERT(hit.data() == reinterpret_cast<void*>(0x5010));
}

Test(key_table, zero_based_region_counts_from_its_first_byte) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100, kAllRights | Access::kZeroBased);
    RVT_EQ(t.ask(key, 0, 0x100), KeyVerdict::kOk);
    RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kOutOfBounds);
}

Test(key_table, tells_where_the_range_lies_in_memory_that_peers_can_map) {
    Table t;
    const std::uint32_t key = t.keys
                                  ->add({.addr = 0x1000,
                                         .length = 64,
                                         .iova = 0x1000,
                                         .access = kAllRights,
                                         .pd = 7,
                                         .mapping = 3,
                                         .mapping_offset = 0x200})
                                  .value();
    const KeyHit hit = t.keys->view().lookup({.key = key, .pd = 7, .addr = 0x1008, .length = 1});
    RVT_EQ(hit.mapping, 3);
    RVT_EQ(hit.mapping_offset, 0x208);
}

Test(key_table, refuses_what_lies_outside_by_one_byte) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    RVT_EQ(t.ask(key, 0xfff, 1), KeyVerdict::kOutOfBounds);
    RVT_EQ(t.ask(key, 0x1100, 1), KeyVerdict::kOutOfBounds);
    RVT_EQ(t.ask(key, 0x1000, 0x101), KeyVerdict::kOutOfBounds);
}

Test(key_table, does_not_overflow_at_the_end_of_the_address_space) {
    Table t;
    const std::uint32_t key = t.add(kMax64 - 15, 16);
    RVT_EQ(t.ask(key, kMax64 - 15, 16), KeyVerdict::kOk);
    RVT_EQ(t.ask(key, kMax64, 1), KeyVerdict::kOk);
    RVT_EQ(t.ask(key, kMax64, 2), KeyVerdict::kOutOfBounds);
    RVT_EQ(t.ask(key, kMax64 - 15, kMax64), KeyVerdict::kOutOfBounds);
}

Test(key_table, refuses_to_register_past_the_end_of_the_address_space) {
    Table t;
    RVT_EQ(t.keys->add({.addr = kMax64 - 15, .length = 17, .iova = 0}), EINVAL);
    RVT_EQ(t.keys->add({.addr = 0x1000, .length = 17, .iova = kMax64 - 15}), EINVAL);
}

Test(key_table, refuses_another_protection_domain) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    RVT_EQ(t.ask(key, 0x1000, 1, Access::kRemoteRead, 8), KeyVerdict::kWrongPd);
}

Test(key_table, refuses_access_that_was_not_given) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100, Access::kRemoteRead);
    RVT_EQ(t.ask(key, 0x1000, 1, Access::kRemoteWrite), KeyVerdict::kNoAccess);
    RVT_EQ(t.ask(key, 0x1000, 1, Access::kRemoteRead | Access::kRemoteAtomic),
           KeyVerdict::kNoAccess);
}

Test(key_table, does_not_look_at_the_key_of_zero_bytes) {
    Table t;
    RVT_EQ(t.ask(0xdeadbeef, 0, 0), KeyVerdict::kOk);
}

Test(key_table, refuses_every_other_generation_and_consumer_byte_of_a_live_key) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    const KeyFormat format = t.keys->view().format();
    const std::uint32_t low_bits = 1u << (32 - format.index_bits);
    for (std::uint32_t low = 0; low < low_bits; low += 251) {
        const std::uint32_t other = (key & ~(low_bits - 1)) | low;
        if (other != key) {
            RVT_EQ(t.ask(other, 0x1000, 1), KeyVerdict::kNoSuchKey);
        }
    }
}

Test(key_table, never_gives_out_key_zero_nor_the_headers_index) {
    Table t(15);
    const KeyFormat format = t.keys->view().format();
    for (int i = 0; i < 15; ++i) {
        const std::uint32_t key = t.add(0x1000, 1);
        RVT_NE(key, 0);
        RVT_NE(format.place_of(key), 0);
    }
    RVT_EQ(t.keys->add({.addr = 1, .length = 1}), ENOSPC);
}

Test(key_table, two_tables_give_different_keys) {
    std::set<std::uint32_t> first_keys;
    for (int i = 0; i < 16; ++i) {
        Table t;
        first_keys.insert(t.add(0x1000, 1));
    }
    RVT_ASSERT(first_keys.size() > 12);  // of 2^23 possible ones
}

Test(key_table, a_removed_key_is_refused_and_its_place_gets_another_generation) {
    Table t(15);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 300; ++i) {
        const std::uint32_t key = t.add(0x1000, 1);
        cr_assert(seen.insert(key).second, "key 0x%x came twice", key);
        RVT_OK(t.keys->remove(key, kSoon));
        RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kNoSuchKey);
    }
    RVT_EQ(t.keys->live_keys(), 0);
}

Test(key_table, removing_a_key_twice_is_enoent) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    RVT_OK(t.keys->remove(key, kSoon));
    RVT_EQ(t.keys->remove(key, kSoon), ENOENT);
}

Test(key_table, an_invalidated_key_is_refused_but_not_reused) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    RVT_OK(t.keys->invalidate(key));
    RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kNoSuchKey);
    RVT_OK(t.keys->invalidate(key));
    RVT_OK(t.keys->remove(key, kSoon));
}

Test(key_table, removal_is_ebusy_while_a_reader_is_pinned_and_succeeds_after) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    PinSlot& other = take_pin_slot();
    other.enter();
    RVT_EQ(t.keys->remove(key, kAtOnce), EBUSY);
    RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kNoSuchKey);
    other.leave();
    RVT_OK(t.keys->remove(key, kAtOnce));
    free_pin_slot(other);
}

Test(key_table, removal_waits_for_the_marks_of_other_processes) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    int questions = 0;
    const PeerMarks marks{
        .are_gone = [](void* n, std::uint32_t) noexcept { return ++*static_cast<int*>(n) == 3; },
        .context = &questions};
    RVT_OK(t.keys->remove(key, kSoon, marks));
    RVT_EQ(questions, 3);
}

Test(key_table, marks_that_stay_make_removal_ebusy) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    const PeerMarks marks{.are_gone = [](void*, std::uint32_t) noexcept { return false; }};
    RVT_EQ(t.keys->remove(key, kAtOnce, marks), EBUSY);
}

Test(key_table, nobody_is_asked_about_memory_that_only_its_owner_could_use) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1, Access::kLocalWrite);
    const PeerMarks marks{.are_gone = [](void*, std::uint32_t) noexcept { return false; }};
    PinSlot& reader = take_pin_slot();
    reader.enter();
    RVT_EQ(t.keys->remove(key, kAtOnce, marks), EBUSY);  // its own threads may be at it
    reader.leave();
    free_pin_slot(reader);
    RVT_OK(t.keys->remove(t.add(0x2000, 1, Access::kLocalWrite), kAtOnce, marks));
}

Test(key_table, others_are_asked_about_memory_that_messages_name) {
    Table t;
    const KeyAttr attr{.addr = 0x1000,
                       .length = 1,
                       .iova = 0x1000,
                       .access = Access::kLocalWrite,
                       .pd = 7,
                       .indirect = true};
    const PeerMarks marks{.are_gone = [](void*, std::uint32_t) noexcept { return false; }};
    RVT_EQ(t.keys->remove(t.keys->add(attr).value(), kAtOnce, marks), EBUSY);
    RVT_EQ(t.keys->remove(t.add(0x2000, 1, Access::kRemoteAtomic), kAtOnce, marks), EBUSY);
}

Test(key_table, others_are_asked_again_about_what_could_not_be_removed) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 1);
    const PeerMarks marks{.are_gone = [](void*, std::uint32_t) noexcept { return false; }};
    RVT_EQ(t.keys->remove(key, kAtOnce, marks), EBUSY);
    RVT_EQ(t.keys->remove(key, kAtOnce, marks), EBUSY);
    RVT_OK(t.keys->remove(key, kAtOnce));
}

Test(key_table, a_bind_changes_the_range_and_the_consumer_byte_of_a_window) {
    Table t;
    const std::uint32_t key = t.keys->add({.pd = 7, .is_window = true}).value();
    const std::uint32_t region = t.add(0x1000, 0x100);
    const std::uint32_t changed = (key & ~0xffu) | 0x5a;
    const KeyAttr attr{.addr = 0x1000,
                       .length = 0x100,
                       .iova = 0x1000,
                       .access = Access::kRemoteRead,
                       .pd = 7,
                       .is_window = true,
                       .consumer = 0x5a};
    RVT_OK(t.keys->bind_window(key, attr, region));
    RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kNoSuchKey);
    RVT_EQ(t.ask(changed, 0x1000, 0x100), KeyVerdict::kOk);
    RVT_OK(t.keys->invalidate(changed));
    RVT_EQ(t.keys->live_keys(), 1);
    RVT_OK(t.keys->bind_window(changed, attr, region));
    RVT_EQ(t.keys->live_keys(), 2);
    RVT_OK(t.keys->remove(changed, kSoon));
    RVT_EQ(t.keys->bind_window(changed, attr, region), ENOENT);
}

Test(key_table, no_window_is_bound_to_a_region_on_its_way_out) {
    Table t;
    const std::uint32_t key = t.keys->add({.pd = 7, .is_window = true}).value();
    const std::uint32_t region = t.add(0x1000, 0x100);
    const KeyAttr attr{.addr = 0x1000, .length = 1, .iova = 0x1000, .pd = 7, .is_window = true};
    const PeerMarks marks{.are_gone = [](void*, std::uint32_t) noexcept { return false; }};
    RVT_EQ(t.keys->remove(region, kAtOnce, marks), EBUSY);
    RVT_EQ(t.keys->bind_window(key, attr, region), ENOENT);
    RVT_OK(t.keys->remove(region, kSoon));
    RVT_EQ(t.keys->bind_window(key, attr, region), ENOENT);
}

Test(key_table, finds_a_region_by_the_applications_own_key) {
    Table t;
    for (std::uint64_t user_key = 0; user_key < 80; ++user_key) {
        const KeyAttr attr{.addr = 0x1000 * (user_key + 1), .length = 1, .iova = user_key};
        const std::uint32_t key = t.keys->add_user(attr, user_key << 40).value();
        RVT_EQ(t.keys->find_by_user_key(user_key << 40).value(), key);
    }
    RVT_EQ(t.keys->find_by_user_key(81ull << 40), ENOENT);
}

Test(key_table, refuses_an_applications_key_that_is_in_use_until_it_is_removed) {
    Table t;
    const KeyAttr attr{.addr = 0x1000, .length = 1, .iova = 0};
    const std::uint32_t key = t.keys->add_user(attr, 42).value();
    RVT_EQ(t.keys->add_user(attr, 42), EEXIST);
    RVT_OK(t.keys->remove(key, kSoon));
    RVT_EQ(t.keys->find_by_user_key(42), ENOENT);
    RVT_OK(t.keys->add_user(attr, 42));
}

Test(key_table, a_key_that_comes_again_leads_not_to_the_region_of_another_key_of_the_application) {
    Table t(1);
    const KeyAttr attr{.addr = 0x1000, .length = 8, .iova = 0x1000, .pd = 7};
    const std::uint32_t key = t.keys->add_user(attr, 42).value();
    const KeyQuery query{.key = key, .pd = 7, .addr = 0x1000, .length = 8, .user_key = 42};
    RVT_ASSERT(t.keys->view().lookup(query).is_ok());
    RVT_OK(t.keys->remove(key, kSoon));
    const KeyFormat format = t.keys->view().format();
    // relaxed: no other thread is there.
    static_cast<KeyEntry*>(t.block)[format.place_of(key)].uses.store(
        (1u << format.generation_bits()) - 1, std::memory_order_relaxed);
    std::uint64_t user_key = 43;
    while (t.keys->add_user(attr, user_key).value() != key) {  // the place comes when no other is
        ++user_key;
    }
    RVT_EQ(t.keys->view().lookup(query).verdict, KeyVerdict::kNoSuchKey);
    RVT_EQ(t.ask(key, 0x1000, 8, Access::kNone), KeyVerdict::kOk);
}

Test(key_table, a_peer_reads_the_same_table_through_its_own_mapping) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    const KeyView peer = KeyView::attach(t.block, t.bytes).value();
    const KeyQuery query{.key = key, .pd = 7, .addr = 0x1000, .length = 8};
    RVT_ASSERT(peer.lookup(query).is_ok());
    RVT_OK(t.keys->invalidate(key));
    RVT_ASSERT(not(peer.lookup(query).is_ok()));
}

Test(key_table, a_peer_refuses_a_header_that_makes_no_sense) {
    Table t;
    KeyTableHeader header;
    std::memcpy(&header, t.block, sizeof header);
    RVT_EQ(KeyView::attach(t.block, t.bytes / 2), EINVAL);
    RVT_EQ(KeyView::attach(t.block, 8), EINVAL);
    header.index_mask = ~0u;
    std::memcpy(t.block, &header, sizeof header);
    RVT_EQ(KeyView::attach(t.block, t.bytes), EINVAL);
    header.index_bits = 31;
    std::memcpy(t.block, &header, sizeof header);
    RVT_EQ(KeyView::attach(t.block, t.bytes), EINVAL);
}

Test(key_table, a_block_of_an_odd_size_is_refused) {
    Table t;
    RVT_EQ(KeyTable::create(t.block, t.bytes - 64), EINVAL);
    RVT_EQ(KeyTable::create(static_cast<char*>(t.block) + 8, t.bytes), EINVAL);
}

// Readers follow keys into memory whose first word is the key; the owner wipes memory once removal
// returned. A reader that got a hit and finds another word has used memory after it was given back.
Test(key_table, no_reader_sees_memory_of_a_key_after_its_removal_returned, .timeout = 60) {
    constexpr int kRounds = 400;
    Table t(15);
    std::atomic<std::uint64_t> words[4] = {};
    std::atomic<std::uint32_t> published{0};
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    auto reader = [&] {
        // relaxed: the test's own hand-over; the table's orders are what is examined.
        while (!stop.load(std::memory_order_relaxed)) {
            const ReadPin pin;
            const std::uint32_t key = published.load(std::memory_order_relaxed);
            // relaxed: see above.
            const KeyHit hit = t.keys->view().lookup({.key = key, .pd = 7, .addr = 0, .length = 8});
            if (key != 0 && hit.is_ok()) {
                auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(hit.data());
                // relaxed: the pin keeps the word.
                wrong += word->load(std::memory_order_relaxed) != (key & ~0xffu);
            }
        }
    };
    std::thread a(reader);
    std::thread b(reader);
    for (int i = 0; i < kRounds; ++i) {
        auto& word = words[i % 4];
        const std::uint32_t key =
            t.add(reinterpret_cast<std::uint64_t>(&word), 8, kAllRights | Access::kZeroBased);
        // The key is known only now: readers get to know it after the word is there.
        word = key & ~0xffu;
        published = key;
        RVT_OK(t.keys->remove(key, kSoon));
        word = 0;
    }
    stop = true;
    a.join();
    b.join();
    RVT_EQ(wrong, 0);
}

// ---- another range behind a live key ----

Test(key_table, a_key_is_given_another_range) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    RVT_OK(t.keys->replace(
        key, {.addr = 0x5000, .length = 16, .iova = 0x5000, .access = kAllRights, .pd = 7}, 0));
    RVT_EQ(t.ask(key, 0x1000, 1), KeyVerdict::kOutOfBounds);
    RVT_EQ(t.ask(key, 0x5000, 16), KeyVerdict::kOk);
    RVT_EQ(t.keys->live_keys(), 1);
}

Test(key_table, a_key_that_is_in_use_stays_what_it_was) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    const KeyAttr other{
        .addr = 0x5000, .length = 16, .iova = 0x5000, .access = kAllRights, .pd = 7};
    PinSlot& reader = take_pin_slot();
    reader.enter();
    RVT_EQ(t.keys->replace(key, other, 0), EBUSY);
    RVT_EQ(t.ask(key, 0x1000, 0x100), KeyVerdict::kOk);
    reader.leave();
    free_pin_slot(reader);
    const auto never = [](void*, std::uint32_t) noexcept { return false; };
    RVT_EQ(t.keys->replace(key, other, 0, {.are_gone = never, .context = nullptr}), EBUSY);
    RVT_EQ(t.ask(key, 0x1000, 0x100), KeyVerdict::kOk);
    RVT_OK(t.keys->replace(key, other, 0));
}

Test(key_table, a_key_that_is_not_live_is_given_nothing) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    RVT_EQ(t.keys->replace(key, {.addr = kMax64, .length = 2}, 0), EINVAL);
    RVT_OK(t.keys->invalidate(key));
    RVT_EQ(t.keys->replace(key, {.addr = 0x1000, .length = 2}, 0), ENOENT);
}

Test(key_table, a_key_that_is_renewed_stays_what_it_was_by_another_version) {
    Table t;
    const std::uint32_t key = t.add(0x1000, 0x100);
    const KeyQuery query{
        .key = key, .pd = 7, .addr = 0x1000, .length = 0x100, .access = Access::kRemoteRead};
    const KeyHit before = t.keys->view().lookup(query);
    RVT_EQ(t.keys->view().version_of(key), before.version);
    RVT_OK(t.keys->renew(key));
    const KeyHit after = t.keys->view().lookup(query);
    RVT_ASSERT(after.is_ok());
    RVT_EQ(after.base, before.base);
    RVT_NE(after.version, before.version);
    RVT_OK(t.keys->invalidate(key));
    RVT_EQ(t.keys->renew(key), ENOENT);
}

/// The slots of a thread that pins in its last moments, behind the end of its thread storage, and
/// of another one that pins for the first time then.
struct LatePins {
    PinSlot* own = nullptr;
    PinSlot* others = nullptr;

    static void pin(void* self) {
        auto& pins = *static_cast<LatePins*>(self);
        pins.own = &thread_pin_slot();
        std::thread([&] { pins.others = &thread_pin_slot(); }).join();
    }
};

Test(reader_pins, no_other_thread_gets_the_slot_of_one_that_is_ending) {
    LatePins pins;
    pthread_key_t key = 0;
    RVT_EQ(pthread_key_create(&key, LatePins::pin), 0);
    std::thread([&] {
        thread_pin_slot();
        RVT_EQ(pthread_setspecific(key, &pins), 0);
    }).join();
    RVT_ASSERT(pins.own != nullptr && pins.others != nullptr);
    RVT_ASSERT(pins.own != pins.others);
}

Test(reader_pins, a_forked_child_waits_for_its_own_alone, .timeout = 60) {
    PinSlot& slot = take_pin_slot();
    std::latch is_inside(1);
    std::latch may_leave(1);
    std::thread other([&] {
        const ReadPin pin(slot);
        is_inside.count_down();
        may_leave.wait();
    });
    is_inside.wait();
    test::Process child([&](test::Process&) {
        const bool are_others_gone = ReaderWait().readers_are_gone();
        const ReadPin pin(slot);
        _exit(are_others_gone && !ReaderWait().readers_are_gone() ? 0 : 1);
    });
    RVT_EQ(child.wait(), 0);
    RVT_ASSERT(!ReaderWait().readers_are_gone());  // here it is inside
    may_leave.count_down();
    other.join();
    free_pin_slot(slot);
}
