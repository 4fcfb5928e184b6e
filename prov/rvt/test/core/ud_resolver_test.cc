// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A datagram endpoint at a port that is shared, with a peer that knows messages alone: how pairs
// are asked for, and what becomes of the datagrams meanwhile.
#include "core/ud_resolver.h"

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "conform/fixture.h"
#include "core/addresses.h"
#include "core/cm_rc_port.h"
#include "core/ud_endpoint.h"
#include "protocol/headers.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

using protocol::CmSidrRep;
using protocol::CmSidrReq;
using protocol::PortSpace;
using protocol::SidrStatus;

constexpr std::uint16_t kOwn = 40000;
constexpr std::uint16_t kService = 7471;
constexpr std::uint32_t kPeerQpn = 0x1234;
constexpr std::uint32_t kPeerQkey = 0x7654321;
constexpr std::size_t kQueue = 128;
constexpr std::uint32_t kTimeoutMs = 3000;
constexpr int kPatience = 2000;

/// Two devices at the same UDP port of two addresses.
class Hosts {
  public:
    Hosts() {
        for (const int i : {kA, kB}) {
            const auto host = static_cast<std::uint8_t>(1 + i);
            RVT_OK(wire_.attach(
                registry_, ports_[i],
                {.name = i == kA ? "a" : "b",
                 .grade = Grade::kPacket,
                 .address = {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host},
                             .port = 4791},
                 .limits = {.max_qp = 64, .max_mr = 255},
                 .payload_bytes = 256,
                 .now_us = fake_now}));
        }
    }
    ~Hosts() {
        for (fake::Port& port : ports_) {
            wire_.detach(port);
        }
    }
    Hosts(const Hosts&) = delete;
    Hosts& operator=(const Hosts&) = delete;
    Device& side(int i) { return *ports_[i].device; }

  private:
    Registry registry_;
    fake::Wire wire_;
    std::array<fake::Port, 2> ports_;
};

class TestHost final : public UdHost, public UdSharing {
  public:
    TestHost(RcPort& port, std::uint16_t service) : port_(port), service_(service) {}
    Device& device() noexcept override { return port_.device(); }
    util::SockAddr address() const noexcept override {
        util::SockAddr name = to_sock_addr(port_.device().address());
        name.port = service_;
        return name;
    }
    UdSharing* sharing() noexcept override { return this; }
    void leave_to_host() noexcept override {}
    Status start() override { return kOk; }
    void stop() noexcept override {}
    UdServices& services() noexcept override { return *port_.datagrams(); }
    void poll() noexcept override { port_.poll(); }
    Status arm() noexcept override { return kOk; }
    int wake_fd() const noexcept override { return -1; }
    Status watch(int /*fd*/) noexcept override { return kOk; }
    void expect_traffic() noexcept override { port_.expect_traffic(); }

  private:
    RcPort& port_;
    const std::uint16_t service_;
};

/// An endpoint that counts no datagram twice: context i is the i-th.
struct End {
    std::unique_ptr<Cq> cq = Cq::create(256).take();
    AddressVector av;
    std::array<std::byte, 64> memory{};
    UdEndpoint endpoint{{.tx_size = kQueue, .rx_size = kQueue, .reports_source = true}};

    End(RcPort& port, std::uint16_t service) {
        endpoint.bind({.tx_cq = cq.get(), .rx_cq = cq.get(), .send = nullptr, .recv = nullptr},
                      &av);
        RVT_OK(endpoint.open(std::make_unique<TestHost>(port, service)));
    }
    std::uint64_t know(Address host, std::uint16_t service) {
        host.port = service;
        return av.insert(to_sock_addr(host)).value();
    }
    Status send(std::uint64_t dest, std::uintptr_t context = 0,
                RdFlags flags = RdFlags::kCompletion) {
        const iovec one{.iov_base = memory.data(), .iov_len = 8};
        return endpoint.send_locked({.iov = &one,
                                     .iov_count = 1,
                                     .dest = dest,
                                     .context = reinterpret_cast<void*>(context),
                                     .flags = flags});
    }
    Status recv() {
        const iovec one{.iov_base = memory.data(), .iov_len = memory.size()};
        return endpoint.recv_locked(
            {.iov = &one, .iov_count = 1, .context = this, .flags = RdFlags::kCompletion});
    }
    std::optional<Cqe> poll() {
        endpoint.poll_locked();
        if (cq->is_empty()) {
            return std::nullopt;
        }
        const Cqe cqe = *cq->front();
        cq->pop();
        return cqe;
    }
};

