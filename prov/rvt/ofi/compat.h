// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One source for libfabric 1.17 and 2.x: constants that the older headers lack or the newer ones
// deprecate, and the questions which fields of an application's structure exist.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#include <cstddef>
#include <cstdint>

// Tables of libfabric grow at their ends. What our initialisers do not name is null, and nobody
// asks for it who trusts `size`; a warning for each newer header would only say that it is newer.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace rvt::ofi {

// mr_mode before version 1.5 was an enumeration; newer headers warn where its names are used.
inline constexpr int kMrUnspec = 0;
inline constexpr int kMrBasic = 1 << 0;
inline constexpr int kMrScalable = 1 << 1;

inline constexpr std::uint64_t kOrderNone = 0;  // FI_ORDER_NONE

// A mode that headers of 2.x do not have any more: FI_BUFFERED_RECV.
inline constexpr std::uint64_t kModeBufferedRecv = 1ull << 51;

// Values that arrived after 1.17. All of them are asked of by number only.
inline constexpr int kProgressControlUnified = 3;
inline constexpr std::uint64_t kRescan = 1ull << 35;  // fi_getinfo: look at the hardware again
inline constexpr std::uint64_t kFirewallAddr = 1ull << 42;  // fi_av_insert
inline constexpr std::uint64_t kTaggedDirectedRecv = 1ull << 45;
inline constexpr std::uint64_t kTaggedMultiRecv = 1ull << 46;
inline constexpr std::uint64_t kExactDirectedRecv = 1ull << 48;
inline constexpr std::uint64_t kMrDmabuf = 1ull << 40;
inline constexpr std::uint64_t kMrSingleUse = 1ull << 41;
inline constexpr int kOptCudaApiPermitted = 10;
inline constexpr int kOptSharedMemoryPermitted = 11;
inline constexpr int kOptMaxMsgSize = 12;
inline constexpr int kOptMaxTaggedSize = 13;
inline constexpr int kOptMaxRmaSize = 14;
inline constexpr int kOptMaxAtomicSize = 15;
inline constexpr int kOptInjectMsgSize = 16;
inline constexpr int kOptInjectTaggedSize = 17;
inline constexpr int kOptInjectRmaSize = 18;
inline constexpr int kOptInjectAtomicSize = 19;

/// Whether endpoints of one type or another have the option. Others answer for it -FI_ENOPROTOOPT,
/// and to a value that it cannot have -FI_EOPNOTSUPP, fi_endpoint(3).
constexpr bool is_known_option(int option) noexcept {
    return option == FI_OPT_MIN_MULTI_RECV || option == FI_OPT_CM_DATA_SIZE ||
           (option >= FI_OPT_TX_SIZE && option <= kOptInjectAtomicSize);
}
/// What fi_setopt answers where nothing is changed.
constexpr int refuse_option(int level, int option) noexcept {
    return level == FI_OPT_ENDPOINT && is_known_option(option) ? -FI_EOPNOTSUPP : -FI_ENOPROTOOPT;
}

// Operations and datatypes of atomics. Numbers in the order of core::AtomicOp and
// core::AtomicType.
inline constexpr auto kOpDiff = static_cast<fi_op>(19);
inline constexpr auto kFloat16 = static_cast<fi_datatype>(16);
inline constexpr auto kBfloat16 = static_cast<fi_datatype>(17);
inline constexpr auto kFloat8E4m3 = static_cast<fi_datatype>(18);
inline constexpr auto kFloat8E5m2 = static_cast<fi_datatype>(19);

// Flags that libfabric's core and its utility providers add when they call a provider's fi_getinfo.
inline constexpr std::uint64_t kCoreGetinfoFlags =
    (1ull << 58) | (1ull << 59) | (1ull << 60) | (1ull << 61);

inline constexpr std::uint32_t kVersionMrModeBits =
    FI_VERSION(1, 5);  // mr_mode became a set of bits
inline constexpr std::uint32_t kVersionCqErrSrcAddr = FI_VERSION(1, 20);

/// struct fi_mr_dmabuf of fi_mr(3), from 1.20 on; fi_mr_attr has a pointer to it in the place of
/// mr_iov, and did not change otherwise, so that callers of any version may know of it.
struct MrDmabuf {
    int fd;
    std::uint64_t offset;
    std::size_t len;
    void* base_addr;
};

/// Structures that applications hand in may have grown since they were built. A caller of an older
/// version does not have the fields from `end` on.
inline constexpr std::size_t kCqErrEntryBytes117 =
    offsetof(fi_cq_err_entry, err_data_size) + sizeof(std::size_t);

/// Bytes that libfabric may read behind a structure of ours when it is newer than our headers.
inline constexpr std::size_t kTailRoom = 256;

}  // namespace rvt::ofi
