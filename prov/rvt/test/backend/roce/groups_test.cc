// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Groups of IP multicast between devices of this host.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include "common/own_network.h"
#include "conform/fixture.h"
#include "core/addresses.h"
#include "protocol/headers.h"
#include "util/local_addresses.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr util::SockAddr kLoopback{.family = AF_INET, .ip = {127, 0, 0, 1}};

/// A group that no other process of this host uses, as none uses that of the next port.
Address own_group(int family) {
    const std::string pid = std::to_string(20'000 + 2 * (getpid() % 20'000));
    const std::string text = (family == AF_INET ? "239.255.1.2:" : "[ff15::7]:") + pid;
    return to_address(util::SockAddr::from_string(text.c_str()).value());
}

struct Joiners {
    Pair<RoceAs> pair;
    const Address group;
    Ah* ah;

    explicit Joiners(const util::SockAddr& at = kLoopback)
        : pair(options(at)), group(own_group(at.family)) {
        ah = create_ah(*pair.a().pd, {.dest = group}).value();
    }
    ~Joiners() { RVT_OK(destroy_ah(ah)); }
    Joiners(const Joiners&) = delete;
    Joiners& operator=(const Joiners&) = delete;

    /// What the policy is made with, before it is.
    static Options options(const util::SockAddr& at) {
        RoceAs::attr.joins_groups = true;
        RoceAs::attr.address = at;
        return {.type = QpType::kUd};
    }

