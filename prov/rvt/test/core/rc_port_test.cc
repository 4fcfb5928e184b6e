// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The connections of a port, with a peer that is none: a manager that knows messages alone.
#include "core/cm_rc_port.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conform/fixture.h"
#include "core/missed_pair.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

using protocol::CmRejectReason;

constexpr std::uint16_t kService = 18515;
constexpr std::uint16_t kCaller = 40000;
constexpr std::size_t kRequestRoom = 56;  // of librdmacm's peers
constexpr std::uint32_t kPsn = 0x471108;
constexpr int kPatience = 2000;
constexpr std::uint32_t kPatienceMs = 20'000;
constexpr std::uint64_t kOtherGuid = 7;

std::uint64_t id_of(std::uint16_t service) {
    return protocol::ip_service_id(protocol::PortSpace::kTcp, service);
}

std::string text_of(std::span<const std::byte> data) {
    return {reinterpret_cast<const char*>(data.data()), data.size()};
}
/// As a message of rdma_cm brings it.
std::string filled(std::string text, std::size_t room) {
    text.resize(room, '\0');
    return text;
}
std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

/// What is told to the owners of a port.
struct Notes final : RcUser, RcListener {
    std::optional<CmEvent> request;
    std::string data;
    bool is_connected = false;
    bool is_over = false;
    bool was_connected = false;  // when it was over
    int error = 0;
    int device_error = 0;

    bool requested(const CmEvent& event, std::span<const std::byte> with) noexcept override {
        request = event;
        data = text_of(with);
        return true;
    }
    void connected(const RcConnection& /*connection*/,
                   std::span<const std::byte> with) noexcept override {
        is_connected = true;
        data = text_of(with);
    }
    void connect_failed(int why, std::span<const std::byte> with) noexcept override {
        error = why;
        data = text_of(with);
    }
    void disconnected() noexcept override {
        is_over = true;
        was_connected = is_connected;
    }
    void device_failed(int why) noexcept override { device_error = why; }
};

/// Leaves all requests without an answer.
struct Patient final : RcListener {
    unsigned requests = 0;
    bool requested(const CmEvent& /*event*/,
                   std::span<const std::byte> /*with*/) noexcept override {
        ++requests;
        return true;
    }
};

/// The peer.
struct Stranger final : MadSink, CmWire {
    Device& device;
    Device& peer;
    CmAgent agent;
    bool is_at_any_port = false;  // its messages have no port that they could be answered at
    std::optional<std::uint32_t> missed;  // a pair that it has been told is not there
    unsigned passes_over = 0;             // so many messages, as if they were lost

    Stranger(Device& on, Device& to, std::uint64_t guid)
        : device(on),
          peer(to),
          agent({.local = on.address(), .ca_guid = guid, .secret = {1, 2}}, *this) {
        device.set_mad_sink(this);
    }
    ~Stranger() { device.set_mad_sink(nullptr); }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override {
        if (passes_over != 0) {
            --passes_over;
            return;
        }
        missed = core::read_missed(mad);
        agent.take_mad(source, mad, device.now_us());
    }
    void peer_refused(const Address& /*peer*/, std::uint32_t /*qpn*/) noexcept override {}
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override {
        const auto bytes = mad.first<protocol::kMadBytes>();
        if (is_at_any_port) {
            peer.mad_sink()->take_mad({.gid = device.address().gid, .port = 0}, bytes);
            return;
        }
        core::send_mad(device, to.dest, bytes);
    }
    CmHandle call(std::string_view data, std::uint16_t service = kService,
                  std::uint32_t qpn = 0x1234) {
        return agent
            .connect({.service_id = id_of(service),
                      .dest = {.dest = peer.address()},
                      .own = {.qpn = qpn,
                              .starting_psn = kPsn,
                              .responder_resources = 1,
                              .initiator_depth = 2},
                      .path_mtu_bytes = 256,
                      .source_port = kCaller,
                      .private_data = bytes_of(data)},
                     device.now_us())
            .value();
    }
};

struct World {
    Packets net;
    std::atomic<bool> is_hot{false};
    std::unique_ptr<CmRcPort> owned;
    CmRcPort& port;
    Side side;
    Stranger stranger;
    Notes notes;
    std::unique_ptr<RcConnection> connection;

