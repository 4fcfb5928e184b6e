// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Making and ending connections: events, private data, wrong states, null arguments, orders of
// closing.
#include <array>
#include <barrier>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

#include "ofi/msg_pair.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// A request from a client, and what it takes to answer it.
struct Asked {
    MsgListener listener;
    MsgClient client;
    CmEvent request;

    Asked() {
        client.connect(listener);
        request = expect_event(listener.eq.get(), FI_CONNREQ);
    }
    MsgEnd server() { return {listener.fabric.get(), listener.eq.get(), request.info.get()}; }
};

/// Holds an address without listening, for an endpoint to take over.
struct Reserved : MsgFabric {
    Owned<fid_pep> pep;
    Answer taken;  // what an endpoint that takes over is opened with

    Reserved() : MsgFabric(ask_msg().info) {
        pep = opened<fid_pep>(
            [this](fid_pep** p) { return fi_passive_ep(fabric.get(), info.get(), p, nullptr); });
        taken = ask_to_take_over(FI_EP_MSG);
    }
    Answer ask_to_take_over(fi_ep_type type) const {
        Info hints = msg_hints({});
        hints->ep_attr->type = type;
        hints->handle = &pep->fid;
        return ask(hints, own_node.c_str(), nullptr, FI_SOURCE);
    }
};

/// An address of this host where nobody listens any more, nor will where the test is alone.
sockaddr_in nobody() {
    const MsgListener gone;
    return name_of(&gone.pep->fid);
}

}  // namespace

RVT_MSG_TEST(msg_cm, each_message_carries_private_data) {
    const MsgListener listener;
    MsgClient client;
    client.connect(listener, "ask");
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    RVT_ASSERT(request.data == private_data("ask", kRequestRoom));
    RVT_ASSERT(request.object == &listener.pep->fid);
    const MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
    RVT_OK(fi_accept(server.ep.get(), "yes", 3));
    const CmEvent accepted = expect_event(client.eq.get(), FI_CONNECTED);
    RVT_ASSERT(accepted.data == private_data("yes", kReplyRoom));
    RVT_ASSERT(accepted.object == &client.end.ep->fid);
    RVT_ASSERT(expect_event(listener.eq.get(), FI_CONNECTED).object == &server.ep->fid);
}

RVT_MSG_TEST(msg_cm, an_endpoint_may_be_closed_while_it_is_being_connected) {
    const MsgListener listener;
    for (int round = 0; round < 100; ++round) {
        MsgClient client;
        client.connect(listener);
        const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
        MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
        RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
        expect_event(client.eq.get(), FI_CONNECTED);
        server.ep.reset();
    }
}

RVT_MSG_TEST(msg_cm, a_request_names_both_addresses) {
    Asked asked;
    const fi_info& info = *asked.request.info;
    RVT_EQ(info.ep_attr->type, FI_EP_MSG);
    RVT_ASSERT(info.handle != nullptr);
    RVT_EQ(info.handle->fclass, FI_CLASS_CONNREQ);
    sockaddr_in name{};
    RVT_EQ(info.src_addrlen, sizeof name);
    std::memcpy(&name, info.src_addr, sizeof name);
    RVT_EQ(name.sin_port, name_of(&asked.listener.pep->fid).sin_port);
    std::memcpy(&name, info.dest_addr, sizeof name);
    RVT_EQ(name.sin_port, name_of(&asked.client.end.ep->fid).sin_port);
}

RVT_MSG_TEST(msg_cm, an_endpoint_takes_over_the_address_of_a_passive_one) {
    const MsgListener listener;
    Reserved reserved;
    const sockaddr_in name = name_of(&reserved.pep->fid);
    RVT_ASSERT(reserved.taken.info->handle == &reserved.pep->fid);
    sockaddr_in answered{};
    std::memcpy(&answered, reserved.taken.info->src_addr, sizeof answered);
    RVT_EQ(answered.sin_port, name.sin_port);
    RVT_EQ(answered.sin_addr.s_addr, name.sin_addr.s_addr);
    const MsgEnd end(reserved.fabric.get(), reserved.eq.get(), reserved.taken.info.get());
    reserved.pep.reset();
    RVT_EQ(name_of(&end.ep->fid).sin_port, name.sin_port);
    if (enables_first) {
        RVT_OK(fi_enable(end.ep.get()));
    }
    const sockaddr_in to = name_of(&listener.pep->fid);
    RVT_OK(fi_connect(end.ep.get(), &to, nullptr, 0));
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    sockaddr_in caller{};
    std::memcpy(&caller, request.info->dest_addr, sizeof caller);
    RVT_EQ(caller.sin_port, name.sin_port);
    const MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
    RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
    expect_event(reserved.eq.get(), FI_CONNECTED);
    RVT_EQ(name_of(&end.ep->fid).sin_port, name.sin_port);
}

