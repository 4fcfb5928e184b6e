// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two datagram endpoints over the fake wire, and packets that no endpoint sends.
#include <array>
#include <memory>

#include "conform/fixture.h"
#include "core/addresses.h"
#include "core/counted_use.h"
#include "core/path_probe.h"
#include "core/ud_endpoint.h"
#include "protocol/headers.h"

using namespace rvt;
using namespace rvt::conform;
using namespace rvt::protocol;
using rvt::test::CountedUse;

namespace {

constexpr std::size_t kQueue = 4;

class TestHost final : public UdHost {
  public:
    explicit TestHost(Device& device) : device_(device) {}
    Device& device() noexcept override { return device_; }
    util::SockAddr address() const noexcept override { return to_sock_addr(device_.address()); }
    void leave_to_host() noexcept override {}
    Status start() override { return started; }
    void stop() noexcept override {}

    Status started = kOk;

  private:
    Device& device_;
};

struct End {
    std::unique_ptr<Cq> cq = Cq::create(16).take();
    Counter sends;
    Counter receives;
    AddressVector av;
    std::uint64_t peer = 0;
    std::array<std::byte, 4096> memory{};
    UdEndpoint endpoint{{.tx_size = kQueue, .rx_size = kQueue, .reports_source = true}};
    iovec all{.iov_base = memory.data(), .iov_len = memory.size()};

    /// @param fails  The first attempt to open it does.
    End(Device& own, Device& other, bool fails = false) {
        endpoint.bind({.tx_cq = cq.get(), .rx_cq = cq.get(), .send = &sends, .recv = &receives},
                      &av);
        if (fails) {
            auto host = std::make_unique<TestHost>(own);
            host->started = ENOSPC;
            RVT_EQ(endpoint.open(std::move(host)), ENOSPC);
        }
        RVT_OK(endpoint.open(std::make_unique<TestHost>(own)));
        peer = av.insert(to_sock_addr(other.address())).value();
    }

    Status recv(std::uintptr_t context, std::size_t bytes = 4096, BufferUse* use = nullptr) {
        all.iov_len = bytes;
        return endpoint.recv_locked({.iov = &all,
                                     .iov_count = 1,
                                     .context = reinterpret_cast<void*>(context),
                                     .flags = RdFlags::kCompletion,
                                     .use = use});
    }
    Status send(std::size_t bytes, RdFlags flags = RdFlags::kCompletion, std::uint64_t data = 0,
                BufferUse* use = nullptr) {
        const iovec one{.iov_base = memory.data(), .iov_len = bytes};
        return endpoint.send_locked(
            {.iov = &one, .iov_count = 1, .dest = peer, .data = data, .flags = flags, .use = use});
    }
    Cqe next() {
        for (int i = 0; i < 100 && cq->is_empty(); ++i) {
            endpoint.poll_locked();
        }
        RVT_ASSERT(not(cq->is_empty()));
        const Cqe cqe = *cq->front();
        cq->pop();
        return cqe;
    }
    bool is_silent() {
        for (int i = 0; i < 100; ++i) {
            endpoint.poll_locked();
        }
        return cq->is_empty();
    }
};

struct Ends {
    Packets wire;
    End a{wire.side(kA), wire.side(kB)};
    End b{wire.side(kB), wire.side(kA)};

    std::uint64_t count(Stat stat) { return wire.side(kB).stats().sum(stat); }

    /// A datagram to B as its peer would send it.
    PacketHeader header() {
        return {.opcode = opcode_of(QpType::kUd, Kind::kSend, Part::kOnly, Ext::kNone),
                .dest_qpn = kUdEndpointQpn,
                .qkey = kUdEndpointQkey,
                .src_qpn = kUdEndpointQpn};
    }
    void deliver(const PacketHeader& header, std::size_t cut = 0) {
        std::array<std::byte, kMaxHeaderBytes + 8> bytes{};
        const std::size_t size = encode(header, bytes.data()) + 8;
        deliver_packet(wire.side(kB), wire.side(kA).address(), wire.side(kB).address(),
                       std::span(bytes).first(size - cut));
    }
    /// Nothing that came before has done anything: the receive is still there.
    void next_is_good() {
        RVT_ASSERT(b.is_silent());
        deliver(header());
        RVT_EQ(b.next().len, 8);
        RVT_EQ(b.receives.value(), 1);
        RVT_EQ(b.receives.errors(), 0);
    }
};

}  // namespace

