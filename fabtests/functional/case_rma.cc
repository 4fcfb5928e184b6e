// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Remote memory access: fi_rma(3).
#include <algorithm>
#include <cstring>
#include <iterator>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kLargest = (4 << 20) + 3;

/// A party whose ranks may read and write `target` of each other.
struct Memory {
    Memory(Rank& self, const EpSpec& spec, std::size_t length)
        : party(self, spec),
          local(party.ep, length),
          target(party.ep, length),
          remote(party.trade(self.other(), target.remote())) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { party.barrier(); }  // nobody deregisters what another still uses

    void write(std::size_t length, std::size_t offset, void* context) const {
        party.ep.post([&] {
            return fi_write(party.ep.ep, local.as(), length, local.desc(), party.peer(),
                            remote.base + offset, remote.key, context);
        });
    }
    void read(std::size_t length, std::size_t offset, void* context) const {
        party.ep.post([&] {
            return fi_read(party.ep.ep, local.as(), length, local.desc(), party.peer(),
                           remote.base + offset, remote.key, context);
        });
    }

    Party party;
    Buffer local;
    Buffer target;
    RemoteRegion remote;
};

/// Completed writes are there; the bytes around them are untouched.
void write_sizes(Rank& self) {
    Memory memory(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE}, kLargest + 16);
    Contexts contexts(1);
    for (const std::size_t size : kSizes) {
        memory.local.fill(static_cast<unsigned>(size));
        std::memset(memory.target.as(), 0x11, memory.target.size());
        memory.party.barrier();
        if (self.rank == 0) {
            memory.write(size, 3, contexts.at(0));
            const Completion done = memory.party.ep.wait_tx();
            FAB_CHECK((done.flags & (FI_RMA | FI_WRITE)) == (FI_RMA | FI_WRITE));
        }
        memory.party.barrier();
        if (self.rank == 1) {
            FAB_EQUAL(std::memcmp(memory.target.as() + 3, memory.local.as(), size), 0);
            FAB_EQUAL(memory.target.as()[2], 0x11);
            FAB_EQUAL(memory.target.as()[3 + size], 0x11);
        }
    }
}

void read_sizes(Rank& self) {
    Memory memory(self, {.caps = FI_RMA}, kLargest + 16);
    Contexts contexts(1);
    memory.target.fill(static_cast<unsigned>(self.rank));
    memory.party.barrier();
    if (self.rank != 0) return;
    for (const std::size_t size : kSizes) {
        std::memset(memory.local.as(), 0x11, memory.local.size());
        memory.read(size, 0, contexts.at(0));
        const Completion done = memory.party.ep.wait_tx();
        FAB_CHECK((done.flags & (FI_RMA | FI_READ)) == (FI_RMA | FI_READ));
        memory.local.expect(1, size);
        FAB_EQUAL(memory.local.as()[size], 0x11);
    }
}

/// A provider may try several ways of copying before it settles on one: each brings every byte.
void repeated(Rank& self) {
    constexpr unsigned kTimes = 64;
    constexpr std::size_t kSize = 300001;
    Memory memory(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE}, kSize + 16);
    Contexts contexts(1);
    for (unsigned i = 0; i < kTimes; ++i) {
        memory.local.fill(i);
        std::memset(memory.target.as(), 0x11, memory.target.size());
        memory.party.barrier();
        if (self.rank == 0) {
            memory.write(kSize, 5, contexts.at(0));
            memory.party.ep.wait_tx();
            std::memset(memory.local.as(), 0x22, memory.local.size());
            memory.read(kSize, 5, contexts.at(0));
            memory.party.ep.wait_tx();
            memory.local.expect(i, kSize);
        }
        memory.party.barrier();
        if (self.rank == 1) {
            FAB_EQUAL(std::memcmp(memory.target.as() + 5, memory.local.as(), kSize), 0);
            FAB_EQUAL(memory.target.as()[4], 0x11);
            FAB_EQUAL(memory.target.as()[5 + kSize], 0x11);
        }
    }
}

