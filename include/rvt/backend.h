// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The contract between the core and its backends. A backend describes a device (DeviceInfo), fills
// the operations in which it differs (BackendOps) and registers both with Registry::add_device() of
// core/registry.h. An entry that it leaves empty becomes the core's version; which entries its
// grade needs is said by one table, core/requirements.cc, and a registration that lacks some names
// them all. docs/backends.md says how to begin.
//
// Threads: unless an entry says otherwise, the core calls it from any thread, one at a time
//          for each object that it is called with.
// Errors:  entries return a Status and log nothing that they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/uio.h>

#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {
class Ah;
class Device;
class Mr;
class Pd;
class Qp;
class Srq;
class VerbsCq;
struct Wc;
}  // namespace rvt::core

namespace rvt {

/// How much of the work a backend does itself.
enum class Grade : std::uint8_t {
    kPacket,   // moves packets; the core runs the transport protocol over them
    kSegment,  // moves whole messages or large parts of them, in order and without loss, to a peer
    kVerb,     // carries out work requests itself
};

struct DeviceLimits {
    std::uint32_t max_qp = 1024;
    std::uint32_t max_cqe = 1u << 20;
    std::uint32_t max_mr = 1u << 16;
    std::uint32_t max_qp_wr = 1u << 14;
    std::uint32_t max_srq_wr = 1u << 14;
    std::uint32_t max_srq_tags = 1u << 14;  // posted at a time; at most 65536
    std::uint32_t max_sge = 32;
    std::uint32_t max_inline_bytes = 1024;
    std::uint8_t max_rd_atomic = 128;
    std::uint32_t max_mcast_qp = 256;              // queue pairs attached to one group
    std::uint32_t max_ud_bytes = 4096;             // payload of a UD message
    std::uint64_t max_message_bytes = 1ull << 31;  // of the other types
    std::uint32_t max_segment_bytes = 64u << 10;   // payload of one send_segment()
    // Verb grade: as the device itself says, of all processes together; 0: it does not.
    std::uint32_t own_max_qp = 0;
    std::uint32_t own_max_cq = 0;
    std::uint32_t own_max_mr = 0;
    bool has_immediate = true;  // data beside a SEND or a WRITE
    // What READs fill has to permit kRemoteWrite (RFC 5040: the response is a write).
    bool reads_need_remote_write = false;
    // Where a device takes shorter lists than max_sge.
    std::uint32_t max_read_sge = 32;  // of a READ
    std::uint32_t max_srq_sge = 32;   // of a receive of a shared queue
};

/// What a frame of 9,000 bytes has room for.
inline constexpr std::uint32_t kMaxPayload = 8960;

/// What a device is, fixed when it registers.
struct DeviceInfo {
    const char* name = "";  // copied
    Grade grade = Grade::kSegment;
    Address address{};
    DeviceLimits limits{};
    /// Packet grade: the most payload of a packet, 256 to kMaxPayload in steps of 64. Peers that
    /// agree on it use it; to others the device has the largest MTU of the specification in it.
    std::uint32_t payload_bytes = 1024;
    /// The key table's memory, zero-filled and 64-byte aligned (core/key_table.h), where peers
    /// shall be able to map it; nullptr: private memory of the core's.
    void* key_block = nullptr;
    std::size_t key_block_bytes = 0;
    /// Microseconds of a clock that never goes back; nullptr: CLOCK_MONOTONIC.
    std::uint64_t (*now_us)() noexcept = nullptr;
};

/// The backend's end of a connection between this device and one peer device, for all their queue
/// pairs. A backend derives its own from it; the core only hands it back.
class Channel {
  public:
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

  protected:
    Channel() = default;
    ~Channel() = default;
};

/// Memory of a peer, as the peer's key table knows it.
struct PeerMemory {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t pd = 0;     // the domain of the peer's queue pair, in which the key has to be
    std::uint64_t bytes = 0;  // if more than are moved: how many the key has to allow from there on
};

/// A packet as the core hands it to a backend, which adds the ICRC where its wire has one.
struct OutPacket {
    std::span<const std::byte> headers{};  // at most 40 bytes, the base transport header first
    std::span<const iovec> payload{};
    std::uint8_t pad = 0;  // bytes of zero that follow, 0 to 3
};

struct BackendOps {
    // clang-format off
    // ---- packet grade ----

