// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table that long matching queues keep: what it finds when many keys want the same bucket.
#include "core/match_table.h"

#include "common/check.h"
#include "core/match_model.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

using namespace rvt;
using namespace rvt::core;
using rvt::test::MatchRecord;

namespace {

struct OneHash {  // every key wants the same bucket, and marks say nothing
    std::uint64_t operator()(std::uint64_t, std::uint32_t) const noexcept { return 5; }
};
struct FewHashes {
    std::uint64_t operator()(std::uint64_t tag, std::uint32_t) const noexcept { return tag % 3; }
};

// Records by position, as the ring of a queue keeps them.
struct Ring {
    struct Entry {
        MatchRecord* payload;
    };
    std::vector<MatchRecord>& records;
    Entry at(std::uint32_t pos) { return {&records[pos]}; }
};

std::vector<MatchRecord> numbered(std::uint32_t count) {
    std::vector<MatchRecord> records(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        records[i].tag = i;
        records[i].match_slot = i;
    }
    return records;
}

// Appends and removes at random; after each step every key is asked for.
template <class Hash>
void walk(std::uint32_t keys, unsigned steps) {
    std::vector<MatchRecord> records = numbered(keys);
    Ring ring{records};
    MatchLinks links;
    RVT_ASSERT(links.reserve(4096, 0, 0).is_ok());
    MatchTable<MatchRecord, Hash> table;
    table.set_key(~0ull, true);
    std::vector<bool> is_in(keys);
    std::mt19937 random(3);
    for (unsigned step = 0; step < steps; ++step) {
        const std::uint32_t i = random() % keys;
        if (is_in[i]) {
            table.remove(links, &records[i], ring);
        } else {
            RVT_ASSERT(table.reserve_one().is_ok());
            table.append(links, records[i].tag, 0, i, &records[i]);
        }
        is_in[i] = !is_in[i];
        const std::uint32_t asked = random() % keys;
        for (std::uint32_t each : {i, asked}) {
            auto* const slot = table.find(each, 0);
            RVT_EQ(slot != nullptr, is_in[each]);
            RVT_ASSERT(slot == nullptr || slot->oldest() == &records[each]);
        }
    }
}

}  // namespace

Test(match_table, keys_of_one_bucket_are_told_apart) {
    walk<OneHash>(40, 4000);
}

Test(match_table, a_bucket_that_very_many_passed_still_finds_them) {
    // More than the bucket can count go on from it, come and go.
    walk<OneHash>(900, 9000);
    walk<FewHashes>(2000, 9000);
}

Test(match_table, asks_for_the_source_only_where_it_is_part_of_the_key) {
    std::vector<MatchRecord> records = numbered(2);
    records[0] = {.tag = 0x17, .source = 4, .match_slot = 0};
    records[1] = {.tag = 0x27, .source = 5, .match_slot = 1};
    Ring ring{records};
    MatchLinks links;
    RVT_ASSERT(links.reserve(64, 0, 0).is_ok());
    MatchTable<MatchRecord> table;
    table.set_key(0xf, false);
    for (std::uint32_t i = 0; i < 2; ++i) {
        RVT_ASSERT(table.reserve_one().is_ok());
        table.append(links, records[i].tag, records[i].source, i, &records[i]);
    }
    auto* slot = table.find(0x37, 9);
    RVT_ASSERT(slot != nullptr);
    RVT_ASSERT(slot->oldest() == &records[0]);
    table.remove(links, *slot, &records[0], ring);
    slot = table.find(0x07, kAnySourceId);
    RVT_ASSERT(slot != nullptr);
    RVT_ASSERT(slot->oldest() == &records[1]);
    RVT_ASSERT(table.find(0x08, kAnySourceId) == nullptr);
}

Test(match_table, what_it_is_likely_to_find_is_what_it_finds) {
    std::vector<MatchRecord> records = numbered(100);
    MatchLinks links;
    RVT_ASSERT(links.reserve(128, 0, 0).is_ok());
    MatchTable<MatchRecord> table;
    table.set_key(~0ull, true);
    RVT_ASSERT(table.likely(1, 0) == nullptr);
    for (MatchRecord& each : records) {
        RVT_ASSERT(table.reserve_one().is_ok());
        table.append(links, each.tag, 0, each.match_slot, &each);
    }
    const auto is_likely = [&](MatchRecord& each) { return table.likely(each.tag, 0) == &each; };
    RVT_ASSERT(std::count_if(records.begin(), records.end(), is_likely) > 80);
}
