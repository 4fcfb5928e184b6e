// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What has come behind a missing packet, said by the receiver and heeded by the sender.
#include <criterion/criterion.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "common/check.h"
#include "core/early_packets.h"
#include "core/early_room.h"
#include "core/gap_repair.h"

using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using rvt::protocol::Psn;

namespace {

constexpr Psn kMissing{0xfffffe};  // numbers wrap round

struct Link {
    EarlyRoom room;
    EarlyPackets early{room};
    GapRepair repair;

    /// Packets that lie so far ahead of the missing one come.
    void come(std::initializer_list<std::uint32_t> ahead) {
        for (const std::uint32_t i : ahead) {
            rvt::protocol::DecodedPacket packet{};
            packet.header.psn = kMissing + i;
            early.keep(packet);
        }
    }
    std::size_t report(std::uint32_t& count) {
        std::array<std::byte, EarlyPackets::kMapBytes> map{};
        const std::size_t bytes = early.write_map(kMissing, map);
        count = repair.note(std::span(map).first(bytes));
        return bytes;
    }
    /// What is sent again after a report; `sent`: how far ahead the next new packet is.
    std::vector<std::uint32_t> repeats(std::uint32_t sent, std::size_t most = 512) {
        std::uint32_t ignored = 0;
        report(ignored);
        std::vector<std::uint32_t> all;
        repair.for_each_lost(kMissing, kMissing + sent, [&](Psn psn) {
            if (all.size() == most) {
                return false;
            }
            all.push_back(static_cast<std::uint32_t>(distance(psn, kMissing)));
            return true;
        });
        return all;
    }
};

using List = std::vector<std::uint32_t>;

}  // namespace

Test(gap_repair, a_report_says_what_has_come) {
    Link link;
    link.come({1, 3, 40});
    std::uint32_t count = 0;
    RVT_EQ(link.report(count), 8u);
    RVT_EQ(count, 3u);
}
Test(gap_repair, a_report_reaches_as_far_as_packets_are_kept) {
    Link link;
    link.come({EarlyPackets::kMost - 1});
    std::uint32_t count = 0;
    RVT_EQ(link.report(count), EarlyPackets::kMapBytes);
    RVT_EQ(count, 1u);
}
Test(gap_repair, what_has_been_taken_out_is_not_reported) {
    Link link;
    link.come({1, 2});
    std::vector<std::byte> bytes;
    link.early.take(kMissing + 1, bytes);
    std::uint32_t count = 0;
    link.report(count);
    RVT_EQ(count, 1u);
}
Test(gap_repair, what_is_kept_takes_room_until_it_has_been_taken_out) {
    Link link;
    link.come({1});
    const std::size_t used = link.room.used();
    link.come({1, 2});
    RVT_EQ(link.room.used(), used);  // of no payload
    std::vector<std::byte> bytes;
    link.early.take(kMissing + 1, bytes);
    RVT_EQ(link.room.used(), used);
    link.early.take(kMissing + 2, bytes);
    RVT_EQ(link.room.used(), 0u);
}
Test(gap_repair, what_no_room_is_left_for_is_not_kept) {
    const std::vector<std::byte> payload(1000);
    rvt::protocol::DecodedPacket packet{.header = {.psn = kMissing + 1}, .payload = payload};
    const std::size_t need = [&] {
        EarlyRoom room;
        EarlyPackets one(room);
        one.keep(packet);
        return room.used();
    }();
    EarlyRoom room(need + payload.size() - 1);
    EarlyPackets early(room);
    EarlyPackets of_another_pair(room);
    early.keep(packet);
    of_another_pair.keep(packet);
    RVT_ASSERT(of_another_pair.is_empty());
    packet.header.psn = kMissing + 2;
    early.keep(packet);
    RVT_ASSERT(!early.has(kMissing + 2));
    RVT_EQ(room.used(), need);
    early.clear();
    of_another_pair.keep(packet);
    RVT_ASSERT(of_another_pair.has(kMissing + 2));
}
Test(gap_repair, all_gaps_are_filled_at_once) {
    Link link;
    link.come({1, 4, 6});
    RVT_ASSERT(link.repeats(10) == (List{0, 2, 3, 5}));
}
Test(gap_repair, what_has_been_repeated_is_waited_for) {
    Link link;
    link.come({1, 4});
    link.repeats(10);
    link.come({6});
    RVT_ASSERT(link.repeats(10) == List{5});
}
Test(gap_repair, what_is_missing_before_a_repeat_that_came_is_repeated_again) {
    Link link;
    link.come({1, 4});
    link.repeats(10);
    link.come({2});
    RVT_ASSERT(link.repeats(10) == List{0});
}
Test(gap_repair, what_is_missing_before_a_later_packet_is_repeated_again) {
    Link link;
    link.come({1});
    link.repeats(10);
    link.come({10});
    RVT_ASSERT(link.repeats(12).front() == 0);
}
Test(gap_repair, what_could_not_be_sent_is_still_lost) {
    Link link;
    link.come({5});
    RVT_ASSERT(link.repeats(10, 2) == (List{0, 1}));
    RVT_ASSERT(link.repeats(10) == (List{2, 3, 4}));
}
Test(gap_repair, the_missing_packet_is_repeated_if_nothing_has_come) {
    Link link;
    RVT_ASSERT(link.repeats(10) == List{0});
    RVT_ASSERT(link.repeats(10).empty());
}
Test(gap_repair, what_has_not_been_sent_is_not_repeated) {
    Link link;
    link.come({1, 200});  // of a peer that lies
    RVT_ASSERT(link.repeats(4) == (List{0, 2, 3}));
}