    explicit World(RcData data = RcData::kPlain, std::uint64_t guid = kOtherGuid,
                   std::uint32_t farewell_ms = 0)
        : owned(std::make_unique<CmRcPort>(CmRcPortAttr{.device = &net.side(kA),
                                                        .data = data,
                                                        .farewell_ms = farewell_ms,
                                                        .is_hot = &is_hot})),
          port(*owned),
          side(net.side(kA), {}),
          stranger(net.side(kB), net.side(kA), guid) {
        connection = port.make(*side.pd,
                               {.type = QpType::kRc,
                                .send_cq = side.send_cq,
                                .recv_cq = side.recv_cq,
                                .cap = {.max_send_wr = 8, .max_recv_wr = 8}},
                               notes)
                         .take();
    }
    ~World() {
        if (connection != nullptr) {
            port.destroy(std::move(connection));
        }
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    template <class Done>
    void await(Done done) {
        bool is_done = done();
        for (int i = 0; i < kPatience && !is_done; ++i) {
            fake_now_us += 5;
            port.poll();
            stranger.device.progress();
            is_done = done();
        }
        RVT_ASSERT(is_done);
    }
    /// The peer's next event.
    CmEvent next(CmEventType type) {
        std::optional<CmEvent> event;
        await([&] { return (event = stranger.agent.poll_event()).has_value(); });
        RVT_EQ(event->type, type);
        return *event;
    }
    void listen_and_await_call(std::string_view data) {
        RVT_OK(port.listen(kService, notes));
        stranger.call(data);
        await([&] { return notes.request.has_value(); });
    }
    Status call(std::string_view data) {
        return port.connect(
            *connection,
            {.dest = stranger.device.address(), .service = kService, .source = kCaller},
            bytes_of(data));
    }
    CmEvent call_and_await(std::string_view data) {
        RVT_OK(stranger.agent.listen(id_of(kService), 0));
        RVT_OK(call(data));
        return next(CmEventType::kRequest);
    }
    void answer(const CmEvent& request, std::string_view data) {
        RVT_OK(stranger.agent.accept(
            request.handle,
            {.own = {.qpn = 0x1234, .responder_resources = 1}, .private_data = bytes_of(data)},
            stranger.device.now_us()));
        await([&] { return notes.is_connected; });
    }
};

}  // namespace

Test(rc_port, a_request_of_rdma_cm_brings_all_that_it_has_room_for) {
    World world;
    world.listen_and_await_call("ask");
    RVT_ASSERT(world.notes.data == filled("ask", kRequestRoom));
    RVT_EQ(rc_caller(*world.notes.request), kCaller);
}

Test(rc_port, an_answer_to_rdma_cm_begins_with_the_data) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, bytes_of("yes")));
    const CmEvent reply = world.next(CmEventType::kReply);
    RVT_ASSERT(text_of(reply.private_data()) == filled("yes", protocol::kRepPrivateBytes));
    RVT_EQ(world.connection->peer_service(), kCaller);
}

Test(rc_port, an_answer_allows_no_more_reads_than_the_request) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    const CmEvent reply = world.next(CmEventType::kReply);
    RVT_EQ(reply.remote.responder_resources, 2);
    RVT_EQ(reply.remote.initiator_depth, 1);
    RVT_EQ(world.connection->qp().attr().max_rd_atomic, 1);
}

Test(rc_port, each_end_begins_with_the_number_that_the_other_expects) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    const CmEvent reply = world.next(CmEventType::kReply);
    const QpAttr attr = world.connection->qp().attr();
    RVT_EQ(attr.sq_psn, kPsn);
    RVT_EQ(attr.rq_psn, reply.remote.starting_psn);
}

Test(rc_port, a_peer_that_sends_from_any_port_is_answered_at_the_devices_own) {
    World world;
    world.stranger.is_at_any_port = true;
    world.listen_and_await_call("");
    RVT_EQ(world.notes.request->peer.port, world.net.side(kA).address().port);
}

Test(rc_port, a_rejection_for_rdma_cm_begins_with_the_data) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.reject(world.notes.request->handle, bytes_of("no")));
    const CmEvent rejected = world.next(CmEventType::kRejected);
    RVT_EQ(rejected.reason, CmRejectReason::kConsumer);
    RVT_ASSERT(text_of(rejected.private_data()) == filled("no", protocol::kRejPrivateBytes));
}

Test(rc_port, a_number_without_a_listener_is_an_invalid_service) {
    World world;
    RVT_OK(world.port.listen(kService, world.notes));
    world.stranger.call("", kService + 1);
    RVT_EQ(world.next(CmEventType::kRejected).reason, CmRejectReason::kInvalidServiceId);
}

