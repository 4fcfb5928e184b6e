// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The messages of the RD service between endpoints of one host, whatever carries them.
// docs/shm-format.md describes their fields; the table kRdOps below is what the code goes by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/peer_device.h"

namespace rvt::core {

/// First byte of a message. Zero is never sent.
enum class RdOp : std::uint8_t {
    kInvalid = 0,
    kEager,       // tag, data; the whole message in lines
    kEagerFirst,  // tag, data, RdHeader; first part of a message in a run
    kEagerMore,   // a further part of the message that kEagerFirst began, or the head of that which
                  // kRendezvous has announced; nothing else of messages comes between
    kRendezvous,  // tag, data, RdHeader; the message stays with the sender until it is asked for,
                  // but for its head, if there is one
    kPull,        // answer to kRendezvous: RdPull; data = the sender's operation
    kPullData,    // a part of the data asked for; data = the receiver's operation
    kPullDone,    // the sender has written its share; data = the receiver's operation
    kFinish,      // the receiver has all of it, or its status says why not: data = the sender's
                  // operation
    kAck,         // as kFinish, for an eager message that asked for it
    kWrite,       // RdAccess, data; first part of the payload in the run
    kWriteLine,   // RdAccess and after it the whole payload, in lines
    kWriteMore,   // a further part of the write that kWrite began
    kRead,        // RdAccess; asks for the data
    kReadData,    // a part of what was asked for; data = the initiator's operation
    kReadLine,    // all of it, in lines
    kAtomic,      // RdAtomicHeader; operands in the run
    kAtomicInline,  // the same for one element of at most 8 bytes: operands in the line
    kAtomicResult,  // data = the initiator's operation; results in the run
    kAtomicAnswer,  // the same for one element of at most 8 bytes: result in the line
    kAccessDone,  // outcome of a write, read or atomic that returns nothing; data = the initiator's
                  // operation
    kRmaEvent,    // RdAccess, data: the initiator has written or read directly, count and report it
    kShare,       // RdShare: the target is to copy a part of an access; answered with kAccessDone
    kAskNicKey,   // RdAccess: by which key does the target's NIC know the region? The access itself
                  // goes another way
    kNicKey,      // answer to kAskNicKey: RdNicKey
    kKeyEnds,     // the region is no more: forget the NIC's key, close the memory of a device;
                  // data = the key that was asked about
    kGrow,        // from the next line on, the large rings are used
    kSegment,     // of a device of the verbs core, never of an endpoint: tag = bytes of the header
                  // at the begin of the run (core/segment_wire.h), its payload is the rest
    kHold,        // over a wire: from now on send headers only or, without wire::kLast, everything
    kTaken,  // over a wire, first in its frame, in place of an acknowledgement: data = wire::kPsn
             // and the number of the last packet taken
    kLeave,  // over a wire: the sender has nothing under way and would close the flow;
             // data = the number of the question
    kMayLeave,  // answer to kLeave: no more have I; nothing follows until the peer closes, or stays
    kStay,      // with wire::kLast, answer to kLeave: I have; without, the asker takes it back
    kRdmaDone,  // of this side's NIC, never of a peer: it has read or written what it was to;
                // data = the name that was given to that
    kCount,
};

/// Whether a run of bytes belongs to the message.
constexpr bool has_run(RdOp op) noexcept {
    constexpr std::uint32_t kOps = (1u << static_cast<unsigned>(RdOp::kEagerFirst)) |
                                   (1u << static_cast<unsigned>(RdOp::kEagerMore)) |
                                   (1u << static_cast<unsigned>(RdOp::kPullData)) |
                                   (1u << static_cast<unsigned>(RdOp::kWrite)) |
                                   (1u << static_cast<unsigned>(RdOp::kWriteMore)) |
                                   (1u << static_cast<unsigned>(RdOp::kReadData)) |
                                   (1u << static_cast<unsigned>(RdOp::kAtomic)) |
                                   (1u << static_cast<unsigned>(RdOp::kSegment)) |
                                   (1u << static_cast<unsigned>(RdOp::kAtomicResult));
    return ((kOps >> (static_cast<unsigned>(op) & 31u)) & 1u) != 0;
}

/// Flags of a message.
namespace wire {
inline constexpr std::uint8_t kTagged = 1;        // else matched by source alone
inline constexpr std::uint8_t kHasData = 2;       // `data` is remote CQ data
inline constexpr std::uint8_t kWantAck = 4;       // kEagerFirst: kAck when it is placed
inline constexpr std::uint8_t kWantMatchAck = 8;  // kEagerFirst: kAck when it is matched, and here
inline constexpr std::uint8_t kAnyAck = kWantAck | kWantMatchAck;
inline constexpr std::uint8_t kLast =
    16;  // last part of a write, of data asked for, of an operation
inline constexpr std::uint8_t kHead =
    16;  // kRendezvous: the first kHeadBytes follow at once, for who has a receive for them; who
         // has none by then asks for them, too
inline constexpr std::uint8_t kMore =
    16;  // kRmaEvent: of the same access another one follows, and only the region counts this one
inline constexpr std::uint8_t kEvent =
    32;  // kRmaEvent, kShare: it is a write. Of a part of an access, other than the last one: no
         // later one is in the same region, which counts the access with this one
inline constexpr std::uint8_t kContiguous =
    64;  // kRendezvous: `address` names the whole message in the sender's memory
inline constexpr std::uint8_t kReadable =
    128;  // kRendezvous: a NIC may read it there, by the key in the RdReadable behind RdHeader; on
          // one host: it is in memory of a device, in the region of that key, and so is `address`

inline constexpr std::size_t kHeadBytes = 16 * 1024;

inline constexpr std::uint64_t kPsn = 1u << 24;  // in the data of kTaken, beside the 24 bits of it
}  // namespace wire

/// In the payload of kEagerFirst and kRendezvous.
struct RdHeader {
    std::uint64_t total;      // bytes of the whole message
    std::uint64_t operation;  // the sender's operation, for the answer
    std::uint64_t address;  // where the message lies in the sender's memory, with wire::kContiguous
};

/// Behind RdHeader with wire::kReadable.
struct RdReadable {
    std::uint64_t key;  // the R_Key; on one host: of the sender's key table
};

/// Behind RdReadable of a long message from memory of a device: for who has not opened its region.
struct RdOpening {
    DeviceHandle handle;
    std::uint64_t length;  // of the region
};

/// The payload of kRendezvous: the whole of it, or what stands in front of a part.
struct RdRendezvous {
    RdHeader header;
    RdReadable readable;
    RdOpening opening;

