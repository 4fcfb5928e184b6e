// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the machine allows between two processes: no provider comes near these lines for free.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "benchmarks/bench.h"
#include "common/fail.h"
#include "common/timing.h"

namespace {

using fab::Measure;
using fab::Rank;
using fab::relax;
using fab::time_batches;

// What the ranks share is mapped before they are forked.
constexpr std::size_t kChunk = 64 << 10;
constexpr std::size_t kChunks = 16;
constexpr std::size_t kSlots = 1024;
constexpr std::size_t kWindow = 64;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

/// A word that one rank sets and the other one waits for.
struct alignas(64) Line {
    // release: pairs with the acquire in wait_for(); who sees the word sees what was done before.
    void hand_over(std::uint64_t value) { word.store(value, std::memory_order_release); }
    // acquire: pairs with the release in hand_over().
    void wait_for(std::uint64_t value) const {
        while (word.load(std::memory_order_acquire) != value) relax();
    }

    std::atomic<std::uint64_t> word{0};
};

/// A message of one cache line. Written by the producer, read by the consumer; `sequence` last.
struct alignas(64) Slot {
    std::atomic<std::uint32_t> sequence{0};
    std::uint32_t length = 0;
    std::uint64_t tag = 0;
    char payload[48] = {};
};
static_assert(sizeof(Slot) == 64);

struct alignas(64) Chunk {
    char bytes[kChunk];
};

struct Shared {
    Line ping;
    Line pong;
    Slot rings[2][kSlots];  // [r]: written by rank r
    Line chunk_full[kChunks];
    Line chunk_free[kChunks];
    Chunk chunks[kChunks];
};
Shared* shared = nullptr;
int wake_fds[2] = {-1, -1};

double cache_line(Rank& self, std::size_t) {
    std::uint64_t turn = 0;
    const auto body = [&](std::size_t n) {
        Line& mine = self.rank == 0 ? shared->ping : shared->pong;
        const Line& theirs = self.rank == 0 ? shared->pong : shared->ping;
        for (std::size_t i = 0; i < n; ++i) {
            ++turn;
            if (self.rank == 0) mine.hand_over(turn);
            theirs.wait_for(turn);
            if (self.rank == 1) mine.hand_over(turn);
        }
    };
    return time_batches(self, body, nullptr) / 2 * 1e6;
}

/// Of the places where the host has the two processors in some seconds, the nearest in which they
/// are for at least a fifth of the time. For kLineVariable.
double placed_line(Rank& self, std::size_t) {
    constexpr std::size_t kLooks = 6000;
    constexpr double kPauseS = 0.002;
    std::vector<double> lines;
    for (std::size_t i = 0; i < kLooks; ++i) {
        lines.push_back(fab::line_ns(self, nullptr));
        for (const double end = fab::now_s() + kPauseS; fab::now_s() < end;) relax();
    }
    std::sort(lines.begin(), lines.end());
    std::size_t end = 0;
    for (std::size_t begin = 0;; ++begin) {
        while (end < kLooks && lines[end] <= lines[begin] * fab::kLineFactor) ++end;
        if (end - begin >= kLooks / 5 || end == kLooks) return lines[(begin + end) / 2];
    }
}

/// What a completion of a bare ring tells its reader.
struct BareCompletion {
    void* context;
    std::uint64_t flags;
    std::uint64_t length;
    std::uint64_t tag;
};

/// The least that tagged messages need: a posted tag and buffer, a slot in shared memory, a
/// compare, a copy and a completion entry.
class BareRing {
  public:
    explicit BareRing(int rank) : out_(shared->rings[rank]), in_(shared->rings[1 - rank]) {}

    void send(std::uint64_t tag, const void* data, std::uint32_t length) {
        Slot& slot = out_[sent_ % kSlots];
        slot.tag = tag;
        slot.length = length;
        std::memcpy(slot.payload, data, sizeof(std::uint64_t));
        ++sent_;
        // release: pairs with the acquire in poll(); who sees the number sees the message.
        slot.sequence.store(static_cast<std::uint32_t>(sent_), std::memory_order_release);
    }

    void post(std::uint64_t tag, void* buffer) { posted_[tail_++ % kWindow] = {tag, buffer}; }

