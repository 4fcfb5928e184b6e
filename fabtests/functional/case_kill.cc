// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers killed in the middle of traffic, one after the other: each time every operation ends, the
// other peer is served on, and in the end nothing is left of any of them.
#include <algorithm>
#include <climits>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kLarge = 1 << 20;
constexpr std::size_t kDepth = 4;  ///< Sends, and receives, that are always under way.
constexpr std::size_t kSizes4[kDepth] = {64, kLarge, 3000, 100'000};
constexpr std::uint64_t kEchoTag = ~std::uint64_t{0};
constexpr std::size_t kStop = 0;  ///< Flag of the page: no more cycles.

const EpSpec kSpec{.caps = FI_TAGGED | FI_RMA};

// ---- what is left behind

long entries_of(const char* folder) {
    DIR* dir = opendir(folder);
    if (dir == nullptr) return 0;
    long count = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): each thread has a stream of its own.
    while (readdir(dir) != nullptr) ++count;
    closedir(dir);
    return count;
}

struct Leftovers {
    long descriptors = 0;
    long mappings = 0;
    long files = 0;
    std::size_t heap = 0;
};

Leftovers count_leftovers() {
    Leftovers found;
    found.descriptors = entries_of("/proc/self/fd");
    found.files = entries_of("/dev/shm") + entries_of("/tmp");
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        // Memory files and other shared memory; the heap is counted by itself.
        found.mappings +=
            line.find(" rw-s ") != std::string::npos || line.find(" r--s ") != std::string::npos
                ? 1
                : 0;
    }
    const struct mallinfo2 heap = mallinfo2();
    found.heap = heap.uordblks + heap.hblkhd;
    return found;
}

/// Gives this process empty /dev/shm and /tmp of its own, so that what appears there is its doing.
/// Without the right to do so both are as everybody sees them, and files of others may come and go.
bool hide_temporary_files() {
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0 &&
           mount("none", "/tmp", "tmpfs", 0, nullptr) == 0;
}

/// Whether more is open than was at first.
bool has_more(const std::vector<Leftovers>& counted) {
    return counted.back().descriptors > counted.front().descriptors ||
           counted.back().mappings > counted.front().mappings;
}

/// @param counted  In the course of `cycles` cycles, at equal distances.
void expect_nothing_left(const std::vector<Leftovers>& counted, int cycles) {
    if (has_more(counted)) {
        FAB_FAIL("descriptors: %ld, then %ld; mappings: %ld, then %ld", counted.front().descriptors,
                 counted.back().descriptors, counted.front().mappings, counted.back().mappings);
    }
    // Pools grow to the largest need that there ever was, at some time; what is kept for each dead
    // peer would grow all the time.
    const auto stretches = static_cast<int>(counted.size()) - 1;
    const long allowed = 64 * 1024 + cycles / stretches * 16;
    long least = LONG_MAX;
    for (std::size_t i = 1; i < counted.size(); ++i) {
        least = std::min(least, static_cast<long>(counted[i].heap - counted[i - 1].heap));
    }
    if (least > allowed) {
        FAB_FAIL("the heap grew by %ld bytes, or more, in each %d cycles", least,
                 cycles / stretches);
    }
}

// ---- traffic

/// Messages of several sizes both ways, kDepth of each kind at a time.
class Stream {
  public:
    /// @param tag  Tells the messages of one victim from those of the others.
    Stream(const Endpoint& ep, fi_addr_t peer, const Buffer& buffer, std::uint64_t tag)
        : ep_(ep), peer_(peer), buffer_(buffer), tag_(tag), contexts_(2 * kDepth + 2) {}

