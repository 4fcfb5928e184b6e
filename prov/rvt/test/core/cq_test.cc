// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ring of completions: order, room, and what does not fit.
#include "core/cq.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "common/check.h"

using rvt::core::Cq;
using rvt::core::Cqe;
using rvt::core::WcStatus;

namespace {

std::unique_ptr<Cq> queue_of(std::size_t depth) {
    auto made = Cq::create(depth);
    RVT_ASSERT(made.is_ok());
    return made.take();
}

void push(Cq& queue, std::uint64_t number, WcStatus status = WcStatus::kSuccess) {
    queue.emplace([&](Cqe& cqe) { cqe = {.len = number, .status = status}; });
}

/// The numbers of up to `most` good entries, which are taken out.
std::vector<std::uint64_t> take(Cq& queue, std::size_t most) {
    std::vector<std::uint64_t> numbers;
    const std::size_t taken = queue.pop_while(most, [&](const Cqe& cqe) {
        const bool is_good = cqe.status == WcStatus::kSuccess;
        if (is_good) {
            numbers.push_back(cqe.len);
        }
        return is_good;
    });
    RVT_EQ(taken, numbers.size());
    return numbers;
}

/// The same until there are none.
std::vector<std::uint64_t> take_all(Cq& queue) {
    std::vector<std::uint64_t> numbers;
    for (std::size_t before = ~std::size_t{0}; before != numbers.size();) {
        before = numbers.size();
        const auto more = take(queue, 100);
        numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return numbers;
}

std::vector<std::uint64_t> range(std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> numbers;
    for (; begin != end; ++begin) {
        numbers.push_back(begin);
    }
    return numbers;
}

}  // namespace

Test(cq, entries_come_out_in_order_round_after_round) {
    const auto queue = queue_of(4);
    for (std::uint64_t number = 0; number < 30; number += 3) {
        for (std::uint64_t i = 0; i < 3; ++i) {
            push(*queue, number + i);
        }
        RVT_ASSERT(take(*queue, 2) == range(number, number + 2));
        RVT_ASSERT(take(*queue, 2) == range(number + 2, number + 3));
    }
    RVT_ASSERT(queue->is_empty());
}

Test(cq, what_does_not_fit_comes_out_later_and_in_order) {
    const auto queue = queue_of(4);
    for (std::uint64_t number = 0; number < 11; ++number) {
        push(*queue, number);
    }
    RVT_ASSERT(queue->has_overflow());
    RVT_ASSERT(take(*queue, 3) == range(0, 3));
    push(*queue, 11);
    RVT_ASSERT(take_all(*queue) == range(3, 12));
    RVT_ASSERT(queue->is_empty() && !queue->has_overflow());
    push(*queue, 12);
    RVT_ASSERT(take(*queue, 100) == range(12, 13));
}

Test(cq, nothing_is_claimed_past_what_waits_for_room) {
    const auto queue = queue_of(2);
    for (std::uint64_t number = 0; number < 3; ++number) {
        push(*queue, number);
    }
    RVT_ASSERT(queue->claim() == nullptr && !queue->is_quiet());
    RVT_ASSERT(take_all(*queue) == range(0, 3));
    RVT_ASSERT(queue->claim() != nullptr);
}

Test(cq, a_full_ring_has_room_again_once_one_entry_is_taken) {
    const auto queue = queue_of(2);
    push(*queue, 0);
    push(*queue, 1);
    RVT_ASSERT(queue->claim() == nullptr);
    queue->pop();
    RVT_ASSERT(queue->claim() != nullptr);
}

Test(cq, an_entry_that_is_not_wanted_stays) {
    const auto queue = queue_of(4);
    push(*queue, 0);
    push(*queue, 1, WcStatus::kCanceled);
    push(*queue, 2);
    RVT_ASSERT(take(*queue, 100) == range(0, 1));
    RVT_ASSERT(take(*queue, 100).empty());
    RVT_EQ(queue->front()->len, 1);
    queue->pop();
    RVT_ASSERT(take(*queue, 100) == range(2, 3));
}

Test(cq, a_deep_queue_takes_memory_for_what_it_holds) {
    constexpr std::size_t kDepth = std::size_t{1} << 21;
    constexpr std::size_t kPages = kDepth * sizeof(Cqe) / 4096;
    const auto resident = [] {
        std::size_t all = 0;
        std::size_t here = 0;
        std::ifstream("/proc/self/statm") >> all >> here;
        return here;
    };
    const std::size_t before = resident();
    const auto queue = queue_of(kDepth);
    for (std::uint64_t number = 0; number < 3000; ++number) {
        push(*queue, number);
    }
    RVT_ASSERT(take_all(*queue) == range(0, 3000));
    RVT_ASSERT(resident() < before + kPages / 4);  // huge pages, and what sanitizers keep
}