Test(ud_endpoint, a_datagram_arrives_with_its_data_and_its_source) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    ends.a.memory[0] = std::byte{42};
    RVT_OK(ends.a.send(100, RdFlags::kCompletion | RdFlags::kData, 0xffff'ffff'1234'5678));
    RVT_EQ(ends.a.next().flags, kWcMsg | kWcSend);
    const Cqe received = ends.b.next();
    RVT_EQ(reinterpret_cast<std::uintptr_t>(received.op_context), 7);
    RVT_EQ(received.flags, kWcMsg | kWcRecv | kWcRemoteCqData);
    RVT_EQ(received.len, 100);
    RVT_EQ(received.data, 0x12345678);
    RVT_EQ(received.source, ends.b.peer);
    RVT_EQ(std::to_integer<int>(ends.b.memory[0]), 42);
    RVT_EQ(ends.a.sends.value(), 1);
    RVT_EQ(ends.b.receives.value(), 1);
}

Test(ud_endpoint, who_is_not_in_the_address_vector_has_no_number) {
    Ends ends;
    RVT_OK(ends.b.av.remove(ends.b.peer));
    RVT_OK(ends.b.recv(7));
    RVT_OK(ends.a.send(1));
    RVT_EQ(ends.b.next().source, kSourceNotAvailable);
}

Test(ud_endpoint, what_is_longer_than_the_buffer_is_cut_and_says_by_how_much) {
    Ends ends;
    ends.b.memory.fill(std::byte{1});
    RVT_OK(ends.b.recv(7, 10));
    RVT_OK(ends.a.send(25));
    const Cqe received = ends.b.next();
    RVT_EQ(received.status, WcStatus::kTruncated);
    RVT_EQ(received.len, 10);
    RVT_EQ(received.extra, 15);
    RVT_EQ(std::to_integer<int>(ends.b.memory[9]), 0);
    RVT_EQ(std::to_integer<int>(ends.b.memory[10]), 1);
    RVT_EQ(ends.b.receives.errors(), 1);
}

Test(ud_endpoint, a_datagram_without_a_receive_is_dropped_and_counted) {
    Ends ends;
    RVT_OK(ends.a.send(1));
    RVT_ASSERT(ends.b.is_silent());
    RVT_EQ(ends.count(Stat::kDrops), 1);
    RVT_OK(ends.b.recv(7));
    RVT_ASSERT(ends.b.is_silent());
}

Test(ud_endpoint, a_datagram_is_one_packet) {
    Ends ends;
    const std::size_t most = ends.wire.side(kA).mtu_bytes();
    RVT_EQ(ends.a.send(most + 1), EMSGSIZE);
    RVT_EQ(ends.a.send(kUdInjectBytes + 1, RdFlags::kInject), EMSGSIZE);
    RVT_OK(ends.b.recv(7));
    RVT_OK(ends.a.send(most));
    RVT_EQ(ends.b.next().len, most);
}

Test(ud_endpoint, a_datagram_is_as_large_as_the_port_takes_now) {
    Ends ends;
    const std::uint32_t most = ends.wire.side(kA).mtu_bytes();
    port_changed(ends.wire.side(kA), most / 2);
    RVT_EQ(ends.a.send(most), EMSGSIZE);
    RVT_OK(ends.b.recv(7));
    RVT_OK(ends.a.send(most / 2));
    RVT_EQ(ends.b.next().len, most / 2);
    port_changed(ends.wire.side(kA), most);
    RVT_OK(ends.a.send(most));
}

// ---- memory of devices ----

Test(ud_endpoint, memory_is_filled_and_let_go_before_the_completion) {
    Ends ends;
    CountedUse read;
    CountedUse filled;
    RVT_OK(ends.b.recv(7, 200, &filled));
    RVT_EQ(filled.releases, 0);
    RVT_OK(ends.a.send(100, RdFlags::kCompletion, 0, &read));
    RVT_EQ(ends.b.next().len, 100);
    RVT_EQ(filled.filled_end, 100);
    RVT_EQ(filled.releases, 1);
    ends.a.next();
    RVT_EQ(read.fills, 0);
    RVT_EQ(read.releases, 1);
}

Test(ud_endpoint, of_a_datagram_that_is_cut_what_fits_is_filled) {
    Ends ends;
    CountedUse filled;
    RVT_OK(ends.b.recv(7, 30, &filled));
    RVT_OK(ends.a.send(100));
    const Cqe received = ends.b.next();
    RVT_EQ(received.status, WcStatus::kTruncated);
    RVT_EQ(received.extra, 70);
    RVT_EQ(filled.filled_end, 30);
    RVT_EQ(filled.releases, 1);
}

Test(ud_endpoint, what_cannot_be_had_to_its_memory_is_an_error) {
    Ends ends;
    for (const std::size_t room : {200, 30}) {
        CountedUse filled;
        filled.outcome = EIO;
        RVT_OK(ends.b.recv(7, room, &filled));
        RVT_OK(ends.a.send(100));
        const Cqe received = ends.b.next();
        RVT_EQ(received.status, WcStatus::kGeneralErr);
        RVT_EQ(received.extra, 0);
        RVT_EQ(filled.releases, 1);
    }
    RVT_EQ(ends.b.receives.errors(), 2);
}

Test(ud_endpoint, a_receive_that_is_taken_back_fills_nothing_and_lets_go) {
    Ends ends;
    CountedUse filled;
    RVT_OK(ends.b.recv(7, 200, &filled));
    RVT_OK(ends.b.endpoint.cancel_locked(reinterpret_cast<void*>(7)));
    RVT_EQ(ends.b.next().status, WcStatus::kCanceled);
    RVT_EQ(filled.fills, 0);
    RVT_EQ(filled.releases, 1);
}

// ---- queues ----

Test(ud_endpoint, full_queues_are_eagain_until_there_is_room) {
    Ends ends;
    for (std::size_t i = 0; i < kQueue; ++i) {
        RVT_OK(ends.b.recv(i));
    }
    RVT_EQ(ends.b.recv(9), EAGAIN);
    RVT_OK(ends.a.send(1));
    ends.b.next();
    RVT_OK(ends.b.recv(9));
}

Test(ud_endpoint, opens_after_a_failure_as_if_there_had_been_none) {
    Packets wire;
    End a{wire.side(kA), wire.side(kB)};
    End b{wire.side(kB), wire.side(kA), true};
    for (std::size_t i = 1; i <= kQueue; ++i) {
        RVT_OK(b.recv(i));
    }
    RVT_EQ(b.recv(99), EAGAIN);
    RVT_OK(a.send(1));
    RVT_ASSERT(b.next().op_context == reinterpret_cast<void*>(1));
}

Test(ud_endpoint, what_finds_no_room_leaves_later_though_nothing_has_come_for_long, .timeout = 30) {
    Ends ends;
    while (ends.a.endpoint.is_hot()) {
        ends.a.endpoint.poll_locked();
        fake_now_us += 1000;
    }
    std::uint64_t sent = 0;
    for (; ends.a.sends.value() == sent; ++sent) {
        RVT_OK(ends.a.send(8, RdFlags::kNone));
    }
    ends.b.endpoint.poll_locked();  // takes what is on the wire
    for (int i = 0; i < 100; ++i) {
        ends.a.endpoint.progress_locked();
    }
    RVT_EQ(ends.a.sends.value(), sent);
}

Test(ud_endpoint, a_queue_that_nobody_reads_takes_no_more_sends) {
    Ends ends;
    Status sent;
    for (int i = 0; i < 64 && sent.is_ok(); ++i) {
        sent = ends.a.send(1);
    }
    RVT_EQ(sent, EAGAIN);
    while (!ends.a.cq->is_empty()) {
        ends.a.cq->pop();
    }
    RVT_OK(ends.a.send(1));
}

Test(ud_endpoint, a_receive_that_is_cancelled_completes_so) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    RVT_OK(ends.b.recv(8));
    RVT_OK(ends.b.endpoint.cancel_locked(reinterpret_cast<void*>(std::uintptr_t{7})));
    RVT_EQ(ends.b.endpoint.cancel_locked(reinterpret_cast<void*>(std::uintptr_t{7})), ENOENT);
    const Cqe cancelled = ends.b.next();
    RVT_EQ(cancelled.status, WcStatus::kCanceled);
    RVT_EQ(reinterpret_cast<std::uintptr_t>(cancelled.op_context), 7);
    RVT_OK(ends.a.send(1));
    RVT_EQ(reinterpret_cast<std::uintptr_t>(ends.b.next().op_context), 8);
}

