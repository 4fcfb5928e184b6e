// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Counters: fi_cntr(3).
#include <cstring>

#include "functional/case.h"

namespace fab {
namespace {

/// Sends and receives count, injected sends too, whether or not they write a completion.
void messages(Rank& self) {
    constexpr std::uint64_t kCount = 100;
    Party party(self, {.caps = FI_MSG,
                       .tx_cq_flags = FI_TRANSMIT | FI_SELECTIVE_COMPLETION,
                       .rx_cq_flags = FI_RECV | FI_SELECTIVE_COMPLETION,
                       .cntr_flags = FI_SEND | FI_RECV});
    Buffer buffer(party.ep, 6400);
    Contexts contexts(2 * kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) {
        party.ep.post([&] {
            return fi_recv(party.ep.ep, buffer.as() + 64 * i, 64, buffer.desc(), FI_ADDR_UNSPEC,
                           contexts.at(i));
        });
    }
    party.barrier();
    const bool injects = party.ep.info->tx_attr->inject_size >= 8;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        if (injects && i % 2 == 1) {
            party.ep.post([&] { return fi_inject(party.ep.ep, "12345678", 8, party.peer()); });
        } else {
            party.send(buffer, 8, contexts.at(kCount + i));
        }
    }
    party.ep.wait_cntr(party.ep.recv_cntr, kCount);
    party.ep.wait_cntr(party.ep.send_cntr, kCount);
    FAB_EQUAL(fi_cntr_read(party.ep.recv_cntr), kCount);
    FAB_EQUAL(fi_cntr_read(party.ep.send_cntr), kCount);
    FAB_EQUAL(fi_cntr_readerr(party.ep.recv_cntr), 0);
}

/// Writes and reads count at the initiator.
void rma(Rank& self) {
    Party party(self, {.caps = FI_RMA, .cntr_flags = FI_READ | FI_WRITE});
    Buffer local(party.ep, 100000);
    Buffer target(party.ep, 100000);
    Contexts contexts(1);
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    std::uint64_t count = 0;
    for (const std::size_t size : {8UL, 5000UL, 100000UL}) {
        ++count;
        party.ep.post([&] {
            return fi_write(party.ep.ep, local.as(), size, local.desc(), party.peer(), remote.base,
                            remote.key, contexts.at(0));
        });
        party.ep.wait_cntr(party.ep.write_cntr, count);
        party.ep.post([&] {
            return fi_read(party.ep.ep, local.as(), size, local.desc(), party.peer(), remote.base,
                           remote.key, contexts.at(0));
        });
        party.ep.wait_cntr(party.ep.read_cntr, count);
        party.ep.wait_tx();
        party.ep.wait_tx();
    }
    FAB_EQUAL(fi_cntr_read(party.ep.write_cntr), count);
    FAB_EQUAL(fi_cntr_read(party.ep.read_cntr), count);
    party.barrier();
}

/// An injected write, too, counts when it has been done: MPI and SHMEM libraries wait for counters
/// alone.
void injected_writes(Rank& self) {
    constexpr std::uint32_t kCount = 2000;
    Party party(self, {.caps = FI_RMA | FI_TAGGED, .cntr_flags = FI_WRITE});
    if (party.ep.info->tx_attr->inject_size < 8) skip("8 bytes cannot be injected");
    Buffer local(party.ep, 64);
    Buffer target(party.ep, 64);
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    greet(party, local, self.other());
    party.barrier();
    for (std::uint32_t i = 1; i <= kCount; ++i) {
        const std::uint64_t value = i;
        if (self.rank == 0) {
            party.ep.post([&] {
                return fi_inject_write(party.ep.ep, &value, sizeof value, party.peer(), remote.base,
                                       remote.key);
            });
            party.ep.wait_cntr(party.ep.write_cntr, i);
            self.page->flags[0].set(i);
            while (self.page->flags[1].get() != i) party.ep.progress();
        } else {
            for (unsigned turn = 0; self.page->flags[0].get() != i; ++turn) {
                if (turn % 500 == 0) party.ep.progress();  // often enough, and rarely in between
            }
            if (std::memcmp(target.as(), &value, sizeof value) != 0) {
                skip_elsewhere("an injected write is done when it counts");
                FAB_FAIL("the injected write %u counts before it is done", i);
            }
            self.page->flags[1].set(i);
        }
    }
    party.barrier();
}

/// What the target refuses counts as an error and as nothing else.
void refused_writes(Rank& self) {
    constexpr std::uint64_t kGood = 5;
    constexpr std::uint64_t kBad = 3;
    Party party(self, {.caps = FI_RMA | FI_TAGGED,
                       .tx_cq_flags = FI_TRANSMIT | FI_SELECTIVE_COMPLETION,
                       .cntr_flags = FI_WRITE});
    if (party.ep.info->tx_attr->inject_size < 8) skip("8 bytes cannot be injected");
    Buffer local(party.ep, 4096);
    Buffer target(party.ep, 4096);
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    const auto inject = [&](std::uint64_t address) {
        const iovec from{local.as(), 8};
        const fi_rma_iov to{address, 8, remote.key};
        const fi_msg_rma message{&from, nullptr, 1, party.peer(), &to, 1, nullptr, 0};
        party.ep.post([&] { return fi_writemsg(party.ep.ep, &message, FI_INJECT); });
    };
    if (self.rank == 0) {
        inject(remote.base);
        party.ep.wait_cntr(party.ep.write_cntr, 1);  // connected: small ones need no record
        for (std::uint64_t i = 1; i < kGood; ++i) inject(remote.base);
        for (std::uint64_t i = 0; i < kBad; ++i) inject(remote.base + 4092);
        for (std::uint64_t i = 0; i < kBad; ++i) {
            FAB_CHECK(party.ep.wait_any(party.ep.tx_cq).err != 0);
        }
        party.ep.wait_cntr(party.ep.write_cntr, kGood);
        FAB_EQUAL(fi_cntr_readerr(party.ep.write_cntr), kBad);
        FAB_EQUAL(fi_cntr_read(party.ep.write_cntr), kGood);
    }
    party.barrier();
}

/// With FI_RMA_EVENT the target counts what is done to it.
void remote(Rank& self) {
    constexpr std::uint64_t kCount = 20;
    Party party(self,
                {.caps = FI_RMA | FI_RMA_EVENT, .cntr_flags = FI_REMOTE_READ | FI_REMOTE_WRITE});
    Buffer local(party.ep, 100000);
    Buffer target(party.ep, 100000);
    Contexts contexts(1);
    const RemoteRegion theirs = party.trade(self.other(), target.remote());
    for (std::uint64_t i = 0; i < kCount; ++i) {
        const std::size_t size = i % 3 == 0 ? 8 : i % 3 == 1 ? 4000 : 100000;
        party.ep.post([&] {
            return fi_write(party.ep.ep, local.as(), size, local.desc(), party.peer(), theirs.base,
                            theirs.key, contexts.at(0));
        });
        party.ep.wait_tx();
        party.ep.post([&] {
            return fi_read(party.ep.ep, local.as(), size, local.desc(), party.peer(), theirs.base,
                           theirs.key, contexts.at(0));
        });
        party.ep.wait_tx();
    }
    party.ep.wait_cntr(party.ep.remote_write_cntr, kCount);
    party.ep.wait_cntr(party.ep.remote_read_cntr, kCount);
    FAB_EQUAL(fi_cntr_read(party.ep.remote_write_cntr), kCount);
    party.barrier();
}

/// fi_cntr_wait returns when the value is reached, and with -FI_ETIMEDOUT when it is not.
void waits(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cntr_flags = FI_RECV, .cntr_wait = FI_WAIT_UNSPEC});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    if (self.rank == 0) {
        party.barrier();
        party.send(buffer, 8, contexts.at(0));
        party.ep.wait_tx();
        return;
    }
    party.recv(buffer, 64, contexts.at(0));
    const double start = now_s();
    FAB_EQUAL(fi_cntr_wait(party.ep.recv_cntr, 1, 50), -FI_ETIMEDOUT);
    FAB_CHECK(now_s() - start > 0.045 && now_s() - start < 5);
    party.barrier();
    FAB_EQUAL(fi_cntr_wait(party.ep.recv_cntr, 1, 10'000), 0);
    FAB_EQUAL(fi_cntr_wait(party.ep.recv_cntr, 1, 0), 0);
}

/// An operation that fails counts as an error, and its end wakes who waits.
void errors(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cntr_flags = FI_RECV, .cntr_wait = FI_WAIT_UNSPEC});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    party.recv(buffer, 4, contexts.at(0));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(0)));
    FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ECANCELED);
    FAB_EQUAL(fi_cntr_readerr(party.ep.recv_cntr), 1);
    FAB_EQUAL(fi_cntr_read(party.ep.recv_cntr), 0);
    party.barrier();
    if (self.rank == 0) {
        self.receive(1, buffer.as(), 1);  // rank 1 is about to wait
        party.send(buffer, 8, contexts.at(0));
        party.ep.wait_any(party.ep.tx_cq);
        return;
    }
    party.recv(buffer, 4, contexts.at(0));  // too short for what comes
    self.send(0, "w", 1);
    FAB_EQUAL(fi_cntr_wait(party.ep.recv_cntr, 1, 8000), -FI_EAVAIL);
    FAB_EQUAL(fi_cntr_readerr(party.ep.recv_cntr), 2);
}

/// add, set, adderr, seterr.
void arithmetic(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cntr_flags = FI_SEND});
    fid_cntr* counter = party.ep.send_cntr;
    FAB_OK(fi_cntr_add(counter, 5));
    FAB_OK(fi_cntr_add(counter, 6));
    FAB_EQUAL(fi_cntr_read(counter), 11);
    FAB_OK(fi_cntr_set(counter, 3));
    FAB_EQUAL(fi_cntr_read(counter), 3);
    FAB_OK(fi_cntr_adderr(counter, 2));
    FAB_EQUAL(fi_cntr_readerr(counter), 2);
    FAB_OK(fi_cntr_seterr(counter, 0));
    FAB_EQUAL(fi_cntr_readerr(counter), 0);
}

constexpr Case kCntrTable[] = {
    {"cntr_messages", messages},
    {"cntr_rma", rma},
    {.name = "cntr_injected_writes", .run = injected_writes, .on_one_host = true},
    {"cntr_refused_writes", refused_writes},
    {"cntr_remote", remote},
    {"cntr_waits", waits},
    {"cntr_errors", errors},
    {"cntr_arithmetic", arithmetic},
};

}  // namespace

const std::span<const Case> kCntrCases = kCntrTable;

}  // namespace fab