/// Many operations in flight, both ways at once: writes to different places, then reads of them.
void both_ways(Rank& self) {
    constexpr std::size_t kCount = 100;
    constexpr std::size_t kMost = 70000;
    Memory memory(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE}, kCount * kMost);
    Contexts contexts(kCount);
    const Party& party = memory.party;
    for (const std::size_t size : {5000UL, 65536UL, kMost}) {
        memory.local.fill(static_cast<unsigned>(self.rank) + static_cast<unsigned>(size));
        for (std::size_t i = 0; i < kCount; ++i) {
            party.ep.post([&] {
                return fi_write(party.ep.ep, memory.local.as() + i * size, size,
                                memory.local.desc(), party.peer(), memory.remote.base + i * size,
                                memory.remote.key, contexts.at(i));
            });
        }
        for (std::size_t i = 0; i < kCount; ++i) party.ep.wait_tx();
        memory.party.barrier();
        memory.target.expect(static_cast<unsigned>(self.other()) + static_cast<unsigned>(size),
                             kCount * size);
        std::memset(memory.local.as(), 0, kCount * size);
        for (std::size_t i = 0; i < kCount; ++i) {
            party.ep.post([&] {
                return fi_read(party.ep.ep, memory.local.as() + i * size, size, memory.local.desc(),
                               party.peer(), memory.remote.base + i * size, memory.remote.key,
                               contexts.at(i));
            });
        }
        for (std::size_t i = 0; i < kCount; ++i) party.ep.wait_tx();
        memory.local.expect(static_cast<unsigned>(self.rank) + static_cast<unsigned>(size),
                            kCount * size);
        memory.party.barrier();
    }
}

/// fi_writedata and fi_inject_writedata complete at the target, with their data, and only they.
void write_data(Rank& self) {
    Memory memory(self, {.caps = FI_RMA | FI_MSG, .cq_data_size = 4}, 100000);
    Party& party = memory.party;
    Contexts contexts(2);
    // Some providers consume a posted receive for it.
    const bool takes_receive = (party.ep.info->mode & FI_RX_CQ_DATA) != 0;
    for (const std::size_t size : {0UL, 8UL, 5000UL, 100000UL}) {
        memory.local.fill(static_cast<unsigned>(size));
        if (self.rank == 0) {
            memory.write(size, 0, contexts.at(0));
            party.ep.wait_tx();
            party.ep.post([&] {
                return fi_writedata(party.ep.ep, memory.local.as(), size, memory.local.desc(),
                                    0x7000 + size, party.peer(), memory.remote.base,
                                    memory.remote.key, contexts.at(1));
            });
            FAB_CHECK(party.ep.wait_tx().context == contexts.at(1));
        } else {
            if (takes_receive) party.recv(memory.local, 0, contexts.at(0));
            const Completion got = party.ep.wait_rx();
            FAB_CHECK((got.flags & FI_REMOTE_CQ_DATA) != 0);
            FAB_CHECK((got.flags & FI_REMOTE_WRITE) != 0);
            FAB_EQUAL(got.data, 0x7000 + size);
            memory.target.expect(static_cast<unsigned>(size), size);
        }
        party.barrier();
    }
    if (party.ep.info->tx_attr->inject_size < 8) return;
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_inject_writedata(party.ep.ep, memory.local.as(), 8, 0x1234, party.peer(),
                                       memory.remote.base, memory.remote.key);
        });
    } else {
        const Completion got = party.ep.wait_rx();
        FAB_EQUAL(got.data, 0x1234);
    }
}

/// The target polls until its bytes at `offset` are those at the begin of its local buffer: of an
/// injected write nothing else tells.
void await_bytes(Memory& memory, std::size_t offset, std::size_t size) {
    const double deadline = now_s() + kOpLimitS;
    while (std::memcmp(memory.target.as() + offset, memory.local.as(), size) != 0) {
        memory.party.ep.progress();
        if (now_s() > deadline) FAB_FAIL("an injected write of %zu bytes is lost", size);
    }
}

