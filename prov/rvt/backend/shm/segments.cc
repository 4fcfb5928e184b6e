// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Channels over shared memory, and the device that the verbs core sees.
#include "backend/shm/segments.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/addresses.h"
#include "core/device.h"
#include "core/qp.h"
#include "core/segment_capture.h"
#include "util/long_copy.h"

namespace rvt::shm {
namespace {

/// Bytes copied at a time to or from a peer's memory: in between, others may send.
constexpr std::uint64_t kAccessBytes = 1u << 20;
/// What is sent just before the device closes may need a handshake first.
constexpr std::chrono::milliseconds kMostLinger{100};

std::uint64_t total(std::span<const iovec> pieces) noexcept {
    std::uint64_t bytes = 0;
    for (const iovec& piece : pieces) {
        bytes += piece.iov_len;
    }
    return bytes;
}

SegmentDevice& self(core::Device& device) noexcept {
    return *static_cast<SegmentDevice*>(device.priv());
}

SegmentChannel& own(Channel& channel) noexcept {
    return static_cast<SegmentChannel&>(channel);
}

bool is_device(const Peering& peering) noexcept {
    return peering.page.at<EndpointPage>(0)->service == Service::kSegments;
}

constexpr BackendOps kOps = {
    .send_packets =
        [](core::Device& device, const AhAttr& group, std::span<const OutPacket> packets) {
            return self(device).send_to_group(group, packets);
        },
    .flush_packets = [](core::Device& device) { self(device).flush(); },
    .open_channel = [](core::Device& device,
                       const Address& dest) { return self(device).open_channel(dest); },
    .close_channel = [](core::Device& device,
                        Channel& channel) { self(device).close_channel(channel); },
    .send_segment =
        [](core::Device&, Channel& channel, std::span<const std::byte> header,
           std::span<const iovec> payload) { return own(channel).send(header, payload); },
    .send_datagram =
        [](core::Device& device, Channel& channel, std::span<const std::byte> header,
           std::span<const iovec> payload) {
            return self(device).send_datagram(own(channel), header, payload);
        },
    .read_peer =
        [](core::Device& device, Channel& channel, const PeerMemory& from,
           std::span<const iovec> to) {
            return self(device).access_peer(channel, from, to, false);
        },
    .write_peer =
        [](core::Device& device, Channel& channel, const PeerMemory& to,
           std::span<const iovec> from) {
            return self(device).access_peer(channel, to, from, true);
        },
    .is_key_used = [](core::Device& device,
                      std::uint32_t key) { return self(device).is_key_used(key); },
    .poll = [](core::Device& device) { return self(device).poll<false>(device); },
    .wake_fd = [](core::Device& device) { return self(device).wake_fd(); },
    .arm = [](core::Device& device) { return self(device).arm(); },
    .attach_mcast = [](core::Qp& qp,
                       const Address& group) { return self(qp.device()).join(group); },
    .detach_mcast = [](core::Qp& qp, const Address& group) { self(qp.device()).leave(group); },
};

/// The same for a device whose segments are captured: the others do not even ask.
constexpr BackendOps kCapturedOps = [] {
    BackendOps ops = kOps;
    ops.send_segment = [](core::Device& device, Channel& channel, std::span<const std::byte> header,
                          std::span<const iovec> payload) {
        const std::uint64_t at_ns = protocol::PcapWriter::now_ns();
        const Status sent = own(channel).send(header, payload);
        if (sent.is_ok()) {
            self(device).capture_sent(at_ns, channel, header, payload);
        }
        return sent;
    };
    ops.send_datagram = [](core::Device& device, Channel& channel,
                           std::span<const std::byte> header, std::span<const iovec> payload) {
        const std::uint64_t at_ns = protocol::PcapWriter::now_ns();
        const Status sent = self(device).send_datagram(own(channel), header, payload);
        if (sent.is_ok()) {
            self(device).capture_sent(at_ns, channel, header, payload);
        }
        return sent;
    };
    ops.poll = [](core::Device& device) { return self(device).poll<true>(device); };
    return ops;
}();

}  // namespace

// ---- life of the device ----

Result<std::unique_ptr<SegmentDevice>> SegmentDevice::open(core::Registry& registry,
                                                           const SegmentDeviceAttr& attr) {
    std::unique_ptr<SegmentDevice> device(new SegmentDevice());
    if (Status status = device->start(registry, attr); !status.is_ok()) {
        return status;
    }
    return device;
}

Status SegmentDevice::start(core::Registry& registry, const SegmentDeviceAttr& attr) {
    if ((attr.port != nullptr ? attr.port->address : attr.address).scope_id != 0) {
        return EAFNOSUPPORT;
    }
    const std::size_t bytes = core::KeyTable::block_bytes(attr.limits.max_mr);
    util::Result<util::Mapping> keys =
        util::Mapping::create("rvt-device-keys", bytes, core::KeyTable::block_bytes(1));
    if (!keys.is_ok()) {
        return keys.status();
    }
    keys_memory_ = keys.take();
    const Status bound =
        attr.port != nullptr ? station_.adopt(std::move(*attr.port)) : station_.bind(attr.address);
    if (!bound.is_ok()) {
        return bound;
    }
    // First the station: clients of the core may open channels while they are told of the device.
    if (Status status = station_.open(
            {.user = this, .keys = {.memory = &keys_memory_}, .service = Service::kSegments});
        !status.is_ok()) {
        return status;
    }
    capture_ = {attr.capture, attr.name};
    DeviceInfo info{.name = attr.name,
                    .grade = Grade::kSegment,
                    .address = core::to_address(station_.address()),
                    .limits = attr.limits,
                    .key_block = keys_memory_.at<void>(0),
                    .key_block_bytes = bytes,
                    .now_us = attr.now_us};
    info.limits.max_segment_bytes = std::min(info.limits.max_segment_bytes, kMaxSegmentBytes);
    Result<core::Device*> device =
        registry.add_device(info, capture_.is_on() ? kCapturedOps : kOps, this);
    if (!device.is_ok()) {
        return device.status();
    }
    registry_ = &registry;
    device_ = device.value();
    return kOk;
}

SegmentDevice::~SegmentDevice() {
    station_.close();
}

/// Peers answer a handshake though their applications are elsewhere.
void SegmentDevice::let_waiting_leave() noexcept {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + kMostLinger; has_waiting() && Clock::now() < end;) {
        device_->sleep_on(-1, 1);
        device_->progress();
    }
}

