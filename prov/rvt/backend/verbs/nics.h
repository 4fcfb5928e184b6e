// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Which NICs this host has, by the addresses of its network interfaces: where rdma_cm can bind one,
// a NIC's port belongs to it (RoCE, iWARP, IP over InfiniBand).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/sock_addr.h"

struct ibv_device;

namespace rvt::verbs {

/// An address and the port of a NIC that it belongs to.
struct NicAddress {
    std::string device;        // as libibverbs names it now
    std::uint8_t port = 0;     // from 1 on
    util::SockAddr address{};  // port 0
    // Of an interface of IP over InfiniBand; of others they mean nothing.
    std::array<std::uint8_t, 16> gid{};  // of the port, with which the interface speaks
    std::uint16_t pkey = 0;              // of the interface's partition; bit 15 means nothing
    // Of the device, as a number; 0: it has none, or another device of this host has the same.
    std::uint64_t guid = 0;
};

/// What a device is known by while it has an address, whatever it is called: its node GUID as
/// rdma(8) and sysfs write it; without one its name.
std::string identity_of(const NicAddress& nic);
/// A name of its port that stays over renames and reboots: 5054:00ff:fe12:3456/1. Neither devices
/// nor interfaces can be called so. Empty where the device has no GUID of its own.
std::string stable_name(const NicAddress& nic);
/// Whether the device is that of the NIC.
bool is_device_of(const NicAddress& nic, ibv_device& device) noexcept;

/// Whom an info refers to.
struct NicWanted {
    std::string_view name{};      // of a device, or a stable one
    util::SockAddr source{};      // the address that it was for; the wildcard: not known
    std::string_view identity{};  // of the device that this process was told of there; else empty
    bool is_interface = false;    // has the name, too: at an address that is not the device's
};
/// The first address of the NIC that is meant. A device that has got the name since then is not.
/// @param all  As of find_nics(). Returns: nullptr where it is not there.
const NicAddress* find_wanted(std::span<const NicAddress> all, const NicWanted& wanted);

/// Those that these addresses of this host belong to, in their order. Threads: any.
std::vector<NicAddress> nics_at(std::span<const util::SockAddr> addresses);

/// In the order of their devices' names. None where the host has no RDMA devices, or no rdma-core:
/// that is no error. Threads: any.
std::vector<NicAddress> find_nics();

}  // namespace rvt::verbs
