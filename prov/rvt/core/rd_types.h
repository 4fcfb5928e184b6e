// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the libfabric layer and the RD service say to each other: operations, their flags and
// attributes.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/uio.h>

#include "util/mapping.h"
#include "util/sock_addr.h"

namespace rvt::core {

class AddressVector;
class BufferUse;
class Counter;
class Cq;
class DeviceOpener;
class KeyTable;

/// A receive that any peer may match; the `source` of a directed receive is a number of the address
/// vector.
inline constexpr std::uint64_t kAnySource = ~0ull;

/// A key that no region has.
inline constexpr std::uint32_t kNoKey = 0;

/// Buffers that one operation may name.
inline constexpr std::size_t kMaxIov = 8;

/// Flags of one operation. ofi/ derives them once per endpoint from op_flags and once per call from
/// the call.
enum class RdFlags : std::uint32_t {
    kNone = 0,
    kTagged = 1u << 0,            // matched by tag; else by source alone
    kCompletion = 1u << 1,        // writes a completion on success (errors always do)
    kInject = 1u << 2,            // the buffer is the caller's again on return
    kData = 1u << 3,              // carries remote CQ data
    kDeliveryComplete = 1u << 4,  // completes when the data is in the target's buffer
    kMatchComplete = 1u << 5,     // completes when the target matched the message
    kFence = 1u << 6,      // starts after all earlier operations to the same peer have completed
    kMultiRecv = 1u << 7,  // the receive buffer takes messages until it is used up
    kPeek = 1u << 8,       // looks for an unexpected message and leaves it
    kClaim = 1u << 9,  // with kPeek: reserves the message found; without: receives the one reserved
    kDiscard = 1u << 10,   // with kPeek or kClaim: throws the message away
    kMore = 1u << 11,      // another operation follows at once
    kRmaEvent = 1u << 12,  // the target counts this access
    kHasUse = 1u << 13,    // the request has a `use`; other processes cannot reach its buffers, but
                           // as memory of a device
};
constexpr RdFlags operator|(RdFlags a, RdFlags b) noexcept {
    return static_cast<RdFlags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr RdFlags operator&(RdFlags a, RdFlags b) noexcept {
    return static_cast<RdFlags>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
constexpr RdFlags operator~(RdFlags a) noexcept {
    return static_cast<RdFlags>(~static_cast<std::uint32_t>(a));
}
constexpr bool has(RdFlags set, RdFlags bits) noexcept {
    return (set & bits) != RdFlags::kNone;
}

/// A message to send. The iovec array is copied before return, the buffers unless kInject are not.
struct RdSend {
    const iovec* iov = nullptr;
    std::size_t iov_count = 0;
    std::uint64_t dest = 0;  // number in the address vector
    std::uint64_t tag = 0;
    std::uint64_t data = 0;
    void* context = nullptr;
    RdFlags flags = RdFlags::kNone;
    BufferUse* use = nullptr;  // with kHasUse
};

/// A buffer to receive into, or (kPeek, kClaim) a question about what has arrived.
struct RdRecv {
    const iovec* iov = nullptr;
    std::size_t iov_count = 0;
    std::uint64_t source = kAnySource;
    std::uint64_t tag = 0;
    std::uint64_t ignore = 0;
    void* context = nullptr;
    RdFlags flags = RdFlags::kNone;
    BufferUse* use = nullptr;  // with kHasUse
};

/// One piece of a target's registered memory.
struct RdRemote {
    std::uint64_t addr =
        0;  // virtual address, or offset where the region was registered zero-based
    std::uint64_t len = 0;
    std::uint64_t key = 0;
};

/// A one-sided transfer.
struct RdRma {
    bool is_write = false;
    const iovec* iov = nullptr;
    std::size_t iov_count = 0;
    const RdRemote* remote = nullptr;
    std::size_t remote_count = 0;
    std::uint64_t dest = 0;
    std::uint64_t data = 0;
    void* context = nullptr;
    RdFlags flags = RdFlags::kNone;
    BufferUse* use = nullptr;  // with kHasUse
};

/// Arithmetic on remote memory. Numbers of type and operation are libfabric's (fi_atomic(3)), which
/// ofi/ asserts.
struct RdAtomic {
    enum class Kind : std::uint8_t { kBase, kFetch, kCompare };
    Kind kind = Kind::kBase;
    std::uint8_t datatype = 0;
    std::uint8_t op = 0;
    // Lengths in bytes; operand, compare and result name the same number of bytes as the target
    // list.
    const iovec* operand = nullptr;
    std::size_t operand_count = 0;
    const iovec* compare = nullptr;
    std::size_t compare_count = 0;
    const iovec* result = nullptr;
    std::size_t result_count = 0;
    const RdRemote* remote = nullptr;
    std::size_t remote_count = 0;
    std::uint64_t dest = 0;
    std::uint64_t data = 0;
    void* context = nullptr;
    RdFlags flags = RdFlags::kNone;
    BufferUse* use = nullptr;  // with kHasUse
};

/// Limits of the RD service, the same on every backend.
inline constexpr std::size_t kMaxMessageSize = static_cast<std::size_t>(-1) / 2;
inline constexpr std::size_t kMaxInjectSize = 4096;
inline constexpr std::size_t kMaxAtomicSize = 4096;
/// Messages in memory of a device up to this size are copied to the host when they are sent, and
/// complete as others do. Larger ones stay for peers of this host, who copy them once.
inline constexpr std::size_t kMaxStagedSize = 4096;
inline constexpr std::size_t kMaxOrderedRmaSize = 4096;  // RAW, WAR and WAW hold up to this size

/// What an endpoint completes into; any may be nullptr.
struct RdCompletion {
    Cq* tx_cq = nullptr;
    Cq* rx_cq = nullptr;
    Counter* send = nullptr;
    Counter* recv = nullptr;
    Counter* read = nullptr;
    Counter* write = nullptr;
    Counter* remote_read = nullptr;
    Counter* remote_write = nullptr;
};

/// The memory that peers may name, as the domain keeps it.
struct RdKeys {
    KeyTable* table = nullptr;
    const util::Mapping* memory = nullptr;  // the file that the table lies in, for peers to map
    std::uint32_t pd = 0;
    bool has_user_keys =
        false;  // requests carry the application's own 64-bit keys, not the table's
    // Told of each access of a peer with the key that it used (kWcRemote* bits); may be nullptr.
    // Runs under the domain's lock.
    void (*accessed)(void* context, std::uint64_t key, std::uint64_t wc_flags) noexcept = nullptr;
    void* accessed_context = nullptr;
    // For memory of devices of peers of this host; nullptr: none can be opened.
    DeviceOpener* opener = nullptr;
    // Whether others than its owner may reach memory of a device: NICs, and peers of this host.
    bool has_p2p = true;
};

/// What an endpoint is opened with.
struct RdAttr {
    util::SockAddr bind;         // port 0: any free port
    std::size_t tx_size = 1024;  // operations outstanding before EAGAIN
    std::size_t rx_size = 1024;
    std::uint64_t total_buffered_recv =
        64u << 20;  // bytes that unexpected messages take before senders hold back
    bool has_auto_progress = false;
    bool wants_rma_events = false;
    bool orders_reads = false;  // also those above kMaxOrderedRmaSize, among each other
};

}  // namespace rvt::core