    void send(std::size_t slot) {
        ep_.post([&] {
            return fi_tsend(ep_.ep, buffer_.as(), kSizes4[slot], buffer_.desc(), peer_, tag_,
                            contexts_.at(slot));
        });
        ++tx_pending;
    }
    void receive(std::size_t slot) {
        ep_.post([&] {
            return fi_trecv(ep_.ep, buffer_.as(), kLarge, buffer_.desc(), FI_ADDR_UNSPEC, tag_, 0,
                            contexts_.at(kDepth + slot));
        });
        ++rx_pending;
    }
    void start() {
        for (std::size_t slot = 0; slot < kDepth; ++slot) {
            receive(slot);
            send(slot);
        }
    }
    /// Adds one-sided access to what is pending.
    void access(const RemoteRegion& remote) {
        const auto write =
            static_cast<long>(fi_write(ep_.ep, buffer_.as(), kLarge, buffer_.desc(), peer_,
                                       remote.base, remote.key, contexts_.at(2 * kDepth)));
        if (write == 0) ++tx_pending;
        const auto read =
            static_cast<long>(fi_read(ep_.ep, buffer_.as(), kLarge, buffer_.desc(), peer_,
                                      remote.base, remote.key, contexts_.at(2 * kDepth + 1)));
        if (read == 0) ++tx_pending;
    }
    /// Takes one completion of each side. Returns: whether there was a receive.
    bool turn(bool goes_on) {
        Completion done;
        if (ep_.poll(ep_.tx_cq, done)) {
            --tx_pending;
            if (done.err != 0) ++errors;
            const std::size_t slot = contexts_.index_of(done.context);
            if (goes_on && slot < kDepth) send(slot);
        }
        if (!ep_.poll(ep_.rx_cq, done)) return false;
        --rx_pending;
        if (!is_ending_) receive(contexts_.index_of(done.context) - kDepth);
        return true;
    }
    void cancel() {
        is_ending_ = true;
        for (std::size_t slot = 0; slot < kDepth; ++slot) {
            fi_cancel(&ep_.ep->fid, contexts_.at(kDepth + slot));
        }
    }

    std::size_t tx_pending = 0;
    std::size_t rx_pending = 0;
    std::size_t errors = 0;

  private:
    const Endpoint& ep_;
    fi_addr_t peer_;
    const Buffer& buffer_;
    std::uint64_t tag_;
    Contexts contexts_;
    bool is_ending_ = false;
};

/// The life of a victim: until it is killed.
[[noreturn]] void victim(Rank& self, std::uint64_t tag) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Endpoint ep(kSpec);
    Buffer buffer(ep, kLarge);
    const std::vector<char> name = ep.name();
    const pid_t pid = getpid();
    const RemoteRegion mine = buffer.remote();
    self.send(0, &pid, sizeof pid);
    self.send_string(0, std::string(name.begin(), name.end()));
    self.send(0, &mine, sizeof mine);
    const std::string survivor = self.receive_string(0);
    Stream stream(ep, ep.insert({survivor.begin(), survivor.end()}), buffer, tag);
    stream.start();
    for (;;) stream.turn(true);
}

/// Rank 1: one victim after the other.
void breed(Rank& self, int cycles) {
    // The provider is loaded once, by the parent of all victims.
    fi_freeinfo(find_info(kSpec));
    const bool sees_own_files = hide_temporary_files();
    const Leftovers before = count_leftovers();
    for (int i = 0; i < cycles; ++i) {
        const pid_t child = fork();
        FAB_CHECK(child >= 0);
        if (child == 0) victim(self, static_cast<std::uint64_t>(i));
        int status = 0;
        FAB_EQUAL(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) _exit(WEXITSTATUS(status));  // its last words are in the page
        self.send(0, &child, sizeof child);
    }
    if (sees_own_files) FAB_EQUAL(count_leftovers().files, before.files);
}

/// Rank 2: a peer that lives on.
void echo(const Rank& self, const Endpoint& ep, fi_addr_t peer, const Buffer& buffer) {
    Contexts contexts(2);
    const auto listen = [&] {
        ep.post([&] {
            return fi_trecv(ep.ep, buffer.as(), 64, buffer.desc(), FI_ADDR_UNSPEC, kEchoTag, 0,
                            contexts.at(0));
        });
    };
    listen();
    Completion done;
    while (self.page->flags[kStop].get() == 0) {
        if (!ep.poll(ep.rx_cq, done)) continue;
        FAB_EQUAL(done.err, 0);
        listen();
        ep.post([&] {
            return fi_tsend(ep.ep, buffer.as(), 8, buffer.desc(), peer, kEchoTag, contexts.at(1));
        });
        ep.wait_tx();
    }
}

