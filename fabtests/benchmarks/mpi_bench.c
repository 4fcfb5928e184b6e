// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an MPI library makes of a provider: latency, message rate and bandwidth of ranks 0 and 1,
// and collectives of all ranks. Prints a line for each measure: name, value, unit.
//
// With FAB_LINE_NS two ranks count only batches in which their processors were as near to each
// other as that, see bench.h.
#include <mpi.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    kWindow = 64,
    kBatches = 5,
    kMostBytes = 4 << 20,
    kMostBatches = 3000,
    kLineTurns = 64,
    kLooks = 6000
};
static const double kLineFactor = 1.4;

/// What the two ranks share, a cache line for each.
struct page {
    _Alignas(64) atomic_uint ping;
    _Alignas(64) atomic_uint pong;
};
static struct page* page;  // NULL: every batch counts
static double wanted_ns;

static char* out;
static char* in;
static int rank;
static int size;

static int by_value(const void* a, const void* b) {
    const double left = *(const double*)a;
    const double right = *(const double*)b;
    return (left > right) - (left < right);
}

/// Maps a page that both ranks have. Both call it.
static void share_page(void) {
    char name[64];
    snprintf(name, sizeof name, "/mpi_bench.%ld", (long)getpid());
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    int fd = rank == 0 ? shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    int is_made = rank == 0 ? fd >= 0 && ftruncate(fd, sizeof *page) == 0 : 0;
    MPI_Bcast(&is_made, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank != 0 && is_made) fd = shm_open(name, O_RDWR, 0);
    void* at =
        fd >= 0 ? mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) shm_unlink(name);
    if (at == MAP_FAILED) {
        fprintf(stderr, "mpi_bench: no memory that both ranks map\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    close(fd);
    page = at;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/// Both ranks call it at once. Returns: on rank 0 what a cache line takes to the other one, in ns.
static double line_ns(void) {
    double start = 0;
    for (int turn = 0; turn <= kLineTurns; ++turn) {
        const unsigned value = atomic_load(rank == 0 ? &page->ping : &page->pong) + 1;
        if (rank == 0) atomic_store_explicit(&page->ping, value, memory_order_release);
        while (atomic_load_explicit(rank == 0 ? &page->pong : &page->ping, memory_order_acquire) !=
               value) {
            relax();
        }
        if (rank != 0) atomic_store_explicit(&page->pong, value, memory_order_release);
        if (turn == 0) start = MPI_Wtime();  // the first one waits for the other rank
    }
    return (MPI_Wtime() - start) / kLineTurns / 2 * 1e9;
}

/// Of the places of the two in some seconds, the nearest in which they are for at least a fifth of
/// the time.
static double placed_line(void) {
    static double lines[kLooks];
    for (int i = 0; i < kLooks; ++i) {
        lines[i] = line_ns();
        for (const double end = MPI_Wtime() + 0.002; MPI_Wtime() < end;) relax();
    }
    qsort(lines, kLooks, sizeof lines[0], by_value);
    int end = 0;
    for (int begin = 0;; ++begin) {
        while (end < kLooks && lines[end] <= lines[begin] * kLineFactor) ++end;
        if (end - begin >= kLooks / 5 || end == kLooks) return lines[(begin + end) / 2];
    }
}

static int is_placed(void) {
    if (page == NULL) return 1;
    const double line = line_ns();
    return line <= wanted_ns * kLineFactor && line >= wanted_ns / kLineFactor;
}

/// One batch. Returns: the time of one call in seconds; 0: it does not count. The same on all
/// ranks.
static double run_batch(void (*body)(int bytes), int bytes, int count) {
    MPI_Barrier(MPI_COMM_WORLD);
    const int begins_there = is_placed();
    const double start = MPI_Wtime();
    for (int i = 0; i < count; ++i) body(bytes);
    double took = (MPI_Wtime() - start) / count;
    MPI_Barrier(MPI_COMM_WORLD);
    const int ends_there = is_placed();
    if (!begins_there || !ends_there) took = 0;
    MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return took;
}

/// Runs `body(bytes)` in batches of about 30 ms, or 8 where not all count. Returns: the median time
/// of one call in seconds.
static double measure(void (*body)(int bytes), int bytes) {
    double times[kBatches];
    const double batch_s = page != NULL ? 0.008 : 0.03;
    int count = 2;
    for (int step = 0; step < 10; ++step) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int i = 0; i < count; ++i) body(bytes);
        double took = MPI_Wtime() - start;
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (took > batch_s * 2 / 3) break;
        const double factor = took > batch_s / 15 ? batch_s / took : 8;
        count = (int)(count * (factor < 1.5 ? 1.5 : factor));
    }
    int counted = 0;
    for (int batch = 0; batch < kMostBatches && counted < kBatches; ++batch) {
        const double took = run_batch(body, bytes, count);
        if (took > 0) times[counted++] = took;
    }
    if (counted == 0) {
        fprintf(stderr, "mpi_bench: no batch had the line of FAB_LINE_NS=%g\n", wanted_ns);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    qsort(times, (size_t)counted, sizeof times[0], by_value);
    return times[counted / 2];
}

static void pingpong(int bytes) {
    if (rank == 0) {
        MPI_Send(out, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(in, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(in, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
}

static void window(int bytes) {
    MPI_Request requests[kWindow];
    if (rank > 1) return;
    for (int i = 0; i < kWindow; ++i) {
        if (rank == 0) {
            MPI_Isend(out, bytes, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &requests[i]);
        } else {
            MPI_Irecv(in, bytes, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &requests[i]);
        }
    }
    MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
    if (rank == 0) {
        MPI_Recv(in, 4, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(out, 4, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
    }
}

static void allreduce(int bytes) {
    MPI_Allreduce(out, in, bytes / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(int bytes) {
    MPI_Alltoall(out, bytes, MPI_CHAR, in, bytes, MPI_CHAR, MPI_COMM_WORLD);
}

static void print(const char* name, int bytes, double value, const char* unit) {
    if (rank == 0) printf("%s-%d %.6g %s\n", name, bytes, value, unit);
}

static void pair_measures(void) {
    static const int kLatencySizes[] = {8, 64, 4096, 65536};
    static const int kBandwidthSizes[] = {65536, 1 << 20, 4 << 20};
    for (size_t i = 0; i < sizeof kLatencySizes / sizeof kLatencySizes[0]; ++i) {
        print("latency", kLatencySizes[i], measure(pingpong, kLatencySizes[i]) / 2 * 1e6, "us");
    }
    print("rate", 8, kWindow / measure(window, 8) / 1e6, "M/s");
    for (size_t i = 0; i < sizeof kBandwidthSizes / sizeof kBandwidthSizes[0]; ++i) {
        const int bytes = kBandwidthSizes[i];
        print("bandwidth", bytes, (double)bytes * kWindow / measure(window, bytes) / 1e9, "GB/s");
    }
}

static void collective_measures(void) {
    static const int kSizes[] = {8, 1024, 65536};
    for (size_t i = 0; i < sizeof kSizes / sizeof kSizes[0]; ++i) {
        print("allreduce", kSizes[i], measure(allreduce, kSizes[i]) * 1e6, "us");
        print("alltoall", kSizes[i], measure(alltoall, kSizes[i]) * 1e6, "us");
    }
}

int main(int argc, char** argv) {
    const int asks_line = argc == 2 && strcmp(argv[1], "line") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const size_t room =
        (size_t)kMostBytes > (size_t)size * 65536 ? (size_t)kMostBytes : (size_t)size * 65536;
    out = malloc(room);
    in = malloc(room);
    if (size < 2 || out == NULL || in == NULL) {
        fprintf(stderr, "mpi_bench: two ranks and %zu bytes are needed\n", 2 * room);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char* line = getenv("FAB_LINE_NS");
    wanted_ns = line != NULL ? atof(line) : 0;
    if (size == 2 && (wanted_ns > 0 || asks_line)) share_page();
    if (asks_line && page != NULL) {
        const double placed = placed_line();
        if (rank == 0) printf("line %.6g ns\n", placed);
        MPI_Finalize();
        return 0;
    }
    memset(out, 0, room);
    memset(in, 0, room);
    if (size == 2) pair_measures();
    collective_measures();
    MPI_Finalize();
    return 0;
}
