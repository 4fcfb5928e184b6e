// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// MPI collectives, each result verified, over lengths on both sides of every protocol limit, on the
// world, on halves of it and with several non-blocking ones in flight.
// Usage: mpirun -n RANKS mpi_coll [SECTION...]
#include "mpi_check.h"

static const int counts[] = {1, 2, 17, 500, 4096, 20000, 200000};

static MPI_Comm comm;  // what the collective in question runs on
static int me, size;

static long element(int owner, int i) {
    return (long)owner * 1000003L + i;
}
static long sum_of(int i) {
    return 1000003L * size * (size - 1) / 2 + (long)size * i;
}

/// Per-rank buffers of `count` elements for each of `blocks` blocks.
static long* vector(int count, int blocks) {
    return allocate((size_t)count * (size_t)blocks * sizeof(long));
}

static int count_at_most(size_t index, int limit) {
    return counts[index] > limit ? limit : counts[index];
}

static void barriers(void) {
    for (int i = 0; i < 200; i++) {
        MPI_Barrier(comm);
    }
}

static void broadcasts(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        for (int root = 0; root<size; root += size> 4 ? 3 : 1) {
            long* data = vector(counts[c], 1);
            for (int i = 0; i < counts[c]; i++) {
                data[i] = me == root ? element(root, i) : -1;
            }
            MPI_Bcast(data, counts[c], MPI_LONG, root, comm);
            for (int i = 0; i < counts[c]; i++) {
                check(data[i] == element(root, i), "bcast of %d: element %d", counts[c], i);
            }
            free(data);
        }
    }
}

static void reductions(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        int n = counts[c], root = (int)c % size;
        long *in = vector(n, 1), *out = vector(n, 1);
        for (int i = 0; i < n; i++) {
            in[i] = element(me, i);
        }
        MPI_Reduce(in, out, n, MPI_LONG, MPI_SUM, root, comm);
        for (int i = 0; me == root && i < n; i++) {
            check(out[i] == sum_of(i), "reduce of %d: element %d", n, i);
        }
        MPI_Allreduce(in, out, n, MPI_LONG, MPI_SUM, comm);
        for (int i = 0; i < n; i++) {
            check(out[i] == sum_of(i), "allreduce of %d: element %d", n, i);
        }
        MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_LONG, MPI_MAX, comm);
        for (int i = 0; i < n; i++) {
            check(in[i] == element(size - 1, i), "allreduce in place of %d: element %d", n, i);
        }
        free(in);
        free(out);
    }
}

static void many_small_allreduces(void) {
    for (int i = 0; i < 300; i++) {
        double in[2] = {me + i, 1.0}, out[2] = {0, 0};
        MPI_Allreduce(in, out, 2, MPI_DOUBLE, MPI_SUM, comm);
        check(out[0] == size * (size - 1) / 2.0 + (double)size * i && out[1] == size,
              "allreduce %d: %g %g", i, out[0], out[1]);
    }
}

static void gathers_and_scatters(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        int n = count_at_most(c, 20000), root = (size - 1 + (int)c) % size;
        long *mine = vector(n, 1), *all = vector(n, size);
        for (int i = 0; i < n; i++) {
            mine[i] = element(me, i);
        }
        MPI_Gather(mine, n, MPI_LONG, all, n, MPI_LONG, root, comm);
        for (int i = 0; me == root && i < n * size; i++) {
            check(all[i] == element(i / n, i % n), "gather of %d: element %d", n, i);
        }
        memset(mine, 0, (size_t)n * sizeof *mine);
        MPI_Scatter(all, n, MPI_LONG, mine, n, MPI_LONG, root, comm);
        for (int i = 0; i < n; i++) {
            check(mine[i] == element(me, i), "scatter of %d: element %d", n, i);
        }
        MPI_Allgather(mine, n, MPI_LONG, all, n, MPI_LONG, comm);
        for (int i = 0; i < n * size; i++) {
            check(all[i] == element(i / n, i % n), "allgather of %d: element %d", n, i);
        }
        free(mine);
        free(all);
    }
}

