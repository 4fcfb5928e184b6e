// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Blocks that are kept for the next who wants one of their size.
#include "util/spare_blocks.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/check.h"

using rvt::util::BlockSizes;
using rvt::util::SpareBlocks;

namespace {

void take_and_give_back(SpareBlocks& blocks, std::size_t bytes, std::size_t count) {
    std::vector<SpareBlocks::Block> taken;
    for (std::size_t i = 0; i < count; ++i) {
        taken.push_back(blocks.take(bytes));
        RVT_ASSERT(taken.back() != nullptr);
    }
}

}  // namespace

Test(spare_blocks, one_that_was_given_back_is_the_next_of_its_size) {
    SpareBlocks blocks;
    SpareBlocks::Block first = blocks.take(5000);
    const std::byte* const at = first.get();
    first.reset();
    SpareBlocks::Block other = blocks.take(1000);
    SpareBlocks::Block again = blocks.take(5001);
    RVT_ASSERT(other.get() != at && again.get() == at);
    RVT_EQ(blocks.kept(), 0);
}

Test(spare_blocks, all_sizes_have_room_for_what_was_asked) {
    SpareBlocks blocks;
    for (int round = 0; round < 2; ++round) {
        for (std::size_t bytes = 1; bytes <= BlockSizes::kLargest + 64; bytes += 31) {
            const SpareBlocks::Block one = blocks.take(bytes);
            const SpareBlocks::Block next = blocks.take(bytes);
            std::memset(one.get(), 1, bytes);
            std::memset(next.get(), 2, bytes);
            RVT_EQ(reinterpret_cast<std::uintptr_t>(one.get()) % alignof(std::max_align_t), 0);
            RVT_ASSERT(one[0] == std::byte{1} && one[bytes - 1] == std::byte{1});
        }
    }
}

Test(spare_blocks, no_more_is_kept_than_may_be) {
    SpareBlocks blocks;
    for (const std::size_t bytes : {300u, 20'000u, 32'768u}) {
        take_and_give_back(blocks, bytes, 2 * SpareBlocks::kMostKept / bytes);
        RVT_ASSERT(blocks.kept() <= SpareBlocks::kMostKept);
        RVT_ASSERT(blocks.kept() > SpareBlocks::kMostKept - 32'768);
    }
}

Test(spare_blocks, large_ones_are_not_kept) {
    SpareBlocks blocks;
    take_and_give_back(blocks, BlockSizes::kLargest + 1, 3);
    RVT_EQ(blocks.kept(), 0);
    take_and_give_back(blocks, BlockSizes::kLargest, 3);
    RVT_EQ(blocks.kept(), 3 * BlockSizes::kLargest);
}
