// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completion queues: fi_cq(3). Formats, batches, waiting, signals.
#include <cstring>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/syscall.h>

#include "common/call_watch.h"
#include "functional/case.h"

namespace fab {
namespace {

/// Each format tells what it has.
template <fi_cq_format kFormat>
void format(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .cq_format = kFormat, .cq_data_size = 4});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_tsenddata(party.ep.ep, buffer.as(), 24, buffer.desc(), 77, party.peer(), 6,
                                contexts.at(0));
        });
        FAB_CHECK(party.ep.wait_tx().context == contexts.at(0));
        return;
    }
    party.trecv(buffer, 64, 6, 0, contexts.at(0));
    const Completion got = party.ep.wait_rx();
    FAB_CHECK(got.context == contexts.at(0));
    if (kFormat == FI_CQ_FORMAT_CONTEXT) return;
    FAB_EQUAL(got.len, 24);
    FAB_CHECK((got.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
    if (kFormat == FI_CQ_FORMAT_MSG) return;
    FAB_EQUAL(got.data, 77);
    if (kFormat == FI_CQ_FORMAT_TAGGED) FAB_EQUAL(got.tag, 6);
}

/// One call reads as many as are there and asked for, in order.
void batches(Rank& self) {
    constexpr std::size_t kCount = 50;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS, .cq_size = kCount});
    Buffer buffer(party.ep, 64 * kCount);
    Contexts contexts(kCount);
    if (self.rank == 0) {
        party.barrier();
        for (std::size_t i = 0; i < kCount; ++i) {
            party.tsend(buffer, 8, i, contexts.at(i));
            party.ep.wait_tx();
        }
        party.barrier();
        return;
    }
    for (std::size_t i = 0; i < kCount; ++i) party.trecv(buffer, 8, i, 0, contexts.at(i));
    party.barrier();
    party.barrier();
    std::size_t seen = 0;
    const double deadline = now_s() + kOpLimitS;
    while (seen < kCount) {
        fi_cq_tagged_entry entries[7];
        const ssize_t n = fi_cq_read(party.ep.rx_cq, entries, 7);
        if (n == -FI_EAGAIN && now_s() < deadline) continue;
        FAB_OK(n);
        FAB_CHECK(n >= 1 && n <= 7);
        for (ssize_t i = 0; i < n; ++i) FAB_EQUAL(entries[i].tag, seen++);
    }
    fi_cq_tagged_entry one;
    FAB_EQUAL(fi_cq_read(party.ep.rx_cq, &one, 1), -FI_EAGAIN);
}

/// An error stands in its place: what completed before it is read first, and until it is read by
/// fi_cq_readerr, fi_cq_read says -FI_EAVAIL.
void error_in_its_place(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    party.trecv(buffer, 64, 1, 0, contexts.at(0));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(0)));
    fi_cq_tagged_entry entry;
    ssize_t rc = 0;
    const double deadline = now_s() + kOpLimitS;
    while ((rc = fi_cq_read(party.ep.rx_cq, &entry, 1)) == -FI_EAGAIN)
        FAB_CHECK(now_s() < deadline);
    FAB_EQUAL(rc, -FI_EAVAIL);
    FAB_EQUAL(fi_cq_read(party.ep.rx_cq, &entry, 1), -FI_EAVAIL);
    fi_cq_err_entry error{};
    FAB_EQUAL(fi_cq_readerr(party.ep.rx_cq, &error, 0), 1);
    FAB_EQUAL(error.err, FI_ECANCELED);
    FAB_CHECK(error.op_context == contexts.at(0));
    char text[128];
    FAB_CHECK(fi_cq_strerror(party.ep.rx_cq, error.prov_errno, error.err_data, text, sizeof text) !=
              nullptr);
    FAB_EQUAL(fi_cq_readerr(party.ep.rx_cq, &error, 0), -FI_EAGAIN);
    FAB_EQUAL(fi_cq_read(party.ep.rx_cq, &entry, 1), -FI_EAGAIN);
}

