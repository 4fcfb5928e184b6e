// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Remote memory access and atomics: latency, and bandwidth with a target that polls, that sleeps,
// and whose memory can be mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "benchmarks/fab_bench.h"

namespace fab {
namespace {

enum class Direction { kWrite, kRead };
enum class Target { kPolls, kSleeps, kSleepsMapped };

/// Half of a round trip in which each side writes 8 bytes and waits for them to appear.
double write_latency(Rank& self, std::size_t size) {
    Bench bench(self, {.caps = FI_RMA});
    Buffer out(bench.ep, size);
    Buffer in(bench.ep, size);
    const RemoteRegion remote = self.trade(self.other(), in.remote());
    volatile char* last = in.as() + size - 1;
    volatile char* mine = out.as() + size - 1;
    std::size_t sent = 0;
    char turn = 0;
    const auto write = [&] {
        *mine = turn;
        if (bench.can_inject(size)) {
            bench.post([&] {
                return fi_inject_write(bench.ep.ep, out.as(), size, bench.peer(), remote.base,
                                       remote.key);
            });
            return;
        }
        bench.post([&] {
            return fi_write(bench.ep.ep, out.as(), size, out.desc(), bench.peer(), remote.base,
                            remote.key, bench.context(0));
        });
        ++sent;
    };
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            turn = static_cast<char>(turn + 1);
            if (self.rank == 0) write();
            while (*last != turn) bench.poll();
            if (self.rank == 1) write();
            bench.wait_sent(sent);
        }
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return seconds / 2 * 1e6;
}

/// Whether the end of a batch is seen in shared memory, at no cost to who polls.
bool sees_end(const Bench& bench, Target target) {
    return target == Target::kPolls && bench.self.shares_page;
}

/// Rank 1's part of a batch in which only rank 0 acts.
void be_target(Bench& bench, Target target) {
    if (sees_end(bench, target)) {
        while (!is_ended(bench.self)) bench.poll();
        return;
    }
    char token = 0;
    if (target == Target::kPolls) {
        bench.self.receive_polling(0, &token, 1, bench.idle());
    } else {
        bench.self.receive(0, &token, 1);  // sleeps in the kernel, no call into the provider
    }
}

void release_target(const Bench& bench, Target target) {
    if (sees_end(bench, target)) {
        announce_end(bench.self);
    } else {
        bench.self.send(1, "e", 1);
    }
}

/// The first of all, during which the target is polled: peers that meet need both to make progress.
template <class Op>
void meet(Bench& bench, Op op) {
    char token = 0;
    if (bench.self.rank == 0) {
        op();
        bench.self.send(1, "m", 1);
    } else {
        bench.self.receive_polling(0, &token, 1, bench.idle());
    }
}

/// Seconds of one call of `op`, the target being polled or asleep. One that is to be asleep is not
/// polled between batches either: who is polled now and then is asked to do its part.
template <class Op>
double time_one_sided(Bench& bench, Target target, Op op) {
    meet(bench, op);
    const auto body = [&](std::size_t n) {
        if (bench.self.rank == 1) return be_target(bench, target);
        for (std::size_t i = 0; i < n; ++i) op();
        release_target(bench, target);
    };
    const bool polls = target == Target::kPolls || bench.self.rank == 0;
    const std::function<void()> idle = polls ? bench.idle() : nullptr;
    const double seconds = time_batches(bench.self, body, idle);
    bench.finish();
    return seconds;
}

double read_latency(Rank& self, std::size_t size) {
    Bench bench(self, {.caps = FI_RMA});
    Buffer local(bench.ep, size);
    Buffer target(bench.ep, size);
    const RemoteRegion remote = self.trade(self.other(), target.remote());
    std::size_t sent = 0;
    return time_one_sided(bench, Target::kPolls,
                          [&] {
                              bench.post([&] {
                                  return fi_read(bench.ep.ep, local.as(), size, local.desc(),
                                                 bench.peer(), remote.base, remote.key,
                                                 bench.context(0));
                              });
                              bench.wait_sent(++sent);
                          }) *
           1e6;
}

/// Memory that a peer can map: it has a descriptor, and its file can be trusted not to shrink.
void* map_shared(std::size_t size) {
    const int fd = memfd_create("target", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        FAB_FAIL("memfd of %zu bytes", size);
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) FAB_FAIL("mmap of %zu bytes", size);
    return at;
}

/// Windows of operations, at most 16 MiB in flight.
template <Direction kDirection, Target kTarget>
double bandwidth(Rank& self, std::size_t size) {
    Bench bench(self, {.caps = FI_RMA});
    Buffer local(bench.ep, size);
    const std::size_t room = (size + 4095) / 4096 * 4096;
    void* mapped = kTarget == Target::kSleepsMapped ? map_shared(room) : nullptr;
    double seconds = 0;
    const std::size_t fit = (std::size_t{16} << 20) / size;
    const std::size_t window = fit < 2 ? 2 : fit > 16 ? 16 : fit;
    {
        Buffer target = mapped != nullptr ? Buffer(bench.ep, mapped, room) : Buffer(bench.ep, size);
        const RemoteRegion remote = self.trade(self.other(), target.remote());
        std::size_t sent = 0;
        seconds = time_one_sided(bench, kTarget, [&] {
            for (std::size_t m = 0; m < window; ++m) {
                bench.post([&] {
                    return kDirection == Direction::kWrite
                               ? fi_write(bench.ep.ep, local.as(), size, local.desc(), bench.peer(),
                                          remote.base, remote.key, bench.context(m))
                               : fi_read(bench.ep.ep, local.as(), size, local.desc(), bench.peer(),
                                         remote.base, remote.key, bench.context(m));
                });
            }
            bench.wait_sent(sent += window);
        });
    }
    return static_cast<double>(size * window) / seconds / 1e9;
}

/// Memory that the target registers for one write each, as rendezvous protocols of applications do:
/// it tells the keys by a message, and is told by another when all is written.
double fresh(Rank& self, std::size_t size) {
    constexpr std::size_t kWindow = 16;
    using Offer = std::array<RemoteRegion, kWindow>;
    Bench bench(self, {.caps = FI_MSG | FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE});
    Buffer local(bench.ep, size);
    Buffer in(bench.ep, sizeof(Offer));
    Buffer out(bench.ep, sizeof(Offer));
    std::vector<char> memory(self.rank == 1 ? kWindow * size : 0);
    std::size_t sent = 0;
    std::size_t received = 0;
    const auto receive = [&] {
        bench.post([&] {
            return fi_recv(bench.ep.ep, in.as(), in.size(), in.desc(), bench.peer(),
                           bench.context(kWindow));
        });
    };
    const auto send = [&] {
        bench.post([&] {
            return fi_send(bench.ep.ep, out.as(), out.size(), out.desc(), bench.peer(),
                           bench.context(kWindow + 1));
        });
        ++sent;
    };
    const auto offer = [&] {
        std::vector<std::unique_ptr<Buffer>> targets;
        for (std::size_t m = 0; m < kWindow; ++m) {
            targets.push_back(std::make_unique<Buffer>(bench.ep, memory.data() + m * size, size));
            (*out.as<Offer>())[m] = targets.back()->remote();
        }
        send();
        bench.wait_received(++received);
        receive();
    };
    const auto write_all = [&] {
        bench.wait_received(++received);
        const Offer targets = *in.as<Offer>();
        receive();
        for (std::size_t m = 0; m < kWindow; ++m) {
            bench.post([&] {
                return fi_write(bench.ep.ep, local.as(), size, local.desc(), bench.peer(),
                                targets[m].base, targets[m].key, bench.context(m));
            });
        }
        bench.wait_sent(sent += kWindow);
        send();
    };
    receive();
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) self.rank == 1 ? offer() : write_all();
        bench.wait_sent(sent);
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return static_cast<double>(size * kWindow) / seconds / 1e9;
}