bool SegmentDevice::has_waiting() noexcept {
    const util::Guard guard(list_lock_);
    return std::any_of(channels_.begin(), channels_.end(),
                       [](const auto& channel) { return channel->has_waiting(); });
}

Status SegmentDevice::close() {
    let_waiting_leave();
    if (capture_.is_on()) {
        capture_.writer().flush();
    }
    const Status status = registry_->remove_device(device_);
    if (status.is_ok()) {
        station_.close();
    }
    return status;
}

// ---- channels of the device ----

SegmentChannel* SegmentDevice::find_locked(const util::SockAddr& peer) noexcept {
    const auto found = std::find_if(channels_.begin(), channels_.end(), [&](const auto& channel) {
        return channel->peer() == peer && channel->state() != SegmentChannel::State::kFailed;
    });
    return found == channels_.end() ? nullptr : found->get();
}

SegmentChannel& SegmentDevice::add_locked(const util::SockAddr& peer) {
    return *channels_.emplace_back(std::make_unique<SegmentChannel>(peer));
}

Result<Channel*> SegmentDevice::open_channel(const Address& dest) {
    const util::SockAddr peer = core::to_sock_addr(dest);
    if (peer.is_any() || peer.port == 0) {
        return EHOSTUNREACH;
    }
    const util::Guard guard(list_lock_);
    SegmentChannel* channel = find_locked(peer);
    if (channel == nullptr) {
        channel = &add_locked(peer);
        station_.connect(peer);
    }
    ++channel->uses;
    return static_cast<Channel*>(channel);
}

/// The connection stays: the peer's pairs may use it still. It ends with the peer or the device.
void SegmentDevice::close_channel(Channel& channel) noexcept {
    const util::Guard guard(list_lock_);
    if (--own(channel).uses == 0) {
        // relaxed: see drop_unused().
        may_drop_.store(true, std::memory_order_relaxed);
    }
}

/// Frees failed channels that nobody uses any more. On the thread of poll(), which alone may be
/// naming one of them.
void SegmentDevice::drop_unused() noexcept {
    // relaxed: before the lock is taken; who closes the last use later sets it again, under it.
    may_drop_.store(false, std::memory_order_relaxed);
    const util::Guard guard(list_lock_);
    std::erase_if(channels_, [](const auto& channel) {
        return channel->state() == SegmentChannel::State::kFailed && channel->uses == 0;
    });
}

Status SegmentDevice::send_datagram(SegmentChannel& channel, std::span<const std::byte> header,
                                    std::span<const iovec> payload) noexcept {
    const Status sent = channel.send_datagram(header, payload);
    if (channel.waits_for_room()) [[unlikely]] {
        station_.wake_armed();
    }
    return sent;
}

// ---- progress ----

template <bool kCaptures>
unsigned SegmentDevice::poll_channel(core::Device& device, SegmentChannel& channel) noexcept {
    return channel.poll([&](std::span<const std::byte> header, std::span<const iovec> payload) {
        if constexpr (kCaptures) {
            core::capture_segment(
                capture_, std::nullopt,
                {.source = core::to_address(channel.peer()), .dest = device.address()}, header,
                payload);
        }
        deliver_segment(device, channel, header, payload);
    });
}

