// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening and closing, and the operations that the core calls.
#include "backend/roce/packet_device.h"

#include "core/addresses.h"
#include "core/qp.h"
#include "util/fork_guard.h"
#include "util/log.h"

#include <algorithm>

namespace rvt::roce {
namespace {

PacketDevice& self(core::Device& device) noexcept {
    return *static_cast<PacketDevice*>(device.priv());
}

constexpr BackendOps kOps = {
    .send_packets =
        [](core::Device& device, const AhAttr& dest, std::span<const OutPacket> packets) {
            return self(device).send(dest, packets);
        },
    .flush_packets = [](core::Device& device) { self(device).flush(); },
    .send_now = [](core::Device& device, const AhAttr& dest,
                   const OutPacket& packet) { return self(device).send_now(dest, packet); },
    .path_payload = [](core::Device& device,
                       const Address& dest) { return self(device).path_payload(dest); },
    .open_channel = [](core::Device& device,
                       const Address& dest) { return self(device).open_channel(dest); },
    .close_channel = [](core::Device& device,
                        Channel& channel) { self(device).close_channel(channel); },
    .send_datagram =
        [](core::Device& device, Channel& channel, std::span<const std::byte> header,
           std::span<const iovec> payload) {
            return self(device).send_datagram(channel, header, payload);
        },
    .poll = [](core::Device& device) { return self(device).poll(device); },
    .wake_fd = [](core::Device& device) { return self(device).wake_fd(); },
    .arm = [](core::Device& device) { return self(device).arm(); },
    .attach_mcast = [](core::Qp& qp,
                       const Address& group) { return self(qp.device()).join(group); },
    .detach_mcast = [](core::Qp& qp, const Address& group) { self(qp.device()).leave(group); },
};

}  // namespace

Result<std::unique_ptr<PacketDevice>> PacketDevice::open(core::Registry& registry,
                                                         const PacketDeviceAttr& attr) {
    const auto most = payload_of(attr.port != nullptr ? attr.port->address : attr.address);
    if (!most.is_ok()) {
        return most.status();
    }
    if (attr.payload_bytes > most.value()) {
        RVT_WARN(kDomain,
                 "cannot open %s with packets of %u bytes (FI_RVT_ROCE_MTU): its interface takes "
                 "%u, which 0 asks for",
                 attr.name, attr.payload_bytes, most.value());
        return EMSGSIZE;
    }
    if (attr.payload_bytes != 0 &&
        (attr.payload_bytes < core::kMinPayload || attr.payload_bytes % core::kPayloadStep != 0)) {
        RVT_WARN(kDomain,
                 "cannot open %s with packets of %u bytes (FI_RVT_ROCE_MTU): multiples of %u from "
                 "%u on, or 0 for what its interface takes",
                 attr.name, attr.payload_bytes, core::kPayloadStep, core::kMinPayload);
        return EINVAL;
    }
    auto socket = attr.port != nullptr ? open_udp_socket(std::move(*attr.port))
                                       : open_udp_socket(attr.address);
    if (!socket.is_ok()) {
        return socket.status();
    }
    std::unique_ptr<PacketDevice> device(new PacketDevice(socket.take(), attr));
    device->payload_bytes_ = attr.payload_bytes != 0 ? attr.payload_bytes : most.value();
    if (attr.joins_groups) {
        if (const Status opened = device->groups_.open(); !opened.is_ok()) {
            return opened;
        }
    }
    const DeviceInfo info{.name = attr.name,
                          .grade = Grade::kPacket,
                          .address = core::to_address(device->socket_.port.address),
                          .limits = attr.limits,
                          .payload_bytes = device->payload_bytes_,
                          .now_us = attr.now_us};
    const auto registered = registry.add_device(info, kOps, device.get());
    if (!registered.is_ok()) {
        return registered.status();
    }
    device->registry_ = &registry;
    device->device_ = registered.value();
    return device;
}

Status PacketDevice::use_host_wire(std::unique_ptr<core::HostWire> host) noexcept {
    const Status added = groups_.add_host(host->wake_fd());
    if (added.is_ok()) {
        host_wire_ = std::move(host);
    }
    return added;
}

/// Where there are peers of this host, who poll at length, it is not looked at each time.
bool PacketDevice::is_wire_due() noexcept {
    // relaxed: whoever takes it back has the next poll look.
    if (is_wire_left_.load(std::memory_order_relaxed)) {
        // relaxed: as above.
        return is_glance_due_.load(std::memory_order_relaxed) &&
               is_glance_due_.exchange(false, std::memory_order_relaxed);
    }
    if (!has_host_peers()) {
        return true;
    }
    const std::uint64_t now = util::cpu_ticks();
    // relaxed: arm() only wants the next look to be soon.
    if (now - heard_ticks_ >= kBusyTicks &&
        now - looked_ticks_.load(std::memory_order_relaxed) < kQuietTicks) {
        return false;
    }
    looked_ticks_.store(now, std::memory_order_relaxed);  // relaxed: as above
    return true;
}

/// The wire first: what a peer has sent by it before it was connected came earlier.
unsigned PacketDevice::poll_both(core::Device& device) noexcept {
    const unsigned by_wire = is_wire_due() ? poll_wire(device) : 0;
    if (!has_host_peers()) {
        return by_wire;
    }
    if (by_wire != 0) {
        heard_ticks_ = util::cpu_ticks();
    }
    return by_wire + host_wire_->poll(device);
}

/// The kernel refuses packets: because the interface has lost the address, or takes only smaller
/// ones, or for a reason that passes.
void PacketDevice::look_at_trouble(core::Device& device) noexcept {
    if (!look_lock_.try_lock()) {
        return;  // another thread looks
    }
    const std::uint64_t now = device.now_us();
    if (now - looked_us_ >= kLookPauseUs) {
        looked_us_ = now;
        look_at_port_locked();
        look_at_path(device);
    }
    look_lock_.unlock();
}

/// What the interface takes may be too large for the way behind it. If it is not, a run has been
/// refused for being one, as the next one would be.
void PacketDevice::look_at_path(core::Device& device) noexcept {
    const auto refused = transmit_.take_too_large();
    if (!refused) {
        return;
    }
    const bool is_narrow = path_payload(refused->dest) < device.payload_bytes();
    if (refused->is_run &&
        path_takes(address(), core::to_sock_addr(refused->dest), refused->packet_bytes)) {
        transmit_.stop_runs();
    } else if (is_narrow) {
        transmit_.try_all_again();
    }
    if (is_narrow) {
        path_narrowed(device, refused->dest);
    }
}

std::uint32_t PacketDevice::path_payload(const Address& dest) const noexcept {
    const auto way = path_payload_of(socket_.port.address, core::to_sock_addr(dest));
    return way.is_ok() ? std::min(way.value(), payload_bytes_) : payload_bytes_;
}

void PacketDevice::look_at_port() noexcept {
    const util::ForkHold hold;
    const util::Guard guard(look_lock_);
    follow_interface_locked();
    look_at_port_locked();
}

/// What has to do with groups names an interface by its number, which is another one when it has
/// been made anew, or when another interface has the address. Opens sockets, which who polls must
/// not: see util::ForkHold.
void PacketDevice::follow_interface_locked() noexcept {
    const unsigned interface = groups_.is_open() ? interface_of(address()) : 0;
    if (interface == 0 || interface == interface_) {
        return;
    }
    if (const Status status = send_groups_by_interface(socket_); !status.is_ok()) {
        RVT_WARN(kEpCtrl, "%s cannot send to groups any more: %s", device_->name().c_str(),
                 strerrordesc_np(status.error()));
    }
    if (groups_.rejoin()) {
        interface_ = interface;  // else the next look tries again
    }
}

void PacketDevice::look_at_port_locked() noexcept {
    core::Device& device = *device_;
    transmit_.expect_no_trouble();
    const auto most = payload_of(socket_.port.address);
    if (!most.is_ok() && most.error() != ENODEV && most.error() != EMSGSIZE) {
        return;  // it cannot be known now
    }
    const std::uint32_t payload = most.is_ok() ? std::min(most.value(), payload_bytes_) : 0;
    if (payload == (device.is_port_down() ? 0 : device.payload_bytes())) {
        return;
    }
    if (payload == 0) {
        RVT_WARN(kEpCtrl, "no interface has the address of %s any more", device.name().c_str());
    } else {
        RVT_INFO(kEpCtrl, "packets of %s carry %u bytes from now on", device.name().c_str(),
                 payload);
    }
    transmit_.try_all_again();
    port_changed(device, payload);
}

/// A socket is readable as long as it holds something: there is nothing to arm. It costs more with
/// each packet while it is in a set (see util::ControlThread::Handler::watch_once()), so it is in
/// none before somebody sleeps. What a fault holds back, or a full socket has left to the next
/// flush, shows on no descriptor, so nobody sleeps while there is any: the time is short.
Status PacketDevice::arm() noexcept {
    if (capture_.is_on()) {
        capture_.writer().flush();
    }
    const bool holds_any =
        receive_.holds_packets() || groups_.holds_packets() || transmit_.holds_packets();
    if (holds_any || (host_wire_ != nullptr && host_wire_->arm().error() == EAGAIN)) {
        return EAGAIN;
    }
    // What wakes the sleeper may have come by the wire.
    looked_ticks_.store(0, std::memory_order_relaxed);  // relaxed: see is_wire_due()
    take_wire();
    return groups_.is_open() ? groups_.add_own(socket_.fd()) : kOk;
}

/// As "wrong_icrc 3, drops 1"; empty: nothing went wrong.
std::string PacketDevice::describe_losses() const {
    std::string text;
    const auto add = [&](const char* name, std::uint64_t count) {
        if (count != 0) {
            text.append(text.empty() ? "" : ", ").append(name).append(" ");
            text += std::to_string(count);
        }
    };
    add("wrong_icrc", corrupted());
    add("refused_by_kernel", transmit_.refused());
    const std::string counted = core::describe_losses(device_->stats());
    return text + (text.empty() || counted.empty() ? "" : ", ") + counted;
}

Status PacketDevice::close() {
    if (capture_.is_on()) {
        capture_.writer().flush();
    }
    const std::string name = device_->name();
    const std::string losses = describe_losses();
    const Status removed = registry_->remove_device(device_);
    if (removed.is_ok() && !losses.empty()) {
        RVT_INFO(kEpData, "what went wrong at %s: %s", name.c_str(), losses.c_str());
    }
    return removed;
}

}  // namespace rvt::roce
