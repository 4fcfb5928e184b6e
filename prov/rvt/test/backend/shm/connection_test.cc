// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections between endpoints of one process and of two.
#include "backend/shm/connection.h"

#include <criterion/criterion.h>

#include <vector>

#include "common/check.h"
#include "common/own_network.h"
#include "test_endpoint.h"

using rvt::shm::ConnectionEvent;
using rvt::shm::EndpointPage;
using rvt::shm::kSmallLinesOffset;
using rvt::shm::Peering;
using rvt::shm::test::Kind;
using rvt::shm::test::quiet_port;
using rvt::shm::test::TestEndpoint;

namespace {

/// What one writes to its outbox is what the other reads from its inbox.
bool leads_to(const Peering& from, const Peering& to) {
    *from.outbox.at<std::uint64_t>(kSmallLinesOffset) = 0x1122334455667788;
    return *to.inbox.at<std::uint64_t>(kSmallLinesOffset) == 0x1122334455667788;
}

}  // namespace

Test(connection, gives_both_ends_each_others_memory, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    const auto at_a = a.next_peering();
    const auto at_b = b.next_peering();
    RVT_ASSERT(at_a != nullptr && at_b != nullptr);
    RVT_ASSERT(at_a->address == b.address() && at_b->address == a.address());
    RVT_EQ(at_a->incarnation, b.page().incarnation);
    RVT_ASSERT(leads_to(*at_a, *at_b));
    RVT_ASSERT(leads_to(*at_b, *at_a));
    RVT_EQ(at_a->keys.length(), 4 * rvt::shm::kPageBytes);
    RVT_ASSERT(at_a->is_same_process);
    RVT_ASSERT(at_a->may_read_memory);
    RVT_EQ(at_a->pid, getpid());
}

Test(connection, to_oneself_returns_what_was_sent, .timeout = 30) {
    TestEndpoint a;
    a.connector().connect(a.address());
    const auto self = a.next_peering();
    RVT_ASSERT(self != nullptr);
    RVT_ASSERT(leads_to(*self, *self));
    RVT_ASSERT(self->is_same_process);
    RVT_EQ(self->page.at<EndpointPage>(0)->incarnation, a.page().incarnation);
    RVT_EQ(a.waiting_events(), 0);
}

Test(connection, to_an_address_without_listener_fails_in_bounded_time, .timeout = 30) {
    TestEndpoint a({.refused_timeout_ms = 50});
    const rvt::util::UdpPort port = quiet_port();
    const rvt::util::SockAddr nobody = port.address;
    a.connector().connect(nobody);
    const auto event = a.next();
    RVT_ASSERT(event != nullptr);
    RVT_ASSERT(event->kind == Kind::kFailed);
    RVT_EQ(event->error, ECONNREFUSED);
    RVT_ASSERT(event->address == nobody);
}

Test(connection, finds_a_peer_that_starts_late, .timeout = 30) {
    rvt::test::enter_own_network();  // where nobody else takes the port meanwhile
    TestEndpoint a;
    rvt::util::UdpPort port = quiet_port();
    a.connector().connect(port.address);
    port.socket.reset();
    TestEndpoint b({.port = port.address.port});
    RVT_ASSERT(b.status().is_ok());
    RVT_ASSERT(a.next_peering() != nullptr);
    RVT_ASSERT(b.next_peering() != nullptr);
}

Test(connection, is_made_once_when_asked_twice, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    a.connector().connect(b.address());
    RVT_ASSERT(a.next_peering() != nullptr);
    a.connector().connect(b.address());
    a.connector().connect(a.address());  // done after the others
    const auto self = a.next_peering();
    RVT_ASSERT(self != nullptr);
    RVT_ASSERT(self->address == a.address());
}

Test(connection, that_closes_tells_the_peer, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    const auto at_a = a.next_peering();
    const auto at_b = b.next_peering();
    a.connector().close(at_a->link);
    const auto event = b.next();
    RVT_ASSERT(event != nullptr);
    RVT_ASSERT(event->kind == Kind::kPeerGone);
    RVT_EQ(event->link, at_b->link);
    RVT_EQ(event->error, ECONNRESET);
}

Test(connection, can_be_made_again_after_it_closed, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    const auto first = a.next_peering();
    b.next_peering();
    a.connector().close(first->link);
    a.connector().connect(b.address());
    RVT_ASSERT(a.next_peering() != nullptr);
    RVT_ASSERT(b.next()->kind == Kind::kPeerGone);
    RVT_ASSERT(b.next_peering() != nullptr);
}

Test(connection, that_crosses_another_survives_once_on_both_sides, .timeout = 60) {
    constexpr int kPairs = 200;
    std::vector<std::unique_ptr<TestEndpoint>> left;
    std::vector<std::unique_ptr<TestEndpoint>> right;
    for (int i = 0; i < kPairs; ++i) {
        left.push_back(std::make_unique<TestEndpoint>());
        right.push_back(std::make_unique<TestEndpoint>());
    }
    for (int i = 0; i < kPairs; ++i) {
        left[i]->connector().connect(right[i]->address());
        right[i]->connector().connect(left[i]->address());
    }
    for (int i = 0; i < kPairs; ++i) {
        const auto at_left = left[i]->next_peering();
        const auto at_right = right[i]->next_peering();
        RVT_ASSERT(at_left != nullptr && at_right != nullptr);
        RVT_ASSERT(leads_to(*at_left, *at_right) && leads_to(*at_right, *at_left));
        RVT_EQ(left[i]->waiting_events() + right[i]->waiting_events(), 0);
    }
}
