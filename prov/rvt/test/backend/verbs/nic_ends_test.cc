// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Objects that libibverbs does not let end: what stays of them, and whom it concerns.
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/opened_nic.h"
#include "core/addresses.h"
#include "core/ah.h"
#include "core/mr.h"
#include "core/srq.h"
#include "util/log.h"

using namespace rvt;
using namespace rvt::verbs;

namespace {

constexpr std::size_t kRegionBytes = 200;
constexpr std::size_t kHalfOfRegion = 100;

std::array<std::byte, kRegionBytes> kept_memory;
std::string kept_line;
int kept_lines = 0;

constexpr util::LogSink kKeptSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kWarn; },
    .write =
        [](util::LogLevel, util::LogArea, const char*, int, const char* text) noexcept {
            ++kept_lines;
            kept_line = text;
        },
};

Address kept_address(std::uint8_t first_byte) {
    return core::to_address({.family = AF_INET, .port = 4791, .ip = {first_byte, 1, 1, 1}});
}

Result<core::Mr*> reg_whole(const Opened& opened) {
    const iovec whole{kept_memory.data(), kRegionBytes};
    return core::reg_mr(*opened.pd, {.segments = {&whole, 1}, .access = Access::kRemoteRead});
}
Status halve(core::Mr& mr) {
    const iovec half{kept_memory.data(), kHalfOfRegion};
    return core::rereg_mr(mr,
                          {.changes = MrChange::kTranslation, .attr = {.segments = {&half, 1}}});
}

/// One of each kind of objects.
struct AllObjects : Opened {
    explicit AllObjects(MockNic& mock) : Opened(mock) {
        RVT_OK(core::keep(mr, reg_whole(*this)));
        RVT_OK(core::keep(ah, core::create_ah(*pd, {.dest = kept_address(10)})));
        RVT_OK(core::keep(srq, core::create_srq(*pd, {.max_wr = 4, .max_sge = 1})));
        core::QpInit init = pair();
        init.type = QpType::kUd;
        RVT_OK(core::keep(qp, core::create_qp(*pd, init)));
        RVT_OK(qp->attach_mcast(kGroup));
    }
    void leave() { RVT_OK(qp->detach_mcast(kGroup)); }
    /// All but the device.
    void end() {
        leave();
        qp.reset();
        srq.reset();
        ah.reset();
        RVT_OK(core::dereg_mr(mr.release()));
        cq.reset();
        pd.reset();
    }

    const Address kGroup = kept_address(239);
    core::Owned<core::Mr> mr;
    core::Owned<core::Ah> ah;
    core::Owned<core::Srq> srq;
    core::Owned<core::Qp> qp;
};

constexpr const char* kEnds[] = {
    "detach_mcast", "destroy_qp", "destroy_srq",          "destroy_ah",  "dereg_mr",
    "destroy_cq",   "dealloc_pd", "destroy_comp_channel", "close_device"};

ibv_async_event async_event_of(ibv_event_type type, ibv_qp* pair) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = pair;
    return event;
}

}  // namespace

Test(nic_ends, what_is_kept_is_said_once_and_nothing_else_stays) {
    for (const std::string call : kEnds) {
        MockNic mock;
        mock.attr.max_mcast_qp_attach = 4;
        kept_lines = 0;
        util::set_log_sink(&kKeptSink);
        {
            AllObjects all(mock);
            mock.failing = call;
            all.leave();
        }
        cr_assert(kept_lines == 1 && kept_line.find("NIC mock0") == 0, "%s: %d, %s", call.c_str(),
                  kept_lines, kept_line.c_str());
        const int left = mock.live;
        cr_assert(left == (call == "detach_mcast" ? 0 : 1), "%s: %d left", call.c_str(), left);
    }
}

Test(nic_ends, nothing_is_kept_by_a_device_that_is_gone) {
    for (const char* const call : kEnds) {
        MockNic mock;
        mock.attr.max_mcast_qp_attach = 4;
        mock.error = EIO;
        {
            AllObjects all(mock);
            all.nic->device().begin_removal();
            kept_lines = 0;
            util::set_log_sink(&kKeptSink);
            mock.failing = call;
            all.end();
            RVT_EQ(all.nic->counts().pairs, 0);
            RVT_EQ(all.nic->counts().regions, 0);
        }
        cr_assert(kept_lines == 0, "%s: %s", call, kept_line.c_str());
    }
}

