// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flows between endpoints on the wire of backend/fake: they open, carry messages in order and
// whole, hold and lend them, and end.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>

#include <poll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#include "core/flow_pair.h"
#include "core/send_hold.h"
#include "util/unique_fd.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using namespace rvt::test;  // NOLINT(google-build-using-namespace)

Test(rd_flows, a_flow_opens_on_both_sides_and_carries_messages) {
    FlowPair net;
    net.connect();
    RVT_EQ(net.a.flow->peer().incarnation, 12);
    RVT_EQ(net.b.flow->peer().incarnation, 11);
    RVT_ASSERT(net.a.say(7, "hello"));
    RVT_ASSERT(net.b.say(8, ""));
    RVT_ASSERT(net.run_until([&] { return !net.a.heard.empty() && !net.b.heard.empty(); }));
    RVT_EQ(net.b.heard[0].tag, 7);
    RVT_ASSERT(net.b.heard[0].text == "hello");
    RVT_EQ(net.a.heard[0].tag, 8);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
}

Test(rd_flows, an_answer_brings_the_acknowledgement) {
    FlowPair net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    RVT_ASSERT(net.a.say(1, "question"));
    net.b.poll();
    RVT_ASSERT(net.b.say(2, "answer"));
    RVT_EQ(net.a.flows->poll(), 1);  // packets
    RVT_EQ(net.a.heard.size(), 1);
    RVT_ASSERT(net.a.flow->is_drained());
}

Test(rd_flows, a_reply_to_one_peer_leaves_the_acknowledgement_of_another) {
    FlowTrio net;
    for (std::size_t replied : {0u, 1u}) {
        for (FlowTalker* peer : {&net.b, &net.c}) {
            RVT_ASSERT(peer->say(1, "question"));
        }
        net.a.poll();
        net.a.flow = net.flows[replied];
        RVT_ASSERT(net.a.say(2, "answer"));
        net.a.flows->device().flush();
        for (FlowTalker* peer : {&net.b, &net.c}) {
            peer->poll();
            RVT_ASSERT(peer->flow->is_drained());
        }
        RVT_ASSERT(net.run_until([&] { return net.flows[replied]->is_drained(); }));
    }
}

