// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Blocks of memory that are wanted in bursts, and are all given back in between: some are kept for
// the next burst. The allocator would give their pages back to the system, which then has to bring
// and clear them anew.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace rvt::util {

/// The sizes of blocks that are kept: four from each power of two to the next.
struct BlockSizes {
    static constexpr std::uint32_t kCount = 32;
    static constexpr std::size_t kLargest = 32 * 1024;

    /// The number of the smallest one that has room for so much. Precondition: at most kLargest.
    static constexpr std::uint32_t number_of(std::size_t bytes) noexcept {
        const std::size_t last = std::max(bytes, kBase + 1) - 1;
        const auto shift = static_cast<std::uint32_t>(std::bit_width(last / kBase) - 1);
        return shift * 4 + static_cast<std::uint32_t>(last / (kBase / 4) >> shift) - 4;
    }
    static constexpr std::size_t bytes_of(std::uint32_t number) noexcept {
        return (std::size_t{number % 4 + 5} * (kBase / 4)) << (number / 4);
    }

  private:
    static constexpr std::size_t kBase = 128;
};
static_assert(BlockSizes::number_of(1) == 0 && BlockSizes::bytes_of(0) == 160);
static_assert(BlockSizes::number_of(160) == 0 && BlockSizes::number_of(161) == 1);
static_assert(BlockSizes::number_of(1025) == 12 && BlockSizes::bytes_of(12) == 1280);
static_assert(BlockSizes::number_of(BlockSizes::kLargest) == BlockSizes::kCount - 1 &&
              BlockSizes::bytes_of(BlockSizes::kCount - 1) == BlockSizes::kLargest);

/// Outlives its blocks.
///
/// Threads: one at a time.
class SpareBlocks {
  private:
    struct alignas(std::max_align_t) Head {
        SpareBlocks* owner;  // nullptr: it is not to be kept
        Head* next;          // while it is kept
        std::uint32_t size;  // its number
    };

  public:
    static constexpr std::size_t kMostKept = 1u << 20;  // bytes

    struct GiveBack {
        void operator()(std::byte* block) const noexcept {
            Head* const head = reinterpret_cast<Head*>(block) - 1;
            if (head->owner == nullptr || !head->owner->keep(*head)) {
                std::free(head);
            }
        }
    };
    using Block = std::unique_ptr<std::byte[], GiveBack>;

    SpareBlocks() = default;
    ~SpareBlocks() {
        for (Head* head : spare_) {
            while (head != nullptr) {
                std::free(std::exchange(head, head->next));
            }
        }
    }
    SpareBlocks(const SpareBlocks&) = delete;
    SpareBlocks& operator=(const SpareBlocks&) = delete;

    /// Returns: nullptr when memory is short.
    Block take(std::size_t bytes) noexcept {
        if (bytes > BlockSizes::kLargest) {
            return make(bytes, {});
        }
        const std::uint32_t size = BlockSizes::number_of(bytes);
        if (Head* const head = spare_[size]) {
            spare_[size] = head->next;
            kept_ -= BlockSizes::bytes_of(size);
            return Block(reinterpret_cast<std::byte*>(head + 1));
        }
        return make(BlockSizes::bytes_of(size), {.owner = this, .next = nullptr, .size = size});
    }
    /// Bytes of blocks that nobody has.
    [[nodiscard]] std::size_t kept() const noexcept { return kept_; }

  private:
    static Block make(std::size_t bytes, const Head& head) noexcept {
        void* const memory = std::malloc(sizeof(Head) + bytes);
        return Block(memory == nullptr ? nullptr
                                       : reinterpret_cast<std::byte*>(new (memory) Head(head) + 1));
    }
    bool keep(Head& head) noexcept {
        const std::size_t bytes = BlockSizes::bytes_of(head.size);
        if (kept_ + bytes > kMostKept) {
            return false;
        }
        kept_ += bytes;
        head.next = std::exchange(spare_[head.size], &head);
        return true;
    }

    std::array<Head*, BlockSizes::kCount> spare_{};  // that was given back last comes first
    std::size_t kept_ = 0;
};

}  // namespace rvt::util