// The descriptor of the child's copy of the device leads nowhere: each call fails.
Test(nic_ends, a_forked_child_ends_all_that_it_inherits_and_keeps_nothing) {
    for (const char* const call : kEnds) {
        MockNic mock;
        mock.attr.max_mcast_qp_attach = 4;
        mock.error = EINVAL;
        auto all = std::make_unique<AllObjects>(mock);
        const pid_t child = fork();
        if (child == 0) {
            kept_lines = 0;
            util::set_log_sink(&kKeptSink);
            mock.failing = call;
            all->end();
            all.reset();
            _exit(kept_lines);
        }
        int status = -1;
        RVT_EQ(waitpid(child, &status, 0), child);
        cr_assert(status == 0, "%s: %#x", call, status);
        all->leave();
    }
}

Test(nic_ends, a_pair_that_is_kept_forgets_what_it_was_given) {
    MockNic mock;
    mock.attr.max_mcast_qp_attach = 4;
    AllObjects all(mock);
    all.leave();
    mock.failing = "destroy_qp";
    all.qp.reset();
    RVT_EQ(mock.modified.size(), 1);
    RVT_EQ(mock.modified.back().qp_state, IBV_QPS_RESET);
    RVT_EQ(all.nic->counts().pairs, 1);
}

Test(nic_ends, what_happens_to_what_is_kept_is_told_to_nobody) {
    MockNic mock;
    mock.takes_receives = true;
    const Opened opened(mock);
    core::Owned<core::CompChannel> channel;
    core::Owned<core::VerbsCq> queue;
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(channel, core::create_comp_channel(*opened.context)));
    RVT_OK(core::keep(queue, core::create_cq(*opened.context, 16, channel.get())));
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, {.send_cq = queue.get(),
                                                       .recv_cq = queue.get(),
                                                       .cap = {.max_inline_bytes = 64}})));
    ibv_qp* const pair = mock.last_pair;
    const Sge room{.addr = 0x1000, .length = 64, .lkey = 6};
    RVT_OK(queue->req_notify(false));
    RVT_OK(qp->post_recv({.sg_list = {&room, 1}}));
    mock.finish(pair->qp_num, true);  // of which nobody has been told yet
    mock.failing = MockNic::kEveryEnd;
    qp.reset();
    queue.reset();
    for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                      IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}) {
        mock.events.push_back(async_event_of(type, pair));
    }
    ibv_async_event failed{};
    failed.event_type = IBV_EVENT_CQ_ERR;
    failed.element.cq = pair->send_cq;
    mock.events.push_back(failed);
    opened.nic->take_events();
    opened.nic->device().progress();
    RVT_EQ(mock.acknowledged, 5);
    RVT_ASSERT(!opened.context->events().poll().has_value());
    RVT_EQ(channel->get_event(0).status(), EAGAIN);
}

Test(nic_ends, a_region_that_is_kept_is_its_error_and_can_be_ended_later) {
    MockNic mock;
    const Opened opened(mock);
    core::Mr* const mr = reg_whole(opened).take();
    mock.failing = "dereg_mr";
    for (int i = 0; i < 2; ++i) {
        RVT_EQ(core::dereg_mr(mr), EMFILE);
        RVT_EQ(opened.nic->counts().regions, 1);
    }
    mock.failing = {};
    RVT_OK(core::dereg_mr(mr));
    RVT_EQ(opened.nic->counts().regions, 0);
    RVT_EQ(mock.registered, 0);
}

/// Peers have its key, and would reach what it is not to be any more.
Test(nic_ends, a_region_that_would_be_registered_anew_stays_what_it_is_while_that_is_kept) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, reg_whole(opened)));
    const std::uint32_t key = mr->rkey();
    mock.rereg_mr_result = IBV_REREG_MR_ERR_INPUT;
    mock.failing = "dereg_mr";
    RVT_EQ(halve(*mr), EMFILE);
    RVT_EQ(mr->length(), kRegionBytes);
    RVT_EQ(mr->rkey(), key);
    mock.failing = {};
    RVT_OK(halve(*mr));
    RVT_EQ(mr->length(), kHalfOfRegion);
    RVT_EQ(mock.regions.front().is_there, false);
}

Test(nic_ends, a_region_that_is_lost_becomes_what_it_is_to_be_though_it_is_kept) {
    MockNic mock;
    const Opened opened(mock);
    core::Owned<core::Mr> mr;
    RVT_OK(core::keep(mr, reg_whole(opened)));
    const std::uint32_t key = mr->rkey();
    mock.rereg_mr_result = IBV_REREG_MR_ERR_CMD;
    mock.failing = "dereg_mr";
    RVT_OK(halve(*mr));
    RVT_EQ(mr->length(), kHalfOfRegion);
    RVT_ASSERT(mr->rkey() != key);
}
