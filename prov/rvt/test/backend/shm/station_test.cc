// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an endpoint tells its peers of itself.
#include "backend/shm/station.h"

#include <criterion/criterion.h>

#include "common/check.h"
#include "test_endpoint.h"

using rvt::shm::EndpointPage;
using rvt::shm::Station;
using rvt::shm::StationAttr;
using rvt::shm::test::loopback;
using rvt::shm::test::TestEndpoint;

namespace {

/// So many that a peer must have seen some.
void poll_often(Station& station) {
    for (int i = 0; i < 1000; ++i) {
        station.note_poll();
    }
}

}  // namespace

Test(station, polls_in_the_applications_stead_are_not_its, .timeout = 30) {
    TestEndpoint peer;
    Station station;
    RVT_OK(station.bind(loopback()));
    StationAttr attr;
    attr.user = &peer;
    RVT_OK(station.open(attr));
    peer.connector().connect(station.address());
    const auto peering = peer.next_peering();
    RVT_ASSERT(peering != nullptr);
    const EndpointPage& page = *peering->page.at<EndpointPage>(0);
    const auto last_seen = [&] {
        return page.last_poll.load(std::memory_order_relaxed);  // relaxed: by the same thread
    };

    poll_often(station);
    const auto own = station.polling();
    const std::uint64_t seen = last_seen();
    RVT_NE(own.count, 0);
    RVT_NE(seen, 0);
    poll_often(station);
    RVT_NE(station.poll_count(), own.count);
    RVT_NE(last_seen(), seen);
    station.restore(own);
    RVT_EQ(station.poll_count(), own.count);
    RVT_EQ(last_seen(), seen);
    station.close();
}