void expect_echo(const Endpoint& ep, fi_addr_t peer, const Buffer& buffer) {
    Contexts contexts(2);
    ep.post([&] {
        return fi_trecv(ep.ep, buffer.as(), 64, buffer.desc(), FI_ADDR_UNSPEC, kEchoTag, 0,
                        contexts.at(0));
    });
    ep.post([&] {
        return fi_tsend(ep.ep, buffer.as(), 8, buffer.desc(), peer, kEchoTag, contexts.at(1));
    });
    ep.wait_rx();
    ep.wait_tx();
}

/// Runs until the time is up or `condition` holds. Returns: whether it holds.
template <class Condition>
bool turn_until(Stream& stream, double seconds, Condition condition) {
    for (const double until = now_s() + seconds; now_s() < until;) {
        if (condition()) return true;
        stream.turn(false);
    }
    return condition();
}

/// Traffic with one victim, its death, the end of all that was pending.
void outlive(const Rank& self, Endpoint& ep, const Buffer& buffer, int cycle) {
    pid_t pid = 0;
    RemoteRegion remote;
    self.receive(1, &pid, sizeof pid);
    const std::string name = self.receive_string(1);
    self.receive(1, &remote, sizeof remote);
    const std::vector<char> mine = ep.name();
    self.send_string(1, std::string(mine.begin(), mine.end()));
    fi_addr_t peer = ep.insert({name.begin(), name.end()});

    Stream stream(ep, peer, buffer, static_cast<std::uint64_t>(cycle));
    stream.start();
    // Each victim dies at another moment of its traffic.
    const double deadline = now_s() + kOpLimitS;
    for (int received = 0; received < 4 + cycle % 29;) {
        if (stream.turn(true)) ++received;
        if (now_s() > deadline) FAB_FAIL("no traffic with peer %d", cycle);
    }
    stream.access(remote);
    kill(pid, SIGKILL);
    if (!turn_until(stream, kNoticeS, [&] { return stream.tx_pending == 0; })) {
        FAB_FAIL("%zu operations to peer %d still pending %.0f s after its death",
                 stream.tx_pending, cycle, kNoticeS);
    }
    // Receives are nobody's in particular: they take what is left, which is all only when the
    // victim has ended, then they are taken back.
    self.receive(1, &pid, sizeof pid);
    for (int quiet = 0; quiet < 100;) quiet = stream.turn(false) ? 0 : quiet + 1;
    stream.cancel();
    if (!turn_until(stream, kNoticeS, [&] { return stream.rx_pending == 0; })) {
        FAB_FAIL("%zu receives end neither with a message nor by fi_cancel", stream.rx_pending);
    }
    FAB_OK(fi_av_remove(ep.av, &peer, 1, 0));
}

void kill_cycles(Rank& self) {
    const int cycles = settings.is_long ? 1000 : 60;
    constexpr int kWarmUp = 20;  // until queues and most pools have their size
    constexpr int kStretches = 4;
    if (self.rank == 1) return breed(self, cycles);
    Endpoint ep(kSpec);
    Buffer buffer(ep, kLarge);
    const std::vector<char> mine = ep.name();
    self.send_string(2 - self.rank, std::string(mine.begin(), mine.end()));
    const std::string theirs = self.receive_string(2 - self.rank);
    const fi_addr_t neighbour = ep.insert({theirs.begin(), theirs.end()});
    if (self.rank == 2) return echo(self, ep, neighbour, buffer);
    std::vector<Leftovers> counted;
    const int stretch = (cycles - kWarmUp) / kStretches;
    for (int cycle = 0; cycle < cycles; ++cycle) {
        if (cycle >= kWarmUp && (cycle - kWarmUp) % stretch == 0) {
            counted.push_back(count_leftovers());
        }
        outlive(self, ep, buffer, cycle);
        expect_echo(ep, neighbour, buffer);
    }
    counted.push_back(count_leftovers());
    // Of a death that had nothing to end the host hears by and by.
    for (const double until = now_s() + kNoticeS; has_more(counted) && now_s() < until;) {
        ep.progress();
        counted.back() = count_leftovers();
    }
    expect_nothing_left(counted, cycles - kWarmUp);
    self.page->flags[kStop].set();
}

constexpr Case kKillTable[] = {
    {"kill_cycles", kill_cycles, 3, 600},
};

}  // namespace

const std::span<const Case> kKillCases = kKillTable;

}  // namespace fab
