// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How two devices on the loopback interface take in what arrives: one message a call, or several
// where they come without a pause. Nothing is lost where one becomes the other.
#include "common/own_network.h"
#include "conform/fixture.h"
#include "core/addresses.h"
#include "protocol/headers.h"
#include "protocol/icrc.h"
#include "util/unique_fd.h"

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <linux/capability.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::size_t kLongBytes = 64u << 10;
constexpr std::size_t kSmallBytes = 64;
constexpr int kManyMessages = 300;

/// Two sides that move messages from A to B and check what has arrived.
class Stream {
  public:
    /// One message, which has arrived when it returns.
    void send(std::size_t bytes) {
        ++seed_;
        pair_.a().fill(0, bytes, seed_);
        RVT_OK(pair_.b().post_recv(seed_, 0, bytes));
        RVT_OK(pair_.post_send({.bytes = bytes}));
        RVT_EQ(pair_.received().wr_id, seed_);
        RVT_ASSERT(pair_.b().holds(0, bytes, seed_));
        pair_.sent();
        pair_.backend().settle();  // B looks once in vain
    }
    void send_small_ones() {
        for (int i = 0; i < kManyMessages; ++i) {
            send(kSmallBytes);
        }
    }
    /// Many that leave before the other side takes in the first.
    void send_small_ones_at_once(int count) {
        for (int i = 0; i < count; ++i) {
            RVT_OK(pair_.b().post_recv(i));
            RVT_OK(pair_.post_send());
        }
        for (int i = 0; i < count; ++i) {
            RVT_EQ(pair_.received().wr_id, i);
            pair_.sent();
        }
    }

    /// B gets what is no packet.
    void inject_garbage() {
        const util::SockAddr to = to_sock_addr(pair_.b().device->address());
        sockaddr_storage name{};
        const auto bytes = static_cast<socklen_t>(to.to(&name));
        const std::array<std::byte, 2000> garbage{};
        const util::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        RVT_EQ(sendto(fd.get(), garbage.data(), garbage.size(), 0,
                      reinterpret_cast<const sockaddr*>(&name), bytes),
               static_cast<ssize_t>(garbage.size()));
        pair_.backend().settle();
    }
    std::uint64_t corrupted() {
        return pair_.backend().packet_device(kB).receive_queue().corrupted();
    }

    /// Whether each packet was taken for what it is.
    bool is_clean() {
        for (const int i : {kA, kB}) {
            const Stats& stats = pair_[i].device->stats();
            if (pair_.backend().packet_device(i).receive_queue().corrupted() != 0 ||
                stats.sum(Stat::kBadPackets) != 0 || stats.sum(Stat::kSequenceErrors) != 0 ||
                stats.sum(Stat::kDuplicates) != 0) {
                return false;
            }
        }
        return true;
    }

  private:
    Pair<Roce> pair_;
    int seed_ = 0;
};

}  // namespace

Test(roce_receive, messages_that_come_one_by_one_are_taken_whatever_their_size, .timeout = 30) {
    Stream stream;
    for (int i = 0; i < 3; ++i) {
        for (const std::size_t bytes : {0u, 8u, 64u, 1000u, 1024u, 1028u, 3000u, 4096u, 65536u}) {
            stream.send(bytes);
        }
    }
    RVT_ASSERT(stream.is_clean());
}

Test(roce_receive, small_packets_come_alone_or_together, .timeout = 30) {
    Stream stream;
    for (int i = 0; i < 3; ++i) {
        stream.send_small_ones();
        stream.send_small_ones_at_once(50);
        stream.send(kLongBytes);
    }
    RVT_ASSERT(stream.is_clean());
}

// A message of which the first packet is not whole is lost; what follows is not.
Test(roce_receive, a_message_that_nobody_can_cut_is_counted_and_does_no_harm, .timeout = 30) {
    Stream stream;
    stream.send(kSmallBytes);
    stream.inject_garbage();
    stream.send_small_ones();
    stream.send(kLongBytes);
    RVT_EQ(stream.corrupted(), 1u);
}

