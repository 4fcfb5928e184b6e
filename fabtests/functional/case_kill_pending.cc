// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers killed while every kind of operation to them is pending, and while they have as many to the
// survivor: each of its operations ends once, in time, and gives its buffers back; the traffic with
// another peer goes on meanwhile.
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functional/case.h"
#include "functional/op_kinds.h"

namespace fab {
namespace {

constexpr std::uint64_t kEcho = 6;
constexpr std::size_t kGone = 0;    ///< Flag of the page: how many victims are no more.
constexpr std::size_t kEnded = 1;   ///< The same: of how many all has ended.
constexpr std::size_t kGoneAt = 0;  ///< Result of the page: since when the last one is.

/// What victims do until they are killed.
enum class Life : std::uint8_t { kPolls, kIdles, kStops };

Life life_of(std::uint32_t victim) {
    constexpr Life kLives[] = {Life::kPolls, Life::kIdles, Life::kStops};
    return kLives[victim % std::size(kLives)];
}

/// Whether a message goes between it and the survivor before all others.
bool is_met_before(std::uint32_t victim) {
    return victim / 3 % 2 == 0;
}

EpSpec spec_of(bool sleeps) {
    EpSpec spec{.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, .cq_size = 4096, .one_cq = true};
    if (sleeps) {
        // Counters make answers of what is not answered without them.
        spec.cq_wait = FI_WAIT_UNSPEC;
        spec.cntr_flags = FI_SEND | FI_READ | FI_WRITE;
    }
    return spec;
}

// ---- a victim

constexpr std::size_t kDepth = 8;

/// What a victim has under way when it dies: receives, and operations to the survivor.
void post_back(const Aim& aim, Contexts& contexts) {
    static constexpr Kind kBack[] = {
        {"", post_tagged, kLargeOp, 0, kReturn},
        {"", post_tagged, 8, 0, kReturn},
        {"", post_tagged, kMiddleOp, 0, kUnread},
        {"", post_tagged, kLargeOp, 0, kUnread},
        {"", post_write, kLargeOp},
        {"", post_read, kLargeOp},
        {"", post_fetch, 4096},
    };
    std::size_t slot = 0;
    for (const Kind& kind : kBack) {
        void* const context = contexts.at(slot++);
        aim.ep.post([&] { return kind.post(aim, kind, context); });
    }
}

void receive_as(const Aim& aim, std::uint64_t tag, Contexts& contexts) {
    for (std::size_t i = 0; i < kDepth; ++i) {
        aim.ep.post([&] {
            return fi_trecv(aim.ep.ep, aim.sink.as(), kLargeOp, aim.sink.desc(), FI_ADDR_UNSPEC,
                            tag, 0, contexts.at(i));
        });
    }
}

[[noreturn]] void be_victim(Rank& self, bool sleeps, Life life, bool is_met) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Endpoint ep(spec_of(sleeps));
    Buffer source(ep, kLargeOp);
    Buffer sink(ep, 2 * kLargeOp);
    Buffer target(ep, kLargeOp);
    const pid_t pid = getpid();
    const std::vector<char> mine = ep.name();
    const RemoteRegion region = target.remote();
    self.send(0, &pid, sizeof pid);
    self.send_string(0, std::string(mine.begin(), mine.end()));
    self.send(0, &region, sizeof region);
    const std::string name = self.receive_string(0);
    RemoteRegion remote;
    self.receive(0, &remote, sizeof remote);
    const Aim aim{ep, ep.insert({name.begin(), name.end()}), remote, source, sink};
    Contexts contexts(3 * kDepth);
    receive_as(aim, kTaken, contexts);
    post_back(aim, contexts);
    Completion done;
    while (is_met && (!ep.poll(ep.tx_cq, done) || (done.flags & FI_RECV) == 0)) {
    }
    self.send(0, "r", 1);
    if (life == Life::kStops) raise(SIGSTOP);
    if (life == Life::kIdles) pause();
    for (int turn = 0;; ++turn) {
        ep.poll(ep.tx_cq, done);
        if (turn == 300) receive_as(aim, kLate, contexts);
    }
}

/// Rank 1: one victim after the other.
void breed_pending(Rank& self, bool sleeps, std::uint32_t victims) {
    fi_freeinfo(find_info(spec_of(sleeps)));  // the provider is loaded once, by their parent
    for (std::uint32_t i = 0; i < victims; ++i) {
        const pid_t child = fork();
        FAB_CHECK(child >= 0);
        if (child == 0) be_victim(self, sleeps, life_of(i), is_met_before(i));
        int status = 0;
        FAB_EQUAL(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) _exit(WEXITSTATUS(status));  // its last words are in the page
        self.page->results[kGoneAt] = now_s();
        self.page->flags[kGone].set(i + 1);
    }
}

// ---- the survivor

/// The endpoint of the survivor and all operations that it has ever posted, each of which ends
/// once.
class Survivor {
  public:
    Survivor(bool sleeps, std::size_t most_ops)
        : ep(spec_of(sleeps)), contexts_(most_ops), ops_(most_ops) {}

