// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What all libfabric objects share: the count of those that still use one, and answers to calls
// that an object of this class does not have.
#pragma once

#include <atomic>
#include <cstdint>

#include "ofi/compat.h"

namespace rvt::ofi {

/// How many objects use this one; fi_close answers -FI_EBUSY until it is none.
class Users {
  public:
    // relaxed: a count, it guards no data; open and close of related objects are the caller's to
    // order.
    void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
    // release: pairs with the acquire in is_any(): who sees none sees the users' last work.
    void drop() noexcept { count_.fetch_sub(1, std::memory_order_release); }
    // acquire: pairs with the release in drop().
    [[nodiscard]] bool is_any() const noexcept {
        return count_.load(std::memory_order_acquire) != 0;
    }

  private:
    std::atomic<std::uint32_t> count_{0};
};

// Slots of fi_ops that an object has no use for.
int no_bind(fid* self, fid* other, std::uint64_t flags) noexcept;
int no_control(fid* self, int command, void* argument) noexcept;
int no_ops_open(fid* self, const char* name, std::uint64_t flags, void** ops,
                void* context) noexcept;
int no_tostr(const fid* self, char* buffer, std::size_t bytes) noexcept;
int no_ops_set(fid* self, const char* name, std::uint64_t flags, void* ops, void* context) noexcept;

/// The operations every fid has, with `close` given and the others empty unless named.
constexpr fi_ops fid_ops(int (*close)(fid*) noexcept,
                         int (*bind)(fid*, fid*, std::uint64_t) noexcept = no_bind,
                         int (*control)(fid*, int, void*) noexcept = no_control,
                         int (*ops_open)(fid*, const char*, std::uint64_t, void**,
                                         void*) noexcept = no_ops_open) noexcept {
    return {.size = sizeof(fi_ops),
            .close = close,
            .bind = bind,
            .control = control,
            .ops_open = ops_open,
            .tostr = no_tostr,
            .ops_set = no_ops_set};
}

}  // namespace rvt::ofi
