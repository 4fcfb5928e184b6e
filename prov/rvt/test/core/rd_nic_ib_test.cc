// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows between NICs at ports of InfiniBand: what the ends tell each other of their ports, what
// their pairs are led by, and what goes by packets. Both ends have the mock for their NIC; what
// they say of its port is the test's.
#include "core/rd_greeting.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "core/cm_agent.h"
#include "core/flow_node.h"
#include "core/mad.h"
#include "rdm_path.h"

namespace rvt::core {
namespace {

using test::FlowNode;

constexpr std::array<std::uint8_t, 16> kPortGid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0,
                                                   0,    2,    3, 4, 5, 6, 7, 8};

IbPort ib_port(std::uint16_t lid, std::uint16_t pkey = 0xffff) {
    IbPort port{.gid = kPortGid, .lid = lid, .pkey = pkey, .mtu_bytes = 4096};
    port.gid[15] = static_cast<std::uint8_t>(lid);
    return port;
}
IbPort in_other_subnet(IbPort port) {
    port.gid[7] ^= 1;
    return port;
}

/// Of each end.
std::array<Result<IbPort>, 2> ports{Result<IbPort>(ib_port(12)), Result<IbPort>(ib_port(13))};

/// Two endpoints.
struct IbNet {
    IbNet() {
        mock.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
        mock.port.state = IBV_PORT_ACTIVE;
        mock.port.lid = 12;
        mock.attr.max_cqe = 1 << 16;
        mock.gids.resize(2);
        std::memcpy(mock.gids[1].gid.raw, kPortGid.data(), kPortGid.size());
        nic = verbs::Nic::open(registry, {.device = "mock0",
                                          .port = 1,
                                          .address = {.family = AF_INET, .ip = {10, 1, 2, 3}},
                                          .gid = kPortGid,
                                          .pkey = 0xffff})
                  .take();
        a = std::make_unique<FlowNode>(wire, address(1), add<0>());
        b = std::make_unique<FlowNode>(wire, address(2), add<1>());
    }
    ~IbNet() {
        a.reset();
        b.reset();
        for (Device* const end : ends) {
            RVT_OK(registry.remove_device(end));
        }
    }
    IbNet(const IbNet&) = delete;
    IbNet& operator=(const IbNet&) = delete;

    /// The NIC as one end has it.
    template <int kEnd>
    Device* add() {
        BackendOps ops = verbs::verb_ops();
        ops.ib_port = [](Device&) { return ports[kEnd]; };
        const Device& whole = nic->device();
        ends.push_back(registry
                           .add_device({.name = kEnd == 0 ? "end-a" : "end-b",
                                        .grade = Grade::kVerb,
                                        .address = whole.address(),
                                        .limits = whole.limits(),
                                        .payload_bytes = whole.payload_bytes()},
                                       ops, nic.get())
                           .value());
        return ends.back();
    }
    [[nodiscard]] Address address(unsigned number) const {
        Address made = nic->device().address();
        made.port = static_cast<std::uint16_t>(5000 + number);
        return made;
    }
    void poll() {
        nic->take_events();
        a->poll();
        b->poll();
    }
    template <class Is>
    void until(Is is) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!is()) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            poll();
        }
    }
    /// Connects them, and has them talk.
    void connect(bool from_b = false) {
        (from_b ? b : a)->flows->connect((from_b ? a : b)->address());
        until([&] { return a->flow != nullptr && b->flow != nullptr; });
        talk();
    }
    void talk() {
        a->heard.clear();
        b->heard.clear();
        RVT_ASSERT(a->say("there"));
        RVT_ASSERT(b->say("and back"));
        until([&] { return a->heard.size() == 1 && b->heard.size() == 1; });
    }
    void end() {
        a->all.clear();
        std::exchange(a->flow, nullptr)->close();
        until([&] { return b->all.empty() && mock.pairs_left() == 0; });
    }
    /// What pairs of the NIC were told at their changes to this state.
    [[nodiscard]] std::vector<ibv_qp_attr> told(ibv_qp_state state) const {
        std::vector<ibv_qp_attr> found;
        std::ranges::copy_if(mock.modified, std::back_inserter(found),
                             [&](const ibv_qp_attr& one) { return one.qp_state == state; });
        return found;
    }

    verbs::MockNic mock;
    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    std::vector<Device*> ends;
    fake::Wire wire;
    std::unique_ptr<FlowNode> a;
    std::unique_ptr<FlowNode> b;
};

