// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory that a flow's NIC reads from the peer: endpoints of this process, and
// the mock for their NIC.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "core/flow_node.h"
#include "core/mock_roce_nic.h"
#include "core/nic_pages.h"

using namespace rvt;
using namespace rvt::core;
using test::FlowNode;

namespace {

using test::Pages;
constexpr std::size_t kBytes = test::kPagesBytes;

struct Net {
    /// @param b_keeps  Whether the second of them keeps registrations, as the
    /// first does.
    explicit Net(bool b_keeps = true) : watch(test::watch_or_skip()) {
        nic = test::open_mock_nic(mock, registry);
        a = make(5001, true);
        b = make(5002, b_keeps);
        a->flows->connect(b->address());
        until([&] { return a->flow != nullptr && b->flow != nullptr; });
        RVT_ASSERT(a->flow->is_over_nic());
    }
    ~Net() {
        a.reset();
        b.reset();
        nic.reset();
        RVT_EQ(mock.live, 0);
    }
    Net(const Net&) = delete;
    Net& operator=(const Net&) = delete;

    std::unique_ptr<FlowNode> make(std::uint16_t port, bool keeps) {
        Address address = nic->device().address();
        address.port = port;
        return std::make_unique<FlowNode>(
            wire, address, &nic->device(),
            RegCacheAttr{
                .watch = keeps ? watch : nullptr, .max_bytes = 1 << 24, .max_regions = 128});
    }
    void poll() {
        nic->take_events();
        a->poll();
        b->poll();
    }
    /// Polls until it is so; fails the test when it does not come to that.
    template <class Is>
    void until(Is is) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!is()) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            poll();
        }
    }
    /// The second lets its NIC read what the first has lent.
    bool fetch(const RdLoan& loan, const iovec& from, const iovec& to, std::uint64_t name) {
        return b->flow->fetch(to, reinterpret_cast<std::uint64_t>(from.iov_base), loan.key(), name);
    }

    std::shared_ptr<util::MemoryWatch> watch;
    verbs::MockNic mock;
    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    fake::Wire wire;
    std::unique_ptr<FlowNode> a;
    std::unique_ptr<FlowNode> b;
};

}  // namespace

TestSuite(rd_fetch, .timeout = 60);

Test(rd_fetch, memory_of_the_peer_comes_to_its_place) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    RVT_ASSERT(loan.is_any());
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 5));
    net.until([&] { return net.b->fetched == std::vector<std::uint64_t>{5}; });
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 1);
    loan.end();
}

Test(rd_fetch, more_than_the_pair_takes_wait_and_keep_their_order) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    constexpr std::size_t kParts = 64;
    std::vector<std::uint64_t> names;
    for (std::size_t i = 0; i < kParts; ++i) {
        const std::size_t at = i * kBytes / kParts;
        RVT_ASSERT(
            net.fetch(loan, from.part(at, kBytes / kParts), to.part(at, kBytes / kParts), i));
        names.push_back(i);
    }
    net.until([&] { return net.b->fetched.size() == kParts; });
    RVT_ASSERT(net.b->fetched == names);
    RVT_ASSERT(to.is('a'));
    loan.end();
}

Test(rd_fetch, frames_go_on_beside_it) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    for (unsigned i = 0; i < 200; ++i) {
        RVT_ASSERT(net.fetch(loan, from.all(), to.all(), i));
        net.until([&] { return FlowNode::say("there", *net.b->flow); });
        net.poll();
    }
    net.until([&] { return net.b->fetched.size() == 200 && net.a->heard.size() == 200; });
    loan.end();
}

Test(rd_fetch, needs_registrations_at_both_ends) {
    Net net(false);
    RVT_ASSERT(!net.a->flow->can_rdma());
    RVT_ASSERT(!net.b->flow->can_rdma());
}

Test(rd_fetch, shared_memory_is_not_lent_nor_read_into) {
    Net net;
    const Pages shared('a', kBytes, MAP_SHARED);
    const Pages to('-');
    RVT_ASSERT(!net.a->flow->lend(shared.all()).is_any());
    RdLoan loan = net.a->flow->lend(to.all());
    RVT_ASSERT(!net.fetch(loan, to.all(), shared.all(), 1));
    loan.end();
}

