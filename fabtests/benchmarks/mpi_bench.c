// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an MPI library makes of a provider: latency, message rate and bandwidth of ranks 0 and 1,
// and collectives of all ranks. Prints a line for each measure: name, value, unit.
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWindow = 64, kBatches = 5, kMostBytes = 4 << 20 };

static char* out;
static char* in;
static int rank;
static int size;

static int by_value(const void* a, const void* b) {
    const double left = *(const double*)a;
    const double right = *(const double*)b;
    return (left > right) - (left < right);
}

/// Runs `body(bytes)` in batches of about 30 ms. Returns: the median time of one call in seconds.
static double measure(void (*body)(int bytes), int bytes) {
    double times[kBatches];
    int count = 2;
    for (int step = 0; step < 10; ++step) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int i = 0; i < count; ++i) body(bytes);
        double took = MPI_Wtime() - start;
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (took > 0.02) break;
        const double factor = took > 0.002 ? 0.03 / took : 8;
        count = (int)(count * (factor < 1.5 ? 1.5 : factor));
    }
    for (int batch = 0; batch < kBatches; ++batch) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int i = 0; i < count; ++i) body(bytes);
        times[batch] = (MPI_Wtime() - start) / count;
    }
    qsort(times, kBatches, sizeof times[0], by_value);
    return times[kBatches / 2];
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
    memset(out, 0, room);
    memset(in, 0, room);
    if (size == 2) pair_measures();
    collective_measures();
    MPI_Finalize();
    return 0;
}