    /// Returns: the number of an operation that is yet to be posted.
    std::size_t reserve() { return count_++; }
    /// Posts operation `number` to a peer that may be dead, which the call may say itself.
    ///
    /// @param pending  Counts it until it ends.
    template <class Call>
    void post(std::size_t number, const char* name, std::size_t size, std::size_t& pending,
              Call call) {
        ops_.at(number) = {.name = name, .size = size, .pending = &pending};
        ++pending;
        void* const context = contexts_.at(number);
        const double deadline = now_s() + kOpLimitS;
        long rc = 0;
        while ((rc = static_cast<long>(call(context))) == -FI_EAGAIN) {
            turn();
            if (now_s() > deadline) FAB_FAIL("a %s is refused for %.0f s", name, kOpLimitS);
        }
        if (rc < 0) settle(context, static_cast<int>(-rc));
    }
    /// Takes what has ended. Returns: whether something has.
    bool turn() {
        Completion done;
        if (!ep.poll(ep.tx_cq, done)) return false;
        settle(done.context, done.err);
        return true;
    }
    /// Sleeps in fi_cq_sread(3) until something has ended, and takes it. Returns: whether
    /// something has.
    bool await_one(double most_s) {
        fi_cq_tagged_entry entry;
        const ssize_t rc =
            fi_cq_sread(ep.tx_cq, &entry, 1, nullptr, static_cast<int>(most_s * 1000));
        if (rc == 1) settle(entry.op_context, 0);
        if (rc == -FI_EAVAIL) FAB_CHECK(turn());
        return rc == 1 || rc == -FI_EAVAIL;
    }
    void cancel(std::size_t op) { fi_cancel(&ep.ep->fid, contexts_.at(op)); }
    int error_of(std::size_t op) const { return ops_[op].err; }
    /// Fails, naming what `pending` counts.
    [[noreturn]] void fail_pending(const std::size_t& pending, double seconds) const {
        std::string all;
        for (const Op& op : ops_) {
            if (op.pending == &pending) {
                all += std::string(" ") + op.name + " of " + std::to_string(op.size) + ";";
            }
        }
        FAB_FAIL("%zu still pending after %.1f s:%s", pending, seconds, all.c_str());
    }

    Endpoint ep;

  private:
    struct Op {
        const char* name = nullptr;
        std::size_t size = 0;
        std::size_t* pending = nullptr;
        int err = 0;
    };

    void settle(const void* context, int err) {
        Op& op = ops_.at(contexts_.index_of(context));
        if (op.pending == nullptr) {
            FAB_FAIL("a %s of %zu ends again, with %d; it has with %d", op.name, op.size, err,
                     op.err);
        }
        --*op.pending;
        op.pending = nullptr;
        op.err = err;
    }

    std::size_t count_ = 0;
    Contexts contexts_;
    std::vector<Op> ops_;
};

/// Traffic with rank 2, which sends back what it gets until that is nothing.
class Echoes {
  public:
    Echoes(Survivor& survivor, fi_addr_t peer)
        : survivor_(survivor),
          peer_(peer),
          out_(survivor.ep, kLength),
          in_(survivor.ep, kLength),
          receive_(survivor.reserve()),
          call_(survivor.reserve()) {}