void SegmentDevice::capture_sent(std::uint64_t sent_ns, const Channel& channel,
                                 std::span<const std::byte> header,
                                 std::span<const iovec> payload) const noexcept {
    core::capture_segment(
        capture_, sent_ns,
        {.source = device_->address(),
         .dest = core::to_address(static_cast<const SegmentChannel&>(channel).peer())},
        header, payload);
}

template <bool kCaptures>
unsigned SegmentDevice::poll(core::Device& device) noexcept {
    const util::Guard guard(poll_lock_);
    // acquire: pairs with the release in deliver().
    if (has_mail_.load(std::memory_order_acquire)) [[unlikely]] {
        read_mail_locked(device);
    }
    unsigned arrived = 0;
    for (std::size_t i = 0; i < polled_.size(); ++i) {
        SegmentChannel& channel = *polled_[i];
        arrived += poll_channel<kCaptures>(device, channel);
        if (channel.has_waiting()) [[unlikely]] {
            device.stats().add(core::Stat::kDrops, channel.send_waiting(device.now_us()));
        }
        if (channel.is_broken()) [[unlikely]] {
            station_.close_link(channel.link(), "the peer sent what no device sends");
            fail_locked(device, channel);
            --i;
        }
    }
    if (groups_ != nullptr) {
        groups_->flush();
        arrived += groups_->poll(device);
    }
    // relaxed: see drop_unused().
    if (may_drop_.load(std::memory_order_relaxed)) [[unlikely]] {
        drop_unused();
    }
    if constexpr (kCaptures) {
        capture_.writer().flush_when_idle();
    }
    return arrived;
}

void SegmentDevice::deliver(std::unique_ptr<ConnectionEvent> event) noexcept {
    SegmentChannel* const opened = open_new(*event);
    note_gone(*event);
    {
        const util::Guard guard(mail_lock_);
        mail_.push_back({.event = std::move(event), .opened = opened});
        // release: pairs with the acquire in poll() and arm().
        has_mail_.store(true, std::memory_order_release);
    }
    station_.wake_owner();
}

/// What waits for this connection leaves now, and what is sent later does not wait, whether the
/// application ever polls again or not.
/// Returns: the channel; nullptr: the thread of poll() has to look at the event first.
SegmentChannel* SegmentDevice::open_new(ConnectionEvent& event) noexcept {
    if (event.kind != ConnectionEvent::Kind::kConnected || !is_device(*event.peering)) {
        return nullptr;
    }
    const util::Guard guard(list_lock_);
    SegmentChannel* channel = find_locked(event.address);
    if (channel != nullptr && channel->state() != SegmentChannel::State::kConnecting) {
        return nullptr;
    }
    channel = channel != nullptr ? channel : &add_locked(event.address);
    channel->open(std::move(event.peering));
    [[maybe_unused]] const std::size_t lost = channel->send_waiting(0);  // none so early
    return channel;
}

/// A poll that reads the event may be long in coming.
void SegmentDevice::note_gone(const ConnectionEvent& event) noexcept {
    if (event.kind != ConnectionEvent::Kind::kPeerGone) {
        return;
    }
    const util::Guard guard(list_lock_);
    SegmentChannel* const channel = find_locked(event.address);
    if (channel != nullptr) {
        channel->note_gone(event.link);
    }
}

void SegmentDevice::read_mail_locked(core::Device& device) noexcept {
    std::vector<Mail> mail;
    {
        const util::Guard guard(mail_lock_);
        mail.swap(mail_);
        // relaxed: the lock orders it.
        has_mail_.store(false, std::memory_order_relaxed);
    }
    for (const Mail& one : mail) {
        if (one.opened != nullptr) {
            polled_.push_back(one.opened);
        } else {
            handle_locked(device, *one.event);
        }
    }
}

void SegmentDevice::handle_locked(core::Device& device, ConnectionEvent& event) noexcept {
    if (event.kind == ConnectionEvent::Kind::kConnected) {
        connected_locked(device, std::move(event.peering));
        return;
    }
    SegmentChannel* channel = nullptr;
    {
        const util::Guard guard(list_lock_);
        channel = find_locked(event.address);
    }
    if (channel == nullptr) {
        return;
    }
    const bool is_open = channel->state() == SegmentChannel::State::kOpen;
    if (event.kind == ConnectionEvent::Kind::kFailed && !is_open) {
        fail_locked(device, *channel);
    }
    if (event.kind == ConnectionEvent::Kind::kPeerGone && is_open &&
        channel->link() == event.link) {
        // What it had sent before it went is received first.
        const auto poll = capture_.is_on() ? &SegmentDevice::poll_channel<true>
                                           : &SegmentDevice::poll_channel<false>;
        while ((this->*poll)(device, *channel) != 0 && !channel->is_broken()) {
        }
        fail_locked(device, *channel);
    }
}

