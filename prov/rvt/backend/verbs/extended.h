// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The extended verbs of libibverbs, for NICs whose driver has them: requests that are built in the
// pair's queue by calls of the driver, without a list in between (ibv_wr_post(3)), and completions
// of which only what is asked for is read (ibv_create_cq_ex(3)).
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>

#include "backend/verbs/library.h"
#include "backend/verbs/translate.h"
#include "core/ah.h"
#include "core/verbs_wc.h"
#include "rvt/status.h"
#include "rvt/types.h"
#include "util/cpu.h"

namespace rvt::verbs {

/// Which requests the driver's calls build in the queues of pairs of a type; others go as lists.
struct Builds {
    std::uint32_t opcodes = 0;  // a bit for each: with one buffer,
    std::uint32_t lists = 0;    // and with several or none

    [[nodiscard]] constexpr bool is_any() const noexcept { return opcodes != 0; }
    [[nodiscard]] constexpr bool has(WrOpcode opcode) const noexcept {
        return (opcodes & bit_of(opcode)) != 0;
    }
    /// Inline data of several buffers would need a list of another form, for which ionic allocates.
    [[nodiscard]] constexpr bool has(const SendWr& wr) const noexcept {
        return wr.sg_list.size() == 1
                   ? has(wr.opcode)
                   : (lists & bit_of(wr.opcode)) != 0 && !has_any(wr.flags, SendFlags::kInline);
    }
    static constexpr std::uint32_t bit_of(WrOpcode opcode) noexcept {
        return 1u << static_cast<unsigned>(opcode);
    }
    static_assert(kWrOpcodes <= 32, "each opcode has a bit");
};

/// Asks the driver, by making such pairs on the queue, which end at once.
/// Returns: nothing where it has no such calls.
Builds find_builds(ibv_context& context, ibv_pd& pd, ibv_cq& queue, QpType type) noexcept;
/// A pair that takes both forms of requests. Returns: nullptr, with errno: the driver makes none.
ibv_qp* create_extended_pair(ibv_context& context, ibv_pd& pd, ibv_qp_init_attr& init,
                             const Builds& builds) noexcept;
/// A queue for poll_extended(). Returns: as above.
ibv_cq* create_extended_queue(ibv_context& context, int depth, void* user,
                              ibv_comp_channel* channel) noexcept;

/// begin() for opcodes that are less frequent.
void begin_other(ibv_qp_ex& to, const SendWr& wr, WrOpcode opcode) noexcept;
/// The call for an opcode that Builds may have, with its operands.
RVT_ALWAYS_INLINE void begin(ibv_qp_ex& to, const SendWr& wr, WrOpcode opcode) noexcept {
    if (opcode == WrOpcode::kSend) {
        ibv_wr_send(&to);
    } else if (opcode == WrOpcode::kWrite) {
        ibv_wr_rdma_write(&to, wr.rkey, wr.remote_addr);
    } else if (opcode == WrOpcode::kRead) {
        ibv_wr_rdma_read(&to, wr.rkey, wr.remote_addr);
    } else {
        begin_other(to, wr, opcode);
    }
}

/// Posts a request. Preconditions: create_extended_pair() has made the pair, for builds that have
/// the request, and its queue is not full, which who posts knows by counting: mlx5 and bnxt_re go
/// on to write where the last request lies, or nowhere (rdma-core 2026, by its source).
/// @tparam kHasAddress  The pair is a UD pair.
/// @param opcode  Of `wr`, for callers of which the compiler knows it.
/// Returns: as ibv_post_send(3), ENOMEM for a full queue where the driver notices it.
/// Threads: one at a time for each pair.
template <bool kHasAddress>
RVT_ALWAYS_INLINE Status build(ibv_qp& pair, const SendWr& wr, WrOpcode opcode) noexcept {
    auto* const to = reinterpret_cast<ibv_qp_ex*>(&pair);  // of which it is the first member
    const std::span<const Sge> list = wr.sg_list;
    ibv_wr_start(to);
    to->wr_id = wr.wr_id;
    to->wr_flags = to_ibv(wr.flags);
    begin(*to, wr, opcode);
    if constexpr (kHasAddress) {
        ibv_wr_set_ud_addr(to, static_cast<ibv_ah*>(wr.ah->priv()), wr.remote_qpn, wr.remote_qkey);
    }
    if (list.size() != 1) {
        ibv_wr_set_sge_list(to, list.size(), list_of(list));
    } else if (has_any(wr.flags, SendFlags::kInline)) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
        ibv_wr_set_inline_data(to, reinterpret_cast<void*>(list[0].addr), list[0].length);
    } else {
        ibv_wr_set_sge(to, list[0].lkey, list[0].addr, list[0].length);
    }
    const Status posted = from_ibv(ibv_wr_complete(to));
    return posted.error() == ENOSPC ? Status(ENOMEM) : posted;
}

/// What a look into a queue has brought.
struct Polled {
    unsigned taken = 0;
    int error = 0;  // of the driver: it gives no more
};

/// Takes completions out. Precondition: create_extended_queue() has made the queue. Threads: any.
Polled poll_extended(ibv_cq& queue, std::span<core::Wc> to) noexcept;

}  // namespace rvt::verbs