/// Of three messages two are held; the sender polls `us` later.
static void say_three(FlowPair& net, std::uint64_t us) {
    for (const char* text : {"first", "second", "third"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    now_us += us;
    net.run_until([&] { return net.a.flow->is_drained(); });
    net.b.heard.clear();
}

/// What the sender has said reaches the peer though it does not poll.
static std::size_t heard_at_once(FlowPair& net) {
    net.b.poll();
    return net.b.heard.size();
}

Test(rd_flows, small_messages_behind_others_leave_together_with_the_next_poll) {
    FlowPair net;
    net.connect();
    for (const char* text : {"first", "held", "with it"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    RVT_EQ(heard_at_once(net), 1);
    net.a.poll();
    RVT_EQ(net.b.flows->poll(), 1);  // packets
    RVT_EQ(net.b.heard.size(), 3);
}

Test(rd_flows, what_is_held_too_long_leaves_with_the_next_message) {
    FlowPair net;
    net.connect();
    for (const char* text : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    now_us += SendHold::kMostUs + 1;
    RVT_ASSERT(net.a.say(1, "late"));
    RVT_EQ(heard_at_once(net), 3);
}

Test(rd_flows, a_timer_lets_go_what_a_sender_that_computes_has_left) {
    FlowPair net;
    net.connect();
    const util::UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    SendHold& hold = net.a.flows->device().send_hold();
    hold.use_timer(timer.get(), 0);
    for (int time = 0; time < 10; ++time) {
        say_three(net, 2000);
    }
    for (const char* text : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, text));
    }
    RVT_EQ(heard_at_once(net), 1);
    pollfd expired{.fd = timer.get(), .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&expired, 1, 10'000), 1);
    RVT_EQ(hold.is_overdue(now_us), false);
    now_us += SendHold::kMostUs;
    RVT_ASSERT(hold.is_overdue(now_us));
    RVT_ASSERT(net.a.flows->send_held());
    RVT_EQ(heard_at_once(net), 2);
    RVT_EQ(net.b.has_sent_held, false);  // who polls does it
    RVT_EQ(hold.is_overdue(now_us), false);
}

/// The timer of who says something, which lets go what is held.
class HoldTimer {
  public:
    explicit HoldTimer(const FlowPair& net) {
        set_to_far();
        net.a.flows->device().send_hold().use_timer(fd_.get(), 0);
    }
    /// Whether it has been set since the last call. It may be over by now, whether or not the
    /// kernel has come to say so.
    bool was_set() {
        itimerspec left{};
        RVT_EQ(timerfd_gettime(fd_.get(), &left), 0);
        set_to_far();
        return left.it_value.tv_sec < kFar / 2;
    }

  private:
    static constexpr time_t kFar = 1000;  // seconds

    void set_to_far() {
        const itimerspec far{.it_interval = {}, .it_value = {.tv_sec = kFar, .tv_nsec = 0}};
        RVT_EQ(timerfd_settime(fd_.get(), 0, &far, nullptr), 0);
    }

    util::UniqueFd fd_{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)};
};

Test(rd_flows, a_sender_that_comes_back_soon_needs_no_timer) {
    FlowPair net;
    net.connect();
    HoldTimer timer(net);
    say_three(net, 1);
    RVT_ASSERT(timer.was_set());
    for (int time = 0; time < 10; ++time) {
        say_three(net, 1);
    }
    RVT_ASSERT(timer.was_set());
    say_three(net, 1);
    RVT_ASSERT(not(timer.was_set()));
    say_three(net, 2000);  // not so this time
    say_three(net, 1);
    RVT_ASSERT(timer.was_set());
}

Test(rd_flows, a_sender_whose_messages_a_timer_lets_go_has_not_come_back_soon) {
    FlowPair net;
    net.connect();
    HoldTimer timer(net);
    for (int time = 0; time < 10; ++time) {
        RVT_ASSERT(net.a.say(1, "first") && net.a.say(1, "held"));
        RVT_ASSERT(timer.was_set());
        now_us += SendHold::kMostUs;
        RVT_ASSERT(net.a.flows->device().send_hold().is_overdue(now_us));
        RVT_ASSERT(net.a.flows->send_held());
        net.run_until([&] { return net.a.flow->is_drained(); });
    }
}

Test(rd_flows, a_sender_comes_back_soon_though_it_takes_long_to_send) {
    FlowPair net;
    net.connect();
    net.wire.on_send = [] { now_us += 3 * SendHold::kMostUs; };
    HoldTimer timer(net);
    for (int time = 0; time < 10; ++time) {
        say_three(net, 1);
    }
    RVT_ASSERT(timer.was_set());
    say_three(net, 1);
    RVT_ASSERT(not(timer.was_set()));
    // So long that the last one fills what leaves as one, and leaves with it.
    const std::string text(2000, 'x');
    for (int time = 0; time < 2; ++time) {
        for (int message = 0; message < 9; ++message) {
            RVT_ASSERT(net.a.say(1, text));
        }
        net.run_until([&] { return net.a.flow->is_drained(); });
    }
    RVT_ASSERT(not(timer.was_set()));
}

/// Both have said something, and `a` has heard the answer, which brought the acknowledgement.
static void ask_and_answer(FlowPair& net) {
    net.run_until([] { return false; }, 1000);
    RVT_ASSERT(net.a.say(1, "question"));
    net.b.poll();
    RVT_ASSERT(net.b.say(2, "answer"));
    net.b.flows->device().flush();
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1);
}

Test(rd_flows, what_follows_an_answer_leaves_at_once) {
    FlowPair net;
    net.connect();
    ask_and_answer(net);
    net.b.heard.clear();
    RVT_ASSERT(net.a.say(1, "next question"));
    RVT_EQ(heard_at_once(net), 1);
}

Test(rd_flows, what_follows_something_heard_leaves_at_once) {
    FlowPair net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    RVT_ASSERT(net.a.say(1, "one"));
    RVT_ASSERT(net.b.say(1, "not an answer"));
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1);
    RVT_ASSERT(net.a.say(1, "two"));
    RVT_EQ(heard_at_once(net), 2);
    RVT_ASSERT(net.a.say(1, "held"));
    RVT_EQ(heard_at_once(net), 2);
}

Test(rd_flows, of_two_that_speak_at_once_neither_acknowledges_on_its_own) {
    FlowPair net;
    net.connect();
    ask_and_answer(net);
    const auto speak = [&] {
        for (FlowTalker* talker : {&net.a, &net.b}) {
            RVT_ASSERT(talker->say(1, "at once"));
            RVT_ASSERT(talker->flows->send_held());
        }
        net.a.poll();
        net.b.poll();
    };
    speak();
    for (int time = 0; time < 20; ++time) {
        now_us += 20;
        speak();
        // What the message has acknowledged has moved, and no packet has come behind it.
        RVT_EQ(net.a.flows->poll(), 1);
        RVT_EQ(net.b.flows->poll(), 1);
    }
    RVT_EQ(net.a.heard.size(), 1 + 21);
    RVT_EQ(net.b.heard.size(), 21 + 1);
}

Test(rd_flows, who_has_just_heard_something_may_leave_out_a_poll) {
    FlowPair net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    RVT_EQ(net.a.flows->take_just_come(), false);
    const auto hears = [&] {
        RVT_ASSERT(net.b.say(1, "something"));
        net.b.poll();
        net.a.poll();
        return net.a.flows->take_just_come();
    };
    // A moment is short: this thread may be interrupted in one, but not in all.
    bool has_left_out = false;
    for (int time = 0; time < 1000 && !has_left_out; ++time) {
        has_left_out = hears();
    }
    RVT_ASSERT(has_left_out);
    RVT_EQ(net.a.flows->take_just_come(), false);  // one
    RVT_ASSERT(net.b.say(1, "something"));
    net.b.poll();
    net.a.poll();
    RVT_ASSERT(net.a.say(1, "leaves at once"));
    RVT_ASSERT(net.a.say(1, "is held for the next poll"));
    RVT_EQ(net.a.flows->take_just_come(), false);
}

Test(rd_flows, what_an_answer_acknowledges_is_let_go_with_the_next_poll) {
    Quiet net;
    net.stay();
    const std::string text(5000, 'x');
    RVT_ASSERT(net.a.lend(1, text));
    const std::uint64_t frames = net.a.flow->frames();
    net.b.poll();
    RVT_ASSERT(net.b.say(2, "answer"));
    net.b.flows->device().flush();
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 1);
    RVT_EQ(net.a.flows->poll(), 1);  // something has moved
    RVT_ASSERT(net.a.flow->has_let_go(frames));
    RVT_EQ(net.a.flows->poll(), 0);
}

