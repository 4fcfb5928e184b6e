// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the MPI programs of this folder share: sections that pass or fail, and messages whose every
// byte is known to the receiver. Plain MPI; nothing here knows which transport runs below.
#pragma once

#include <mpi.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;  // in MPI_COMM_WORLD
static _Atomic long failures_in_section;

struct section {
    const char* name;
    void (*run)(void);
};

/// Counts a failure of this rank and prints the first few of a section.
__attribute__((format(printf, 2, 3))) static inline void check(int ok, const char* format, ...) {
    if (ok) {
        return;
    }
    if (failures_in_section++ < 4) {
        va_list args;
        va_start(args, format);
        fprintf(stderr, "rank %d: ", rank);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
    }
}

/// Byte `i` of the message that `seed` names.
static inline uint8_t pattern(unsigned seed, size_t i) {
    return (uint8_t)(seed * 131u + i * 7u + (i >> 8) * 13u + (i >> 16));
}

static inline void fill(void* buffer, size_t size, unsigned seed) {
    uint8_t* bytes = buffer;
    for (size_t i = 0; i < size; i++) {
        bytes[i] = pattern(seed, i);
    }
}

/// Checks `size` bytes against the message of `seed`; reports the first wrong one.
static inline void verify(const void* buffer, size_t size, unsigned seed, const char* what) {
    const uint8_t* bytes = buffer;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != pattern(seed, i)) {
            check(0, "%s: byte %zu of %zu is %02x, not %02x", what, i, size, bytes[i],
                  pattern(seed, i));
            return;
        }
    }
}

static inline void* allocate(size_t size) {
    void* p = malloc(size > 0 ? size : 1);
    if (p == NULL) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return p;
}

/// The number of elements a receive got, checked against what was sent.
static inline void verify_status(const MPI_Status* status, int source, int tag, int size,
                                 const char* what) {
    int got = -1;
    MPI_Get_count(status, MPI_BYTE, &got);
    check(got == size, "%s: %d bytes, not %d", what, got, size);
    check(status->MPI_SOURCE == source, "%s: from %d, not %d", what, status->MPI_SOURCE, source);
    check(status->MPI_TAG == tag, "%s: tag %d, not %d", what, status->MPI_TAG, tag);
}

static inline int is_asked_for(int argc, char** argv, const char* name) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return 1;
        }
    }
    return argc < 2;
}

/// Runs the sections that the command line names (all, if it names none) and prints a line for
/// each. Returns the exit status of the program.
static inline int run_sections(int argc, char** argv, const char* program,
                               const struct section* sections, size_t count) {
    long failed = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t i = 0; i < count; i++) {
        if (!is_asked_for(argc, argv, sections[i].name)) {
            continue;
        }
        long failures = 0, mine;
        double start = MPI_Wtime();
        failures_in_section = 0;
        sections[i].run();
        mine = failures_in_section;
        MPI_Allreduce(&mine, &failures, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%s - %s %s, %d ranks, %.2f s\n", failures == 0 ? "ok" : "not ok", program,
                   sections[i].name, ranks, MPI_Wtime() - start);
            fflush(stdout);
        }
        failed += failures;
    }
    return failed != 0;
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
