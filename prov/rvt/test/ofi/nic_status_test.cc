// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an application sees of requests of connected endpoints that a NIC refuses or fails: which
// errno in which completion, in what state the endpoint is, and that others go on.
#include <array>
#include <string_view>

#include <poll.h>
#include <sys/mman.h>

#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;

namespace {

/// As ibv_poll_cq(3) has them, with what a send and a receive say.
constexpr struct {
    ibv_wc_status status;
    int sent;
    int received;
} kFailures[] = {
    {IBV_WC_LOC_LEN_ERR, FI_EMSGSIZE, FI_ETRUNC},
    {IBV_WC_LOC_QP_OP_ERR, FI_EOPBADSTATE, FI_EOPBADSTATE},
    {IBV_WC_LOC_EEC_OP_ERR, FI_EIO, FI_EIO},
    {IBV_WC_LOC_PROT_ERR, FI_EFAULT, FI_EFAULT},
    {IBV_WC_WR_FLUSH_ERR, FI_ECANCELED, FI_ECANCELED},
    {IBV_WC_MW_BIND_ERR, FI_EACCES, FI_EACCES},
    {IBV_WC_BAD_RESP_ERR, FI_EIO, FI_EIO},
    {IBV_WC_LOC_ACCESS_ERR, FI_EACCES, FI_EACCES},
    {IBV_WC_REM_INV_REQ_ERR, FI_EINVAL, FI_EINVAL},
    {IBV_WC_REM_ACCESS_ERR, FI_EACCES, FI_EACCES},
    {IBV_WC_REM_OP_ERR, FI_EREMOTEIO, FI_EREMOTEIO},
    {IBV_WC_RETRY_EXC_ERR, FI_ETIMEDOUT, FI_ETIMEDOUT},
    {IBV_WC_RNR_RETRY_EXC_ERR, FI_ENORX, FI_ENORX},
    {IBV_WC_LOC_RDD_VIOL_ERR, FI_EIO, FI_EIO},
    {IBV_WC_REM_INV_RD_REQ_ERR, FI_EIO, FI_EIO},
    {IBV_WC_REM_ABORT_ERR, FI_EIO, FI_EIO},
    {IBV_WC_INV_EECN_ERR, FI_EIO, FI_EIO},
    {IBV_WC_INV_EEC_STATE_ERR, FI_EIO, FI_EIO},
    {IBV_WC_FATAL_ERR, FI_EIO, FI_EIO},
    {IBV_WC_RESP_TIMEOUT_ERR, FI_ETIMEDOUT, FI_ETIMEDOUT},
    {IBV_WC_GENERAL_ERR, FI_EIO, FI_EIO},
    {IBV_WC_TM_ERR, FI_EIO, FI_EIO},
    {IBV_WC_TM_RNDV_INCOMPLETE, FI_EIO, FI_EIO},
};
static_assert(std::size(kFailures) == IBV_WC_TM_RNDV_INCOMPLETE, "each but success");

/// The next completion, which must be an error.
fi_cq_err_entry error_of(Endpoints& with) {
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_read(with.cq, &entry, 1), -FI_EAVAIL);
    fi_cq_err_entry error{};
    RVT_EQ(fi_cq_readerr(with.cq, &error, 0), 1);
    return error;
}

/// The other endpoint still sends and receives.
void check_works(Endpoints& with, World& on, fid_ep* ep, std::uint32_t qpn) {
    for (const bool is_receive : {false, true}) {
        RVT_EQ(is_receive ? with.receive(ep) : with.send(ep), 0);
        on.mock.finish(qpn, is_receive);
        fi_cq_entry entry{};
        RVT_EQ(fi_cq_read(with.cq, &entry, 1), 1);
        RVT_ASSERT(entry.op_context == &with.memory);
    }
    RVT_EQ(with.event(ep), 0);
}

/// A NIC without the extended verbs.
void keep_to_the_old_verbs(verbs::MockNic& mock) {
    mock.extends = false;
}

void each_failure_is_its_errno(void (*prepare)(verbs::MockNic& mock)) {
    World on(prepare);
    Endpoints with;
    fid_ep* const other = with.connected();
    const std::uint32_t others = on.mock.last_pair->qp_num;
    for (const auto& [status, sent, received] : kFailures) {
        for (const bool is_receive : {false, true}) {
            fid_ep* const ep = with.connected();
            with.post(ep);
            on.mock.finish(on.mock.last_pair->qp_num, is_receive, status);
            const fi_cq_err_entry error = error_of(with);
            RVT_EQ(error.err, is_receive ? received : sent);
            RVT_EQ(error.flags, FI_MSG | (is_receive ? FI_RECV : FI_SEND));
            RVT_EQ(error.len, 0);
            RVT_ASSERT(error.op_context == &with.memory);
            RVT_EQ(with.canceled(), kReceives + kSends - 1);
            RVT_EQ(with.event(ep), -FI_SHUTDOWN);
            RVT_EQ(with.event(ep), 0);
            RVT_EQ(with.send(ep), -FI_ENOTCONN);
            RVT_EQ(with.receive(ep), -FI_ENOTCONN);
            check_works(with, on, other, others);
        }
    }
}

}  // namespace