Test(rd_flows, an_acknowledgement_of_what_was_not_sent_changes_nothing) {
    FlowPair net;
    net.connect();
    RVT_ASSERT(net.b.say(1, "to be taken"));
    RVT_ASSERT(
        net.a.flow->put({.op = RdOp::kTaken, .data = wire::kPsn | 0x123456}, RdFlow::Room::kAny));
    RVT_ASSERT(net.a.say(2, "after it"));
    RVT_ASSERT(net.run_until([&] { return !net.a.heard.empty() && !net.b.heard.empty(); }));
    RVT_ASSERT(net.run_until([&] { return net.b.flow->is_drained(); }));
    RVT_EQ(net.b.heard[0].tag, 2);
    RVT_EQ(net.a.ends + net.b.ends, 0);
}

Test(rd_flows, what_is_lent_is_in_use_until_the_peer_has_it) {
    FlowPair net;
    net.connect();
    const std::string text(5000, 'x');
    RVT_ASSERT(net.a.lend(1, text));
    const std::uint64_t frames = net.a.flow->frames();
    RVT_EQ(net.a.flow->has_let_go(frames), false);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->has_let_go(frames); }));
    RVT_ASSERT(net.b.heard.at(0).text == text);
}

Test(rd_flows, what_leaves_together_is_acknowledged_together) {
    FlowPair net;
    net.connect();
    net.run_until([] { return false; }, 1000);
    const std::string text(2000, 'x');
    const std::uint64_t before = net.a.packets;
    for (const bool has_more : {true, true, false}) {
        RVT_ASSERT(net.a.lend(1, text, has_more));
    }
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
    RVT_EQ(net.a.packets - before, 1);
    RVT_EQ(net.b.heard.size(), 3);
}

