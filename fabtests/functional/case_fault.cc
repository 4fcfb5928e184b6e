// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that die, stop or fork.
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functional/case.h"

namespace fab {
namespace {

constexpr double kRestartS = 20;  ///< Another process is reached at a known address.
constexpr std::size_t kLarge = 1 << 20;

/// Posts what cannot complete without the victim; kills it; each must end with an error in time.
/// Then the other peer is served as before.
void survive(Party& party, const Buffer& buffer, int victim, pid_t pid, bool with_rma,
             const RemoteRegion& remote) {
    constexpr std::size_t kSends = 8;
    Contexts contexts(kSends + 2);
    std::size_t pending = 0;
    for (; pending < kSends; ++pending) {
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, buffer.as(), kLarge, buffer.desc(), party.at(victim), 50,
                            contexts.at(pending));
        });
    }
    kill(pid, SIGKILL);
    if (with_rma) {
        const auto rc = static_cast<long>(fi_write(party.ep.ep, buffer.as(), kLarge, buffer.desc(),
                                                   party.at(victim), remote.base, remote.key,
                                                   contexts.at(pending)));
        if (rc == 0) ++pending;
    }
    const double start = now_s();
    std::size_t errors = 0;
    while (pending > 0) {
        Completion done;
        if (party.ep.poll(party.ep.tx_cq, done)) {
            --pending;
            if (done.err != 0) ++errors;
        }
        party.ep.progress();
        if (now_s() - start > kNoticeS) {
            FAB_FAIL("%zu operations still pending %.0f s after the peer died", pending, kNoticeS);
        }
    }
    FAB_CHECK(errors >= kSends);
}

/// After the death of `victim` a new operation to it fails in time too.
void fails_in_time(Party& party, const Buffer& buffer, int victim) {
    Contexts contexts(1);
    const double start = now_s();
    long rc = 0;
    do {
        rc = static_cast<long>(fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(),
                                        party.at(victim), 1, contexts.at(0)));
        party.ep.progress();
        // Reconnecting to an address where nobody is any more may be tried for longer.
        if (now_s() - start > 30) FAB_FAIL("a send to a dead peer is refused for 30 s");
    } while (rc == -FI_EAGAIN);
    if (rc < 0) return;
    Completion done;
    while (!party.ep.poll(party.ep.tx_cq, done)) {
        party.ep.progress();
        if (now_s() - start > 30) FAB_FAIL("a send to a dead peer never completes");
    }
    FAB_CHECK(done.err != 0);
}

/// For cases that are not about how long an address is tried where nobody is any more.
void give_up_soon() {
    setenv("FI_RVT_REFUSED_TIMEOUT_MS", "300", 1);
}

/// Rank 1 is killed under traffic; rank 0 is told, and goes on with rank 2.
void killed(Rank& self) {
    give_up_soon();
    Party party(self, {.caps = FI_TAGGED | FI_RMA});
    party.leave_alone();
    Buffer buffer(party.ep, kLarge);
    Buffer target(party.ep, kLarge);
    for (int a = 0; a < 3; ++a) {
        for (int b = a + 1; b < 3; ++b) {
            if (self.rank == a) greet(party, buffer, b);
            if (self.rank == b) greet(party, buffer, a);
            party.barrier();
        }
    }
    if (self.rank == 1) {
        const RemoteRegion mine = target.remote();
        self.send(0, &mine, sizeof mine);
        self.page->flags[0].set();
        for (;;) party.ep.progress();
    }
    if (self.rank == 0) {
        RemoteRegion remote;
        self.receive(1, &remote, sizeof remote);
        progress_until(party, 0);
        survive(party, buffer, 1, self.page->pids[1], true, remote);
        fails_in_time(party, buffer, 1);
        self.page->flags[1].set();
        for (int i = 0; i < 100; ++i) greet(party, buffer, 2);
        self.page->flags[2].set();
    } else {
        progress_until(party, 1);
        for (int i = 0; i < 100; ++i) greet(party, buffer, 0);
        progress_until(party, 2);
    }
}

