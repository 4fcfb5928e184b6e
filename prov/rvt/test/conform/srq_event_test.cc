// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: shared receive queues, completion channels, objects in use.
#include "conform/fixture.h"

#include <poll.h>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr int kEventMs = 10'000;  // a NIC's driver tells of a completion a moment after it

template <class Backend>
void a_shared_queue_serves_its_pairs_in_the_order_of_posting() {
    Pair<Backend> pair({.has_srq = true});
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(pair.post_send());
    RVT_OK(pair.post_send());
    RVT_EQ(pair.received().wr_id, 1);
    RVT_EQ(pair.received().wr_id, 2);
}
RVT_CONFORM_RC(a_shared_queue_serves_its_pairs_in_the_order_of_posting)
RVT_CONFORM_NIC(a_shared_queue_serves_its_pairs_in_the_order_of_posting)

template <class Backend>
void a_pair_with_a_shared_queue_takes_no_receives_itself() {
    Pair<Backend> pair({.has_srq = true});
    RVT_EQ(pair.b().qp->post_recv({.wr_id = 1}), EINVAL);
}
RVT_CONFORM_RC(a_pair_with_a_shared_queue_takes_no_receives_itself)
RVT_CONFORM_NIC(a_pair_with_a_shared_queue_takes_no_receives_itself)

template <class Backend>
void a_full_shared_queue_is_enomem() {
    Pair<Backend> pair({.has_srq = true, .srq = {.max_wr = 2}});
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_EQ(pair.b().post_recv(3), ENOMEM);
}
RVT_CONFORM_RC(a_full_shared_queue_is_enomem)

template <class Backend>
void the_limit_event_comes_once_when_receives_become_few() {
    Pair<Backend> pair({.has_srq = true, .srq = {.max_wr = 8}});
    for (std::uint64_t i = 0; i < 4; ++i) {
        RVT_OK(pair.b().post_recv(i));
    }
    RVT_OK(pair.b().srq->set_limit(3));
    RVT_OK(pair.post_send());
    pair.received();
    RVT_ASSERT(pair.has_no_event(kB));  // three are left, and three is not fewer than three
    RVT_OK(pair.post_send());
    pair.received();
    RVT_EQ(pair.event(kB), EventType::kSrqLimitReached);
    RVT_OK(pair.post_send());
    pair.received();
    RVT_ASSERT(pair.has_no_event(kB));
}
RVT_CONFORM_RC(the_limit_event_comes_once_when_receives_become_few)

template <class Backend>
void a_limit_beyond_the_queue_is_refused() {
    Pair<Backend> pair({.has_srq = true, .srq = {.max_wr = 8}});
    RVT_EQ(pair.b().srq->set_limit(9), EINVAL);
    RVT_EQ(pair.b().srq->query().limit, 0);
}
RVT_CONFORM_RC(a_limit_beyond_the_queue_is_refused)
RVT_CONFORM_NIC(a_limit_beyond_the_queue_is_refused)

template <class Backend>
void an_empty_shared_queue_holds_the_sender_until_a_receive_is_posted() {
    Pair<Backend> pair({.has_srq = true});
    RVT_OK(pair.post_send());
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_OK(pair.b().post_recv(5));
    pair.pass_us(1000);
    RVT_EQ(pair.received().wr_id, 5);
}
RVT_CONFORM_RC(an_empty_shared_queue_holds_the_sender_until_a_receive_is_posted)
RVT_CONFORM_NIC(an_empty_shared_queue_holds_the_sender_until_a_receive_is_posted)

template <class Backend>
void error_leaves_shared_receives_and_says_that_no_more_are_taken() {
    Pair<Backend> pair({.has_srq = true});
    RVT_OK(pair.b().post_recv(5));
    RVT_OK(pair.go(kB, QpState::kErr));
    RVT_EQ(pair.event(kB), EventType::kQpLastWqeReached);
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_EQ(pair.b().srq->queue().size(), 1);
}
RVT_CONFORM_RC(error_leaves_shared_receives_and_says_that_no_more_are_taken)

template <class Backend>
void an_armed_queue_announces_the_next_completion_once() {
    Pair<Backend> pair;
    RVT_OK(pair.b().recv_cq->req_notify(false));
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(pair.post_send());
    RVT_OK(pair.post_send());
    pair.sent();
    pair.sent();
    RVT_ASSERT(pair.b().channel->get_event(kEventMs).value() == pair.b().recv_cq);
    RVT_EQ(pair.b().channel->get_event(0), EAGAIN);
}
RVT_CONFORM_RC(an_armed_queue_announces_the_next_completion_once)
RVT_CONFORM_NIC(an_armed_queue_announces_the_next_completion_once)