/// Each rank contributes a different number of elements; some none at all.
static void uneven_gathers(void) {
    int* lengths = allocate((size_t)size * sizeof *lengths);
    int *offsets = allocate((size_t)size * sizeof *offsets), total = 0;
    for (int r = 0; r < size; r++) {
        lengths[r] = r % 3 == 1 ? 0 : 700 * r + 5;
        offsets[r] = total + r;
        total += lengths[r] + 1;
    }
    long *mine = vector(lengths[me] + 1, 1), *all = vector(total + size, 1);
    for (int i = 0; i < lengths[me]; i++) {
        mine[i] = element(me, i);
    }
    MPI_Allgatherv(mine, lengths[me], MPI_LONG, all, lengths, offsets, MPI_LONG, comm);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < lengths[r]; i++) {
            check(all[offsets[r] + i] == element(r, i), "allgatherv: element %d of %d", i, r);
        }
    }
    memset(mine, 0, (size_t)(lengths[me] + 1) * sizeof *mine);
    MPI_Scatterv(all, lengths, offsets, MPI_LONG, mine, lengths[me], MPI_LONG, 0, comm);
    for (int i = 0; i < lengths[me]; i++) {
        check(mine[i] == element(me, i), "scatterv: element %d", i);
    }
    memset(all, 0, (size_t)total * sizeof *all);
    MPI_Gatherv(mine, lengths[me], MPI_LONG, all, lengths, offsets, MPI_LONG, size - 1, comm);
    for (int r = 0; me == size - 1 && r < size; r++) {
        for (int i = 0; i < lengths[r]; i++) {
            check(all[offsets[r] + i] == element(r, i), "gatherv: element %d of %d", i, r);
        }
    }
    free(lengths);
    free(offsets);
    free(mine);
    free(all);
}

static void all_to_all(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        int n = count_at_most(c, 20000);
        long *out = vector(n, size), *in = vector(n, size);
        for (int i = 0; i < n * size; i++) {
            out[i] = element(me, (i / n) * 100000 + i % n);
            in[i] = -1;
        }
        MPI_Alltoall(out, n, MPI_LONG, in, n, MPI_LONG, comm);
        for (int i = 0; i < n * size; i++) {
            check(in[i] == element(i / n, me * 100000 + i % n), "alltoall of %d: element %d", n, i);
        }
        free(out);
        free(in);
    }
}

/// Rank r sends 3 r + 2 q elements to rank q.
static void uneven_all_to_all(void) {
    int *out_n = allocate((size_t)size * sizeof(int)), *in_n = allocate((size_t)size * sizeof(int));
    int *out_at = allocate((size_t)size * sizeof(int)),
        *in_at = allocate((size_t)size * sizeof(int));
    int out_total = 0, in_total = 0;
    for (int r = 0; r < size; r++) {
        out_n[r] = 300 * me + 2 * r;
        in_n[r] = 300 * r + 2 * me;
        out_at[r] = out_total;
        in_at[r] = in_total;
        out_total += out_n[r];
        in_total += in_n[r];
    }
    long *out = vector(out_total, 1), *in = vector(in_total, 1);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < out_n[r]; i++) {
            out[out_at[r] + i] = element(me, r * 100000 + i);
        }
    }
    MPI_Alltoallv(out, out_n, out_at, MPI_LONG, in, in_n, in_at, MPI_LONG, comm);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < in_n[r]; i++) {
            check(in[in_at[r] + i] == element(r, me * 100000 + i), "alltoallv: %d from %d", i, r);
        }
    }
    free(out_n);
    free(in_n);
    free(out_at);
    free(in_at);
    free(out);
    free(in);
}

static void scans(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        int n = count_at_most(c, 20000);
        long *in = vector(n, 1), *out = vector(n, 1), before = (long)me * (me - 1) / 2;
        for (int i = 0; i < n; i++) {
            in[i] = element(me, i);
        }
        MPI_Scan(in, out, n, MPI_LONG, MPI_SUM, comm);
        for (int i = 0; i < n; i++) {
            check(out[i] == (before + me) * 1000003L + (long)(me + 1) * i, "scan: element %d", i);
        }
        MPI_Exscan(in, out, n, MPI_LONG, MPI_SUM, comm);
        for (int i = 0; me > 0 && i < n; i++) {
            check(out[i] == before * 1000003L + (long)me * i, "exscan: element %d", i);
        }
        free(in);
        free(out);
    }
}

static void reduce_scatters(void) {
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        int n = count_at_most(c, 4096);
        long *in = vector(n, size), *out = vector(n, 1);
        for (int i = 0; i < n * size; i++) {
            in[i] = element(me, i);
        }
        MPI_Reduce_scatter_block(in, out, n, MPI_LONG, MPI_SUM, comm);
        for (int i = 0; i < n; i++) {
            check(out[i] == sum_of(me * n + i), "reduce_scatter of %d: element %d", n, i);
        }
        free(in);
        free(out);
    }
}