Test(repeat_losses, of_chance_are_no_want_of_room) {
    RepeatLosses losses;
    for (int i = 0; i < 1000; ++i) {
        RVT_ASSERT(!losses.note(9, 1));
    }
}
Test(repeat_losses, of_every_other_repeat_are_want_of_room_until_they_are_heeded) {
    RepeatLosses losses;
    RVT_ASSERT(!losses.note(4, 4));
    RVT_ASSERT(losses.note(4, 4));
    RVT_ASSERT(losses.note(0, 0));
    losses.heed();
    RVT_ASSERT(!losses.note(4, 4));
}
Test(repeat_losses, are_forgotten_with_repeats_that_come) {
    RepeatLosses losses;
    RVT_ASSERT(losses.note(0, 100));
    RVT_ASSERT(!losses.note(50, 0));
}
Test(gap_repair, what_is_lost_again_is_counted) {
    Link link;
    const auto lost_again = [&] {
        std::uint32_t ignored = 0;
        link.report(ignored);
        return link.repair.for_each_lost(kMissing, kMissing + 10, [](Psn) { return true; });
    };
    link.come({1, 4});
    RVT_EQ(lost_again(), 0u);
    link.come({2});
    RVT_EQ(lost_again(), 1u);
}
Test(loss_count, losses_of_what_is_under_way_count_once) {
    LossCount losses;
    losses.start_at(kMissing);
    RVT_ASSERT(losses.note(kMissing, kMissing + 100));
    losses.move_on_to(kMissing + 99);
    RVT_ASSERT(!losses.note(kMissing + 99, kMissing + 150));
    losses.move_on_to(kMissing + 100);
    RVT_ASSERT(losses.note(kMissing + 100, kMissing + 150));
}
Test(loss_count, a_loss_counts_however_many_packets_have_come_before) {
    constexpr std::uint32_t kStep = 1u << 19;
    LossCount losses;
    losses.start_at(kMissing);
    for (std::uint32_t i = 1; i <= 2 * (Psn::kMask + 1) / kStep; ++i) {
        const Psn una = kMissing + i * kStep;
        losses.move_on_to(una);
        LossCount with_loss = losses;
        RVT_ASSERT(with_loss.note(una, una + 1));
    }
}