/// fi_cq_sread sleeps until the timeout or a completion.
template <fi_wait_obj kObject>
void sread(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cq_wait = kObject});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    fi_cq_tagged_entry entry;
    if (self.rank == 0) {
        for (int i = 0; i < 20; ++i) {
            party.barrier();
            if (i % 2 == 0) self.receive(1, &entry, 1);  // rank 1 is about to sleep
            party.send(buffer, 8, contexts.at(0));
            party.ep.wait_tx();
        }
        return;
    }
    const double start = now_s();
    FAB_EQUAL(fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 30), -FI_EAGAIN);
    FAB_CHECK(now_s() - start > 0.025 && now_s() - start < 5);
    for (int i = 0; i < 20; ++i) {
        party.recv(buffer, 64, contexts.at(0));
        party.barrier();
        if (i % 2 == 0) self.send(0, "s", 1);
        FAB_EQUAL(fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 10'000), 1);
        FAB_CHECK(entry.op_context == contexts.at(0));
    }
}

/// The descriptor of a queue becomes readable; fi_trywait says when sleeping is safe.
void descriptor(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cq_wait = FI_WAIT_FD});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(1);
    constexpr std::size_t kDescriptorSizes[] = {8, 5000, 100000};
    if (self.rank == 0) {
        for (int i = 0; i < 30; ++i) {
            party.barrier();
            party.send(buffer, kDescriptorSizes[i % 3], contexts.at(0));
            party.ep.wait_tx();
        }
        return;
    }
    int fd = -1;
    FAB_OK(fi_control(&party.ep.rx_cq->fid, FI_GETWAIT, &fd));
    FAB_CHECK(fd >= 0);
    for (int i = 0; i < 30; ++i) {
        party.recv(buffer, buffer.size(), contexts.at(0));
        party.barrier();
        fi_cq_tagged_entry entry;
        ssize_t rc = 0;
        while ((rc = fi_cq_read(party.ep.rx_cq, &entry, 1)) == -FI_EAGAIN) {
            fid* fids[] = {&party.ep.rx_cq->fid};
            const int safe = fi_trywait(party.ep.fabric, fids, 1);
            if (safe == -FI_EAGAIN) continue;
            FAB_OK(safe);
            pollfd entry_of_poll{.fd = fd, .events = POLLIN, .revents = 0};
            FAB_EQUAL(poll(&entry_of_poll, 1, 10'000), 1);
        }
        FAB_EQUAL(rc, 1);
        FAB_EQUAL(entry.len, kDescriptorSizes[i % 3]);
    }
}

/// fi_cq_signal wakes a thread that sleeps in fi_cq_sread.
void signal_wakes(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cq_wait = FI_WAIT_UNSPEC, .threading = FI_THREAD_SAFE});
    std::thread waker([&] { fi_cq_signal(party.ep.rx_cq); });
    fi_cq_tagged_entry entry;
    const double start = now_s();
    const auto rc = fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 8000);
    if (settings.provider == "rvt") FAB_EQUAL(rc, -FI_EAGAIN);
    FAB_CHECK(rc < 0 && now_s() - start < 4);
    waker.join();
}

/// One queue for both directions, as most applications bind it.
void one_for_both(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    fi_info* info = dup_without_port(*party.ep.info);
    fi_cq_attr attr{};
    attr.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;
    FAB_OK(fi_cq_open(party.ep.domain, &attr, &cq, nullptr));
    FAB_OK(fi_endpoint(party.ep.domain, info, &ep, nullptr));
    FAB_OK(fi_ep_bind(ep, &party.ep.av->fid, 0));
    FAB_OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    FAB_OK(fi_enable(ep));
    std::vector<char> name(256);
    std::size_t length = name.size();
    FAB_OK(fi_getname(&ep->fid, name.data(), &length));
    name.resize(length);
    const fi_addr_t itself = party.ep.insert(name);
    Contexts contexts(2);
    Buffer buffer(party.ep, 128);
    FAB_OK(fi_trecv(ep, buffer.as(), 64, buffer.desc(), FI_ADDR_UNSPEC, 1, 0, contexts.at(0)));
    party.ep.post([&] {
        fi_cq_read(cq, nullptr, 0);
        return fi_tsend(ep, buffer.as() + 64, 8, buffer.desc(), itself, 1, contexts.at(1));
    });
    unsigned seen = 0;
    const double deadline = now_s() + kOpLimitS;
    while (seen != 3) {
        fi_cq_tagged_entry entry;
        const ssize_t rc = fi_cq_read(cq, &entry, 1);
        if (rc == 1) seen |= 1U << contexts.index_of(entry.op_context);
        if (rc != 1) FAB_EQUAL(rc, -FI_EAGAIN);
        FAB_CHECK(now_s() < deadline);
    }
    FAB_EQUAL(fi_close(&ep->fid), 0);
    FAB_EQUAL(fi_close(&cq->fid), 0);
    fi_freeinfo(info);
}

