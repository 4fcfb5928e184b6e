// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Between the values of the contract (include/rvt/types.h) and those of libibverbs.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

#include "core/verbs_wc.h"
#include "rvt/types.h"

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
/// Precondition: has_ibv(opcode).
ibv_wr_opcode to_ibv(WrOpcode opcode) noexcept;
/// Whether verbs has the opcode, in the form that is posted here.
bool has_ibv(WrOpcode opcode) noexcept;
unsigned to_ibv(SendFlags flags) noexcept;
core::Wc from_ibv(const ibv_wc& wc) noexcept;

}  // namespace rvt::verbs