Test(rc_port, how_many_requests_may_wait_is_their_listeners_matter) {
    World world;
    Patient listener;
    RVT_OK(world.port.listen(kService, listener));
    for (unsigned i = 1; i <= 5000; ++i) {
        world.stranger.call("", kService, 0x1000 + i);
        world.await([&] { return listener.requests == i; });
    }
    world.port.unlisten(kService);
}

Test(rc_port, each_number_has_its_listener_and_they_end_alone) {
    World world;
    Notes other;
    RVT_OK(world.port.listen(kService, world.notes));
    RVT_OK(world.port.listen(kService + 1, other));
    RVT_EQ(world.port.listen(kService + 1, world.notes), EADDRINUSE);
    world.port.unlisten(kService);
    world.stranger.call("first");
    RVT_EQ(world.next(CmEventType::kRejected).reason, CmRejectReason::kInvalidServiceId);
    world.stranger.call("second", kService + 1);
    world.await([&] { return other.request.has_value(); });
    RVT_ASSERT(other.data == filled("second", kRequestRoom));
    RVT_EQ(world.notes.request.has_value(), false);
}

Test(rc_port, a_call_names_the_number_and_the_caller) {
    World world;
    const CmEvent request = world.call_and_await("ask");
    RVT_EQ(request.service_id, id_of(kService));
    RVT_EQ(request.ip->source_port, kCaller);
    RVT_ASSERT(request.ip->source == world.net.side(kA).address().gid);
    RVT_ASSERT(text_of(request.private_data()) == filled("ask", kRequestRoom));
}

/// rxe of the kernel takes 7 for any number, of what a call asks of the peer's pair, too.
Test(rc_port, a_call_asks_a_peer_that_is_not_rvt_to_give_up_at_last) {
    World world;
    RVT_EQ(world.call_and_await("").retry_cnt, 6);
}

Test(rc_port, an_answer_of_rdma_cm_brings_all_that_it_has_room_for) {
    World world;
    world.answer(world.call_and_await(""), "yes");
    RVT_ASSERT(world.notes.data == filled("yes", protocol::kRepPrivateBytes));
    RVT_EQ(world.connection->state(), RcConnection::State::kOpen);
    RVT_EQ(world.connection->peer_service(), kService);
}

Test(rc_port, a_rejection_of_rdma_cm_brings_all_that_it_has_room_for) {
    World world;
    const CmEvent request = world.call_and_await("");
    RVT_OK(world.stranger.agent.reject(request.handle, CmRejectReason::kConsumer, bytes_of("no"),
                                       world.stranger.device.now_us()));
    world.await([&] { return world.notes.error != 0; });
    RVT_EQ(world.notes.error, ECONNREFUSED);
    RVT_ASSERT(world.notes.data == filled("no", protocol::kRejPrivateBytes));
}

/// Each MRA is one more minute, and as many as it sends again.
Test(rc_port, a_call_that_nobody_answers_ends_though_the_peer_asks_for_time) {
    World world;
    const CmEvent request = world.call_and_await("");
    RVT_OK(world.stranger.agent.delay(request.handle, CmAgent::kMostDelayUs,
                                      world.stranger.device.now_us()));
    int minutes = 0;
    for (; minutes < 10 && world.notes.error == 0; ++minutes) {
        fake_now_us += CmAgent::kMostDelayUs;
        for (int i = 0; i < 10; ++i) {
            world.port.poll();
            world.stranger.device.progress();
        }
    }
    RVT_EQ(world.notes.error, ETIMEDOUT);
    RVT_EQ(minutes, 2);
    RVT_EQ(world.next(CmEventType::kRejected).reason, CmRejectReason::kTimeout);
}

Test(rc_port, a_peers_farewell_ends_the_connection) {
    World world;
    const CmEvent request = world.call_and_await("");
    world.answer(request, "");
    RVT_OK(world.stranger.agent.disconnect(request.handle, {}, world.stranger.device.now_us()));
    world.await([&] { return world.notes.is_over; });
    RVT_EQ(world.connection->qp().state(), QpState::kErr);
}

Test(rc_port, a_connection_is_made_before_it_fails) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    const CmEvent reply = world.next(CmEventType::kReply);
    RVT_OK(world.stranger.agent.establish(reply.handle, {}, world.stranger.device.now_us()));
    world.stranger.device.progress();
    RVT_OK(world.connection->qp().modify({.state = QpState::kErr}, QpMask::kState));
    world.await([&] { return world.notes.is_over; });
    RVT_ASSERT(world.notes.was_connected);
}

