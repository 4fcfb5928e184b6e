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
#include <utility>

namespace rvt::fake {
namespace {

Port& port_of(core::Device& device) {
    return *static_cast<Port*>(device.priv());
}

constexpr BackendOps kOps = {
    .send_packets =
        [](core::Device& device, const AhAttr& dest, std::span<const OutPacket> packets) {
            return port_of(device).wire->send(port_of(device), dest, packets);
        },
    .path_payload =
        [](core::Device& device, const Address&) {
            return port_of(device).wire->path_payload(port_of(device));
        },
    .poll = [](core::Device& device) { return port_of(device).wire->deliver(port_of(device)); },
};

protocol::IpPath path_of(const Address& source, const Address& dest) {
    return {
        .source = source.gid, .dest = dest.gid, .source_port = source.port, .dest_port = dest.port};
}

std::size_t payload_of(const OutPacket& packet) {
    std::size_t bytes = 0;
    for (const iovec& piece : packet.payload) {
        bytes += piece.iov_len;
    }
    return bytes;
}

/// With the ICRC.
std::vector<std::byte> assemble(const protocol::IpPath& path, const OutPacket& packet) {
    std::vector<std::byte> bytes(packet.headers.begin(), packet.headers.end());
    for (const iovec& piece : packet.payload) {
        const auto* from = static_cast<const std::byte*>(piece.iov_base);
        bytes.insert(bytes.end(), from, from + piece.iov_len);
    }
    bytes.resize(bytes.size() + packet.pad);
    const std::uint32_t icrc = protocol::icrc_of(path, bytes);
    const auto trailer = std::as_bytes(std::span(&icrc, 1));
    bytes.insert(bytes.end(), trailer.begin(), trailer.end());
    return bytes;
}

}  // namespace

/// Each end rolls its own dice.
protocol::FaultPlan Wire::plan_of_locked(std::size_t end) const {
    protocol::FaultPlan plan = plan_;
    plan.seed += end;
    return plan;
}

void Wire::set_faults(const protocol::FaultPlan& plan) noexcept {
    const util::Guard guard(lock_);
    plan_ = plan;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
        ends_[i].line.set_plan(plan_of_locked(i));
    }
}

Status Wire::attach(core::Registry& registry, Port& port, const DeviceInfo& info) {
    port.wire = this;
    const auto device = registry.add_device(info, kOps, &port);
    if (!device.is_ok()) {
        return device.status();
    }
    port.device = device.value();
    const util::Guard guard(lock_);
    ends_.push_back({.port = &port, .line = protocol::FaultyLine(plan_of_locked(ends_.size()))});
    return kOk;
}

void Wire::detach(Port& port) noexcept {
    const util::Guard guard(lock_);
    std::erase_if(ends_, [&](const End& end) { return end.port == &port; });
}

std::uint64_t Wire::corrupted() const noexcept {
    const util::Guard guard(lock_);
    return corrupted_;
}

unsigned Wire::send(Port& from, const AhAttr& dest, std::span<const OutPacket> packets) {
    if (on_send) {
        on_send();
    }
    const util::Guard guard(lock_);
    const bool to_group = core::is_multicast(dest.dest.gid);
    const protocol::IpPath path = path_of(from.device->address(), dest.dest);
    unsigned taken = 0;
    for (const OutPacket& packet : packets) {
        if (payload_of(packet) > narrowest_) {
            End& own = *end_of_locked(from);
            own.path_payload = narrowest_;
            own.too_large_to = dest.dest;
            ++taken;
            continue;
        }
        const std::vector<std::byte> bytes = assemble(path, packet);
        for (End& end : ends_) {
            const bool is_meant =
                to_group ? end.port != &from : end.port->device->address() == dest.dest;
            if (is_meant && !to_group && !has_room_locked(end)) {
                return taken;
            }
            if (is_meant) {
                end.arrived.emplace_back(protocol::WirePacket{.path = path, .bytes = bytes});
            }
        }
        ++taken;
    }
    return taken;
}

Wire::End* Wire::end_of_locked(const Port& port) {
    const auto end =
        std::find_if(ends_.begin(), ends_.end(), [&](const End& one) { return one.port == &port; });
    return end == ends_.end() ? nullptr : &*end;
}

void Wire::narrow(std::uint32_t payload_bytes) noexcept {
    const util::Guard guard(lock_);
    narrowest_ = payload_bytes;
}

std::uint32_t Wire::path_payload(const Port& from) {
    const util::Guard guard(lock_);
    const End* const end = end_of_locked(from);
    return end == nullptr ? kMaxPayload : end->path_payload;
}

void Wire::tell_of_narrow_way(Port& to) {
    std::optional<Address> peer;
    {
        const util::Guard guard(lock_);
        if (End* const end = end_of_locked(to)) {
            peer = std::exchange(end->too_large_to, std::nullopt);
        }
    }
    if (peer) {
        path_narrowed(*to.device, *peer);
    }
}

std::vector<protocol::KeptPacket> Wire::take_due(Port& to) {
    std::vector<protocol::KeptPacket> due;
    const util::Guard guard(lock_);
    End* const end = end_of_locked(to);
    if (end == nullptr) {
        return due;
    }
    const std::uint64_t now = to.device->now_us();
    const auto take_held = [&] {
        while (auto held = end->line.take_due(now)) {
            due.push_back(std::move(*held));
        }
    };
    for (protocol::KeptPacket& packet : end->arrived) {
        const std::span<const std::byte> bytes = packet.packet().bytes;
        const bool is_spared = spares && spares(bytes.first(bytes.size() - protocol::kIcrcBytes));
        if (is_spared || end->line.passes(packet.packet(), now)) {
            due.push_back(std::move(packet));
        }
        take_held();
    }
    end->arrived.clear();
    take_held();
    return due;
}

unsigned Wire::deliver(Port& to) {
    tell_of_narrow_way(to);
    const std::vector<protocol::KeptPacket> due = take_due(to);
    for (const protocol::KeptPacket& kept : due) {
        const auto& [path, identification, bytes] = kept.packet();
        const std::span<const std::byte> body = bytes.first(bytes.size() - protocol::kIcrcBytes);
        std::uint32_t icrc = 0;
        std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
        if (protocol::icrc_of(path, body) != icrc) {
            const util::Guard guard(lock_);
            ++corrupted_;
            continue;
        }
        deliver_packet(*to.device, {.gid = path.source, .port = path.source_port},
                       {.gid = path.dest, .port = path.dest_port}, body);
    }
    return static_cast<unsigned>(due.size());
}

}  // namespace rvt::fake