// What a flow of 256 bytes a packet makes of a message's record, header and text.
constexpr std::size_t kPacket = 256;
static std::size_t wire_bytes(std::size_t text) {
    return run_record_bytes(sizeof(RdHeader)) + text;
}

Test(rd_flows, long_messages_behind_others_share_packets) {
    FlowPair net;
    net.connect();
    const std::string text(300, 'x');
    constexpr std::size_t kCount = 20;  // every other one is lent
    RVT_ASSERT(net.a.say(0, "first"));
    for (std::size_t tag = 1; tag <= kCount; ++tag) {
        RVT_ASSERT(net.a.say(tag, text));
    }
    const std::uint64_t before = net.b.packets;
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
    RVT_EQ(net.b.heard.size(), 1 + kCount);
    for (std::size_t tag = 1; tag <= kCount; ++tag) {
        RVT_EQ(net.b.heard[tag].tag, tag);
        RVT_ASSERT(net.b.heard[tag].text == text);
    }
    // By themselves they would be two packets each. A frame has room for two that are lent.
    const std::uint64_t packets = net.b.packets - before;
    RVT_ASSERT(packets < 2 * kCount - kCount / 3);
    RVT_ASSERT(packets >= kCount * wire_bytes(text.size()) / kPacket);
}

Test(rd_flows, a_long_run_is_divided_where_the_frame_is_full) {
    FlowPair net;
    net.connect();
    const std::size_t most = net.a.flow->max_run();
    const std::string text(most / 3, 'x');
    for (int frame = 0; frame < 4; ++frame) {
        RVT_ASSERT(net.a.lend(0, text, true));
    }
    RVT_ASSERT(net.a.lend(1, text));  // is held
    const std::size_t next = net.a.flow->next_run(most);
    RVT_ASSERT(next < most - text.size());
    RVT_ASSERT(next > most / 2);
    const std::uint64_t frames = net.a.flow->frames();
    const std::string part(next, 'y');
    RVT_ASSERT(net.a.lend(2, part, true));
    RVT_EQ(net.a.flow->frames(), frames);
    RVT_EQ(net.a.flow->next_run(2 * most), most);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
    RVT_ASSERT(net.b.heard.at(4).text == text);
    RVT_ASSERT(net.b.heard.at(5).text == part);
}

// The peer takes the first half in while the rest leaves.
Test(rd_flows, behind_a_pause_a_run_of_several_frames_begins_with_half_a_frame) {
    FlowPair net;
    net.connect();
    const std::size_t most = net.a.flow->max_run();
    RVT_EQ(net.a.flow->next_run(most), most);
    RVT_EQ(net.a.flow->next_run(most + 1), most / 2);
    const std::string half(most / 2, 'x');
    RVT_ASSERT(net.a.lend(0, half, true));
    net.b.poll();
    RVT_ASSERT(net.b.heard.at(0).text == half);
    RVT_EQ(net.a.flow->next_run(most + 1), most);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->is_drained(); }));
    RVT_EQ(net.a.flow->next_run(most + 1), most / 2);
}

Test(rd_flows, what_makes_no_sense_behind_a_run_ends_the_flow) {
    FlowPair net;
    net.connect();
    RVT_ASSERT(net.a.say(1, "first"));
    const std::string text(3000, 'x');  // copied, and held with what follows
    RVT_ASSERT(net.a.say(3, text));
    RVT_ASSERT(net.a.flow->put({.op = RdOp::kTaken, .data = 1}, RdFlow::Room::kAny));
    RVT_ASSERT(net.a.say(5, "not heard"));
    RVT_ASSERT(net.run_until([&] { return net.b.is_malformed; }));
    RVT_EQ(net.b.heard.size(), 2);
    RVT_ASSERT(net.b.heard[1].text == text);
}