    /// Keeps a message under way.
    void turn() {
        if (pending_ > 0) return;
        take();
        is_under_way_ = true;
        length_ = kLengths[++seed_ % std::size(kLengths)];
        out_.fill(seed_, length_);
        const Endpoint& ep = survivor_.ep;
        survivor_.post(receive_, "echo", length_, pending_, [&](void* context) {
            return fi_trecv(ep.ep, in_.as(), kLength, in_.desc(), FI_ADDR_UNSPEC, kEcho, 0,
                            context);
        });
        call(length_);
    }
    /// So many more, one after the other.
    void repeat(int count) {
        for (int i = 0; i < count; ++i) {
            turn();
            drain();
        }
    }
    void finish() {
        drain();
        call(0);
        drain();
    }

  private:
    static constexpr std::size_t kLength = 100'000;
    static constexpr std::size_t kLengths[] = {8, 3000, kLength};

    void call(std::size_t length) {
        const Endpoint& ep = survivor_.ep;
        survivor_.post(call_, "call", length, pending_, [&](void* context) {
            return fi_tsend(ep.ep, out_.as(), length, out_.desc(), peer_, kEcho, context);
        });
    }
    void drain() {
        const double start = now_s();
        while (pending_ > 0) {
            survivor_.turn();
            if (now_s() - start > kOpLimitS) survivor_.fail_pending(pending_, kOpLimitS);
        }
        take();
    }
    void take() {
        if (!is_under_way_) return;
        is_under_way_ = false;
        FAB_EQUAL(survivor_.error_of(receive_), 0);
        FAB_EQUAL(survivor_.error_of(call_), 0);
        in_.expect(seed_, length_);
    }

    Survivor& survivor_;
    fi_addr_t peer_;
    Buffer out_;
    Buffer in_;
    std::size_t receive_;
    std::size_t call_;
    std::size_t pending_ = 0;
    bool is_under_way_ = false;
    std::size_t length_ = 0;
    unsigned seed_ = 0;
};

/// What a victim has said of itself.
struct Victim {
    pid_t pid = 0;
    Life life = Life::kPolls;
    fi_addr_t peer = FI_ADDR_NOTAVAIL;
    RemoteRegion region;
};

/// The survivor's side of one victim's death.
class Loss {
  public:
    Loss(Rank& self, Survivor& survivor, Echoes& echoes, std::uint32_t number)
        : self_(self),
          survivor_(survivor),
          echoes_(echoes),
          number_(number),
          source_(survivor.ep, kLargeOp),
          sink_(survivor.ep, 2 * kLargeOp),
          inbox_(survivor.ep, kLargeOp),
          target_(survivor.ep, kLargeOp) {}