// The ICRC covers the port that a packet came from.
Test(roce_receive, packets_of_several_senders_are_told_apart, .timeout = 30) {
    const Options datagrams{.type = QpType::kUd};
    Pair<Roce> pair(datagrams);
    Pair<Roce> other(datagrams);
    Side& from = other.a();
    Ah* const there =
        std::exchange(from.ah, create_ah(*from.pd, {.dest = pair.b().device->address()}).value());
    for (int i = 0; i < kManyMessages; ++i) {
        Side& sender = i % 3 == 0 ? from : pair.a();
        RVT_OK(pair.b().post_recv(i));
        RVT_OK(post(sender, pair.b(), {}));
        const Wc received = pair.received();
        RVT_EQ(received.src_port, sender.device->address().port);
        RVT_EQ(received.src_qpn, sender.qp->qpn());
        RVT_EQ((i % 3 == 0 ? other : pair).sent().status, WcStatus::kSuccess);
    }
    RVT_EQ(pair.backend().packet_device(kB).receive_queue().corrupted(), 0u);
    RVT_OK(destroy_ah(std::exchange(from.ah, there)));
}

// ---- identifications ----

namespace {

constexpr util::SockAddr kSender{.family = AF_INET, .ip = {127, 0, 0, 1}};
constexpr util::SockAddr kSharedPort{.family = AF_INET, .port = 4791, .ip = {127, 47, 91, 1}};

socklen_t name_of(const util::SockAddr& address, sockaddr_storage& name) {
    return static_cast<socklen_t>(address.to(&name));
}

/// A plain socket with an address of its own, or what it stands for: who sends.
class Sender {
  public:
    Sender() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_storage name{};
        socklen_t bytes = name_of(kSender, name);
        RVT_EQ(::bind(fd(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
        bytes = sizeof name;
        RVT_EQ(::getsockname(fd(), reinterpret_cast<sockaddr*>(&name), &bytes), 0);
        address_ = util::SockAddr::from(reinterpret_cast<const sockaddr*>(&name), bytes).value();
    }
    int fd() const { return socket_.get(); }
    std::uint16_t port() const { return address_.port; }

    /// A packet for a pair that is not there. Its ICRC is right if it has this identification.
    std::vector<std::byte> packet(const util::SockAddr& dest, std::uint16_t identification) const {
        const Address from = to_address(address_);
        const Address to = to_address(dest);
        std::array<std::byte, protocol::kMaxHeaderBytes> header;
        const protocol::PacketHeader fields{
            .opcode = protocol::Opcode::kUdSendOnly, .dest_qpn = 0x77, .src_qpn = 5};
        const std::size_t header_bytes = encode(fields, header.data());
        std::vector<std::byte> packet(2 * protocol::kMaxHeaderBytes);
        const std::byte* const end = protocol::write_packet(
            packet.data(),
            {.source = from.gid, .dest = to.gid, .source_port = from.port, .dest_port = to.port},
            {.headers = std::span(header).first(header_bytes), .payload = {}}, identification);
        packet.resize(static_cast<std::size_t>(end - packet.data()));
        return packet;
    }

    /// The packet with headers in front, of which the first has this identification.
    std::vector<std::byte> with_headers(std::vector<std::byte> packet, const util::SockAddr& dest,
                                        std::uint16_t identification) const {
        const std::size_t udp_bytes = sizeof(udphdr) + packet.size();
        const udphdr udp{.source = htons(port()),
                         .dest = htons(dest.port),
                         .len = htons(static_cast<std::uint16_t>(udp_bytes)),
                         .check = 0};
        iphdr ip{};
        ip.version = 4;
        ip.ihl = sizeof ip / 4;
        ip.id = htons(identification);
        ip.frag_off = htons(IP_DF);
        ip.ttl = 64;
        ip.protocol = IPPROTO_UDP;
        std::memcpy(&ip.saddr, kSender.ip.data(), sizeof ip.saddr);
        std::memcpy(&ip.daddr, dest.ip.data(), sizeof ip.daddr);
        const auto prepend = [&packet](const auto& header) {
            const auto bytes = std::as_bytes(std::span(&header, 1));
            packet.insert(packet.begin(), bytes.begin(), bytes.end());
        };
        prepend(udp);
        prepend(ip);
        return packet;
    }

  private:
    util::UniqueFd socket_;
    util::SockAddr address_;
};

/// A device for which there are packets, of which it has no pair.
class Target {
  public:
    explicit Target(const util::SockAddr& address)
        : device_(roce::PacketDevice::open(registry_, {.name = "target",
                                                       .address = address,
                                                       .payload_bytes = 1024,
                                                       .limits = {.max_qp = 4, .max_mr = 255},
                                                       .now_us = fake_now})
                      .take()) {}
    ~Target() { RVT_OK(device_->close()); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    const util::SockAddr& address() const { return device_->address(); }

    /// Whether a packet is taken whose ICRC is right if it has this identification. It has 0.
    bool takes(std::uint16_t identification) {
        return takes_from(sender_.fd(), sender_.packet(address(), identification));
    }
    /// The same of one that has `real`. `raw` is a socket that sends what is given as IPv4 packets.
    bool takes_raw(const util::UniqueFd& raw, std::uint16_t real, std::uint16_t identification) {
        return takes_from(raw.get(), sender_.with_headers(sender_.packet(address(), identification),
                                                          address(), real));
    }
    /// The same of one whose ICRC is right with none.
    bool takes_garbage(const util::UniqueFd& raw, std::uint16_t real) {
        std::vector<std::byte> packet = sender_.packet(address(), real);
        packet.back() ^= std::byte{0x5a};
        return takes_from(raw.get(), sender_.with_headers(std::move(packet), address(), real));
    }
    /// Waits until so many packets have come. Returns: how many of them were taken.
    template <class Send>
    std::uint64_t taken_of(std::uint64_t count, Send send) {
        const std::uint64_t wrong = corrupted();
        const std::uint64_t dropped = drops();
        send();
        while (corrupted() - wrong + drops() - dropped != count) {
            device_->device().progress();
        }
        return drops() - dropped;
    }

  private:
    std::uint64_t corrupted() { return device_->receive_queue().corrupted(); }
    std::uint64_t drops() { return device_->device().stats().sum(Stat::kDrops); }

    bool takes_from(int fd, const std::vector<std::byte>& packet) {
        return taken_of(1, [&] {
                   sockaddr_storage name{};
                   const socklen_t bytes = name_of(address(), name);
                   RVT_EQ(::sendto(fd, packet.data(), packet.size(), 0,
                                   reinterpret_cast<const sockaddr*>(&name), bytes),
                          static_cast<ssize_t>(packet.size()));
               }) == 1;
    }

    core::Registry registry_;
    std::unique_ptr<roce::PacketDevice> device_;
    Sender sender_;
};

/// A connected socket, whose packets have identifications one after the other: messages of three
/// packets, which the kernel need not cut, as the receiver takes joined ones.
class JoinedSender {
  public:
    static constexpr std::size_t kPackets = 3;

    explicit JoinedSender(Target& target)
        : target_(target), headers_(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP)) {
        sockaddr_storage name{};
        const socklen_t bytes = name_of(target.address(), name);
        RVT_EQ(::connect(sender_.fd(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
        const int each = static_cast<int>(sender_.packet(target.address(), 0).size());
        RVT_EQ(::setsockopt(sender_.fd(), IPPROTO_UDP, UDP_SEGMENT, &each, sizeof each), 0);
    }
    /// A message whose ICRCs are right if each packet has an identification `step` more than the
    /// one before. Returns: how many packets were taken.
    std::uint64_t taken_of_message(std::uint16_t step) {
        // By how much the next message has more, kernels differ. Those that every peer may have,
        // and those before and behind them, are passed.
        std::uint16_t next = 0;
        for (std::uint16_t before = 0; next < 1000 || next > 65000;) {
            send_from(0, 0);
            const std::uint16_t last = identification();
            next = static_cast<std::uint16_t>(before == 0 ? 0 : 2 * last - before);
            before = last;
        }
        const std::uint64_t taken = send_from(next, step);
        RVT_EQ(identification(), next);
        return taken;
    }

  private:
    std::uint64_t send_from(std::uint16_t identification, std::uint16_t step) {
        std::vector<std::byte> message;
        for (std::size_t i = 0; i < kPackets; ++i) {
            const auto packet = sender_.packet(
                target_.address(), static_cast<std::uint16_t>(identification + i * step));
            message.insert(message.end(), packet.begin(), packet.end());
        }
        return target_.taken_of(kPackets, [&] {
            RVT_EQ(::send(sender_.fd(), message.data(), message.size(), 0),
                   static_cast<ssize_t>(message.size()));
        });
    }
    /// That of the message which has come.
    std::uint16_t identification() {
        std::array<std::byte, 2048> packet{};
        RVT_ASSERT(::recv(headers_.get(), packet.data(), packet.size(), 0) > 0);
        iphdr ip{};
        std::memcpy(&ip, packet.data(), sizeof ip);
        return ntohs(ip.id);
    }

    Target& target_;
    Sender sender_;
    util::UniqueFd headers_;
};

/// From now on this process has no right to raw sockets.
void lose_raw_sockets() {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
    RVT_EQ(syscall(SYS_capget, &header, data.data()), 0);
    data[CAP_TO_INDEX(CAP_NET_RAW)].effective &= ~CAP_TO_MASK(CAP_NET_RAW);
    RVT_EQ(syscall(SYS_capset, &header, data.data()), 0);
}

}  // namespace

// The kernel numbers the packets that it cuts out of a message from 0 on.
Test(roce_receive, of_peers_like_us_only_identifications_that_they_can_have_are_right) {
    Target target({.family = AF_INET, .ip = {127, 0, 0, 1}});
    for (const std::uint16_t id : {0, 1, 2, 63}) {
        cr_assert(target.takes(id), "%u", id);
    }
    for (const std::uint16_t id : {64, 65, 127, 128, 1000, 0x8000, 0xffff}) {
        cr_assert(target.takes(id) == false, "%u", id);
    }
    RVT_ASSERT(target.takes(63));
}

Test(roce_receive, at_the_port_of_all_devices_any_identification_is_right_that_nobody_sees) {
    lose_raw_sockets();
    Target target(kSharedPort);
    for (const std::uint16_t id : {0, 1, 63, 64, 1000, 0x8000, 0xffff}) {
        cr_assert(target.takes(id), "%u", id);
    }
}

Test(roce_receive, at_the_port_of_all_devices_a_process_with_cap_net_raw_sees_identifications) {
    cr_assert(test::enter_own_network(), "this user cannot have a network of its own");
    const util::UniqueFd raw(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    Target target(kSharedPort);
    // Also of those that come again, and behind wrong ones.
    for (const std::uint16_t id : {64, 65, 1000, 1000, 0x8000, 0xffff, 64}) {
        cr_assert(target.takes_raw(raw, id, id), "%u", id);
        cr_assert(not(target.takes_raw(raw, id, id ^ 0x0100)), "%u", id);
    }
    RVT_ASSERT(not(target.takes(2000)));
    for (const std::uint16_t id : {0, 1, 63}) {
        cr_assert(target.takes(id), "%u", id);
    }
    // So many that most of their headers are not kept.
    for (std::uint16_t id = 3000; id < 6000; ++id) {
        cr_assert(target.takes_raw(raw, id, id), "%u", id);
    }
    RVT_ASSERT(not(target.takes_raw(raw, 6000, 3000)));
}

// More than there would be room for, if their headers stayed.
Test(roce_receive, headers_of_wrong_packets_leave_room_for_those_of_others, .timeout = 60) {
    cr_assert(test::enter_own_network(), "this user cannot have a network of its own");
    const util::UniqueFd raw(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    Target target(kSharedPort);
    for (int i = 0; i < 20000; ++i) {
        RVT_ASSERT(not(target.takes_garbage(raw, 1000)));
    }
    RVT_ASSERT(target.takes_raw(raw, 1001, 1001));
}

Test(roce_receive, of_joined_packets_the_first_ones_header_tells_what_the_others_may_have) {
    cr_assert(test::enter_own_network(), "this user cannot have a network of its own");
    Target target(kSharedPort);
    JoinedSender sender(target);
    for (int i = 0; i < 3; ++i) {
        RVT_EQ(sender.taken_of_message(1), JoinedSender::kPackets);
        RVT_EQ(sender.taken_of_message(2), 1u);
    }
}
