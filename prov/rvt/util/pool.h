// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records of one type that are taken and given back without a call to the allocator in the steady
// state, and that other processes name by number: a name taken from a message is checked before it
// is believed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "util/cpu.h"
#include "util/table_memory.h"

namespace rvt::util {

/// A record that a Pool keeps: derives from this.
struct Pooled {
    std::uint32_t pool_index = 0;
    std::uint32_t pool_generation = 0;  // odd while taken
    Pooled* pool_next = nullptr;
};

/// T derives from Pooled. Records never move. take() does not clear them: the taker sets what it
/// uses.
///
/// Threads: one at a time.
template <class T>
class Pool {
  public:
    /// @param limit  Records that may be taken at the same time.
    explicit Pool(std::size_t limit) noexcept : limit_(limit) {}
    ~Pool() {
        for (T* const chunk : chunks_) {
            std::destroy_n(chunk, kChunk);
        }
    }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    /// A free record, or nullptr at the limit and when memory is short.
    RVT_ALWAYS_INLINE T* take() noexcept {
        if (free_ == nullptr) [[unlikely]] {
            if (!grow()) {
                return nullptr;
            }
        }
        return take_ready();
    }
    /// Whether there is a record for take_ready(), which, unlike take(), never calls anything.
    RVT_ALWAYS_INLINE bool has_ready() const noexcept { return free_ != nullptr; }
    RVT_ALWAYS_INLINE T* take_ready() noexcept {
        T* const record = static_cast<T*>(free_);
        free_ = record->pool_next;
        ++record->pool_generation;
        return record;
    }
    RVT_ALWAYS_INLINE void give_back(T* record) noexcept {
        ++record->pool_generation;
        record->pool_next = free_;
        free_ = record;
    }
    /// Whether take() will succeed.
    bool has_free() noexcept { return free_ != nullptr || grow(); }

    /// The name of a taken record in messages.
    static std::uint64_t name_of(const T& record) noexcept {
        return (std::uint64_t{record.pool_generation} << 32) | record.pool_index;
    }
    /// The taken record of that name, or nullptr when there is none (any more).
    T* find(std::uint64_t name) noexcept {
        const auto index = static_cast<std::uint32_t>(name);
        if (index >= chunks_.size() * kChunk) {
            return nullptr;
        }
        T& record = chunks_[index / kChunk][index % kChunk];
        const bool is_taken = (record.pool_generation & 1) != 0;
        return is_taken && record.pool_generation == static_cast<std::uint32_t>(name >> 32)
                   ? &record
                   : nullptr;
    }
    /// Visits every taken record. The visitor may give back the one it is shown.
    template <class Visit>
    void for_each_taken(Visit visit) {
        for (T* const chunk : chunks_) {
            for (std::size_t i = 0; i < kChunk; ++i) {
                if ((chunk[i].pool_generation & 1) != 0) {
                    visit(chunk[i]);
                }
            }
        }
    }

  private:
    static constexpr std::size_t kChunk = 32;
    static constexpr std::size_t kChunkBytes = kChunk * sizeof(T);

    [[gnu::cold, gnu::noinline]] bool grow() noexcept {
        if (chunks_.size() * kChunk >= limit_ || (slab_chunks_ == 0 && !add_slab())) {
            return false;
        }
        T* const chunk = new (slab_next_) T[kChunk];
        slab_next_ += kChunkBytes;
        --slab_chunks_;
        const std::size_t base = chunks_.size() * kChunk;
        for (std::size_t i = kChunk; i-- > 0;) {
            T& record = chunk[i];
            record.pool_index = static_cast<std::uint32_t>(base + i);
            record.pool_next = free_;
            free_ = &record;
        }
        chunks_.push_back(chunk);
        return true;
    }
    // One chunk; in a large pool as many as fit into a huge page.
    bool add_slab() noexcept {
        const bool is_large = chunks_.size() * kChunkBytes >= kHugePage;
        const std::size_t count = is_large ? std::max<std::size_t>(kHugePage / kChunkBytes, 1) : 1;
        const std::size_t bytes = is_large ? std::max(kHugePage, kChunkBytes) : kChunkBytes;
        slab_next_ = static_cast<std::byte*>(allocate_table(bytes));
        if (slab_next_ == nullptr) {
            return false;
        }
        slabs_.emplace_back(slab_next_);
        slab_chunks_ = count;
        return true;
    }

    struct Free {
        void operator()(void* slab) const noexcept { std::free(slab); }
    };

    std::size_t limit_;
    Pooled* free_ = nullptr;
    std::vector<T*> chunks_;  // in slabs_
    std::vector<std::unique_ptr<void, Free>> slabs_;
    std::byte* slab_next_ = nullptr;  // what is left of the last one
    std::size_t slab_chunks_ = 0;
};

}  // namespace rvt::util
