// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: datagrams, their route header and Q_Key, address handles, multicast groups.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr Address kGroup = {.gid = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}};

template <class Backend>
void a_datagram_arrives_behind_forty_bytes_of_route_header() {
    Pair<Backend> pair({.type = QpType::kUd});
    pair.a().fill(0, 200, 1);
    RVT_OK(pair.b().post_recv(3, 1000, 240));
    RVT_OK(pair.post_send({.bytes = 200}));
    const Wc received = pair.received();
    RVT_EQ(received.byte_len, 240);
    RVT_ASSERT(has_all(received.flags, WcFlags::kGrh));
    RVT_EQ(received.src_qpn, pair.a().qp->qpn());
    RVT_ASSERT(pair.b().holds(1040, 200, 1));
    const auto& gid = pair.a().device->address().gid;
    RVT_ASSERT(std::memcmp(pair.b().memory.data() + 1008, gid.data(), gid.size()) == 0);
}
RVT_CONFORM(a_datagram_arrives_behind_forty_bytes_of_route_header)

template <class Backend>
void a_completion_names_the_port_that_the_datagram_came_from() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send());
    RVT_EQ(pair.received().src_port, pair.a().device->address().port);
}
RVT_CONFORM(a_completion_names_the_port_that_the_datagram_came_from)
RVT_CONFORM_NIC(a_completion_names_the_port_that_the_datagram_came_from)

template <class Backend>
void a_receive_that_was_taken_back_gets_no_datagram() {
    Pair<Backend> pair({.type = QpType::kUd});
    for (const std::uint64_t wr_id : {1, 2, 3}) {
        RVT_OK(pair.b().post_recv(wr_id, wr_id * 1024));
    }
    RVT_OK(pair.b().qp->take_back_recv(2));
    RVT_EQ(pair.b().qp->take_back_recv(2), ENOENT);
    for (const std::uint64_t wr_id : {1, 3}) {
        pair.a().fill(0, 64, static_cast<int>(wr_id));
        RVT_OK(pair.post_send());
        RVT_EQ(pair.received().wr_id, wr_id);
        RVT_ASSERT(pair.b().holds(wr_id * 1024 + kGrhBytes, 64, static_cast<int>(wr_id)));
    }
    RVT_EQ(pair.b().qp->take_back_recv(1), ENOENT);
}
RVT_CONFORM(a_receive_that_was_taken_back_gets_no_datagram)

template <class Backend>
void a_pair_gets_the_number_that_it_asks_for() {
    Pair<Backend> pair({.type = QpType::kUd});
    const QpInit init{.type = QpType::kUd,
                      .send_cq = pair.a().send_cq,
                      .recv_cq = pair.a().recv_cq,
                      .qpn = pair.a().qp->qpn() ^ 8};
    Qp* qp = create_qp(*pair.a().pd, init).value();
    RVT_EQ(qp->qpn(), init.qpn);
    RVT_EQ(create_qp(*pair.a().pd, init), EADDRINUSE);
    RVT_OK(destroy_qp(qp));
}
RVT_CONFORM(a_pair_gets_the_number_that_it_asks_for)

template <class Backend>
void a_datagram_with_the_wrong_qkey_is_dropped() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send({.qkey = kQkey + 1}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
    RVT_EQ(pair.b().device->stats().sum(Stat::kDrops), 1);
}
RVT_CONFORM(a_datagram_with_the_wrong_qkey_is_dropped)

template <class Backend>
void a_qkey_with_the_top_bit_stands_for_the_senders_own() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send({.qkey = 0x80000000}));
    RVT_EQ(pair.received().wr_id, 3);
}
RVT_CONFORM(a_qkey_with_the_top_bit_stands_for_the_senders_own)

template <class Backend>
void a_datagram_to_nobody_completes() {
    Pair<Backend> pair({.type = QpType::kUd});
    const Sge element = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.wr_id = 2,
                                   .sg_list = {&element, 1},
                                   .ah = pair.a().ah,
                                   .remote_qpn = 0x3ffff,
                                   .remote_qkey = kQkey}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
RVT_CONFORM(a_datagram_to_nobody_completes)
RVT_CONFORM_NIC(a_datagram_to_nobody_completes)

template <class Backend>
void a_datagram_without_an_address_handle_is_refused() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_EQ(pair.a().qp->post_send({.remote_qpn = pair.b().qp->qpn()}), EINVAL);
}
RVT_CONFORM(a_datagram_without_an_address_handle_is_refused)
RVT_CONFORM_NIC(a_datagram_without_an_address_handle_is_refused)