Test(rc_port, a_connection_is_made_before_it_fails_also_where_the_word_that_it_is_was_lost) {
    World world;
    world.listen_and_await_call("");
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    world.next(CmEventType::kReply);
    RVT_OK(world.connection->qp().modify({.state = QpState::kErr}, QpMask::kState));
    world.await([&] { return world.notes.is_over; });
    RVT_ASSERT(world.notes.was_connected);
}

/// A peer that only receives would not notice otherwise.
Test(rc_port, a_farewell_that_is_lost_is_repeated_before_the_port_goes) {
    World world(RcData::kPlain, kOtherGuid, kPatienceMs);
    world.answer(world.call_and_await(""), "");
    world.next(CmEventType::kEstablished);
    world.stranger.passes_over = 1;
    world.port.destroy(std::move(world.connection));
    std::atomic<bool> is_gone{false};
    std::thread peer([&] {
        while (!is_gone.load(std::memory_order_relaxed)) {  // relaxed: nothing goes with it
            fake_now_us += 1000;
            world.stranger.device.progress();
        }
    });
    world.owned.reset();
    is_gone.store(true, std::memory_order_relaxed);  // relaxed: as above
    peer.join();
    const auto event = world.stranger.agent.poll_event();
    RVT_ASSERT(event.has_value());
    RVT_EQ(event->type, CmEventType::kDisconnected);
}

Test(rc_port, who_sends_to_a_pair_that_is_not_there_is_told_so) {
    World world;
    world.net.side(kA).mad_sink()->pair_missed(world.stranger.device.address(), 0x777);
    world.await([&] { return world.stranger.missed == 0x777; });
}

Test(rc_port, a_connection_ends_when_the_peers_pair_is_not_there) {
    World world;
    world.answer(world.call_and_await(""), "");
    core::send_missed(world.stranger.device, world.net.side(kA).address(), 0x1234);
    world.await([&] {
        fake_now_us += 1000;
        return world.notes.is_over;
    });
    RVT_EQ(world.connection->qp().state(), QpState::kErr);
}

Test(rc_port, a_connection_ends_with_the_address_of_its_port) {
    World world;
    world.answer(world.call_and_await(""), "");
    port_changed(world.net.side(kA), 0);
    world.await([&] { return world.notes.is_over; });
    RVT_EQ(world.notes.device_error, ENETDOWN);
    RVT_EQ(world.connection->qp().state(), QpState::kErr);
}

Test(rc_port, a_connection_ends_when_the_port_takes_its_packets_no_more) {
    World world;
    port_changed(world.net.side(kA), 1024);
    world.answer(world.call_and_await(""), "");
    world.next(CmEventType::kEstablished);
    port_changed(world.net.side(kA), 512);
    world.await([&] { return world.notes.is_over; });
    RVT_EQ(world.notes.device_error, EMSGSIZE);
    world.next(CmEventType::kDisconnected);
}

Test(rc_port, a_connection_whose_packets_the_port_still_takes_goes_on) {
    World world;
    port_changed(world.net.side(kA), 1024);
    world.listen_and_await_call("");  // with packets of 256 bytes
    RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    const CmEvent reply = world.next(CmEventType::kReply);
    RVT_OK(world.stranger.agent.establish(reply.handle, {}, world.stranger.device.now_us()));
    world.await([&] { return world.notes.is_connected; });
    port_changed(world.net.side(kA), 512);
    for (int i = 0; i < 10; ++i) {
        world.port.poll();
    }
    RVT_EQ(world.notes.device_error, 0);
    RVT_EQ(world.connection->state(), RcConnection::State::kOpen);
}

Test(rc_port, a_call_waits_for_the_address_of_its_port) {
    World world;
    port_changed(world.net.side(kA), 0);
    const CmEvent request = world.call_and_await("");
    port_changed(world.net.side(kA), 256);
    world.answer(request, "");
    RVT_EQ(world.connection->state(), RcConnection::State::kOpen);
}

