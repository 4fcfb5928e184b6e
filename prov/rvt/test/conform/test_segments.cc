// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The trivial segment-grade backend.
#include "conform/test_segments.h"

#include "core/device.h"

#include <cstring>

namespace rvt::conform {
namespace {

TestPort& port_of(core::Device& device) {
    return *static_cast<TestPort*>(device.priv());
}

Result<Channel*> open_channel(core::Device& device, const Address& dest) {
    TestPort& port = port_of(device);
    return port.net == nullptr ? Result<Channel*>(EHOSTUNREACH) : port.net->open(port, dest);
}

void close_channel(core::Device&, Channel& channel) {
    --static_cast<TestChannel&>(channel).uses;
}

Status send_segment(core::Device&, Channel& channel, std::span<const std::byte> header,
                    std::span<const iovec> payload) {
    auto& own = static_cast<TestChannel&>(channel);
    if (own.broken) {
        return ENOTCONN;
    }
    if (own.far->arrived.size() >= TestChannel::kQueueSegments) {
        return EAGAIN;
    }
    TestChannel::Segment segment{.header = {header.begin(), header.end()}, .payload = {}};
    for (const iovec& piece : payload) {
        const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
        segment.payload.insert(segment.payload.end(), bytes, bytes + piece.iov_len);
    }
    own.far->arrived.push_back(std::move(segment));
    return kOk;
}

/// Finds the peer's memory through its key table, as a backend that maps it would.
Result<void*> reach(core::Device& device, Channel& channel, const PeerMemory& peer,
                    std::uint64_t bytes, Access access) {
    TestPort& port = port_of(device);
    ++port.attempts;
    if (!port.reaches_memory) {
        return EOPNOTSUPP;
    }
    const core::KeyHit hit =
        static_cast<TestChannel&>(channel).far->owner->device->key_view().lookup(
            {.key = peer.rkey,
             .pd = peer.pd,
             .addr = peer.addr,
             .length = bytes,
             .access = access});
    if (!hit.is_ok() || hit.indirect) {
        return EACCES;
    }
    ++port.one_sided;
    return static_cast<void*>(hit.data());
}

std::uint64_t total(std::span<const iovec> pieces) {
    std::uint64_t bytes = 0;
    for (const iovec& piece : pieces) {
        bytes += piece.iov_len;
    }
    return bytes;
}

Status read_peer(core::Device& device, Channel& channel, const PeerMemory& from,
                 std::span<const iovec> to) {
    const auto memory = reach(device, channel, from, total(to), Access::kRemoteRead);
    if (!memory.is_ok()) {
        return memory.status();
    }
    auto* next = static_cast<std::byte*>(memory.value());
    for (const iovec& piece : to) {
        std::memcpy(piece.iov_base, next, piece.iov_len);
        next += piece.iov_len;
    }
    return kOk;
}

Status write_peer(core::Device& device, Channel& channel, const PeerMemory& to,
                  std::span<const iovec> from) {
    const auto memory = reach(device, channel, to, total(from), Access::kRemoteWrite);
    if (!memory.is_ok()) {
        return memory.status();
    }
    auto* next = static_cast<std::byte*>(memory.value());
    for (const iovec& piece : from) {
        std::memcpy(next, piece.iov_base, piece.iov_len);
        next += piece.iov_len;
    }
    return kOk;
}

/// Peers are threads of this process, and in a ReadPin while they copy: that is waited for.
bool is_key_used(core::Device&, std::uint32_t) {
    return false;
}

unsigned poll(core::Device& device) {
    TestPort& port = port_of(device);
    return port.net == nullptr ? 0 : port.net->poll(port);
}

}  // namespace

const BackendOps& test_segment_ops() {
    static constexpr BackendOps kOps = {
        .open_channel = open_channel,
        .close_channel = close_channel,
        .send_segment = send_segment,
        .read_peer = read_peer,
        .write_peer = write_peer,
        .is_key_used = is_key_used,
        .poll = poll,
    };
    return kOps;
}

TestPort* TestNet::find(const Address& address) const {
    for (TestPort* port : ports_) {
        if (port->device->address() == address) {
            return port;
        }
    }
    return nullptr;
}

Result<Channel*> TestNet::open(TestPort& from, const Address& dest) {
    TestPort* to = find(dest);
    if (to == nullptr) {
        return EHOSTUNREACH;
    }
    for (auto& channel : channels_) {
        if (channel->owner == &from && channel->far->owner == to) {
            ++channel->uses;
            return channel.get();
        }
    }
    auto near = std::make_unique<TestChannel>();
    auto far = std::make_unique<TestChannel>();
    near->owner = &from;
    far->owner = to;
    near->far = far.get();
    far->far = near.get();
    near->uses = 1;
    Channel* opened = near.get();
    channels_.push_back(std::move(near));
    channels_.push_back(std::move(far));
    return opened;
}

unsigned TestNet::poll(TestPort& port) {
    unsigned arrived = 0;
    for (std::size_t i = 0; i < channels_.size(); ++i) {
        TestChannel& channel = *channels_[i];
        if (channel.owner != &port) {
            continue;
        }
        if (channel.broken && !channel.told) {
            channel.told = true;
            channel_failed(*port.device, channel);
        }
        while (!channel.arrived.empty() && !channel.broken) {
            const TestChannel::Segment segment = std::move(channel.arrived.front());
            channel.arrived.pop_front();
            // The contract lends the payload for reading only; iovec has no const.
            const iovec payload{.iov_base = const_cast<std::byte*>(segment.payload.data()),
                                .iov_len = segment.payload.size()};
            deliver_segment(*port.device, channel, segment.header, {&payload, 1});
            ++arrived;
        }
    }
    return arrived;
}

void TestNet::break_all() {
    for (auto& channel : channels_) {
        channel->broken = true;
    }
}

}  // namespace rvt::conform