    /// Takes one message if there is one. Returns: whether `out` was filled.
    bool poll(BareCompletion& out) {
        Slot& slot = in_[taken_ % kSlots];
        // acquire: pairs with the release in send().
        if (slot.sequence.load(std::memory_order_acquire) !=
            static_cast<std::uint32_t>(taken_ + 1)) {
            return false;
        }
        const Posted& posted = posted_[head_ % kWindow];
        if (posted.tag != slot.tag) FAB_FAIL("the ring brought a wrong tag");
        std::memcpy(posted.buffer, slot.payload, sizeof(std::uint64_t));
        out = {posted.buffer, 1, slot.length, slot.tag};
        ++head_;
        ++taken_;
        return true;
    }

  private:
    struct Posted {
        std::uint64_t tag;
        void* buffer;
    };
    Slot* out_;
    Slot* in_;
    std::uint64_t sent_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t head_ = 0;
    std::uint64_t tail_ = 0;
    Posted posted_[kWindow] = {};
};

void wait_for(BareRing& ring, std::size_t count, BareCompletion* queue) {
    for (std::size_t seen = 0; seen < count;) {
        if (ring.poll(queue[seen % kWindow])) {
            ++seen;
        } else {
            relax();
        }
    }
}

double ring_pingpong(Rank& self, std::size_t) {
    BareRing ring(self.rank);
    std::uint64_t in = 0;
    std::uint64_t out = 1;
    BareCompletion queue[kWindow];
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            ring.post(7, &in);
            if (self.rank == 0) ring.send(7, &out, 8);
            wait_for(ring, 1, queue);
            if (self.rank == 1) ring.send(7, &out, 8);
        }
    };
    return time_batches(self, body, nullptr) / 2 * 1e6;
}

/// Windows of 64 messages, one answer for each: as the providers are measured.
double ring_rate(Rank& self, std::size_t) {
    BareRing ring(self.rank);
    std::uint64_t in[kWindow] = {};
    std::uint64_t out = 1;
    BareCompletion queue[kWindow];
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) {
                ring.post(1, in);
                for (std::size_t m = 0; m < kWindow; ++m) ring.send(7, &out, 8);
                wait_for(ring, 1, queue);
            } else {
                for (std::size_t m = 0; m < kWindow; ++m) ring.post(7, &in[m]);
                wait_for(ring, kWindow, queue);
                ring.send(1, &out, 8);
            }
        }
    };
    return static_cast<double>(kWindow) / time_batches(self, body, nullptr) / 1e6;
}

std::vector<char> touched(std::size_t size) {
    return std::vector<char>(size + 64, 'x');
}

/// One thread, the same two buffers again and again.
double memory_copy(Rank& self, std::size_t size) {
    if (self.rank != 0) return 0;
    std::vector<char> from = touched(size);
    std::vector<char> to = touched(size);
    std::vector<double> times;
    const std::size_t turns = (std::size_t{256} << 20) / size + 1;
    for (int batch = 0; batch < 5; ++batch) {
        const double start = fab::now_s();
        for (std::size_t i = 0; i < turns; ++i) {
            std::memcpy(to.data(), from.data(), size);
            asm volatile("" : : "r"(to.data()) : "memory");
        }
        times.push_back((fab::now_s() - start) / static_cast<double>(turns));
    }
    return static_cast<double>(size) / fab::median(times) / 1e9;
}

/// Seconds that one process_vm_readv (or writev) of `size` bytes takes.
double cma_seconds(Rank& self, std::size_t size, bool writing) {
    std::vector<char> memory = touched(size);
    void* theirs = self.trade(self.other(), static_cast<void*>(memory.data()));
    double seconds = 0;
    if (self.rank == 0) {
        const iovec local{memory.data(), size};
        const iovec remote{theirs, size};
        std::vector<double> times;
        const std::size_t turns = (std::size_t{32} << 20) / (size + 4096) + 1;
        for (int batch = 0; batch < 5; ++batch) {
            const double start = fab::now_s();
            for (std::size_t i = 0; i < turns; ++i) {
                const pid_t pid = self.page->pids[1];
                const ssize_t n = writing ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                                          : process_vm_readv(pid, &local, 1, &remote, 1, 0);
                if (n != static_cast<ssize_t>(size))
                    fab::skip("no process_vm_readv: %s", strerror(errno));
            }
            times.push_back((fab::now_s() - start) / static_cast<double>(turns));
        }
        seconds = fab::median(times);
    }
    self.barrier();
    return seconds;
}

