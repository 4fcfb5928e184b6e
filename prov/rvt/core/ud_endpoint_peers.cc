// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The peers and groups of a datagram endpoint, and the sends that have waited for them.
#include "core/ud_endpoint.h"

#include <bit>
#include <utility>

#include "core/addresses.h"

namespace rvt::core {

// ---- peers ----

/// Returns: errors of create_ah().
Result<const UdEndpoint::Peer*> UdEndpoint::learn_peer_locked(std::uint64_t dest,
                                                              const util::SockAddr& address,
                                                              const UdPair& pair) noexcept {
    Address to = to_address(address);
    to.port = sharing_ == nullptr ? to.port : host_->device().address().port;
    const auto made = create_ah(*pd_, {.dest = to});
    if (!made.is_ok()) {
        return made.status();
    }
    if (dest >= peers_.size()) {
        peers_.resize(std::bit_ceil(dest + 1));
    }
    peers_[dest] = {.ah = made.value(), .pair = pair};
    return &peers_[dest];
}

void UdEndpoint::unlearn_locked(std::uint64_t number) noexcept {
    if (number < peers_.size() && peers_[number].ah != nullptr) {
        destroy_ah_locked(std::exchange(peers_[number], {}).ah);
    }
}

void UdEndpoint::forget_locked(std::uint64_t index, const util::SockAddr& address) noexcept {
    unlearn_locked(index);
    if (resolver_ != nullptr) {
        resolver_->forget_locked(index, address);
    }
}

// ---- sends that have waited ----

void UdEndpoint::fail_kept_locked(const UdKept& kept, WcStatus status) noexcept {
    report_send_locked({.context = kept.request.context,
                        .use = kept.request.use,
                        .completes = has(kept.request.flags, RdFlags::kCompletion),
                        .is_to_group = false},  // those of groups do not wait
                       status);
}

/// A peer that comes back at the same address is reached by another channel.
void UdEndpoint::channel_failed(Channel& channel) noexcept {
    for (std::uint64_t i = 0; i < peers_.size(); ++i) {
        if (peers_[i].ah != nullptr && peers_[i].ah->channel() == &channel) {
            unlearn_locked(i);
        }
    }
}

/// Smaller packets are to be known before something is lost; without an address all of it is.
void UdEndpoint::port_changed() noexcept {
    const std::size_t most = mtu_within(host_->device().payload_bytes());
    most_bytes_.store(std::min(max_bytes_, most), std::memory_order_relaxed);  // relaxed: see send
}

void UdEndpoint::take_mad(const Address& /*source*/,
                          std::span<const std::byte, protocol::kMadBytes> /*mad*/) noexcept {
    host_->device().stats().add(Stat::kDrops);
}

void UdEndpoint::destroy_ah_locked(Ah* ah) noexcept {
    std::erase_if(unused_ahs_, [](Ah* one) { return destroy_ah(one).is_ok(); });
    if (!destroy_ah(ah).is_ok()) {
        unused_ahs_.push_back(ah);
    }
}

// ---- groups ----

Result<std::uint64_t> UdEndpoint::join_locked(const util::SockAddr& group, bool sends,
                                              bool receives) {
    Address address = to_address(group);
    address.port = group.port != 0 ? group.port : kUdGroupPort;
    if (!is_multicast(address.gid) || group.family != host_->address().family) {
        return EINVAL;
    }
    if (receives) {
        if (const Status joined = qp_->attach_mcast(address); !joined.is_ok()) {
            return joined;
        }
    }
    const auto ah = create_ah(*pd_, {.dest = address});
    if (!ah.is_ok()) {
        if (receives) {
            detach_unused_locked(address);
        }
        return ah.status();
    }
    const auto place = std::find_if(groups_.begin(), groups_.end(),
                                    [](const Group& one) { return one.peer.ah == nullptr; });
    const auto i = static_cast<std::uint64_t>(place - groups_.begin());
    if (place == groups_.end()) {
        groups_.emplace_back();
    }
    const UdPair all{.qpn = kMulticastQpn, .qkey = kUdEndpointQkey};
    groups_[i] = {.address = address,
                  .peer = {.ah = ah.value(), .pair = all},
                  .sends = sends,
                  .receives = receives};
    return i | kGroupBit;
}

void UdEndpoint::leave_locked(std::uint64_t number) noexcept {
    Group& group = groups_[number & ~kGroupBit];
    const Group left = std::exchange(group, {});
    destroy_ah_locked(left.peer.ah);
    if (left.receives) {
        detach_unused_locked(left.address);
    }
}

/// Unless another number stands for membership.
void UdEndpoint::detach_unused_locked(const Address& group) noexcept {
    const bool is_member = std::any_of(groups_.begin(), groups_.end(), [&](const Group& one) {
        return one.receives && one.address == group;
    });
    if (!is_member) {
        [[maybe_unused]] const Status detached = qp_->detach_mcast(group);
    }
}

}  // namespace rvt::core
