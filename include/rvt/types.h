// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The values that the core, its backends and its clients exchange: addresses, attributes, work
// requests. Names and meanings are those of verbs (ibv_modify_qp(3), ibv_post_send(3),
// ibv_poll_cq(3)); the numbers of this project's own enumerations are not those of libibverbs.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "rvt/flags.h"

namespace rvt::core {
class Ah;
class BufferUse;
}  // namespace rvt::core

namespace rvt {

// ---- addresses ----

/// Where a device is reached: an IPv6 or IPv4-mapped address and the UDP port that is bound there.
struct Address {
    std::array<std::uint8_t, 16> gid{};
    std::uint16_t port = 0;

    /// Whether both are of one host's interface. In two words: a comparison of bytes is a call.
    [[nodiscard]] constexpr bool has_gid_of(const Address& other) const noexcept {
        using Words = std::array<std::uint64_t, 2>;
        const auto own = std::bit_cast<Words>(gid);
        const auto others = std::bit_cast<Words>(other.gid);
        return own[0] == others[0] && own[1] == others[1];
    }
    friend constexpr bool operator==(const Address& a, const Address& b) noexcept {
        return a.has_gid_of(b) && a.port == b.port;
    }
};

/// What an address handle or a connected queue pair holds about the way to its peer.
struct AhAttr {
    Address dest{};
    std::uint8_t service_level = 0;
    std::uint8_t hop_limit = 64;
    // Between ports of InfiniBand, of verb grade; others ignore both.
    std::uint16_t dlid = 0;  // leads to the peer, whose port's GID `dest` has; 0: the GID does
    bool needs_grh = false;  // packets name the GIDs as well
};

/// What leads to a device at a port of InfiniBand, whose address, of IP, does not.
struct IbPort {
    std::array<std::uint8_t, 16> gid{};
    std::uint16_t lid = 0;         // 0: it is no port of InfiniBand, the address leads there
    std::uint16_t pkey = 0;        // bit 15: as a full member of the partition
    std::uint16_t pkey_index = 0;  // where it is in the port's own table
    std::uint16_t mtu_bytes = 0;   // of the port, at present
    bool needs_grh = false;        // see AhAttr
};

inline constexpr std::uint32_t kMulticastQpn = 0xffffff;
inline constexpr std::uint32_t kQpnMask = 0xffffff;
inline constexpr std::uint32_t kGrhBytes = 40;

// ---- memory ----

/// What a memory region or window may be used for.
enum class Access : std::uint32_t {
    kNone = 0,
    kLocalWrite = 1u << 0,
    kRemoteWrite = 1u << 1,
    kRemoteRead = 1u << 2,
    kRemoteAtomic = 1u << 3,
    kMwBind = 1u << 4,
    kZeroBased = 1u << 5,        // remote addresses count from 0, the region's first byte
    kFlushGlobal = 1u << 6,      // FLUSH, to where all of the host sees it
    kFlushPersistent = 1u << 7,  // FLUSH, to where it outlives a loss of power
    kOnDemand = 1u << 8,         // its pages are not pinned; the CPU never needs them to be
    kRelaxedOrdering = 1u << 9,  // what a NIC writes may arrive in any order before its completion
    kPinned = 1u << 10,          // its pages are pinned: without, on demand is good enough
};
template <>
struct IsFlags<Access> : std::true_type {};

/// What a re-registration changes; as IBV_REREG_MR_CHANGE_*.
enum class MrChange : std::uint8_t {
    kNone = 0,
    kTranslation = 1u << 0,
    kPd = 1u << 1,
    kAccess = 1u << 2,
};
template <>
struct IsFlags<MrChange> : std::true_type {};

/// What will be done with memory; as IBV_ADVISE_MR_ADVICE_*.
enum class MrAdvice : std::uint8_t {
    kPrefetch,         // it will be read
    kPrefetchWrite,    // and written
    kPrefetchNoFault,  // as kPrefetch, where it costs nothing: what the CPU has already
};

/// A piece of local memory named by a work request.
struct Sge {
    std::uint64_t addr = 0;
    std::uint32_t length = 0;
    std::uint32_t lkey = 0;
};

// ---- queue pairs ----

/// RD names the reliable-datagram service, one queue pair for many peers. Such a pair has states
/// and attributes, but carries nothing: posting to it is EOPNOTSUPP. The service itself is the
/// endpoint of core/rd_endpoint.h.
enum class QpType : std::uint8_t { kRc, kUc, kUd, kRd };
inline constexpr std::size_t kQpTypes = 4;

enum class QpState : std::uint8_t { kReset, kInit, kRtr, kRts, kSqd, kSqe, kErr };
inline constexpr std::size_t kQpStates = 7;

/// Which members of QpAttr a modify names; as ibv_qp_attr_mask.
enum class QpMask : std::uint32_t {
    kNone = 0,
    kState = 1u << 0,
    kCurState = 1u << 1,
    kSqdNotify = 1u << 2,
    kAccess = 1u << 3,
    kPkeyIndex = 1u << 4,
    kPort = 1u << 5,
    kQkey = 1u << 6,
    kAv = 1u << 7,
    kPathMtu = 1u << 8,
    kTimeout = 1u << 9,
    kRetryCnt = 1u << 10,
    kRnrRetry = 1u << 11,
    kRqPsn = 1u << 12,
    kMaxRdAtomic = 1u << 13,
    kAltPath = 1u << 14,
    kMinRnrTimer = 1u << 15,
    kSqPsn = 1u << 16,
    kMaxDestRdAtomic = 1u << 17,
    kPathMigState = 1u << 18,
    kDestQpn = 1u << 19,
    kKeepsEarly = 1u << 30,       // not of verbs, and neither is
    kExtendedAtomics = 1u << 31,  // this one
};
template <>
struct IsFlags<QpMask> : std::true_type {};

inline constexpr std::uint8_t kRnrRetryForEver = 7;

/// What ibv_qp_attr holds. Alternate paths have no members: their mask bits are refused.
struct QpAttr {
    QpState state = QpState::kReset;
    QpState cur_state = QpState::kReset;
    Access access = Access::kNone;
    AhAttr ah{};
    std::uint32_t dest_qpn = 0;
    std::uint32_t qkey = 0;
    std::uint32_t rq_psn = 0;
    std::uint32_t sq_psn = 0;
    std::uint32_t path_mtu_bytes = 1024;  // or a payload that both devices carry, see DeviceInfo
    std::uint16_t pkey_index = 0;
    std::uint8_t port = 1;
    std::uint8_t max_rd_atomic = 0;       // READs and atomics that this side may have outstanding
    std::uint8_t max_dest_rd_atomic = 0;  // and that it answers at a time for the peer
    std::uint8_t min_rnr_timer = 0;       // code of IBTA table 45, see rnr_timer_us()
    std::uint8_t timeout = 0;             // 4.096 us * 2^timeout
    std::uint8_t retry_cnt = 0;
    std::uint8_t rnr_retry = 0;  // kRnrRetryForEver: no limit
    bool sqd_notify = false;
    bool extended_atomics = false;  // the peer is of rvt too, and says that it has them
    // The same of packets that come before one that is missing: it keeps them, and says which.
    bool keeps_early = false;
};

/// Sizes of the queues of a pair; create() rounds up and reports what it made.
struct QpCap {
    std::uint32_t max_send_wr = 64;
    std::uint32_t max_recv_wr = 64;
    std::uint32_t max_send_sge = 4;
    std::uint32_t max_recv_sge = 4;
    std::uint32_t max_inline_bytes = 64;
};

// ---- work requests ----

enum class WrOpcode : std::uint8_t {
    kSend,
    kSendImm,
    kSendInv,
    kWrite,
    kWriteImm,
    kRead,
    kCas,
    kFetchAdd,
    kLocalInv,
    kBindMw,
    kFlush,
    kAtomicWrite,
    kExtendedAtomic,
};
inline constexpr std::size_t kWrOpcodes = 13;

enum class SendFlags : std::uint8_t {
    kNone = 0,
    kSignaled = 1u << 0,
    kFence = 1u << 1,
    kSolicited = 1u << 2,
    kInline = 1u << 3,
    kMore = 1u << 4,  // others follow at once, of which one asks for the acknowledgement
};
template <>
struct IsFlags<SendFlags> : std::true_type {};

struct BindMw {
    std::uint32_t mw_key = 0;   // the window's key as it is now
    std::uint32_t new_key = 0;  // the same index, another consumer byte
    std::uint32_t lkey = 0;     // the region that the window opens
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    Access access = Access::kNone;
};

/// How far FLUSH takes what has been written; as IBV_FLUSH_GLOBAL and IBV_FLUSH_PERSISTENT.
enum class FlushType : std::uint8_t { kNone = 0, kGlobal = 1u << 0, kPersistent = 1u << 1 };
template <>
struct IsFlags<FlushType> : std::true_type {};

/// Of which memory; as IBV_FLUSH_RANGE and IBV_FLUSH_MR.
enum class FlushLevel : std::uint8_t {
    kRange,
    kRegion,  // all that the key stands for: neither address nor length is looked at
};

struct Flush {
    FlushType type = FlushType::kNone;
    FlushLevel level = FlushLevel::kRange;
    std::uint32_t length = 0;
};

/// What a request of kExtendedAtomic does, core/extended_atomic.h.
enum class AtomicForm : std::uint8_t {
    kWrite,
    kFetch,
    kCompare,
    kMaskedCompareSwap,
    kMaskedFetchAdd,
};

struct ExtendedAtomic {
    AtomicForm form = AtomicForm::kWrite;
    std::uint8_t datatype = 0;  // core::AtomicType; of masked forms not looked at, as the next
    std::uint8_t op = 0;        // core::AtomicOp
};

/// One send work request. Only the members that the opcode's row in core/wr_table.h names are read.
struct SendWr {
    std::uint64_t wr_id = 0;
    WrOpcode opcode = WrOpcode::kSend;
    SendFlags flags = SendFlags::kNone;
    std::uint32_t imm = 0;  // SEND_IMM, WRITE_IMM; also what the peer invalidates: SEND_INV
    std::span<const Sge> sg_list{};  // copied before post_send() returns; EXTENDED_ATOMIC: the
                                     // operands, behind them where the results go
    std::uint64_t remote_addr = 0;   // WRITE, READ, FLUSH, all atomics
    std::uint32_t rkey = 0;          // as remote_addr; LOCAL_INV: the key to invalidate
    std::uint64_t compare_add = 0;   // atomics
    std::uint64_t swap = 0;          // CAS
    const core::Ah* ah = nullptr;    // UD
    std::uint32_t remote_qpn = 0;    // UD
    std::uint32_t remote_qkey = 0;   // UD; top bit set: the queue pair's own
    BindMw bind{};                   // BIND_MW
    Flush flush{};                   // FLUSH
    ExtendedAtomic atomic{};         // EXTENDED_ATOMIC
    // SEND, WRITE, READ: has a part of the buffers brought here, or taken away, as it is needed
    // (BufferUse::stage); until the completion. nullptr: all of it is here. Not of verb grade.
    core::BufferUse* use = nullptr;
};

// ---- tag matching ----

/// In front of each message to a pair whose shared receive queue matches tags; the sender writes it
/// into the first bytes of a SEND. Fields are in network byte order, as those of ibv_tmh.
struct TmHeader {
    enum class Op : std::uint8_t {
        kNoTag = 0,  // for a plain receive, whatever tags are posted
        kRndv = 1,   // rendezvous: refused as an invalid request
        kFin = 2,    // its end: refused too
        kEager = 3,  // the payload follows
    };
    Op op = Op::kEager;
    std::uint8_t unused[3] = {};
    std::uint32_t app_ctx = 0;
    std::uint64_t tag = 0;
};
static_assert(sizeof(TmHeader) == 16);

enum class TmOpcode : std::uint8_t {
    kAdd,   // posts a buffer for a tag
    kDel,   // takes it back
    kSync,  // only reports how many unexpected messages have been handled
};

enum class TmFlags : std::uint8_t {
    kNone = 0,
    kSignaled = 1u << 0,
    kSync = 1u << 1,  // the operation reports too
};
template <>
struct IsFlags<TmFlags> : std::true_type {};

/// One operation on the tags of a shared receive queue; as ibv_ops_wr.
struct TmOp {
    std::uint64_t wr_id = 0;
    TmOpcode opcode = TmOpcode::kAdd;
    TmFlags flags = TmFlags::kNone;
    /// Messages without a tag's buffer that the application has taken in; kSync and with the flag.
    std::uint32_t unexpected_count = 0;
    std::uint32_t handle = 0;        // kAdd writes it, kDel reads it
    std::uint64_t recv_wr_id = 0;    // kAdd, as the next four: of the message's completion
    std::span<const Sge> sg_list{};  // copied before the post returns
    std::uint64_t tag = 0;           // in the byte order of the host
    std::uint64_t mask = ~0ull;      // bits of the tag that have to agree
};

/// Asynchronous events, named as ibv_event_type (ibv_get_async_event(3)).
enum class EventType : std::uint8_t {
    kCqErr,             // a completion found no room; object: the queue
    kQpFatal,           // object: the queue pair, as in the next five
    kQpReqErr,          // the peer asked for what this pair does not do
    kQpAccessErr,       // the peer named memory that it may not use
    kCommEst,           // a message arrived in state RTR
    kSqDrained,         // state SQD has been reached in full
    kQpLastWqeReached,  // in state ERR, no more receives of the shared queue are consumed
    kSrqLimitReached,   // object: the shared receive queue
    kDeviceFatal,       // the device is going; object: the device, as in the next two
    kPortErr,           // its address is gone, or it takes smaller packets than before
    kPortActive,        // the address is back, or it takes larger packets again
};

/// One receive work request; the list is copied before the post returns.
struct RecvWr {
    std::uint64_t wr_id = 0;
    std::span<const Sge> sg_list{};
    core::BufferUse* use = nullptr;  // as SendWr::use
};

}  // namespace rvt
