// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who is told that a pair is not there: each soon, none too often, and all together not too many.
#include "core/rd_notices.h"

#include "common/check.h"

using rvt::core::RdNotices;

namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

}  // namespace

Test(rd_notices, each_of_many_senders_is_told_at_once) {
    RdNotices notices;
    for (std::size_t source = 0; source < 200; ++source) {
        RVT_ASSERT(notices.may_tell(source, kSecondUs));
    }
}

Test(rd_notices, who_has_been_told_is_told_again_when_that_may_be_lost) {
    RdNotices notices;
    RVT_ASSERT(notices.may_tell(7, kSecondUs));
    RVT_ASSERT(!notices.may_tell(7, kSecondUs + 50'000));
    RVT_ASSERT(notices.may_tell(7, kSecondUs + 150'000));
}

Test(rd_notices, senders_without_end_are_not_all_answered) {
    RdNotices notices;
    unsigned told = 0;
    for (std::size_t source = 0; source < 1'000'000; ++source) {
        told += notices.may_tell(source, kSecondUs + source) ? 1 : 0;
    }
    RVT_ASSERT(told >= 1000);
    RVT_ASSERT(told <= 1300);
}