RVT_MSG_TEST(msg_cm, the_info_of_a_request_names_what_its_listeners_does) {
    using std::string_view;
    const Asked asked;
    const fi_info& listener = *asked.listener.info;
    const fi_info& request = *asked.request.info;
    RVT_ASSERT(request.fabric_attr->prov_name != nullptr);
    RVT_ASSERT(string_view(request.fabric_attr->prov_name) == listener.fabric_attr->prov_name);
    RVT_ASSERT(string_view(request.fabric_attr->name) == listener.fabric_attr->name);
    RVT_ASSERT(string_view(request.domain_attr->name) == listener.domain_attr->name);
    RVT_EQ(request.fabric_attr->prov_version, listener.fabric_attr->prov_version);
    RVT_EQ(request.fabric_attr->api_version, listener.fabric_attr->api_version);
}

RVT_MSG_TEST(msg_cm, a_passive_endpoint_that_was_taken_over_is_of_no_use) {
    Reserved reserved;
    const MsgEnd end(reserved.fabric.get(), reserved.eq.get(), reserved.taken.info.get());
    fid_ep* second = nullptr;
    RVT_EQ(fi_endpoint(end.domain.get(), reserved.taken.info.get(), &second, nullptr), -FI_EBUSY);
    RVT_OK(fi_pep_bind(reserved.pep.get(), &reserved.eq->fid, 0));
    RVT_EQ(fi_listen(reserved.pep.get()), -FI_EBUSY);
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_EQ(fi_getname(&reserved.pep->fid, &name, &bytes), -FI_EBUSY);
}

RVT_MSG_TEST(msg_cm, a_passive_endpoint_is_taken_over_once) {
    const MsgClient other;
    for (int round = 0; round < 50; ++round) {
        const Reserved reserved;
        std::array<fid_ep*, 2> eps{};
        std::array<int, 2> refused{};
        std::barrier together(2);
        const auto open = [&](std::size_t i) {
            together.arrive_and_wait();
            refused[i] =
                fi_endpoint(other.end.domain.get(), reserved.taken.info.get(), &eps[i], nullptr);
        };
        std::thread second([&] { open(1); });
        open(0);
        second.join();
        const std::size_t winner = refused[0] == 0 ? 0 : 1;
        RVT_EQ(refused[winner], 0);
        RVT_EQ(refused[1 - winner], -FI_EBUSY);
        RVT_OK(fi_close(&eps[winner]->fid));
    }
}

RVT_MSG_TEST(msg_cm, an_endpoint_that_listens_is_not_taken_over) {
    Reserved reserved;
    RVT_OK(fi_pep_bind(reserved.pep.get(), &reserved.eq->fid, 0));
    RVT_OK(fi_listen(reserved.pep.get()));
    const MsgClient other;
    fid_ep* ep = nullptr;
    RVT_EQ(fi_endpoint(other.end.domain.get(), reserved.taken.info.get(), &ep, nullptr), -FI_EBUSY);
}

RVT_MSG_TEST(msg_cm, what_is_no_open_passive_endpoint_is_not_taken_over) {
    Reserved reserved;
    RVT_EQ(reserved.ask_to_take_over(FI_EP_RDM).error, -FI_ENODATA);
    Info hints = msg_hints({});
    hints->handle = &reserved.fabric->fid;
    RVT_EQ(ask(hints, own_node.c_str(), nullptr, FI_SOURCE).error, -FI_ENODATA);
    const MsgClient other;
    reserved.pep.reset();
    fid_ep* ep = nullptr;
    RVT_EQ(fi_endpoint(other.end.domain.get(), reserved.taken.info.get(), &ep, nullptr),
           -FI_EINVAL);
}