Test(nic_status, each_failure_is_its_errno_and_ends_the_connection_alone) {
    each_failure_is_its_errno(nullptr);
    each_failure_is_its_errno(keep_to_the_old_verbs);
}

Test(nic_status, a_receive_asks_the_nic_for_no_more_than_a_message) {
    constexpr std::size_t kBytes = std::size_t{3} << 30;
    void* const arena = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RVT_ASSERT(arena != MAP_FAILED);
    World on;
    Endpoints with;
    RVT_EQ(fi_close(&with.mr->fid), 0);
    RVT_EQ(fi_mr_reg(with.domain, arena, kBytes, FI_RECV, 0, 0, 0, &with.mr, nullptr), 0);
    fid_ep* const ep = with.connected();
    RVT_EQ(fi_recv(ep, arena, kBytes, fi_mr_desc(with.mr), 0, &with.memory), 0);
    std::uint64_t bytes = 0;
    for (const ibv_sge& element : on.mock.receives.back().second) {
        bytes += element.length;
    }
    RVT_EQ(bytes, on.nic->device().limits().max_message_bytes);
}

/// Of a failed completion ibv_poll_cq(3) says what it is, and nothing else.
Test(nic_status, a_failure_has_nothing_of_what_completed_before_it) {
    for (const auto prepare :
         {static_cast<void (*)(verbs::MockNic&)>(nullptr), &keep_to_the_old_verbs}) {
        World on(prepare);
        Endpoints with;
        fid_ep* const ep = with.connected();
        for (int i = 0; i < 20; ++i) {  // more than are taken at once
            RVT_EQ(with.receive(ep), 0);
        }
        const std::uint32_t qpn = on.mock.last_pair->qp_num;
        for (int i = 0; i < 18; ++i) {
            on.mock.finish(qpn, true);
        }
        on.mock.finish(qpn, true, IBV_WC_LOC_PROT_ERR);
        std::array<fi_cq_entry, 18> good{};
        RVT_EQ(fi_cq_read(with.cq, good.data(), good.size()), 18);
        const fi_cq_err_entry error = error_of(with);
        RVT_EQ(error.err, FI_EFAULT);
        RVT_EQ(error.len, 0);
        RVT_EQ(with.canceled(), 1);
    }
}

// ---- calls that fail ----

Test(nic_status, what_cannot_be_posted_is_its_error_and_takes_no_room) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    for (std::size_t i = 0; i < 4 * with.info->tx_attr->size; ++i) {
        on.mock.failing = "post_send";
        RVT_EQ(with.send(ep), -FI_EMFILE);
        on.mock.failing = "post_recv";
        RVT_EQ(with.receive(ep), -FI_EMFILE);
    }
    on.mock.failing = {};
    check_works(with, on, ep, on.mock.last_pair->qp_num);
}

Test(nic_status, shared_receives_that_cannot_be_posted_are_their_error_and_take_no_room) {
    World on;
    Endpoints with(true);
    with.connected();
    on.mock.failing = "post_srq_recv";
    for (std::size_t i = 0; i < 4 * with.info->rx_attr->size; ++i) {
        RVT_EQ(with.receive(with.srx), -FI_EMFILE);
    }
    on.mock.failing = {};
    RVT_EQ(with.receive(with.srx), 0);
    RVT_EQ(on.mock.receives_left(), 1);
}

Test(nic_status, a_region_that_the_nic_keeps_is_not_closed_and_can_be_later) {
    World on;
    Endpoints with;
    fid_mr* further = nullptr;
    RVT_EQ(fi_mr_reg(with.domain, with.memory.data(), 64, FI_SEND, 0, 0, 0, &further, nullptr), 0);
    on.mock.failing = "dereg_mr";
    RVT_EQ(fi_close(&further->fid), -FI_EMFILE);
    RVT_EQ(fi_close(&further->fid), -FI_EMFILE);
    on.mock.failing = {};
    RVT_EQ(fi_close(&further->fid), 0);
    RVT_EQ(std::ranges::count_if(on.mock.regions, &verbs::MockNic::Region::is_there), 1);
}