template <class Backend>
void a_receive_has_to_have_room_for_the_route_header() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.b().post_recv(3, 0, 64));
    RVT_OK(pair.post_send({.bytes = 64}));
    pair.sent();
    RVT_ASSERT(pair.is_silent(pair.b().recv_cq));
}
RVT_CONFORM(a_receive_has_to_have_room_for_the_route_header)

template <class Backend>
void an_unreachable_destination_gets_nothing() {
    Pair<Backend> pair({.type = QpType::kUd});
    auto handle = create_ah(*pair.a().pd, {.dest = {.port = 4711}});
    if (pair.a().device->grade() != Grade::kPacket) {
        RVT_EQ(handle, EHOSTUNREACH);
        return;
    }
    RVT_OK(handle);  // a wire does not know who is at its other ends: the datagram gets lost
    std::swap(pair.a().ah, handle.value());
    RVT_OK(pair.post_send());
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_OK(destroy_ah(handle.value()));
}
RVT_CONFORM(an_unreachable_destination_gets_nothing)

/// Three more datagram pairs on one side, attached to a group.
struct Members {
    Qp* qps[3];
    Members(Side& side, const Options& options) {
        for (Qp*& qp : qps) {
            qp = create_qp(*side.pd,
                           {.type = QpType::kUd, .send_cq = side.send_cq, .recv_cq = side.recv_cq})
                     .value();
            for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
                RVT_OK(
                    qp->modify(attr_for(state, side, side, options), mask_for(state, QpType::kUd)));
            }
            RVT_OK(qp->attach_mcast(kGroup));
            const Sge room = side.sge(4096, 512);
            RVT_OK(qp->post_recv({.wr_id = qp->qpn(), .sg_list = {&room, 1}}));
        }
    }
};

template <class Backend>
void a_message_to_a_group_reaches_each_member_once_and_not_the_sender() {
    const Options options{.type = QpType::kUd};
    Pair<Backend> pair(options);
    Members members(pair.a(), options);
    RVT_OK(pair.a().qp->attach_mcast(kGroup));
    RVT_OK(pair.a().post_recv(99));
    Ah* group = create_ah(*pair.a().pd, {.dest = kGroup}).value();
    const Sge element = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.sg_list = {&element, 1},
                                   .ah = group,
                                   .remote_qpn = kMulticastQpn,
                                   .remote_qkey = kQkey}));
    for (Qp* member : members.qps) {
        RVT_EQ(pair.next(pair.a().recv_cq).wr_id, member->qpn());
    }
    RVT_ASSERT(pair.is_silent(pair.a().recv_cq));
    for (Qp* member : members.qps) {
        RVT_OK(member->detach_mcast(kGroup));
        RVT_OK(destroy_qp(member));
    }
    RVT_OK(pair.a().qp->detach_mcast(kGroup));
    RVT_OK(destroy_ah(group));
}
RVT_CONFORM(a_message_to_a_group_reaches_each_member_once_and_not_the_sender)

template <class Backend>
void only_datagram_pairs_join_and_only_group_addresses_are_joined() {
    Pair<Backend> connected;
    RVT_EQ(connected.a().qp->attach_mcast(kGroup), EINVAL);
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_EQ(pair.a().qp->attach_mcast(pair.a().device->address()), EINVAL);
    RVT_EQ(pair.a().qp->detach_mcast(kGroup), EINVAL);
}
RVT_CONFORM(only_datagram_pairs_join_and_only_group_addresses_are_joined)
RVT_CONFORM_NIC(only_datagram_pairs_join_and_only_group_addresses_are_joined)

template <class Backend>
void a_pair_that_is_attached_cannot_be_destroyed() {
    Pair<Backend> pair({.type = QpType::kUd});
    RVT_OK(pair.a().qp->attach_mcast(kGroup));
    RVT_EQ(destroy_qp(pair.a().qp), EBUSY);
    RVT_OK(pair.a().qp->detach_mcast(kGroup));
}
RVT_CONFORM(a_pair_that_is_attached_cannot_be_destroyed)
RVT_CONFORM_NIC(a_pair_that_is_attached_cannot_be_destroyed)

template <class Backend>
void an_address_handle_of_another_domain_is_refused() {
    Pair<Backend> pair({.type = QpType::kUd});
    Pd* other = alloc_pd(*pair.a().context).value();
    Ah* ah = create_ah(*other, {.dest = pair.b().device->address()}).value();
    const Sge element = pair.a().sge(0, 64);
    RVT_EQ(pair.a().qp->post_send({.sg_list = {&element, 1},
                                   .ah = ah,
                                   .remote_qpn = pair.b().qp->qpn(),
                                   .remote_qkey = kQkey}),
           EINVAL);
    RVT_OK(destroy_ah(ah));
    RVT_OK(dealloc_pd(other));
}
RVT_CONFORM(an_address_handle_of_another_domain_is_refused)

}  // namespace
