// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections over a NIC that do not come about: what rdma_cm reports, and which of its calls fail,
// becomes of endpoints and passive ones what fi_cm(3) says, and nothing stays behind.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;
using Report = verbs::MockCm::Report;

namespace {

constexpr std::string_view kHello = "hello";  // of who asks
constexpr std::string_view kNo = "no";        // of who refuses

/// Of which nothing may be left in the end.
struct CmWorld : World {
    ~CmWorld() {
        port.reset();
        RVT_EQ(cm.live(), 0);
        RVT_ASSERT(cm.unacknowledged.empty() && !cm.waits_for_ever);
        RVT_EQ(mock.live, live);
    }
    const int live = mock.live;
};

struct Failure {
    int error = 0;  // 0: none
    std::string data;
};
/// The next event, which must be no good one.
Failure failure_of(Endpoints& with, const fid_ep* ep) {
    std::uint32_t event = 0;
    fi_eq_cm_entry entry{};
    const ssize_t got = fi_eq_read(with.eq, &event, &entry, sizeof entry, 0);
    if (got == -FI_EAGAIN) {
        return {};
    }
    RVT_EQ(got, -FI_EAVAIL);
    fi_eq_err_entry error{};
    RVT_EQ(fi_eq_readerr(with.eq, &error, 0), sizeof error);
    RVT_ASSERT(error.fid == &ep->fid);
    return {error.err, std::string(static_cast<const char*>(error.err_data), error.err_data_size)};
}

/// As far as it goes.
void go(std::size_t steps) {
    for (std::size_t i = 0; i < steps; ++i) {
        report(kWayThere[i]);
    }
}

/// It has ended, with what was posted; others are as ever.
void check_ended(Endpoints& with, fid_ep* ep) {
    RVT_EQ(with.canceled(), kReceives);
    RVT_EQ(with.event(ep), 0);
    RVT_EQ(with.send(ep), -FI_ENOTCONN);
    RVT_EQ(with.receive(ep), -FI_ENOTCONN);
    RVT_EQ(Endpoints::call(ep), -FI_EOPBADSTATE);
    RVT_EQ(fi_shutdown(ep, 0), -FI_ENOTCONN);
    fid_ep* const other = with.connected();
    RVT_EQ(with.send(other), 0);
}

/// One that has receives.
fid_ep* open_with_receives(Endpoints& with, fi_info* request = nullptr) {
    fid_ep* const ep = with.open(request);
    RVT_EQ(fi_enable(ep), 0);
    for (std::size_t i = 0; i < kReceives; ++i) {
        RVT_EQ(with.receive(ep), 0);
    }
    return ep;
}

/// A passive endpoint, and what comes to it.
class Listener {
  public:
    explicit Listener(Endpoints& with) : with_(with) {
        RVT_EQ(fi_passive_ep(with.fabric, with.info, &pep, nullptr), 0);
        RVT_EQ(fi_pep_bind(pep, &with.eq->fid, 0), 0);
    }
    ~Listener() {
        for (fi_info* const request : requests_) {
            fi_freeinfo(request);
        }
        RVT_EQ(fi_close(&pep->fid), 0);
    }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    /// A peer asks. Returns: its request.
    fi_info* request() {
        world->cm.request(RDMA_PS_TCP, kPeer, kHello);
        world->port->cm().take_events();
        std::uint32_t event = 0;
        alignas(fi_eq_cm_entry) std::array<char, 128> room{};
        const auto& entry = *reinterpret_cast<const fi_eq_cm_entry*>(room.data());
        RVT_EQ(fi_eq_read(with_.eq, &event, room.data(), room.size(), 0),
               sizeof entry + kHello.size());
        RVT_EQ(event, FI_CONNREQ);
        RVT_ASSERT(std::string_view(room.data() + sizeof entry) == kHello);
        requests_.push_back(entry.info);
        return entry.info;
    }
    /// One more is accepted, to the end.
    void check_listens() {
        fid_ep* const ep = with_.open(request());
        RVT_EQ(fi_accept(ep, nullptr, 0), 0);
        report(RDMA_CM_EVENT_ESTABLISHED);
        RVT_EQ(with_.event(ep), -FI_CONNECTED);
        RVT_EQ(with_.send(ep), 0);
    }

