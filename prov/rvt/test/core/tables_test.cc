// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The tables of states and work requests, pair numbers, counters and who waits for them, groups,
// events.
#include "common/check.h"
#include "common/process.h"
#include "core/async_events.h"
#include "core/counter.h"
#include "core/mcast.h"
#include "core/pieces.h"
#include "core/qp.h"
#include "core/qp_states.h"
#include "core/qp_table.h"
#include "core/reader_pins.h"
#include "core/responder.h"
#include "core/stats.h"
#include "core/verbs_wc.h"
#include "core/wr_table.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

using namespace rvt;
using namespace rvt::core;

namespace {

Qp& fake_qp(int i) {
    alignas(Qp) static std::byte places[300][sizeof(Qp)];
    return reinterpret_cast<Qp&>(places[i]);  // the table never looks into it
}

/// A line of IBTA vol. 1, table 91, with the words of ibv_modify_qp(3); alternate paths, which
/// there are none of here, left out.
struct Way {
    QpType type;
    QpState from;
    QpState to;
    QpMask required;
    QpMask optional;
};

std::vector<Way> table_91() {
    using enum QpMask;
    using enum QpState;
    using enum QpType;
    // clang-format off
    return {
        {kUd, kReset, kInit, kPkeyIndex | kPort | kQkey, kNone},
        {kUd, kInit, kInit, kNone, kPkeyIndex | kPort | kQkey},
        {kUd, kInit, kRtr, kNone, kPkeyIndex | kQkey},
        {kUd, kRtr, kRts, kSqPsn, kCurState | kQkey},
        {kUd, kRts, kRts, kNone, kCurState | kQkey},
        {kUd, kRts, kSqd, kNone, kSqdNotify},
        {kUd, kSqd, kRts, kNone, kCurState | kQkey},
        {kUd, kSqd, kSqd, kNone, kPkeyIndex | kQkey | kSqdNotify},
        {kUd, kSqe, kRts, kNone, kCurState | kQkey},

        {kUc, kReset, kInit, kPkeyIndex | kPort | kAccess, kNone},
        {kUc, kInit, kInit, kNone, kPkeyIndex | kPort | kAccess},
        {kUc, kInit, kRtr, kAv | kPathMtu | kDestQpn | kRqPsn, kAccess | kPkeyIndex},
        {kUc, kRtr, kRts, kSqPsn, kCurState | kAccess},
        {kUc, kRts, kRts, kNone, kCurState | kAccess},
        {kUc, kRts, kSqd, kNone, kSqdNotify},
        {kUc, kSqd, kRts, kNone, kCurState | kAccess},
        {kUc, kSqd, kSqd, kNone, kAv | kAccess | kPkeyIndex | kSqdNotify},
        {kUc, kSqe, kRts, kNone, kCurState | kAccess},

        {kRc, kReset, kInit, kPkeyIndex | kPort | kAccess, kNone},
        {kRc, kInit, kInit, kNone, kPkeyIndex | kPort | kAccess},
        {kRc, kInit, kRtr, kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
         kAccess | kPkeyIndex | kExtendedAtomics | kKeepsEarly},  // the last two are not of the table
        {kRc, kRtr, kRts, kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxRdAtomic, kCurState | kAccess | kMinRnrTimer},
        {kRc, kRts, kRts, kNone, kCurState | kAccess | kMinRnrTimer},
        {kRc, kRts, kSqd, kNone, kSqdNotify},
        {kRc, kSqd, kRts, kNone, kCurState | kAccess | kMinRnrTimer},
        {kRc, kSqd, kSqd, kNone, kPort | kAv | kTimeout | kRetryCnt | kRnrRetry | kMaxRdAtomic | kMaxDestRdAtomic |
         kAccess | kPkeyIndex | kMinRnrTimer | kSqdNotify},

        // For many peers as a UD pair, with rights and a timer as an RC pair.
        {kRd, kReset, kInit, kPkeyIndex | kPort | kQkey, kAccess},
        {kRd, kInit, kInit, kNone, kPkeyIndex | kPort | kQkey | kAccess},
        {kRd, kInit, kRtr, kNone, kPkeyIndex | kQkey | kAccess | kMinRnrTimer},
        {kRd, kRtr, kRts, kNone,
         kCurState | kQkey | kAccess | kMinRnrTimer | kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxRdAtomic},
        {kRd, kRts, kRts, kNone, kCurState | kQkey | kAccess | kMinRnrTimer},
        {kRd, kRts, kSqd, kNone, kSqdNotify},
        {kRd, kSqd, kRts, kNone, kCurState | kQkey | kAccess | kMinRnrTimer},
        {kRd, kSqd, kSqd, kNone, kPkeyIndex | kQkey | kAccess | kSqdNotify},
        {kRd, kSqe, kRts, kNone, kCurState | kQkey | kAccess},
    };
    // clang-format on
}

/// Of every type the ways to ERR and RESET, which take no attribute, and those of the table.
std::vector<Way> all_ways() {
    std::vector<Way> all = table_91();
    for (std::size_t i = 0; i < kQpTypes * kQpStates; ++i) {
        for (const QpState to : {QpState::kErr, QpState::kReset}) {
            all.push_back({QpType(i / kQpStates), QpState(i % kQpStates), to, {}, {}});
        }
    }
    return all;
}

template <class Visit>
void for_each_bit(QpMask mask, Visit visit) {
    for (unsigned i = 0; i < 32; ++i) {
        const auto bit = QpMask(1u << i);
        if (has_all(mask, bit)) {
            visit(bit);
        }
    }
}

void expect(const Way& way, QpMask mask, int expected) {
    const Status got = check_transition(way.type, way.from, way.to, QpMask::kState | mask);
    cr_assert(got.error() == expected, "%s from %s to %s with 0x%x: %d", to_string(way.type),
              to_string(way.from), to_string(way.to), static_cast<unsigned>(mask), got.error());
}

}  // namespace

