// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The key table: what stands behind each 32-bit L_Key and R_Key. It lives in a block of memory that
// its owner supplies, so that a backend can put it into a sealed memfd which peers map read-only
// and consult without waking the owner. KeyView is the reading half, in whatever process; KeyTable
// adds what only the owner does: registering, invalidating, waiting for users to be gone.
//
// A key is [ index | generation | consumer byte ] from the top bit down, see KeyFormat.
// IBTA vol. 1, 10.6 (memory management), 11.2.8 (deregistration).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <type_traits>

#include <sys/uio.h>

#include "core/user_key_index.h"
#include "rvt/types.h"
#include "util/lock.h"
#include "util/status.h"

namespace rvt::core {

/// One registered region, as owner and peers see it in memory.
///
/// A reader takes `seq`, then the fields, then `seq` again, and believes nothing if the two differ
/// or are odd. Only the owner writes; a peer that maps the table does so read-only, and what it
/// reads comes from another process: offsets and lengths are bounded again where they are used.
///
/// field           | written by | read by      | order                                   | trusted?
/// seq             | owner      | all          | acquire / release, odd while changing   | by owner
/// key .. user_key | owner      | all          | release between the two writes of seq   | by owner
struct KeyEntry {
    std::atomic<std::uint32_t> seq;
    std::atomic<std::uint32_t> key;      // all 32 bits; stays when invalidated
    std::atomic<std::uint32_t> access;   // Access, and KeyEntry::kLive, kIndirect, kWindow
    std::atomic<std::uint32_t> pd;       // id of the protection domain
    std::atomic<std::uint64_t> addr;     // owner's address of the first byte, or of a RegionMemory
    std::atomic<std::uint64_t> length;   // bytes
    std::atomic<std::uint64_t> iova;     // the address by which requests name the first byte
    std::atomic<std::uint32_t> mapping;  // memory that peers can map: its id; 0: none
    std::atomic<std::uint32_t> uses;     // how often the place was given out; numbers generations
    std::atomic<std::uint64_t> mapping_offset;  // of the first byte in that mapping
    std::atomic<std::uint64_t> user_key;        // the application's own key, if it chose one

