// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Buffers without a descriptor in a NIC's domain, whose keys would otherwise be the application's
// to bring (FI_MR_LOCAL): what is sent is copied into registered memory where it is small, all else
// is registered, and stays so where core/reg_cache.h may keep it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/mr.h"
#include "core/owned.h"
#include "core/reg_cache.h"
#include "ofi/msg_op.h"
#include "rvt/types.h"
#include "util/status.h"

namespace rvt::ofi {

/// Whether buffers need no descriptor in NICs' domains: registrations may be kept, and the kernel
/// tells what becomes of memory.
bool keeps_registrations() noexcept;

/// What stays registered of the application's memory, as the parameters and the system say; `pd` is
/// the caller's to fill in.
core::RegCacheAttr registrations_of_params();

/// Threads: one at a time.
class NicMemory {
  public:
    /// @param pd  Of the NIC; outlives this.
    explicit NicMemory(core::Pd& pd);
    /// Precondition: nothing is lent.
    ~NicMemory();
    NicMemory(const NicMemory&) = delete;
    NicMemory& operator=(const NicMemory&) = delete;

    /// Names the elements without a key, which is kNone, for as long as the request is under way.
    /// @param elements  Of a request that sends, or writes to the peer. Where they are copied, one
    ///                  is left.
    /// Returns: what reg_mr() says, which has been logged; nothing is lent then.
    util::Status lend_to_send(MsgOp& op, std::span<Sge> elements, std::size_t& count) noexcept;
    /// The same, of each where it is.
    util::Status lend_in_place(MsgOp& op, std::span<Sge> elements) noexcept;
    /// The same for a request that fills them.
    util::Status lend_to_receive(MsgOp& op, std::span<Sge> elements) noexcept;
    /// The request has ended, or was not posted.
    void give_back(MsgOp& op) noexcept {
        if (op.lent.is_any()) {
            end(op);
        }
    }

    /// Of an element that has no key yet: none that a NIC gives.
    static constexpr std::uint32_t kNone = 0xffffffff;

  private:
    static constexpr std::size_t kCopyBytes = 8u << 10;
    static constexpr std::size_t kCopies = 64;

    struct Unmap {
        void operator()(std::byte* memory) const noexcept;
    };

    [[nodiscard]] bool has_copies() noexcept;
    util::Status lend(MsgOp& op, std::span<Sge> elements, core::RegCache::Nic use) noexcept;
    void end(MsgOp& op) noexcept;
    void tell(util::Status error, std::size_t bytes) noexcept;

    core::Pd& pd_;
    core::RegCache cache_;
    std::unique_ptr<std::byte[], Unmap> copies_;  // made when the first is needed
    core::Owned<core::Mr> copies_region_;
    std::array<std::byte*, kCopies> free_{};
    std::size_t free_count_ = 0;
    bool has_tried_copies_ = false;
    bool has_told_ = false;
};

}  // namespace rvt::ofi