    void send_to(const Ah* to) {
        const Sge element = pair.a().sge(0, 64);
        RVT_OK(pair.a().qp->post_send({.sg_list = {&element, 1},
                                       .ah = to,
                                       .remote_qpn = kMulticastQpn,
                                       .remote_qkey = kQkey}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    }
    void send() { send_to(ah); }
    /// After it, all that was sent before has arrived.
    void send_to_b() {
        RVT_OK(pair.post_send({.bytes = 1}));
        RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    }
};

void reaches_a_member_on_another_device(const util::SockAddr& at) {
    Joiners joiners(at);
    auto& pair = joiners.pair;
    pair.a().fill(0, 64, 1);
    RVT_OK(pair.b().qp->attach_mcast(joiners.group));
    RVT_OK(pair.b().post_recv(3));
    joiners.send();
    const Wc received = pair.received();
    RVT_EQ(received.wr_id, 3);
    RVT_EQ(received.src_port, pair.a().device->address().port);
    RVT_ASSERT(pair.b().holds(kGrhBytes, 64, 1));
    RVT_OK(pair.b().qp->detach_mcast(joiners.group));
}

/// A device at an address of a network that this test has to itself.
struct Station {
    Registry registry;
    std::unique_ptr<roce::PacketDevice> device;

    explicit Station(const char* at)
        : device(roce::PacketDevice::open(registry,
                                          {.address = util::SockAddr::from_string(at).value(),
                                           .joins_groups = true,
                                           .now_us = fake_now})
                     .take()) {}
    ~Station() { RVT_OK(device->close()); }
    Station(const Station&) = delete;
    Station& operator=(const Station&) = delete;

    /// Sends a packet for no pair.
    void send(const Address& group) {
        std::array<std::byte, protocol::kMaxHeaderBytes> headers{};
        const std::size_t bytes = protocol::encode({.dest_qpn = 0x123}, headers.data());
        const OutPacket packet{.headers = {headers.data(), bytes}};
        RVT_EQ(device->send({.dest = group}, {&packet, 1}), 1);
        device->flush();
    }
    /// Packets that have come since the last question.
    unsigned received() { return device->poll(device->device()); }
    void await_packet() {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        unsigned packets = 0;
        while (packets == 0 && std::chrono::steady_clock::now() < end) {
            packets = received();
            std::this_thread::yield();
        }
        RVT_EQ(packets, 1);
    }
};

void have_own_network() {
    cr_assert(test::enter_own_network(), "this user cannot have a network of its own");
}

}  // namespace

Test(roce_groups, a_datagram_reaches_a_member_on_another_device, .timeout = 30) {
    reaches_a_member_on_another_device(kLoopback);
}

Test(roce_groups, a_datagram_reaches_a_member_over_ipv6, .timeout = 30) {
    // Of the loopback interface there is no route to groups of IPv6.
    test::enter_own_network();
    const auto network = util::network_address(AF_INET6, "");
    cr_assert(network.has_value(), "neither this machine nor a namespace has IPv6");
    reaches_a_member_on_another_device(*network);
}

Test(roce_groups, what_was_corrupted_on_its_way_to_one_is_counted_also_when_it_was_left,
     .timeout = 30) {
    RoceAs::attr.faults = {.corrupt = 1'000'000};
    Joiners joiners;
    auto& pair = joiners.pair;
    roce::PacketDevice& device = pair.backend().packet_device(kB);
    RVT_OK(pair.b().qp->attach_mcast(joiners.group));
    joiners.send();
    while (device.corrupted() < 1) {
        pair.pass_us(5);
    }
    RVT_OK(pair.b().qp->detach_mcast(joiners.group));
    RVT_EQ(device.corrupted(), 1);
    RVT_EQ(device.receive_queue().corrupted(), 0);
}

Test(roce_groups, who_has_left_gets_no_more, .timeout = 30) {
    Joiners joiners;
    auto& pair = joiners.pair;
    RVT_OK(pair.b().qp->attach_mcast(joiners.group));
    RVT_OK(pair.b().qp->detach_mcast(joiners.group));
    RVT_OK(pair.b().post_recv(3));
    joiners.send();
    joiners.send_to_b();
    RVT_EQ(pair.received().byte_len, kGrhBytes + 1);
}

Test(roce_groups, the_group_of_another_port_is_another, .timeout = 30) {
    Joiners joiners;
    auto& pair = joiners.pair;
    RVT_OK(pair.b().qp->attach_mcast(
        {.gid = joiners.group.gid, .port = static_cast<std::uint16_t>(joiners.group.port + 1)}));
    RVT_OK(pair.b().post_recv(3));
    joiners.send();
    joiners.send_to_b();
    RVT_EQ(pair.received().byte_len, kGrhBytes + 1);
    RVT_OK(pair.b().qp->detach_mcast(
        {.gid = joiners.group.gid, .port = static_cast<std::uint16_t>(joiners.group.port + 1)}));
}

Test(roce_groups, a_sender_that_is_a_member_hears_no_echo, .timeout = 30) {
    Joiners joiners;
    auto& pair = joiners.pair;
    RVT_OK(pair.a().qp->attach_mcast(joiners.group));
    RVT_OK(pair.b().qp->attach_mcast(joiners.group));
    RVT_OK(pair.a().post_recv(1));
    RVT_OK(pair.b().post_recv(3));
    joiners.send();
    RVT_EQ(pair.received().wr_id, 3);  // the kernel gives it to all sockets before it returns
    RVT_ASSERT(pair.is_silent(pair.a().recv_cq));
    RVT_OK(pair.a().qp->detach_mcast(joiners.group));
    RVT_OK(pair.b().qp->detach_mcast(joiners.group));
}

Test(roce_groups, a_datagram_to_a_group_ends_the_sleep_of_a_member, .timeout = 30) {
    Joiners joiners;
    auto& pair = joiners.pair;
    RVT_OK(pair.b().qp->attach_mcast(joiners.group));
    RVT_OK(pair.b().post_recv(3));
    joiners.send();
    pair.b().device->sleep_on(-1, -1);
    RVT_EQ(pair.received().wr_id, 3);
    RVT_OK(pair.b().qp->detach_mcast(joiners.group));
}

Test(roce_groups, a_group_of_the_other_version_of_ip_cannot_be_joined, .timeout = 30) {
    Joiners joiners;
    RVT_EQ(joiners.pair.b().qp->attach_mcast(own_group(AF_INET6)), EAFNOSUPPORT);
    RVT_EQ(joiners.pair.b().qp->detach_mcast(own_group(AF_INET6)), EINVAL);
}

Test(roce_groups, a_member_gets_nothing_of_another_interface, .timeout = 30) {
    have_own_network();
    RVT_EQ(std::system("ip link add wire2 type veth peer name wire3 && "
                       "ip addr add fd98::1/64 dev wire2 nodad && "
                       "ip link set wire3 up && ip link set wire2 up"),
           0);
    Station sender("[fd99::1]:0");
    Station there("[fd98::1]:0");
    Station here("[fd99::1]:0");
    const Address group = own_group(AF_INET6);
    RVT_OK(there.device->join(group));
    RVT_OK(here.device->join(group));
    sender.send(group);
    here.await_packet();  // the kernel gives it to all sockets at once
    RVT_EQ(there.received(), 0);
    there.device->leave(group);
    here.device->leave(group);
}

namespace {

void groups_work_again_after_the_interface_was_made_anew(const char* at, int family) {
    have_own_network();
    Station first(at);
    const Address group = own_group(family);
    RVT_OK(first.device->join(group));
    RVT_EQ(std::system("ip link delete wire0"), 0);
    first.device->look_at_port();
    RVT_EQ(std::system("ip link add wire0 type veth peer name wire1 && "
                       "ip addr add 192.0.2.1/24 dev wire0 && "
                       "ip addr add fd99::1/64 dev wire0 nodad && "
                       "ip link set wire1 up && ip link set wire0 up && "
                       "until ip -o link show wire0 | grep -q 'state UP'; do :; done"),
           0);
    first.device->look_at_port();
    Station second(at);
    RVT_OK(second.device->join(group));
    second.send(group);
    first.await_packet();
    second.await_packet();
    first.send(group);
    second.await_packet();
    first.device->leave(group);
    second.device->leave(group);
}

}  // namespace

Test(roce_groups, an_interface_that_is_made_anew_is_joined_anew, .timeout = 30) {
    groups_work_again_after_the_interface_was_made_anew("192.0.2.1:0", AF_INET);
}

Test(roce_groups, an_interface_that_is_made_anew_is_joined_anew_over_ipv6, .timeout = 30) {
    groups_work_again_after_the_interface_was_made_anew("[fd99::1]:0", AF_INET6);
}
