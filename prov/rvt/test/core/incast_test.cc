// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Many senders and one receiver behind a switch whose queue is short, or that loses packets: what
// flows, and what connected pairs of applications, get of its link. Time is the switch's.
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <queue>
#include <random>
#include <span>
#include <vector>

#include "conform/fixture.h"
#include "core/early_packets.h"
#include "core/early_room.h"
#include "core/flow_host.h"
#include "core/plain_flow_user.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using rvt::test::host_address;
using rvt::test::now_us;

namespace {

constexpr std::uint32_t kPayloadBytes = 1024;
constexpr std::size_t kFramingBytes = 66;  // IP, UDP, ICRC and Ethernet, of each packet
constexpr std::size_t kMessageBytes = 40'000;
constexpr std::uint8_t kReceiver = 1;
constexpr std::uint64_t kWarmUs = 10'000;
constexpr std::uint64_t kMeasuredUs = 40'000;

struct Packet {
    double at_us = 0;  // where it is next
    std::uint64_t number = 0;
    std::uint8_t from = 0;
    std::uint8_t to = 0;
    std::vector<std::byte> bytes{};

    bool operator<(const Packet& other) const {  // for a queue that gives the latest first
        return at_us != other.at_us ? at_us > other.at_us : number > other.number;
    }
};

struct SwitchAttr {
    double bytes_per_us;  // of each host's link
    double round_trip_us;
    std::size_t queue_packets;
    double lost = 0;  // what part of the packets, both ways
};

class Switch;

struct Port {
    Switch* net = nullptr;
    Device* device = nullptr;
    std::uint8_t number = 0;
    double free_us = 0;       // when what it has sent has left
    std::uint64_t sent = 0;   // packets
    std::uint64_t calls = 0;  // to send them
    std::deque<Packet> arriving{};
};

/// The queue towards the receiver is the only one that packets are lost in.
class Switch {
  public:
    explicit Switch(const SwitchAttr& attr) : attr_(attr) {}

    void attach(Port& port) { ports_.push_back(&port); }
    void send(Port& from, std::uint8_t to, const OutPacket& out) {
        Packet packet{.number = ++sent_, .from = from.number, .to = to};
        packet.bytes.assign(out.headers.begin(), out.headers.end());
        for (const iovec& piece : out.payload) {
            const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
            packet.bytes.insert(packet.bytes.end(), bytes, bytes + piece.iov_len);
        }
        packet.bytes.resize(packet.bytes.size() + out.pad);
        from.free_us = std::max(from.free_us, static_cast<double>(now_us)) + time_of(packet);
        if (attr_.lost != 0 && std::uniform_real_distribution<>()(random_) < attr_.lost) {
            return;
        }
        packet.at_us = from.free_us + attr_.round_trip_us / 4;
        coming_.push(std::move(packet));
    }
    void run() {
        while (!coming_.empty() && coming_.top().at_us <= static_cast<double>(now_us)) {
            Packet packet = coming_.top();
            coming_.pop();
            if (packet.to == kReceiver && !queue(packet)) {
                continue;
            }
            packet.at_us += attr_.round_trip_us / 4;
            ports_[packet.to - 1u]->arriving.push_back(std::move(packet));
        }
    }

  private:
    [[nodiscard]] double time_of(const Packet& packet) const {
        return static_cast<double>(packet.bytes.size() + kFramingBytes) / attr_.bytes_per_us;
    }
    /// Returns: whether there is room.
    bool queue(Packet& packet) {
        while (!leaving_us_.empty() && leaving_us_.front() <= packet.at_us) {
            leaving_us_.pop_front();
        }
        if (leaving_us_.size() >= attr_.queue_packets) {
            return false;
        }
        free_us_ = std::max(free_us_, packet.at_us) + time_of(packet);
        leaving_us_.push_back(free_us_);
        packet.at_us = free_us_;
        return true;
    }