Test(nic_status, an_endpoint_that_cannot_be_enabled_can_be_later) {
    for (const char* call : {"create_cq", "create_qp", "modify_qp to INIT"}) {
        World on;
        Endpoints with;
        fid_ep* const ep = with.open();
        const int before = on.mock.live;
        on.mock.failing = call;
        RVT_EQ(fi_enable(ep), -FI_EMFILE);
        RVT_EQ(on.mock.live, before);
        on.mock.failing = {};
        RVT_EQ(fi_enable(ep), 0);
        with.connect(ep);
        check_works(with, on, ep, on.mock.last_pair->qp_num);
    }
}

Test(nic_status, a_pair_that_cannot_be_moved_fails_its_connection) {
    for (const char* call : {"modify_qp to INIT", "modify_qp to RTR", "modify_qp to RTS"}) {
        World on;
        Endpoints with;
        fid_ep* const ep = with.open();
        RVT_EQ(fi_enable(ep), 0);
        RVT_EQ(with.receive(ep), 0);
        RVT_EQ(Endpoints::call(ep), 0);
        on.mock.failing = call;
        for (const rdma_cm_event_type type : kWayThere) {
            report(type);
        }
        RVT_EQ(with.event(ep), FI_EMFILE);
        RVT_EQ(with.event(ep), 0);
        RVT_EQ(with.canceled(), 1);
        on.mock.failing = {};
        with.connected();
    }
}

/// As of one that answers nothing: it is stopped, and what it had is completed in software.
Test(nic_status, what_a_pair_had_that_cannot_be_ended_is_canceled) {
    World on;
    Endpoints with;
    fid_ep* const ep = with.connected();
    with.post(ep);
    on.mock.failing = "modify_qp to ERR";
    RVT_EQ(fi_shutdown(ep, 0), -FI_EMFILE);
    RVT_EQ(with.canceled(), kReceives + kSends);
    RVT_EQ(on.mock.modified.back().qp_state, IBV_QPS_RESET);
    report(RDMA_CM_EVENT_DISCONNECTED);
    RVT_EQ(with.event(ep), -FI_SHUTDOWN);
    RVT_EQ(with.canceled(), 0);
}

Test(nic_status, who_would_sleep_at_a_queue_that_cannot_be_armed_does_not) {
    World on;
    Endpoints with;
    with.connected();
    pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
    RVT_EQ(fi_control(&with.cq->fid, FI_GETWAIT, &readable.fd), 0);
    fid* queue = &with.cq->fid;
    RVT_EQ(fi_trywait(with.fabric, &queue, 1), 0);
    RVT_EQ(poll(&readable, 1, 0), 0);
    on.mock.failing = "req_notify_cq";
    RVT_EQ(fi_trywait(with.fabric, &queue, 1), 0);
    RVT_EQ(poll(&readable, 1, 0), 1);
    on.mock.failing = {};
    RVT_EQ(fi_trywait(with.fabric, &queue, 1), 0);
    RVT_EQ(poll(&readable, 1, 0), 0);
}