    /// Takes packets for the wire, in their order. All bytes are copied or sent before return; what was
    /// copied leaves with flush_packets() or poll() at the latest.
    /// A device of segment grade is given those to groups alone; empty there: groups end at the device.
    /// Returns: how many were taken, from the first on. There was no room for the others, which the core
    ///          offers again after poll().
    /// Threads: any.
    unsigned (*send_packets)(core::Device&, const AhAttr& dest, std::span<const OutPacket> packets) = nullptr;
    /// Lets go what send_packets() has kept. Empty: it keeps nothing. Threads: any.
    void (*flush_packets)(core::Device&) = nullptr;
    /// send_packets() of one packet and flush_packets() in one call, for which there may be a shorter way.
    /// Empty: by those two. Returns: whether it was taken. Threads: any.
    bool (*send_now)(core::Device&, const AhAttr& dest, const OutPacket& packet) = nullptr;
    /// How much payload a packet to `dest` can carry on the way that leads there, as far as this host knows by
    /// now: 256 or more, in steps of 64. Empty: as much as the device. Threads: any.
    std::uint32_t (*path_payload)(core::Device&, const Address& dest) = nullptr;

    /// open_channel(), close_channel() and send_datagram() below: a device of packet grade that has another
    /// way to some peers than its wire, for datagrams alone, gives channels to these. `header` begins with
    /// the base transport header, header and payload are the whole packet without padding. What
    /// send_datagram() does not take, and all to peers without a channel, goes by the wire.

    // ---- segment grade ----

    /// Gives the channel to the device at `dest`, opening it at its first use. There is one for each pair of
    /// devices, whoever opened it first: what the peer sends arrives on the same. Does not wait for the
    /// peer: until it answers, send_segment() is EAGAIN.
    /// Returns: EHOSTUNREACH when it is known that nothing answers there.
    Result<Channel*> (*open_channel)(core::Device&, const Address& dest) = nullptr;
    /// Ends one use that open_channel() began.
    void (*close_channel)(core::Device&, Channel&) = nullptr;
    /// Sends header and payload as one unit, behind all earlier ones of the channel. All bytes are copied
    /// or delivered before return. `header` is at most kMaxSegmentHeader bytes.
    /// Returns: EAGAIN when there is no room now (nothing was sent; poll() makes room), ENOTCONN once the
    ///          channel has failed.
    Status (*send_segment)(core::Device&, Channel&, std::span<const std::byte> header,
                           std::span<const iovec> payload) = nullptr;
    /// As send_segment(), for what may be lost: where there is no room now, the backend keeps it for later,
    /// or loses it (ENOBUFS). Empty: send_segment(), and what finds no room is offered again.
    Status (*send_datagram)(core::Device&, Channel&, std::span<const std::byte> header,
                            std::span<const iovec> payload) = nullptr;
    /// Fills `to` from the peer's memory, by the peer's key table and without the peer. The core does so only
    /// while nothing of the pair is under way; that the peer's pair has failed it learns by its next message.
    /// Returns: EOPNOTSUPP when that is not possible here, EACCES when the key does not allow it; on any
    ///          error the core asks the peer by a segment.
    Status (*read_peer)(core::Device&, Channel&, const PeerMemory& from,
                        std::span<const iovec> to) = nullptr;
    /// As read_peer(), in the other direction.
    Status (*write_peer)(core::Device&, Channel&, const PeerMemory& to,
                         std::span<const iovec> from) = nullptr;
    /// Whether a peer is in its read_peer() or write_peer() on the memory that our `key` stood for. Asked
    /// again and again by dereg_mr and dealloc_mw, after the key has been made invalid, until it is false.
    bool (*is_key_used)(core::Device&, std::uint32_t key) = nullptr;

    // ---- packet and segment grade: arrivals, sleeping ----

    /// Moves what can be moved, one thread at a time for each device: lets go what send_packets() has kept,
    /// calls deliver_packet() or deliver_segment() for each that arrived and channel_failed() for each
    /// channel that broke.
    /// Returns: how many arrived.
    unsigned (*poll)(core::Device&) = nullptr;

    /// A descriptor that becomes readable when an armed device has something to poll.
    int (*wake_fd)(core::Device&) = nullptr;
    /// Asks for the next readiness of wake_fd(). Returns: EAGAIN when there is something to poll now; on
    ///          any other error nobody sleeps, since wake_fd() would not tell.
    Status (*arm)(core::Device&) = nullptr;

    // ---- verbs: the core has checked and counted, the entry makes it so ----
    //
    // Verb grade: keys and numbers of pairs are the backend's, which tells the core of them by
    // Mr::set_keys() and Qp::set_qpn(); completions are taken by poll_cq() alone. The requests that are
    // posted are checked by the backend.

    // What ends an object and returns nothing cannot be refused: the core's object is gone behind it. A
    // backend whose device keeps its part all the same says so in the log, and sees to it that nothing of
    // that part leads to the core any more.