void SegmentDevice::connected_locked(core::Device& device,
                                     std::unique_ptr<Peering> peering) noexcept {
    const std::uint64_t link = peering->link;
    const bool is_good = is_device(*peering);
    SegmentChannel* channel = nullptr;
    {
        const util::Guard guard(list_lock_);
        channel = find_locked(peering->address);
    }
    if (channel != nullptr && channel->state() == SegmentChannel::State::kOpen) {
        fail_locked(device, *channel);  // a restarted device at the same address
        channel = nullptr;
    }
    if (!is_good) {
        station_.close_link(link, "the peer is an endpoint, not a device");
    }
    if (!is_good && channel != nullptr) {
        fail_locked(device, *channel);
    }
    if (!is_good) {
        return;
    }
    {
        // Once more: another thread may have begun to use the address meanwhile.
        const util::Guard guard(list_lock_);
        channel = find_locked(peering->address);
        channel = channel != nullptr ? channel : &add_locked(peering->address);
    }
    channel->open(std::move(peering));
    polled_.push_back(channel);
}

void SegmentDevice::fail_locked(core::Device& device, SegmentChannel& channel) noexcept {
    std::erase(polled_, &channel);
    device.stats().add(core::Stat::kDrops, channel.fail());
    channel_failed(device, channel);
    // relaxed: see drop_unused().
    may_drop_.store(true, std::memory_order_relaxed);
}

// ---- sleeping ----

Status SegmentDevice::arm() noexcept {
    if (capture_.is_on()) {
        capture_.writer().flush();
    }
    if (!poll_lock_.try_lock()) {
        return EAGAIN;  // another thread is taking in what there is
    }
    const auto waits = [](const SegmentChannel* channel) { return channel->has_waiting(); };
    if (std::any_of(polled_.begin(), polled_.end(), waits)) {
        poll_lock_.unlock();
        return EAGAIN;  // wake_fd() stays as it is, for others who are to wake up
    }
    // Nobody disarms: each sleep is an episode of its own, and a peer wakes once for each.
    station_.arm_by_barrier(!polled_.empty());
    // acquire: pairs with the release in deliver().
    const bool has_work =
        has_mail_.load(std::memory_order_acquire) ||
        std::any_of(polled_.begin(), polled_.end(), [&](const SegmentChannel* channel) {
            return channel->has_arrival() || waits(channel);
        });
    poll_lock_.unlock();
    if (has_work) {
        station_.wake_owner();  // what arming has taken may have been for others who sleep
        return EAGAIN;
    }
    return groups_ != nullptr ? groups_->arm() : kOk;
}

// ---- groups ----

unsigned SegmentDevice::send_to_group(const AhAttr& group,
                                      std::span<const OutPacket> packets) noexcept {
    return groups_ != nullptr ? groups_->send(group, packets)
                              : static_cast<unsigned>(packets.size());
}

void SegmentDevice::flush() noexcept {
    if (groups_ != nullptr) {
        groups_->flush();
    }
}

void SegmentDevice::leave(const Address& group) noexcept {
    if (groups_ != nullptr) {
        groups_->leave(group);
    }
}

// ---- one-sided access ----

Status SegmentDevice::access_peer(Channel& channel, PeerMemory peer, std::span<const iovec> local,
                                  bool is_write) noexcept {
    if (!memory_lock_.try_lock()) {
        return EAGAIN;  // another thread is at it: the peer will do
    }
    Status status = kOk;
    std::uint64_t left = std::max(total(local), peer.bytes);
    for (const iovec& piece : local) {
        for (std::uint64_t done = 0; status.is_ok() && done < piece.iov_len;) {
            const iovec part{.iov_base = static_cast<std::byte*>(piece.iov_base) + done,
                             .iov_len = std::min(piece.iov_len - done, kAccessBytes)};
            status = own(channel).access(station_, peer, part, left, is_write);
            peer.addr += part.iov_len;
            done += part.iov_len;
            left -= part.iov_len;
        }
    }
    memory_lock_.unlock();
    return status;
}

bool SegmentDevice::is_key_used(std::uint32_t key) noexcept {
    // seq_cst: between the invalidation of the key and the look at the marks; pairs with the fence
    // in Station::mark_use().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const util::Guard guard(list_lock_);
    return std::any_of(channels_.begin(), channels_.end(), [&](const auto& channel) {
        return channel->is_peer_using(station_.incarnation(), key);
    });
}

}  // namespace rvt::shm
