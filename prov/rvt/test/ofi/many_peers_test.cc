// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One endpoint that many others send to.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::size_t kPeers = 28;  // more than are looked at in every call
constexpr std::uint64_t kExpected = 1;
constexpr std::uint64_t kUnexpected = 2;
constexpr std::uint64_t kFlood = 3;
constexpr std::size_t kFlooded = 256;  // several times what is taken in one look

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

/// Messages of the first peer without end: there are always more of them than one look takes.
class Flood {
  public:
    explicit Flood(Crowd& crowd) : crowd_(crowd) {}

    /// So many were in the ring at once; the ring grows while much goes through it.
    std::size_t most_under_way() const { return most_; }
    /// Fills the ring and reads once. Returns: how many messages of others there were.
    std::size_t go_on() {
        while (under_way_ < kFlooded && crowd_.send(0, kFlood)) {
            RVT_OK(fi_trecv(crowd_.one.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, kFlood, 0,
                            nullptr));
            most_ = std::max(most_, ++under_way_);
        }
        std::array<fi_cq_tagged_entry, kFlooded> entries{};
        const ssize_t got = fi_cq_read(crowd_.one.cq.get(), entries.data(), entries.size());
        RVT_ASSERT(got > 0);
        const auto others =
            std::count_if(entries.begin(), entries.begin() + got,
                          [](const fi_cq_tagged_entry& entry) { return entry.tag == kExpected; });
        under_way_ -= static_cast<std::size_t>(got - others);
        return static_cast<std::size_t>(others);
    }

  private:
    Crowd& crowd_;
    std::size_t under_way_ = 0;
    std::size_t most_ = 0;
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

Test(many_peers, a_flood_from_one_does_not_keep_the_others_waiting) {
    Crowd crowd;
    Flood flood(crowd);
    while (flood.most_under_way() < kFlooded) {
        flood.go_on();
    }
    for (std::size_t i = 1; i < kPeers; ++i) {
        crowd.expect();
        RVT_ASSERT(crowd.send(i, kExpected));
    }
    std::size_t expected = 0;
    for (int read = 0; expected + 1 < kPeers; ++read) {
        RVT_ASSERT(read < 1000);
        expected += flood.go_on();
    }
}