    void meet() {
        victim_.life = life_of(number_);
        self_.receive(1, &victim_.pid, sizeof victim_.pid);
        const std::string name = self_.receive_string(1);
        self_.receive(1, &victim_.region, sizeof victim_.region);
        const std::vector<char> mine = survivor_.ep.name();
        self_.send_string(1, std::string(mine.begin(), mine.end()));
        const RemoteRegion region = target_.remote();
        self_.send(1, &region, sizeof region);
        victim_.peer = survivor_.ep.insert({name.begin(), name.end()});
        for (int i = 0; i < 4; ++i) receive(kReturn);
        if (is_met_before(number_)) post(kGreeting);
        char ready = 0;
        self_.receive_polling(1, &ready, 1, [this] { survivor_.turn(); });
        while (victim_.life == Life::kStops && state_of(victim_.pid) != 'T') survivor_.turn();
    }
    /// Posts everything, and kills the victim on the way or a little later.
    void lose_polling() {
        std::minstd_rand random(number_ + 1);
        const std::size_t moment = random() % (2 * kKindCount);
        for (std::size_t i = 0; i < kKindCount; ++i) {
            if (i == moment) strike();
            post(kKinds[i]);
            echoes_.turn();
        }
        constexpr double kStepS = 50e-6;
        const double steps = moment < kKindCount ? 0 : static_cast<double>(moment - kKindCount);
        for (const double until = now_s() + steps * kStepS; now_s() < until;) turn();
        if (moment >= kKindCount) strike();
        posted_at_ = now_s();
        while (pending_ > 0) {
            if (!turn()) check_time();
        }
    }
    /// Posts a part of it and sleeps; rank 2 kills the victim then. All at once may fill the way to
    /// a victim, and who waits for room there does not sleep.
    void lose_asleep() {
        constexpr std::size_t kParts = 5;
        for (std::size_t i = number_ / 6 % kParts; i < kKindCount; i += kParts) post(kKinds[i]);
        self_.send(2, &victim_.pid, sizeof victim_.pid);
        posted_at_ = now_s();
        while (pending_ > 0) {
            if (!survivor_.await_one(limit_s())) check_time();
        }
        self_.page->flags[kEnded].set(number_ + 1);
    }
    /// What could end only with the right answer of the victim has ended with an error.
    void expect_errors() const {
        for (std::size_t i = 0; i < posted_.size(); ++i) {
            const Kind& kind = *posted_[i].kind;
            const bool may_match = kind.tag != kNever && victim_.life == Life::kPolls;
            if ((kind.flags & FI_MATCH_COMPLETE) == 0 || may_match) continue;
            if (survivor_.error_of(posted_[i].op) == 0) FAB_FAIL("nobody had the %s", kind.name);
        }
    }
    /// Takes what the victim has left, and takes receives back.
    void clear_up() {
        for (int i = 0; i < 4; ++i) receive(kUnread);
        while (!is_gone()) survivor_.turn();
        for (int quiet = 0; quiet < 100;) quiet = survivor_.turn() ? 0 : quiet + 1;
        for (const std::size_t op : receives_) survivor_.cancel(op);
        const double start = now_s();
        while (receiving_ > 0) {
            survivor_.turn();
            if (now_s() - start > limit_s()) survivor_.fail_pending(receiving_, limit_s());
        }
        FAB_OK(fi_av_remove(survivor_.ep.av, &victim_.peer, 1, 0));
    }
    /// Nobody has the buffers any more.
    void expect_buffers_back() {
        constexpr int kMark = 7;
        target_.close_region();
        for (const Buffer* buffer : {&sink_, &inbox_, &target_}) {
            std::memset(buffer->as(), kMark, buffer->size());
        }
        echoes_.repeat(3);
        for (const Buffer* buffer : {&sink_, &inbox_, &target_}) {
            const char* const bytes = buffer->as();
            FAB_EQUAL(bytes[0], kMark);
            FAB_EQUAL(std::memcmp(bytes, bytes + 1, buffer->size() - 1), 0);
        }
    }

  private:
    static constexpr Kind kGreeting{"greeting", post_tagged, 8, 0, kTaken};

    struct Posted {
        const Kind* kind;
        std::size_t op;
    };

    void post(const Kind& kind) {
        const Aim aim{survivor_.ep, victim_.peer, victim_.region, source_, sink_};
        posted_.push_back({&kind, survivor_.reserve()});
        survivor_.post(posted_.back().op, kind.name, kind.size, pending_,
                       [&](void* context) { return kind.post(aim, kind, context); });
    }
    void receive(std::uint64_t tag) {
        const Endpoint& ep = survivor_.ep;
        receives_.push_back(survivor_.reserve());
        survivor_.post(receives_.back(), "receive", kLargeOp, receiving_, [&](void* context) {
            return fi_trecv(ep.ep, inbox_.as(), kLargeOp, inbox_.desc(), FI_ADDR_UNSPEC, tag, 0,
                            context);
        });
    }
    void strike() const { kill(victim_.pid, SIGKILL); }
    bool is_gone() const { return self_.page->flags[kGone].get() > number_; }
    /// Returns: whether something has ended.
    bool turn() {
        const bool has_ended = survivor_.turn();
        echoes_.turn();
        return has_ended;
    }
    /// Over a wire whoever owes something is asked after a second of silence, fi_rvt(7).
    static double limit_s() { return settings.has_hosts ? 3 * kNoticeS : kNoticeS; }
    /// Of what has not ended, while nothing does: what is there to be taken is not late.
    void check_time() const {
        const double since = std::max<double>(self_.page->results[kGoneAt], posted_at_);
        if (is_gone() && now_s() - since > limit_s()) {
            survivor_.fail_pending(pending_, limit_s());
        }
    }

