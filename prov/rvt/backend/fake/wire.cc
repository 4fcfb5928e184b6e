// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packets in transit.
#include "backend/fake/wire.h"

#include "core/device.h"
#include "core/mcast.h"
#include "core/registry.h"
#include "protocol/header_sizes.h"
#include "protocol/icrc.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

namespace rvt::fake {
namespace {

// Packets are put in transit this far apart, so that some can overtake others.
constexpr std::uint64_t kOrderStep = 2;

Port& port_of(core::Device& device) {
    return *static_cast<Port*>(device.priv());
}

constexpr BackendOps kOps = {
    .send_packets =
        [](core::Device& device, const AhAttr& dest, std::span<const OutPacket> packets) {
            return port_of(device).wire->send(port_of(device), dest, packets);
        },
    .poll = [](core::Device& device) { return port_of(device).wire->deliver(port_of(device)); },
};

protocol::IpPath path(const Address& source, const Address& dest) {
    return {
        .source = source.gid, .dest = dest.gid, .source_port = source.port, .dest_port = dest.port};
}

/// From the base transport header to the padding.
std::vector<std::byte> assemble(const OutPacket& packet) {
    std::vector<std::byte> bytes(packet.headers.begin(), packet.headers.end());
    for (const iovec& piece : packet.payload) {
        const auto* from = static_cast<const std::byte*>(piece.iov_base);
        bytes.insert(bytes.end(), from, from + piece.iov_len);
    }
    bytes.resize(bytes.size() + packet.pad);
    return bytes;
}

}  // namespace

void Wire::set_faults(const protocol::FaultPlan& plan) noexcept {
    const util::Guard guard(lock_);
    faults_ = protocol::FaultInjector(plan);
}

Status Wire::attach(core::Registry& registry, Port& port, const DeviceInfo& info) {
    port.wire = this;
    const auto device = registry.add_device(info, kOps, &port);
    if (!device.is_ok()) {
        return device.status();
    }
    port.device = device.value();
    const util::Guard guard(lock_);
    ports_.push_back(&port);
    return kOk;
}

void Wire::detach(Port& port) noexcept {
    const util::Guard guard(lock_);
    std::erase(ports_, &port);
    std::erase_if(transit_, [&](const Transit& packet) { return packet.to == &port; });
}

std::uint64_t Wire::corrupted() const noexcept {
    const util::Guard guard(lock_);
    return corrupted_;
}

bool Wire::has_room_locked(const Port& to) const {
    const auto waiting = std::count_if(transit_.begin(), transit_.end(),
                                       [&](const Transit& packet) { return packet.to == &to; });
    return static_cast<std::size_t>(waiting) < room_;
}

/// Puts a packet in transit, or what its fate leaves of it.
void Wire::put_locked(Port& from, Port& to, const Address& dest,
                      const std::vector<std::byte>& packet) {
    const protocol::Fault fault = faults_.next();
    const Address source = from.device->address();
    const std::uint32_t icrc = protocol::icrc_of(path(source, dest), packet);
    Transit transit{.to = &to,
                    .source = source,
                    .dest = dest,
                    .order = (next_order_ += kOrderStep) + kOrderStep * fault.overtaken_by + 1,
                    .due_us = from.device->now_us() + fault.delay_us,
                    .bytes = packet};
    transit.bytes.resize(packet.size() + sizeof icrc);
    std::memcpy(transit.bytes.data() + packet.size(), &icrc, sizeof icrc);
    if (fault.is_corrupted) {
        const std::uint64_t bit = fault.corrupt_bit % (8 * transit.bytes.size());
        transit.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    if (fault.is_duplicated) {
        transit_.push_back(transit);
    }
    if (!fault.is_dropped) {
        transit_.push_back(std::move(transit));
    }
}

unsigned Wire::send(Port& from, const AhAttr& dest, std::span<const OutPacket> packets) {
    const util::Guard guard(lock_);
    const bool to_group = core::is_multicast(dest.dest.gid);
    unsigned taken = 0;
    for (const OutPacket& packet : packets) {
        const std::vector<std::byte> bytes = assemble(packet);
        for (Port* port : ports_) {
            const bool is_meant = to_group ? port != &from : port->device->address() == dest.dest;
            if (is_meant && !to_group && !has_room_locked(*port)) {
                return taken;
            }
            if (is_meant) {
                put_locked(from, *port, dest.dest, bytes);
            }
        }
        ++taken;
    }
    return taken;
}

std::vector<Wire::Transit> Wire::take_due(Port& to) {
    const util::Guard guard(lock_);
    const std::uint64_t now = to.device->now_us();
    const auto is_due = [&](const Transit& packet) {
        return packet.to == &to && packet.due_us <= now;
    };
    const auto first = std::stable_partition(transit_.begin(), transit_.end(), std::not_fn(is_due));
    std::vector<Transit> due(std::make_move_iterator(first),
                             std::make_move_iterator(transit_.end()));
    transit_.erase(first, transit_.end());
    std::stable_sort(due.begin(), due.end(),
                     [](const Transit& a, const Transit& b) { return a.order < b.order; });
    return due;
}

unsigned Wire::deliver(Port& to) {
    const std::vector<Transit> due = take_due(to);
    for (const Transit& packet : due) {
        const std::span<const std::byte> bytes(packet.bytes);
        const std::span<const std::byte> body = bytes.first(bytes.size() - protocol::kIcrcBytes);
        std::uint32_t icrc = 0;
        std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
        if (protocol::icrc_of(path(packet.source, packet.dest), body) != icrc) {
            const util::Guard guard(lock_);
            ++corrupted_;
            continue;
        }
        deliver_packet(*to.device, packet.source, packet.dest.gid, body);
    }
    return static_cast<unsigned>(due.size());
}

}  // namespace rvt::fake