RVT_MSG_TEST(msg_cm, room_for_private_data_is_told) {
    const MsgListener listener;
    MsgClient client;
    const std::size_t expected = private_data("", kRequestRoom).empty() ? 55 : kRequestRoom;
    std::size_t room = 0;
    std::size_t bytes = sizeof room;
    RVT_OK(fi_getopt(&client.end.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &room, &bytes));
    RVT_EQ(room, expected);
    RVT_OK(fi_getopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &room, &bytes));
    RVT_EQ(room, expected);
    const sockaddr_in to = name_of(&listener.pep->fid);
    const std::string data(room + 1, 'x');
    RVT_EQ(fi_connect(client.end.ep.get(), &to, data.data(), data.size()), -FI_EINVAL);
    client.connect(listener, std::string_view(data).substr(1));
    RVT_ASSERT(expect_event(listener.eq.get(), FI_CONNREQ).data == data.substr(1));
}

RVT_MSG_TEST(msg_cm, a_short_buffer_gets_the_event_without_data) {
    const MsgListener listener;
    MsgClient client;
    client.connect(listener, "more");
    std::uint32_t event = 0;
    fi_eq_cm_entry entry{};
    RVT_EQ(fi_eq_sread(listener.eq.get(), &event, &entry, sizeof entry, kMsgPatienceMs, 0),
           sizeof entry);
    RVT_EQ(event, FI_CONNREQ);
    const Info owned(entry.info);
    RVT_EQ(fi_reject(listener.pep.get(), entry.info->handle, nullptr, 0), 0);
}

RVT_MSG_TEST(msg_cm, a_rejected_request_is_an_error_with_data) {
    Asked asked;
    RVT_OK(fi_reject(asked.listener.pep.get(), asked.request.info->handle, "no room", 7));
    const NextEvent refused = next_event(asked.client.eq.get());
    RVT_EQ(refused.error, FI_ECONNREFUSED);
    RVT_ASSERT(refused.event.object == &asked.client.end.ep->fid);
    RVT_ASSERT(refused.error_data == private_data("no room", kRejectRoom));
    RVT_EQ(fi_reject(asked.listener.pep.get(), asked.request.info->handle, nullptr, 0), -FI_EINVAL);
}

RVT_MSG_TEST(msg_cm, requests_beyond_the_backlog_are_refused) {
    const MsgListener listener;
    fid* const pep = &listener.pep->fid;
    for (int backlog : {0, -1}) {
        RVT_EQ(fi_control(pep, FI_BACKLOG, &backlog), -FI_EINVAL);
    }
    RVT_EQ(fi_control(pep, FI_BACKLOG, nullptr), -FI_EINVAL);
    int backlog = 2;
    RVT_OK(fi_control(pep, FI_BACKLOG, &backlog));
    std::array<MsgClient, 4> clients;
    std::array<CmEvent, 2> requests;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        clients[i].connect(listener);
        requests[i] = expect_event(listener.eq.get(), FI_CONNREQ);
    }
    clients[2].connect(listener);
    RVT_EQ(next_event(clients[2].eq.get()).error, FI_ECONNREFUSED);
    // An answer makes room for another one.
    RVT_OK(fi_reject(listener.pep.get(), requests[0].info->handle, nullptr, 0));
    RVT_EQ(next_event(clients[0].eq.get()).error, FI_ECONNREFUSED);
    clients[3].connect(listener);
    expect_event(listener.eq.get(), FI_CONNREQ);
}

RVT_MSG_TEST(msg_cm, an_error_fills_the_readers_own_room) {
    Asked asked;
    RVT_OK(fi_reject(asked.listener.pep.get(), asked.request.info->handle, "abcdef", 6));
    std::uint32_t event = 0;
    std::array<char, 64> room{};
    RVT_EQ(fi_eq_sread(asked.client.eq.get(), &event, room.data(), room.size(), kMsgPatienceMs, 0),
           -FI_EAVAIL);
    std::array<char, 3> data{};
    fi_eq_err_entry entry{};
    entry.err_data = data.data();
    entry.err_data_size = data.size();
    RVT_EQ(fi_eq_readerr(asked.client.eq.get(), &entry, 0), sizeof entry);
    RVT_EQ(entry.err_data_size, 3);
    RVT_ASSERT(entry.err_data == data.data());
    RVT_ASSERT(std::string_view(data.data(), data.size()) == "abc");
}

