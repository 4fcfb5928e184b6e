// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Between verbs completions and the entry of the completion queue.
#include "core/verbs_wc.h"

#include <cstddef>
#include <iterator>

namespace rvt::core {
namespace {

constexpr unsigned kOpcodeShift = 48;
constexpr unsigned kFlagsShift = 56;
constexpr unsigned kSrcQpnShift = 32;
constexpr unsigned kAppCtxShift = 32;

std::uint64_t fi_flags_of(WcOpcode opcode) noexcept {
    switch (opcode) {
        case WcOpcode::kSend: return kWcMsg | kWcSend;
        case WcOpcode::kWrite:
        case WcOpcode::kAtomicWrite: return kWcRma | kWcWrite;
        case WcOpcode::kRead: return kWcRma | kWcRead;
        case WcOpcode::kCas:
        case WcOpcode::kFetchAdd:
        case WcOpcode::kExtendedAtomic: return kWcAtomic | kWcRead;
        case WcOpcode::kRecv: return kWcMsg | kWcRecv;
        case WcOpcode::kRecvWriteImm: return kWcRma | kWcRemoteWrite | kWcRemoteCqData;
        case WcOpcode::kTmRecv: return kWcTagged | kWcRecv;
        case WcOpcode::kLocalInv:
        case WcOpcode::kBindMw:
        case WcOpcode::kFlush:
        case WcOpcode::kTmAdd:
        case WcOpcode::kTmDel:
        case WcOpcode::kTmSync: return 0;
        case WcOpcode::kTmNoTag: return kWcMsg | kWcRecv;
    }
    return 0;
}

}  // namespace

Cqe to_cqe(const Wc& wc) noexcept {
    Cqe cqe;
    cqe.op_context = reinterpret_cast<void*>(wc.wr_id);  // NOLINT(performance-no-int-to-ptr)
    cqe.flags = fi_flags_of(wc.opcode) | (std::uint64_t(wc.opcode) << kOpcodeShift) |
                (std::uint64_t(wc.flags) << kFlagsShift);
    cqe.len = wc.byte_len;
    cqe.buf = reinterpret_cast<void*>(wc.tm_tag);  // NOLINT(performance-no-int-to-ptr)
    cqe.data = wc.imm | (std::uint64_t(wc.tm_app_ctx) << kAppCtxShift);
    cqe.tag = wc.qpn | (std::uint64_t(wc.src_qpn) << kSrcQpnShift);
    cqe.source = wc.src_port;
    cqe.status = wc.status;
    cqe.extra = wc.vendor_err;
    return cqe;
}

Wc from_cqe(const Cqe& cqe) noexcept {
    return {.wr_id = reinterpret_cast<std::uint64_t>(cqe.op_context),
            .status = cqe.status,
            .opcode = static_cast<WcOpcode>((cqe.flags >> kOpcodeShift) & 0xff),
            .flags = static_cast<WcFlags>(cqe.flags >> kFlagsShift),
            .byte_len = cqe.len,
            .imm = static_cast<std::uint32_t>(cqe.data),
            .qpn = static_cast<std::uint32_t>(cqe.tag),
            .src_qpn = static_cast<std::uint32_t>(cqe.tag >> kSrcQpnShift),
            .src_port = static_cast<std::uint16_t>(cqe.source),
            .vendor_err = cqe.extra,
            .tm_tag = reinterpret_cast<std::uint64_t>(cqe.buf),
            .tm_app_ctx = static_cast<std::uint32_t>(cqe.data >> kAppCtxShift)};
}

const char* to_string(WcStatus status) noexcept {
    static constexpr const char* kNames[] = {
        "success",
        "local length error",
        "local qp operation error",
        "local protection error",
        "work request flushed",
        "memory window bind error",
        "bad response",
        "local access error",
        "remote invalid request",
        "remote access error",
        "remote operation error",
        "transport retries exceeded",
        "receiver not ready, retries exceeded",
        "general error",
        "canceled",
        "truncated",
        "no message",
        "peer dead",
        "peer unreachable",
        "no memory",
        "tag matching error",
    };
    static_assert(std::size(kNames) == static_cast<std::size_t>(WcStatus::kCount));
    return status < WcStatus::kCount ? kNames[static_cast<std::size_t>(status)] : "?";
}

}  // namespace rvt::core