void inject_write(Rank& self) {
    Memory memory(self, {.caps = FI_RMA | FI_MSG}, 16384);
    Party& party = memory.party;
    const std::size_t limit = std::min<std::size_t>(party.ep.info->tx_attr->inject_size, 16384);
    Contexts contexts(1);
    for (std::size_t size = 1; size <= limit; size *= 2) {
        if (self.rank == 0) {
            memory.local.fill(static_cast<unsigned>(size));
            party.ep.post([&] {
                return fi_inject_write(party.ep.ep, memory.local.as(), size, party.peer(),
                                       memory.remote.base, memory.remote.key);
            });
            std::memset(memory.local.as(), 0xee, size);
            // A read of the same place is not required to come after it; wait for the bytes.
            party.barrier();
        } else {
            memory.local.fill(static_cast<unsigned>(size));
            await_bytes(memory, 0, size);
            party.barrier();
        }
    }
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.tx_cq, none));
}

/// Pieces on both sides: local iov and remote rma_iov cut at different places.
void iov(Rank& self) {
    Memory memory(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE}, 100000);
    Party& party = memory.party;
    Contexts contexts(1);
    const std::size_t locals = std::min<std::size_t>(party.ep.info->tx_attr->iov_limit, 3);
    const std::size_t remotes = std::min<std::size_t>(party.ep.info->tx_attr->rma_iov_limit, 3);
    if (locals < 2) skip("iov_limit is below 2");
    for (const std::size_t size : {9UL, 900UL, 9000UL, 90000UL}) {
        memory.local.fill(static_cast<unsigned>(size));
        std::memset(memory.target.as(), 0, memory.target.size());
        party.barrier();
        if (self.rank == 0) {
            iovec pieces[3] = {};
            fi_rma_iov places[3] = {};
            void* descs[3] = {memory.local.desc(), memory.local.desc(), memory.local.desc()};
            for (std::size_t i = 0, at = 0; i < locals; ++i) {
                const std::size_t length = i + 1 == locals ? size - at : size / 4 + i;
                pieces[i] = {memory.local.as() + at, length};
                at += length;
            }
            for (std::size_t i = 0, at = 0; i < remotes; ++i) {
                const std::size_t length = i + 1 == remotes ? size - at : size / 3 - i;
                places[i] = {memory.remote.base + at, length, memory.remote.key};
                at += length;
            }
            fi_msg_rma msg{};
            msg.msg_iov = pieces;
            msg.desc = descs;
            msg.iov_count = locals;
            msg.addr = party.peer();
            msg.rma_iov = places;
            msg.rma_iov_count = remotes;
            msg.context = contexts.at(0);
            party.ep.post([&] {
                return fi_writemsg(party.ep.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
            });
            party.ep.wait_tx();
            party.barrier();
            std::memset(memory.local.as(), 0, size);
            party.ep.post([&] { return fi_readmsg(party.ep.ep, &msg, FI_COMPLETION); });
            party.ep.wait_tx();
            memory.local.expect(static_cast<unsigned>(size), size);
            std::memset(memory.local.as(), 0, size);
            party.ep.post([&] {
                return fi_readv(party.ep.ep, pieces, descs, locals, party.peer(),
                                memory.remote.base, memory.remote.key, contexts.at(0));
            });
            party.ep.wait_tx();
            memory.local.expect(static_cast<unsigned>(size), size);
        } else {
            party.barrier();
            memory.target.expect(static_cast<unsigned>(size), size);
        }
        party.barrier();
    }
}