// fi_cm(3): a request that has been accepted is FI_CONNECTED for who has asked, whatever follows.
RVT_MSG_TEST(msg_cm, who_accepts_and_leaves_at_once_has_accepted) {
    const MsgListener listener;
    for (int i = 0; i < 20; ++i) {
        MsgClient client;
        client.connect(listener);
        const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
        MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
        RVT_OK(fi_accept(server.ep.get(), "hi", 2));
        if (i % 2 == 0) {
            RVT_OK(fi_shutdown(server.ep.get(), 0));
        }
        server.ep.reset();
        RVT_ASSERT(expect_event(client.eq.get(), FI_CONNECTED).data.starts_with("hi"));
        expect_event(client.eq.get(), FI_SHUTDOWN);
    }
}

RVT_MSG_TEST(msg_cm, where_nobody_listens_is_refused) {
    be_alone();
    MsgClient client;
    const sockaddr_in to = nobody();
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(client.eq.get()).error, FI_ECONNREFUSED);
}

RVT_MSG_TEST(msg_cm, a_port_of_another_service_refuses) {
    const MsgClient other;
    MsgClient client;
    const sockaddr_in to = name_of(&other.end.ep->fid);
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(client.eq.get()).error, FI_ECONNREFUSED);
}

Test(msg_cm_wire, a_host_that_does_not_answer_times_out) {
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "300", 1);
    own_node = network_node();
    MsgClient client;
    // A socket that is bound and never read.
    const int silent = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    inet_pton(AF_INET, own_node.c_str(), &to.sin_addr);
    socklen_t bytes = sizeof to;
    RVT_OK(bind(silent, reinterpret_cast<const sockaddr*>(&to), sizeof to));
    RVT_OK(getsockname(silent, reinterpret_cast<sockaddr*>(&to), &bytes));
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(client.eq.get()).error, FI_ETIMEDOUT);
    close(silent);
}

RVT_MSG_TEST(msg_cm, both_sides_learn_of_the_end) {
    const MsgPair pair;
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, &to));
    RVT_OK(fi_shutdown(pair.client.end.ep.get(), 0));
    RVT_ASSERT(expect_event(pair.client.eq.get(), FI_SHUTDOWN).object == &pair.client.end.ep->fid);
    RVT_ASSERT(expect_event(pair.listener.eq.get(), FI_SHUTDOWN).object == &pair.server.ep->fid);
    const fi_cq_err_entry flushed = pair.server.next_error();
    RVT_EQ(flushed.err, FI_ECANCELED);
    RVT_ASSERT(flushed.op_context == &to);
    RVT_EQ(fi_send(pair.server.ep.get(), "x", 1, nullptr, 0, nullptr), -FI_ENOTCONN);
    RVT_EQ(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr), -FI_ENOTCONN);
    RVT_EQ(fi_shutdown(pair.client.end.ep.get(), 0), -FI_ENOTCONN);
}

RVT_MSG_TEST(msg_cm, closing_one_end_shuts_the_other_down) {
    MsgPair pair;
    pair.client.end.ep.reset();
    expect_event(pair.listener.eq.get(), FI_SHUTDOWN);
}

RVT_MSG_TEST(msg_cm, a_connection_outlives_its_passive_endpoint) {
    MsgPair pair;
    pair.listener.pep.reset();
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    RVT_OK(fi_send(pair.client.end.ep.get(), "k", 1, nullptr, 0, nullptr));
    pair.server.next();
    RVT_EQ(to, 'k');
}

RVT_MSG_TEST(msg_cm, requests_left_behind_are_refused) {
    Asked asked;
    asked.listener.pep.reset();
    RVT_EQ(next_event(asked.client.eq.get()).error, FI_ECONNREFUSED);
    fid_ep* ep = nullptr;
    const Opened open(ask_msg().info);
    RVT_EQ(fi_endpoint(open.domain.get(), asked.request.info.get(), &ep, nullptr), -FI_EINVAL);
}

RVT_MSG_TEST(msg_cm, an_endpoint_that_never_accepts_refuses_when_it_closes) {
    Asked asked;
    { const MsgEnd server = asked.server(); }
    RVT_EQ(next_event(asked.client.eq.get()).error, FI_ECONNREFUSED);
}

