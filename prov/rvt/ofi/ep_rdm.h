// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_RDM endpoints, fi_endpoint(3). What is here serves every engine; the data path is in
// ep_rdm_msg.inl, ep_rdm_tagged.inl, ep_rdm_rma.inl and ep_rdm_atomic.inl, instantiated for one
// engine each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/rd_endpoint.h"
#include "core/rd_types.h"
#include "ofi/compat.h"
#include "ofi/device_events.h"
#include "ofi/device_use.h"
#include "ofi/domain.h"
#include "ofi/ep_tables.h"
#include "ofi/fid.h"
#include "ofi/hmem_options.h"
#include "ofi/progress.h"
#include "ofi/rd_flags.h"

namespace rvt::ofi {

struct Av;
struct Cq;
struct Cntr;
class Eq;

/// The tables of an engine's data path, and how to make an endpoint of it.
struct RdmOps {
    EpTables tables;
    struct EpRdm* (*create)(Domain& domain, const core::RdAttr& attr);  // may throw bad_alloc
};

struct EpRdm {
    static EpRdm& from(fid_ep* self) noexcept { return *reinterpret_cast<EpRdm*>(self); }
    static EpRdm& from(fid* self) noexcept { return *reinterpret_cast<EpRdm*>(self); }

    /// Derives the ready-made flags from op_flags and the way the queues are bound.
    void prepare_flags() noexcept;
    /// What the operations of calls that bring their own flags have.
    RVT_ALWAYS_INLINE RdFlags send_flags_of(std::uint64_t flags) const noexcept {
        return (send_base | to_send_flags(flags)) & tx_mask;
    }
    RVT_ALWAYS_INLINE RdFlags access_flags_of(std::uint64_t flags) const noexcept {
        return (access_base | to_send_flags(flags)) & tx_mask;
    }
    RVT_ALWAYS_INLINE RdFlags recv_flags_of(std::uint64_t flags) const noexcept {
        return (recv_base | to_recv_flags(flags)) & rx_mask;
    }

    /// Whether a receive with these flags is answered in a queue that is not there.
    [[nodiscard]] RVT_ALWAYS_INLINE bool lacks_answer(std::uint64_t flags) const noexcept {
        return (flags & (FI_PEEK | FI_DISCARD)) != 0 && rx_cq == nullptr;
    }

    fid_ep handle{};

    // What the data path adds to an operation; derived by prepare_flags().
    RdFlags send_flags = RdFlags::kNone;    // of calls that bring no flags
    RdFlags access_flags = RdFlags::kNone;  // the same for one-sided calls
    RdFlags recv_flags = RdFlags::kNone;
    RdFlags tagged_recv_flags = RdFlags::kNone;
    RdFlags send_base = RdFlags::kNone;  // of calls that bring their own
    RdFlags access_base = RdFlags::kNone;
    RdFlags recv_base = RdFlags::kNone;
    RdFlags inject_access_flags = RdFlags::kNone;
    // Without a queue nothing completes into one, whatever a call says.
    RdFlags tx_mask = ~RdFlags::kNone;
    RdFlags rx_mask = ~RdFlags::kNone;
    // Ored to the source of a receive: all ones where it is not heeded, without FI_DIRECTED_RECV.
    std::uint64_t source_mask = 0;
    std::uint64_t tagged_source_mask = 0;

    core::RdEndpoint* engine = nullptr;
    void (*destroy)(EpRdm*) noexcept = nullptr;
    const RdmOps* ops = nullptr;
    Domain* domain = nullptr;
    Av* av = nullptr;
    Eq* eq = nullptr;
    Cq* tx_cq = nullptr;
    Cq* rx_cq = nullptr;
    bool is_tx_selective = false;
    bool is_rx_selective = false;
    bool is_enabled = false;
    std::uint64_t caps = 0;
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
    core::RdAttr attr;
    std::mutex name_lock;  // of binding the port, which is its name; order: before the domain's
    // By the bit of the event: send, recv, read, write, remote read, remote write.
    struct Counters {
        Cntr* send = nullptr;
        Cntr* recv = nullptr;
        Cntr* read = nullptr;
        Cntr* write = nullptr;
        Cntr* remote_read = nullptr;
        Cntr* remote_write = nullptr;
    } counters;
    Users aliases;
    DeviceUses device_uses;
    HmemOptions hmem_options;
    std::unique_ptr<EpTables> device_tables;  // of one that was opened with FI_HMEM
    std::unique_ptr<std::array<DeviceWatch, 2>> device_watches;  // where an event queue is bound
};

/// fi_ops_domain.endpoint. Returns: 0, -FI_EINVAL, -FI_ENOMEM, -FI_EBADFLAGS, -FI_ENOSYS for
/// another endpoint type.
int ep_rdm_open(fid_domain* domain, fi_info* info, fid_ep** ep, std::uint64_t flags,
                void* context) noexcept;

/// Tells ofi/ which engine serves endpoints, for each lock policy. Threads:
/// once, at load.
void set_rdm_engine(const std::array<const RdmOps*, kLockPolicies>& ops) noexcept;

// Shared by endpoints and aliases.
extern fi_ops_cm ep_rdm_cm_ops;
int ep_rdm_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept;
int ep_rdm_setopt(fid* self, int level, int option, const void* value, std::size_t bytes) noexcept;

}  // namespace rvt::ofi
