// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints whose NIC is gone, or that hang up.
#include <array>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;

namespace {

/// The kernel has taken it away.
void take_away() {
    world->nic->device().begin_removal();
    world->port->cm().check_deadlines();
}
/// By itself.
void fail(std::uint32_t pair) {
    world->mock.fail_pair(pair);
    world->nic->take_events();
    world->port->cm().check_deadlines();
}
/// Until nobody is waited for any more.
void wait_for_deadline() {
    while (world->port->cm().check_deadlines() != core::RcPort::kNever) {
    }
}

}  // namespace

Test(nic_end, what_a_nic_that_answers_nothing_had_under_way_is_canceled) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    with.post(ep);
    on.mock.is_gone = true;
    take_away();
    RVT_EQ(with.canceled(), kReceives + kSends);
    RVT_EQ(with.event(ep), FI_ENODEV);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.event(ep), 0);
}

Test(nic_end, what_a_nic_does_not_flush_is_canceled_when_its_time_is_over) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    with.post(ep);
    on.mock.flushes = false;
    take_away();
    RVT_EQ(with.canceled(), 0);
    wait_for_deadline();
    RVT_EQ(with.canceled(), kReceives + kSends);
    RVT_EQ(on.mock.modified.back().qp_state, IBV_QPS_RESET);  // it touches nothing any more
}

Test(nic_end, what_a_nic_flushes_is_reported_once) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    for (std::size_t i = 0; i < kReceives; ++i) {
        RVT_EQ(with.receive(ep), 0);
    }
    take_away();
    RVT_EQ(with.canceled(), kReceives);
    wait_for_deadline();
    RVT_EQ(with.canceled(), 0);
}

Test(nic_end, a_connection_that_is_not_there_yet_fails) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.open();
    RVT_EQ(Endpoints::call(ep), 0);
    take_away();
    RVT_EQ(with.event(ep), FI_ENODEV);
    RVT_EQ(with.event(ep), 0);
}

Test(nic_end, an_endpoint_without_a_connection_is_told_and_its_receives_end) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.open();
    RVT_EQ(fi_enable(ep), 0);
    RVT_EQ(with.receive(ep), 0);
    on.mock.is_gone = true;
    take_away();
    RVT_EQ(with.event(ep), FI_ENODEV);
    RVT_EQ(with.event(ep), 0);
    RVT_EQ(with.canceled(), 1);
}

Test(nic_end, receives_that_endpoints_share_end_with_the_last_of_them) {
    World on;
    Endpoints with(true);
    with.connected();
    with.connected();
    RVT_EQ(with.receive(with.srx), 0);
    RVT_EQ(with.receive(with.srx), 0);
    on.mock.is_gone = true;
    world->nic->device().begin_removal();
    RVT_EQ(with.canceled(), 0);
    world->port->cm().check_deadlines();
    RVT_EQ(with.canceled(), 2);
    RVT_EQ(with.canceled(), 0);
    RVT_EQ(with.receive(with.srx), -FI_ENODEV);
}

/// The pair that had taken it, for a message of which a part had come, gives it back late.
Test(nic_end, a_shared_receive_of_an_endpoint_that_is_closed_comes_back) {
    World on;
    Endpoints with(true);
    fid_ep* const ep = with.connected();
    RVT_EQ(with.receive(with.srx), 0);
    on.mock.begin_message_to(on.mock.last_pair->qp_num);
    on.mock.looks_before_flush = 10;
    {
        const std::jthread events = take_events();
        RVT_EQ(fi_close(&ep->fid), 0);
    }
    std::erase(with.opened, ep);
    RVT_EQ(with.canceled(), 1);
}

Test(nic_end, nothing_more_is_taken) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    take_away();
    RVT_EQ(with.send(ep), -FI_ENOTCONN);
    RVT_EQ(with.receive(ep), -FI_ENOTCONN);
    fid_mr* further = nullptr;
    RVT_EQ(fi_mr_reg(with.domain, with.memory.data(), 64, FI_SEND, 0, 0, 0, &further, nullptr),
           -FI_ENODEV);
    fid_ep* const another = with.open();
    RVT_EQ(fi_enable(another), -FI_ENODEV);
}