RVT_MSG_TEST(msg_cm, receives_of_a_request_that_was_given_up_are_cancelled) {
    Asked asked;
    const MsgEnd server = asked.server();
    RVT_OK(fi_enable(server.ep.get()));
    char to = 0;
    RVT_OK(fi_recv(server.ep.get(), &to, 1, nullptr, 0, &to));
    const Owned<fid_ep> again = asked.client.end.add(asked.client.info.get());
    asked.client.end.ep.reset();
    const sockaddr_in at = name_of(&asked.listener.pep->fid);
    RVT_OK(fi_connect(again.get(), &at, nullptr, 0));
    expect_event(asked.listener.eq.get(), FI_CONNREQ);  // behind the end of the first one
    RVT_EQ(fi_accept(server.ep.get(), nullptr, 0), -FI_ECONNABORTED);
    const fi_cq_err_entry ended = server.next_error();
    RVT_EQ(ended.err, FI_ECANCELED);
    RVT_ASSERT(ended.op_context == &to);
    RVT_EQ(fi_recv(server.ep.get(), &to, 1, nullptr, 0, nullptr), -FI_ENOTCONN);
}

RVT_MSG_TEST(msg_cm, events_nobody_read_go_with_their_object) {
    MsgListener listener;
    MsgClient client;
    client.connect(listener);
    std::uint32_t event = 0;
    std::array<char, 128> room{};
    RVT_EQ(fi_eq_sread(listener.eq.get(), &event, room.data(), room.size(), kMsgPatienceMs,
                       FI_PEEK) > 0,
           true);
    listener.pep.reset();
    RVT_EQ(fi_eq_read(listener.eq.get(), &event, room.data(), room.size(), 0), -FI_EAGAIN);
}

RVT_MSG_TEST(msg_cm, a_request_is_answered_once) {
    Asked asked;
    const MsgEnd server = asked.server();
    fid_ep* twice = nullptr;
    RVT_EQ(fi_endpoint(server.domain.get(), asked.request.info.get(), &twice, nullptr), -FI_EINVAL);
    RVT_EQ(fi_reject(asked.listener.pep.get(), asked.request.info->handle, nullptr, 0), -FI_EINVAL);
    RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
    RVT_EQ(fi_accept(server.ep.get(), nullptr, 0), -FI_EOPBADSTATE);
    expect_event(asked.client.eq.get(), FI_CONNECTED);
}

RVT_MSG_TEST(msg_cm, calls_in_the_wrong_state_say_so) {
    const MsgListener listener;
    MsgClient client;
    fid_ep* const ep = client.end.ep.get();
    char byte = 0;
    RVT_EQ(fi_recv(ep, &byte, 1, nullptr, 0, nullptr), -FI_EOPBADSTATE);
    RVT_EQ(fi_send(ep, &byte, 1, nullptr, 0, nullptr), -FI_EOPBADSTATE);
    RVT_EQ(fi_shutdown(ep, 0), -FI_ENOTCONN);
    RVT_EQ(fi_accept(ep, nullptr, 0), -FI_EOPBADSTATE);
    RVT_EQ(fi_listen(listener.pep.get()), -FI_EOPBADSTATE);
    sockaddr_in peer{};
    std::size_t bytes = sizeof peer;
    RVT_EQ(fi_getpeer(ep, &peer, &bytes), -FI_ENOTCONN);
    RVT_OK(fi_enable(ep));
    RVT_EQ(fi_enable(ep), -FI_EOPBADSTATE);
    RVT_EQ(fi_ep_bind(ep, &client.end.cq->fid, FI_TRANSMIT), -FI_EOPBADSTATE);
    client.connect(listener);
    const sockaddr_in to = name_of(&listener.pep->fid);
    RVT_EQ(fi_connect(ep, &to, nullptr, 0), -FI_EOPBADSTATE);
}

RVT_MSG_TEST(msg_cm, queues_in_use_do_not_close) {
    MsgPair pair;
    RVT_EQ(fi_close(&pair.client.end.cq->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&pair.client.eq->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&pair.client.end.domain->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&pair.listener.eq->fid), -FI_EBUSY);
    RVT_EQ(fi_close(&pair.listener.fabric->fid), -FI_EBUSY);
}

RVT_MSG_TEST(msg_cm, what_is_missing_is_named) {
    const MsgFabric fabric(ask_msg().info);
    const Opened open(ask_msg().info);
    const Owned<fid_eq> eq = open.eq();
    const auto ep = opened<fid_ep>(
        [&](fid_ep** e) { return fi_endpoint(open.domain.get(), open.info.get(), e, nullptr); });
    RVT_EQ(fi_enable(ep.get()), -FI_ENOEQ);
    RVT_OK(fi_ep_bind(ep.get(), &eq->fid, 0));
    RVT_EQ(fi_enable(ep.get()), -FI_ENOCQ);
    const auto pep = opened<fid_pep>([&](fid_pep** p) {
        return fi_passive_ep(fabric.fabric.get(), fabric.info.get(), p, nullptr);
    });
    RVT_EQ(fi_listen(pep.get()), -FI_ENOEQ);
}