/// Every way to miss a region is an error at the initiator, and nothing is written.
void refused(Rank& self) {
    Memory memory(self, {.caps = FI_RMA}, 4096);
    Party& party = memory.party;
    Contexts contexts(1);
    party.barrier();
    const auto expect_error = [&](const char* what, std::uint64_t at, std::uint64_t key,
                                  std::size_t length) {
        for (const bool reading : {false, true}) {
            long rc = 0;
            do {
                rc = static_cast<long>(
                    reading ? fi_read(party.ep.ep, memory.local.as(), length, memory.local.desc(),
                                      party.peer(), at, key, contexts.at(0))
                            : fi_write(party.ep.ep, memory.local.as(), length, memory.local.desc(),
                                       party.peer(), at, key, contexts.at(0)));
                party.ep.progress();
            } while (rc == -FI_EAGAIN);
            if (rc < 0) continue;  // refused at once
            const Completion done = party.ep.wait_any(party.ep.tx_cq);
            if (done.err == 0) FAB_FAIL("%s succeeds: %s", reading ? "a read" : "a write", what);
        }
    };
    if (self.rank == 0) {
        const std::uint64_t base = memory.remote.base;
        const std::uint64_t key = memory.remote.key;
        expect_error("past the end", base + 4096 - 8, key, 64);
        expect_error("beyond the region", base + (1UL << 40), key, 8);
        expect_error("wraps around the address space", base + (~0ULL - base - 3), key, 8);
        expect_error("a key that nobody gave out", base, key ^ 0x5a5a5a5aULL, 8);
        expect_error("all of it and one byte more", base, key, 4097);
        memory.write(4096, 0, contexts.at(0));
        FAB_EQUAL(party.ep.wait_any(party.ep.tx_cq).err, 0);
    }
    party.barrier();
    memory.target.close_region();
    party.barrier();
    if (self.rank == 0) {
        expect_error("the region is closed", memory.remote.base, memory.remote.key, 8);
    }
}

/// An injected write has no completion when it succeeds, and one when it is refused.
void inject_refused(Rank& self) {
    Memory memory(self, {.caps = FI_RMA | FI_MSG}, 4096);
    Party& party = memory.party;
    if (party.ep.info->tx_attr->inject_size < 8) skip("inject_size is below 8");
    Contexts contexts(1);
    const auto inject = [&](std::uint64_t at) {
        long rc = 0;
        do {
            rc = static_cast<long>(fi_inject_write(party.ep.ep, memory.local.as(), 8, party.peer(),
                                                   at, memory.remote.key));
            party.ep.progress();
        } while (rc == -FI_EAGAIN);
        return rc;
    };
    std::memset(memory.target.as(), 0, 4096);
    party.barrier();
    if (self.rank == 0) {
        memory.local.fill(1);
        memory.write(8, 0, contexts.at(0));
        party.ep.wait_tx();
        if (inject(memory.remote.base + 4096 - 4) == 0) {
            const Completion done = party.ep.wait_any(party.ep.tx_cq);
            FAB_CHECK(done.err != 0);
            FAB_CHECK((done.flags & (FI_RMA | FI_WRITE)) == (FI_RMA | FI_WRITE));
        }
        FAB_EQUAL(inject(memory.remote.base + 4096 - 8), 0);
    } else {
        memory.local.fill(1);
        await_bytes(memory, 4096 - 8, 8);
    }
    party.barrier();
    memory.target.close_region();
    party.barrier();
    if (self.rank == 0 && inject(memory.remote.base) == 0) {
        FAB_CHECK(party.ep.wait_any(party.ep.tx_cq).err != 0);
    }
    party.barrier();
    if (self.rank == 0) return;
    FAB_EQUAL(std::memcmp(memory.target.as(), memory.local.as(), 8), 0);
    FAB_EQUAL(memory.target.as()[8], 0);
    FAB_EQUAL(memory.target.as()[4096 - 9], 0);
}