/// How a survivor sleeps when its peer dies.
enum class Sleep : std::uint8_t { kSread, kDescriptor, kCounter };

/// Sleeps until what was sent has an error, in the queue or in its counter.
template <Sleep kHow>
void sleep_until_told(const Party& party) {
    constexpr int kLimitMs = 20'000;
    fi_cq_tagged_entry entry;
    if constexpr (kHow == Sleep::kSread) {
        FAB_EQUAL(fi_cq_sread(party.ep.tx_cq, &entry, 1, nullptr, kLimitMs), -FI_EAVAIL);
    } else if constexpr (kHow == Sleep::kDescriptor) {
        int fd = -1;
        FAB_OK(fi_control(&party.ep.tx_cq->fid, FI_GETWAIT, &fd));
        ssize_t rc = 0;
        while ((rc = fi_cq_read(party.ep.tx_cq, &entry, 1)) == -FI_EAGAIN) {
            fid* fids[] = {&party.ep.tx_cq->fid};
            const int safe = fi_trywait(party.ep.fabric, fids, 1);
            if (safe == -FI_EAGAIN) continue;
            FAB_OK(safe);
            pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
            FAB_EQUAL(poll(&waiting, 1, kLimitMs), 1);
        }
        FAB_EQUAL(rc, -FI_EAVAIL);
    } else {
        FAB_EQUAL(fi_cntr_wait(party.ep.send_cntr, UINT64_MAX, kLimitMs), -FI_EAVAIL);
    }
}

/// What has to end when the victim dies: large messages and small ones that nobody receives, and
/// atomics that its process would have to execute.
std::size_t post_all_kinds(const Party& party, const Buffer& buffer, int victim,
                           const RemoteRegion& remote, Contexts& contexts) {
    std::size_t posted = 0;
    const auto post = [&](auto op) {
        void* const context = contexts.at(posted++);
        party.ep.post([&] { return static_cast<long>(op(context)); });
    };
    const fi_addr_t peer = party.at(victim);
    std::byte* const word = buffer.as<std::byte>() + kLarge;
    for (const std::uint64_t flag : {FI_MATCH_COMPLETE, FI_DELIVERY_COMPLETE}) {
        const iovec piece{.iov_base = buffer.as(), .iov_len = 8};
        void* desc = buffer.desc();
        post([&](void* context) {
            const fi_msg_tagged message{.msg_iov = &piece,
                                        .desc = &desc,
                                        .iov_count = 1,
                                        .addr = peer,
                                        .tag = 50,
                                        .ignore = 0,
                                        .context = context,
                                        .data = 0};
            return fi_tsendmsg(party.ep.ep, &message, flag | FI_COMPLETION);
        });
    }
    post([&](void* context) {
        return fi_tsend(party.ep.ep, buffer.as(), kLarge, buffer.desc(), peer, 50, context);
    });
    post([&](void* context) {
        return fi_atomic(party.ep.ep, buffer.as(), 1, buffer.desc(), peer, remote.base, remote.key,
                         FI_UINT64, FI_SUM, context);
    });
    post([&](void* context) {
        return fi_fetch_atomic(party.ep.ep, buffer.as(), 1, buffer.desc(), word, buffer.desc(),
                               peer, remote.base, remote.key, FI_UINT64, FI_SUM, context);
    });
    post([&](void* context) {
        return fi_compare_atomic(party.ep.ep, buffer.as(), 1, buffer.desc(), buffer.as(),
                                 buffer.desc(), word, buffer.desc(), peer, remote.base, remote.key,
                                 FI_UINT64, FI_CSWAP, context);
    });
    return posted;
}