template <class Backend>
void a_channel_tells_once_that_a_queue_has_got_something() {
    Pair<Backend> pair;
    Side& b = pair.b();
    RVT_EQ(b.channel->take_news(), false);
    RVT_EQ(b.recv_cq->may_have_entries(), false);
    RVT_OK(b.post_recv(1));
    RVT_OK(pair.post_send());
    pair.sent();
    RVT_EQ(b.channel->take_news(), true);
    RVT_EQ(b.channel->take_news(), false);
    RVT_EQ(b.recv_cq->may_have_entries(), true);
}
RVT_CONFORM_RC(a_channel_tells_once_that_a_queue_has_got_something)

template <class Backend>
void a_queue_armed_for_solicited_completions_ignores_others() {
    Pair<Backend> pair;
    RVT_OK(pair.b().recv_cq->req_notify(true));
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().post_recv(2));
    RVT_OK(pair.post_send());
    pair.sent();
    RVT_EQ(pair.b().channel->get_event(0), EAGAIN);
    RVT_OK(pair.post_send({.flags = SendFlags::kSolicited}));
    pair.sent();
    RVT_ASSERT(pair.b().channel->get_event(kEventMs).value() == pair.b().recv_cq);
}
RVT_CONFORM_RC(a_queue_armed_for_solicited_completions_ignores_others)
RVT_CONFORM_NIC(a_queue_armed_for_solicited_completions_ignores_others)

template <class Backend>
void a_failed_completion_counts_as_solicited() {
    Pair<Backend> pair;
    RVT_OK(pair.a().recv_cq->req_notify(true));
    RVT_OK(pair.a().post_recv(1));
    RVT_OK(pair.go(kA, QpState::kErr));
    RVT_ASSERT(pair.a().channel->get_event(kEventMs).value() == pair.a().recv_cq);
}
RVT_CONFORM_RC(a_failed_completion_counts_as_solicited)
RVT_CONFORM_NIC(a_failed_completion_counts_as_solicited)

template <class Backend>
void a_queue_that_is_destroyed_takes_its_announcement_along() {
    Pair<Backend> pair;
    Side& b = pair.b();
    RVT_OK(b.recv_cq->req_notify(false));
    RVT_OK(b.post_recv(1));
    RVT_OK(pair.post_send());
    pair.received();
    pollfd readable{.fd = b.channel->fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&readable, 1, 0), 1);
    RVT_OK(destroy_qp(b.qp));
    b.qp = nullptr;
    RVT_OK(destroy_cq(b.recv_cq));
    RVT_EQ(poll(&readable, 1, 0), 0);
    b.recv_cq = create_cq(*b.context, 1, b.channel).value();
}
RVT_CONFORM_RC(a_queue_that_is_destroyed_takes_its_announcement_along)

template <class Backend>
void objects_in_use_cannot_be_destroyed() {
    Pair<Backend> pair({.has_srq = true});
    RVT_EQ(destroy_cq(pair.a().send_cq), EBUSY);
    RVT_EQ(destroy_srq(pair.a().srq), EBUSY);
    RVT_EQ(dealloc_pd(pair.a().pd), EBUSY);
    RVT_EQ(destroy_comp_channel(pair.a().channel), EBUSY);
    RVT_EQ(close_device(pair.a().context), EBUSY);
}
RVT_CONFORM_RC(objects_in_use_cannot_be_destroyed)
RVT_CONFORM_NIC(objects_in_use_cannot_be_destroyed)

template <class Backend>
void sizes_beyond_the_device_are_refused() {
    Pair<Backend> pair;
    const DeviceLimits& limits = pair.a().device->limits();
    RVT_EQ(create_cq(*pair.a().context, limits.max_cqe + 1), EINVAL);
    RVT_EQ(create_cq(*pair.a().context, 0), EINVAL);
    RVT_EQ(create_srq(*pair.a().pd, {.max_wr = limits.max_srq_wr + 1}), EINVAL);
    RVT_EQ(create_qp(*pair.a().pd, {.send_cq = pair.a().send_cq,
                                    .recv_cq = pair.a().recv_cq,
                                    .cap = {.max_send_wr = limits.max_qp_wr + 1}}),
           EINVAL);
    RVT_EQ(create_qp(*pair.a().pd, {.send_cq = pair.a().send_cq}), EINVAL);
}
RVT_CONFORM_RC(sizes_beyond_the_device_are_refused)
RVT_CONFORM_NIC(sizes_beyond_the_device_are_refused)

template <class Backend>
void counters_say_what_was_moved() {
    Pair<Backend> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.bytes = 100}));
    pair.sent();
    pair.received();
    RVT_EQ(pair.a().device->stats().sum(Stat::kMessagesSent), 1);
    RVT_EQ(pair.a().device->stats().sum(Stat::kBytesSent), 100);
    RVT_EQ(pair.b().device->stats().sum(Stat::kMessagesReceived), 1);
    RVT_EQ(pair.b().device->stats().sum(Stat::kBytesReceived), 100);
}
RVT_CONFORM_RC(counters_say_what_was_moved)

}  // namespace
