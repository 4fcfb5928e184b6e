// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the control thread sends for an application that does not poll, and when it asks for the
// endpoint's lock at all.
#include <cstddef>
#include <vector>

#include <criterion/criterion.h>

#include "common/check.h"
#include "core/nic_net.h"

using namespace rvt;
using test::NicNet;

namespace {

constexpr unsigned kMessages = 400;  // more than leave at once
constexpr std::size_t kBytes = 16384;

/// Messages from the first endpoint, and their receives.
struct Unsent {
    Unsent() : data(kBytes) {
        const iovec all{data.data(), data.size()};
        for (unsigned i = 0; i < kMessages; ++i) {
            RVT_OK(net.b->recv(i, all));
            RVT_OK(net.a->send(i, all));
        }
    }

    NicNet net;
    std::vector<std::byte> data;
};

}  // namespace

Test(rd_unsent, who_has_nothing_to_send_is_not_interrupted, .timeout = 60) {
    NicNet net;
    RVT_ASSERT(!net.users[0]->control_send());
    RVT_EQ(net.a->lock.claims, 0);
}

Test(rd_unsent, what_waits_for_room_is_sent_for_who_does_not_poll, .timeout = 60) {
    Unsent unsent;
    NicNet& net = unsent.net;
    while (net.users[0]->control_send()) {
        net.opened->take_events();
        net.b->poll();
    }
    RVT_NE(net.a->lock.claims, 0);
    net.until([&] { return net.b->is_done(kMessages - 1); });
    // It was the last.
    const unsigned claims = net.a->lock.claims;
    RVT_ASSERT(!net.users[0]->control_send());
    RVT_EQ(net.a->lock.claims, claims);
}