    Status (*alloc_pd)(core::Pd&) = nullptr;
    void (*dealloc_pd)(core::Pd&) = nullptr;
    Status (*reg_mr)(core::Mr&) = nullptr;
    /// Returns: errors of the device: the region is there as before, and may be ended once more.
    Status (*dereg_mr)(core::Mr&) = nullptr;
    /// Makes of a registered region what the Mr says by now. Empty: EOPNOTSUPP.
    /// Returns: EOPNOTSUPP, when nothing has changed, or ENOTRECOVERABLE, when what it was is lost: the core
    ///          calls reg_mr, which sets priv() anew, and dereg_mr with priv() as it was before. Other
    ///          errors: nothing has changed, the region stays what it was.
    Status (*rereg_mr)(core::Mr&, MrChange) = nullptr;
    /// Of a part of a region, `offset` bytes into it. Empty: the core asks the kernel for its pages.
    /// Returns: as core::advise_mr().
    Status (*advise_mr)(core::Mr&, MrAdvice, std::uint64_t offset, std::uint64_t bytes) = nullptr;
    /// How peers reach the device now: ports of InfiniBand are given other LIDs, and entries of tables, while
    /// they are there. Empty: by its address. Returns: ENETDOWN while the port is not active or has no LID,
    /// EADDRNOTAVAIL when its tables have lost the GID or the P_Key. Threads: any.
    Result<IbPort> (*ib_port)(core::Device&) = nullptr;
    Status (*create_ah)(core::Ah&) = nullptr;
    void (*destroy_ah)(core::Ah&) = nullptr;
    Status (*create_cq)(core::VerbsCq&) = nullptr;
    void (*destroy_cq)(core::VerbsCq&) = nullptr;
    unsigned (*poll_cq)(core::VerbsCq&, std::span<core::Wc>) = nullptr;
    Status (*req_notify_cq)(core::VerbsCq&, bool solicited_only) = nullptr;
    Status (*create_qp)(core::Qp&) = nullptr;
    Status (*modify_qp)(core::Qp&, const QpAttr&, QpMask) = nullptr;
    void (*destroy_qp)(core::Qp&) = nullptr;
    Status (*post_send)(core::Qp&, const SendWr&) = nullptr;
    Status (*post_recv)(core::Qp&, const RecvWr&) = nullptr;
    Status (*create_srq)(core::Srq&) = nullptr;
    void (*destroy_srq)(core::Srq&) = nullptr;
    /// Of several, the first ones may have been taken when it fails.
    Status (*post_srq_recv)(core::Srq&, std::span<const RecvWr>) = nullptr;
    Status (*post_srq_op)(core::Srq&, TmOp&) = nullptr;
    /// Has what other devices send to the group arrive here: once for each pair that is attached, and until
    /// it is detached. What is sent to a group has its address and port as destination. Empty: nothing is to
    /// be done for it, or a message to a group reaches the attached pairs of its sender's own device alone.
    Status (*attach_mcast)(core::Qp&, const Address& group) = nullptr;
    void (*detach_mcast)(core::Qp&, const Address& group) = nullptr;
    // clang-format on
};

inline constexpr std::size_t kMaxSegmentHeader = 128;

// ---- what a packet-grade backend calls ----

/// Hands a packet to the core, on the thread of poll(): from the base transport header to the
/// padding, its ICRC checked and taken off. The core has copied what it needs on return and trusts
/// no byte of it. Pairs and memory stay for as long as poll() lasts: the core pins them around it.
/// From a device of segment grade it takes datagrams to groups, and drops the rest.
/// @param source  Where it came from; a port of 0 fits every peer of that address.
/// @param dest    The device, or the group, that it was sent to.
void deliver_packet(core::Device& device, const Address& source, const Address& dest,
                    std::span<const std::byte> packet) noexcept;

/// Says that nothing listened at a peer's port when a packet for pair `dest_qpn` came, as far as
/// the peer's host tells. Nobody has to believe it. On the thread of poll().
void peer_refused(core::Device& device, const Address& peer, std::uint32_t dest_qpn) noexcept;

/// Says that packets to `host`, at any port, were too large for the way there: path_payload() tells
/// what it takes now. On the thread of poll().
void path_narrowed(core::Device& device, const Address& host) noexcept;

/// Says how much payload a packet can carry now, at most what DeviceInfo has named; 0: nothing, the
/// device's address is gone. Contexts are told what is new. Threads: any, one at a time.
void port_changed(core::Device& device, std::uint32_t payload_bytes) noexcept;

// ---- what a segment-grade backend calls ----

/// Hands a segment to the core, on the thread of poll(). The core has copied what it needs on
/// return and trusts no byte of it. Answers leave by send_segment() on the same channel, also from
/// inside this call.
void deliver_segment(core::Device& device, Channel& channel, std::span<const std::byte> header,
                     std::span<const iovec> payload) noexcept;

/// Says that nothing will come or go on the channel any more: work under way to that peer completes
/// in error. The channel stays valid until its last close_channel().
void channel_failed(core::Device& device, Channel& channel) noexcept;

}  // namespace rvt
