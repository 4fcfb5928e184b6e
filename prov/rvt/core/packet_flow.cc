// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagrams, and what becomes of a packet that arrives: IBTA vol. 1, 9.6 (header validation).
#include "core/packet_flow.h"

#include <array>
#include <span>

#include "core/ah.h"
#include "core/device.h"
#include "core/packet_burst.h"
#include "core/path_probe.h"
#include "core/qp.h"
#include "core/qp_states.h"
#include "core/requester.h"
#include "protocol/syndrome.h"

namespace rvt::core {
namespace {

using protocol::DecodedPacket;
using protocol::Ext;
using protocol::Kind;
using protocol::Opcode;
using protocol::PacketHeader;
using protocol::Part;

constexpr std::uint16_t kPkeyMask = 0x7fff;  // without the bit for full membership
constexpr bool is_of_partition(std::uint16_t pkey) noexcept {
    return (pkey & kPkeyMask) == (protocol::kDefaultPkey & kPkeyMask);
}

/// Where a packet came from and what it was sent to.
struct Route {
    const Address& source;
    const Address& dest;
};

void deliver_to_datagram_pair(Qp& qp, const Route& route, const DecodedPacket& packet) noexcept {
    const PacketHeader& header = packet.header;
    const Request request{
        .info = wr_info(header.info().has(Ext::kImm) ? WrOpcode::kSendImm : WrOpcode::kSend),
        .src_qpn = header.src_qpn,
        .imm = header.imm,
        .qkey = header.qkey,
        .bytes = packet.payload.size(),
        .solicited = header.solicited,
        .source = route.source,
        .dest = route.dest};
    take_datagram(qp, request, pieces_of(packet.payload));
}

/// Only the peer that a pair is connected with is heard.
RVT_ALWAYS_INLINE bool is_from_peer(const Qp& qp, const Address& source) noexcept {
    const Address& peer = qp.attr().ah.dest;
    return source.has_gid_of(peer) && (source.port == 0 || source.port == peer.port);
}

void note_missed(Device& device, const Address& source, std::uint32_t qpn) noexcept {
    device.stats().add(Stat::kDrops);
    if (MadSink* const sink = device.mad_sink()) {
        sink->pair_missed(source, qpn);
    }
}

/// What has become of a request's packet.
struct Taken {
    Nak nak = Nak::kNone;
    bool has_next = false;  // the one behind it is there already
};

Taken take_request(Qp& qp, const Route& route, const DecodedPacket& packet) noexcept {
    Taken taken;
    bool has_part_for_sink = false;
    bool is_missed = false;
    {
        const util::Guard guard(qp.rx_lock());
        is_missed = !is_from_peer(qp, route.source);
        auto* flow = static_cast<PacketFlow*>(qp.flow());  // what open_flow() makes for this grade
        if (!is_missed && (flow == nullptr || !rights_of(qp.state()).receive)) {
            qp.device().stats().add(Stat::kDrops);
            return taken;
        }
        if (!is_missed) {
            PacketResponder& responder = flow->responder();
            taken.nak = responder.take_request(qp, packet);
            taken.has_next = responder.has_next();
            has_part_for_sink = responder.has_part_for_sink();
        }
    }
    if (is_missed) {
        note_missed(qp.device(), route.source, qp.qpn());
        return taken;
    }
    if (has_part_for_sink) {
        const protocol::OpcodeInfo& info = packet.header.info();
        qp.init().sink->take(packet.payload, info.starts(), info.ends());
    }
    return taken;
}

/// A packet as PacketResponder::take_simple() takes it, before it is taken apart in any other way:
/// most are. Returns: whether it is such a one; if not, nothing has been done.
bool deliver_simple(Device& device, const Address& source,
                    std::span<const std::byte> packet) noexcept {
    if (packet.size() < protocol::kBthBytes) {
        return false;
    }
    const auto opcode = static_cast<Opcode>(packet[0]);
    const bool is_only = opcode == Opcode::kRcSendOnly;
    const bool starts = is_only || opcode == Opcode::kRcSendFirst;
    const bool ends = is_only || opcode == Opcode::kRcSendLast;
    if (!starts && !ends && opcode != Opcode::kRcSendMiddle) {
        return false;
    }
    const protocol::Bth header = protocol::read_bth(packet.data());
    const std::span<const std::byte> rest = packet.subspan(protocol::kBthBytes);
    if (!protocol::has_known_version(packet.data()) || !is_of_partition(header.pkey) ||
        header.pad > rest.size()) {
        return false;
    }
    Qp* const qp = device.qps().find(header.dest_qpn);
    if (qp == nullptr || qp->type() != QpType::kRc || qp->init().sink == nullptr) {
        return false;
    }
    const auto payload = rest.first(rest.size() - header.pad);
    {
        const util::Guard guard(qp->rx_lock());
        auto* flow = static_cast<PacketFlow*>(qp->flow());
        if (flow == nullptr || !is_from_peer(*qp, source) || !rights_of(qp->state()).receive ||
            !flow->responder().take_simple(*qp, header, payload.size(), starts, ends)) {
            return false;
        }
    }
    qp->init().sink->take(payload, starts, ends);
    device.flush_urgent();
    return true;
}

/// The packet behind a gap that is there no more. Returns: nothing if the pair has ended meanwhile.
std::optional<DecodedPacket> next_early(Qp& qp, std::vector<std::byte>& bytes) noexcept {
    const util::Guard guard(qp.rx_lock());
    auto* flow = static_cast<PacketFlow*>(qp.flow());
    if (flow == nullptr || !flow->responder().has_next()) {
        return std::nullopt;
    }
    return flow->responder().take_next(bytes);
}

void deliver_request(Qp& qp, const Route& route, const DecodedPacket& packet) noexcept {
    Taken taken = take_request(qp, route, packet);
    while (taken.nak == Nak::kNone && taken.has_next) [[unlikely]] {
            std::vector<std::byte> bytes;
            const auto early = next_early(qp, bytes);
            taken = early ? take_request(qp, route, *early) : Taken{};
        }
    qp.device().flush_urgent();
    if (taken.nak != Nak::kNone) {
        after_refusal(qp, taken.nak);
    }
}

/// What a response has set going leaves when the poll has taken in all that there was.
void run_if_needed(Qp& qp, bool has_work) noexcept {
    if (has_work || wants_run(qp)) {
        qp.device().run_behind_poll(qp.qpn());
    }
}

void deliver_response(Qp& qp, const Route& route, const DecodedPacket& packet) noexcept {
    bool has_work = false;
    {
        const util::Guard guard(qp.tx_lock());
        auto* flow = static_cast<PacketFlow*>(qp.flow());
        const bool is_heard =
            flow != nullptr && is_from_peer(qp, route.source) && !rights_of(qp.state()).flush_send;
        if (is_heard) [[likely]] {
            flow->requester().take_response(qp, packet);
            has_work = retire_done_locked(qp);
        } else {
            qp.device().stats().add(Stat::kDrops);
        }
    }
    run_if_needed(qp, has_work);
}

void deliver_to(Qp& qp, const Route& route, const DecodedPacket& packet) noexcept {
    if (qp.type() == QpType::kUd) {
        deliver_to_datagram_pair(qp, route, packet);
    } else if (packet.header.info().is_request()) {
        deliver_request(qp, route, packet);
    } else {
        deliver_response(qp, route, packet);
    }
    if (qp.take_overrun()) {
        qp.raise(EventType::kQpFatal);
        qp.enter_error();
    }
}

void deliver_to_members(Device& device, const Route& route, const DecodedPacket& packet) noexcept {
    if (route.source == device.address()) {
        return;  // come back from the group: the members of this device have it
    }
    for (const std::uint32_t qpn : device.mcast().members(route.dest)) {
        if (Qp* member = device.qps().find(qpn)) {
            deliver_to(*member, route, packet);
        }
    }
}

void deliver_mad(Device& device, const Route& route, const DecodedPacket& packet) noexcept {
    MadSink* const sink = device.mad_sink();
    if (sink == nullptr || packet.header.qkey != protocol::kGsiQkey ||
        packet.payload.size() != protocol::kMadBytes) {
        device.stats().add(Stat::kDrops);
        return;
    }
    sink->take_mad(route.source, packet.payload.first<protocol::kMadBytes>());
}

/// Sends a datagram beside the wire, where its packets need be no multiples of four bytes.
/// Returns: whether it has left so.
bool send_by_channel(Device& device, Channel& channel, const PacketHeader& header,
                     const PieceList& payload) noexcept {
    std::array<std::byte, protocol::kMaxHeaderBytes> bytes;
    const std::size_t header_bytes = protocol::encode(header, bytes.data());
    return device.ops()
        .send_datagram(device, channel, std::span(bytes).first(header_bytes), payload.all())
        .is_ok();
}

/// Returns: whether the backend has taken it.
bool send_by_wire(Device& device, const AhAttr& dest, PacketHeader& header,
                  const PieceList& payload) noexcept {
    PacketBurst burst(device, dest);
    burst.add(header, payload);
    return burst.send() != 0;
}

std::optional<protocol::Psn> take_over_ack_locked(Qp& qp) noexcept {
    auto* flow = static_cast<PacketFlow*>(qp.flow());
    const auto taken = flow == nullptr ? std::nullopt : flow->responder().take_over_ack();
    if (taken) {
        qp.device().has_no_answer(qp.qpn());
    }
    return taken;
}

}  // namespace

std::optional<protocol::Psn> take_over_ack(Qp& qp) noexcept {
    const util::Guard guard(qp.rx_lock());
    return take_over_ack_locked(qp);
}

std::optional<protocol::Psn> take_over_coming_ack(Qp& qp) noexcept {
    const util::Guard guard(qp.rx_lock());
    const auto taken = take_over_ack_locked(qp);
    auto* flow = static_cast<PacketFlow*>(qp.flow());
    return taken || flow == nullptr ? taken : flow->responder().newest_taken();
}

void take_acknowledged(Qp& qp, protocol::Psn psn, std::uint64_t at_us) noexcept {
    bool has_work = false;
    {
        const util::Guard guard(qp.tx_lock());
        auto* flow = static_cast<PacketFlow*>(qp.flow());
        if (flow != nullptr && !rights_of(qp.state()).flush_send) [[likely]] {
            flow->requester().take_acknowledged(qp, psn, at_us);
            has_work = retire_done_locked(qp);
        }
    }
    if (has_work || wants_run(qp)) {
        run_send_queue(qp);
    }
}

void abandon_sending(Qp& qp) noexcept {
    const util::Guard guard(qp.tx_lock());
    if (Flow* const flow = qp.flow()) {
        flow->stop_sending();
    }
    qp.send_queue().clear();
}

bool send_packet_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    Device& device = qp.device();
    const Request request = to_request(qp, wqe);
    const Ah& ah = *wqe.wr.ah;
    const bool is_group = ah.is_group();
    const Ext trailer = wqe.has(OpTraits::kImm) ? Ext::kImm : Ext::kNone;
    PacketHeader header{
        .opcode = protocol::opcode_of(QpType::kUd, Kind::kSend, Part::kOnly, trailer),
        .solicited = request.solicited,
        .dest_qpn = is_group ? kMulticastQpn : wqe.wr.remote_qpn,
        .psn = protocol::Psn(qp.sending().datagram_psn),
        .qkey = request.qkey,
        .src_qpn = qp.qpn(),
        .imm = request.imm};
    const bool has_left =
        ah.channel() != nullptr && send_by_channel(device, *ah.channel(), header, local);
    if (!has_left && !send_by_wire(device, ah.attr(), header, local)) {
        device.wait_until(qp.qpn(), device.now_us(), nullptr);
        return false;
    }
    ++qp.sending().datagram_psn;
    if (is_group) {
        deliver_to_group(qp, request, local);
    }
    device.flush();
    device.stats().add_sent(wqe.bytes);
    qp.send_queue().start_next();
    wqe.status = WcStatus::kSuccess;
    wqe.done = true;
    return true;
}

}  // namespace rvt::core