Test(nic_end, who_sleeps_is_woken) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    RVT_EQ(with.receive(ep), 0);
    pollfd readable = with.asleep();
    on.mock.is_gone = true;
    take_away();
    RVT_EQ(poll(&readable, 1, 20'000), 1);
    RVT_EQ(with.canceled(), 1);
}

/// Nothing completes then that would tell of it.
Test(nic_end, a_pair_that_fails_by_itself_ends_its_connection_and_what_it_had) {
    World on;
    Endpoints with;
    fid_ep* const other = with.connected();
    fid_ep* const ep = with.connected();
    with.post(ep);
    on.mock.flushes = false;
    fail(on.mock.last_pair->qp_num);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.send(ep), -FI_ENOTCONN);
    wait_for_deadline();
    RVT_EQ(with.canceled(), kReceives + kSends);
    RVT_EQ(with.event(ep), 0);
    RVT_EQ(with.send(other), 0);
}

Test(nic_end, what_has_come_before_a_pair_fails_is_reported_however_late_it_is_read) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    for (std::size_t i = 0; i < kReceives; ++i) {
        RVT_EQ(with.receive(ep), 0);
    }
    const std::uint32_t pair = on.mock.last_pair->qp_num;
    on.mock.finish(pair, true);
    on.mock.finish(pair, true);
    fail(pair);
    wait_for_deadline();
    std::array<fi_cq_entry, kReceives> come{};
    RVT_EQ(fi_cq_read(with.cq, come.data(), come.size()), 2);
    RVT_EQ(with.canceled(), kReceives - 2);
}

Test(nic_end, sends_of_a_pair_that_fails_end_though_it_shares_its_receives_which_stay) {
    World on;
    Endpoints with(true);
    fid_ep* const ep = with.connected();
    RVT_EQ(with.receive(with.srx), 0);
    for (std::size_t i = 0; i < kSends; ++i) {
        RVT_EQ(with.send(ep), 0);
    }
    on.mock.flushes = false;
    fail(on.mock.last_pair->qp_num);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    wait_for_deadline();
    RVT_EQ(with.canceled(), kSends);
    RVT_EQ(on.mock.receives_left(), 1);
}

namespace {

/// A NIC without the extended verbs.
void keep_to_lists(verbs::MockNic& mock) {
    mock.extends = false;
}

/// The application, and then the thread that looks after connections.
void look_and_wait(Endpoints& with) {
    RVT_EQ(with.canceled(), 0);
    world->nic->take_events();
    wait_for_deadline();
}

}  // namespace

Test(nic_end, what_waits_at_a_queue_that_gives_no_completions_is_canceled) {
    for (const bool extends : {true, false}) {
        World on(extends ? nullptr : keep_to_lists);
        Endpoints with;
        fid_ep* const ep = with.connected();
        with.post(ep);
        on.mock.failing = "poll_cq";
        look_and_wait(with);
        RVT_EQ(with.event(ep), -FI_SHUTDOWN);
        RVT_EQ(with.event(ep), 0);
        RVT_EQ(with.send(ep), -FI_ENOTCONN);
        RVT_EQ(with.canceled(), kReceives + kSends);
        RVT_EQ(on.mock.modified.back().qp_state, IBV_QPS_RESET);  // it touches nothing any more
        on.mock.failing = {};
    }
}

