// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided MPI, each byte verified: put, get, accumulate and the atomics under fences, locks and
// post-start-complete-wait, on windows made with MPI_Win_create so that no shared mapping helps.
// Usage: mpirun -n RANKS mpi_rma [SECTION...]
#include "mpi_check.h"

static const int sizes[] = {1, 8, 17, 64, 65, 500, 4096, 4097, 65536, 65537, 1048576, 2500001};
enum { kLargest = 2500001 };

static int right(void) {
    return (rank + 1) % ranks;
}
static int left(void) {
    return (rank + ranks - 1) % ranks;
}
static unsigned seed_of(int owner, size_t message) {
    return (unsigned)(owner * 577 + (int)message + 1);
}

struct window {
    MPI_Win win;
    void* memory;
};

static struct window open_window(size_t size) {
    struct window w = {.memory = allocate(size)};
    memset(w.memory, 0, size);
    MPI_Win_create(w.memory, (MPI_Aint)size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
    return w;
}

static void close_window(struct window* w) {
    MPI_Win_free(&w->win);
    free(w->memory);
}

static void put_between_fences(void) {
    struct window w = open_window(kLargest + 16);
    uint8_t* out = allocate(kLargest);
    MPI_Win_fence(0, w.win);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        fill(out, (size_t)sizes[s], seed_of(rank, s));
        MPI_Put(out, sizes[s], MPI_BYTE, right(), 3, sizes[s], MPI_BYTE, w.win);
        MPI_Win_fence(0, w.win);
        verify((uint8_t*)w.memory + 3, (size_t)sizes[s], seed_of(left(), s), "put");
        MPI_Win_fence(0, w.win);
    }
    close_window(&w);
    free(out);
}

static void get_between_fences(void) {
    struct window w = open_window(kLargest + 16);
    uint8_t* in = allocate(kLargest);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        fill((uint8_t*)w.memory + 5, (size_t)sizes[s], seed_of(rank, s));
        MPI_Win_fence(0, w.win);
        memset(in, 0, (size_t)sizes[s]);
        MPI_Get(in, sizes[s], MPI_BYTE, left(), 5, sizes[s], MPI_BYTE, w.win);
        MPI_Win_fence(0, w.win);
        verify(in, (size_t)sizes[s], seed_of(left(), s), "get");
    }
    close_window(&w);
    free(in);
}

/// Many pieces to every rank in one epoch, the target in its own slice of the window.
static void many_puts_and_gets(void) {
    enum { kPieces = 100, kPiece = 700, kSlice = kPieces * kPiece };
    struct window w = open_window((size_t)kSlice * (size_t)ranks);
    uint8_t *out = allocate((size_t)kSlice * (size_t)ranks), *in = allocate(kSlice);
    for (int target = 0; target < ranks; target++) {
        fill(out + (size_t)target * kSlice, kSlice, seed_of(rank, (size_t)target));
    }
    MPI_Win_fence(0, w.win);
    for (int i = 0; i < kPieces; i++) {
        for (int target = 0; target < ranks; target++) {
            MPI_Put(out + (size_t)target * kSlice + i * kPiece, kPiece, MPI_BYTE, target,
                    (MPI_Aint)rank * kSlice + i * kPiece, kPiece, MPI_BYTE, w.win);
        }
    }
    MPI_Win_fence(0, w.win);
    for (int origin = 0; origin < ranks; origin++) {
        verify((uint8_t*)w.memory + (size_t)origin * kSlice, kSlice, seed_of(origin, (size_t)rank),
               "many puts");
    }
    for (int i = kPieces - 1; i >= 0; i--) {
        MPI_Get(in + i * kPiece, kPiece, MPI_BYTE, right(), (MPI_Aint)rank * kSlice + i * kPiece,
                kPiece, MPI_BYTE, w.win);
    }
    MPI_Win_fence(0, w.win);
    verify(in, kSlice, seed_of(rank, (size_t)right()), "many gets");
    close_window(&w);
    free(out);
    free(in);
}

static void passive_target(void) {
    struct window w = open_window(kLargest);
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        fill(out, (size_t)sizes[s], seed_of(rank, s));
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right(), 0, w.win);
        MPI_Put(out, sizes[s], MPI_BYTE, right(), 0, sizes[s], MPI_BYTE, w.win);
        MPI_Win_flush(right(), w.win);
        MPI_Get(in, sizes[s], MPI_BYTE, right(), 0, sizes[s], MPI_BYTE, w.win);
        MPI_Win_unlock(right(), w.win);
        verify(in, (size_t)sizes[s], seed_of(rank, s), "get after put and flush");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
        verify(w.memory, (size_t)sizes[s], seed_of(left(), s), "put under a lock");
        MPI_Win_unlock(rank, w.win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    close_window(&w);
    free(out);
    free(in);
}