    const SwitchAttr attr_;
    std::vector<Port*> ports_;
    std::priority_queue<Packet> coming_;
    std::deque<double> leaving_us_;  // of what is in the queue
    double free_us_ = 0;
    std::uint64_t sent_ = 0;
    std::mt19937 random_{1};
};

Port& port_of(Device& device) {
    return *static_cast<Port*>(device.priv());
}

unsigned deliver_due(Port& port) {
    unsigned count = 0;
    auto& arriving = port.arriving;
    for (; !arriving.empty() && arriving[0].at_us <= static_cast<double>(now_us); ++count) {
        const Packet packet = std::move(arriving[0]);
        arriving.pop_front();
        deliver_packet(*port.device, host_address(packet.from), host_address(packet.to),
                       packet.bytes);
    }
    return count;
}

constexpr BackendOps kOps = {
    .send_packets =
        [](Device& device, const AhAttr& dest, std::span<const OutPacket> packets) {
            Port& port = port_of(device);
            ++port.calls;
            port.sent += packets.size();
            for (const OutPacket& packet : packets) {
                port.net->send(port, dest.dest.gid[15], packet);
            }
            return static_cast<unsigned>(packets.size());
        },
    .poll = [](Device& device) { return deliver_due(port_of(device)); },
};

class Host {
  public:
    Host(Switch& net, std::uint8_t number) : port_{.net = &net, .number = number} {
        port_.device = registry_
                           .add_device({.name = "node",
                                        .grade = Grade::kPacket,
                                        .address = host_address(number),
                                        .payload_bytes = kPayloadBytes,
                                        .now_us = []() noexcept { return now_us; }},
                                       kOps, &port_)
                           .value();
        net.attach(port_);
    }
    /// Nobody uses its device any more.
    ~Host() { RVT_OK(registry_.remove_device(port_.device)); }
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    [[nodiscard]] Device& device() const { return *port_.device; }
    [[nodiscard]] const Port& port() const { return port_; }

  private:
    Registry registry_;
    Port port_;
};

class Node final : public test::PlainFlowUser, public RdFlowsUser {
  public:
    Node(Switch& net, std::uint8_t number) : host_(net, number) {
        flows = RdFlows::open({.device = &host_.device(),
                               .taker = this,
                               .user = this,
                               .own = {.incarnation = number},
                               .linger_silence_ms = 0,
                               .is_hot = &is_hot_})
                    .take();
    }
    ~Node() { flows.reset(); }  // those that are left do not poll any more
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    void fill() const {
        static const std::vector<std::byte> kData(kMessageBytes);
        const RdHeader header{.total = kMessageBytes, .operation = 0, .address = 0};
        const iovec run{const_cast<std::byte*>(kData.data()), kData.size()};  // only read
        while (flow->put_borrowed({.op = RdOp::kEagerFirst,
                                   .payload = reinterpret_cast<const std::byte*>(&header),
                                   .payload_bytes = sizeof header},
                                  run, false)) {
        }
    }

    void take_message(void*, const RdMessage& message) noexcept override {
        received += message.length;
    }
    void take_malformed(void*) noexcept override { cr_fatal("a frame made no sense"); }
    bool is_idle(void*) noexcept override { return false; }
    void flow_opened(RdFlow& opened) noexcept override {
        flow = &opened;
        opened.start(this);
    }
    void connect_failed(const Address&, int error) noexcept override {
        cr_fatal("no connection: %d", error);
    }
    void flow_ended(RdFlow&) noexcept override { cr_fatal("a flow ended"); }
    void flow_left(RdFlow& left) noexcept override { flow_ended(left); }
    void work_waits() noexcept override {}

    [[nodiscard]] const Port& port() const { return host_.port(); }

    std::unique_ptr<RdFlows> flows;
    RdFlow* flow = nullptr;
    std::uint64_t received = 0;  // bytes

  private:
    Host host_;
    std::atomic<bool> is_hot_{false};
};

struct Measured {
    double goodput;   // what part of the receiver's link is filled with what is received once
    double sendings;  // of each packet that is received
    double packets_a_call = 0;  // that the first sender makes
    double packets_an_answer = 0;
};

template <class Senders, class Value>
double sum(const Senders& senders, Value value_of) {
    double all = 0;
    for (const auto& sender : senders) {
        all += static_cast<double>(value_of(sender));
    }
    return all;
}

template <class Sender>
std::uint64_t packets_of(const std::unique_ptr<Sender>& sender) {
    return sender->port().sent;
}

Measured measure(std::uint8_t senders, const SwitchAttr& attr) {
    Switch net(attr);
    std::vector<std::unique_ptr<Node>> nodes;
    for (std::uint8_t number = kReceiver; number <= kReceiver + senders; ++number) {
        nodes.push_back(std::make_unique<Node>(net, number));
    }
    const auto is_sender = [](const auto& node) { return node->flow != nullptr; };
    const auto turn = [&] {
        net.run();
        for (const auto& node : nodes) {
            node->flows->poll();
            if (node != nodes[0] && node->flow != nullptr) {
                node->fill();
            }
        }
        ++now_us;
    };
    for (std::size_t i = 1; i < nodes.size(); ++i) {
        nodes[i]->flows->connect(host_address(kReceiver));
    }
    while (!std::all_of(nodes.begin(), nodes.end(), is_sender)) {
        turn();
    }
    for (const std::uint64_t end_us = now_us + kWarmUs; now_us < end_us;) {
        turn();
    }
    const std::uint64_t before = nodes[0]->received;
    const double sent_before = sum(std::span(nodes).subspan(1), packets_of<Node>);
    const Port sender = nodes[1]->port();
    const Port receiver = nodes[0]->port();
    for (const std::uint64_t end_us = now_us + kMeasuredUs; now_us < end_us;) {
        turn();
    }
    const auto sent = static_cast<double>(nodes[1]->port().sent - sender.sent);
    const auto bytes = static_cast<double>(nodes[0]->received - before);
    const double all_sent = sum(std::span(nodes).subspan(1), packets_of<Node>) - sent_before;
    return {.goodput = bytes / (static_cast<double>(kMeasuredUs) * attr.bytes_per_us),
            .sendings = all_sent / (bytes / kPayloadBytes),
            .packets_a_call = sent / static_cast<double>(nodes[1]->port().calls - sender.calls),
            .packets_an_answer = sent / static_cast<double>(nodes[0]->port().sent - receiver.sent)};
}

double goodput(std::uint8_t senders, const SwitchAttr& attr) {
    return measure(senders, attr).goodput;
}

// ---- connected pairs ----

constexpr conform::Options kOfAnyKind{.timeout = 14};  // as the specification has them
constexpr conform::Op kWrite{.opcode = WrOpcode::kWrite, .bytes = kMessageBytes};
constexpr conform::Op kRead{.opcode = WrOpcode::kRead, .bytes = 5 * kMessageBytes};
constexpr conform::Options kOfRvt{.timeout = 14, .keeps_early = true};

/// A host that accesses memory of the receiver's, over a pair of its own.
class Accessor {
  public:
    static constexpr std::size_t kMost = 16;  // under way: more than a window

