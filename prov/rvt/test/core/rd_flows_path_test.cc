// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows on a way that is narrower than the devices at its ends know.
#include <string>

#include "core/flow_pair.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

/// Two endpoints whose packets may be larger than those of FlowPair.
struct Wide {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11, 1408};
    FlowTalker b{wire, 2, 12, 1408};

    template <class IsDone>
    bool run_until(IsDone is_done) {
        for (int turn = 0; turn < 200'000 && !is_done(); ++turn, now_us += 20) {
            a.poll();
            b.poll();
        }
        return is_done();
    }
    void connect() {
        a.flows->connect(b.address());
        RVT_ASSERT(run_until([&] { return a.flow != nullptr && b.flow != nullptr; }));
    }
    /// What each says reaches the other.
    void talk() {
        const std::string text(5000, 'x');
        RVT_ASSERT(a.lend(1, text) && b.lend(1, text));
        RVT_ASSERT(run_until([&] { return a.flow->is_drained() && b.flow->is_drained(); }));
        RVT_ASSERT(a.heard.back().text == text);
        RVT_ASSERT(b.heard.back().text == text);
    }
};

}  // namespace

Test(rd_flows_path, a_new_flow_has_packets_that_get_through) {
    Wide net;
    net.wire.narrow(512);
    net.connect();
    RVT_EQ(net.a.flow->payload_bytes(), 512);
    RVT_EQ(net.b.flow->payload_bytes(), 512);
    net.talk();
    RVT_EQ(net.a.ends + net.b.ends, 0);
}

Test(rd_flows_path, so_has_one_that_both_ask_for) {
    Wide net;
    net.wire.narrow(512);
    net.b.flows->connect(net.a.address());
    net.connect();
    RVT_EQ(net.a.flow->payload_bytes(), 512);
    net.talk();
    RVT_EQ(net.a.opens + net.b.opens, 2);
}

Test(rd_flows_path,
     a_flow_whose_packets_do_not_get_through_any_more_ends_and_the_next_has_smaller) {
    Wide net;
    net.connect();
    net.talk();
    net.wire.narrow(512);
    const std::string text(5000, 'x');
    const std::uint64_t began_us = now_us;
    RVT_ASSERT(net.a.lend(1, text));
    RVT_ASSERT(net.run_until([&] { return net.a.ends == 1 && net.b.ends == 1; }));
    RVT_ASSERT(now_us - began_us < 1'000'000);
    net.connect();
    RVT_EQ(net.a.flow->payload_bytes(), 512);
    net.talk();
}

Test(rd_flows_path, a_flow_whose_packets_still_get_through_stays) {
    Wide net;
    net.wire.narrow(512);
    net.connect();
    net.talk();
    path_narrowed(net.a.flows->device(), net.b.address());
    path_narrowed(net.b.flows->device(), net.a.address());
    net.talk();
    RVT_EQ(net.a.ends + net.b.ends, 0);
}