Test(qp_states, each_way_needs_its_attributes_and_takes_no_others) {
    constexpr auto kEvery = QpMask(~0u);
    for (const Way& way : all_ways()) {
        expect(way, way.required, 0);
        expect(way, way.required | way.optional, 0);
        for_each_bit(way.required, [&](QpMask bit) {
            expect(way, without(way.required, bit), EINVAL);
            expect(way, without(way.required, bit) | way.optional, EINVAL);
        });
        for_each_bit(way.optional, [&](QpMask bit) { expect(way, way.required | bit, 0); });
        for_each_bit(without(kEvery, QpMask::kState | way.required | way.optional),
                     [&](QpMask bit) { expect(way, way.required | bit, EINVAL); });
    }
}

Test(qp_states, there_are_no_other_ways) {
    const std::vector<Way> all = all_ways();
    for (std::size_t i = 0; i < kQpTypes * kQpStates * kQpStates; ++i) {
        const Way none{QpType(i / kQpStates / kQpStates),
                       QpState(i / kQpStates % kQpStates),
                       QpState(i % kQpStates),
                       {},
                       {}};
        const auto is_same = [&](const Way& way) {
            return way.type == none.type && way.from == none.from && way.to == none.to;
        };
        if (std::ranges::none_of(all, is_same)) {
            for (const Way& other : all) {  // whatever attributes it might need
                expect(none, other.required, EINVAL);
            }
        }
    }
}

Test(qp_states, work_is_started_in_rts_alone) {
    for (std::size_t state = 0; state < kQpStates; ++state) {
        RVT_EQ(rights_of(QpState(state)).start_send, QpState(state) == QpState::kRts);
    }
}