    static constexpr std::size_t bytes(bool is_readable) noexcept {
        return is_readable ? offsetof(RdRendezvous, opening) : sizeof(RdHeader);
    }
};

/// In the payload of kPull.
struct RdPull {
    std::uint64_t operation;  // the receiver's operation
    std::uint64_t
        address;  // the sender writes its share from here on in the receiver's memory; 0: send runs
    std::uint64_t begin;  // first byte of the message that the sender is to deliver
    std::uint64_t end;    // the byte after the last one
};

/// In the payload of kWrite, kRead, kRmaEvent, kAskNicKey.
struct RdAccess {
    std::uint64_t key;
    std::uint64_t address;    // as RdRemote::addr
    std::uint64_t length;     // of the whole access
    std::uint64_t operation;  // the initiator's operation; 0: only a refusal is answered
};

/// In the payload of kShare; wire::kEvent tells a write from a read.
struct RdShare {
    std::uint64_t key;
    std::uint64_t address;    // as RdRemote::addr, of the part
    std::uint64_t length;     // of the part
    std::uint64_t operation;  // the initiator's operation
    std::uint64_t place;      // of the part in the initiator's memory
};

/// In the payload of kNicKey. What has no right to be accessed is not registered.
struct RdNicKey {
    std::uint64_t key;          // as it was asked about
    std::uint64_t address;      // of the region's first byte, as RdRemote::addr
    std::uint64_t length;       // of the region
    std::uint64_t nic_address;  // of its first byte, as the NIC knows it
    std::uint32_t nic_key;      // the NIC's R_Key
    std::uint32_t rights;       // Access
};

/// In the payload of kAtomic and kAtomicInline; the tag field holds RdAtomicKind.
struct RdAtomicHeader {
    std::uint64_t key;
    std::uint64_t address;
    std::uint64_t operation;
    std::uint64_t operand;  // kAtomicInline only
    std::uint64_t compare;  // kAtomicInline only
};
static_assert(sizeof(RdHeader) + sizeof(RdReadable) <= 40 && sizeof(RdPull) <= 40 &&
              sizeof(RdAccess) <= 40 && sizeof(RdShare) <= 40 && sizeof(RdNicKey) <= 40 &&
              sizeof(RdAtomicHeader) <= 40);

/// In the payload of kFinish, kAck, kAccessDone and kPullDone.
struct RdOutcome {
    std::uint32_t status;  // WcStatus
    std::uint32_t key;     // kAccessDone: the target's key for the one that was used
};

/// What kAtomic computes, packed into the tag field.
struct RdAtomicKind {
    std::uint8_t kind = 0;  // RdAtomic::Kind
    std::uint8_t datatype = 0;
    std::uint8_t op = 0;
    std::uint32_t count = 0;

    std::uint64_t pack() const noexcept {
        return (std::uint64_t{count} << 32) | (std::uint64_t{op} << 16) |
               (std::uint64_t{datatype} << 8) | kind;
    }
    static RdAtomicKind unpack(std::uint64_t tag) noexcept {
        return {.kind = static_cast<std::uint8_t>(tag),
                .datatype = static_cast<std::uint8_t>(tag >> 8),
                .op = static_cast<std::uint8_t>(tag >> 16),
                .count = static_cast<std::uint32_t>(tag >> 32)};
    }
};

}  // namespace rvt::core