namespace rvt {

void deliver_packet(core::Device& device, const Address& source, const Address& dest,
                    std::span<const std::byte> packet) noexcept {
    if (device.grade() == Grade::kPacket && core::deliver_simple(device, source, packet)) {
        return;
    }
    protocol::DecodedPacket decoded;
    const bool sane =
        protocol::decode(packet, decoded) && core::is_of_partition(decoded.header.pkey);
    if (!sane) {
        device.stats().add(core::Stat::kBadPackets);
        return;
    }
    const core::Route route{.source = source, .dest = dest};
    const protocol::PacketHeader& header = decoded.header;
    const QpType service = header.info().service;
    if (header.dest_qpn == kMulticastQpn && service == QpType::kUd) {
        core::deliver_to_members(device, route, decoded);
        return;
    }
    if (device.grade() != Grade::kPacket) {
        device.stats().add(core::Stat::kDrops);  // its pairs know no packets
        return;
    }
    if (header.dest_qpn == protocol::kGsiQpn && service == QpType::kUd) {
        core::deliver_mad(device, route, decoded);
        return;
    }
    if (header.dest_qpn == core::kProbeQpn && service == QpType::kUd) {
        return;  // that it has come is all
    }
    core::Qp* qp = device.qps().find(header.dest_qpn);
    if (qp == nullptr || qp->type() != service) {
        if (service == QpType::kRc && header.info().is_request()) {
            core::note_missed(device, source, header.dest_qpn);
        } else {
            device.stats().add(core::Stat::kDrops);
        }
        return;
    }
    core::deliver_to(*qp, route, decoded);
}

void peer_refused(core::Device& device, const Address& peer, std::uint32_t dest_qpn) noexcept {
    if (core::MadSink* const sink = device.mad_sink()) {
        sink->peer_refused(peer, dest_qpn);
    }
}

void path_narrowed(core::Device& device, const Address& host) noexcept {
    if (core::MadSink* const sink = device.mad_sink()) {
        sink->path_narrowed(host);
    }
}

}  // namespace rvt