/// Between these ports all goes by packets, whichever end asks.
void packets_do(const Result<IbPort>& at_a, const Result<IbPort>& at_b) {
    for (const bool from_b : {false, true}) {
        ports = {at_a, at_b};
        IbNet net;
        net.connect(from_b);
        RVT_ASSERT(!net.a->flow->is_over_nic() && !net.b->flow->is_over_nic());
        RVT_EQ(net.a->flow->peer_lid(), 0);
        RVT_EQ(net.a->failure, 0);
        RVT_EQ(net.b->failure, 0);
        RVT_ASSERT(net.told(IBV_QPS_INIT).size() <= 1);  // who refuses a pair makes none
        RVT_EQ(net.told(IBV_QPS_RTR).size(), 0);
    }
}

}  // namespace

TestSuite(rd_nic_ib, .timeout = 60);

Test(rd_nic_ib, pairs_are_led_by_the_lids_of_their_ports) {
    IbPort at_a = ib_port(12);
    at_a.pkey_index = 3;
    IbPort at_b = ib_port(13, 0x7fff);  // a limited member
    at_b.pkey_index = 1;
    at_b.mtu_bytes = 2048;
    ports = {at_a, at_b};
    IbNet net;
    net.connect();
    RVT_ASSERT(net.a->flow->is_over_nic() && net.b->flow->is_over_nic());
    RVT_EQ(net.a->flow->peer_lid(), 13);
    RVT_EQ(net.b->flow->peer_lid(), 12);
    const auto init = net.told(IBV_QPS_INIT);
    RVT_EQ(init.size(), 2);
    RVT_EQ(init[0].pkey_index, 3);
    RVT_EQ(init[1].pkey_index, 1);
    const auto rtr = net.told(IBV_QPS_RTR);  // first of who is asked
    RVT_EQ(rtr.size(), 2);
    RVT_EQ(rtr[0].ah_attr.dlid, 12);
    RVT_EQ(rtr[1].ah_attr.dlid, 13);
    for (const ibv_qp_attr& told : rtr) {
        RVT_EQ(told.ah_attr.is_global, 0);
        RVT_EQ(told.ah_attr.grh.sgid_index, 1);
        RVT_EQ(told.ah_attr.sl, 0);
        RVT_EQ(told.ah_attr.port_num, 1);
        RVT_EQ(told.path_mtu, IBV_MTU_2048);  // the smaller one
    }
}

Test(rd_nic_ib, packets_name_gids_where_one_of_the_ports_asks_for_it) {
    IbPort at_b = ib_port(13);
    at_b.needs_grh = true;
    ports = {ib_port(12), at_b};
    IbNet net;
    net.connect();
    const auto rtr = net.told(IBV_QPS_RTR);
    RVT_EQ(rtr.size(), 2);
    for (const ibv_qp_attr& told : rtr) {
        RVT_EQ(told.ah_attr.is_global, 1);
        RVT_EQ(told.ah_attr.grh.dgid.raw[15], told.ah_attr.dlid);
        RVT_EQ(told.ah_attr.grh.dgid.raw[0], 0xfe);
    }
}

Test(rd_nic_ib, the_way_of_a_peer_says_its_lid) {
    ports = {ib_port(12), ib_port(13)};
    IbNet net;
    net.connect();
    shm::ConnectionEvent event;
    event.flow = net.a->flow;
    RdmPath path;
    path.open(event, net.a->flow);
    const std::string way = path.describe();
    cr_assert(
        way.find("InfiniBand by NIC end-a to 10.1.2.3:5002, LID 13; of its registrations") == 0,
        "%s", way.c_str());
}