    fid_pep* pep = nullptr;

  private:
    Endpoints& with_;
    std::vector<fi_info*> requests_;
};

}  // namespace

// ---- who calls ----

Test(nic_cm, each_end_of_a_call_has_its_error) {
    const struct {
        std::size_t steps;  // which have gone well
        Report report;
        int error;
        std::string_view data = {};
    } ends[] = {
        {0, {RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH}, FI_EHOSTUNREACH},
        {0, {RDMA_CM_EVENT_ADDR_ERROR, -ENODEV}, FI_ENODEV},
        {0, {RDMA_CM_EVENT_ADDR_ERROR}, FI_EHOSTUNREACH},
        {0, {RDMA_CM_EVENT_ADDR_CHANGE}, FI_ECONNABORTED},
        {1, {RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT}, FI_ETIMEDOUT},
        {1, {RDMA_CM_EVENT_ROUTE_ERROR}, FI_EHOSTUNREACH},
        {2, {RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT}, FI_ETIMEDOUT},
        {2, {RDMA_CM_EVENT_UNREACHABLE}, FI_ETIMEDOUT},
        {2, {RDMA_CM_EVENT_REJECTED, 28, kNo}, FI_ECONNREFUSED, kNo},  // by an application
        {2, {RDMA_CM_EVENT_REJECTED, 8, kNo}, FI_ECONNREFUSED},        // nobody listens
        {2, {RDMA_CM_EVENT_CONNECT_ERROR, -EIO}, FI_EIO},
        {2, {RDMA_CM_EVENT_CONNECT_ERROR}, FI_ECONNABORTED},
        {2, {RDMA_CM_EVENT_ADDR_CHANGE}, FI_ECONNABORTED},
    };
    CmWorld on;
    Endpoints with;
    for (const auto& end : ends) {
        fid_ep* const ep = open_with_receives(with);
        RVT_EQ(Endpoints::call(ep), 0);
        go(end.steps);
        report(end.report);
        const Failure failure = failure_of(with, ep);
        RVT_EQ(failure.error, end.error);
        RVT_ASSERT(failure.data == end.data);
        check_ended(with, ep);
    }
}

Test(nic_cm, a_call_that_cannot_begin_is_refused_and_can_be_made_again) {
    CmWorld on;
    Endpoints with;
    for (const char* call : {"create_id", "resolve_addr"}) {
        fid_ep* const ep = open_with_receives(with);
        const std::size_t before = on.cm.live();
        on.cm.failing = call;
        RVT_EQ(Endpoints::call(ep), -FI_EMFILE);
        RVT_EQ(on.cm.live(), before);
        RVT_EQ(with.event(ep), 0);
        on.cm.failing = {};
        with.connect(ep);
        RVT_EQ(with.send(ep), 0);
    }
}

Test(nic_cm, an_address_that_is_not_taken_is_no_matter_of_the_endpoints_state) {
    CmWorld on;
    Endpoints with;
    fid_ep* const ep = with.open();
    on.cm.failing = "resolve_addr";
    on.cm.error = EINVAL;
    RVT_EQ(Endpoints::call(ep), -FI_EADDRNOTAVAIL);
}

Test(nic_cm, each_later_step_of_a_call_that_fails_is_its_error) {
    const struct {
        std::size_t steps;
        std::string_view call;  // that the next step makes
    } ends[] = {
        {0, "resolve_route"}, {1, "init_qp_attr"}, {1, "connect"},
        {2, "init_qp_attr"},  {2, "establish"},
    };
    CmWorld on;
    Endpoints with;
    for (const auto& end : ends) {
        fid_ep* const ep = open_with_receives(with);
        RVT_EQ(Endpoints::call(ep), 0);
        go(end.steps);
        on.cm.failing = end.call;
        on.cm.calls.clear();
        report(kWayThere[end.steps]);
        RVT_EQ(failure_of(with, ep).error, FI_EMFILE);
        // Who has accepted need not wait until the endpoint is closed.
        RVT_EQ(on.cm.is_asked("reject"), end.steps == 2);
        on.cm.failing = {};
        check_ended(with, ep);
    }
}

