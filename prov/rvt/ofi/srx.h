// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Shared receive contexts, fi_srx_context(3): one queue of receives for the FI_EP_MSG endpoints of
// a domain, on whatever ports; of a NIC's domain, the NIC's own.
#pragma once

#include "core/owned.h"
#include "core/recv_queue.h"
#include "core/srq.h"
#include "ofi/compat.h"
#include "ofi/device_use.h"
#include "ofi/domain.h"
#include "ofi/fid.h"
#include "ofi/msg_op.h"
#include "ofi/msg_options.h"

namespace rvt::ofi {

struct Srx {
    static Srx& from(fid_ep* self) noexcept { return *reinterpret_cast<Srx*>(self); }
    static Srx& from(fid* self) noexcept { return *reinterpret_cast<Srx*>(self); }

    Srx(Domain& of, std::size_t count, std::size_t pieces)
        : domain(&of),
          size(count),
          queue(static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(pieces)),
          ops(count) {}

    fid_ep handle{};
    DeviceUses device_uses;  // of receives that nobody has taken, too
    Domain* domain;
    std::size_t size;
    std::uint64_t op_flags = 0;
    std::uint64_t max_bytes = kMsgMaxBytes;  // of a message
    Users users;
    core::RecvQueue queue;
    core::Owned<core::Srq> nic_queue;  // in its place
    MsgOps ops;
};

/// fi_ops_domain.srx_ctx. Returns: 0, -FI_EINVAL, -FI_ENOMEM.
int srx_open(fid_domain* domain, fi_rx_attr* attr, fid_ep** srx, void* context) noexcept;

}  // namespace rvt::ofi