Test(wr_table, every_opcode_has_its_row_and_the_next_number_has_none) {
    for (std::size_t i = 0; i < kWrOpcodes; ++i) {
        RVT_EQ(wr_info(WrOpcode(i))->opcode, i);
    }
    RVT_ASSERT(wr_info(WrOpcode(kWrOpcodes)) == nullptr);
}

Test(wr_table, what_names_remote_memory_needs_a_right_to_it) {
    for (std::size_t i = 0; i < kWrOpcodes; ++i) {
        const WrInfo& row = *wr_info(WrOpcode(i));
        RVT_EQ(has_any(row.traits, OpTraits::kRemoteAddr), row.remote_access != Access::kNone);
    }
}

Test(wr_table, what_brings_bytes_back_is_for_reliable_pairs_and_inline_if_it_carries_some_too) {
    for (std::size_t i = 0; i < kWrOpcodes; ++i) {
        const WrInfo& row = *wr_info(WrOpcode(i));
        if (has_any(row.traits, OpTraits::kResult)) {
            RVT_ASSERT(not(takes(row, QpType::kUc)));
            RVT_ASSERT(not(takes(row, QpType::kUd)));
            RVT_EQ(has_any(row.flags, SendFlags::kInline), has_any(row.traits, OpTraits::kPayload));
        }
    }
}

Test(responder, rnr_timer_codes_are_those_of_the_specification) {
    RVT_EQ(rnr_timer_us(0), 655360);
    RVT_EQ(rnr_timer_us(1), 10);
    RVT_EQ(rnr_timer_us(14), 1280);
    RVT_EQ(rnr_timer_us(31), 491520);
}

Test(qp_table, numbers_are_found_until_they_are_removed_and_come_back_late) {
    QpTable table(4);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 200; ++i) {
        const std::uint32_t qpn = table.add(fake_qp(i)).value();
        RVT_ASSERT(seen.insert(qpn).second);
        RVT_ASSERT(std::uint32_t(qpn) > 1u);
        const ReadPin pin;
        RVT_ASSERT(table.find(qpn) == &fake_qp(i));
        table.remove(qpn);
        RVT_ASSERT(table.find(qpn) == nullptr);
    }
}

Test(qp_table, a_number_can_be_asked_for_until_it_is_taken) {
    QpTable table(4);
    RVT_EQ(table.add(fake_qp(0), 0x11).value(), 0x11);
    RVT_EQ(table.add(fake_qp(1), 0x11), EADDRINUSE);
    for (const std::uint32_t never : {1u, kMulticastQpn, kMulticastQpn + 1}) {
        RVT_EQ(table.add(fake_qp(1), never), EINVAL);
    }
    for (int i = 1; i < 4; ++i) {
        RVT_NE(std::uint32_t(table.add(fake_qp(i)).value()), 0x11u);
    }
    table.remove(0x11);
    RVT_EQ(table.add(fake_qp(0), 0x11).value(), 0x11);
}

Test(qp_table, a_full_table_is_enomem) {
    QpTable table(4);
    for (int i = 0; i < 4; ++i) {
        RVT_OK(table.add(fake_qp(i)));
    }
    RVT_EQ(table.add(fake_qp(5)), ENOMEM);
    RVT_EQ(table.size(), 4);
}

