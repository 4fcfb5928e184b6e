// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When a connected pair over packets gives its peer up: after as many whole time-outs without a
// word of it as there are retries, and one more.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::uint8_t kTimeout = 14;
constexpr std::uint64_t kTimeoutUs = (std::uint64_t{4096} << kTimeout) / 1000;
constexpr std::uint64_t kStepUs = 100;

/// Lets time pass in which only A does something: its peer is silent.
void be_silent(Pair<Packets>& pair, std::uint64_t us) {
    for (std::uint64_t passed = 0; passed < us; passed += kStepUs) {
        fake_now_us += kStepUs;
        pair.a().device->progress();
    }
}

}  // namespace

Test(packet_time, a_peer_that_says_nothing_is_given_up_after_the_last_time_out) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.post_send());
    be_silent(pair, 8 * kTimeoutUs - kStepUs);
    RVT_EQ(pair.a().qp->state(), QpState::kRts);
    be_silent(pair, kTimeoutUs);
    RVT_EQ(pair.a().qp->state(), QpState::kErr);
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
}

Test(packet_time, a_peer_that_is_not_ready_has_said_something) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.post_send());
    for (int i = 0; i < 3; ++i) {
        for (int n = 0; n < 100; ++n) {
            pair.pass_us(kStepUs);
        }
        be_silent(pair, 6 * kTimeoutUs);
        RVT_EQ(pair.a().qp->state(), QpState::kRts);
    }
    RVT_ASSERT(pair.b().device->stats().sum(Stat::kRnrNaks) > 100);
    RVT_OK(pair.b().post_recv(3));
    RVT_EQ(pair.received().wr_id, 3);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}

// Both have been stopped, say, and the peer goes on later.
Test(packet_time, a_pause_of_its_own_is_one_time_out) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send());
    fake_now_us += 100 * kTimeoutUs;
    be_silent(pair, 6 * kTimeoutUs);
    RVT_EQ(pair.a().qp->state(), QpState::kRts);
    RVT_EQ(pair.received().wr_id, 3);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}