/// Unprotected read-modify-write under exclusive locks: loses counts if two ranks hold one.
static void exclusive_locks(void) {
    enum { kRounds = 100 };
    struct window w = open_window(sizeof(long));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < kRounds; i++) {
        long value = 0;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w.win);
        MPI_Get(&value, 1, MPI_LONG, 0, 0, 1, MPI_LONG, w.win);
        MPI_Win_flush(0, w.win);
        value++;
        MPI_Put(&value, 1, MPI_LONG, 0, 0, 1, MPI_LONG, w.win);
        MPI_Win_unlock(0, w.win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
    check(rank != 0 || *(long*)w.memory == (long)kRounds * ranks, "locks: counted %ld of %ld",
          *(long*)w.memory, (long)kRounds * ranks);
    MPI_Win_unlock(rank, w.win);
    close_window(&w);
}

static void post_start_complete_wait(void) {
    enum { kSize = 50000 };
    struct window w = open_window(kSize);
    uint8_t* out = allocate(kSize);
    MPI_Group world, from, to;
    int source = left(), target = right();
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &source, &from);
    MPI_Group_incl(world, 1, &target, &to);
    for (size_t i = 0; i < 20; i++) {
        fill(out, kSize, seed_of(rank, i));
        MPI_Win_post(from, 0, w.win);
        MPI_Win_start(to, 0, w.win);
        MPI_Put(out, kSize, MPI_BYTE, target, 0, kSize, MPI_BYTE, w.win);
        MPI_Win_complete(w.win);
        MPI_Win_wait(w.win);
        verify(w.memory, kSize, seed_of(source, i), "post-start-complete-wait");
    }
    MPI_Group_free(&from);
    MPI_Group_free(&to);
    MPI_Group_free(&world);
    close_window(&w);
    free(out);
}

static void accumulates(void) {
    enum { kCount = 5000 };
    struct window w = open_window(kCount * sizeof(double));
    struct window v = open_window(kCount * sizeof(int));
    double* reals = allocate(kCount * sizeof *reals);
    int* bits = allocate(kCount * sizeof *bits);
    for (int i = 0; i < kCount; i++) {
        reals[i] = rank + i;
        bits[i] = 1 << (rank % 30);
    }
    MPI_Win_fence(0, w.win);
    MPI_Win_fence(0, v.win);
    for (int target = 0; target < ranks; target++) {
        MPI_Accumulate(reals, kCount, MPI_DOUBLE, target, 0, kCount, MPI_DOUBLE, MPI_SUM, w.win);
        MPI_Accumulate(bits, kCount, MPI_INT, target, 0, kCount, MPI_INT, MPI_BOR, v.win);
    }
    MPI_Win_fence(0, w.win);
    MPI_Win_fence(0, v.win);
    for (int i = 0; i < kCount; i++) {
        double sum = ranks * (ranks - 1) / 2.0 + (double)ranks * i;
        int all = ranks >= 30 ? (1 << 30) - 1 : (1 << ranks) - 1;
        check(((double*)w.memory)[i] == sum, "accumulate: %g, not %g", ((double*)w.memory)[i], sum);
        check(((int*)v.memory)[i] == all, "accumulate: %x, not %x", ((int*)v.memory)[i], all);
    }
    close_window(&w);
    close_window(&v);
    free(reals);
    free(bits);
}

/// Tickets from one counter: all different, none left out.
static void fetch_and_op(void) {
    enum { kEach = 100 };
    struct window w = open_window(2 * sizeof(long));
    long one = 1, *mine = allocate(kEach * sizeof *mine);
    long* all = allocate((size_t)kEach * (size_t)ranks * sizeof *all);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, w.win);
    for (int i = 0; i < kEach; i++) {
        MPI_Fetch_and_op(&one, &mine[i], MPI_LONG, 0, 0, MPI_SUM, w.win);
        MPI_Win_flush(0, w.win);
    }
    MPI_Win_unlock_all(w.win);
    MPI_Allgather(mine, kEach, MPI_LONG, all, kEach, MPI_LONG, MPI_COMM_WORLD);
    char* seen = calloc((size_t)kEach * (size_t)ranks, 1);
    for (int i = 0; i < kEach * ranks; i++) {
        int fits = all[i] >= 0 && all[i] < (long)kEach * ranks && !seen[all[i]];
        check(fits, "fetch_and_op: ticket %ld twice or out of range", all[i]);
        if (fits) {
            seen[all[i]] = 1;
        }
    }
    free(seen);
    free(mine);
    free(all);
    close_window(&w);
}