/// Rank 1 stops, and is killed by rank 2 when rank 0 sleeps; rank 0 is woken, and told of all that
/// it has posted. Then it goes on with rank 2.
template <Sleep kHow>
void killed_while_asleep(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_RMA | FI_ATOMIC,
                       .cq_wait = kHow == Sleep::kDescriptor ? FI_WAIT_FD : FI_WAIT_UNSPEC,
                       .cntr_flags = FI_SEND,
                       .cntr_wait = FI_WAIT_UNSPEC});
    party.leave_alone();
    Buffer buffer(party.ep, kLarge + 64);
    if (self.rank < 2) greet(party, buffer, self.other());
    party.barrier();
    if (self.rank != 1) greet(party, buffer, 2 - self.rank);
    party.barrier();
    if (self.rank == 1) {
        const RemoteRegion mine = buffer.remote();
        self.send(0, &mine, sizeof mine);
        raise(SIGSTOP);
    }
    if (self.rank == 2) {
        char about_to_sleep = 0;
        self.receive(0, &about_to_sleep, 1);
        while (state_of(self.page->pids[0]) != 'S') sched_yield();
        self.page->results[0] = now_s();
        kill(self.page->pids[1], SIGKILL);
        for (int i = 0; i < 10; ++i) greet(party, buffer, 0);
        return;
    }
    RemoteRegion remote;
    self.receive(1, &remote, sizeof remote);
    while (state_of(self.page->pids[1]) != 'T') sched_yield();
    Contexts contexts(8);
    // Over a wire whoever owes something is asked after a second of silence, fi_rvt(7).
    const double limit = settings.has_hosts ? 3 * kNoticeS : kNoticeS;
    std::size_t pending = post_all_kinds(party, buffer, 1, remote, contexts);
    self.send(2, "s", 1);
    sleep_until_told<kHow>(party);
    while (pending > 0) {
        Completion done;
        if (party.ep.poll(party.ep.tx_cq, done)) {
            FAB_CHECK(done.err != 0);
            --pending;
        }
        if (now_s() - self.page->results[0] > limit) {
            FAB_FAIL("%zu operations still pending %.0f s after the peer died", pending, limit);
        }
    }
    for (int i = 0; i < 10; ++i) greet(party, buffer, 2);
}

/// A process that answers one message, at the address `source` if that is given.
pid_t start_peer(Rank& self, const std::vector<char>& source) {
    const pid_t pid = fork();
    FAB_CHECK(pid >= 0);
    if (pid != 0) return pid;
    Party party(self, {.caps = FI_TAGGED, .source = source});
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    party.trecv(buffer, 64, 1, 0, contexts.at(0));
    for (Completion got; !party.ep.poll(party.ep.rx_cq, got);) party.ep.progress();
    party.ep.post([&] {
        return fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(), party.at(0), 1, contexts.at(1));
    });
    for (;;) party.ep.progress();
}

/// Sends until the peer has it. Earlier ones may have been for the one that died.
void send_until_delivered(Party& party, const Buffer& buffer) {
    Contexts contexts(1);
    const double deadline = now_s() + kRestartS;
    for (Completion done{.err = -1}; done.err != 0;) {
        const iovec piece{buffer.as(), 8};
        void* desc = buffer.desc();
        const fi_msg_tagged message{&piece, &desc, 1, party.peer(), 1, 0, contexts.at(0), 0};
        party.ep.post([&] {
            return fi_tsendmsg(party.ep.ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
        });
        while (!party.ep.poll(party.ep.tx_cq, done)) {
            party.ep.progress();
            if (now_s() > deadline) FAB_FAIL("who has the address now is not reached");
        }
    }
}

/// Another process has the address of one that died. Who has talked to the first reaches the
/// second.
void restarted(Rank& self) {
    constexpr std::uint32_t kTurns = 3;
    std::vector<char> address;
    if (self.rank == 1) {
        for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
            const pid_t pid = start_peer(self, address);
            while (self.page->flags[0].get() < turn) sched_yield();
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
            const std::string name = self.receive_string(0);
            address.assign(name.begin(), name.end());
        }
        return;
    }
    Party party(self, {.caps = FI_TAGGED});
    party.leave_alone();
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
        if (turn != 1) party.ep.connect(self);
        party.trecv(buffer, 64, 1, 0, contexts.at(0));
        send_until_delivered(party, buffer);
        party.ep.wait_rx();
        std::string name(64, '\0');
        std::size_t bytes = name.size();
        FAB_OK(fi_av_lookup(party.ep.av, party.peer(), name.data(), &bytes));
        name.resize(bytes);
        self.page->flags[0].set(turn);
        self.send_string(1, name);
    }
}