/// A queue of one entry: nothing is lost, senders are held back.
void size_one(Rank& self) {
    constexpr std::size_t kCount = 200;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS, .cq_size = 1});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    for (std::size_t i = 0; i < kCount; ++i) {
        if (self.rank == 0) {
            party.tsend(buffer, 8, i, contexts.at(0));
            party.ep.wait_tx();
        } else {
            party.trecv(buffer, 64, i, 0, contexts.at(0));
            FAB_EQUAL(party.ep.wait_rx().tag, i);
        }
    }
}

/// Posts sends 0, 1, ... of `size` bytes, whose completions nobody reads, until the next one is
/// refused for good. Returns: how many were taken.
std::size_t send_unread(const Party& party, const Buffer& buffer, std::size_t size,
                        Contexts& contexts, std::size_t count) {
    constexpr int kTries = 1000;
    std::size_t sent = 0;
    for (int refused = 0; sent < count && refused < kTries;) {
        const auto rc =
            static_cast<long>(fi_tsend(party.ep.ep, buffer.as() + sent * size, size, buffer.desc(),
                                       party.peer(), sent, contexts.at(sent)));
        if (rc != 0) FAB_EQUAL(rc, -FI_EAGAIN);
        refused = rc == 0 ? 0 : refused + 1;
        sent += rc == 0 ? 1 : 0;
        party.ep.progress();
    }
    return sent;
}

/// Reads `count` completions: one for each context.
void read_each_once(const Party& party, fid_cq* cq, const Contexts& contexts, std::size_t count) {
    std::vector<bool> seen(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t index = contexts.index_of(party.ep.wait(cq).context);
        FAB_CHECK(index < count && !seen[index]);
        seen[index] = true;
    }
    Completion none;
    FAB_CHECK(!party.ep.poll(cq, none));
}

/// More operations end than a queue of one entry holds, while nobody reads it: nothing is lost, and
/// who sends what ends at once is held back until somebody does. Larger messages are under way
/// until the receiver has them.
template <std::size_t kSize, std::size_t kCount>
void size_one_unread(Rank& self) {
    constexpr bool kEndsAtOnce = kSize <= 64;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS, .cq_size = 1});
    Buffer buffer(party.ep, kSize * kCount);
    Contexts contexts(kCount);
    greet(party, buffer, self.other());
    const auto receive = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            party.ep.post([&] {
                return fi_trecv(party.ep.ep, buffer.as() + i * kSize, kSize, buffer.desc(),
                                FI_ADDR_UNSPEC, i, 0, contexts.at(i));
            });
        }
    };
    if (self.rank == 0) {
        buffer.fill(7);
        party.barrier();
        const std::size_t sent = send_unread(party, buffer, kSize, contexts, kCount);
        FAB_CHECK(sent >= (kEndsAtOnce ? 1 : 4));
        if (settings.provider == "rvt" && kEndsAtOnce) FAB_CHECK(sent < kCount);
        party.trade(1, sent);
        party.barrier();
        read_each_once(party, party.ep.tx_cq, contexts, sent);
        for (std::size_t i = sent; i < kCount; ++i) {
            party.ep.post([&] {
                return fi_tsend(party.ep.ep, buffer.as() + i * kSize, kSize, buffer.desc(),
                                party.peer(), i, contexts.at(0));
            });
            party.ep.wait_tx();
        }
        return;
    }
    if (kEndsAtOnce) receive(0, kCount);
    party.barrier();
    const auto sent = party.trade(0, std::size_t{0});
    if (!kEndsAtOnce) receive(0, sent);
    party.barrier();
    if (!kEndsAtOnce) {
        read_each_once(party, party.ep.rx_cq, contexts, sent);
        receive(sent, kCount);
        for (std::size_t i = sent; i < kCount; ++i) party.ep.wait_rx();
    } else {
        read_each_once(party, party.ep.rx_cq, contexts, kCount);
    }
    buffer.expect(7, kSize * kCount);
}