Test(nic_cm, a_way_that_begins_at_another_nic_is_none) {
    CmWorld on;
    Endpoints with;
    fid_ep* const ep = open_with_receives(with);
    on.cm.nic = nullptr;
    RVT_EQ(Endpoints::call(ep), 0);
    report(RDMA_CM_EVENT_ADDR_RESOLVED);
    RVT_EQ(failure_of(with, ep).error, FI_EHOSTUNREACH);
    on.cm.nic = on.nic->context();
    check_ended(with, ep);
}

/// Of each id it says so, of the NIC once.
Test(nic_cm, a_nic_that_is_taken_away_fails_a_call_once) {
    CmWorld on;
    Endpoints with;
    fid_ep* const ep = open_with_receives(with);
    RVT_EQ(Endpoints::call(ep), 0);
    report(RDMA_CM_EVENT_DEVICE_REMOVAL);
    RVT_EQ(failure_of(with, ep).error, 0);
    on.nic->device().begin_removal();
    report(RDMA_CM_EVENT_DEVICE_REMOVAL);
    on.port->cm().check_deadlines();
    RVT_EQ(failure_of(with, ep).error, FI_ENODEV);
    RVT_EQ(failure_of(with, ep).error, 0);
    RVT_EQ(with.canceled(), kReceives);
}

Test(nic_cm, what_is_heard_of_a_call_that_has_failed_is_no_news) {
    CmWorld on;
    Endpoints with;
    fid_ep* const ep = open_with_receives(with);
    RVT_EQ(Endpoints::call(ep), 0);
    report({RDMA_CM_EVENT_REJECTED, 28});
    RVT_EQ(failure_of(with, ep).error, FI_ECONNREFUSED);
    on.cm.calls.clear();
    for (const auto type :
         {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ESTABLISHED,
          RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT}) {
        report(type);
    }
    RVT_EQ(with.event(ep), 0);
    RVT_ASSERT(on.cm.calls.empty());
}

Test(nic_cm, an_answer_that_comes_too_late_is_refused) {
    CmWorld on;
    Endpoints with;
    fid_ep* const ep = open_with_receives(with);
    RVT_EQ(Endpoints::call(ep), 0);
    go(2);
    report({RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT});
    RVT_EQ(failure_of(with, ep).error, FI_ETIMEDOUT);
    on.cm.calls.clear();
    report(RDMA_CM_EVENT_CONNECT_RESPONSE);
    RVT_EQ(on.cm.calls.size(), 1);
    RVT_ASSERT(on.cm.calls[0] == "reject");
    check_ended(with, ep);
}

Test(nic_cm, an_endpoint_that_cannot_have_a_port_is_not_opened) {
    CmWorld on;
    Endpoints with;
    fid_ep* ep = nullptr;
    on.cm.failing = "create_event_channel";
    RVT_EQ(fi_endpoint(with.domain, with.info, &ep, nullptr), -FI_EMFILE);
    RVT_EQ(on.cm.live(), 0);
    on.cm.failing = {};
    with.connected();
}

// ---- who listens ----

Test(nic_cm, each_call_of_listening_that_fails_is_its_error_and_can_be_made_again) {
    for (const char* call : {"create_event_channel", "create_id", "bind_addr", "listen"}) {
        CmWorld on;
        Endpoints with;
        Listener listener(with);
        on.cm.failing = call;
        RVT_EQ(fi_listen(listener.pep), -FI_EMFILE);
        on.cm.failing = {};
        RVT_EQ(fi_listen(listener.pep), 0);
        listener.check_listens();
    }
}

Test(nic_cm, a_number_that_is_taken_is_eaddrinuse) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    on.cm.failing = "bind_addr";
    on.cm.error = EADDRINUSE;
    RVT_EQ(fi_listen(listener.pep), -FI_EADDRINUSE);
}

Test(nic_cm, each_call_of_accepting_that_fails_is_its_error_and_ends_the_endpoint) {
    for (const char* call : {"init_qp_attr", "accept"}) {
        CmWorld on;
        Endpoints with;
        Listener listener(with);
        RVT_EQ(fi_listen(listener.pep), 0);
        fid_ep* const ep = open_with_receives(with, listener.request());
        on.cm.failing = call;
        RVT_EQ(fi_accept(ep, nullptr, 0), -FI_EMFILE);
        on.cm.failing = {};
        RVT_ASSERT(on.cm.calls.back() == "reject");  // so that the peer does not wait
        RVT_EQ(with.canceled(), kReceives);
        RVT_EQ(with.event(ep), 0);
        RVT_EQ(fi_accept(ep, nullptr, 0), -FI_EOPBADSTATE);
        RVT_EQ(with.send(ep), -FI_ENOTCONN);
        RVT_EQ(fi_shutdown(ep, 0), -FI_ENOTCONN);
        listener.check_listens();
    }
}