/// Room is looked for where a frame begins.
Test(rd_flows, a_frame_without_end_is_not_kept_for_an_owner_who_is_away) {
    constexpr std::size_t kPart = 64 * 1024;
    FlowPair net;
    net.connect();
    RVT_ASSERT(net.a.say(1, "first"));
    RVT_ASSERT(net.run_until([&] { return net.b.heard.size() == 1; }));
    const std::vector<std::byte> part(kPart);
    for (std::size_t bytes = 0; net.b.flows->has_room_to_wait() && bytes < 32u << 20;
         bytes += kPart) {
        net.b.flow->take(part, bytes == 0, false);
    }
    RVT_ASSERT(net.b.flows->has_room_to_wait());
    net.b.poll();
    RVT_ASSERT(net.b.is_malformed);
}

Test(rd_flows, the_rest_of_a_long_message_is_not_held_behind_the_message) {
    FlowPair net;
    net.connect();
    const std::string text(3000, 'x');
    RVT_ASSERT(net.a.lend(1, text, true));
    RVT_ASSERT(net.a.lend(2, text));
    RVT_EQ(heard_at_once(net), 2);
}

Test(rd_flows, data_that_somebody_waits_for_is_not_held) {
    FlowPair net;
    net.connect();
    RVT_ASSERT(net.a.say(1, "first"));
    std::byte* const run = net.a.flow->reserve_run(3000, 0);
    std::memset(run, 'x', 3000);
    net.a.flow->put_run({.op = RdOp::kReadData, .data = 5}, 3000);
    RVT_ASSERT(heard_at_once(net) > 1);
}

Test(rd_flows, an_answer_leaves_with_the_poll_that_has_brought_the_question) {
    FlowPair net;
    net.connect();
    for (const char* text : {"first", "held"}) {
        RVT_ASSERT(net.b.say(1, text));
    }
    net.b.flows->device().send_held();
    RVT_ASSERT(net.a.say(2, "question"));
    net.b.on_message = [&] {
        RVT_ASSERT(net.b.say(3, "answer"));
        RVT_ASSERT(net.b.say(4, "and more"));
    };
    net.b.poll();
    net.a.poll();
    RVT_EQ(net.a.heard.size(), 4);
}

Test(rd_flows, who_polls_beside_the_owner_keeps_off_what_it_is_writing) {
    FlowPair net;
    net.connect();
    const std::string text(3000, 'x');
    for (const char* small : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, small));
    }
    std::byte* const run = net.a.flow->reserve_run(text.size(), sizeof(RdHeader));
    net.a.flow->hold_eager(true);  // wants to say so
    RVT_ASSERT(net.a.flows->send_held());
    std::memcpy(run, text.data(), text.size());
    const RdHeader header{.total = text.size(), .operation = 0, .address = 0};
    net.a.flow->put_run({.op = RdOp::kEagerFirst,
                         .payload = reinterpret_cast<const std::byte*>(&header),
                         .payload_bytes = sizeof header},
                        text.size());
    RVT_ASSERT(net.run_until([&] { return net.b.heard.size() == 3; }));
    RVT_ASSERT(net.b.heard[1].text == "held");
    RVT_ASSERT(net.b.heard[2].text == text);
    RVT_ASSERT(net.run_until([&] { return net.b.flow->must_hold_eager(); }));
}

Test(rd_flows, a_run_that_is_not_written_after_all_leaves_no_trace) {
    FlowPair net;
    net.connect();
    for (const char* small : {"first", "held"}) {
        RVT_ASSERT(net.a.say(1, small));
    }
    RVT_ASSERT(net.a.flow->reserve_run(3000, sizeof(RdHeader)) != nullptr);
    RVT_ASSERT(net.a.say(1, "instead"));
    RVT_ASSERT(net.run_until([&] { return net.b.heard.size() == 3; }));
    RVT_ASSERT(net.b.heard[2].text == "instead");
}

