// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that die, stop or fork.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sched.h>
#include <sys/socket.h>
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
