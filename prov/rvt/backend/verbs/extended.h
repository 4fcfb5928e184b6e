// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The extended verbs of libibverbs, for NICs whose driver has them: requests that are built in the
// pair's queue by calls of the driver, without a list in between (ibv_wr_post(3)), and completions
// of which only what is asked for is read (ibv_create_cq_ex(3)).
#pragma once

#include <cerrno>
#include <span>

#include "backend/verbs/library.h"
#include "backend/verbs/translate.h"
#include "core/verbs_wc.h"
#include "rvt/status.h"
#include "rvt/types.h"
#include "util/cpu.h"

namespace rvt::verbs {

/// A pair that takes both forms of requests. Returns: nullptr, with errno: the driver makes none.
ibv_qp* create_extended_pair(ibv_context& context, ibv_pd& pd, ibv_qp_init_attr& init) noexcept;
/// A queue for poll_extended(). Returns: as above.
ibv_cq* create_extended_queue(ibv_context& context, int depth, void* user,
                              ibv_comp_channel* channel) noexcept;

/// Whether build() knows the request: those that are frequent.
constexpr bool can_build(const SendWr& wr) noexcept {
    return wr.sg_list.size() == 1 &&
           (wr.opcode == WrOpcode::kSend || wr.opcode == WrOpcode::kWrite ||
            wr.opcode == WrOpcode::kRead);
}

/// Posts a request. Preconditions: can_build(wr); create_extended_pair() has made the pair.
/// @param opcode  Of `wr`, for callers of which the compiler knows it.
/// Returns: as ibv_post_send(3), ENOMEM for a full queue whatever the driver says. Threads: any.
RVT_ALWAYS_INLINE Status build(ibv_qp& pair, const SendWr& wr, WrOpcode opcode) noexcept {
    auto* const to = reinterpret_cast<ibv_qp_ex*>(&pair);  // of which it is the first member
    const Sge& place = wr.sg_list.front();
    ibv_wr_start(to);
    to->wr_id = wr.wr_id;
    to->wr_flags = to_ibv(wr.flags);
    if (opcode == WrOpcode::kSend) {
        ibv_wr_send(to);
    } else if (opcode == WrOpcode::kWrite) {
        ibv_wr_rdma_write(to, wr.rkey, wr.remote_addr);
    } else {
        ibv_wr_rdma_read(to, wr.rkey, wr.remote_addr);
    }
    if (has_any(wr.flags, SendFlags::kInline)) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
        ibv_wr_set_inline_data(to, reinterpret_cast<void*>(place.addr), place.length);
    } else {
        ibv_wr_set_sge(to, place.lkey, place.addr, place.length);
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