Test(rd_flows, packets_are_filled_as_far_as_both_ends_can) {
    fake::Wire wire;
    FlowTalker a{wire, 1, 11, 1408};
    FlowTalker b{wire, 2, 12, 1344};
    const auto run_until = [&](auto is_done) {
        for (int turn = 0; turn < 200'000 && !is_done(); ++turn, now_us += 20) {
            a.poll();
            b.poll();
        }
        return is_done();
    };
    a.flows->connect(b.address());
    RVT_ASSERT(run_until([&] { return a.flow != nullptr && b.flow != nullptr; }));
    RVT_EQ(a.flow->payload_bytes(), 1344);
    RVT_EQ(b.flow->payload_bytes(), 1344);
    const std::string text(5000, 'x');
    const std::uint64_t before = b.packets;
    RVT_ASSERT(a.lend(1, text));
    RVT_ASSERT(run_until([&] { return a.flow->is_drained(); }));
    RVT_ASSERT(b.heard.at(0).text == text);
    RVT_EQ(b.packets - before, 4);
}

Test(rd_flows, what_was_lent_is_not_read_after_the_close) {
    constexpr std::size_t kBytes = 4096;
    FlowPair net;
    net.connect();
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    const std::string_view lent(static_cast<const char*>(memory), kBytes);
    RVT_ASSERT(net.a.lend(1, lent));
    RVT_ASSERT(net.a.lend(2, lent));  // is held
    net.a.flow->close();
    RVT_EQ(munmap(memory, kBytes), 0);
    // Long enough for many a repetition, which would end this process.
    for (int turn = 0; turn < 50'000; ++turn) {
        net.a.flows->poll_for_owner();
        now_us += 20;
    }
}

Test(rd_flows, connects_that_cross_end_in_one_flow) {
    FlowPair net;
    net.a.flows->connect(net.b.address());
    net.b.flows->connect(net.a.address());
    RVT_ASSERT(net.run_until([&] { return net.a.flow != nullptr && net.b.flow != nullptr; }));
    net.run_until([] { return false; }, 1000);
    RVT_EQ(net.a.opens, 1);
    RVT_EQ(net.b.opens, 1);
    RVT_EQ(net.a.failure, 0);
    RVT_EQ(net.b.failure, 0);
}

Test(rd_flows, what_counts_as_a_whole_arrives_as_one) {
    FlowPair net;
    net.connect();
    constexpr std::size_t kBytes = 3000;
    std::byte* const run = net.a.flow->reserve_run(kBytes, sizeof(RdAtomicHeader));
    std::memset(run, 'x', kBytes);
    const RdAtomicHeader header{};
    net.a.flow->put_run({.op = RdOp::kAtomic,
                         .tag = 5,
                         .payload = reinterpret_cast<const std::byte*>(&header),
                         .payload_bytes = sizeof header},
                        kBytes);
    RVT_ASSERT(net.run_until([&] { return !net.b.heard.empty(); }));
    RVT_ASSERT(net.b.heard[0].text == std::string(kBytes, 'x'));
}

Test(rd_flows, a_peer_may_ask_for_headers_only) {
    FlowPair net;
    net.connect();
    net.b.flow->hold_eager(true);
    RVT_ASSERT(net.run_until([&] { return net.a.flow->must_hold_eager(); }));
    net.b.flow->hold_eager(false);
    RVT_ASSERT(net.run_until([&] { return !net.a.flow->must_hold_eager(); }));
}

Test(rd_flows, nobody_there_is_an_error_in_time) {
    FlowPair net;
    const std::uint64_t began = now_us;
    net.a.flows->connect(host_address(9));
    RVT_ASSERT(net.run_until([&] { return net.a.failure != 0; }, 600'000));
    RVT_EQ(net.a.failure, ETIMEDOUT);
    RVT_ASSERT(now_us - began >= 5'000'000 && now_us - began < 10'000'000);
}
