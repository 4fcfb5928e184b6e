// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagrams that wait: their order, their bytes, how many there may be.
#include "backend/shm/datagram_queue.h"

#include <span>
#include <string>

#include <criterion/criterion.h>

#include "common/check.h"

using namespace rvt::shm;

namespace {

bool keep(DatagramQueue& queue, std::string header, std::string payload) {
    const std::size_t half = payload.size() / 2;
    const iovec pieces[] = {{payload.data(), half}, {payload.data() + half, payload.size() - half}};
    return queue.keep(std::as_bytes(std::span(header)), pieces);
}

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Takes up to `most`. Returns: header and payload of each.
std::string take(DatagramQueue& queue, std::size_t most) {
    std::string all;
    for (; most != 0 && !queue.is_empty(); --most) {
        const DatagramQueue::Datagram next = queue.front();
        all += text_of(next.header) + ":";
        all +=
            text_of({static_cast<const std::byte*>(next.payload.iov_base), next.payload.iov_len});
        all += " ";
        queue.pop();
    }
    return all;
}

}  // namespace

Test(datagram_queue, what_waits_leaves_in_order_as_it_came) {
    DatagramQueue queue;
    RVT_ASSERT(queue.is_empty());
    RVT_ASSERT(keep(queue, "a", "one"));
    RVT_ASSERT(keep(queue, "bc", ""));
    RVT_ASSERT(keep(queue, "", "three"));
    RVT_ASSERT(take(queue, 1) == "a:one ");
    RVT_ASSERT(keep(queue, "d", "four"));
    RVT_ASSERT(take(queue, 9) == "bc: :three d:four ");
    RVT_ASSERT(queue.is_empty());
}

Test(datagram_queue, one_that_finds_no_room_is_refused_and_the_others_stay) {
    DatagramQueue queue;
    const std::string long_one(4000, 'x');
    std::size_t kept = 0;
    while (keep(queue, "h", long_one)) {
        ++kept;
    }
    RVT_EQ(kept, DatagramQueue::kMaxBytes / 4009);
    // Room is made anew however often, and old bytes are not kept.
    for (int turn = 0; turn < 1000; ++turn) {
        RVT_EQ(take(queue, 1).size(), 4003);
        RVT_ASSERT(keep(queue, "h", long_one));
        RVT_ASSERT(not(keep(queue, "h", long_one)));
    }
    RVT_EQ(queue.clear(), kept);
    RVT_ASSERT(queue.is_empty());
    RVT_ASSERT(keep(queue, "h", long_one));
}