Test(rd_nic_ib, a_lid_that_has_changed_is_the_next_flows) {
    ports = {ib_port(12), ib_port(13)};
    IbNet net;
    net.connect();
    net.end();
    ports[1] = ib_port(44);
    net.connect();
    RVT_EQ(net.a->flow->peer_lid(), 44);
    RVT_EQ(net.told(IBV_QPS_RTR).back().ah_attr.dlid, 44);
}

Test(rd_nic_ib, a_port_that_gets_its_lid_later_is_used_then) {
    ports = {ENETDOWN, ib_port(13)};
    IbNet net;
    net.connect();
    RVT_ASSERT(!net.a->flow->is_over_nic());
    net.a->all.clear();
    std::exchange(net.a->flow, nullptr)->close();
    net.until([&] { return net.b->all.empty(); });
    ports[0] = ib_port(12);
    net.connect();
    RVT_ASSERT(net.a->flow->is_over_nic());
}

Test(rd_nic_ib, between_subnets_packets_do) {
    packets_do(ib_port(12), in_other_subnet(ib_port(13)));
}

Test(rd_nic_ib, between_partitions_packets_do) {
    packets_do(ib_port(12), ib_port(13, 0x8005));
}

Test(rd_nic_ib, between_limited_members_packets_do) {
    packets_do(ib_port(12, 0x7fff), ib_port(13, 0x7fff));
}

// What a NIC of RoCE says of itself has not changed: the same holds for a peer that knows nothing
// of InfiniBand.
Test(rd_nic_ib, between_roce_and_infiniband_packets_do) {
    packets_do(IbPort{}, ib_port(13));
    packets_do(ib_port(12), IbPort{});
}

Test(rd_nic_ib, without_a_lid_packets_do) {
    packets_do(ENETDOWN, ib_port(13));
    packets_do(ib_port(12), EADDRNOTAVAIL);
}

// ---- a peer that reads the first part of the greeting only ----

namespace {

class FormerNicPeer final : private MadSink, private CmWire {
  public:
    FormerNicPeer(fake::Wire& wire, const Address& address) : wire_(wire) {
        RVT_OK(wire.attach(registry_, port_,
                           {.name = "former", .grade = Grade::kPacket, .address = address}));
        port_.device->set_mad_sink(this);
        CmWire& own = *this;
        agent_.emplace(CmConfig{.local = address, .ca_guid = 9, .secret = {1, 2}}, own);
        RVT_OK(agent_->listen(kRdServiceId, 0));
    }
    ~FormerNicPeer() {
        port_.device->set_mad_sink(nullptr);
        wire_.detach(port_);
        RVT_OK(registry_.remove_device(port_.device));
    }
    FormerNicPeer(const FormerNicPeer&) = delete;
    FormerNicPeer& operator=(const FormerNicPeer&) = delete;

    CmAgent& agent() { return *agent_; }
    [[nodiscard]] std::uint64_t now_us() const { return port_.device->now_us(); }
    /// The next request that comes, while the net is polled.
    CmEvent next_request(IbNet& net) {
        std::optional<CmEvent> event;
        net.until([&] {
            port_.device->progress();
            agent_->run_timers(now_us());
            event = agent_->poll_event();
            return event && event->type == CmEventType::kRequest;
        });
        return *event;
    }

  private:
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override {
        agent_->take_mad(source, mad, now_us());
    }
    void peer_refused(const Address&, std::uint32_t) noexcept override {}
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override {
        core::send_mad(*port_.device, to.dest, mad.first<protocol::kMadBytes>());
    }

    fake::Wire& wire_;
    Registry registry_;
    fake::Port port_;
    std::optional<CmAgent> agent_;
};

}  // namespace

