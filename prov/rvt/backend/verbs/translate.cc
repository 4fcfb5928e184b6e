// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tables of what corresponds.
#include "backend/verbs/translate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include <arpa/inet.h>

namespace rvt::verbs {
namespace {

template <class From, class To>
struct Bit {
    From from;
    To to;
};

template <class Result, class From, class To, std::size_t kCount>
Result map_bits(From bits, const std::array<Bit<From, To>, kCount>& table) noexcept {
    Result mapped{};
    for (const Bit<From, To>& row : table) {
        if (has_any(bits, row.from)) {
            mapped = static_cast<Result>(mapped | static_cast<Result>(row.to));
        }
    }
    return mapped;
}

constexpr std::array kAccessBits = std::to_array<Bit<Access, int>>({
    {Access::kLocalWrite, IBV_ACCESS_LOCAL_WRITE},
    {Access::kRemoteWrite, IBV_ACCESS_REMOTE_WRITE},
    {Access::kRemoteRead, IBV_ACCESS_REMOTE_READ},
    {Access::kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC},
    {Access::kMwBind, IBV_ACCESS_MW_BIND},
    {Access::kOnDemand, IBV_ACCESS_ON_DEMAND},
    {Access::kRelaxedOrdering, IBV_ACCESS_RELAXED_ORDERING},
});

constexpr std::array kMaskBits = std::to_array<Bit<QpMask, int>>({
    {QpMask::kState, IBV_QP_STATE},
    {QpMask::kCurState, IBV_QP_CUR_STATE},
    {QpMask::kSqdNotify, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpMask::kAccess, IBV_QP_ACCESS_FLAGS},
    {QpMask::kPkeyIndex, IBV_QP_PKEY_INDEX},
    {QpMask::kPort, IBV_QP_PORT},
    {QpMask::kQkey, IBV_QP_QKEY},
    {QpMask::kAv, IBV_QP_AV},
    {QpMask::kPathMtu, IBV_QP_PATH_MTU},
    {QpMask::kTimeout, IBV_QP_TIMEOUT},
    {QpMask::kRetryCnt, IBV_QP_RETRY_CNT},
    {QpMask::kRnrRetry, IBV_QP_RNR_RETRY},
    {QpMask::kRqPsn, IBV_QP_RQ_PSN},
    {QpMask::kMaxRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC},
    {QpMask::kMinRnrTimer, IBV_QP_MIN_RNR_TIMER},
    {QpMask::kSqPsn, IBV_QP_SQ_PSN},
    {QpMask::kMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC},
    {QpMask::kDestQpn, IBV_QP_DEST_QPN},
});

constexpr std::array<ibv_qp_state, kQpStates> kStates = {
    IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR};

ibv_mtu to_ibv_mtu(std::uint32_t bytes) noexcept {
    // IBV_MTU_256 is 1, and each next one twice as much.
    const auto code = static_cast<unsigned>(std::bit_width(bytes)) - 8;
    return static_cast<ibv_mtu>(std::clamp(code, unsigned{IBV_MTU_256}, unsigned{IBV_MTU_4096}));
}

}  // namespace

int to_ibv_access(Access access) noexcept {
    return map_bits<int>(access, kAccessBits);
}

ibv_qp_type to_ibv(QpType type) noexcept {
    switch (type) {
        case QpType::kUc: return IBV_QPT_UC;
        case QpType::kUd: return IBV_QPT_UD;
        case QpType::kRc:
        case QpType::kRd: break;
    }
    return IBV_QPT_RC;
}

ibv_qp_state to_ibv(QpState state) noexcept {
    return kStates[static_cast<std::size_t>(state)];
}

QpState from_ibv(ibv_qp_state state) noexcept {
    const auto* const found = std::ranges::find(kStates, state);
    return found != kStates.end() ? static_cast<QpState>(found - kStates.begin()) : QpState::kErr;
}

int to_ibv_mask(QpMask mask) noexcept {
    return map_bits<int>(mask, kMaskBits);
}

ibv_ah_attr to_ibv(const AhAttr& attr, std::uint8_t port, std::uint8_t gid_index) noexcept {
    ibv_ah_attr way{};
    std::memcpy(way.grh.dgid.raw, attr.dest.gid.data(), attr.dest.gid.size());
    way.grh.sgid_index = gid_index;
    way.grh.hop_limit = attr.hop_limit;
    way.dlid = attr.dlid;
    way.sl = attr.service_level;
    way.is_global = attr.dlid == 0 || attr.needs_grh ? 1 : 0;
    way.port_num = port;
    return way;
}

ibv_qp_attr to_ibv(const QpAttr& attr, std::uint8_t port, std::uint8_t gid_index) noexcept {
    ibv_qp_attr to{};
    to.qp_state = to_ibv(attr.state);
    to.cur_qp_state = to_ibv(attr.cur_state);
    to.path_mtu = to_ibv_mtu(attr.path_mtu_bytes);
    to.qkey = attr.qkey;
    to.rq_psn = attr.rq_psn;
    to.sq_psn = attr.sq_psn;
    to.dest_qp_num = attr.dest_qpn;
    to.qp_access_flags = static_cast<unsigned>(to_ibv_access(attr.access));
    to.ah_attr = to_ibv(attr.ah, port, gid_index);
    to.pkey_index = attr.pkey_index;
    to.en_sqd_async_notify = attr.sqd_notify ? 1 : 0;
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.port_num = port;
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    return to;
}

core::WcStatus failure_of(ibv_wc_status status) noexcept {
    using enum core::WcStatus;
    switch (status) {
        case IBV_WC_LOC_LEN_ERR: return kLocLenErr;
        case IBV_WC_LOC_QP_OP_ERR: return kLocQpOpErr;
        case IBV_WC_LOC_PROT_ERR: return kLocProtErr;
        case IBV_WC_WR_FLUSH_ERR: return kWrFlushErr;
        case IBV_WC_MW_BIND_ERR: return kMwBindErr;
        case IBV_WC_BAD_RESP_ERR: return kBadRespErr;
        case IBV_WC_LOC_ACCESS_ERR: return kLocAccessErr;
        case IBV_WC_REM_INV_REQ_ERR: return kRemInvReqErr;
        case IBV_WC_REM_ACCESS_ERR: return kRemAccessErr;
        case IBV_WC_REM_OP_ERR: return kRemOpErr;
        case IBV_WC_RETRY_EXC_ERR:
        case IBV_WC_RESP_TIMEOUT_ERR: return kRetryExcErr;
        case IBV_WC_RNR_RETRY_EXC_ERR: return kRnrRetryExcErr;
        default: return kGeneralErr;
    }
}

core::WcOpcode opcode_of(ibv_wc_opcode opcode) noexcept {
    using enum core::WcOpcode;
    switch (opcode) {
        case IBV_WC_RDMA_WRITE: return kWrite;
        case IBV_WC_RDMA_READ: return kRead;
        case IBV_WC_COMP_SWAP: return kCas;
        case IBV_WC_FETCH_ADD: return kFetchAdd;
        case IBV_WC_BIND_MW: return kBindMw;
        case IBV_WC_LOCAL_INV: return kLocalInv;
        case IBV_WC_RECV: return kRecv;
        case IBV_WC_RECV_RDMA_WITH_IMM: return kRecvWriteImm;
        default: return kSend;
    }
}

}  // namespace rvt::verbs
