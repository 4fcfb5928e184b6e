// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Packet sequence numbers wrap at 24 bits, and the shorter way tells which comes first.
#include "protocol/psn.h"

#include "common/check.h"

using rvt::protocol::Psn;

Test(psn, wraps_after_24_bits) {
    RVT_EQ((Psn(0xfffffe) + 3).value(), 1);
    RVT_EQ((Psn(1) - 3).value(), 0xfffffe);
    RVT_EQ(Psn(0x1000005).value(), 5);
}

Test(psn, the_shorter_way_gives_the_distance) {
    RVT_EQ(distance(Psn(5), Psn(2)), 3);
    RVT_EQ(distance(Psn(2), Psn(5)), -3);
    RVT_EQ(distance(Psn(1), Psn(0xffffff)), 2);
    RVT_EQ(distance(Psn(0xffffff), Psn(1)), -2);
    RVT_EQ(distance(Psn(7), Psn(7)), 0);
}

Test(psn, half_the_range_away_counts_as_behind) {
    RVT_EQ(distance(Psn(0x7fffff), Psn(0)), 0x7fffff);
    RVT_EQ(distance(Psn(0x800000), Psn(0)), -0x800000);
}