/// A message among writes that never cease gets its turn.
void message_amid_writes(Rank& self) {
    constexpr std::size_t kSize = 256 << 10;
    constexpr unsigned kWindow = 4;
    constexpr unsigned kBefore = 64;  // so that the way of writing has been chosen
    Memory memory(self, {.caps = FI_RMA | FI_TAGGED}, kSize);
    const Party& party = memory.party;
    const Endpoint& ep = party.ep;
    const Buffer token(memory.party.ep, 8);
    Contexts contexts(kWindow + 2);
    party.trecv(token, 8, 1, 0, contexts.at(0));
    party.barrier();
    if (self.rank == 1) {
        ep.wait_rx();
        party.tsend(token, 8, 1, contexts.at(1));
        ep.wait_tx();
        return;
    }
    const double deadline = now_s() + kOpLimitS;
    unsigned under_way = 0;
    Completion done;
    for (unsigned count = 0; !ep.poll(ep.rx_cq, done); ++count) {
        if (now_s() > deadline) FAB_FAIL("%u writes have passed a message", count - kBefore);
        if (count == kBefore) {
            party.tsend(token, 8, 1, contexts.at(1));
            ++under_way;
        }
        memory.write(kSize, 0, contexts.at(2 + count % kWindow));
        ++under_way;
        while (under_way > kWindow) under_way -= ep.poll(ep.tx_cq, done) ? 1 : 0;
    }
    while (under_way-- != 0) ep.wait_tx();
}

/// Access rights of a region are kept.
void access_rights(Rank& self) {
    Party party(self, {.caps = FI_RMA});
    Buffer local(party.ep, 64);
    alignas(64) static char memory[64];
    Region read_only(party.ep, memory, sizeof memory, FI_REMOTE_READ);
    const RemoteRegion remote = party.trade(self.other(), read_only.remote());
    Contexts contexts(1);
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_read(party.ep.ep, local.as(), 8, local.desc(), party.peer(), remote.base,
                           remote.key, contexts.at(0));
        });
        FAB_EQUAL(party.ep.wait_any(party.ep.tx_cq).err, 0);
        std::memset(local.as(), 1, 64);
        const auto rc =
            static_cast<long>(fi_write(party.ep.ep, local.as(), 8, local.desc(), party.peer(),
                                       remote.base, remote.key, contexts.at(0)));
        if (rc == 0) FAB_CHECK(party.ep.wait_any(party.ep.tx_cq).err != 0);
    }
    party.barrier();
    FAB_EQUAL(memory[0], 0);
}

void to_itself(Rank& self) {
    Party party(self, {.caps = FI_RMA});
    Buffer local(party.ep, 100000);
    Buffer target(party.ep, 100000);
    Contexts contexts(1);
    const RemoteRegion mine = target.remote();
    for (const std::size_t size : {1UL, 8UL, 5000UL, 100000UL}) {
        local.fill(static_cast<unsigned>(size));
        party.ep.post([&] {
            return fi_write(party.ep.ep, local.as(), size, local.desc(), party.at(self.rank),
                            mine.base, mine.key, contexts.at(0));
        });
        party.ep.wait_tx();
        std::memset(local.as(), 0, size);
        party.ep.post([&] {
            return fi_read(party.ep.ep, local.as(), size, local.desc(), party.at(self.rank),
                           mine.base, mine.key, contexts.at(0));
        });
        party.ep.wait_tx();
        local.expect(static_cast<unsigned>(size), size);
    }
}

/// Memory that a descriptor backs, at an offset of the file that is not 0.
void mapped_memory(Rank& self) {
    constexpr std::size_t kSize = 1 << 20;
    const int fd = memfd_create("functional", MFD_CLOEXEC);
    FAB_CHECK(fd >= 0);
    FAB_EQUAL(ftruncate(fd, 2 * kSize), 0);
    void* at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, kSize);
    FAB_CHECK(at != MAP_FAILED);
    {
        Party party(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE});
        Buffer local(party.ep, kSize);
        Buffer target(party.ep, at, kSize);
        const RemoteRegion remote = party.trade(self.other(), target.remote());
        Contexts contexts(1);
        for (const std::size_t size : {8UL, 5000UL, kSize}) {
            local.fill(static_cast<unsigned>(size) + static_cast<unsigned>(self.rank));
            party.ep.post([&] {
                return fi_write(party.ep.ep, local.as(), size, local.desc(), party.peer(),
                                remote.base, remote.key, contexts.at(0));
            });
            party.ep.wait_tx();
            party.barrier();
            target.expect(static_cast<unsigned>(size) + static_cast<unsigned>(self.other()), size);
            party.barrier();
        }
        party.barrier();
    }
    munmap(at, kSize);
    close(fd);
}