    Accessor(Switch& net, std::uint8_t number, const Host& receiver, const conform::Options& pairs,
             const conform::Op& access)
        : access_(access),
          host_(net, number),
          own_(host_.device(), pairs),
          other_(receiver.device(), pairs) {
        const auto move = [&](const conform::Side& side, const conform::Side& peer, QpState to) {
            RVT_OK(side.qp->modify(conform::attr_for(to, side, peer, pairs),
                                   conform::mask_for(to, QpType::kRc)));
        };
        for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
            move(own_, other_, state);
            move(other_, own_, state);
        }
    }
    void turn() {
        host_.device().progress();
        for (Wc wc; own_.send_cq->poll({&wc, 1}) == 1; ++moved) {
            RVT_EQ(wc.status, WcStatus::kSuccess);
        }
        for (; posted_ < moved + kMost; ++posted_) {
            RVT_OK(conform::post(own_, other_, access_));
        }
    }
    [[nodiscard]] const Port& port() const { return host_.port(); }

    std::uint64_t moved = 0;  // messages

  private:
    const conform::Op access_;
    Host host_;
    conform::Side own_;
    conform::Side other_;
    std::uint64_t posted_ = 0;
};

/// @param room  Bytes of the receiver's device for packets before missing ones.
Measured measure_pairs(std::uint8_t senders, const SwitchAttr& attr, const conform::Options& pairs,
                       std::size_t room = EarlyRoom::kBytes, const conform::Op& access = kWrite) {
    Switch net(attr);
    const Host receiver(net, kReceiver);
    RVT_ASSERT(receiver.device().early_room().take(EarlyRoom::kBytes - room));
    std::vector<std::unique_ptr<Accessor>> accessors;
    for (std::uint8_t i = 1; i <= senders; ++i) {
        accessors.push_back(
            std::make_unique<Accessor>(net, kReceiver + i, receiver, pairs, access));
    }
    const auto run_for = [&](std::uint64_t us) {
        for (const std::uint64_t end_us = now_us + us; now_us < end_us; ++now_us) {
            net.run();
            receiver.device().progress();
            for (const auto& accessor : accessors) {
                accessor->turn();
            }
        }
    };
    const auto moved = [](const auto& accessor) { return accessor->moved; };
    run_for(kWarmUs);
    const double moved_before = sum(accessors, moved);
    const double sent_before = sum(accessors, packets_of<Accessor>);
    run_for(kMeasuredUs);
    const double bytes = (sum(accessors, moved) - moved_before) * static_cast<double>(access.bytes);
    return {
        .goodput = bytes / (static_cast<double>(kMeasuredUs) * attr.bytes_per_us),
        .sendings = (sum(accessors, packets_of<Accessor>) - sent_before) / (bytes / kPayloadBytes)};
}

constexpr double kTenGigabit = 1250;
constexpr double kGigabit = 125;

}  // namespace