/// The peer's device, all of whose messages and datagrams a test sees.
struct Stranger final : MadSink {
    Device& device;
    Device& peer;
    Side side;
    std::vector<protocol::CmMad> mads;

    Stranger(Device& on, Device& to) : device(on), peer(to), side(on, {.type = QpType::kUd}) {
        device.set_mad_sink(this);
    }
    ~Stranger() { device.set_mad_sink(nullptr); }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    void take_mad(const Address& /*source*/,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override {
        mads.push_back(protocol::decode_cm(mad).value());
    }
    void peer_refused(const Address& /*peer*/, std::uint32_t /*qpn*/) noexcept override {}
    void say(const protocol::CmMessage& message) {
        std::array<std::byte, protocol::kMadBytes> mad;
        protocol::encode_cm({.transaction_id = 5, .message = message}, mad);
        core::send_mad(device, peer.address(), mad);
    }
    template <class Message>
    std::vector<Message> heard() const {
        std::vector<Message> all;
        for (const protocol::CmMad& mad : mads) {
            if (const auto* const one = std::get_if<Message>(&mad.message)) {
                all.push_back(*one);
            }
        }
        return all;
    }
};

struct World {
    Hosts net;
    std::atomic<bool> is_hot{false};
    CmRcPort port{{.device = &net.side(kA),
                   .data = RcData::kPlain,
                   .connect_timeout_ms = kTimeoutMs,
                   .is_hot = &is_hot}};
    std::optional<End> end{std::in_place, port, kOwn};
    Stranger stranger{net.side(kB), net.side(kA)};
    std::uint64_t dest = end->know(net.side(kB).address(), kService);
    std::vector<Cqe> done;

    ~World() { end.reset(); }
    World() = default;
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    void step(std::uint64_t us) {
        fake_now_us += us;
        if (end.has_value()) {
            while (const auto cqe = end->poll()) {
                done.push_back(*cqe);
            }
        } else {
            port.poll();
        }
        stranger.device.progress();
    }
    template <class Done>
    void await(Done is_done, std::uint64_t us = 5) {
        for (int i = 0; i < kPatience && !is_done(); ++i) {
            step(us);
        }
        RVT_ASSERT(is_done());
    }
    void pass(std::uint64_t ms) {
        for (std::uint64_t i = 0; i < ms; ++i) {
            step(1000);
        }
    }
    std::vector<CmSidrReq> questions() const { return stranger.heard<CmSidrReq>(); }
    CmSidrReq await_question(std::size_t count = 1) {
        await([&] { return questions().size() >= count; });
        return questions().back();
    }
    void answer(const CmSidrReq& question, std::uint32_t qpn = kPeerQpn) {
        stranger.say(CmSidrRep{.request_id = question.request_id,
                               .qpn = qpn,
                               .service_id = question.service_id,
                               .qkey = kPeerQkey});
    }
    void refuse(const CmSidrReq& question) {
        stranger.say(CmSidrRep{.request_id = question.request_id,
                               .status = SidrStatus::kInvalidServiceId,
                               .service_id = question.service_id});
    }
    /// Whose pair is known.
    void make_known() {
        RVT_OK(end->send(dest));
        answer(await_question());
        await([&] { return done.size() == 1; });
        RVT_EQ(done[0].status, WcStatus::kSuccess);
        done.clear();
        stranger.mads.clear();
    }
    /// What the peer's question is answered with.
    CmSidrRep ask(std::uint64_t service_id, std::uint32_t id = 77) {
        CmSidrReq question{.request_id = id, .service_id = service_id};
        protocol::encode_ip_cm(
            {.source_port = 9,
             .source = stranger.device.address().gid,
             .dest = stranger.peer.address().gid},
            std::span(question.private_data).first<protocol::kIpCmHeaderBytes>());
        return ask(question);
    }
    CmSidrRep ask(const CmSidrReq& question) {
        const std::size_t before = stranger.heard<CmSidrRep>().size();
        stranger.say(question);
        await([&] { return stranger.heard<CmSidrRep>().size() > before; });
        return stranger.heard<CmSidrRep>().back();
    }
    std::uint64_t drops() { return net.side(kB).stats().sum(Stat::kDrops); }
};

std::uint64_t id_of(std::uint16_t service, PortSpace space = PortSpace::kUdp) {
    return protocol::ip_service_id(space, service);
}

}  // namespace