/// Who polls an empty queue enters the kernel to let others run (sched_yield(2)), and a few times a
/// second to ask whether peers live; once traffic has ceased for a while, for nothing else. The
/// wire is watched meanwhile.
template <fi_ep_type kType>
void idle(Rank& self) {
    constexpr int kReads = 100'000;
    constexpr int kInARow = 1000;
    constexpr const char* kFewCalls = "idle reads make few system calls";
    Party party(self, {.caps = FI_MSG, .type = kType});
    Buffer buffer(party.ep, 128);
    Contexts contexts(2);
    party.recv(buffer, 64, contexts.at(0));
    party.barrier();
    party.ep.post([&] {
        return fi_send(party.ep.ep, buffer.as() + 64, 8, buffer.desc(), party.peer(),
                       contexts.at(1));
    });
    party.ep.wait_rx();
    party.ep.wait_tx();
    party.barrier();
    const CallWatch watch;
    const auto first_call_of_read = [&] {
        fi_cq_tagged_entry entry;
        const long call = watch.first_call_of([&] { fi_cq_read(party.ep.rx_cq, &entry, 1); });
        return call == SYS_sched_yield ? CallWatch::kNone : call;
    };
    const double deadline = now_s() + kOpLimitS;
    for (int quiet = 0; quiet < kInARow;) {
        const long call = first_call_of_read();
        quiet = call == CallWatch::kNone ? quiet + 1 : 0;
        if (now_s() < deadline) continue;
        skip_elsewhere(kFewCalls);
        FAB_FAIL("system call %ld again and again in idle reads", call);
    }
    const double start = now_s();
    int calls = 0;
    for (int i = 0; i < kReads; ++i) calls += first_call_of_read() == CallWatch::kNone ? 0 : 1;
    if (calls > 2 + 10 * (now_s() - start)) {
        skip_elsewhere(kFewCalls);
        FAB_FAIL("%d system calls in %d idle reads", calls, kReads);
    }
}

constexpr Case kCqTable[] = {
    {"cq_format_context", format<FI_CQ_FORMAT_CONTEXT>},
    {"cq_format_msg", format<FI_CQ_FORMAT_MSG>},
    {"cq_format_data", format<FI_CQ_FORMAT_DATA>},
    {"cq_format_tagged", format<FI_CQ_FORMAT_TAGGED>},
    {"cq_batches", batches},
    {"cq_error_in_its_place", error_in_its_place},
    {"cq_sread_unspec", sread<FI_WAIT_UNSPEC>},
    {"cq_sread_fd", sread<FI_WAIT_FD>},
    {"cq_sread_mutex_cond", sread<FI_WAIT_MUTEX_COND>},
    {"cq_sread_yield", sread<FI_WAIT_YIELD>},
    {"cq_descriptor", descriptor},
    {"cq_signal_wakes", signal_wakes},
    {"cq_one_for_both", one_for_both},
    {"cq_size_one", size_one},
    {"cq_size_one_unread", size_one_unread<8, 200>},
    {"cq_size_one_unread_large", size_one_unread<100'000, 40>},
    {"cq_idle_rdm", idle<FI_EP_RDM>},
    {"cq_idle_msg", idle<FI_EP_MSG>},
    {"cq_idle_dgram", idle<FI_EP_DGRAM>},
};

}  // namespace

const std::span<const Case> kCqCases = kCqTable;

}  // namespace fab