/// Rank 1 dies without having been connected to: an operation to it ends with an error.
void killed_before_contact(Rank& self) {
    give_up_soon();
    Party party(self, {.caps = FI_TAGGED});
    party.leave_alone();
    Buffer buffer(party.ep, 64);
    self.barrier();
    if (self.rank == 1) raise(SIGKILL);
    char none = 0;
    while (recv(self.sockets[1], &none, 1, 0) > 0) {
    }  // until the kernel closed the dead one's end
    fails_in_time(party, buffer, 1);
}

/// A child forked by the victim lives on, and must not hide the victim's death.
void killed_with_a_child(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    party.leave_alone();
    Buffer buffer(party.ep, kLarge);
    greet(party, buffer, self.other());
    party.barrier();
    if (self.rank == 1) {
        const pid_t child = fork();
        if (child == 0) {
            // Until the other rank says that it has seen what it is to see, or is gone.
            char token = 0;
            while (recv(self.sockets[0], &token, 1, 0) < 0 && errno == EINTR) {
            }
            _exit(0);
        }
        self.page->flags[0].set();
        for (;;) party.ep.progress();
    }
    progress_until(party, 0);
    survive(party, buffer, 1, self.page->pids[1], false, {});
    self.send(1, "t", 1);
}

/// A peer that is stopped is not dead: what was sent arrives after it goes on.
void stopped(Rank& self) {
    constexpr std::size_t kCount = 20;
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(kCount);
    greet(party, buffer, self.other());
    party.barrier();
    if (self.rank == 0) {
        kill(self.page->pids[1], SIGSTOP);
        for (std::size_t i = 0; i < kCount; ++i) {
            const auto rc =
                static_cast<long>(fi_tsend(party.ep.ep, buffer.as(), i % 2 == 0 ? 8 : kLarge,
                                           buffer.desc(), party.peer(), 100 + i, contexts.at(i)));
            FAB_EQUAL(rc, 0);
        }
        std::size_t done = 0;
        Completion entry;
        for (const double until = now_s() + (settings.is_long ? 60 : 1); now_s() < until;) {
            if (party.ep.poll(party.ep.tx_cq, entry)) {
                FAB_EQUAL(entry.err, 0);
                ++done;
            }
        }
        kill(self.page->pids[1], SIGCONT);
        for (; done < kCount; ++done) party.ep.wait_tx();
        return;
    }
    for (std::size_t i = 0; i < kCount; ++i) {
        party.trecv(buffer, kLarge, 100 + i, 0, contexts.at(i));
        FAB_EQUAL(party.ep.wait_rx().len, i % 2 == 0 ? 8 : kLarge);
    }
}

/// A peer that is stopped before anybody has talked to it cannot be reached: an error in the time
/// that a handshake may take. It can be reached once it goes on.
void stopped_before_contact(Rank& self) {
    setenv("FI_RVT_CONNECT_TIMEOUT_MS", "2000", 1);
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 0) {
        kill(self.page->pids[1], SIGSTOP);
        const double start = now_s();
        party.tsend(buffer, 8, 1, contexts.at(0));
        Completion done;
        while (!party.ep.poll(party.ep.tx_cq, done)) {
            party.ep.progress();
            if (now_s() - start > 15) {
                kill(self.page->pids[1], SIGCONT);
                FAB_FAIL("a send to a stopped peer never ends");
            }
        }
        kill(self.page->pids[1], SIGCONT);
        // A provider without a handshake may have left the message where the peer finds it.
        party.tsend(buffer, 8, 2, contexts.at(0));
        party.ep.wait_tx();
    } else {
        party.trecv(buffer, 64, 2, 0, contexts.at(0));
        const double start = now_s();
        for (Completion got; !party.ep.poll(party.ep.rx_cq, got);) {
            if (now_s() - start > 20) FAB_FAIL("nothing arrives after a stop");
        }
    }
    party.barrier();
}