template <fi_op kOp>
double atomic(Rank& self, std::size_t) {
    Bench bench(self, {.caps = FI_ATOMIC});
    Buffer local(bench.ep, 4096);
    Buffer target(bench.ep, 4096);
    const RemoteRegion remote = self.trade(self.other(), target.remote());
    auto* words = local.as<std::uint64_t>();
    words[0] = 1;
    std::size_t sent = 0;
    return time_one_sided(
               bench, Target::kPolls,
               [&] {
                   bench.post([&] {
                       return kOp == FI_SUM
                                  ? fi_fetch_atomic(bench.ep.ep, words, 1, local.desc(), words + 16,
                                                    local.desc(), bench.peer(), remote.base,
                                                    remote.key, FI_UINT64, kOp, bench.context(0))
                                  : fi_compare_atomic(bench.ep.ep, words, 1, local.desc(),
                                                      words + 8, local.desc(), words + 16,
                                                      local.desc(), bench.peer(), remote.base,
                                                      remote.key, FI_UINT64, kOp, bench.context(0));
                   });
                   bench.wait_sent(++sent);
               }) *
           1e6;
}

constexpr Measure kMeasures[] = {
    {"write-latency", "us", write_latency, 2, "bytes"},
    {"read-latency", "us", read_latency, 2, "bytes"},
    {"write", "GB/s", bandwidth<Direction::kWrite, Target::kPolls>, 2, "bytes"},
    {"read", "GB/s", bandwidth<Direction::kRead, Target::kPolls>, 2, "bytes"},
    {"write-asleep", "GB/s", bandwidth<Direction::kWrite, Target::kSleeps>, 2, "bytes"},
    {"read-asleep", "GB/s", bandwidth<Direction::kRead, Target::kSleeps>, 2, "bytes"},
    {"write-mapped", "GB/s", bandwidth<Direction::kWrite, Target::kSleepsMapped>, 2, "bytes"},
    {"read-mapped", "GB/s", bandwidth<Direction::kRead, Target::kSleepsMapped>, 2, "bytes"},
    {"write-fresh", "GB/s", fresh, 2, "bytes; to a region that is registered for each"},
    {"fetch-add", "us", atomic<FI_SUM>, 2, nullptr},
    {"compare-swap", "us", atomic<FI_CSWAP>, 2, nullptr},
};

}  // namespace

const std::span<const Measure> kRmaMeasures = kMeasures;

}  // namespace fab
