// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One endpoint that many others send to.
#include <memory>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::size_t kPeers = 28;  // more than are looked at in every call
constexpr std::uint64_t kExpected = 1;
constexpr std::uint64_t kUnexpected = 2;

// No control thread makes progress beside the test.
const EndOptions kManual{.threading = FI_THREAD_DOMAIN, .data_progress = FI_PROGRESS_MANUAL};

struct Crowd {
    End one{kManual};
    std::vector<std::unique_ptr<End>> peers;

    Crowd() {
        for (std::size_t i = 0; i < kPeers; ++i) {
            peers.push_back(std::make_unique<End>(kManual));
            peers[i]->peer = Pair::introduce(*peers[i], one);
            one.other = peers[i].get();
            expect();
            while (!send(i, kExpected)) {
                peers[i]->drive_other();
            }
            one.next();
        }
        one.other = nullptr;
    }

    /// Posts a receive of an expected message.
    void expect() {
        RVT_OK(fi_trecv(one.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, kExpected, 0, nullptr));
    }
    bool send(std::size_t from, std::uint64_t tag) {
        const End& end = *peers[from];
        const ssize_t sent = fi_tinject(end.ep.get(), nullptr, 0, end.peer, tag);
        RVT_ASSERT(sent == 0 || sent == -FI_EAGAIN);
        return sent == 0;
    }
};

}  // namespace

Test(many_peers, one_read_finds_a_message_behind_others_that_nobody_expects) {
    Crowd crowd;
    for (std::size_t expected = 0; expected < kPeers; ++expected) {
        crowd.expect();
        for (std::size_t i = 0; i < kPeers; ++i) {
            RVT_ASSERT(crowd.send(i, i == expected ? kExpected : kUnexpected));
        }
        fi_cq_tagged_entry entry{};
        RVT_EQ(fi_cq_read(crowd.one.cq.get(), &entry, 1), 1);
        RVT_EQ(entry.tag, kExpected);
    }
}