Test(incast, one_sender_fills_the_link, .timeout = 120) {
    const double part = goodput(1, {kTenGigabit, 50, 100});
    cr_assert(part > 0.9, "%.2f", part);
}
Test(incast, eight_senders_fill_most_of_a_fast_link, .timeout = 120) {
    const Measured result = measure(8, {kTenGigabit, 50, 100});
    cr_assert(result.goodput > 0.85, "%.2f", result.goodput);
    cr_assert(result.sendings < 1.4, "%.2f", result.sendings);
}
Test(incast, eight_distant_senders_fill_most_of_a_fast_link, .timeout = 120) {
    const Measured result = measure(8, {kTenGigabit, 200, 250});
    cr_assert(result.goodput > 0.85, "%.2f", result.goodput);
    cr_assert(result.sendings < 1.3, "%.2f", result.sendings);
}
// Ten times as much is under way as the queue holds.
Test(incast, eight_senders_far_away_fill_most_of_a_fast_link, .timeout = 120) {
    const double part = goodput(8, {kTenGigabit, 1000, 100});
    cr_assert(part > 0.75, "%.2f", part);
}
Test(incast, eight_senders_fill_most_of_a_slow_link, .timeout = 120) {
    const Measured result = measure(8, {kGigabit, 1000, 100});
    cr_assert(result.goodput > 0.78, "%.2f", result.goodput);
    cr_assert(result.sendings < 1.6, "%.2f", result.sendings);
}
// Each call costs a sender as much as twenty packets, and each answer both ends.
Test(incast, a_full_window_moves_in_few_pieces, .timeout = 120) {
    const Measured result = measure(1, {kTenGigabit, 50, 1000});
    cr_assert(result.goodput > 0.9, "%.2f", result.goodput);
    cr_assert(result.packets_a_call > 34, "%.1f", result.packets_a_call);
    cr_assert(result.packets_an_answer > 200, "%.1f", result.packets_an_answer);
}

// With the specification's answers: all behind a gap is sent again.
Test(incast, eight_pairs_of_any_kind_fill_most_of_a_fast_link, .timeout = 120) {
    const Measured result = measure_pairs(8, {kTenGigabit, 50, 100}, kOfAnyKind);
    cr_assert(result.goodput > 0.8, "%.2f", result.goodput);
    cr_assert(result.sendings < 1.2, "%.2f", result.sendings);
}
Test(incast, eight_pairs_fill_most_of_a_fast_link, .timeout = 120) {
    const Measured result = measure_pairs(8, {kTenGigabit, 50, 100}, kOfRvt);
    cr_assert(result.goodput > 0.85, "%.2f", result.goodput);
    cr_assert(result.sendings < 1.4, "%.2f", result.sendings);
}
Test(incast, eight_pairs_far_away_fill_most_of_a_fast_link, .timeout = 120) {
    const Measured result = measure_pairs(8, {kTenGigabit, 1000, 100}, kOfRvt);
    cr_assert(result.goodput > 0.7, "%.2f", result.goodput);
}
Test(incast, a_pair_is_little_slower_where_packets_get_lost, .timeout = 120) {
    struct Row {
        double lost;
        double least;
    };
    for (const Row& row : {Row{0.001, 0.9}, Row{0.01, 0.84}, Row{0.05, 0.8}}) {
        const Measured result = measure_pairs(1, {kTenGigabit, 50, 1000, row.lost}, kOfRvt);
        cr_assert(result.goodput > row.least, "%.3f lost: %.2f", row.lost, result.goodput);
        cr_assert(result.sendings < 1.05 + 1.1 * row.lost, "%.3f lost: %.2f", row.lost,
                  result.sendings);
    }
}

// Each request of a READ costs its responder calls of their own.
Test(incast, a_read_fills_the_link_by_few_requests, .timeout = 120) {
    const Measured result =
        measure_pairs(1, {kTenGigabit, 50, 1000}, kOfRvt, EarlyRoom::kBytes, kRead);
    cr_assert(result.goodput > 0.9, "%.2f", result.goodput);
    cr_assert(result.sendings < 0.015, "%.3f", result.sendings);
}
Test(incast, a_read_goes_on_where_packets_get_lost, .timeout = 120) {
    const Measured result =
        measure_pairs(1, {kTenGigabit, 50, 1000, 0.001}, kOfRvt, EarlyRoom::kBytes, kRead);
    cr_assert(result.goodput > 0.6, "%.2f", result.goodput);
}

// Others' pairs have taken all of it, or nearly all.
Test(incast, where_no_more_is_kept_a_pair_sends_as_where_nothing_is, .timeout = 120) {
    for (const std::size_t packets : {0, 1, 10, 100}) {
        const std::size_t room =
            packets == 0 ? 0 : EarlyPackets::kSlotsBytes + packets * kPayloadBytes;
        for (const double lost : {0.001, 0.01}) {  // of more, timers' turns are all that counts
            const SwitchAttr attr{kTenGigabit, 50, 1000, lost};
            const double without = measure_pairs(1, attr, kOfAnyKind).goodput;
            const double full = measure_pairs(1, attr, kOfRvt, room).goodput;
            cr_assert(full > 0.8 * without,
                      "%.3f of the packets lost, room for %zu: %.3f, not %.3f", lost, packets, full,
                      without);
        }
    }
}
