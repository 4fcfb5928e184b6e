// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// rvt's RoCEv2 device, as peers that are not rvt know it: at port 4791 of an address.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "backend/roce/packet_device.h"
#include "core/addresses.h"
#include "core/registry.h"
#include "traffic.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::core {

inline constexpr std::uint16_t kRxePort = 4791;

// What a program that tries something cannot do without.
template <class T>
T need(Result<T> result, const char* what) {
    if (!result.is_ok()) {
        traffic::fail(std::string(what) + ": " + strerrordesc_np(result.error()));
    }
    return result.take();
}
inline void need(Status status, const char* what) {
    if (!status.is_ok()) {
        traffic::fail(std::string(what) + ": " + strerrordesc_np(status.error()));
    }
}

inline util::SockAddr socket_address(const std::string& ip, std::uint16_t port) {
    const std::string host = ip.find(':') != std::string::npos ? "[" + ip + "]" : ip;
    return need(util::SockAddr::from_string((host + ":" + std::to_string(port)).c_str()),
                ip.c_str());
}

/// Of such a device.
inline util::SockAddr rxe_address(const std::string& ip) {
    return socket_address(ip, kRxePort);
}

/// @param registry  Outlives the device.
inline std::unique_ptr<roce::PacketDevice> open_rxe_device(Registry& registry,
                                                           const std::string& ip) {
    return need(roce::PacketDevice::open(registry, {.address = rxe_address(ip),
                                                    .payload_bytes = traffic::kMtuBytes,
                                                    .joins_groups = true}),
                "open the device");
}

}  // namespace rvt::core