Test(nic_end, what_waits_at_a_queue_that_the_nic_gives_up_is_canceled_and_nothing_else) {
    World on;
    Endpoints with;
    fid_ep* const other = with.connected();
    fid_ep* const ep = with.connected();
    with.post(ep);
    pollfd readable = with.asleep();
    on.mock.flushes = false;
    on.mock.fail_queue();
    world->nic->take_events();
    wait_for_deadline();
    RVT_EQ(poll(&readable, 1, 20'000), 1);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.canceled(), kReceives + kSends);
    RVT_EQ(with.event(ep), 0);
    RVT_EQ(with.send(other), 0);
}

Test(nic_end, what_has_hung_up_when_its_queue_fails_is_canceled) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    with.post(ep);
    on.mock.failing = "poll_cq";
    report(RDMA_CM_EVENT_DISCONNECTED);
    look_and_wait(with);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.canceled(), kReceives + kSends);
    on.mock.failing = {};
}

Test(nic_end, an_endpoint_closes_though_the_nic_keeps_its_pair) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    with.post(ep);
    ibv_qp* const pair = on.mock.last_pair;
    on.mock.failing = verbs::MockNic::kEveryEnd;
    RVT_EQ(fi_close(&ep->fid), 0);
    on.mock.failing = {};
    std::erase(with.opened, ep);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = pair;
    on.mock.events.push_back(event);
    world->nic->take_events();
    wait_for_deadline();
    RVT_EQ(with.canceled(), 0);
    fid_ep* const other = with.connected();
    RVT_EQ(with.event(other), 0);
    RVT_EQ(with.send(other), 0);
}

/// They end with the NIC alone.
Test(nic_end, who_sleeps_for_shared_receives_is_woken_though_their_endpoint_had_ended) {
    World on;
    Endpoints with(true);
    with.connected();
    RVT_EQ(with.receive(with.srx), 0);
    fail(on.mock.last_pair->qp_num);
    wait_for_deadline();
    RVT_EQ(with.canceled(), 0);
    pollfd readable = with.asleep();
    take_away();
    RVT_EQ(poll(&readable, 1, 20'000), 1);
    RVT_EQ(with.canceled(), 1);
}

/// Some drivers take 7 for any number: a peer that is gone would not be noticed.
Test(nic_retries, who_is_asked_to_try_for_ever_does_not) {
    World on;
    Endpoints with;
    with.connected();
    RVT_ASSERT(!on.mock.masks.empty());
    RVT_ASSERT((on.mock.masks.back() & IBV_QP_RETRY_CNT) != 0);
    RVT_EQ(on.mock.modified.back().retry_cnt, 6);
}

Test(nic_shutdown, who_hangs_up_is_told_when_the_peer_answers) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    RVT_EQ(fi_shutdown(ep, 0), 0);
    RVT_EQ(with.event(ep), 0);
    report(RDMA_CM_EVENT_DISCONNECTED);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    wait_for_deadline();
    RVT_EQ(with.event(ep), 0);
}

Test(nic_shutdown, who_hangs_up_is_told_in_time_though_the_peer_does_not_answer) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    RVT_EQ(fi_shutdown(ep, 0), 0);
    wait_for_deadline();
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    report(RDMA_CM_EVENT_DISCONNECTED);
    RVT_EQ(with.event(ep), 0);
}

/// What a child ended by them would end for its parent, and while it lives a parent that is killed
/// would still be there for its peers.
Test(nic_fork, a_child_has_none_of_the_descriptors_that_lead_to_the_nic) {
    World on;
    Endpoints with;
    with.connected();
    const ibv_context* const context = on.nic->context();
    const std::array fds{context->cmd_fd, context->async_fd, on.nic->channel()->fd,
                         on.port->cm().event_fd()};
    const pid_t child = fork();
    if (child == 0) {
        int taken = 0;
        for (const int fd : fds) {
            eventfd_t value = 1;
            taken += eventfd_write(fd, value) == 0 ? 1 : 0;  // which all of the mock's are
            taken += eventfd_read(fd, &value) == 0 ? 1 : 0;
        }
        _exit(taken);
    }
    int taken = -1;
    RVT_EQ(waitpid(child, &taken, 0), child);
    RVT_EQ(taken, 0);
    for (const int fd : fds) {
        pollfd written{.fd = fd, .events = POLLIN, .revents = 0};
        RVT_EQ(poll(&written, 1, 0), 0);
    }
}