Test(rd_fetch, memory_that_cannot_be_registered_is_not_lent) {
    Net net;
    const Pages from('a');
    net.mock.reg_mr_error = ENOMEM;
    RVT_ASSERT(!net.a->flow->lend(from.all()).is_any());
}

Test(rd_fetch, a_key_that_is_wrong_ends_the_flow) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RVT_ASSERT(
        net.b->flow->fetch(to.all(), reinterpret_cast<std::uint64_t>(from.memory), 99999, 1));
    net.until([&] { return net.b->ends == 1; });
    RVT_ASSERT(net.b->fetched.empty());
    RVT_ASSERT(to.is('-'));
}

Test(rd_fetch, memory_beyond_the_loan_ends_the_flow) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.part(0, 4096));
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 1));
    net.until([&] { return net.b->ends == 1; });
    RVT_ASSERT(to.is('-'));
    loan.end();
}

Test(rd_fetch, a_peer_that_dies_ends_the_flow) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    net.mock.is_rdma_stopped = true;
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 1));
    net.poll();
    net.mock.is_cut = true;
    net.mock.is_rdma_stopped = false;
    RVT_ASSERT(FlowNode::say("are you there?", *net.b->flow));
    net.until([&] { return net.b->ends == 1; });
    RVT_ASSERT(net.b->fetched.empty());
    loan.end();
}

Test(rd_fetch, an_owner_who_was_away_is_told_of_what_was_lost) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    net.mock.is_rdma_stopped = true;
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 7));
    net.mock.fail_pair(net.mock.connected_pairs()[1]);
    // Somebody polls in its stead for as long as there is something to poll for.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (net.b->is_hot() && std::chrono::steady_clock::now() < end) {
        net.nic->take_events();
        net.b->flows->poll_for_owner();
        net.a->poll();
    }
    RVT_ASSERT(net.b->lost.empty());
    RVT_ASSERT(net.b->is_hot());
    net.until([&] { return net.b->lost == std::vector<std::uint64_t>{7}; });
    loan.end();
}

Test(rd_fetch, what_was_read_for_an_owner_who_closes_is_told_of_as_lost) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 7));
    net.b->flows->poll_for_owner();
    net.b->flow->close();
    net.until([&] { return !net.b->lost.empty(); });
    RVT_ASSERT(net.b->lost == std::vector<std::uint64_t>{7} && net.b->fetched.empty());
    net.until([&] { return net.a->ends == 1; });
    loan.end();
}

Test(rd_fetch, nothing_is_written_any_more_when_the_flow_is_closed) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    net.mock.is_rdma_stopped = true;
    for (unsigned i = 0; i < 40; ++i) {  // some of them wait
        RVT_ASSERT(net.fetch(loan, from.all(), to.all(), i));
    }
    net.b->flow->close();
    net.mock.is_rdma_stopped = false;
    net.until([&] { return net.a->ends == 1 && net.mock.pairs_left() == 0; });
    net.until([&] { return net.b->lost.size() == 40; });
    std::ranges::sort(net.b->lost);
    RVT_ASSERT(std::ranges::adjacent_find(net.b->lost) == net.b->lost.end());
    RVT_ASSERT(net.b->fetched.empty());
    RVT_ASSERT(to.is('-'));
    RVT_EQ(net.mock.reads, 0);
    loan.end();
}

Test(rd_fetch, an_endpoint_that_ends_meanwhile_leaves_nothing_registered) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    RdLoan loan = net.a->flow->lend(from.all());
    net.mock.is_rdma_stopped = true;
    RVT_ASSERT(net.fetch(loan, from.all(), to.all(), 1));
    const std::size_t before = net.mock.registered;
    net.b.reset();
    RVT_ASSERT(net.mock.registered < before - kBytes);
    net.b = net.make(5003, true);
    loan.end();
}