    Rank& self_;
    Survivor& survivor_;
    Echoes& echoes_;
    std::uint32_t number_;
    Buffer source_;
    Buffer sink_;
    Buffer inbox_;
    Buffer target_;
    Victim victim_;
    std::size_t pending_ = 0;
    std::size_t receiving_ = 0;
    std::vector<Posted> posted_;
    double posted_at_ = 0;  // the last of them
    std::vector<std::size_t> receives_;
};

/// Rank 2 sends back what it gets until that is nothing.
void send_back(const Endpoint& ep, fi_addr_t peer, const Buffer& buffer) {
    Contexts contexts(2);
    Completion got{.len = buffer.size()};
    while (got.len > 0) {
        ep.post([&] {
            return fi_trecv(ep.ep, buffer.as(), buffer.size(), buffer.desc(), FI_ADDR_UNSPEC, kEcho,
                            0, contexts.at(0));
        });
        while (!ep.poll(ep.rx_cq, got)) {
        }
        FAB_EQUAL(got.err, 0);
        if (got.len == 0) break;
        ep.post([&] {
            return fi_tsend(ep.ep, buffer.as(), got.len, buffer.desc(), peer, kEcho,
                            contexts.at(1));
        });
        ep.wait_tx();
    }
}

/// Whether the survivor sleeps, or need not: a victim that polls may be done with all. Who waits
/// for room on the way to it, or for an acknowledgement, polls inside of the call that sleeps.
bool is_past_waiting(const Rank& self, std::uint32_t victim, double since) {
    constexpr double kToSleepS = 0.1;
    return state_of(self.page->pids[0]) == 'S' || self.page->flags[kEnded].get() > victim ||
           now_s() - since > kToSleepS;
}

/// Rank 2: the survivor's other peer, which kills who sleeps through nothing.
void stand_by(const Rank& self, Endpoint& ep, fi_addr_t peer, bool sleeps, std::uint32_t victims) {
    Buffer buffer(ep, 100'000);
    for (std::uint32_t i = 0; i < victims; ++i) {
        pid_t victim = 0;
        if (sleeps) self.receive(0, &victim, sizeof victim);
        const double told = now_s();
        while (sleeps && !is_past_waiting(self, i, told)) sched_yield();
        if (sleeps) kill(victim, SIGKILL);
        send_back(ep, peer, buffer);
    }
}

template <bool kSleeps>
void kill_pending(Rank& self) {
    // Not about how long an address is tried where nobody is any more.
    setenv("FI_RVT_REFUSED_TIMEOUT_MS", "100", 1);
    const std::uint32_t victims = settings.is_long ? 600 : kIsSanitized ? 6 : 30;
    if (self.rank == 1) return breed_pending(self, kSleeps, victims);
    Survivor survivor(kSleeps, victims * (kKindCount + 16));
    const std::vector<char> mine = survivor.ep.name();
    const int other = 2 - self.rank;
    self.send_string(other, std::string(mine.begin(), mine.end()));
    const std::string theirs = self.receive_string(other);
    const fi_addr_t peer = survivor.ep.insert({theirs.begin(), theirs.end()});
    if (self.rank == 2) return stand_by(self, survivor.ep, peer, kSleeps, victims);
    Echoes echoes(survivor, peer);
    for (std::uint32_t i = 0; i < victims; ++i) {
        {
            Loss loss(self, survivor, echoes, i);
            loss.meet();
            kSleeps ? loss.lose_asleep() : loss.lose_polling();
            loss.expect_errors();
            loss.clear_up();
            loss.expect_buffers_back();
        }
        echoes.repeat(3);
        echoes.finish();
    }
}

constexpr Case kKillPendingTable[] = {
    {"kill_pending", kill_pending<false>, 3, 600},
    {"kill_pending_asleep", kill_pending<true>, 3, 600},
};

}  // namespace

const std::span<const Case> kKillPendingCases = kKillPendingTable;

}  // namespace fab
