// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two-sided MPI, each message verified: every protocol size, synchronous and buffered sends,
// probes, wildcards, cancelled and truncated receives, messages before their receives, message
// order. Usage: mpirun -n RANKS mpi_p2p [SECTION...]
#include "mpi_check.h"

static const int sizes[] = {0,     1,     7,     8,     16,    17,     40,      63,
                            64,    65,    200,   1000,  2048,  4095,   4096,    4097,
                            16384, 16385, 65535, 65536, 65537, 262144, 1048576, 3000001};
enum { kLargest = 3000001 };

static int right(void) {
    return (rank + 1) % ranks;
}
static int left(void) {
    return (rank + ranks - 1) % ranks;
}
/// A different seed for each pair of sender and message.
static unsigned seed_of(int sender, int message) {
    return (unsigned)(sender * 1009 + message + 1);
}

/// Ranks 2k and 2k+1 play; an odd one out watches.
static void ping_pong(void) {
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    int peer = rank ^ 1;
    for (size_t s = 0; peer < ranks && s < COUNT_OF(sizes); s++) {
        int repeats = sizes[s] > 100000 ? 2 : 10;
        for (int i = 0; i < repeats; i++) {
            int size = sizes[s], tag = (int)s * 100 + i;
            MPI_Status status;
            fill(out, (size_t)size, seed_of(rank, tag));
            memset(in, 0xee, (size_t)size);
            if (rank < peer) {
                MPI_Send(out, size, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
            }
            MPI_Recv(in, size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
            if (rank > peer) {
                MPI_Send(out, size, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
            }
            verify_status(&status, peer, tag, size, "ping-pong");
            verify(in, (size_t)size, seed_of(peer, tag), "ping-pong");
        }
    }
    free(out);
    free(in);
}

/// Both neighbours of the ring at once, receives posted first.
static void ring_exchange(void) {
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        MPI_Status status;
        fill(out, (size_t)sizes[s], seed_of(rank, (int)s));
        MPI_Sendrecv(out, sizes[s], MPI_BYTE, right(), (int)s, in, sizes[s], MPI_BYTE, left(),
                     (int)s, MPI_COMM_WORLD, &status);
        verify_status(&status, left(), (int)s, sizes[s], "ring");
        verify(in, (size_t)sizes[s], seed_of(left(), (int)s), "ring");
    }
    free(out);
    free(in);
}

/// A window of non-blocking messages to the right, each in its own buffer.
static void windows(int size, int window, int expected) {
    uint8_t* out = allocate((size_t)size * (size_t)window);
    uint8_t* in = allocate((size_t)size * (size_t)window);
    MPI_Request* requests = allocate(2 * (size_t)window * sizeof *requests);
    memset(in, 0xee, (size_t)size * (size_t)window);
    for (int i = 0; i < window; i++) {
        fill(out + (size_t)i * (size_t)size, (size_t)size, seed_of(rank, i));
    }
    for (int pass = 0; pass < 2; pass++) {  // receives first if expected, sends first if not
        for (int i = 0; i < window; i++) {
            if ((pass == 0) == (expected != 0)) {
                MPI_Irecv(in + (size_t)i * (size_t)size, size, MPI_BYTE, left(), i, MPI_COMM_WORLD,
                          &requests[i]);
            } else {
                MPI_Isend(out + (size_t)i * (size_t)size, size, MPI_BYTE, right(), i,
                          MPI_COMM_WORLD, &requests[window + i]);
            }
        }
        if (pass == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    MPI_Waitall(2 * window, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < window; i++) {
        verify(in + (size_t)i * (size_t)size, (size_t)size, seed_of(left(), i), "window");
    }
    free(out);
    free(in);
    free(requests);
}

static void windows_expected(void) {
    windows(8, 500, 1);
    windows(1000, 200, 1);
    windows(20000, 64, 1);
    windows(300000, 16, 1);
}

static void windows_unexpected(void) {
    windows(8, 500, 0);
    windows(1000, 200, 0);
    windows(20000, 64, 0);
    windows(300000, 16, 0);
}

/// Unexpected messages fetched in the reverse of their order, then one tag in order.
static void message_order(void) {
    enum { kMessages = 300, kInts = 300 };
    int* in = allocate(kInts * sizeof *in);
    int* out = allocate((size_t)kMessages * kInts * sizeof *out);
    MPI_Request* requests = allocate(kMessages * sizeof *requests);
    for (int one_tag = 0; one_tag < 2; one_tag++) {
        for (int i = 0; i < kMessages; i++) {  // lengths on both sides of the inject sizes
            int n = 1 + i % kInts;
            for (int k = 0; k < n; k++) {
                out[i * kInts + k] = rank * 1000000 + i * 1000 + k;
            }
            MPI_Isend(out + i * kInts, n, MPI_INT, right(), one_tag ? 5 : i, MPI_COMM_WORLD,
                      &requests[i]);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < kMessages; i++) {
            int m = one_tag ? i : kMessages - 1 - i, n = 0;
            MPI_Status status;
            MPI_Recv(in, kInts, MPI_INT, left(), one_tag ? 5 : m, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_INT, &n);
            check(n == 1 + m % kInts, "order: message %d has %d elements", m, n);
            for (int k = 0; k < n && k < kInts; k++) {
                check(in[k] == left() * 1000000 + m * 1000 + k, "order: message %d is another", m);
            }
        }
        MPI_Waitall(kMessages, requests, MPI_STATUSES_IGNORE);
    }
    free(in);
    free(out);
    free(requests);
}

/// A synchronous send ends after its receive was posted, never before.
static void synchronous_sends(void) {
    enum { kSize = 100000 };
    uint8_t *out = allocate(kSize), *in = allocate(kSize);
    const int lengths[] = {0, 8, 4000, kSize};
    for (size_t s = 0; s < COUNT_OF(lengths); s++) {
        int done = 0, size = lengths[s];
        MPI_Request request;
        MPI_Status status;
        fill(out, (size_t)size, seed_of(rank, (int)s));
        MPI_Issend(out, size, MPI_BYTE, right(), 40, MPI_COMM_WORLD, &request);
        for (int i = 0; i < 50; i++) {
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        }
        check(!done, "synchronous send of %d bytes ended before its receive", size);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, left(), 40, MPI_COMM_WORLD, &status);
        verify_status(&status, left(), 40, size, "ssend");
        verify(in, (size_t)size, seed_of(left(), (int)s), "ssend");
        if (!done) {
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        if (rank % 2 == 0 && rank + 1 < ranks) {
            MPI_Ssend(out, size, MPI_BYTE, rank + 1, 41, MPI_COMM_WORLD);
        } else if (rank % 2 == 1) {
            MPI_Recv(in, size, MPI_BYTE, rank - 1, 41, MPI_COMM_WORLD, &status);
            verify(in, (size_t)size, seed_of(rank - 1, (int)s), "blocking ssend");
        }
    }
    free(out);
    free(in);
}

/// Rank 0 takes whatever arrives, by wildcard of source, of tag, of both.
static void wildcards(void) {
    enum { kEach = 50, kMost = 6000 };
    uint8_t* buffer = allocate(kMost);
    for (int kind = 0; kind < 3; kind++) {
        if (rank != 0) {
            for (int i = 0; i < kEach; i++) {
                int size = (i * 119 + rank) % kMost;
                fill(buffer, (size_t)size, seed_of(rank, i));
                MPI_Send(buffer, size, MPI_BYTE, 0, i, MPI_COMM_WORLD);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            continue;
        }
        int* next = calloc((size_t)ranks, sizeof *next);
        for (int i = 0; i < kEach * (ranks - 1); i++) {
            MPI_Status status;
            int turn = 1 + i % (ranks - 1);
            int source = kind == 1 ? turn : MPI_ANY_SOURCE;
            int tag = kind == 0 ? i / (ranks - 1) : MPI_ANY_TAG;
            MPI_Recv(buffer, kMost, MPI_BYTE, source, tag, MPI_COMM_WORLD, &status);
            int from = status.MPI_SOURCE, m = next[from]++;
            verify_status(&status, kind == 1 ? turn : from, m, (m * 119 + from) % kMost, "any");
            verify(buffer, (size_t)((m * 119 + from) % kMost), seed_of(from, m), "any");
        }
        free(next);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(buffer);
}

/// Four kinds of probe: the length is known before the receive is posted.
static void probe_from(int kind, int end) {
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    const int lengths[] = {0, 5, 64, 5000, 70000, 1048576};
    for (; kind < end; kind++) {
        for (size_t s = 0; s < COUNT_OF(lengths); s++) {
            int size = lengths[s], found = 0, got = -1, tag = kind * 10 + (int)s;
            MPI_Request request;
            MPI_Message message = MPI_MESSAGE_NULL;
            MPI_Status status, received;
            MPI_Iprobe(left(), 999, MPI_COMM_WORLD, &found, &status);
            check(!found, "probe found a message that nobody sent");
            fill(out, (size_t)size, seed_of(rank, tag));
            MPI_Isend(out, size, MPI_BYTE, right(), tag, MPI_COMM_WORLD, &request);
            switch (kind) {
                case 0: MPI_Probe(left(), tag, MPI_COMM_WORLD, &status); break;
                case 1:
                    while (!found) {
                        MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &found, &status);
                    }
                    break;
                case 2: MPI_Mprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &message, &status); break;
                default:
                    while (!found) {
                        MPI_Improbe(left(), tag, MPI_COMM_WORLD, &found, &message, &status);
                    }
            }
            verify_status(&status, left(), tag, size, "probe");
            MPI_Get_count(&status, MPI_BYTE, &got);
            if (message != MPI_MESSAGE_NULL) {
                MPI_Mrecv(in, got, MPI_BYTE, &message, &received);
            } else {
                MPI_Recv(in, got, MPI_BYTE, left(), tag, MPI_COMM_WORLD, &received);
            }
            verify_status(&received, left(), tag, size, "receive after probe");
            verify(in, (size_t)size, seed_of(left(), tag), "receive after probe");
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
    free(out);
    free(in);
}

static void probes(void) {
    probe_from(0, 2);
}
static void matched_probes(void) {
    probe_from(2, 4);
}

/// A cancelled receive takes no message; the one after it does.
static void cancelled_receives(void) {
    for (int i = 0; i < 100; i++) {
        int got = -1, value = rank * 100 + i, was_cancelled = 0;
        MPI_Request request;
        MPI_Status status;
        MPI_Irecv(&got, 1, MPI_INT, left(), 60, MPI_COMM_WORLD, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &was_cancelled);
        check(was_cancelled, "cancel: the receive was not cancelled");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Sendrecv(&value, 1, MPI_INT, right(), 60, &got, 1, MPI_INT, left(), 60, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        check(got == left() * 100 + i, "cancel: the later receive got %d", got);
    }
}

/// A message longer than its buffer is an error of the receive, and harms nothing beside it.
static void truncated_receives(void) {
    const int lengths[] = {40, 3000, 50000, 400000};
    uint8_t *out = allocate(400000), *in = allocate(400000 + 64);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (size_t s = 0; s < COUNT_OF(lengths); s++) {
        for (int expected = 0; expected < 2; expected++) {
            int size = lengths[s], error_class = 0;
            MPI_Request send, receive;
            memset(in, 0xaa, 400000 + 64);
            fill(out, (size_t)size, seed_of(rank, 3));
            if (!expected) {
                MPI_Isend(out, size, MPI_BYTE, right(), 70, comm, &send);
                MPI_Barrier(MPI_COMM_WORLD);
            }
            MPI_Irecv(in, size / 2, MPI_BYTE, left(), 70, comm, &receive);
            if (expected) {
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Isend(out, size, MPI_BYTE, right(), 70, comm, &send);
            }
            MPI_Error_class(MPI_Wait(&receive, MPI_STATUS_IGNORE), &error_class);
            check(error_class == MPI_ERR_TRUNCATE, "truncation: error class %d", error_class);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
            for (int i = size / 2; i < size / 2 + 64; i++) {
                check(in[i] == 0xaa, "truncation: wrote past the buffer of %d bytes", size / 2);
            }
        }
    }
    MPI_Comm_free(&comm);
    free(out);
    free(in);
}

/// A vector type on both sides: not contiguous in memory.
static void strided_types(void) {
    enum { kRows = 2000, kColumns = 8 };
    MPI_Datatype column;
    int *out = allocate(kRows * kColumns * sizeof *out),
        *in = allocate(kRows * kColumns * sizeof *in);
    MPI_Type_vector(kRows, 3, kColumns, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int i = 0; i < kRows * kColumns; i++) {
        out[i] = rank * 1000000 + i;
        in[i] = -1;
    }
    MPI_Sendrecv(out + 2, 1, column, right(), 80, in + 4, 1, column, left(), 80, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 0; i < kRows * kColumns; i++) {
        int c = i % kColumns;
        int expected = c >= 4 && c < 7 ? left() * 1000000 + i - 2 : -1;
        check(in[i] == expected, "strided: element %d is %d, not %d", i, in[i], expected);
    }
    MPI_Type_free(&column);
    free(out);
    free(in);
}

static void persistent_requests(void) {
    enum { kSize = 5000 };
    uint8_t *out = allocate(kSize), *in = allocate(kSize);
    MPI_Request requests[2];
    MPI_Recv_init(in, kSize, MPI_BYTE, left(), 90, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(out, kSize, MPI_BYTE, right(), 90, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < 100; i++) {
        fill(out, kSize, seed_of(rank, i));
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        verify(in, kSize, seed_of(left(), i), "persistent");
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    free(out);
    free(in);
}

static void messages_to_self(void) {
    uint8_t *out = allocate(kLargest), *in = allocate(kLargest);
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        for (int expected = 0; expected < 2; expected++) {
            MPI_Request send, receive;
            MPI_Status status;
            fill(out, (size_t)sizes[s], seed_of(rank, (int)s));
            memset(in, 0xee, (size_t)sizes[s]);
            if (expected) {
                MPI_Irecv(in, sizes[s], MPI_BYTE, 0, 95, MPI_COMM_SELF, &receive);
            }
            MPI_Isend(out, sizes[s], MPI_BYTE, 0, 95, MPI_COMM_SELF, &send);
            if (!expected) {
                MPI_Irecv(in, sizes[s], MPI_BYTE, 0, 95, MPI_COMM_SELF, &receive);
            }
            MPI_Wait(&receive, &status);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
            verify_status(&status, 0, 95, sizes[s], "self");
            verify(in, (size_t)sizes[s], seed_of(rank, (int)s), "self");
        }
    }
    free(out);
    free(in);
}

/// Every rank floods rank 0, which looks away first; then all to all without a posted receive.
static void floods(void) {
    enum { kMessages = 2000 };
    int *in = allocate(16 * sizeof *in), out[16] = {0};
    if (rank == 0) {
        for (int source = 1; source < ranks; source++) {
            for (int i = 0; i < kMessages; i++) {
                MPI_Recv(in, 16, MPI_INT, source, 97, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(in[0] == i && in[15] == source, "flood: %d of %d is %d", i, source, in[0]);
            }
        }
    } else {
        for (int i = 0; i < kMessages; i++) {
            out[0] = i;
            out[15] = rank;
            MPI_Send(out, 16, MPI_INT, 0, 97, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
}

/// Messages of any length to any rank, one send and one wildcard receive at a time: each arrives
/// whole, once, and in the order of its sender. Tag 2 ends a sender's messages.
static void random_traffic(void) {
    enum { kMessages = 4000, kMost = 1024, kUpdate = 1, kEnd = 2 };
    uint64_t in[kMost], out[kMost], random = 88172645463325252ull + (uint64_t)rank * 7919u;
    uint64_t *sent = calloc((size_t)ranks, sizeof *sent), *got = calloc((size_t)ranks, sizeof *got);
    MPI_Request send = MPI_REQUEST_NULL, receive;
    int ended = 0, made = 0, ends = 0;
    MPI_Irecv(in, kMost, MPI_UINT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &receive);
    while (ended < ranks || ends < ranks) {
        int done = 0, count = 0;
        MPI_Status status;
        if (receive != MPI_REQUEST_NULL) {
            MPI_Test(&receive, &done, &status);
        }
        if (done && status.MPI_TAG == kEnd) {
            ended++;
        } else if (done) {
            int from = status.MPI_SOURCE;
            MPI_Get_count(&status, MPI_UINT64_T, &count);
            check(in[0] == got[from], "traffic: message %lu of rank %d came as number %lu",
                  (unsigned long)in[0], from, (unsigned long)got[from]);
            check(in[count - 1] == (count == 1 ? in[0] : in[0] * 31 + (uint64_t)count),
                  "traffic: message %lu of rank %d is damaged", (unsigned long)in[0], from);
            got[from] = in[0] + 1;
        }
        if (done && ended < ranks) {
            MPI_Irecv(in, kMost, MPI_UINT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                      &receive);
        }
        MPI_Test(&send, &done, MPI_STATUS_IGNORE);
        if (!done) {
            continue;
        }
        if (made < kMessages) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            int to = (int)(random % (uint64_t)ranks), n = 1 + (int)((random >> 20) % kMost);
            out[n - 1] = sent[to] * 31 + (uint64_t)n;
            out[0] = sent[to]++;
            made++;
            MPI_Isend(out, n, MPI_UINT64_T, to, kUpdate, MPI_COMM_WORLD, &send);
        } else if (ends < ranks) {
            MPI_Isend(out, 0, MPI_UINT64_T, ends++, kEnd, MPI_COMM_WORLD, &send);
        }
    }
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    MPI_Alltoall(sent, 1, MPI_UINT64_T, out, 1, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
        check(got[r] == out[r], "traffic: %lu of %lu messages came from rank %d",
              (unsigned long)got[r], (unsigned long)out[r], r);
    }
    free(sent);
    free(got);
}

int main(int argc, char** argv) {
    const struct section sections[] = {
        {"ping-pong", ping_pong},
        {"ring", ring_exchange},
        {"windows-expected", windows_expected},
        {"windows-unexpected", windows_unexpected},
        {"order", message_order},
        {"ssend", synchronous_sends},
        {"wildcards", wildcards},
        {"probe", probes},
        {"mprobe", matched_probes},
        {"cancel", cancelled_receives},
        {"truncation", truncated_receives},
        {"strided", strided_types},
        {"persistent", persistent_requests},
        {"self", messages_to_self},
        {"flood", floods},
        {"traffic", random_traffic},
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) {
        fprintf(stderr, "mpi_p2p: at least 2 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int status = run_sections(argc, argv, "p2p", sections, COUNT_OF(sections));
    MPI_Finalize();
    return status;
}