/// 2 x 2 matrices multiply, which does not commute: the order of ranks must be kept.
static void multiply(void* left, void* inout, int* count, MPI_Datatype* type) {
    long *a = left, *b = inout;
    (void)type;
    for (int i = 0; i < *count; i++, a += 4, b += 4) {
        long product[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                           a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
        for (int k = 0; k < 4; k++) {
            b[k] = product[k] % 10007;
        }
    }
}

static void own_operations(void) {
    MPI_Op op;
    MPI_Datatype matrix;
    MPI_Type_contiguous(4, MPI_LONG, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Op_create(multiply, 0, &op);
    long mine[4] = {me + 1, 2, 3, me + 4}, out[4] = {0}, expected[4] = {1, 2, 3, 4};
    int one = 1;
    for (int r = size - 1; r >= 0; r--) {
        long factor[4] = {r + 1, 2, 3, r + 4};
        if (r == size - 1) {
            memcpy(expected, factor, sizeof expected);
        } else {
            multiply(factor, expected, &one, &matrix);
        }
    }
    MPI_Allreduce(mine, out, 1, matrix, op, comm);
    for (int k = 0; k < 4; k++) {
        check(out[k] == expected[k], "own operation: %ld, not %ld", out[k], expected[k]);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&matrix);
}

/// Several collectives in flight at once, waited for in the reverse order.
static void non_blocking(void) {
    enum { kInFlight = 8, kCount = 3000 };
    long *in[kInFlight], *out[kInFlight];
    MPI_Request requests[kInFlight];
    for (int k = 0; k < kInFlight; k++) {
        in[k] = vector(kCount, size);
        out[k] = vector(kCount, size);
        for (int i = 0; i < kCount * size; i++) {
            in[k][i] = element(me, i + k);
            out[k][i] = -1;
        }
        switch (k % 4) {
            case 0:
                MPI_Iallreduce(in[k], out[k], kCount, MPI_LONG, MPI_SUM, comm, &requests[k]);
                break;
            case 1: MPI_Ibcast(in[k], kCount, MPI_LONG, k % size, comm, &requests[k]); break;
            case 2:
                MPI_Ialltoall(in[k], kCount, MPI_LONG, out[k], kCount, MPI_LONG, comm,
                              &requests[k]);
                break;
            default:
                MPI_Iallgather(in[k], kCount, MPI_LONG, out[k], kCount, MPI_LONG, comm,
                               &requests[k]);
        }
    }
    for (int k = kInFlight - 1; k >= 0; k--) {
        MPI_Wait(&requests[k], MPI_STATUS_IGNORE);
        for (int i = 0; i < kCount; i++) {
            long got = k % 4 == 1 ? in[k][i] : out[k][i], expected = 0;
            switch (k % 4) {
                case 0: expected = sum_of(i + k); break;
                case 1: expected = element(k % size, i + k); break;
                case 2: expected = element(0, me * kCount + i + k); break;
                default: expected = element(0, i + k);
            }
            check(got == expected, "non-blocking %d: element %d is %ld, not %ld", k, i, got,
                  expected);
        }
        free(in[k]);
        free(out[k]);
    }
}

static const struct section on_any_communicator[] = {
    {"barrier", barriers},
    {"bcast", broadcasts},
    {"reduce", reductions},
    {"allreduce", many_small_allreduces},
    {"gather", gathers_and_scatters},
    {"gatherv", uneven_gathers},
    {"alltoall", all_to_all},
    {"alltoallv", uneven_all_to_all},
    {"scan", scans},
    {"reduce-scatter", reduce_scatters},
    {"operation", own_operations},
    {"non-blocking", non_blocking},
};

/// Everything again on two communicators at once, ranks in reverse order, then on a copy of the
/// world.
static void communicators(void) {
    MPI_Comm half, copy;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm both[] = {half, copy};
    for (int k = 0; k < 2; k++) {
        comm = both[k];
        MPI_Comm_rank(comm, &me);
        MPI_Comm_size(comm, &size);
        broadcasts();
        many_small_allreduces();
        all_to_all();
        non_blocking();
        MPI_Comm_free(&both[k]);
    }
    comm = MPI_COMM_WORLD;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
}

int main(int argc, char** argv) {
    struct section sections[COUNT_OF(on_any_communicator) + 1];
    memcpy(sections, on_any_communicator, sizeof on_any_communicator);
    sections[COUNT_OF(on_any_communicator)] = (struct section){"communicators", communicators};
    MPI_Init(&argc, &argv);
    comm = MPI_COMM_WORLD;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    int status = run_sections(argc, argv, "coll", sections, COUNT_OF(sections));
    MPI_Finalize();
    return status;
}