/// rdma_cm has no error of its own for that: it finds the id in the wrong state.
Test(nic_cm, a_peer_that_gives_up_while_it_is_accepted_is_econnaborted) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    fid_ep* const ep = with.open(listener.request());
    on.cm.failing = "accept";
    on.cm.error = EINVAL;
    RVT_EQ(fi_accept(ep, nullptr, 0), -FI_ECONNABORTED);
}

Test(nic_cm, a_peer_that_has_given_up_is_neither_accepted_nor_refused) {
    for (const auto type : {RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
                            RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_CONNECT_ERROR}) {
        CmWorld on;
        Endpoints with;
        Listener listener(with);
        RVT_EQ(fi_listen(listener.pep), 0);
        const std::size_t before = on.cm.live();
        fid_ep* const ep = with.open(listener.request());
        RVT_EQ(fi_enable(ep), 0);
        RVT_EQ(with.receive(ep), 0);
        report(type);
        fi_info* const other = listener.request();
        report(type);
        RVT_EQ(on.cm.live(), before);
        RVT_EQ(fi_accept(ep, nullptr, 0), -FI_ECONNABORTED);
        RVT_EQ(with.canceled(), 1);
        RVT_EQ(with.receive(ep), -FI_ENOTCONN);
        RVT_EQ(fi_reject(listener.pep, other->handle, nullptr, 0), -FI_ECONNABORTED);
        listener.check_listens();
    }
}

/// What rdma_cm says of a request may be read before it is accepted, and heeded after it.
Test(nic_cm, a_peer_that_gives_up_beside_its_acceptance_is_gone) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    fid_ep* const ep = open_with_receives(with, listener.request());
    on.cm.at_acknowledgement = [ep] { RVT_EQ(fi_accept(ep, nullptr, 0), 0); };
    report(RDMA_CM_EVENT_DISCONNECTED);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.canceled(), kReceives);
    listener.check_listens();
}

Test(nic_cm, a_refusal_carries_what_is_said_beside_it) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    fi_info* const request = listener.request();
    RVT_EQ(fi_reject(listener.pep, request->handle, kNo.data(), kNo.size()), 0);
    RVT_ASSERT(on.cm.calls.back() == "reject");
    RVT_ASSERT(std::string_view(on.cm.private_data.data(), on.cm.private_data.size()) == kNo);
    RVT_EQ(fi_reject(listener.pep, request->handle, nullptr, 0), -FI_EINVAL);
}

Test(nic_cm, a_refusal_that_fails_is_the_end_of_the_request) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    const std::size_t before = on.cm.live();
    fi_info* const request = listener.request();
    on.cm.failing = "reject";
    RVT_EQ(fi_reject(listener.pep, request->handle, nullptr, 0), -FI_ECONNABORTED);
    RVT_EQ(on.cm.live(), before);
    RVT_EQ(fi_reject(listener.pep, request->handle, nullptr, 0), -FI_EINVAL);
    on.cm.failing = {};
    listener.check_listens();
}

Test(nic_cm, an_accepted_connection_that_does_not_come_about_has_its_event) {
    const struct {
        Report report;
        int event;  // as Endpoints::event()
    } ends[] = {
        {{RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT}, FI_ETIMEDOUT},
        {{RDMA_CM_EVENT_REJECTED, 28}, FI_ECONNREFUSED},
        {{RDMA_CM_EVENT_CONNECT_ERROR, -EIO}, FI_EIO},
        {{RDMA_CM_EVENT_DISCONNECTED}, -FI_SHUTDOWN},
        {{RDMA_CM_EVENT_ADDR_CHANGE}, -FI_SHUTDOWN},
    };
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    for (const auto& end : ends) {
        fid_ep* const ep = open_with_receives(with, listener.request());
        RVT_EQ(fi_accept(ep, nullptr, 0), 0);
        report(end.report);
        RVT_EQ(with.event(ep), end.event);
        RVT_EQ(with.event(ep), 0);
        RVT_EQ(with.canceled(), kReceives);
        listener.check_listens();
    }
}