// ---- answers ----

Test(ud_resolver, a_question_is_answered_with_the_pair_each_time) {
    World world;
    for (int i = 0; i < 2; ++i) {
        const CmSidrRep answer = world.ask(id_of(kOwn));
        RVT_EQ(answer.request_id, 77);
        RVT_EQ(answer.status, SidrStatus::kOk);
        RVT_EQ(answer.qkey, kUdEndpointQkey);
        RVT_ASSERT(world.net.side(kA).qps().find(answer.qpn) != nullptr);
    }
}

Test(ud_resolver, a_number_that_nobody_has_is_an_invalid_service) {
    World world;
    const CmSidrRep answer = world.ask(id_of(kService));
    RVT_EQ(answer.status, SidrStatus::kInvalidServiceId);
    RVT_EQ(answer.qpn, 0);
}

Test(ud_resolver, an_endpoint_that_is_closed_is_an_invalid_service) {
    World world;
    world.end.reset();
    RVT_EQ(world.ask(id_of(kOwn)).status, SidrStatus::kInvalidServiceId);
}

Test(ud_resolver, numbers_of_connections_are_others) {
    struct : RcListener {
        bool requested(const CmEvent& /*request*/,
                       std::span<const std::byte> /*data*/) noexcept override {
            RVT_ASSERT(false);
            return false;
        }
    } listener;
    World world;
    RVT_OK(world.port.listen(kOwn, listener));
    RVT_OK(world.port.listen(kService, listener));
    RVT_EQ(world.ask(id_of(kOwn)).status, SidrStatus::kOk);
    RVT_EQ(world.ask(id_of(kService, PortSpace::kTcp), 78).status, SidrStatus::kInvalidServiceId);
    protocol::CmReq call{.local_comm_id = 1, .service_id = id_of(kOwn), .qpn = 5, .path_mtu = 1};
    call.primary.local_gid = world.stranger.device.address().gid;
    call.primary.remote_gid = world.stranger.peer.address().gid;
    protocol::encode_ip_cm({.source = call.primary.local_gid, .dest = call.primary.remote_gid},
                           std::span(call.private_data).first<protocol::kIpCmHeaderBytes>());
    world.stranger.say(call);
    world.await([&] { return !world.stranger.heard<protocol::CmRej>().empty(); });
    RVT_EQ(world.stranger.heard<protocol::CmRej>()[0].reason,
           protocol::CmRejectReason::kInvalidServiceId);
}

Test(ud_resolver, a_question_that_says_not_who_asks_is_refused) {
    World world;
    CmSidrReq question{.request_id = 1, .service_id = id_of(kOwn)};
    question.private_data[1] = std::byte{0x50};
    RVT_EQ(world.ask(question).status, SidrStatus::kRejected);
    question.request_id = 2;
    question.private_data[1] = std::byte{0x40};
    question.pkey = 0x1234;
    RVT_EQ(world.ask(question).status, SidrStatus::kRejected);
}

Test(ud_resolver, a_number_is_served_once) {
    World world;
    UdEndpoint second{{.tx_size = 1, .rx_size = 1, .reports_source = false}};
    RVT_EQ(second.open(std::make_unique<TestHost>(world.port, kOwn)), EADDRINUSE);
    RVT_EQ(world.ask(id_of(kOwn)).status, SidrStatus::kOk);
}

// ---- questions ----

Test(ud_resolver, the_first_datagram_asks_for_the_service_and_says_who_asks) {
    World world;
    RVT_OK(world.end->send(world.dest));
    const CmSidrReq question = world.await_question();
    RVT_EQ(question.service_id, 0x0000000001110000u | kService);
    RVT_EQ(question.pkey, 0xffff);
    const auto who = protocol::decode_ip_cm(
        std::span(std::as_const(question.private_data)).first<protocol::kIpCmHeaderBytes>());
    RVT_EQ(who.value().source_port, kOwn);
    RVT_ASSERT(who.value().source == world.net.side(kA).address().gid);
    RVT_ASSERT(who.value().dest == world.net.side(kB).address().gid);
}

