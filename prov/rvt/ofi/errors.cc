// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One row for each outcome of an operation.
#include "ofi/errors.h"

#include <array>
#include <cstdio>

namespace rvt::ofi {
namespace {

using core::WcStatus;

struct Row {
    WcStatus status;
    int fi_errno;
    const char* text;
};

// clang-format off
constexpr std::array<Row, static_cast<std::size_t>(WcStatus::kCount)> kRows{{
    {WcStatus::kSuccess,         0,                "success"},
    {WcStatus::kLocLenErr,       FI_EMSGSIZE,      "local length error: the buffers do not hold the message"},
    {WcStatus::kLocQpOpErr,      FI_EOPBADSTATE,   "local operation error"},
    {WcStatus::kLocProtErr,      FI_EFAULT,        "local protection error: a local buffer cannot be used"},
    {WcStatus::kWrFlushErr,      FI_ECANCELED,     "flushed: the endpoint closed before the operation was done"},
    {WcStatus::kMwBindErr,       FI_EACCES,        "memory window cannot be bound"},
    {WcStatus::kBadRespErr,      FI_EIO,           "the peer's response makes no sense"},
    {WcStatus::kLocAccessErr,    FI_EACCES,        "local access error"},
    {WcStatus::kRemInvReqErr,    FI_EINVAL,        "the peer refuses the request as invalid"},
    {WcStatus::kRemAccessErr,    FI_EACCES,        "remote access error: unknown key, out of bounds, or access not granted"},
    {WcStatus::kRemOpErr,        FI_EREMOTEIO,     "the peer failed to do the operation"},
    {WcStatus::kRetryExcErr,     FI_ETIMEDOUT,     "the peer does not answer"},
    {WcStatus::kRnrRetryExcErr,  FI_ENORX,         "the peer had no receive posted for too long"},
    {WcStatus::kGeneralErr,      FI_EIO,           "general error"},
    {WcStatus::kCanceled,        FI_ECANCELED,     "canceled"},
    {WcStatus::kTruncated,       FI_ETRUNC,        "the message is longer than the receive buffer"},
    {WcStatus::kNoMessage,       FI_ENOMSG,        "no message matches"},
    {WcStatus::kPeerDead,        FI_ECONNRESET,    "the peer's process ended or its connection broke"},
    {WcStatus::kPeerUnreachable, FI_EHOSTUNREACH,  "nobody answers at the peer's address"},
    {WcStatus::kNoMemory,        FI_ENOMEM,        "out of memory"},
    {WcStatus::kTmErr,           FI_EIO,           "tag matching error"},
}};
// clang-format on

constexpr bool is_in_order() {
    for (std::size_t i = 0; i < kRows.size(); ++i) {
        if (static_cast<std::size_t>(kRows[i].status) != i) {
            return false;
        }
    }
    return true;
}
static_assert(is_in_order());

static_assert(core::kWcMsg == FI_MSG && core::kWcRma == FI_RMA && core::kWcTagged == FI_TAGGED);
static_assert(core::kWcAtomic == FI_ATOMIC && core::kWcMulticast == FI_MULTICAST);
static_assert(core::kWcRead == FI_READ && core::kWcWrite == FI_WRITE);
static_assert(core::kWcRecv == FI_RECV && core::kWcSend == FI_SEND &&
              core::kWcMultiRecv == FI_MULTI_RECV);
static_assert(core::kWcRemoteRead == FI_REMOTE_READ && core::kWcRemoteWrite == FI_REMOTE_WRITE);
static_assert(core::kWcRemoteCqData == FI_REMOTE_CQ_DATA &&
              core::kSourceNotAvailable == FI_ADDR_NOTAVAIL);

}  // namespace

int to_fi_errno(WcStatus status) noexcept {
    const auto place = static_cast<std::size_t>(status);
    return place < kRows.size() ? kRows[place].fi_errno : FI_EOTHER;
}

const char* completion_text(int prov_errno) noexcept {
    const auto place = static_cast<std::size_t>(prov_errno);
    return prov_errno >= 0 && place < kRows.size() ? kRows[place].text : "unknown error";
}

const char* copy_text(const char* text, char* buffer, std::size_t bytes) noexcept {
    if (buffer != nullptr && bytes > 0) {
        std::snprintf(buffer, bytes, "%s", text);
        return buffer;
    }
    return text;
}

}  // namespace rvt::ofi