/// What the peer sends may come before the word that it is ready.
Test(nic_cm, an_accepted_connection_is_there_before_it_fails) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    for (const bool is_receive : {false, true}) {
        fid_ep* const ep = open_with_receives(with, listener.request());
        RVT_EQ(fi_accept(ep, nullptr, 0), 0);
        const std::uint32_t pair = on.mock.last_pair->qp_num;
        if (is_receive) {
            on.mock.finish(pair, true, IBV_WC_LOC_LEN_ERR);
            fi_cq_entry entry{};
            RVT_EQ(fi_cq_read(with.cq, &entry, 1), -FI_EAVAIL);
        } else {
            on.mock.fail_pair(pair);
            on.nic->take_events();
            on.port->cm().check_deadlines();
        }
        RVT_EQ(with.event(ep), -FI_CONNECTED);
        RVT_EQ(with.event(ep), -FI_SHUTDOWN);
        report(RDMA_CM_EVENT_ESTABLISHED);
        RVT_EQ(with.event(ep), 0);
    }
}

Test(nic_cm, a_request_beyond_the_backlog_is_refused) {
    CmWorld on;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    int backlog = 1;
    RVT_EQ(fi_control(&listener.pep->fid, FI_BACKLOG, &backlog), 0);
    fi_info* const first = listener.request();
    const std::size_t before = on.cm.live();
    on.cm.calls.clear();
    on.cm.request(RDMA_PS_TCP, kPeer);
    on.port->cm().take_events();
    RVT_ASSERT(on.cm.is_asked("reject"));
    RVT_EQ(on.cm.live(), before);
    RVT_EQ(with.event(nullptr), 0);
    RVT_EQ(fi_reject(listener.pep, first->handle, nullptr, 0), 0);
    listener.check_listens();
}

Test(nic_cm, what_nobody_has_answered_is_refused_when_nobody_listens_any_more) {
    CmWorld on;
    Endpoints with;
    {
        Listener listener(with);
        RVT_EQ(fi_listen(listener.pep), 0);
        listener.request();
        on.cm.calls.clear();
    }
    RVT_ASSERT(on.cm.calls.back() == "reject");
    on.cm.calls.clear();
    on.cm.request(RDMA_PS_TCP, kPeer);
    on.port->cm().take_events();
    RVT_ASSERT(on.cm.is_asked("reject"));
    RVT_EQ(with.event(nullptr), 0);
}

// ---- reads ----

namespace {

constexpr std::uint8_t kReadsIn = 3;
constexpr std::uint8_t kReadsOut = 2;

/// What the latest pair was told when it came into that state.
ibv_qp_attr latest(const World& on, ibv_qp_state state) {
    const auto found =
        std::find_if(on.mock.modified.rbegin(), on.mock.modified.rend(),
                     [&](const ibv_qp_attr& attr) { return attr.qp_state == state; });
    RVT_ASSERT(found != on.mock.modified.rend());
    return *found;
}
void check_reads(const World& on) {
    RVT_EQ(latest(on, IBV_QPS_RTR).max_dest_rd_atomic, kReadsIn);
    RVT_EQ(latest(on, IBV_QPS_RTS).max_rd_atomic, kReadsOut);
}

}  // namespace

Test(nic_cm, an_answer_says_how_many_reads_each_end_has_under_way) {
    CmWorld on;
    on.cm.responder_resources = kReadsIn;
    on.cm.initiator_depth = kReadsOut;
    Endpoints with;
    with.connected();
    check_reads(on);
}

Test(nic_cm, a_request_says_how_many_reads_each_end_has_under_way) {
    CmWorld on;
    on.cm.responder_resources = kReadsIn;
    on.cm.initiator_depth = kReadsOut;
    Endpoints with;
    Listener listener(with);
    RVT_EQ(fi_listen(listener.pep), 0);
    listener.check_listens();
    check_reads(on);
    RVT_EQ(on.cm.accepted.responder_resources, kReadsIn);
    RVT_EQ(on.cm.accepted.initiator_depth, kReadsOut);
}
