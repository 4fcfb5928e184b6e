// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The provider's copy routines beside memcpy(): nanoseconds for a few bytes, GB/s for pieces of
// large transfers whose source was just written by another core.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "util/cpu.h"
#include "util/mem_copy.h"
#include "util/stream_copy.h"

namespace {

// Of this thread: what others do on the processor does not count.
double now_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void run_on(unsigned cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    // Without permission the measurement is noisier, not wrong.
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Nanoseconds for one copy of each of `sizes` in turn.
template <class Copy>
double measure_small(const std::vector<std::size_t>& sizes, Copy copy) {
    alignas(64) static std::byte from[64 * 16];
    alignas(64) static std::byte to[64 * 16];
    double best = 1e30;
    for (int repeat = 0; repeat < 20; ++repeat) {
        const double start = now_ns();
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            copy(to + i % 16 * 64, from + i % 16 * 64, sizes[i]);
            rvt::util::compiler_barrier();
        }
        best = std::min(best, now_ns() - start);
    }
    return best / static_cast<double>(sizes.size());
}

void report_small(const char* name, std::size_t least, std::size_t most) {
    std::mt19937 random(1);
    std::vector<std::size_t> sizes(50000);
    std::generate(sizes.begin(), sizes.end(),
                  [&] { return least + random() % (most - least + 1); });
    const double plain = measure_small(sizes, [](void* to, const void* from, std::size_t n) {
        // Not known to be small: as a caller of the library would have it.
        asm volatile("" : "+r"(n));
        std::memcpy(to, from, n);
    });
    const double ours = measure_small(sizes, [](void* to, const void* from, std::size_t n) {
        asm volatile("" : "+r"(n));
        rvt::util::copy_small(to, from, n);
    });
    std::printf("%-24s %8.2f %8.2f\n", name, plain, ours);
}

/// Writes the source in the cache of another processor whenever it is asked to.
class Writer {
  public:
    explicit Writer(std::vector<std::byte>& source)
        : source_(source), thread_([this] { work(); }) {}
    ~Writer() {
        // release: pairs with the acquire in work().
        asked_.store(kEnd, std::memory_order_release);
        asked_.notify_one();
        thread_.join();
    }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    void write() {
        // release: pairs with the acquire in work().
        asked_.store(++round_, std::memory_order_release);
        asked_.notify_one();
        // acquire: pairs with the release in work().
        done_.wait(round_ - 1, std::memory_order_acquire);
    }

  private:
    static constexpr unsigned kEnd = ~0u;
    void work() {
        run_on(0);
        for (unsigned seen = 0;;) {
            // acquire: pairs with the release in write() and in the destructor.
            asked_.wait(seen, std::memory_order_acquire);
            // acquire: pairs with the same.
            seen = asked_.load(std::memory_order_acquire);
            if (seen == kEnd) {
                return;
            }
            std::memset(source_.data(), static_cast<int>(seen & 0xff), source_.size());
            // release: pairs with the acquire in write().
            done_.store(seen, std::memory_order_release);
            done_.notify_one();
        }
    }

    std::vector<std::byte>& source_;
    std::atomic<unsigned> asked_{0};
    std::atomic<unsigned> done_{0};
    unsigned round_ = 0;
    std::thread thread_;
};

constexpr std::size_t kWindow = 512u << 10;
constexpr std::size_t kPiece = 64u << 10;

// GB/s of copying `total` bytes in pieces, from a window that is written anew each time round.
template <class Copy>
double measure_stream(Writer& writer, const std::byte* source, std::byte* to, std::size_t total,
                      Copy copy) {
    double best = 1e30;
    for (int repeat = 0; repeat < 5; ++repeat) {
        double spent = 0;
        for (std::size_t at = 0; at < total; at += kWindow) {
            writer.write();
            const double start = now_ns();
            for (std::size_t piece = 0; piece < kWindow; piece += kPiece) {
                copy(to + at + piece, source + piece, kPiece, total);
            }
            spent += now_ns() - start;
        }
        best = std::min(best, spent);
    }
    return static_cast<double>(total) / best;
}

void report_streams() {
    constexpr std::size_t kMost = 256u << 20;
    void* memory = mmap(nullptr, kMost, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("cannot map 256 MiB");
        std::exit(1);
    }
    auto* const to = static_cast<std::byte*>(memory);
    std::vector<std::byte> source(kWindow);
    Writer writer(source);
    run_on(1);
    for (const std::size_t total :
         {kWindow, std::size_t{4} << 20, std::size_t{16} << 20, std::size_t{64} << 20, kMost}) {
        const double plain = measure_stream(
            writer, source.data(), to, total,
            [](void* a, const void* b, std::size_t n, std::size_t) { std::memcpy(a, b, n); });
        const double ours =
            measure_stream(writer, source.data(), to, total,
                           [](void* a, const void* b, std::size_t n, std::size_t all) {
                               rvt::util::copy_stream(a, b, n, all);
                           });
        std::printf("%-24zu %8.1f %8.1f\n", total, plain, ours);
    }
    munmap(memory, kMost);
}

}  // namespace

int main() {
    std::printf("%-24s %8s %8s   ns\n", "small, bytes", "memcpy", "ours");
    report_small("8", 8, 8);
    report_small("40", 40, 40);
    report_small("56", 56, 56);
    report_small("0 to 56 in any order", 0, 56);
    report_small("16 to 56 in any order", 16, 56);
    std::printf("%-24s %8s %8s   GB/s\n", "transfer, bytes", "memcpy", "ours");
    report_streams();
    return 0;
}
