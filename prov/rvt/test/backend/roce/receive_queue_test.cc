// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How two devices on the loopback interface take in what arrives: packets one by one while small
// ones come alone, joined by the kernel otherwise. Nothing is lost where one becomes the other.
#include "conform/fixture.h"

#include <utility>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

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

    /// Whether the kernel joins packets for B.
    bool are_joined() {
        int joins = 0;
        socklen_t length = sizeof joins;
        const int fd = pair_.backend().packet_device(kB).wire_fd();
        RVT_EQ(getsockopt(fd, IPPROTO_UDP, UDP_GRO, &joins, &length), 0);
        return joins != 0;
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

Test(roce_receive, small_packets_that_come_alone_are_taken_one_by_one, .timeout = 30) {
    Stream stream;
    RVT_ASSERT(stream.are_joined());
    stream.send_small_ones();
    RVT_ASSERT(not(stream.are_joined()));
    RVT_ASSERT(stream.is_clean());
}

Test(roce_receive, a_long_message_is_joined_again, .timeout = 30) {
    Stream stream;
    for (int i = 0; i < 3; ++i) {
        stream.send_small_ones();
        stream.send(kLongBytes);
        RVT_ASSERT(stream.are_joined());
        stream.send(kLongBytes);
    }
    RVT_ASSERT(stream.is_clean());
}

Test(roce_receive, small_packets_that_come_together_are_joined_again, .timeout = 30) {
    Stream stream;
    stream.send_small_ones();
    stream.send_small_ones_at_once(50);
    RVT_ASSERT(stream.are_joined());
    RVT_ASSERT(stream.is_clean());
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
