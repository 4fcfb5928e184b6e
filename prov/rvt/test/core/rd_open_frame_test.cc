// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where records go in a frame, and what it consists of.
#include "core/rd_open_frame.h"

#include <array>
#include <vector>

#include "common/check.h"

using rvt::Sge;
using rvt::core::RdFrameRing;
using rvt::core::RdOpenFrame;

namespace {

constexpr std::uint32_t kPacket = 256;
constexpr std::size_t kMost = 8 * kPacket;
constexpr std::uint32_t kLkey = 7;

struct Fixture {
    RdFrameRing ring;
    RdOpenFrame frame{ring};

    Fixture() {
        RVT_OK(ring.open());
        frame.set_sizes(kPacket, kMost);
        RVT_ASSERT(frame.begin(0, {.record = 0}, {}));
    }
    /// Writes a record with a run of the ring's, all of one byte. Returns: whether there was room.
    bool put(char byte, std::size_t record, std::size_t run = 0) {
        std::byte* const to = frame.place({.record = record, .copied = run}, {});
        if (to != nullptr) {
            std::memset(to, byte, record + run);
            frame.add(record + run);
        }
        return to != nullptr;
    }
    bool lend(std::size_t record, const std::vector<char>& run) {
        std::byte* const to = frame.place({.record = record, .borrowed = run.size()}, {});
        if (to != nullptr) {
            std::memset(to, 'h', record);
            frame.add(record);
            frame.borrow({const_cast<char*>(run.data()), run.size()});
        }
        return to != nullptr;
    }
    /// What would travel.
    std::string taken() {
        std::string all;
        for (const Sge& part : frame.take(kLkey)) {
            RVT_EQ(part.lkey, kLkey);
            // NOLINTNEXTLINE(performance-no-int-to-ptr)
            all.append(reinterpret_cast<const char*>(part.addr), part.length);
        }
        return all;
    }
};

std::string of(std::size_t count, char byte) {
    return std::string(count, byte);
}

}  // namespace

Test(rd_open_frame, records_lie_one_behind_the_other) {
    Fixture f;
    RVT_ASSERT(f.frame.is_empty());
    RVT_ASSERT(f.put('a', 40) && f.put('b', 60, 1000) && f.put('c', 30));
    RVT_EQ(f.frame.left(), kMost - 1130);
    RVT_ASSERT(f.taken() == of(40, 'a') + of(1060, 'b') + of(30, 'c'));
    RVT_ASSERT(f.frame.is_empty());
    RVT_EQ(f.ring.frames(), 1);
}

Test(rd_open_frame, no_record_crosses_the_end_of_a_packet) {
    Fixture f;
    RVT_ASSERT(f.put('a', 40, 200) && f.put('b', 30, 300) && f.put('c', 200) && f.put('d', 56));
    RVT_ASSERT(f.taken() ==
               of(240, 'a') + of(16, 0) + of(330, 'b') + of(182, 0) + of(200, 'c') + of(56, 'd'));
}

Test(rd_open_frame, a_run_may_lie_elsewhere_and_counts_in_the_packets) {
    Fixture f;
    const std::vector<char> run(230, 'r');
    RVT_ASSERT(f.put('a', 20) && f.lend(10, run) && f.put('b', 30) && f.lend(40, run));
    RVT_EQ(f.frame.left(), 0);
    RVT_ASSERT(!f.put('c', 1));  // it has as many parts as it can
    RVT_ASSERT(f.taken() ==
               of(20, 'a') + of(10, 'h') + of(230, 'r') + of(30, 'b') + of(40, 'h') + of(230, 'r'));
    RVT_ASSERT(f.frame.begin(0, {.record = 1}, {}));
    RVT_ASSERT(f.put('c', 1));
    RVT_ASSERT(f.taken() == "c");
}

Test(rd_open_frame, takes_no_more_than_it_may) {
    Fixture f;
    RVT_ASSERT(f.put('a', 40, kMost - 100));
    RVT_ASSERT(!f.put('b', 40, 21));
    const std::vector<char> run(21, 'r');
    RVT_ASSERT(!f.lend(40, run));
    RVT_ASSERT(f.put('b', 40, 20));
    RVT_EQ(f.frame.left(), 0);
    RVT_EQ(f.taken().size(), kMost);
}

Test(rd_open_frame, one_record_alone_may_be_longer) {
    Fixture f;
    RVT_ASSERT(f.frame.begin(0, {.record = 40, .copied = 2 * kMost}, {}));
    f.frame.add(40 + 2 * kMost);
    RVT_EQ(f.frame.left(), 0);
    RVT_ASSERT(!f.put('b', 1));
    RVT_EQ(f.taken().size(), 40 + 2 * kMost);
}

Test(rd_open_frame, grows_only_where_the_ring_has_room) {
    Fixture f;
    f.frame.set_sizes(kPacket, f.ring.bytes());
    const std::size_t spare = 4 * kPacket;
    RVT_ASSERT(f.put('a', 40, f.ring.bytes() - spare - 2 * kPacket));
    RVT_ASSERT(f.frame.place({.record = 40, .copied = kPacket}, {.bytes = spare}) == nullptr);
    RVT_ASSERT(f.frame.place({.record = 40, .copied = kPacket}, {}) != nullptr);
    RVT_ASSERT(f.frame.place({.record = 40}, {.frames = RdFrameRing::kMaxFrames}) != nullptr);
    RVT_ASSERT(f.frame.place({.record = kPacket}, {.frames = RdFrameRing::kMaxFrames}) == nullptr);
}

Test(rd_open_frame, is_forgotten_when_it_is_dropped) {
    Fixture f;
    const std::vector<char> run(30, 'r');
    RVT_ASSERT(f.put('a', 20) && f.lend(10, run));
    f.frame.drop();
    RVT_ASSERT(f.frame.is_empty());
    RVT_EQ(f.ring.frames(), 0);
    RVT_ASSERT(f.frame.begin(0, {.record = 1}, {}));
    RVT_ASSERT(f.put('c', 1));
    RVT_ASSERT(f.taken() == "c");
}