Test(ud_endpoint, a_number_that_was_removed_is_no_destination) {
    Ends ends;
    RVT_OK(ends.a.send(1));
    RVT_OK(ends.a.av.remove(ends.a.peer));
    ends.a.endpoint.forget_locked(ends.a.peer, to_sock_addr(ends.wire.side(kB).address()));
    RVT_EQ(ends.a.send(1), EINVAL);
    RVT_EQ(ends.a.av.insert(to_sock_addr(ends.wire.side(kB).address())).value(), ends.a.peer);
    RVT_OK(ends.a.send(1));
}

Test(ud_endpoint, only_group_addresses_are_joined) {
    Ends ends;
    const auto join = [&](const char* text) {
        return ends.a.endpoint.join_locked(util::SockAddr::from_string(text).value(), true, true);
    };
    RVT_EQ(join("10.0.0.1:5"), EINVAL);
    RVT_EQ(join("[ff15::1]:5"), EINVAL);
    const std::uint64_t group = join("239.1.1.1:5").value();
    RVT_ASSERT(UdEndpoint::is_group(group));
    RVT_ASSERT(not(UdEndpoint::is_group(kSourceNotAvailable)));
    ends.a.peer = group;
    RVT_OK(ends.a.send(1));
    ends.a.endpoint.leave_locked(group);
    RVT_EQ(ends.a.send(1), EINVAL);
}