/// The same on 32 bits by a loop of compare_and_swap, ranks competing.
static void compare_and_swap(void) {
    enum { kEach = 50 };
    struct window w = open_window(sizeof(int));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, w.win);
    for (int i = 0; i < kEach; i++) {
        int expected = 0, found = -1;
        for (;;) {
            int desired = expected + 1;
            MPI_Compare_and_swap(&desired, &expected, &found, MPI_INT, 0, 0, w.win);
            MPI_Win_flush(0, w.win);
            if (found == expected) {
                break;
            }
            expected = found;
        }
    }
    MPI_Win_unlock_all(w.win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
    check(rank != 0 || *(int*)w.memory == kEach * ranks, "compare_and_swap: %d of %d",
          *(int*)w.memory, kEach * ranks);
    MPI_Win_unlock(rank, w.win);
    close_window(&w);
}

static void get_accumulate(void) {
    enum { kCount = 64 };
    struct window w = open_window(kCount * sizeof(long));
    long add[kCount], before[kCount], total = (long)ranks * (ranks + 1) / 2;
    for (int i = 0; i < kCount; i++) {
        add[i] = rank + 1;
        before[i] = -1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w.win);
    MPI_Get_accumulate(add, kCount, MPI_LONG, before, kCount, MPI_LONG, 0, 0, kCount, MPI_LONG,
                       MPI_SUM, w.win);
    MPI_Win_unlock(0, w.win);
    for (int i = 0; i < kCount; i++) {
        check(before[i] >= 0 && before[i] <= total - rank - 1, "get_accumulate: before %ld",
              before[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w.win);
    MPI_Get_accumulate(NULL, 0, MPI_LONG, before, kCount, MPI_LONG, 0, 0, kCount, MPI_LONG,
                       MPI_NO_OP, w.win);
    MPI_Win_unlock(0, w.win);
    for (int i = 0; i < kCount; i++) {
        check(before[i] == total, "get_accumulate: total %ld, not %ld", before[i], total);
    }
    close_window(&w);
}

static void request_based(void) {
    enum { kOps = 32, kSize = 3000 };
    struct window w = open_window(kOps * kSize);
    uint8_t *out = allocate(kOps * kSize), *in = allocate(kOps * kSize);
    MPI_Request requests[kOps];
    fill(out, kOps * kSize, seed_of(rank, 7));
    MPI_Win_lock_all(0, w.win);
    for (int i = 0; i < kOps; i++) {
        MPI_Rput(out + i * kSize, kSize, MPI_BYTE, right(), (MPI_Aint)i * kSize, kSize, MPI_BYTE,
                 w.win, &requests[i]);
    }
    MPI_Waitall(kOps, requests, MPI_STATUSES_IGNORE);
    MPI_Win_flush_all(w.win);
    for (int i = 0; i < kOps; i++) {
        MPI_Rget(in + i * kSize, kSize, MPI_BYTE, right(), (MPI_Aint)i * kSize, kSize, MPI_BYTE,
                 w.win, &requests[i]);
    }
    MPI_Waitall(kOps, requests, MPI_STATUSES_IGNORE);
    MPI_Win_unlock_all(w.win);
    verify(in, kOps * kSize, seed_of(rank, 7), "rget after rput");
    close_window(&w);
    free(out);
    free(in);
}

static void strided_put(void) {
    enum { kRows = 200, kColumns = 8 };
    struct window w = open_window(kRows * kColumns * sizeof(int));
    int *out = allocate(kRows * kColumns * sizeof *out), *in = w.memory;
    MPI_Datatype column;
    MPI_Type_vector(kRows, 3, kColumns, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int i = 0; i < kRows * kColumns; i++) {
        out[i] = rank * 100000 + i;
        in[i] = -1;
    }
    MPI_Win_fence(0, w.win);
    MPI_Put(out + 2, 1, column, right(), 4 * (MPI_Aint)sizeof(int), 1, column, w.win);
    MPI_Win_fence(0, w.win);
    for (int i = 0; i < kRows * kColumns; i++) {
        int c = i % kColumns, expected = c >= 4 && c < 7 ? left() * 100000 + i - 2 : -1;
        check(in[i] == expected, "strided put: element %d is %d, not %d", i, in[i], expected);
    }
    MPI_Type_free(&column);
    close_window(&w);
    free(out);
}

int main(int argc, char** argv) {
    const struct section sections[] = {
        {"put", put_between_fences},
        {"get", get_between_fences},
        {"many", many_puts_and_gets},
        {"lock", passive_target},
        {"exclusive", exclusive_locks},
        {"pscw", post_start_complete_wait},
        {"accumulate", accumulates},
        {"fetch-and-op", fetch_and_op},
        {"compare-and-swap", compare_and_swap},
        {"get-accumulate", get_accumulate},
        {"request", request_based},
        {"strided", strided_put},
    };
    MPI_Init(&argc, &argv);
    int status = run_sections(argc, argv, "rma", sections, COUNT_OF(sections));
    MPI_Finalize();
    return status;
}
