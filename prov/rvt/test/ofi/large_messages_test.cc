// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large messages that are under way at the same time, or whose sender has gone.
#include <algorithm>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::size_t kMessages = 8;
constexpr std::size_t kBytes = 4 << 20;

/// Sends messages from `a` to `b`, all at once. Returns: after how many reads of b's queue each was
/// complete.
std::vector<int> send_together(Pair& pair, std::vector<char>& from, std::vector<char>& to) {
    for (std::size_t i = 0; i < kMessages; ++i) {
        RVT_OK(
            fi_trecv(pair.b.ep.get(), to.data(), kBytes, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
        pair.post([&] {
            return fi_tsend(pair.a.ep.get(), from.data(), kBytes, nullptr, pair.a.peer, 1, nullptr);
        });
    }
    std::vector<int> ends;
    std::size_t sent = 0;
    for (int reads = 1; ends.size() < kMessages || sent < kMessages; ++reads) {
        fi_cq_tagged_entry entry{};
        sent += fi_cq_read(pair.a.cq.get(), &entry, 1) == 1 ? 1 : 0;
        if (fi_cq_read(pair.b.cq.get(), &entry, 1) == 1) {
            ends.push_back(reads);
        }
    }
    return ends;
}

}  // namespace

Test(large_messages, the_first_of_several_is_complete_long_before_the_last) {
    Pair pair;
    std::vector<char> from(kBytes, 'x');
    std::vector<char> to(kBytes);
    send_together(pair, from, to);             // connects them
    send_together(pair, from, to);             // waits for the rings to grow
    for (int round = 0; round < 6; ++round) {  // the ways to copy are tried in turn
        const std::vector<int> ends = send_together(pair, from, to);
        RVT_ASSERT(ends.front() <= ends.back() / 4);
    }
}

/// The memory of a closed endpoint's messages is its application's, for whatever comes next.
Test(large_messages, of_a_closed_endpoint_do_not_arrive_as_what_lies_there_now, .timeout = 60) {
    Pair pair;
    RVT_OK(fi_recv(pair.b.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, nullptr));
    pair.post([&] { return fi_inject(pair.a.ep.get(), nullptr, 0, pair.a.peer); });
    pair.b.next();
    std::vector<char> from(kBytes, 'x');
    std::vector<char> to(kBytes);
    RVT_OK(fi_send(pair.a.ep.get(), from.data(), kBytes, nullptr, pair.a.peer, nullptr));
    pair.b.other = nullptr;
    pair.a.ep.reset();
    std::fill(from.begin(), from.end(), 'y');
    RVT_OK(fi_recv(pair.b.ep.get(), to.data(), kBytes, nullptr, FI_ADDR_UNSPEC, &to));
    RVT_ASSERT(pair.b.next_error().op_context == &to);
    RVT_ASSERT(std::find(to.begin(), to.end(), 'y') == to.end());
}
