// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who is connected, and the datagrams to and from them.
#include "backend/shm/packet_port.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <endian.h>

#include "core/addresses.h"
#include "core/device.h"
#include "protocol/header_sizes.h"
#include "protocol/icrc.h"
#include "protocol/wire_packet.h"

namespace rvt::shm {
namespace {

constexpr unsigned kPadShift = 4;  // in the second byte of the base transport header

/// Makes the header that of a packet of a multiple of four bytes. Returns: how many it lacks.
std::uint8_t pad_header(std::span<std::byte> header, std::size_t packet_bytes) noexcept {
    const auto pad = static_cast<std::uint8_t>(-packet_bytes & 3);
    header[1] |= static_cast<std::byte>(pad << kPadShift);
    return pad;
}

bool takes_packets(const Peering& peering) noexcept {
    return peering.page.at<EndpointPage>(0)->service == Service::kPackets;
}

}  // namespace

PacketPort::Neighbour::Neighbour(const util::SockAddr& at) noexcept
    : way(at), address(core::to_address(at)) {}

// ---- life ----

Result<std::unique_ptr<core::HostWire>> PacketPort::open(const PacketPortAttr& attr) {
    std::unique_ptr<PacketPort> made(new PacketPort());
    const Status started = made->start(attr);
    return started.is_ok() ? Result<std::unique_ptr<core::HostWire>>(std::move(made)) : started;
}

Status PacketPort::start(const PacketPortAttr& attr) {
    const util::SockAddr address = attr.port->address;
    if (address.scope_id != 0 || address.is_any()) {
        return EAFNOSUPPORT;
    }
    own_ = core::to_address(address);
    capture_ = {attr.capture, attr.name};
    most_peers_ = attr.most_peers;
    const Status adopted = station_.adopt(std::move(*attr.port));
    return adopted.is_ok() ? station_.open({.user = this, .keys = {}, .service = Service::kPackets})
                           : adopted;
}

// ---- neighbours ----

PacketPort::Neighbour* PacketPort::find_locked(const util::SockAddr& at) noexcept {
    const auto found = neighbours_.find(at);
    return found == neighbours_.end() ? nullptr : found->second.get();
}

PacketPort::Neighbour& PacketPort::find_or_add_locked(const util::SockAddr& at) {
    std::unique_ptr<Neighbour>& place = neighbours_[at];
    if (place == nullptr) {
        place = std::make_unique<Neighbour>(at);
    }
    return *place;
}

Result<Channel*> PacketPort::open_channel(const Address& dest) {
    const util::SockAddr at = core::to_sock_addr(dest);
    if (at.port == 0 || at.is_any() || at.is_loopback()) {
        return EHOSTUNREACH;
    }
    const util::Guard guard(list_lock_);
    if (!own_addresses_.has(at, util::cpu_ticks())) {
        return EHOSTUNREACH;
    }
    Neighbour& peer = find_or_add_locked(at);
    ++peer.way.uses;
    return static_cast<Channel*>(&peer);
}

/// The connection stays: the peer may use it still. It ends with the peer or the device.
void PacketPort::close_channel(Channel& channel) noexcept {
    auto& peer = static_cast<Neighbour&>(channel);
    const util::SockAddr at = peer.way.peer();
    {
        const util::Guard guard(list_lock_);
        if (--peer.way.uses != 0) {
            return;
        }
    }
    // Where nobody is connected nobody polls, either; who does may be naming it.
    if (poll_lock_.try_lock()) {
        drop_if_unused(at);
        poll_lock_.unlock();
    } else {
        may_drop_.store(true, std::memory_order_relaxed);  // relaxed: see drop_unused()
    }
}

bool PacketPort::is_unused(const Neighbour& peer) noexcept {
    return peer.way.uses == 0 && peer.way.state() != SegmentChannel::State::kOpen;
}

void PacketPort::drop_if_unused(const util::SockAddr& at) noexcept {
    const util::Guard guard(list_lock_);
    const auto found = neighbours_.find(at);
    if (found != neighbours_.end() && is_unused(*found->second)) {
        neighbours_.erase(found);
    }
}

/// Frees those that are not connected and that nobody uses any more.
void PacketPort::drop_unused() noexcept {
    // relaxed: before the lock is taken; who closes the last use later sets it again.
    may_drop_.store(false, std::memory_order_relaxed);
    const util::Guard guard(list_lock_);
    std::erase_if(neighbours_, [](const auto& one) { return is_unused(*one.second); });
}

/// Asks the control thread, unless that has been not long ago.
void PacketPort::look_for(Neighbour& peer) noexcept {
    if (!has_room()) {
        return;
    }
    const std::uint64_t now = util::cpu_ticks();
    // relaxed: of two threads both may ask, which does no harm.
    if (now < peer.next_look.load(std::memory_order_relaxed)) {
        return;
    }
    // relaxed: a number of its own, as the other.
    const std::uint64_t pause = peer.look_pause.load(std::memory_order_relaxed);
    peer.next_look.store(now + pause, std::memory_order_relaxed);
    station_.look_for(peer.way.peer());
}

// ---- sending ----

Status PacketPort::send(Channel& channel, std::span<const std::byte> header,
                        std::span<const iovec> payload) noexcept {
    auto& peer = static_cast<Neighbour&>(channel);
    if (peer.way.state() != SegmentChannel::State::kOpen) [[unlikely]] {
        look_for(peer);
        return ENOTCONN;
    }
    const std::uint64_t at_ns = capture_.is_on() ? protocol::PcapWriter::now_ns() : 0;
    const Status sent = peer.way.send(header, payload);
    if (!sent.is_ok()) [[unlikely]] {
        return sent;
    }
    if (capture_.is_on()) [[unlikely]] {
        capture(at_ns, peer.address, header, payload);
    }
    return sent;
}

// ---- progress ----

unsigned PacketPort::poll_one(core::Device& device, Neighbour& peer) noexcept {
    return peer.way.poll([&](std::span<const std::byte> header, std::span<const iovec> payload) {
        if (capture_.is_on()) [[unlikely]] {
            capture(0, peer.address, header, payload);
        }
        // A run is in one piece.
        deliver_packet(device, peer.address, own_,
                       {header.data(), header.size() + payload.front().iov_len});
    });
}

unsigned PacketPort::poll(core::Device& device) noexcept {
    const util::Guard guard(poll_lock_);
    // acquire: pairs with the release in deliver().
    if (has_mail_.load(std::memory_order_acquire)) [[unlikely]] {
        read_mail_locked(device);
    }
    unsigned arrived = 0;
    for (std::size_t i = 0; i < polled_.size(); ++i) {
        Neighbour& peer = *polled_[i];
        arrived += poll_one(device, peer);
        if (peer.way.is_broken()) [[unlikely]] {
            station_.close_link(peer.way.link(), "the peer sent what no datagram endpoint sends");
            disconnect_locked(peer);
            look_later(peer, kMostLookTicks);
            note_work_locked();
            --i;
        }
    }
    // relaxed: see drop_unused().
    if (may_drop_.load(std::memory_order_relaxed)) [[unlikely]] {
        drop_unused();
    }
    return arrived;
}

bool PacketPort::has_room() noexcept {
    // relaxed: nothing else is read by it.
    return links_.load(std::memory_order_relaxed) < most_peers_;
}

void PacketPort::deliver(std::unique_ptr<ConnectionEvent> event) noexcept {
    if (event->kind == ConnectionEvent::Kind::kConnected) {
        links_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see has_room()
    }
    {
        const util::Guard guard(mail_lock_);
        mail_.push_back(std::move(event));
        // release: pairs with the acquire in poll() and arm().
        has_mail_.store(true, std::memory_order_release);
        note_peers(true);
    }
    station_.wake_owner();
}

void PacketPort::read_mail_locked(core::Device& device) noexcept {
    std::vector<std::unique_ptr<ConnectionEvent>> mail;
    {
        const util::Guard guard(mail_lock_);
        mail.swap(mail_);
        // relaxed: the lock orders it.
        has_mail_.store(false, std::memory_order_relaxed);
    }
    for (const auto& event : mail) {
        handle_locked(device, *event);
    }
    note_work_locked();
}

void PacketPort::note_work_locked() noexcept {
    const util::Guard guard(mail_lock_);
    note_peers(!polled_.empty() || !mail_.empty());
}

void PacketPort::handle_locked(core::Device& device, ConnectionEvent& event) noexcept {
    if (event.kind == ConnectionEvent::Kind::kConnected) {
        connected_locked(std::move(event.peering));
    } else {
        ended_locked(device, event);
    }
}

void PacketPort::connected_locked(std::unique_ptr<Peering> peering) noexcept {
    Neighbour* peer = nullptr;
    {
        const util::Guard guard(list_lock_);
        peer = &find_or_add_locked(peering->address);
    }
    if (peer->way.state() == SegmentChannel::State::kOpen) {
        disconnect_locked(*peer);  // a restarted one at the same address
    }
    // relaxed: see drop_unused(); only if it is turned away.
    may_drop_.store(true, std::memory_order_relaxed);
    if (!takes_packets(*peering)) {
        look_later(*peer, kMostLookTicks);
        links_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_room()
        return station_.close_link(peering->link, "the peer is no datagram endpoint with a wire");
    }
    peer->way.open(std::move(peering));
    peer->connected_ticks = util::cpu_ticks();
    polled_.push_back(peer);
}

/// One that is there and cannot be connected with is left alone longer each time, and so is one
/// that ends connections soon, again and again.
void PacketPort::ended_locked(core::Device& device, const ConnectionEvent& event) noexcept {
    Neighbour* peer = nullptr;
    {
        const util::Guard guard(list_lock_);
        peer = find_locked(event.address);
    }
    if (peer == nullptr) {
        return;
    }
    const bool is_open = peer->way.state() == SegmentChannel::State::kOpen;
    // relaxed: see look_for().
    const std::uint64_t longer =
        std::min(2 * peer->look_pause.load(std::memory_order_relaxed), kMostLookTicks);
    if (event.kind == ConnectionEvent::Kind::kPeerGone && is_open &&
        peer->way.link() == event.link) {
        // What it had sent before it went is received first.
        while (poll_one(device, *peer) != 0 && !peer->way.is_broken()) {
        }
        const bool was_short = util::cpu_ticks() - peer->connected_ticks < kLookTicks;
        const bool is_first = longer == 2 * kLookTicks;
        disconnect_locked(*peer);
        look_later(*peer, was_short ? longer : kLookTicks);
        if (is_first || !was_short) {
            // relaxed: see look_for(). It may have been restarted.
            peer->next_look.store(0, std::memory_order_relaxed);
        }
    }
    if (event.kind == ConnectionEvent::Kind::kFailed && !is_open && event.error != ECONNREFUSED) {
        look_later(*peer, longer);
    }
}

void PacketPort::look_later(Neighbour& peer, std::uint64_t pause) noexcept {
    peer.look_pause.store(pause, std::memory_order_relaxed);  // relaxed: see look_for()
    peer.next_look.store(util::cpu_ticks() + pause,
                         std::memory_order_relaxed);  // relaxed: as above
}

/// From now on its datagrams go by the wire, until one in its place is found.
void PacketPort::disconnect_locked(Neighbour& peer) noexcept {
    std::erase(polled_, &peer);
    links_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_room()
    static_cast<void>(peer.way.fail());              // nothing waits
    // relaxed: see drop_unused().
    may_drop_.store(true, std::memory_order_relaxed);
}

/// Packets on a wire are multiples of four bytes, and have an ICRC.
/// @param sent_ns  When it left; 0: it has arrived.
void PacketPort::capture(std::uint64_t sent_ns, const Address& peer,
                         std::span<const std::byte> header,
                         std::span<const iovec> payload) const noexcept {
    std::vector<std::byte> packet(header.begin(), header.end());
    for (const iovec& piece : payload) {
        const auto* const from = static_cast<const std::byte*>(piece.iov_base);
        packet.insert(packet.end(), from, from + piece.iov_len);
    }
    if (packet.size() < protocol::kBthBytes) {
        return;
    }
    packet.resize(packet.size() + pad_header(packet, packet.size()));
    const Address& from = sent_ns != 0 ? own_ : peer;
    const Address& to = sent_ns != 0 ? peer : own_;
    const protocol::IpPath path{
        .source = from.gid, .dest = to.gid, .source_port = from.port, .dest_port = to.port};
    const std::uint32_t icrc = htole32(protocol::icrc_of(path, packet));
    const auto* const trailer = reinterpret_cast<const std::byte*>(&icrc);
    packet.insert(packet.end(), trailer, trailer + sizeof icrc);
    const protocol::WirePacket captured{.path = path, .bytes = packet};
    if (sent_ns != 0) {
        capture_.sent(captured, sent_ns);
    } else {
        capture_.received(captured, true);
    }
}

// ---- sleeping ----

bool PacketPort::has_work_locked() const noexcept {
    const auto has_arrival = [](const Neighbour* peer) { return peer->way.has_arrival(); };
    // acquire: pairs with the release in deliver(), which wakes whoever sleeps behind arm().
    return has_mail_.load(std::memory_order_acquire) ||
           std::any_of(polled_.begin(), polled_.end(), has_arrival);
}

Status PacketPort::arm() noexcept {
    if (!poll_lock_.try_lock()) {
        return EAGAIN;  // another thread is taking in what there is
    }
    if (has_work_locked()) {  // without the barrier, which costs as much as many datagrams
        poll_lock_.unlock();
        return EAGAIN;
    }
    // Nobody disarms: each sleep is an episode of its own, and a peer wakes once for each. Without
    // peers there may be a wake-up left of one that has gone.
    station_.arm_by_barrier(!polled_.empty());
    const bool has_work = has_work_locked();
    poll_lock_.unlock();
    if (has_work) {
        station_.wake_owner();  // what arming has taken may have been for others who sleep
    }
    return has_work ? EAGAIN : kOk;
}

}  // namespace rvt::shm
