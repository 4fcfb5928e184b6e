// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// MPI_THREAD_MULTIPLE: several threads of each rank send, receive and wait at the same time, told
// apart by tag, by communicator, or by nothing but who asks first.
// Usage: mpirun -n RANKS mpi_threads [SECTION...]
#include "mpi_check.h"

#include <pthread.h>

enum { kThreads = 4, kLargest = 300000 };

static const int sizes[] = {0, 8, 64, 100, 4000, 20000, kLargest};
static MPI_Comm comms[kThreads];

static int right(void) {
    return (rank + 1) % ranks;
}
static int left(void) {
    return (rank + ranks - 1) % ranks;
}

static void run_threads(void* (*body)(void*)) {
    pthread_t threads[kThreads];
    for (intptr_t t = 0; t < kThreads; t++) {
        if (pthread_create(&threads[t], NULL, body, (void*)t) != 0) {
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    for (int t = 0; t < kThreads; t++) {
        pthread_join(threads[t], NULL);
    }
}

static void exchange(MPI_Comm comm, int thread) {
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    for (int i = 0; i < 20 * (int)COUNT_OF(sizes); i++) {
        int size = sizes[i % (int)COUNT_OF(sizes)], tag = thread * 1000 + i;
        MPI_Request requests[2];
        fill(out, (size_t)size, (unsigned)(rank * 7919 + tag));
        MPI_Irecv(in, size, MPI_BYTE, left(), tag, comm, &requests[0]);
        MPI_Isend(out, size, MPI_BYTE, right(), tag, comm, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        verify(in, (size_t)size, (unsigned)(left() * 7919 + tag), "exchange");
    }
    free(out);
    free(in);
}

static void* exchange_by_tag(void* arg) {
    exchange(MPI_COMM_WORLD, (int)(intptr_t)arg);
    return NULL;
}
static void* exchange_by_communicator(void* arg) {
    exchange(comms[(intptr_t)arg], (int)(intptr_t)arg);
    return NULL;
}
static void by_tag(void) {
    run_threads(exchange_by_tag);
}
static void by_communicator(void) {
    run_threads(exchange_by_communicator);
}

/// Any thread takes any message of its left neighbour: each must be taken exactly once.
static long taken[kThreads];
static void* take_any(void* arg) {
    enum { kEach = 500 };
    int thread = (int)(intptr_t)arg;
    long sum = 0;
    for (int i = 0; i < kEach; i++) {
        long out = thread * kEach + i, in = -1;
        MPI_Request request;
        MPI_Isend(&out, 1, MPI_LONG, right(), 5, MPI_COMM_WORLD, &request);
        MPI_Recv(&in, 1, MPI_LONG, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        sum += in;
    }
    taken[thread] = sum;
    return NULL;
}
static void shared_tag(void) {
    long sum = 0, expected = 2000L * 1999 / 2;
    run_threads(take_any);
    for (int t = 0; t < kThreads; t++) {
        sum += taken[t];
    }
    check(sum == expected, "messages taken sum up to %ld, not %ld", sum, expected);
}

/// Collectives of several communicators at once.
static void* reduce_in_own_communicator(void* arg) {
    intptr_t t = (intptr_t)arg;
    for (int i = 0; i < 100; i++) {
        long in = rank + t * 100 + i, out = -1;
        MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, comms[t]);
        if (out != (long)ranks * (ranks - 1) / 2 + (long)ranks * (t * 100 + i)) {
            check(0, "allreduce %d of thread %ld: %ld", i, (long)t, out);
        }
    }
    return NULL;
}
static void collectives(void) {
    run_threads(reduce_in_own_communicator);
}

int main(int argc, char** argv) {
    const struct section sections[] = {
        {"by-tag", by_tag},
        {"by-communicator", by_communicator},
        {"shared-tag", shared_tag},
        {"collectives", collectives},
    };
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE) {
        fprintf(stderr, "mpi_threads: this MPI offers no MPI_THREAD_MULTIPLE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int t = 0; t < kThreads; t++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[t]);
    }
    int status = run_sections(argc, argv, "threads", sections, COUNT_OF(sections));
    for (int t = 0; t < kThreads; t++) {
        MPI_Comm_free(&comms[t]);
    }
    MPI_Finalize();
    return status;
}