namespace {

constexpr std::size_t kInterval = 16;

/// An endpoint whose sends complete only where that is asked for, and its NIC.
struct Selective {
    Selective() {
        fi_endpoint(with.domain, with.info, &ep, nullptr);
        with.opened.push_back(ep);
        RVT_EQ(fi_ep_bind(ep, &with.eq->fid, 0), 0);
        RVT_EQ(fi_ep_bind(ep, &with.cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
        with.connect(ep);
        qpn = on.mock.last_pair->qp_num;
    }
    ssize_t inject() { return fi_inject(ep, with.memory.data(), 8, 0); }
    void inject(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            RVT_EQ(inject(), 0);
        }
    }
    /// As many as there is room for, which is the whole queue.
    void fill() {
        inject(with.info->tx_attr->size);
        RVT_EQ(inject(), -FI_EAGAIN);
    }
    [[nodiscard]] bool is_signaled(std::size_t send) const {
        return (on.mock.sends.at(send).send_flags & IBV_SEND_SIGNALED) != 0;
    }
    /// The NIC carries out all of these, the oldest that are left.
    void carry_out(std::size_t first, std::size_t count) {
        for (std::size_t i = first; i < first + count; ++i) {
            is_signaled(i) ? on.mock.finish(qpn, false) : on.mock.pass(qpn);
        }
    }
    World on;
    Endpoints with{false, FI_MSG | FI_RMA};
    fid_ep* ep = nullptr;
    std::uint32_t qpn = 0;
};

}  // namespace

Test(nic_unsignaled, of_what_wants_no_completion_one_in_sixteen_is_signaled) {
    Selective one;
    one.inject(3 * kInterval);
    for (std::size_t i = 0; i < 3 * kInterval; ++i) {
        const bool is_last = i % kInterval == kInterval - 1;
        RVT_EQ(one.is_signaled(i), is_last);
    }
}

Test(nic_unsignaled, sends_and_writes_without_completion_are_not_signaled) {
    Selective one;
    void* const desc = fi_mr_desc(one.with.mr);
    RVT_EQ(fi_send(one.ep, one.with.memory.data(), 512, desc, 0, nullptr), 0);
    RVT_EQ(fi_write(one.ep, one.with.memory.data(), 512, desc, 0, 0x1000, 5, nullptr), 0);
    RVT_ASSERT(!one.is_signaled(0) && !one.is_signaled(1));
}

/// Over iWARP what is posted behind a read completes before it.
Test(nic_unsignaled, reads_are_signaled) {
    Selective one;
    void* const desc = fi_mr_desc(one.with.mr);
    RVT_EQ(fi_read(one.ep, one.with.memory.data(), 512, desc, 0, 0x1000, 5, nullptr), 0);
    RVT_ASSERT(one.is_signaled(0));
}

Test(nic_unsignaled, what_wants_a_completion_is_signaled) {
    Selective one;
    iovec part{one.with.memory.data(), 8};
    void* desc = fi_mr_desc(one.with.mr);
    fi_msg message{};
    message.msg_iov = &part;
    message.desc = &desc;
    message.iov_count = 1;
    one.inject(1);
    RVT_EQ(fi_sendmsg(one.ep, &message, FI_COMPLETION), 0);
    RVT_ASSERT(one.is_signaled(1));
    one.inject(kInterval - 1);
    RVT_ASSERT(!one.is_signaled(kInterval));  // they are counted anew
    one.inject(1);
    RVT_ASSERT(one.is_signaled(kInterval + 1));
}

Test(nic_unsignaled, what_a_counter_counts_is_signaled) {
    World on;
    Endpoints with;
    fid_cntr* cntr = nullptr;
    RVT_EQ(fi_cntr_open(with.domain, nullptr, &cntr, nullptr), 0);
    fid_ep* const ep = with.open();
    RVT_EQ(fi_ep_bind(ep, &cntr->fid, FI_SEND), 0);
    with.connect(ep);
    RVT_EQ(fi_inject(ep, with.memory.data(), 8, 0), 0);
    RVT_NE(on.mock.sends.back().send_flags & IBV_SEND_SIGNALED, 0);
    on.mock.finish(on.mock.last_pair->qp_num, false);
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_read(with.cq, &entry, 1), -FI_EAGAIN);
    RVT_EQ(fi_cntr_read(cntr), 1);
    RVT_EQ(fi_close(&ep->fid), 0);
    std::erase(with.opened, ep);
    RVT_EQ(fi_close(&cntr->fid), 0);
}

Test(nic_unsignaled, a_full_queue_has_room_again_when_its_last_request_completes) {
    Selective one;
    const std::size_t all = one.with.info->tx_attr->size;
    for (std::size_t round = 0; round < 3; ++round) {
        one.fill();
        RVT_ASSERT(one.is_signaled(round * all + all - 1));
        one.carry_out(round * all, all);
    }
    one.fill();
}

Test(nic_unsignaled, a_completion_makes_room_for_as_many_as_were_before_it) {
    Selective one;
    one.fill();
    one.carry_out(0, kInterval);
    one.inject(kInterval);
    RVT_EQ(one.inject(), -FI_EAGAIN);
}

/// One behind the failed one is signaled, those before it are not.
Test(nic_unsignaled, an_error_in_the_middle_is_told_and_what_follows_is_canceled) {
    Selective one;
    one.inject(5);
    one.carry_out(0, 2);
    one.on.mock.finish(one.qpn, false, IBV_WC_REM_OP_ERR);
    RVT_EQ(error_of(one.with).err, FI_EREMOTEIO);
    RVT_EQ(error_of(one.with).err, FI_ECANCELED);
    RVT_EQ(error_of(one.with).err, FI_ECANCELED);
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_read(one.with.cq, &entry, 1), -FI_EAGAIN);
}

Test(nic_unsignaled, what_the_nic_does_not_flush_is_canceled_once) {
    Selective one;
    one.inject(5);
    one.on.mock.is_gone = true;
    world->nic->device().begin_removal();
    world->port->cm().check_deadlines();
    for (std::size_t i = 0; i < 5; ++i) {
        RVT_EQ(error_of(one.with).err, FI_ECANCELED);
    }
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_read(one.with.cq, &entry, 1), -FI_EAGAIN);
}

Test(nic_unsignaled, an_endpoint_is_closed_with_some_under_way) {
    Selective one;
    one.inject(5);
    RVT_EQ(fi_close(&one.ep->fid), 0);
    std::erase(one.with.opened, one.ep);
    RVT_EQ(one.on.mock.pairs_left(), 0);
    fi_cq_entry entry{};
    RVT_EQ(fi_cq_read(one.with.cq, &entry, 1), -FI_EAGAIN);
}
