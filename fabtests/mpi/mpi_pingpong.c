// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two MPI ranks: latency of a ping-pong, then bandwidth and rate of windows of messages, by size.
// The first and last byte of each ping-pong message are checked.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWindow = 64, kTag = 7, kMaxSize = 4 << 20 };

static void check(const unsigned char* buffer, size_t size, unsigned char mark) {
    if (size > 0 && (buffer[0] != mark || buffer[size - 1] != mark)) {
        fprintf(stderr, "mpi_pingpong: wrong bytes in a message of %zu\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void mark_ends(unsigned char* buffer, size_t size, unsigned char mark) {
    if (size > 0) {
        buffer[0] = mark;
        buffer[size - 1] = mark;
    }
}

/// Half a round trip in microseconds.
static double latency_us(int rank, unsigned char* buffer, size_t size, int rounds) {
    double start = 0;
    for (int i = -rounds / 10 - 1; i < rounds; ++i) {
        const unsigned char mark = (unsigned char)i;
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        if (rank == 0) {
            mark_ends(buffer, size, mark);
            MPI_Send(buffer, (int)size, MPI_BYTE, 1, kTag, MPI_COMM_WORLD);
            MPI_Recv(buffer, (int)size, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(buffer, size, (unsigned char)(mark + 1));
        } else {
            MPI_Recv(buffer, (int)size, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(buffer, size, mark);
            mark_ends(buffer, size, (unsigned char)(mark + 1));
            MPI_Send(buffer, (int)size, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) / (2.0 * rounds) * 1e6;
}

/// Messages per second from rank 0 to rank 1, `kWindow` of them in flight.
static double message_rate(int rank, unsigned char* buffer, size_t size, int rounds) {
    MPI_Request requests[kWindow];
    double start = 0;
    for (int i = -rounds / 10 - 1; i < rounds; ++i) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
        }
        for (int k = 0; k < kWindow; ++k) {
            if (rank == 0) {
                MPI_Isend(buffer, (int)size, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, &requests[k]);
            } else {
                MPI_Irecv(buffer, (int)size, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[k]);
            }
        }
        MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(NULL, 0, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(NULL, 0, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
        }
    }
    return (double)rounds * kWindow / (MPI_Wtime() - start);
}

int main(int argc, char** argv) {
    static const size_t kSizes[] = {0, 8, 64, 1024, 4096, 16384, 65536, 262144, 1 << 20, kMaxSize};
    int rank = 0;
    int ranks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char* buffer = malloc(kMaxSize);
    if (ranks != 2 || buffer == NULL) {
        fprintf(stderr, "mpi_pingpong: two ranks and 4 MiB each are needed\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(buffer, 0, kMaxSize);
    if (rank == 0) {
        printf("%10s %14s %14s %16s\n", "bytes", "latency us", "MB/s", "messages/s");
    }
    for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; ++i) {
        const size_t size = kSizes[i];
        const int rounds = size <= 4096 ? 20000 : size <= 65536 ? 2000 : 100;
        const double us = latency_us(rank, buffer, size, rounds);
        const double rate = message_rate(rank, buffer, size, rounds / 20 + 5);
        if (rank == 0) {
            printf("%10zu %14.2f %14.1f %16.0f\n", size, us, rate * (double)size / 1e6, rate);
            fflush(stdout);
        }
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}
