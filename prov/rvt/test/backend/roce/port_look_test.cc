// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a device finds out of its interface, which exists only here, without sending.
#include <cstdlib>
#include <string>

#include "backend/roce/packet_device.h"
#include "common/check.h"
#include "common/own_network.h"
#include "core/registry.h"
#include "util/log.h"

#include <net/if.h>

using namespace rvt;

namespace {

std::string last_warning;

constexpr util::LogSink kSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kWarn; },
    .write = [](util::LogLevel, util::LogArea, const char*, int,
                const char* text) noexcept { last_warning = text; }};

void have_own_network() {
    cr_assert(test::enter_own_network(), "this user cannot have a network of its own");
}

struct Looking {
    core::Registry registry;
    std::unique_ptr<roce::PacketDevice> device;

    Looking() {
        have_own_network();
        device = roce::PacketDevice::open(registry,
                                          {.address = {.family = AF_INET, .ip = {192, 0, 2, 1}}})
                     .take();
    }
    ~Looking() { RVT_OK(device->close()); }
    Looking(const Looking&) = delete;
    Looking& operator=(const Looking&) = delete;

    /// Looks behind a change.
    core::Device& after(const char* command) {
        RVT_EQ(std::system(command), 0);
        device->look_at_port();
        return device->device();
    }
};

}  // namespace

Test(roce_port_look, an_address_that_is_gone_is_a_port_that_is_down_until_it_is_back) {
    Looking looking;
    RVT_ASSERT(looking.after("ip address delete 192.0.2.1/24 dev wire0").is_port_down());
    RVT_ASSERT(!looking.after("ip address add 192.0.2.1/24 dev wire0").is_port_down());
}

Test(roce_port_look, packets_are_as_large_as_the_interface_takes_and_as_it_took_at_first) {
    Looking looking;
    const std::uint32_t most = looking.device->device().payload_bytes();
    RVT_EQ(looking.after("ip link set wire0 mtu 700").mtu_bytes(), 512);
    RVT_EQ(looking.after("ip link set wire0 mtu 9000").payload_bytes(), most);
}

Test(roce_port_look, packets_of_another_size_than_asked_for_are_refused_by_name) {
    have_own_network();
    util::set_log_sink(&kSink);
    core::Registry registry;
    const auto error_with = [&](std::uint32_t payload_bytes) {
        last_warning.clear();
        return roce::PacketDevice::open(registry,
                                        {.address = {.family = AF_INET, .ip = {192, 0, 2, 1}},
                                         .payload_bytes = payload_bytes})
            .error();
    };
    RVT_EQ(error_with(8192), EMSGSIZE);
    RVT_ASSERT(last_warning.find("FI_RVT_ROCE_MTU") != std::string::npos);
    for (const std::uint32_t no_step : {1400u, 192u}) {
        RVT_EQ(error_with(no_step), EINVAL);
        RVT_ASSERT(last_warning.find("FI_RVT_ROCE_MTU") != std::string::npos);
    }
    RVT_EQ(error_with(256), 0);
}

Test(roce_port_look, packets_to_a_peer_are_as_large_as_the_route_takes) {
    Looking looking;
    Address peer = looking.device->device().address();
    peer.gid.back() = 2;
    peer.port = 4791;
    core::Device& device = looking.after("ip route replace 192.0.2.0/24 dev wire0 mtu 700");
    RVT_EQ(device.payload_to(peer), 576);
    RVT_ASSERT(device.payload_bytes() > 576);
    looking.after("ip route replace 192.0.2.0/24 dev wire0");
    RVT_EQ(device.payload_to(peer), device.payload_bytes());
}

Test(roce_port_look, an_interface_that_is_removed_is_a_port_that_is_down) {
    Looking looking;
    RVT_ASSERT(looking.after("ip link delete wire0").is_port_down());
}

Test(roce_port_look, a_cable_that_is_out_is_no_port_that_is_down) {
    Looking looking;
    RVT_ASSERT(!looking.after("ip link set wire0 down").is_port_down());
}

Test(roce_port_look, a_link_local_address_is_that_of_the_interface_that_it_names) {
    have_own_network();
    RVT_EQ(std::system("ip link add wire2 mtu 1300 type veth peer name wire3 && "
                       "ip addr add fe80::77/64 dev wire0 nodad && "
                       "ip addr add fe80::77/64 dev wire2 nodad && "
                       "ip link set wire3 up && ip link set wire2 up"),
           0);
    core::Registry registry;
    util::SockAddr address = util::SockAddr::from_string("[fe80::77]:0").value();
    std::uint32_t payloads[2] = {};
    for (const int i : {0, 1}) {
        address.scope_id = if_nametoindex(i == 0 ? "wire0" : "wire2");
        const auto opened = roce::PacketDevice::open(registry, {.address = address});
        RVT_OK(opened);
        payloads[i] = opened.value()->device().payload_bytes();
        RVT_OK(opened.value()->close());
    }
    RVT_ASSERT(payloads[0] > 1300);
    RVT_ASSERT(payloads[1] < 1300);
}