Test(rd_nic_ib, a_peer_that_answers_without_its_port_is_asked_again_by_packets) {
    ports = {ib_port(12, 0x8005), ib_port(13)};
    IbNet net;
    FormerNicPeer former(net.wire, net.address(3));
    net.a->flows->connect(net.address(3));
    const CmEvent request = former.next_request(net);
    const RdGreeting greeting = read_greeting(request.private_data());
    RVT_EQ(greeting.version, 3);
    RVT_EQ(greeting.flags & (RdGreeting::kNic | RdGreeting::kIb), 4 + 16);
    RVT_EQ(greeting.payload_bytes, 4096);
    const auto bytes = request.private_data();
    RVT_ASSERT(std::memcmp(&bytes[24], ib_port(12).gid.data(), 16) == 0);
    constexpr std::uint8_t kRest[] = {12, 0, 0x05, 0x80, 0, 0, 0, 0};
    RVT_ASSERT(std::memcmp(&bytes[40], kRest, sizeof kRest) == 0);
    const auto answer = std::bit_cast<std::array<std::byte, sizeof(RdGreeting)>>(
        RdGreeting{.flags = RdGreeting::kNic, .payload_bytes = 4096, .incarnation = 1});
    RVT_OK(former.agent().accept(request.handle, {.own = {.qpn = 99}, .private_data = answer},
                                 former.now_us()));
    const CmEvent again = former.next_request(net);
    RVT_EQ(read_greeting(again.private_data()).flags & (RdGreeting::kNic | RdGreeting::kIb), 0);
    RVT_EQ(net.told(IBV_QPS_RTR).size(), 0);
}

// ---- the greeting ----

namespace {

std::array<std::byte, sizeof(RdGreetingMessage)> greeting_of(const IbPort& port,
                                                             std::uint8_t flags = RdGreeting::kIb) {
    return std::bit_cast<std::array<std::byte, sizeof(RdGreetingMessage)>>(
        RdGreetingMessage{.greeting = {.flags = flags}, .port = to_greeting_port(port)});
}

}  // namespace

Test(rd_nic_ib, a_port_is_read_as_it_was_written) {
    IbPort port = ib_port(0xbfff, 0x8001);
    port.needs_grh = true;
    const IbPort read = read_greeting_port(greeting_of(port));
    RVT_ASSERT(read.gid == port.gid && read.needs_grh);
    RVT_EQ(read.lid, 0xbfff);
    RVT_EQ(read.pkey, 0x8001);
}

Test(rd_nic_ib, a_greeting_that_names_no_port_or_is_too_short_has_none) {
    const auto without = greeting_of(ib_port(12), RdGreeting::kNic);
    RVT_EQ(read_greeting_port(without).lid, 0);
    const auto whole = greeting_of(ib_port(12));
    RVT_EQ(read_greeting_port(whole).lid, 12);
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        RVT_EQ(read_greeting_port(std::span(whole).first(bytes)).lid, 0);
    }
}

Test(rd_nic_ib, what_a_peer_names_is_no_way_if_it_is_no_port_of_this_subnet) {
    const IbPort own = ib_port(12);
    RVT_ASSERT(why_apart(own, ib_port(13)) == nullptr);
    RVT_ASSERT(why_apart(own, own) == nullptr);
    RVT_ASSERT(why_apart(IbPort{}, IbPort{}) == nullptr);
    for (const std::uint16_t lid : {0, 0xc000, 0xffff}) {
        RVT_ASSERT(why_apart(own, ib_port(lid)) != nullptr);
    }
    RVT_ASSERT(why_apart(IbPort{}, own) != nullptr);
    RVT_ASSERT(why_apart(own, in_other_subnet(own)) != nullptr);
    for (const std::uint16_t pkey : {0, 0x8000, 0x7ffe, 0xfffe}) {
        RVT_ASSERT(why_apart(own, ib_port(13, pkey)) != nullptr);
    }
    RVT_ASSERT(why_apart(own, ib_port(13, 0x7fff)) == nullptr);
    RVT_ASSERT(why_apart(ib_port(12, 0x7fff), ib_port(13, 0x7fff)) != nullptr);
}

}  // namespace rvt::core