Test(ud_resolver, what_waits_leaves_with_the_answer_and_later_ones_at_once) {
    World world;
    for (std::uintptr_t i = 0; i < 3; ++i) {
        RVT_OK(world.end->send(world.dest, i));
    }
    world.answer(world.await_question());
    world.await([&] { return world.done.size() == 3; });
    for (std::uintptr_t i = 0; i < 3; ++i) {
        RVT_EQ(world.done[i].status, WcStatus::kSuccess);
        RVT_EQ(reinterpret_cast<std::uintptr_t>(world.done[i].op_context), i);
    }
    RVT_OK(world.end->send(world.dest, 3));
    world.await([&] { return world.done.size() == 4; });
    world.await([&] { return world.drops() == 4; });  // the pair is not there
    RVT_EQ(world.questions().size(), 1);
}

Test(ud_resolver, datagrams_have_the_pair_and_the_key_of_the_answer) {
    Hosts net;
    std::atomic<bool> is_hot{false};
    CmRcPort one{{.device = &net.side(kA), .data = RcData::kPlain, .is_hot = &is_hot}};
    CmRcPort other{{.device = &net.side(kB), .data = RcData::kPlain, .is_hot = &is_hot}};
    End a(one, kOwn);
    End b(other, kService);
    End also(other, kService + 1);
    const auto exchange = [&](End& from, std::uint64_t dest, End& to) {
        RVT_OK(to.recv());
        RVT_OK(from.send(dest, 0, RdFlags::kNone));
        std::optional<Cqe> got;
        for (int i = 0; i < kPatience && !got.has_value(); ++i) {
            fake_now_us += 5;
            from.poll();
            got = to.poll();
        }
        RVT_ASSERT(got.has_value());
        RVT_ASSERT(got->op_context == &to);
        return got->source;
    };
    const std::uint64_t b_of_a = a.know(net.side(kB).address(), kService);
    const std::uint64_t also_of_a = a.know(net.side(kB).address(), kService + 1);
    const std::uint64_t a_of_b = b.know(net.side(kA).address(), kOwn);
    // Who has not been asked for cannot be told by his pair.
    RVT_EQ(exchange(a, b_of_a, b), kSourceNotAvailable);
    RVT_EQ(exchange(b, a_of_b, a), b_of_a);
    RVT_EQ(exchange(a, b_of_a, b), a_of_b);
    RVT_EQ(exchange(a, also_of_a, also), kSourceNotAvailable);
}

Test(ud_resolver, what_is_injected_is_kept_as_it_was) {
    Hosts net;
    std::atomic<bool> is_hot{false};
    CmRcPort port{{.device = &net.side(kA), .data = RcData::kPlain, .is_hot = &is_hot}};
    End a(port, kOwn);
    End b(port, kService);
    RVT_OK(b.recv());
    a.memory[0] = std::byte{7};
    RVT_OK(a.send(a.know(net.side(kA).address(), kService), 0, RdFlags::kInject));
    a.memory[0] = std::byte{8};
    for (int i = 0; i < kPatience && b.cq->is_empty(); ++i) {
        a.endpoint.poll_locked();
        b.endpoint.poll_locked();
    }
    RVT_EQ(b.cq->is_empty(), false);
    RVT_EQ(std::to_integer<int>(b.memory[0]), 7);
    RVT_EQ(a.cq->is_empty(), true);
}

Test(ud_resolver, questions_are_repeated_more_and_more_slowly) {
    World world;
    RVT_OK(world.end->send(world.dest));
    std::vector<std::uint64_t> when;
    for (std::uint64_t ms = 0; ms < kTimeoutMs - 100; ++ms) {
        world.step(1000);
        if (world.questions().size() > when.size()) {
            when.push_back(ms);
        }
    }
    RVT_ASSERT(when.size() >= 5);
    RVT_ASSERT(when[4] - when[3] > 2 * (when[2] - when[1]));
    const CmSidrReq last = world.questions().back();
    RVT_ASSERT(last == world.questions().front());
    world.answer(last);
    world.await([&] { return world.done.size() == 1; });
    RVT_EQ(world.done[0].status, WcStatus::kSuccess);
}

