// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ring of posted send work requests, where conformance does not reach.
#include "core/send_queue.h"

#include "common/check.h"

using namespace rvt;
using namespace rvt::core;

namespace {

void post_and_start(SendQueue& queue, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        RVT_OK(queue.post({.wr_id = i}, *wr_info(WrOpcode::kSend), 0));
        queue.start_next();
    }
}

}  // namespace

Test(send_queue, a_full_queue_starts_again_from_its_oldest) {
    SendQueue queue(4, 1, 0);
    post_and_start(queue, 4);
    RVT_ASSERT(queue.next() == nullptr);
    queue.rewind_to(*queue.oldest());
    RVT_ASSERT(queue.next() != nullptr);
    RVT_EQ(queue.next()->wr.wr_id, 0);
    RVT_EQ(queue.under_way_count(), 0);
}

Test(send_queue, starts_again_from_the_middle) {
    SendQueue queue(8, 1, 0);
    post_and_start(queue, 5);
    const SendWqe* third =
        queue.find_under_way([](const SendWqe& wqe) { return wqe.wr.wr_id == 2; });
    queue.rewind_to(*third);
    RVT_EQ(queue.next()->wr.wr_id, 2);
    RVT_EQ(queue.under_way_count(), 2);
}