/// A process that forks goes on; the child may leave in either way.
void forked(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    greet(party, buffer, self.other());
    for (const bool exit_runs : {false, true}) {
        const pid_t child = fork();
        FAB_CHECK(child >= 0);
        if (child == 0) {
            if (exit_runs) std::exit(0);
            _exit(0);
        }
        greet(party, buffer, self.other());
        int status = -1;
        FAB_EQUAL(waitpid(child, &status, 0), child);
        FAB_EQUAL(status, 0);
        greet(party, buffer, self.other());
    }
}

/// A child that becomes another program, while messages are under way, keeps nothing alive.
void forked_and_executed(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLarge);
    Contexts contexts(2);
    greet(party, buffer, self.other());
    for (int turn = 0; turn < 3; ++turn) {
        party.trecv(buffer, kLarge, 3, 0, contexts.at(0));
        party.tsend(buffer, kLarge, 3, contexts.at(1));
        const pid_t child = fork();
        FAB_CHECK(child >= 0);
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", "ls -l /proc/$$/fd | grep -q memfd: || exit 7", nullptr);
            _exit(1);
        }
        party.ep.wait_rx();
        party.ep.wait_tx();
        int status = -1;
        FAB_EQUAL(waitpid(child, &status, 0), child);
        FAB_CHECK(WIFEXITED(status));
        FAB_EQUAL(WEXITSTATUS(status), 7);
        greet(party, buffer, self.other());
    }
}

/// Rank 1 closes everything, but lives on, while rank 0 still has operations to it: they end.
void closed_under_traffic(Rank& self) {
    {
        Party party(self, {.caps = FI_TAGGED});
        party.leave_alone();
        Buffer buffer(party.ep, kLarge);
        Contexts contexts(4);
        greet(party, buffer, self.other());
        party.barrier();
        if (self.rank == 0) {
            for (std::size_t i = 0; i < 4; ++i) party.tsend(buffer, kLarge, 9, contexts.at(i));
            self.page->flags[0].set();
            const double deadline = now_s() + 12;
            for (int i = 0; i < 4;) {
                Completion done;
                if (party.ep.poll(party.ep.tx_cq, done)) ++i;
                if (now_s() > deadline) FAB_FAIL("a send to a closed peer never completes");
            }
        } else {
            progress_until(party, 0);
        }
    }
    self.barrier();
}

constexpr Case kFaultTable[] = {
    {"fault_peer_killed", killed, 3, 60, 1U << 1},
    {"fault_killed_while_asleep_in_sread", killed_while_asleep<Sleep::kSread>, 3, 60, 1U << 1},
    {"fault_killed_while_asleep_in_poll", killed_while_asleep<Sleep::kDescriptor>, 3, 60, 1U << 1},
    {"fault_killed_while_asleep_in_cntr", killed_while_asleep<Sleep::kCounter>, 3, 60, 1U << 1},
    {"fault_killed_before_contact", killed_before_contact, 2, 60, 1U << 1},
    {"fault_killed_with_a_child", killed_with_a_child, 2, 30, 1U << 1, true},
    {"fault_peer_restarted", restarted, 2, 90, 0, true},
    {"fault_peer_stopped", stopped, 2, 90, 0, true},
    {"fault_stopped_before_contact", stopped_before_contact, 2, 60, 0, true},
    {"fault_forked", forked},
    {"fault_forked_and_executed", forked_and_executed},
    {"fault_closed_under_traffic", closed_under_traffic, 2, 30, 0, true},
};

}  // namespace

const std::span<const Case> kFaultCases = kFaultTable;

}  // namespace fab