Test(ud_resolver, without_an_answer_they_end_and_the_next_one_asks_again) {
    World world;
    RVT_OK(world.end->send(world.dest, 3));
    world.pass(kTimeoutMs + 50);
    RVT_EQ(world.done.size(), 1);
    RVT_EQ(world.done[0].status, WcStatus::kRetryExcErr);
    RVT_EQ(reinterpret_cast<std::uintptr_t>(world.done[0].op_context), 3);
    const std::size_t before = world.questions().size();
    RVT_OK(world.end->send(world.dest));
    world.answer(world.await_question(before + 1));
    world.await([&] { return world.done.size() == 2; });
    RVT_EQ(world.done[1].status, WcStatus::kSuccess);
}

Test(ud_resolver, a_refusal_ends_them_and_the_next_one_asks_again) {
    World world;
    RVT_OK(world.end->send(world.dest));
    world.refuse(world.await_question());
    world.await([&] { return world.done.size() == 1; });
    RVT_EQ(world.done[0].status, WcStatus::kPeerUnreachable);
    RVT_OK(world.end->send(world.dest));
    world.answer(world.await_question(2));
    world.await([&] { return world.done.size() == 2; });
    RVT_EQ(world.done[1].status, WcStatus::kSuccess);
}

Test(ud_resolver, word_that_nobody_has_the_udp_port_ends_them) {
    World world;
    RVT_OK(world.end->send(world.dest));
    world.await_question();
    peer_refused(world.net.side(kA), world.net.side(kB).address(), protocol::kGsiQpn);
    world.await([&] { return world.done.size() == 1; });
    RVT_EQ(world.done[0].status, WcStatus::kPeerUnreachable);
}

Test(ud_resolver, as_many_as_are_kept_for_one_peer_leave_room_for_others) {
    World world;
    const std::uint64_t other = world.end->know(world.net.side(kB).address(), kService + 1);
    const std::uint64_t third = world.end->know(world.net.side(kB).address(), kService + 2);
    for (std::uintptr_t i = 0; i < UdResolver::kMostKept; ++i) {
        RVT_OK(world.end->send(world.dest, i));
    }
    RVT_EQ(world.end->send(world.dest), EAGAIN);
    for (std::size_t i = UdResolver::kMostKept; i < kQueue; ++i) {
        RVT_OK(world.end->send(other));
    }
    RVT_EQ(world.end->send(third), EAGAIN);
    for (const CmSidrReq& question : (world.await_question(2), world.questions())) {
        if (question.service_id == id_of(kService)) {
            world.answer(question);
        }
    }
    world.await([&] { return world.done.size() == UdResolver::kMostKept; });
    RVT_OK(world.end->send(third));
    RVT_OK(world.end->send(world.dest));
}

Test(ud_resolver, those_to_a_number_that_is_removed_are_cancelled) {
    World world;
    RVT_OK(world.end->send(world.dest, 3));
    const util::SockAddr address = *world.end->av.at(world.dest);
    RVT_OK(world.end->av.remove(world.dest));
    world.end->endpoint.forget_locked(world.dest, address);
    world.await([&] { return world.done.size() == 1; });
    RVT_EQ(world.done[0].status, WcStatus::kCanceled);
    world.answer(world.await_question());
    world.pass(5);
    RVT_EQ(world.done.size(), 1);
    RVT_EQ(world.drops(), 0);
}

Test(ud_resolver, an_endpoint_that_closes_asks_no_more) {
    World world;
    RVT_OK(world.end->send(world.dest));
    world.await_question();
    world.end.reset();
    world.pass(kTimeoutMs);
    RVT_EQ(world.questions().size(), 1);
}

// ---- peers that change ----