/// fi_domain(3), fi_domain_bind.
RVT_MSG_TEST(msg_cm, the_queue_of_its_domain_has_the_events_of_an_endpoint_without_one) {
    be_alone();
    const MsgFabric fabric(ask_msg().info);
    const MsgEnd end(fabric.fabric.get(), fabric.eq.get(), fabric.info.get());
    RVT_OK(fi_domain_bind(end.domain.get(), &fabric.eq->fid, 0));
    const auto ep = opened<fid_ep>(
        [&](fid_ep** e) { return fi_endpoint(end.domain.get(), fabric.info.get(), e, nullptr); });
    RVT_EQ(fi_enable(ep.get()), -FI_ENOCQ);
    RVT_OK(fi_ep_bind(ep.get(), &end.cq->fid, FI_TRANSMIT | FI_RECV));
    const sockaddr_in to = nobody();
    RVT_OK(fi_connect(ep.get(), &to, nullptr, 0));
    const NextEvent refused = next_event(fabric.eq.get());
    RVT_EQ(refused.error, FI_ECONNREFUSED);
    RVT_ASSERT(refused.event.object == &ep->fid);
}

RVT_MSG_TEST(msg_cm, an_endpoint_with_a_queue_leaves_that_of_its_domain_alone) {
    be_alone();
    const MsgFabric fabric(ask_msg().info);
    const auto own = opened<fid_eq>([&](fid_eq** e) {
        fi_eq_attr attr{};
        attr.wait_obj = FI_WAIT_UNSPEC;
        return fi_eq_open(fabric.fabric.get(), &attr, e, nullptr);
    });
    const MsgEnd end(fabric.fabric.get(), own.get(), fabric.info.get());
    RVT_OK(fi_domain_bind(end.domain.get(), &fabric.eq->fid, 0));
    const sockaddr_in to = nobody();
    RVT_OK(fi_connect(end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(own.get()).error, FI_ECONNREFUSED);
    std::uint32_t event = 0;
    fi_eq_cm_entry entry{};
    RVT_EQ(fi_eq_read(fabric.eq.get(), &event, &entry, sizeof entry, 0), -FI_EAGAIN);
}

RVT_MSG_TEST(msg_cm, null_arguments_are_refused) {
    Asked asked;
    fid_ep* const ep = asked.client.end.ep.get();
    RVT_EQ(fi_getname(&ep->fid, nullptr, nullptr), -FI_EINVAL);
    RVT_EQ(fi_getpeer(ep, nullptr, nullptr), -FI_EINVAL);
    RVT_EQ(fi_setname(&asked.listener.pep->fid, nullptr, 0), -FI_EOPBADSTATE);
    RVT_EQ(fi_connect(ep, nullptr, nullptr, 1), -FI_EINVAL);
    RVT_EQ(fi_reject(asked.listener.pep.get(), nullptr, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_reject(asked.listener.pep.get(), asked.request.info->handle, nullptr, 1), -FI_EINVAL);
    fid_pep* pep = nullptr;
    RVT_EQ(fi_passive_ep(asked.listener.fabric.get(), nullptr, &pep, nullptr), -FI_EINVAL);
    RVT_EQ(fi_ep_bind(ep, nullptr, 0), -FI_EOPBADSTATE);
    const MsgEnd server = asked.server();
    RVT_EQ(fi_accept(server.ep.get(), nullptr, 1), -FI_EINVAL);
    RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
    expect_event(asked.client.eq.get(), FI_CONNECTED);
    RVT_EQ(fi_sendmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_recvmsg(ep, nullptr, 0), -FI_EINVAL);
    RVT_EQ(fi_sendv(ep, nullptr, nullptr, 1, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_recvv(ep, nullptr, nullptr, 9, 0, nullptr), -FI_EINVAL);
    RVT_OK(fi_send(ep, nullptr, 0, nullptr, 0, nullptr));
}

RVT_MSG_TEST(msg_cm, names_are_real_ports) {
    const MsgPair pair;
    const sockaddr_in listener = name_of(&pair.listener.pep->fid);
    RVT_NE(listener.sin_port, 0);
    in_addr node{};
    inet_pton(AF_INET, own_node.c_str(), &node);
    RVT_EQ(listener.sin_addr.s_addr, node.s_addr);
    RVT_EQ(name_of(&pair.server.ep->fid).sin_port, listener.sin_port);
    sockaddr_in peer{};
    std::size_t bytes = sizeof peer;
    RVT_OK(fi_getpeer(pair.client.end.ep.get(), &peer, &bytes));
    RVT_EQ(peer.sin_port, listener.sin_port);
    bytes = 4;
    RVT_EQ(fi_getname(&pair.listener.pep->fid, &peer, &bytes), -FI_ETOOSMALL);
    RVT_EQ(bytes, sizeof peer);
}

RVT_MSG_TEST(msg_cm, a_passive_endpoint_takes_the_name_it_is_given) {
    be_alone();
    const MsgFabric fabric(ask_msg().info);
    const auto pep = opened<fid_pep>([&](fid_pep** p) {
        return fi_passive_ep(fabric.fabric.get(), fabric.info.get(), p, nullptr);
    });
    sockaddr_in wanted = nobody();
    RVT_OK(fi_setname(&pep->fid, &wanted, sizeof wanted));
    RVT_EQ(name_of(&pep->fid).sin_port, wanted.sin_port);
    RVT_EQ(fi_setname(&pep->fid, &wanted, sizeof wanted), -FI_EOPBADSTATE);
}

RVT_MSG_TEST(msg_cm, a_passive_endpoint_without_the_name_it_wanted_listens_elsewhere) {
    const MsgListener first;
    sockaddr_in taken = name_of(&first.pep->fid);
    const MsgFabric fabric(ask_msg().info);
    const auto pep = opened<fid_pep>([&](fid_pep** p) {
        return fi_passive_ep(fabric.fabric.get(), fabric.info.get(), p, nullptr);
    });
    RVT_EQ(fi_setname(&pep->fid, &taken, sizeof taken), -FI_EADDRINUSE);
    RVT_OK(fi_pep_bind(pep.get(), &fabric.eq->fid, 0));
    RVT_OK(fi_listen(pep.get()));
    RVT_NE(name_of(&pep->fid).sin_port, taken.sin_port);
}

RVT_MSG_TEST(msg_cm, an_address_in_the_info_is_where_null_connects) {
    const MsgListener listener;
    const sockaddr_in to = name_of(&listener.pep->fid);
    const std::string port = std::to_string(ntohs(to.sin_port));
    const MsgFabric fabric(ask(msg_hints({}), own_node.c_str(), port.c_str()).info);
    const MsgEnd end(fabric.fabric.get(), fabric.eq.get(), fabric.info.get());
    RVT_OK(fi_connect(end.ep.get(), nullptr, nullptr, 0));
    expect_event(listener.eq.get(), FI_CONNREQ);
}

/// fi_cm(3): the format of the info that an endpoint was opened with.
RVT_MSG_TEST(msg_cm, a_domain_has_endpoints_of_both_families) {
    enter_own_network();  // the machine's may be without IPv6
    own_node = "::1";
    const MsgListener listener;
    RVT_EQ(listener.info->addr_format, FI_SOCKADDR_IN6);
    MsgClient client;
    sockaddr_in6 to{};
    std::size_t bytes = sizeof to;
    RVT_OK(fi_getname(&listener.pep->fid, &to, &bytes));
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    own_node = "127.0.0.1";
    const MsgEnd end(listener.fabric.get(), listener.eq.get(), ask_msg().info.get());
    const Owned<fid_ep> server = end.add(request.info.get());
    RVT_OK(fi_accept(server.get(), nullptr, 0));
    expect_event(client.eq.get(), FI_CONNECTED);
    expect_event(listener.eq.get(), FI_CONNECTED);
    sockaddr_in6 name{};
    RVT_OK(fi_getname(&server->fid, &name, &bytes));
    RVT_EQ(name.sin6_family, AF_INET6);
    RVT_EQ(name.sin6_port, to.sin6_port);
    RVT_OK(fi_getpeer(server.get(), &name, &bytes));
    RVT_EQ(name.sin6_family, AF_INET6);
}

RVT_MSG_TEST(msg_cm, many_connections_at_a_time) {
    const MsgListener listener;
    constexpr int kClients = 12;
    MsgClient client;
    std::vector<Owned<fid_ep>> eps;
    const sockaddr_in to = name_of(&listener.pep->fid);
    for (int i = 0; i < kClients; ++i) {
        eps.push_back(client.end.add(client.info.get()));
        RVT_OK(fi_connect(eps.back().get(), &to, nullptr, 0));
    }
    std::vector<MsgEnd> servers;
    servers.reserve(kClients);
    int connected = 0;
    while (connected < kClients) {
        const CmEvent event = next_event(listener.eq.get()).event;
        if (event.type == FI_CONNREQ) {
            servers.emplace_back(listener.fabric.get(), listener.eq.get(), event.info.get());
            RVT_OK(fi_accept(servers.back().ep.get(), nullptr, 0));
        } else {
            RVT_EQ(event.type, FI_CONNECTED);
            ++connected;
        }
    }
    for (int i = 0; i < kClients; ++i) {
        expect_event(client.eq.get(), FI_CONNECTED);
    }
}

// ---- peers of this host, at the address of a network ----

Test(msg_host, peers_of_this_host_need_no_packets) {
    setenv("FI_RVT_FAULT", "drop=100%", 1);
    own_node = network_node();
    const MsgPair pair;
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    RVT_OK(fi_inject(pair.client.end.ep.get(), "x", 1, 0));
    RVT_EQ(pair.server.next().len, 1);
    RVT_EQ(name_of(&pair.client.end.ep->fid).sin_addr.s_addr, inet_addr(own_node.c_str()));
}

Test(msg_host, who_was_enabled_before_it_knew_its_peer_sends_packets) {
    setenv("FI_RVT_FAULT", "drop=100%", 1);
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "300", 1);
    own_node = network_node();
    enables_first = true;
    const MsgListener listener;
    MsgClient client;
    client.connect(listener);
    RVT_EQ(next_event(client.eq.get()).error, FI_ETIMEDOUT);
}

Test(msg_host, a_peer_that_only_packets_reach_gets_packets) {
    own_node = network_node();
    const MsgListener listener;
    MsgClient client;
    // At this address of the same host nobody listens, in shared memory or at a port.
    sockaddr_in to = name_of(&listener.pep->fid);
    to.sin_port = htons(9);
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    RVT_EQ(next_event(client.eq.get()).error, FI_ECONNREFUSED);
}

Test(msg_host, an_endpoint_that_was_enabled_for_this_host_goes_nowhere_else) {
    own_node = network_node();
    const MsgListener listener;
    const sockaddr_in to = name_of(&listener.pep->fid);
    const std::string port = std::to_string(ntohs(to.sin_port));
    const MsgFabric fabric(ask(msg_hints({}), own_node.c_str(), port.c_str()).info);
    const MsgEnd end(fabric.fabric.get(), fabric.eq.get(), fabric.info.get());
    RVT_OK(fi_enable(end.ep.get()));
    sockaddr_in other = to;
    other.sin_port = htons(9);
    RVT_EQ(fi_connect(end.ep.get(), &other, nullptr, 0), -FI_EHOSTUNREACH);
    RVT_OK(fi_connect(end.ep.get(), nullptr, nullptr, 0));
    expect_event(listener.eq.get(), FI_CONNREQ);
}

Test(msg_host, a_listen_that_failed_can_be_repeated) {
    own_node = network_node();
    const MsgFabric fabric(ask_msg().info);
    const Owned<fid_pep> pep = opened<fid_pep>([&](fid_pep** p) {
        return fi_passive_ep(fabric.fabric.get(), fabric.info.get(), p, nullptr);
    });
    RVT_OK(fi_pep_bind(pep.get(), &fabric.eq->fid, 0));
    const sockaddr_in to = name_of(&pep->fid);  // the wire's port is open, the host's is not
    const int next = dup(0);
    close(next);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit no_more{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &no_more);
    const int error = fi_listen(pep.get());
    setrlimit(RLIMIT_NOFILE, &limit);  // the test runner wants some too
    RVT_EQ(error, -FI_EMFILE);
    RVT_OK(fi_listen(pep.get()));
    const MsgClient client;
    RVT_OK(fi_connect(client.end.ep.get(), &to, nullptr, 0));
    expect_event(fabric.eq.get(), FI_CONNREQ);
}