Test(stats, counts_of_all_threads_add_up) {
    static Stats stats;
    std::vector<std::thread> threads;
    for (int i = 0; i < 40; ++i) {
        threads.emplace_back([] {
            for (int n = 0; n < 1000; ++n) {
                stats.add(Stat::kMessagesSent, 2);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    RVT_EQ(stats.sum(Stat::kMessagesSent), 80000);
    RVT_EQ(stats.sum(Stat::kBytesSent), 0);
}

/// Counts in the last moments of a thread, behind the end of its thread storage, beside another
/// one that counts for the first time then.
void count_late(void* stats) {
    const auto count = [stats] {
        for (int n = 0; n < 1'000'000; ++n) {
            static_cast<Stats*>(stats)->add(Stat::kMessagesSent);
        }
    };
    std::thread other(count);
    count();
    other.join();
}

Test(stats, counts_of_a_thread_that_is_ending_add_up, .timeout = 60) {
    static Stats stats;
    pthread_key_t key = 0;
    RVT_EQ(pthread_key_create(&key, count_late), 0);
    std::thread([&] {
        stats.add(Stat::kMessagesSent);
        RVT_EQ(pthread_setspecific(key, &stats), 0);
    }).join();
    RVT_EQ(stats.sum(Stat::kMessagesSent), 2'000'001);
}

/// Where two threads wait for each other, again and again.
struct alignas(64) Turnstile {
    void pass(std::uint64_t round) noexcept {
        // acq_rel, acquire: pairs with each other.
        inside.fetch_add(1, std::memory_order_acq_rel);
        for (int spins = 1; inside.load(std::memory_order_acquire) < 2 * round; ++spins) {
            if (spins % 10'000 == 0) {
                std::this_thread::yield();
            }
        }
    }
    std::atomic<std::uint64_t> inside{0};
};

void spin(std::uint64_t times) noexcept {
    for (std::uint64_t i = 0; i < times; ++i) {
        util::compiler_barrier();
    }
}

/// A waiter arms and looks again before it sleeps; meanwhile another thread changes the count.
struct Race {
    static constexpr std::uint64_t kRounds = 50'000;
    static constexpr std::uint64_t kShifts = 64;  // by which the one is late, or the other

    /// Both have the line at hand when it begins.
    void meet(std::uint64_t round, std::uint64_t late) noexcept {
        ready.pass(round);
        static_cast<void>(counter.value());
        begin.pass(round);
        spin(late);
    }
    void change() noexcept {
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
            meet(round, kShifts / 2);
            counter.set(round);
            counter.wake();
            end.pass(round);
        }
    }
    /// Returns: how many changes it has not heard of.
    std::uint64_t wait(int wake_fd) noexcept {
        std::uint64_t lost = 0;
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
            meet(round, round % kShifts);
            counter.arm(wake_fd);
            const bool is_seen = counter.value() == round;
            end.pass(round);
            eventfd_t woken = 0;
            lost += eventfd_read(wake_fd, &woken) == 0 || is_seen ? 0 : 1;
            counter.arm(-1);
        }
        return lost;
    }

    Turnstile ready;
    Turnstile begin;
    Turnstile end;
    Counter counter;
};

Test(counter, who_arms_sees_a_change_or_is_woken_by_it, .timeout = 120) {
    const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    Race race;
    std::thread changer([&] { race.change(); });
    const std::uint64_t lost = race.wait(wake_fd);
    changer.join();
    close(wake_fd);
    RVT_EQ(lost, 0);
}

Test(mcast, group_addresses_are_told_from_others) {
    RVT_ASSERT(is_multicast({0xff, 0x0e}));
    RVT_ASSERT(is_multicast({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 5}));
    RVT_ASSERT(not(is_multicast({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 5})));
}

Test(mcast, a_full_group_is_enomem) {
    McastTable table(2);
    const Address group = {.gid = {0xff, 1}, .port = 7};
    RVT_OK(table.attach(group, 5));
    RVT_OK(table.attach(group, 5));
    RVT_OK(table.attach(group, 6));
    RVT_EQ(table.attach(group, 7), ENOMEM);
    RVT_OK(table.detach(group, 5));
    RVT_EQ(table.detach(group, 5), EINVAL);
    RVT_OK(table.attach(group, 7));
}

Test(mcast, a_group_is_an_address_and_a_port) {
    McastTable table(4);
    RVT_OK(table.attach({.gid = {0xff, 1}, .port = 7}, 5));
    const auto count = [&](std::uint16_t port) {
        const McastMembers members = table.members({.gid = {0xff, 1}, .port = port});
        return std::distance(members.begin(), members.end());
    };
    RVT_EQ(count(7), 1);
    RVT_EQ(count(8), 0);
    RVT_EQ(group_of({.gid = {0xff, 1}}, {.port = 9}).port, 9);
}

Test(async_events, the_descriptor_is_readable_while_events_are_queued) {
    auto events = AsyncEvents::create().take();
    pollfd readable{.fd = events->fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(::poll(&readable, 1, 0), 0);
    events->post({.type = EventType::kCqErr, .object = nullptr});
    events->post({.type = EventType::kQpFatal, .object = nullptr});
    RVT_EQ(::poll(&readable, 1, 0), 1);
    RVT_EQ(events->wait(-1)->type, EventType::kCqErr);
    RVT_EQ(::poll(&readable, 1, 0), 1);
    RVT_EQ(events->poll()->type, EventType::kQpFatal);
    RVT_EQ(::poll(&readable, 1, 0), 0);
    RVT_ASSERT(not(events->wait(0).has_value()));
}

Test(async_events, the_descriptor_stays_readable_though_a_forked_child_forgets_its_events) {
    auto events = AsyncEvents::create().take();
    events->post({.type = EventType::kCqErr, .object = nullptr});
    test::Process child([&](test::Process&) { _exit(events->poll().has_value() ? 0 : 1); });
    RVT_EQ(child.wait(), 0);
    pollfd readable{.fd = events->fd(), .events = POLLIN, .revents = 0};
    RVT_EQ(::poll(&readable, 1, 0), 1);
}

Test(verbs_wc, a_completion_survives_its_way_through_the_shared_entry) {
    const Wc wc{.wr_id = ~0ull,
                .status = WcStatus::kRemOpErr,
                .opcode = WcOpcode::kRecvWriteImm,
                .flags = WcFlags::kGrh | WcFlags::kWithImm,
                .byte_len = 1ull << 40,
                .imm = 0xffffffff,
                .qpn = 0xfffffe,
                .src_qpn = 0xabcdef,
                .src_port = 0xfffe,
                .vendor_err = 7};
    const Wc back = from_cqe(to_cqe(wc));
    RVT_EQ(back.wr_id, wc.wr_id);
    RVT_EQ(back.status, wc.status);
    RVT_EQ(back.opcode, wc.opcode);
    RVT_EQ(back.flags, wc.flags);
    RVT_EQ(back.byte_len, wc.byte_len);
    RVT_EQ(back.imm, wc.imm);
    RVT_EQ(back.qpn, wc.qpn);
    RVT_EQ(back.src_qpn, wc.src_qpn);
    RVT_EQ(back.vendor_err, wc.vendor_err);
}

Test(pieces, a_copy_crosses_the_borders_of_both_lists) {
    char from[] = "abcdefghij";
    char to[10] = {};
    PieceList source;
    PieceList target;
    source.add(from, 3);
    source.add(from + 3, 7);
    target.add(to, 5);
    target.add(to + 5, 2);
    target.add(to + 7, 3);
    RVT_EQ(copy(target, source), 10);
    RVT_EQ(std::memcmp(to, from, 10), 0);
}

Test(pieces, a_part_begins_and_ends_inside_pieces) {
    char from[] = "abcdefghij";
    PieceList list;
    list.add(from, 4);
    list.add(from + 4, 6);
    const PieceList part = list.part(2, 5);
    RVT_EQ(part.bytes(), 5);
    RVT_EQ(part.all().size(), 2);
    RVT_EQ(part.all()[1].iov_len, 3);
    RVT_EQ(list.part(8, 100).bytes(), 2);
}

Test(pieces, a_full_list_says_so) {
    char byte = 0;
    PieceList list;
    for (std::size_t i = 0; i < PieceList::kMax; ++i) {
        RVT_ASSERT(list.add(&byte, 1));
    }
    RVT_ASSERT(not(list.add(&byte, 1)));
    RVT_ASSERT(list.add(&byte, 0));
}