Test(ud_resolver, after_some_time_it_asks_again_and_goes_where_the_last_answer_said) {
    World world;
    world.make_known();
    world.pass(UdResolver::kBelievedUs / 1000 - 100);
    RVT_OK(world.end->send(world.dest));
    world.pass(5);
    RVT_EQ(world.questions().size(), 0);
    world.pass(1200);
    RVT_OK(world.end->send(world.dest));
    world.await([&] { return world.done.size() == 2; });
    world.answer(world.await_question(), kPeerQpn + 1);
    world.pass(5);
    const std::uint64_t before = world.drops();
    RVT_EQ(before, 3);  // at the pair that is gone
    world.stranger.mads.clear();
    RVT_OK(world.end->send(world.dest));
    world.await([&] { return world.drops() == before + 1; });
    RVT_EQ(world.questions().size(), 0);
}

Test(ud_resolver, who_has_been_found_is_not_lost_by_a_refusal_or_by_silence) {
    World world;
    world.make_known();
    for (int i = 0; i < 2; ++i) {
        world.pass(UdResolver::kBelievedUs / 1000 + 1100);
        world.done.clear();
        world.stranger.mads.clear();
        RVT_OK(world.end->send(world.dest));
        world.await_question();
        if (i == 0) {
            world.refuse(world.questions().back());
        } else {
            world.pass(kTimeoutMs + 50);
        }
        world.pass(5);
        RVT_OK(world.end->send(world.dest));
        world.await([&] { return world.done.size() == 2; });
        RVT_EQ(world.done[1].status, WcStatus::kSuccess);
    }
}

Test(ud_resolver, who_is_heard_of_is_not_asked_again) {
    World world;
    world.make_known();
    const std::uint32_t qpn = world.ask(id_of(kOwn)).qpn;
    world.stranger.mads.clear();
    const protocol::PacketHeader header{.opcode = protocol::Opcode::kUdSendOnly,
                                        .dest_qpn = qpn,
                                        .qkey = kUdEndpointQkey,
                                        .src_qpn = kPeerQpn};
    std::array<std::byte, protocol::kMaxHeaderBytes + 8> bytes{};
    const std::size_t size = encode(header, bytes.data()) + 8;
    for (int i = 0; i < 8; ++i) {
        RVT_OK(world.end->recv());
        deliver_packet(world.net.side(kA), world.net.side(kB).address(),
                       world.net.side(kA).address(), std::span(bytes).first(size));
        world.pass(1000);
        RVT_EQ(world.done.back().source, world.dest);
        RVT_OK(world.end->send(world.dest));
    }
    world.pass(5);
    RVT_EQ(world.questions().size(), 0);
}

Test(ud_resolver, word_that_the_udp_port_is_gone_makes_the_next_one_ask) {
    World world;
    world.make_known();
    peer_refused(world.net.side(kA), world.net.side(kB).address(), kPeerQpn + 1);  // of another
    world.pass(5);
    RVT_OK(world.end->send(world.dest));
    world.pass(5);
    RVT_EQ(world.questions().size(), 0);
    peer_refused(world.net.side(kA), world.net.side(kB).address(), kPeerQpn);
    world.pass(5);
    RVT_OK(world.end->send(world.dest));
    world.await_question();
}

// ---- answers that nobody has asked for ----

Test(ud_resolver, an_answer_counts_once_and_to_its_question_alone) {
    World world;
    RVT_OK(world.end->send(world.dest));
    CmSidrReq question = world.await_question();
    question.request_id ^= 1;
    world.answer(question);
    world.pass(5);
    RVT_EQ(world.done.size(), 0);
    question.request_id ^= 1;
    world.answer(question);
    world.await([&] { return world.done.size() == 1; });
    world.refuse(question);
    world.answer(question, kPeerQpn + 1);
    world.pass(5);
    peer_refused(world.net.side(kA), world.net.side(kB).address(), kPeerQpn + 1);
    RVT_OK(world.end->send(world.dest));
    world.pass(5);
    RVT_EQ(world.questions().size(), 1);
}

Test(ud_resolver, an_answer_with_a_pair_that_cannot_be_is_none) {
    World world;
    RVT_OK(world.end->send(world.dest));
    const CmSidrReq question = world.await_question();
    for (const std::uint32_t qpn : {0u, 1u, 0xffffffu}) {
        world.answer(question, qpn);
    }
    world.pass(5);
    RVT_EQ(world.done.size(), 0);
    world.answer(question);
    world.await([&] { return world.done.size() == 1; });
    RVT_EQ(world.done[0].status, WcStatus::kSuccess);
}
