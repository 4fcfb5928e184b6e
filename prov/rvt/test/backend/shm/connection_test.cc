// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections between endpoints of one process and of two.
#include "backend/shm/connection.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <vector>

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
    cr_assert(at_a != nullptr && at_b != nullptr);
    cr_assert(at_a->address == b.address() && at_b->address == a.address());
    cr_assert(eq(u64, at_a->incarnation, b.page().incarnation));
    cr_assert(leads_to(*at_a, *at_b));
    cr_assert(leads_to(*at_b, *at_a));
    cr_assert(eq(sz, at_a->keys.length(), 4 * rvt::shm::kPageBytes));
    cr_assert(at_a->is_same_process);
    cr_assert(at_a->may_read_memory);
    cr_assert(eq(int, at_a->pid, getpid()));
}

Test(connection, to_oneself_returns_what_was_sent, .timeout = 30) {
    TestEndpoint a;
    a.connector().connect(a.address());
    const auto self = a.next_peering();
    cr_assert(self != nullptr);
    cr_assert(leads_to(*self, *self));
    cr_assert(self->is_same_process);
    cr_assert(eq(u64, self->page.at<EndpointPage>(0)->incarnation, a.page().incarnation));
    cr_assert(eq(sz, a.waiting_events(), 0));
}

Test(connection, to_an_address_without_listener_fails_in_bounded_time, .timeout = 30) {
    TestEndpoint a({.refused_timeout_ms = 50});
    const rvt::util::UdpPort port = quiet_port();
    const rvt::util::SockAddr nobody = port.address;
    a.connector().connect(nobody);
    const auto event = a.next();
    cr_assert(event != nullptr);
    cr_assert(event->kind == Kind::kFailed);
    cr_assert(eq(int, event->error, ECONNREFUSED));
    cr_assert(event->address == nobody);
}

Test(connection, finds_a_peer_that_starts_late, .timeout = 30) {
    TestEndpoint a;
    rvt::util::UdpPort port = quiet_port();
    a.connector().connect(port.address);
    port.socket.reset();
    TestEndpoint b({.port = port.address.port});
    cr_assert(b.status().is_ok());
    cr_assert(a.next_peering() != nullptr);
    cr_assert(b.next_peering() != nullptr);
}

Test(connection, is_made_once_when_asked_twice, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    a.connector().connect(b.address());
    cr_assert(a.next_peering() != nullptr);
    a.connector().connect(b.address());
    a.connector().connect(a.address());  // done after the others
    const auto self = a.next_peering();
    cr_assert(self != nullptr);
    cr_assert(self->address == a.address());
}

Test(connection, that_closes_tells_the_peer, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    const auto at_a = a.next_peering();
    const auto at_b = b.next_peering();
    a.connector().close(at_a->link);
    const auto event = b.next();
    cr_assert(event != nullptr);
    cr_assert(event->kind == Kind::kPeerGone);
    cr_assert(eq(u64, event->link, at_b->link));
    cr_assert(eq(int, event->error, ECONNRESET));
}

Test(connection, can_be_made_again_after_it_closed, .timeout = 30) {
    TestEndpoint a;
    TestEndpoint b;
    a.connector().connect(b.address());
    const auto first = a.next_peering();
    b.next_peering();
    a.connector().close(first->link);
    a.connector().connect(b.address());
    cr_assert(a.next_peering() != nullptr);
    cr_assert(b.next()->kind == Kind::kPeerGone);
    cr_assert(b.next_peering() != nullptr);
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
        cr_assert(at_left != nullptr && at_right != nullptr);
        cr_assert(leads_to(*at_left, *at_right) && leads_to(*at_right, *at_left));
        cr_assert(eq(sz, left[i]->waiting_events() + right[i]->waiting_events(), 0));
    }
}