    static constexpr std::uint32_t kLive = 1u << 31;
    static constexpr std::uint32_t kIndirect = 1u
                                               << 30;  // `addr` leads to a RegionMemory, owner only
    static constexpr std::uint32_t kWindow = 1u << 29;  // a memory window
};
static_assert(sizeof(KeyEntry) == 64 && std::is_standard_layout_v<KeyEntry>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Occupies entry 0, whose index is never part of a key. Written once, before the block is shared.
struct KeyTableHeader {
    std::uint64_t magic;
    std::uint32_t index_bits;
    std::uint32_t index_mask;  // index in the key = place in the table xor this
    std::uint8_t unused[48];

    static constexpr std::uint64_t kMagic = 0x3159454b54565231;  // "1RVTKEY1"
};
static_assert(sizeof(KeyTableHeader) == sizeof(KeyEntry));

/// How a 32-bit key is divided.
struct KeyFormat {
    std::uint32_t index_bits;
    std::uint32_t index_mask;

    static constexpr std::uint32_t kConsumerBits = 8;
    static constexpr std::uint32_t kMinIndexBits = 4;
    static constexpr std::uint32_t kMaxIndexBits = 20;  // leaves four bits of generation

    [[nodiscard]] std::uint32_t generation_bits() const noexcept {
        return 32 - kConsumerBits - index_bits;
    }
    [[nodiscard]] std::uint32_t place_of(std::uint32_t key) const noexcept {
        return (key >> (32 - index_bits)) ^ index_mask;
    }
    [[nodiscard]] std::uint32_t make(std::uint32_t place, std::uint32_t generation,
                                     std::uint8_t consumer) const noexcept {
        return ((place ^ index_mask) << (32 - index_bits)) | (generation << kConsumerBits) |
               consumer;
    }
};

/// What a request asks of a key.
struct KeyQuery {
    std::uint32_t key = 0;
    std::uint32_t pd = 0;
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    Access access = Access::kNone;  // every one of these
    // The application's own key that it has to have, too.
    std::optional<std::uint64_t> user_key = std::nullopt;
};

enum class KeyVerdict : std::uint8_t { kOk, kNoSuchKey, kWrongPd, kOutOfBounds, kNoAccess };

/// The answer. Only `verdict` means something unless it is kOk.
struct KeyHit {
    KeyVerdict verdict = KeyVerdict::kNoSuchKey;
    bool indirect = false;             // `base` leads to the owner's RegionMemory, core/segments.h
    std::uint32_t mapping = 0;         // 0: peers cannot map it
    std::uint32_t version = 0;         // another one after each change of the entry
    std::uint64_t base = 0;            // owner's address of the region's first byte
    std::uint64_t offset = 0;          // of the range in the region
    std::uint64_t mapping_offset = 0;  // of the *range* in the mapping

    [[nodiscard]] bool is_ok() const noexcept { return verdict == KeyVerdict::kOk; }
    /// First byte of the range, in the owner's process. Precondition: is_ok(), not indirect.
    [[nodiscard]] std::byte* data() const noexcept {
        return reinterpret_cast<std::byte*>(base + offset);  // NOLINT(performance-no-int-to-ptr)
    }
};

/// What a live key stands for as a whole, to its owner.
struct KeyRegion {
    std::uint64_t base = 0;  // address of the first byte, or with `indirect` of a RegionMemory
    std::uint64_t length = 0;
    bool indirect = false;
};

/// The reading half: lock-free, no store, in the owner's process or in a peer's.
class KeyView {
  public:
    KeyView() = default;

    /// Looks at a table in memory that another process may own.
    /// Returns: EINVAL when the header makes no sense for a block of `bytes`.
    static util::Result<KeyView> attach(const void* block, std::size_t bytes) noexcept;

    /// Checks key, protection domain, access and bounds, in this order, as IBTA's responder does.
    /// A length of 0 is granted without a look at the key.
    ///
    /// Threads: any. In the owner's process hold a ReadPin from before the call until the memory is
    ///          no longer touched; in a peer's, the mark that its backend defines.
    /// Cost:    one cache line read, nothing written.
    [[nodiscard]] KeyHit lookup(const KeyQuery& query) const noexcept;

    /// The whole region of a live key, for a peer that asks to map it. Threads: as lookup().
    /// Returns: ENOENT for a key that is not live, EACCES when the domain or the rights differ.
    [[nodiscard]] util::Result<KeyRegion> region(std::uint32_t key, std::uint32_t pd,
                                                 Access access) const noexcept;
    /// What a live key allows. Returns: ENOENT when it is not live, EACCES when it is another
    /// domain's.
    [[nodiscard]] util::Result<Access> access_of(std::uint32_t key,
                                                 std::uint32_t pd) const noexcept;
    /// As KeyHit::version: what was found out of the region before counts for that one only.
    [[nodiscard]] std::uint32_t version_of(std::uint32_t key) const noexcept;

    [[nodiscard]] KeyFormat format() const noexcept { return format_; }

  private:
    const KeyEntry* entries_ = nullptr;
    KeyFormat format_{};
};

/// What a new key stands for.
struct KeyAttr {
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    std::uint64_t iova = 0;  // ignored with Access::kZeroBased
    Access access = Access::kNone;
    std::uint32_t pd = 0;
    std::uint32_t mapping = 0;
    std::uint64_t mapping_offset = 0;
    bool indirect = false;
    bool is_window = false;
    std::uint8_t consumer = 0;
};

/// Asked, besides the pins of this process, before a key's memory may go, if others could use it.
struct PeerMarks {
    /// Whether no other process is using what `key` stood for. Called again and again.
    bool (*are_gone)(void* context, std::uint32_t key) noexcept = nullptr;
    void* context = nullptr;
};

/// The owner's half. Registration takes a lock; lookups of any thread go on beside it.
class KeyTable {
  public:
    /// Bytes of a block for `entries` keys (rounded up to a power of two, one is the header's).
    static std::size_t block_bytes(std::uint32_t entries) noexcept;

    /// Formats `block`, which must be zero-filled, 64-byte aligned and outlive the table.
    /// Pages are touched as keys come into use.
    /// Returns: EINVAL for a block whose size is not one that block_bytes() gives.
    static util::Result<std::unique_ptr<KeyTable>> create(void* block, std::size_t bytes);

    KeyTable(const KeyTable&) = delete;
    KeyTable& operator=(const KeyTable&) = delete;
    ~KeyTable() = default;

    [[nodiscard]] KeyView view() const noexcept { return view_; }

    /// Makes a key. Returns: ENOSPC when the table is full, EINVAL for a range past the end of the
    /// address space, ENOMEM for a window.
    util::Result<std::uint32_t> add(const KeyAttr& attr);

    /// As add(), and findable by the application's own 64-bit key.
    /// Returns: EEXIST when that key is in use.
    util::Result<std::uint32_t> add_user(const KeyAttr& attr, std::uint64_t user_key);

    /// The table's key for the application's; ENOENT when there is none.
    /// Threads: any that holds a ReadPin; lock-free.
    util::Result<std::uint32_t> find_by_user_key(std::uint64_t user_key) const noexcept;

    /// Opens or moves the range of a window at once, also of one that was invalidated, and gives it
    /// the consumer byte of `attr`; what was reachable before and is not now may still be in use
    /// until remove(). Returns: ENOENT when `key` is no window's; EACCES for a window of another
    /// protection domain than that of `attr`.
    /// @param region  The key of the region that `attr` is a part of: it stays while the window is
    ///                bound to it. Of a range of no bytes not looked at.
    util::Status bind_window(std::uint32_t key, const KeyAttr& attr, std::uint32_t region);

    /// Gives a live key another range; it fails until nobody uses what it stood for.
    /// Returns: EBUSY while windows are bound to it and when the time is over: the key is what it
    ///          was; ENOENT when it is not live; EINVAL as add(). Threads: as remove(); one at a
    ///          time for each key.
    util::Status replace(std::uint32_t key, const KeyAttr& attr, int timeout_ms,
                         PeerMarks marks = {});

    /// Lookups of a live key go on, by another version: what peers know of the memory behind it,
    /// they find out anew. Returns: ENOENT when it is not live.
    util::Status renew(std::uint32_t key);

    /// From now on lookups of `key` fail. Idempotent. A window can be bound again. Returns: ENOENT
    /// for a key never made, EBUSY for a region while windows are bound to it.
    util::Status invalidate(std::uint32_t key);

    /// The same for a peer, which may take back what has been opened to it alone: a window with
    /// remote access. Returns: ENOENT for a key that is not live, EACCES for any other key and in
    /// another protection domain.
    util::Status invalidate_window(std::uint32_t key, std::uint32_t pd);

    /// Invalidates, waits until nobody uses the memory, and frees the key.
    /// @param timeout_ms  Negative: it waits for as long as it takes.
    /// Returns: EBUSY when the time is over: the key stays invalid and taken, call again to wait
    ///          on. EBUSY at once while windows are bound to it: the key is what it was.
    /// Threads: any that holds no ReadPin.
    util::Status remove(std::uint32_t key, int timeout_ms, PeerMarks marks = {});

    [[nodiscard]] std::uint32_t live_keys() const noexcept;

  private:
    /// Of a place: what the entry has no room for.
    struct Binding {
        std::uint32_t region;   // of a bound window: the region's place
        std::uint32_t windows;  // of a region: bound to it
    };
    struct FreeBindings {
        void operator()(Binding* bindings) const noexcept { std::free(bindings); }
    };

    KeyTable(KeyEntry* entries, KeyFormat format, std::uint64_t secret) noexcept;

    [[nodiscard]] std::uint32_t capacity() const noexcept { return 1u << format_.index_bits; }
    std::uint32_t take_place_locked() RVT_REQUIRES(lock_);
    [[nodiscard]] std::uint32_t next_key(std::uint32_t place, std::uint8_t consumer) const noexcept;
    KeyEntry* entry_of(std::uint32_t key) const noexcept;
    std::uint32_t add_locked(const KeyAttr& attr, std::uint64_t user_key) RVT_REQUIRES(lock_);
    [[nodiscard]] std::uint32_t place_of(const KeyEntry& entry) const noexcept {
        return static_cast<std::uint32_t>(&entry - entries_);
    }
    bool has_windows_locked(const KeyEntry& entry) const noexcept RVT_REQUIRES(lock_);
    void unbind_locked(const KeyEntry& window) noexcept RVT_REQUIRES(lock_);
    void invalidate_locked(KeyEntry& entry) RVT_REQUIRES(lock_);
    util::Status invalidate_key_locked(std::uint32_t key) RVT_REQUIRES(lock_);
    util::Result<bool> begin_removal(std::uint32_t key);

    KeyEntry* const entries_;
    const KeyFormat format_;
    const std::uint64_t secret_;  // start of each place's generations
    KeyView view_;
    mutable util::SpinLock lock_;  // order: innermost
    UserKeyIndex user_keys_;
    std::deque<std::uint32_t> freed_ RVT_GUARDED_BY(lock_);  // places, the oldest first
    std::uint32_t fresh_ RVT_GUARDED_BY(lock_) = 1;          // places from here on were never used
    std::uint32_t live_ RVT_GUARDED_BY(lock_) = 0;
    // By place; there from the first window on. calloc'ed: pages cost nothing before their use.
    std::unique_ptr<Binding[], FreeBindings> bindings_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::core