double cma_latency(Rank& self, std::size_t size) {
    return cma_seconds(self, size, false) * 1e6;
}

double cma_read(Rank& self, std::size_t size) {
    return static_cast<double>(size) / cma_seconds(self, size, false) / 1e9;
}

double cma_write(Rank& self, std::size_t size) {
    return static_cast<double>(size) / cma_seconds(self, size, true) / 1e9;
}

/// Rank 0 copies into shared chunks of 64 KiB, rank 1 out of them, both at the same time.
double two_copies(Rank& self, std::size_t size) {
    std::vector<char> memory = touched(size);
    std::uint64_t moved = 0;
    const std::size_t window = fab::window_of(size);
    const auto one_chunk = [&](char* at, std::size_t length) {
        const std::size_t slot = moved % kChunks;
        const std::uint64_t round = moved / kChunks;
        Line& full = shared->chunk_full[slot];
        Line& free = shared->chunk_free[slot];
        if (self.rank == 0) {
            free.wait_for(round);
            std::memcpy(shared->chunks[slot].bytes, at, length);
            full.hand_over(round + 1);
        } else {
            full.wait_for(round + 1);
            std::memcpy(at, shared->chunks[slot].bytes, length);
            free.hand_over(round + 1);
        }
        ++moved;
    };
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n * window; ++i) {
            for (std::size_t at = 0; at < size; at += kChunk) {
                one_chunk(memory.data() + at, size - at < kChunk ? size - at : kChunk);
            }
        }
        // The end of a batch is when all of it has arrived.
        if (self.rank == 1) fab::announce_end(self);
        while (self.rank == 0 && !fab::is_ended(self)) relax();
    };
    return static_cast<double>(size * window) / time_batches(self, body, nullptr) / 1e9;
}

/// Two descriptors, both ranks sleeping in poll.
double event_fd(Rank& self, std::size_t) {
    const int mine = wake_fds[self.rank];
    const int theirs = wake_fds[1 - self.rank];
    const auto ring = [&] {
        const std::uint64_t one = 1;
        if (write(theirs, &one, sizeof one) != sizeof one) FAB_FAIL("eventfd write");
    };
    const auto sleep = [&] {
        pollfd entry{.fd = mine, .events = POLLIN, .revents = 0};
        std::uint64_t count = 0;
        if (poll(&entry, 1, -1) != 1) FAB_FAIL("eventfd poll");
        if (read(mine, &count, sizeof count) != sizeof count) FAB_FAIL("eventfd read");
    };
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) ring();
            sleep();
            if (self.rank == 1) ring();
        }
    };
    return time_batches(self, body, nullptr, 0.04) / 2 * 1e6;
}

constexpr Measure kMeasures[] = {
    {"cacheline", "us", cache_line, 2, nullptr},
    {"placed-line", "ns", placed_line, 2, nullptr},
    {"ring-pingpong", "us", ring_pingpong, 2, nullptr},
    {"ring-rate", "M/s", ring_rate, 2, nullptr},
    {"memcpy", "GB/s", memory_copy, 2, "bytes"},
    {"cma-latency", "us", cma_latency, 2, "bytes"},
    {"cma-read", "GB/s", cma_read, 2, "bytes"},
    {"cma-write", "GB/s", cma_write, 2, "bytes"},
    {"two-copies", "GB/s", two_copies, 2, "bytes"},
    {"eventfd", "us", event_fd, 2, nullptr},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "-l") == 0) {
        for (const Measure& one : kMeasures) std::printf("%s\n", one.name);
        return 0;
    }
    if (argc != 3 && argc != 4) {
        std::fprintf(stderr, "usage: limit_bench CPU,CPU MEASURE [BYTES] | -l\n");
        return 2;
    }
    void* at =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    shared = new (at) Shared{};
    for (int& fd : wake_fds) fd = eventfd(0, EFD_CLOEXEC);
    const std::size_t bytes = argc == 4 ? std::strtoull(argv[3], nullptr, 0) : 64;
    if (bytes == 0 || bytes > kMostBytes) {
        std::fprintf(stderr, "limit_bench: 1 to %zu bytes\n", kMostBytes);
        return 2;
    }
    return fab::run_measure(kMeasures, "limit_bench", argv[2], argc == 4 ? argv[3] : nullptr,
                            {.cpus = fab::parse_cpus(argv[1])});
}