Test(ud_endpoint, one_who_only_receives_cannot_send_to_the_group) {
    Ends ends;
    const auto address = util::SockAddr::from_string("239.1.1.1:5").value();
    ends.a.peer = ends.a.endpoint.join_locked(address, false, true).value();
    RVT_EQ(ends.a.send(1), EINVAL);
    ends.a.endpoint.leave_locked(ends.a.peer);
}

Test(ud_endpoint, a_group_is_left_with_its_last_membership) {
    Ends ends;
    const auto address = util::SockAddr::from_string("239.1.1.1:5").value();
    const std::uint64_t first = ends.b.endpoint.join_locked(address, true, true).value();
    const std::uint64_t second = ends.b.endpoint.join_locked(address, false, true).value();
    ends.b.endpoint.leave_locked(first);
    ends.a.peer = ends.a.endpoint.join_locked(address, true, false).value();
    RVT_OK(ends.b.recv(7));
    RVT_OK(ends.a.send(1));
    RVT_EQ(ends.b.next().len, 1);
    ends.b.endpoint.leave_locked(second);
    RVT_OK(ends.b.recv(8));
    RVT_OK(ends.a.send(1));
    RVT_ASSERT(ends.b.is_silent());
    ends.a.endpoint.leave_locked(ends.a.peer);
}

Test(ud_endpoint, a_packet_with_the_wrong_qkey_is_dropped_and_counted) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    PacketHeader header = ends.header();
    header.qkey ^= 1;
    ends.deliver(header);
    RVT_EQ(ends.count(Stat::kDrops), 1);
    ends.next_is_good();
}

Test(ud_endpoint, a_packet_to_another_pair_is_dropped_and_counted) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    PacketHeader header = ends.header();
    for (const std::uint32_t qpn : {kUdEndpointQpn + 1, kUdEndpointQpn + 64, 1u, 2u}) {
        header.dest_qpn = qpn;
        ends.deliver(header);
    }
    // Of a group that nobody has joined, or a probe of the way: not even counted.
    for (const std::uint32_t qpn : {kMulticastQpn, kProbeQpn}) {
        header.dest_qpn = qpn;
        ends.deliver(header);
    }
    RVT_EQ(ends.count(Stat::kDrops), 4);
    ends.next_is_good();
}

Test(ud_endpoint, a_packet_that_is_cut_or_of_another_service_is_dropped_and_counted) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    for (const std::size_t cut : {9u, 20u, 27u}) {
        ends.deliver(ends.header(), cut);
    }
    RVT_EQ(ends.count(Stat::kBadPackets), 3);
    PacketHeader header = ends.header();
    header.opcode = opcode_of(QpType::kRc, Kind::kSend, Part::kOnly, Ext::kNone);
    ends.deliver(header);
    RVT_EQ(ends.count(Stat::kDrops), 1);
    ends.next_is_good();
}

Test(ud_endpoint, a_packet_longer_than_any_datagram_is_dropped_and_counted) {
    Ends ends;
    RVT_OK(ends.b.recv(7));
    std::array<std::byte, kMaxHeaderBytes + 4096> bytes{};
    const std::size_t size = encode(ends.header(), bytes.data()) + 2048;
    deliver_packet(ends.wire.side(kB), ends.wire.side(kA).address(), ends.wire.side(kB).address(),
                   std::span(bytes).first(size));
    RVT_EQ(ends.count(Stat::kDrops), 1);
    ends.next_is_good();
}