/// Which rvt never does.
[[noreturn]] void need_progress() {
    skip_elsewhere("RMA needs no progress at the target");
    FAB_FAIL("RMA needs progress at the target");
}

/// Whether the operation completes in time.
bool completes(Party& party, fi_wait_obj wait) {
    constexpr int kLimitMs = 5000;
    if (wait != FI_WAIT_NONE) {
        fi_cq_tagged_entry entry{};
        return fi_cq_sread(party.ep.tx_cq, &entry, 1, nullptr, kLimitMs) == 1;
    }
    Completion done;
    for (const double until = now_s() + kLimitMs / 1e3; now_s() < until;) {
        if (!party.ep.poll(party.ep.tx_cq, done)) continue;
        FAB_EQUAL(done.err, 0);
        return true;
    }
    return false;
}

/// Waits for the completion of an access, asleep where the queue has something to sleep on; then
/// wakes up the target. Returns: whether that was not needed.
bool completes_without_target(Rank& self, Party& party, fi_wait_obj wait = FI_WAIT_NONE) {
    const bool completed = completes(party, wait);
    self.send(1, "t", 1);
    if (!completed) party.ep.wait_tx();
    return completed;
}

/// While both make progress, as they may have to for the first one.
void write_first(const Rank& self, Memory& memory, Contexts& contexts) {
    Party& party = memory.party;
    if (self.rank == 0) {
        memory.local.fill(1);
        memory.write(1 << 20, 0, contexts.at(0));
        party.ep.wait_tx();
        party.send(memory.local, 8, contexts.at(0));
        party.ep.wait_tx();
    } else {
        party.recv(memory.local, 8, contexts.at(0));
        party.ep.wait_rx();
    }
}

/// Without any call of the target, which has been written before: either it completes, or the
/// provider never said it would.
void target_asleep(Rank& self) {
    Memory memory(self, {.caps = FI_RMA | FI_MSG, .tx_op_flags = FI_DELIVERY_COMPLETE}, 1 << 20);
    Party& party = memory.party;
    Contexts contexts(1);
    write_first(self, memory, contexts);
    party.barrier();
    if (self.rank == 1) {
        char token = 0;
        self.receive(0, &token, 1);  // sleeps, no progress
        party.barrier();
        memory.target.expect(2, 1 << 20);
        return;
    }
    memory.local.fill(2);
    memory.write(1 << 20, 0, contexts.at(0));
    const bool completed = completes_without_target(self, party);
    party.barrier();
    if (!completed) need_progress();
}

/// The same of a target that was at work until just now, so that it was asked for its part. The
/// initiator polls, or sleeps where the queue has something to sleep on.
template <fi_wait_obj kWait>
void target_falls_asleep(Rank& self) {
    Memory memory(self,
                  {.caps = FI_RMA | FI_MSG, .tx_op_flags = FI_DELIVERY_COMPLETE, .cq_wait = kWait},
                  1 << 20);
    Party& party = memory.party;
    Contexts contexts(1);
    write_first(self, memory, contexts);
    bool completed = true;
    unsigned seed = 1;
    for (const std::size_t size : {8UL, 3000UL, 64UL << 10, 1UL << 20}) {
        ++seed;
        if (self.rank == 0) memory.local.fill(seed);
        party.barrier();  // polls
        if (self.rank == 0) {
            memory.write(size, 0, contexts.at(0));
            completed = completes_without_target(self, party, kWait) && completed;
        } else {
            char token = 0;
            self.receive(0, &token, 1);
        }
        party.barrier();
        if (self.rank == 1) memory.target.expect(seed, size);
    }
    if (!completed) need_progress();
}