Test(rc_port, an_answer_with_packets_that_have_become_too_large_is_none) {
    World world;
    port_changed(world.net.side(kA), 1024);
    const CmEvent request = world.call_and_await("");
    port_changed(world.net.side(kA), 512);
    RVT_OK(world.stranger.agent.accept(request.handle,
                                       {.own = {.qpn = 0x1234, .responder_resources = 1}},
                                       world.stranger.device.now_us()));
    world.await([&] { return world.notes.error != 0; });
    RVT_EQ(world.notes.error, EMSGSIZE);
}

Test(rc_port, a_request_for_packets_that_have_become_too_large_is_refused) {
    World world;
    port_changed(world.net.side(kA), 1024);
    world.listen_and_await_call("");  // with packets of 256 bytes
    port_changed(world.net.side(kA), 128);
    RVT_EQ(world.port.accept(*world.connection, *world.notes.request, {}), ECONNABORTED);
    RVT_EQ(world.connection->state(), RcConnection::State::kEnded);
    RVT_EQ(world.connection->qp().state(), QpState::kErr);
    RVT_EQ(world.next(CmEventType::kRejected).reason, CmRejectReason::kInvalidMtu);
}

Test(rc_port, who_listens_is_told_that_the_address_is_gone) {
    World world;
    RVT_OK(world.port.listen(kService, world.notes));
    port_changed(world.net.side(kA), 0);
    world.await([&] { return world.notes.device_error != 0; });
    RVT_EQ(world.notes.device_error, ENETDOWN);
    port_changed(world.net.side(kA), 256);
    world.stranger.call("again");
    world.await([&] { return world.notes.request.has_value(); });
}

Test(rc_port, private_data_fill_the_message_of_rdma_cm) {
    World world;
    RVT_EQ(world.port.private_bytes(), kRequestRoom);
    RVT_EQ(world.call(std::string(kRequestRoom + 1, 'x')), EMSGSIZE);
    const std::string most(kRequestRoom, 'x');
    RVT_ASSERT(text_of(world.call_and_await(most).private_data()) == most);
}

Test(rc_port, private_data_of_its_own_kind_keep_their_length) {
    World world(RcData::kCounted);
    RVT_EQ(world.port.private_bytes(), kRequestRoom - 1);
    world.listen_and_await_call("\3askers");
    RVT_ASSERT(world.notes.data == "ask");
}

Test(rc_port, a_length_beyond_the_message_ends_with_it) {
    World world(RcData::kCounted);
    world.listen_and_await_call("\377ask");
    RVT_ASSERT(world.notes.data == filled("ask", kRequestRoom - 1));
}

/// 02 "rvt", what it has, and whatever follows.
namespace {

/// What the pair is like that is connected with a stranger of this GUID.
QpAttr pair_with(std::uint64_t guid, bool is_caller) {
    World world(RcData::kPlain, guid);
    if (is_caller) {
        world.answer(world.call_and_await(""), "");
    } else {
        world.listen_and_await_call("");
        RVT_OK(world.port.accept(*world.connection, *world.notes.request, {}));
    }
    return world.connection->qp().query();
}

}  // namespace

Test(rc_port, only_who_says_that_it_has_extended_atomics_is_asked_for_them) {
    for (const bool is_caller : {true, false}) {
        RVT_ASSERT(pair_with(0x02727674'01abcdef, is_caller).extended_atomics);
        RVT_ASSERT(!pair_with(0x02727674'00abcdef, is_caller).extended_atomics);
        RVT_ASSERT(!pair_with(0x02727675'01abcdef, is_caller).extended_atomics);
        RVT_ASSERT(!pair_with(kOtherGuid, is_caller).extended_atomics);
    }
}

Test(rc_port, only_who_says_so_is_taken_to_keep_what_comes_too_early) {
    for (const bool is_caller : {true, false}) {
        RVT_ASSERT(pair_with(0x02727674'02abcdef, is_caller).keeps_early);
        RVT_ASSERT(!pair_with(0x02727674'01abcdef, is_caller).keeps_early);
        RVT_ASSERT(!pair_with(0x02727675'02abcdef, is_caller).keeps_early);
        RVT_ASSERT(!pair_with(kOtherGuid, is_caller).keeps_early);
    }
}

Test(rc_port, both_ends_of_a_call_hear_what_it_is) {
    World world;
    const CmEvent request = world.call_and_await("");
    RVT_EQ(request.ca_guid >> 24, 0x02727674'03);
    World called;
    called.listen_and_await_call("");
    RVT_OK(called.port.accept(*called.connection, *called.notes.request, {}));
    RVT_EQ(called.next(CmEventType::kReply).ca_guid >> 24, 0x02727674'03);
}
