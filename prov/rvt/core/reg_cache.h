// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Registrations of the application's memory with a NIC that outlive their use: what is sent from or
// received into again is found here. util/memory_watch.h tells what has become of the memory since;
// what has changed is not found any more. Memory of which nothing can be told (of files, shared, or
// where there is no watch) is registered for one use.
//
// A region is whole pages, and lets peers that know its key read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/mr.h"
#include "core/owned.h"
#include "core/stats.h"
#include "rvt/status.h"
#include "util/memory_watch.h"

namespace rvt::core {

class RegCache;

/// Memory that a work request may name while it is in use.
class CachedRegion {
  public:
    [[nodiscard]] std::uint32_t lkey() const noexcept { return mr_->lkey(); }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return mr_->rkey(); }

  private:
    friend class RegCache;

    util::PageRange range_;
    Owned<Mr> mr_;
    std::uint32_t uses_ = 0;
    bool is_kept_ = false;           // is in the index
    CachedRegion* older_ = nullptr;  // of those kept and not in use
    CachedRegion* newer_ = nullptr;
};

struct RegCacheAttr {
    Pd* pd = nullptr;  // of verb grade; outlives the cache
    /// nullptr: nothing is kept.
    std::shared_ptr<util::MemoryWatch> watch{};
    // Of what is kept, in use or not.
    std::uint64_t max_bytes = 0;
    std::size_t max_regions = 0;
};

class Device;

/// How often memory was found registered with the NIC, by all caches of it, in words.
std::string describe_registrations(const Device& nic);

/// Threads: one at a time.
class RegCache {
  public:
    enum class Nic : std::uint8_t { kReads, kWrites };
    enum class Want : std::uint8_t {
        kKept,  // only what will be found the next time
        kAny,   // else what is registered for this once
    };

    explicit RegCache(RegCacheAttr attr);
    /// Precondition: no region is in use.
    ~RegCache();
    RegCache(const RegCache&) = delete;
    RegCache& operator=(const RegCache&) = delete;

    /// Whether anything is kept.
    [[nodiscard]] bool keeps() const noexcept { return attr_.watch != nullptr; }
    /// The region that holds these bytes, to be given back.
    /// Returns: EOPNOTSUPP for memory that cannot be kept; EFAULT for what is not there; ENOMEM
    ///          where the limit of locked memory is too small; ENOSPC and others as the NIC says.
    /// Cost:    where it is found, one system call that does nothing.
    Result<CachedRegion*> take(const void* address, std::size_t length, Nic use,
                               Want want) noexcept;
    void give_back(CachedRegion& region) noexcept;

    [[nodiscard]] std::size_t regions() const noexcept { return index_.size(); }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

  private:
    using Index = std::vector<CachedRegion*>;  // by begin, of those the longest last

    [[nodiscard]] bool is_current() noexcept;
    [[nodiscard]] CachedRegion* find(const util::PageRange& range) const noexcept;
    [[nodiscard]] Index::iterator place_of(const util::PageRange& range) noexcept;
    Result<CachedRegion*> keep(const util::PageRange& range) noexcept;
    Result<CachedRegion*> register_once(const util::PageRange& range, Nic use) noexcept;
    Result<CachedRegion*> make(const util::PageRange& range, Access access) noexcept;
    bool make_room(const util::PageRange& range) noexcept;
    bool drop_oldest() noexcept;
    void forget(CachedRegion& region, bool is_unmapped) noexcept;
    void forget_changed(const util::MemoryChange& change) noexcept;
    void forget_all() noexcept;
    void link(CachedRegion& region) noexcept;
    void unlink(CachedRegion& region) noexcept;
    [[nodiscard]] Stats& stats() const noexcept;

    const RegCacheAttr attr_;
    Index index_;
    std::uint64_t bytes_ = 0;
    std::uint64_t position_ = 0;      // of the changes that have been heeded
    CachedRegion* oldest_ = nullptr;  // of those kept and not in use
    CachedRegion* newest_ = nullptr;
};

}  // namespace rvt::core
