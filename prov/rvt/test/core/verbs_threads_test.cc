// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Several threads on one device: nothing is lost, nothing outlives its object, nobody waits for
// ever.
#include "common/process.h"
#include "conform/fixture.h"
#include "core/packet_flow.h"
#include "core/requester.h"
#include "util/lock.h"

#include <atomic>
#include <thread>
#include <vector>

#include <poll.h>
#include <unistd.h>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr int kMessages = 3000;

/// The time of two threads: it goes on only while both get their turns, so that none that the
/// scheduler keeps waiting finds that a peer has given it up.
class Turns {
  public:
    /// Thread `who`, 0 or 1, has had a turn.
    void take(int who) noexcept {
        // relaxed: nothing but the time hangs on whose turn was the last.
        if (last_.exchange(who, std::memory_order_relaxed) != who) {
            fake_now_us += 1;
        }
    }
    /// A thread has all that it waits for. It goes on with its turns until both have.
    void end() noexcept { ++done_; }
    [[nodiscard]] bool is_over() const noexcept { return done_ == 2; }

  private:
    std::atomic<int> last_{0};
    std::atomic<int> done_{0};
};

/// Sends kMessages numbered messages and takes kMessages in, checking their order. Answers the
/// other side until both are done.
void exchange(Side& side, Side& other, int who, Turns& turns, std::atomic<int>& wrong) {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    int in_flight = 0;
    for (std::uint64_t i = 0; i < 32; ++i) {
        wrong += !side.post_recv(i).is_ok();
    }
    while (received < kMessages || sent < kMessages || in_flight > 0) {
        if (sent < kMessages && in_flight < 16) {
            const Op op{.opcode = WrOpcode::kSendImm, .offset = 65536, .bytes = 32, .imm = sent};
            wrong += !post(side, other, op).is_ok();
            ++sent;
            ++in_flight;
        }
        Wc wc;
        if (side.send_cq->poll({&wc, 1}) == 1) {
            wrong += wc.status != WcStatus::kSuccess;
            --in_flight;
        }
        if (side.recv_cq->poll({&wc, 1}) == 1) {
            wrong += wc.imm != received++ || wc.status != WcStatus::kSuccess;
            wrong += !side.post_recv(wc.wr_id).is_ok();
        }
        side.device->progress();
        turns.take(who);
    }
    for (turns.end(); !turns.is_over(); turns.take(who)) {
        side.device->progress();
    }
}

template <class Backend>
void two_threads_exchange() {
    Pair<Backend> pair({.timeout = 18});  // a second: sockets take the kernel's time
    Turns turns;
    std::atomic<int> wrong{0};
    std::thread peer([&] { exchange(pair.b(), pair.a(), 1, turns, wrong); });
    exchange(pair.a(), pair.b(), 0, turns, wrong);
    peer.join();
    RVT_EQ(wrong, 0);
}

/// A thread writes to a region, and moves the device of its owner, who takes it away again and
/// again.
template <class Backend>
void take_memory_away_under_traffic() {
    Pair<Backend> pair({.type = QpType::kUc});
    std::vector<std::byte> target(4096);
    const iovec memory{.iov_base = target.data(), .iov_len = target.size()};
    std::atomic<std::uint32_t> key{0};
    std::atomic<std::uint64_t> address{0};
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        const Sge element = pair.a().sge(0, 4096);
        Wc wc;
        while (!stop) {
            [[maybe_unused]] const Status s = pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                                                      .sg_list = {&element, 1},
                                                                      .remote_addr = address,
                                                                      .rkey = key});
            pair.a().send_cq->poll({&wc, 1});
            pair.b().device->progress();
        }
    });
    for (int i = 0; i < 200; ++i) {
        Mr* mr = reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kAllAccess}).value();
        address = reinterpret_cast<std::uint64_t>(target.data());
        key = mr->rkey();
        std::this_thread::yield();
        RVT_OK(dereg_mr(mr));
        std::fill(target.begin(), target.end(), std::byte{0x5a});  // ours alone again
        for (std::byte byte : target) {
            RVT_EQ(byte, std::byte{0x5a});
        }
    }
    stop = true;
    writer.join();
}

}  // namespace

Test(verbs_threads, two_threads_exchange_messages_in_order_both_ways, .timeout = 60) {
    two_threads_exchange<Loopback>();
}
Test(verbs_threads, two_threads_exchange_messages_by_packets, .timeout = 60) {
    two_threads_exchange<Packets>();
}
Test(verbs_threads, two_threads_exchange_messages_by_sockets, .timeout = 60) {
    two_threads_exchange<Roce>();
}

// Who posts while another thread has the lock of the queue leaves it a wish, which that one heeds,
// although it has not seen the request.
Test(verbs_threads, a_wish_for_a_run_is_heeded_behind_a_response) {
    Pair<Packets> pair;
    core::Qp& qp = *pair.a().qp;
    {
        const util::Guard guard(qp.tx_lock());
        RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 16}));
    }
    RVT_ASSERT(core::wants_run(qp));
    core::run_send_queue(qp);
    RVT_ASSERT(not(core::wants_run(qp)));
    qp.run_again = 1;
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(not(core::wants_run(qp)));
}

