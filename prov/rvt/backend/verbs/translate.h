// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Between the values of the contract (include/rvt/types.h) and those of libibverbs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "core/verbs_wc.h"
#include "rvt/status.h"
#include "rvt/types.h"
#include "util/cpu.h"

namespace rvt::verbs {

int to_ibv_access(Access access) noexcept;
ibv_qp_type to_ibv(QpType type) noexcept;
ibv_qp_state to_ibv(QpState state) noexcept;
QpState from_ibv(ibv_qp_state state) noexcept;
/// The bits of the mask that verbs has.
int to_ibv_mask(QpMask mask) noexcept;
/// All members; the mask says which of them are read.
/// @param port, gid_index  Of the NIC.
ibv_qp_attr to_ibv(const QpAttr& attr, std::uint8_t port, std::uint8_t gid_index) noexcept;
ibv_ah_attr to_ibv(const AhAttr& attr, std::uint8_t port, std::uint8_t gid_index) noexcept;

/// What a call of libibverbs has returned: an errno, before which some drivers put a minus.
constexpr Status from_ibv(int error) noexcept {
    return error < 0 ? -error : error;
}

// ---- what each request and completion needs ----

inline constexpr int kNoOpcode = -1;
inline constexpr std::array<int, kWrOpcodes> kIbvOpcodes = {
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_LOCAL_INV,
    kNoOpcode,  // BIND_MW: windows are made by the NIC's own calls, which the core does not offer
    kNoOpcode,  // FLUSH and ATOMIC_WRITE: not of the libibverbs that this is built with
    kNoOpcode,
    kNoOpcode,  // EXTENDED_ATOMIC: between devices of rvt alone
};
/// Whether verbs has the opcode, in the form that is posted here.
constexpr bool has_ibv(WrOpcode opcode) noexcept {
    const auto i = static_cast<std::size_t>(opcode);
    return i < kIbvOpcodes.size() && kIbvOpcodes[i] != kNoOpcode;
}
/// Precondition: has_ibv(opcode).
constexpr ibv_wr_opcode to_ibv(WrOpcode opcode) noexcept {
    return static_cast<ibv_wr_opcode>(kIbvOpcodes[static_cast<std::size_t>(opcode)]);
}

inline constexpr auto kIbvSendFlags = [] {  // by ours
    std::array<std::uint8_t, 32> table{};
    for (std::size_t i = 0; i < table.size(); ++i) {
        const auto ours = static_cast<SendFlags>(i);
        table[i] = static_cast<std::uint8_t>(
            (has_any(ours, SendFlags::kSignaled) ? IBV_SEND_SIGNALED : 0) |
            (has_any(ours, SendFlags::kFence) ? IBV_SEND_FENCE : 0) |
            (has_any(ours, SendFlags::kSolicited) ? IBV_SEND_SOLICITED : 0) |
            (has_any(ours, SendFlags::kInline) ? IBV_SEND_INLINE : 0));
    }
    return table;
}();
constexpr unsigned to_ibv(SendFlags flags) noexcept {
    return kIbvSendFlags[static_cast<std::size_t>(flags) % kIbvSendFlags.size()];
}

static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
                  offsetof(Sge, length) == offsetof(ibv_sge, length) &&
                  offsetof(Sge, lkey) == offsetof(ibv_sge, lkey),
              "a list of ours is one of libibverbs");

inline ibv_sge* list_of(std::span<const Sge> list) noexcept {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): libibverbs only reads it
    return reinterpret_cast<ibv_sge*>(const_cast<Sge*>(list.data()));
}

/// Of a completion that is no success.
[[gnu::cold]] core::WcStatus failure_of(ibv_wc_status status) noexcept;
core::WcOpcode opcode_of(ibv_wc_opcode opcode) noexcept;

inline constexpr auto kWcFlags = [] {  // by those of libibverbs
    using enum core::WcFlags;
    std::array<core::WcFlags, 16> table{};
    for (unsigned i = 0; i < table.size(); ++i) {
        table[i] = ((i & IBV_WC_GRH) != 0 ? kGrh : kNone) |
                   ((i & IBV_WC_WITH_IMM) != 0 ? kWithImm : kNone) |
                   ((i & IBV_WC_WITH_INV) != 0 ? kWithInv : kNone);
    }
    return table;
}();
constexpr bool has_imm(unsigned ibv_wc_flags) noexcept {
    return (ibv_wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) != 0;
}

/// Writes the members that mean something; of a failure all, since who reads one does not ask what
/// another completion has left there.
RVT_ALWAYS_INLINE void from_ibv(const ibv_wc& wc, core::Wc& to) noexcept {
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        to = {.wr_id = wc.wr_id,
              .status = failure_of(wc.status),
              .qpn = wc.qp_num,
              .vendor_err = wc.vendor_err};
        return;
    }
    to.wr_id = wc.wr_id;
    to.qpn = wc.qp_num;
    to.status = core::WcStatus::kSuccess;
    to.opcode = wc.opcode == IBV_WC_RECV ? core::WcOpcode::kRecv : opcode_of(wc.opcode);
    to.flags = kWcFlags[wc.wc_flags % kWcFlags.size()];
    to.byte_len = wc.byte_len;
    to.src_qpn = wc.src_qp;
    if (has_imm(wc.wc_flags)) [[unlikely]] {
        to.imm = (wc.wc_flags & IBV_WC_WITH_INV) != 0 ? wc.invalidated_rkey : ntohl(wc.imm_data);
    }
}

/// The completion that a queue is at, between ibv_start_poll() and ibv_end_poll().
RVT_ALWAYS_INLINE void read_completion(ibv_cq_ex& queue, core::Wc& to) noexcept {
    ibv_wc wc{};
    wc.wr_id = queue.wr_id;
    wc.status = queue.status;
    wc.qp_num = ibv_wc_read_qp_num(&queue);
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        wc.vendor_err = ibv_wc_read_vendor_err(&queue);
        from_ibv(wc, to);
        return;
    }
    wc.opcode = ibv_wc_read_opcode(&queue);
    wc.byte_len = ibv_wc_read_byte_len(&queue);
    wc.wc_flags = ibv_wc_read_wc_flags(&queue);
    if (wc.opcode == IBV_WC_RECV) {
        wc.src_qp = ibv_wc_read_src_qp(&queue);
    }
    if (has_imm(wc.wc_flags)) {
        wc.imm_data = ibv_wc_read_imm_data(&queue);  // the same place as invalidated_rkey
    }
    from_ibv(wc, to);
}

}  // namespace rvt::verbs
