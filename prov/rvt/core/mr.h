// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Memory regions and memory windows: the objects behind the entries of the key table.
// IBTA vol. 1, 10.6; ibv_reg_mr(3), ibv_alloc_mw(3), ibv_bind_mw(3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <sys/uio.h>

#include "core/context.h"
#include "core/key_table.h"
#include "core/object.h"
#include "core/segments.h"
#include "core/wc.h"

namespace rvt::core {

/// How long deregistration waits for users before it answers EBUSY.
inline constexpr int kDeregTimeoutMs = 5000;

/// What to register.
struct MrAttr {
    /// One segment, or several that requests address as if they followed one another.
    std::span<const iovec> segments{};
    Access access = Access::kNone;
    /// The address by which requests name the first byte; nothing: that of the first segment.
    std::optional<std::uint64_t> iova{};
    /// The application's own key, by which KeyTable::find_by_user_key() finds the region.
    std::optional<std::uint64_t> user_key{};
    std::uint32_t mapping = 0;  // memory that peers can map; one segment only
    std::uint64_t mapping_offset = 0;
    /// Of memory that is a device's, mapped where `segments` say; outlives the region.
    DeviceMemory* device = nullptr;
};

class Mr : public Object {
  public:
    /// What a region is from one registration to the next.
    struct State {
        Pd* pd = nullptr;
        std::unique_ptr<RegionMemory> memory;  // where the key table leads
        std::uint64_t length = 0;
        std::uint64_t iova = 0;
        Access access = Access::kNone;
        std::uint32_t mapping = 0;
        std::uint64_t mapping_offset = 0;
    };

    explicit Mr(State state) noexcept : state_(std::move(state)), use_(*state_.pd) {}

    [[nodiscard]] Pd& pd() const noexcept { return *state_.pd; }
    /// By which local requests name it, and those of peers. In the core's key table it is one key.
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    [[nodiscard]] std::uint64_t length() const noexcept { return state_.length; }
    /// The address by which requests name the first byte.
    [[nodiscard]] std::uint64_t iova() const noexcept { return state_.iova; }
    [[nodiscard]] Access access() const noexcept { return state_.access; }
    [[nodiscard]] const RegionMemory& memory() const noexcept { return *state_.memory; }

    // ---- for the core and its backends ----

    [[nodiscard]] const State& state() const noexcept { return state_; }
    /// Returns: what it was.
    State become(State state) noexcept {
        use_ = Use(*state.pd);
        return std::exchange(state_, std::move(state));
    }
    void set_keys(std::uint32_t lkey, std::uint32_t rkey) noexcept {
        lkey_ = lkey;
        rkey_ = rkey;
    }

  private:
    State state_;
    Use use_;
    std::uint32_t lkey_ = 0;
    std::uint32_t rkey_ = 0;
};

/// Returns: EINVAL for no segments, remote write or atomic access without local write
///          (IBTA 11.2.8.2), or memory past the end of the address space; ENOSPC when the key table
///          is full; EEXIST when the application's key is in use; EOPNOTSUPP for kFlushPersistent:
///          of no memory is it known that it outlives a loss of power; errors of the backend.
Result<Mr*> reg_mr(Pd& pd, const MrAttr& attr);

/// What a region is to become: of `attr` what `changes` name, and of segments also the address.
struct MrRereg {
    MrChange changes = MrChange::kNone;
    Pd* pd = nullptr;
    MrAttr attr{};
};

/// Changes a region in its place. Until it returns, the key may fail; afterwards nobody uses the
/// memory that it was before. The keys stay in the core's key table; those of a NIC may be others.
/// Returns: EINVAL for no change, or as reg_mr(), or a domain of another context; EBUSY while
///          windows are bound to it, or after `timeout_ms`; errors of the backend. The region is
///          what it was, but after ENOTRECOVERABLE, when a NIC has lost it: only dereg_mr() is left
///          then.
/// Threads: any that holds no ReadPin; one at a time for each region.
/// Source:  ibv_rereg_mr(3).
Status rereg_mr(Mr& mr, const MrRereg& to, int timeout_ms = kDeregTimeoutMs);

/// Has a part of a region ready for requests that will come: pages in memory, of a region on demand
/// also where the NIC looks for them.
/// @param offset  Of its first byte in the region.
/// Returns: EINVAL for a part that is not within the region; EFAULT for memory that is not there;
///          EOPNOTSUPP for a NIC that has no regions on demand. Nothing depends on it.
/// Source:  ibv_advise_mr(3).
Status advise_mr(Mr& mr, MrAdvice advice, std::uint64_t offset, std::uint64_t bytes);

/// The part of advise_mr() that is the CPU's, for who has a region as its memory alone.
Status prefetch(const RegionMemory& memory, MrAdvice advice, std::uint64_t offset,
                std::uint64_t bytes) noexcept;

/// From the call on the key fails. Returns when nobody uses the memory any more.
/// Returns: EBUSY after `timeout_ms`: the region still exists, its key fails, call again. EBUSY at
///          once while windows are bound to it (ibv_dereg_mr(3)): it is what it was. Errors of a
///          NIC that keeps it, which may still let peers in: the region still exists, call again.
/// Threads: any that holds no ReadPin.
Status dereg_mr(Mr* mr, int timeout_ms = kDeregTimeoutMs);

/// The same for who cannot call again: what a NIC keeps then is said in the log.
/// Precondition: nobody uses the region.
void end_mr(Mr* mr) noexcept;

/// A window of type 2: a key without memory until a BIND_MW work request gives it a part of a
/// region.
class Mw : public Object {
  public:
    Mw(Pd& pd, std::uint32_t key) noexcept : pd_(pd), use_(pd), key_(key) {}
    [[nodiscard]] Pd& pd() const noexcept { return pd_; }
    /// The key it was made with; a bind replaces the low byte.
    [[nodiscard]] std::uint32_t key() const noexcept { return key_; }

  private:
    friend Status dealloc_mw(Mw* mw, std::uint32_t key);
    Pd& pd_;
    Use use_;
    std::uint32_t key_;
};

/// Returns: EOPNOTSUPP where the backend has the keys.
Result<Mw*> alloc_mw(Pd& pd);
/// @param key  As the last bind made it. Returns: EINVAL when it is another window's.
Status dealloc_mw(Mw* mw, std::uint32_t key);

/// Carries out BIND_MW: opens [addr, addr + length) of the region with `lkey` under the window's
/// new key. A length of 0 closes the window.
WcStatus bind_mw(KeyTable& keys, std::uint32_t pd, const BindMw& bind) noexcept;

}  // namespace rvt::core