Test(verbs_threads, a_wish_for_a_run_is_heeded_behind_an_answer_that_comes_too_late) {
    Pair<Packets> pair;
    core::Qp& qp = *pair.a().qp;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .bytes = 16}));
    pair.b().device->progress();  // answers
    RVT_OK(qp.modify({.state = QpState::kErr}, QpMask::kState));
    const std::uint64_t drops = pair.a().device->stats().sum(core::Stat::kDrops);
    qp.run_again = 1;
    pair.a().device->progress();
    RVT_EQ(pair.a().device->stats().sum(core::Stat::kDrops), drops + 1);
    RVT_ASSERT(not(core::wants_run(qp)));
    qp.run_again = 1;
    core::take_acknowledged(qp, rvt::protocol::Psn(0), fake_now_us);
    RVT_ASSERT(not(core::wants_run(qp)));
}

Test(verbs_threads, several_threads_post_to_one_pair_and_all_arrives, .timeout = 60) {
    constexpr int kThreads = 3;
    constexpr int kEach = 500;
    Pair<Loopback> pair({.cap = {.max_send_wr = 64, .max_recv_wr = 64}});
    std::atomic<int> posted{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            for (int n = 0; n < kEach;) {
                if (pair.post_send({.bytes = 16}).is_ok()) {
                    ++n;
                    ++posted;
                } else {
                    std::this_thread::yield();
                }
            }
        });
    }
    int received = 0;
    int completed = 0;
    for (std::uint64_t i = 0; i < 64; ++i) {
        RVT_OK(pair.b().post_recv(i));
    }
    while (received < kThreads * kEach || completed < kThreads * kEach) {
        Wc wc;
        completed += static_cast<int>(pair.a().send_cq->poll({&wc, 1}));
        if (pair.b().recv_cq->poll({&wc, 1}) == 1) {
            ++received;
            RVT_OK(pair.b().post_recv(wc.wr_id));
        }
        fake_now_us += 1;
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    RVT_EQ(posted, kThreads * kEach);
}

Test(verbs_threads, memory_is_taken_away_under_traffic, .timeout = 60) {
    take_memory_away_under_traffic<Loopback>();
}
Test(verbs_threads, memory_is_taken_away_under_packets, .timeout = 60) {
    take_memory_away_under_traffic<Packets>();
}

Test(verbs_threads, a_pair_is_destroyed_under_traffic_to_it, .timeout = 60) {
    Pair<Loopback> pair({.type = QpType::kUd});
    const Options ud{.type = QpType::kUd};
    std::atomic<std::uint32_t> target{0};
    std::atomic<bool> stop{false};
    std::thread sender([&] {
        const Sge element = pair.a().sge(0, 64);
        Wc wc;
        while (!stop) {
            [[maybe_unused]] const Status s = pair.a().qp->post_send({.sg_list = {&element, 1},
                                                                      .ah = pair.a().ah,
                                                                      .remote_qpn = target,
                                                                      .remote_qkey = kQkey});
            pair.a().send_cq->poll({&wc, 1});
        }
    });
    for (int i = 0; i < 100; ++i) {
        Qp* qp = create_qp(*pair.b().pd, {.type = QpType::kUd,
                                          .send_cq = pair.b().send_cq,
                                          .recv_cq = pair.b().recv_cq})
                     .value();
        for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
            RVT_OK(
                qp->modify(attr_for(state, pair.b(), pair.a(), ud), mask_for(state, QpType::kUd)));
        }
        const Sge room = pair.b().sge(0, 512);
        RVT_OK(qp->post_recv({.sg_list = {&room, 1}}));
        target = qp->qpn();
        std::this_thread::yield();
        RVT_OK(destroy_qp(qp));
    }
    stop = true;
    sender.join();
}

Test(verbs_threads, a_blocking_wait_ends_when_another_thread_sends, .timeout = 30) {
    Pair<Loopback> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().recv_cq->req_notify(false));
    std::thread sender([&] { [[maybe_unused]] const Status s = pair.post_send(); });
    RVT_ASSERT(pair.b().channel->get_event(-1).value() == pair.b().recv_cq);
    RVT_EQ(pair.received().wr_id, 1);
    sender.join();
}

Test(verbs_threads, what_a_forked_child_forgets_is_still_told_to_its_parent) {
    Pair<Loopback> pair;
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.b().recv_cq->req_notify(false));
    RVT_OK(pair.post_send());
    pair.sent();
    test::Process child([&](test::Process&) {
        pair.b().channel->forget(*pair.b().recv_cq);
        _exit(0);
    });
    RVT_EQ(child.wait(), 0);
    pollfd source{pair.b().channel->fd(), POLLIN, 0};
    RVT_EQ(poll(&source, 1, 0), 1);
}