/// The same of an injected write, which nothing completes, while the target waits for its bytes
/// without a call.
void inject_write_to_sleeper(Rank& self) {
    Memory memory(self, {.caps = FI_RMA | FI_MSG, .tx_op_flags = FI_DELIVERY_COMPLETE}, 1 << 20);
    Party& party = memory.party;
    Contexts contexts(1);
    write_first(self, memory, contexts);
    if (self.rank == 0) memory.local.fill(2);
    party.barrier();  // polls
    bool has_come = false;
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_inject_write(party.ep.ep, memory.local.as(), 8, party.peer(),
                                   memory.remote.base, memory.remote.key);
        });
        self.receive_polling(1, &has_come, sizeof has_come, [&] { party.ep.progress(); });
    } else {
        memory.local.fill(2);
        const double until = now_s() + 5;
        while (!has_come && now_s() < until) {
            has_come = std::memcmp(memory.target.as(), memory.local.as(), 8) == 0;
            relax();
        }
        self.send(0, &has_come, sizeof has_come);
    }
    party.barrier();
    if (!has_come) need_progress();
}

/// The target computes, for a minute with -f, and calls nothing: it is written and read meanwhile.
void target_computes(Rank& self) {
    constexpr std::size_t kLengths[] = {8, 3000, 64UL << 10, 1UL << 20};
    Memory memory(self, {.caps = FI_RMA | FI_MSG, .tx_op_flags = FI_DELIVERY_COMPLETE}, 1 << 20);
    Party& party = memory.party;
    Contexts contexts(1);
    write_first(self, memory, contexts);
    party.barrier();
    bool completed = true;
    if (self.rank == 0) {
        unsigned seed = 1;
        for (const double until = now_s() + (settings.is_long ? 60 : 1);
             completed && now_s() < until;) {
            const std::size_t size = kLengths[++seed % std::size(kLengths)];
            memory.local.fill(seed);
            memory.write(size, 0, contexts.at(0));
            completed = completes(party, FI_WAIT_NONE);
            if (!completed) break;
            std::memset(memory.local.as(), 0, size);
            memory.read(size, 0, contexts.at(0));
            completed = completes(party, FI_WAIT_NONE);
            if (completed) memory.local.expect(seed, size);
        }
        self.send(1, "t", 1);
        if (!completed) party.ep.wait_tx();
    } else {
        char token = 0;
        self.receive_polling(0, &token, 1, [] {});
    }
    party.barrier();
    if (!completed) need_progress();
}

constexpr Case kRmaTable[] = {
    {"rma_write_sizes", write_sizes},
    {"rma_read_sizes", read_sizes},
    {"rma_repeated", repeated},
    {"rma_both_ways", both_ways},
    {"rma_write_data", write_data},
    {"rma_inject_write", inject_write},
    {"rma_iov", iov},
    {"rma_refused", refused},
    {"rma_inject_refused", inject_refused},
    {"rma_message_amid_writes", message_amid_writes},
    {"rma_access_rights", access_rights},
    {"rma_to_itself", to_itself},
    {"rma_mapped_memory", mapped_memory},
    {"rma_target_asleep", target_asleep},
    {"rma_target_falls_asleep", target_falls_asleep<FI_WAIT_NONE>},
    {"rma_target_computes", target_computes, 2, 90},
    {"rma_inject_write_to_sleeper", inject_write_to_sleeper},
    {"rma_both_fall_asleep", target_falls_asleep<FI_WAIT_FD>},
};

}  // namespace

const std::span<const Case> kRmaCases = kRmaTable;

}  // namespace fab
