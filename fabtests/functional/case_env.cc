// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Poor environments: without a system call, under a limit, beside another user. Everything works as
// it does elsewhere, or ends with an error in bounded time.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "common/deprive.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr double kBoundS = 15;  ///< An operation has ended by then, well or not.
constexpr std::size_t kLargest = (4 << 20) + 3;
constexpr std::size_t kTransferSizes[] = {0, 8, 64, 200, 4096, 65'537, 1 << 20, kLargest};

constexpr int kBoth = -1;

// ---- what must work

/// One message of each size both ways, then writes, reads and an atomic.
void exchange(const Party& party, const Buffer& out, const Buffer& in) {
    const Endpoint& ep = party.ep;
    Contexts contexts(2);
    out.fill(static_cast<unsigned>(party.self.rank));
    const auto other = static_cast<unsigned>(party.self.other());
    for (const std::size_t size : kTransferSizes) {
        party.trecv(in, size, size, 0, contexts.at(0));
        party.tsend(out, size, size, contexts.at(1));
        FAB_EQUAL(ep.wait_rx().len, size);
        ep.wait_tx();
        in.expect(other, size);
    }
    const RemoteRegion remote = party.trade(party.self.other(), in.remote());
    party.barrier();
    for (const std::size_t size : kTransferSizes) {
        if (size == 0) continue;
        ep.post([&] {
            return fi_write(ep.ep, out.as(), size, out.desc(), party.peer(), remote.base,
                            remote.key, contexts.at(0));
        });
        ep.wait_tx();
    }
    party.barrier();
    in.expect(other, kLargest);
    for (const std::size_t size : kTransferSizes) {
        if (size == 0) continue;
        std::memset(out.as(), 0, size);
        ep.post([&] {
            return fi_read(ep.ep, out.as(), size, out.desc(), party.peer(), remote.base, remote.key,
                           contexts.at(0));
        });
        ep.wait_tx();
        out.expect(static_cast<unsigned>(party.self.rank), size);
    }
    party.barrier();
    std::memset(in.as(), 0, 64);
    party.barrier();
    ep.post([&] {
        return fi_fetch_atomic(ep.ep, out.as(), 1, out.desc(), out.as() + 64, out.desc(),
                               party.peer(), remote.base, remote.key, FI_UINT64, FI_SUM,
                               contexts.at(0));
    });
    ep.wait_tx();
    party.barrier();
    FAB_CHECK(*in.as<std::uint64_t>() != 0);
}

void everything_works(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_RMA | FI_ATOMIC});
    const Buffer out(party.ep, kLargest);
    const Buffer in(party.ep, kLargest);
    exchange(party, out, in);
    party.barrier();
}

/// As many large messages both ways as it takes to try each way to move them.
void large_messages(Rank& self) {
    constexpr std::size_t kSize = 1 << 20;
    constexpr unsigned kCount = 60;
    Party party(self, {.caps = FI_TAGGED});
    const Buffer out(party.ep, kSize);
    const Buffer in(party.ep, kSize);
    Contexts contexts(2);
    for (unsigned i = 0; i < kCount; ++i) {
        out.fill(i);
        party.trecv(in, kSize, i, 0, contexts.at(0));
        party.tsend(out, kSize, i, contexts.at(1));
        party.ep.wait_rx();
        party.ep.wait_tx();
        in.expect(i, kSize);
    }
    party.barrier();
}

/// Both sides sleep before each message.
void sleepers_wake(Rank& self) {
    constexpr int kTurns = 300;
    Party party(self, {.caps = FI_TAGGED, .cq_wait = FI_WAIT_UNSPEC});
    Buffer buffer(party.ep, 64);
    Contexts contexts(2);
    fi_cq_tagged_entry entry{};
    for (int turn = 0; turn < kTurns; ++turn) {
        party.trecv(buffer, 64, 1, 0, contexts.at(0));
        if (self.rank == 0) party.tsend(buffer, 8, 1, contexts.at(1));
        FAB_EQUAL(fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 10'000), 1);
        if (self.rank == 1) party.tsend(buffer, 8, 1, contexts.at(1));
        FAB_EQUAL(fi_cq_sread(party.ep.tx_cq, &entry, 1, nullptr, 10'000), 1);
    }
    party.barrier();
}

// ---- what may fail

/// Opens an endpoint. Returns: 0, or what the first call that failed gave.
int try_to_open(const EpSpec& spec) {
    fi_info* info = find_info(spec);
    if (info == nullptr) skip("fi_getinfo offers nothing");
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_av* av = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;
    fi_av_attr av_attr{};
    fi_cq_attr cq_attr{};
    int rc = fi_fabric(info->fabric_attr, &fabric, nullptr);
    if (rc == 0) rc = fi_domain(fabric, info, &domain, nullptr);
    if (rc == 0) rc = fi_av_open(domain, &av_attr, &av, nullptr);
    if (rc == 0) rc = fi_cq_open(domain, &cq_attr, &cq, nullptr);
    if (rc == 0) rc = fi_endpoint(domain, info, &ep, nullptr);
    if (rc == 0) rc = fi_ep_bind(ep, &av->fid, 0);
    if (rc == 0) rc = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0) rc = fi_enable(ep);
    if (ep != nullptr) FAB_EQUAL(fi_close(&ep->fid), 0);
    if (cq != nullptr) FAB_EQUAL(fi_close(&cq->fid), 0);
    if (av != nullptr) FAB_EQUAL(fi_close(&av->fid), 0);
    if (domain != nullptr) FAB_EQUAL(fi_close(&domain->fid), 0);
    if (fabric != nullptr) FAB_EQUAL(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
    return rc;
}

/// Sends 8 bytes. Returns: 0, or the error that the operation ended with, in bounded time.
int send_bounded(const Endpoint& ep, fi_addr_t to, const Buffer& buffer, std::uint64_t tag) {
    Contexts contexts(1);
    const double deadline = now_s() + kBoundS;
    long rc = 0;
    do {
        rc = static_cast<long>(
            fi_tsend(ep.ep, buffer.as(), 8, buffer.desc(), to, tag, contexts.at(0)));
        ep.progress();
        if (now_s() > deadline) FAB_FAIL("a send is refused for %.0f s", kBoundS);
    } while (rc == -FI_EAGAIN);
    if (rc != 0) return static_cast<int>(-rc);
    Completion done;
    while (!ep.poll(ep.tx_cq, done)) {
        if (now_s() > deadline) FAB_FAIL("a send did not end within %.0f s", kBoundS);
    }
    return done.err;
}

/// docs/troubleshooting.md says which error it is, if it is one; other providers have theirs.
void expect_documented(int error, int documented) {
    if (settings.provider == "rvt" && error != 0) FAB_EQUAL(error, documented);
}

// ---- without system calls

template <int kWho, auto kBody, int kError, int... kCalls>
void without(Rank& self) {
    if (kWho == kBoth || kWho == self.rank) refuse_calls({kCalls...}, kError);
    kBody(self);
}

/// Writes and reads of 256 KiB that nobody may copy by system calls any more from round kRound on,
/// while some are under way. Behind the writes goes a message: who has it finds what was written.
template <int kWho, unsigned kRound, int kError>
void rights_are_lost(Rank& self) {
    constexpr std::size_t kSize = 256 << 10;
    constexpr unsigned kRounds = 60;
    Party party(self, {.caps = FI_TAGGED | FI_RMA, .msg_order = FI_ORDER_SAS | FI_ORDER_SAW});
    Endpoint& ep = party.ep;
    const Buffer out(ep, kSize);
    const Buffer back(ep, kSize);
    const Buffer slots[] = {{ep, kSize}, {ep, kSize}, {ep, kSize}};
    const Buffer token(ep, 8);
    std::array<RemoteRegion, std::size(slots)> remote;
    std::transform(std::begin(slots), std::end(slots), remote.begin(),
                   [](const Buffer& slot) { return slot.remote(); });
    remote = party.trade(self.other(), remote);
    Contexts contexts(std::size(slots) + 1);
    for (unsigned round = 0; round < kRounds; ++round) {
        const bool is_last = round == kRound && (kWho == kBoth || kWho == self.rank);
        out.fill(round);
        party.barrier();
        if (self.rank == 1) {
            party.trecv(token, 8, round, 0, contexts.at(0));
            if (is_last) refuse_calls({SYS_process_vm_readv, SYS_process_vm_writev}, kError);
            ep.wait_rx();
            // What has been written last, and is copied last, comes first.
            const auto& last = slots[std::size(slots) - 1];
            FAB_EQUAL(std::memcmp(last.as() + kSize - 64, out.as() + kSize - 64, 64), 0);
            for (const Buffer& slot : slots) slot.expect(round, kSize);
            continue;
        }
        for (std::size_t i = 0; i < remote.size(); ++i) {
            ep.post([&] {
                return fi_write(ep.ep, out.as(), kSize, out.desc(), party.peer(), remote[i].base,
                                remote[i].key, contexts.at(i));
            });
        }
        if (is_last) refuse_calls({SYS_process_vm_readv, SYS_process_vm_writev}, kError);
        party.tsend(token, 8, round, contexts.at(remote.size()));
        for (std::size_t i = 0; i <= remote.size(); ++i) ep.wait_tx();
        ep.post([&] {
            return fi_read(ep.ep, back.as(), kSize, back.desc(), party.peer(), remote[0].base,
                           remote[0].key, contexts.at(0));
        });
        ep.wait_tx();
        back.expect(round, kSize);
    }
    party.barrier();
}

/// There is nothing to fall back on; the error is that of the system call.
void no_memory_files(Rank& self) {
    if (self.rank == 1) return;
    refuse_calls({SYS_memfd_create}, ENOSYS);
    const int rc = try_to_open({.caps = FI_TAGGED});
    if (rc != 0 || settings.provider == "rvt") FAB_EQUAL(rc, -FI_ENOSYS);
}

// ---- under limits

void no_locked_memory(Rank& self) {
    set_limit(RLIMIT_MEMLOCK, 0);
    everything_works(self);
}

/// Each size of file is either enough to open and to send, or the error says so.
void small_files(Rank& self) {
    constexpr EpSpec kSpec{.caps = FI_TAGGED};
    Party party(self, kSpec);
    Buffer buffer(party.ep, 64);
    if (self.rank == 1) {
        for (const rlim_t limit : {0, 4096, 16'384, 65'536, 1 << 20}) {
            set_limit(RLIMIT_FSIZE, limit);
            const int rc = try_to_open(kSpec);
            if (rc != 0 && rc != -FI_ENOMEM && rc != -EFBIG) {
                FAB_FAIL("opening with files of %zu bytes at most gave %d (%s)",
                         static_cast<std::size_t>(limit), rc, fi_strerror(-rc));
            }
            // This endpoint has all it needs but the memory for a new peer.
            expect_documented(send_bounded(party.ep, party.peer(), buffer, limit), FI_ENOMEM);
        }
        set_limit(RLIMIT_FSIZE, RLIM_INFINITY);
        FAB_EQUAL(send_bounded(party.ep, party.peer(), buffer, 7), 0);
    } else {
        Contexts contexts(1);
        party.trecv(buffer, 64, 7, 0, contexts.at(0));
        const double deadline = now_s() + 6 * kBoundS;
        for (Completion done; !party.ep.poll(party.ep.rx_cq, done);) {
            if (now_s() > deadline) FAB_FAIL("the peer never recovers");
        }
    }
}

/// More peers than descriptors: the last ones get an error, the first ones are served on.
void few_descriptors(Rank& self) {
    constexpr std::size_t kPeers = 40;
    constexpr EpSpec kSpec{.caps = FI_TAGGED};
    if (self.rank == 0) set_limit(RLIMIT_NOFILE, 64);
    Party party(self, kSpec);
    Buffer buffer(party.ep, 64);
    if (self.rank == 0) return party.barrier();
    FAB_EQUAL(send_bounded(party.ep, party.peer(), buffer, kPeers), 0);
    std::vector<std::unique_ptr<Endpoint>> crowd;
    std::size_t served = 0;
    std::vector<char> address(256);
    std::size_t length = address.size();
    FAB_OK(fi_av_lookup(party.ep.av, party.peer(), address.data(), &length));
    address.resize(length);
    for (std::size_t i = 0; i < kPeers; ++i) {
        crowd.push_back(std::make_unique<Endpoint>(kSpec, party.ep));
        Endpoint& one = *crowd.back();
        const int error = send_bounded(one, one.insert(address), buffer, i);
        expect_documented(error, FI_ENOMEM);
        served += error == 0 ? 1 : 0;
    }
    FAB_CHECK(served >= 10);
    FAB_EQUAL(send_bounded(*crowd.front(), fi_addr_t{0}, buffer, kPeers), 0);
    FAB_EQUAL(send_bounded(party.ep, party.peer(), buffer, kPeers), 0);
    party.barrier();
}

/// Memory for the large rings cannot be had: the small ones do it. The application has all it
/// needs itself before the limit holds.
void little_memory(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_RMA | FI_ATOMIC});
    const Buffer out(party.ep, kLargest);
    const Buffer in(party.ep, kLargest);
    const MemoryCgroup cgroup;
    cgroup.enter(1 << 20);
    exchange(party, out, in);
    party.barrier();
    cgroup.leave();
}

/// Not even the small rings of a connection fit: an error, and a connection once there is memory.
void no_memory_for_a_peer(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 64);
    if (self.rank == 1) {
        const MemoryCgroup cgroup;
        cgroup.enter(96 * 1024);
        const int error = send_bounded(party.ep, party.peer(), buffer, 1);
        cgroup.leave();
        FAB_EQUAL(error, FI_ENOMEM);
        FAB_EQUAL(send_bounded(party.ep, party.peer(), buffer, 2), 0);
    } else {
        Contexts contexts(1);
        party.trecv(buffer, 64, 2, 0, contexts.at(0));
        party.ep.wait_rx();
    }
}

// ---- beside another user

/// Who may not look at each other's memory does not connect: an error, on both sides.
void another_user(Rank& self) {
    constexpr EpSpec kSpec{.caps = FI_TAGGED};
    fi_freeinfo(find_info(kSpec));  // the provider may lie where others cannot read
    if (self.rank == 1) become_nobody();
    Party party(self, kSpec);
    Buffer buffer(party.ep, 64);
    const int error = send_bounded(party.ep, party.peer(), buffer, 1);
    FAB_CHECK(error != 0);
    expect_documented(error, FI_EHOSTUNREACH);
}

constexpr Case kEnvTable[] = {
    {"env_no_ptrace",
     without<kBoth, everything_works, EPERM, SYS_process_vm_readv, SYS_process_vm_writev>},
    {"env_no_ptrace_on_one_side",
     without<1, everything_works, EPERM, SYS_process_vm_readv, SYS_process_vm_writev>},
    {"env_no_ptrace_large",
     without<kBoth, large_messages, EPERM, SYS_process_vm_readv, SYS_process_vm_writev>},
    {"env_no_reading_on_one_side", without<1, large_messages, EPERM, SYS_process_vm_readv>},
    {"env_no_writing_on_one_side", without<1, large_messages, EPERM, SYS_process_vm_writev>},
    {"env_rights_are_lost_early", rights_are_lost<kBoth, 2, EPERM>},
    {"env_rights_are_lost", rights_are_lost<kBoth, 20, EACCES>},
    {"env_rights_are_lost_by_the_initiator", rights_are_lost<0, 20, EPERM>},
    {"env_rights_are_lost_by_the_target", rights_are_lost<1, 20, EACCES>},
    {"env_rights_of_the_target_alone", rights_are_lost<1, 0, EPERM>},
    {"env_no_membarrier", without<kBoth, sleepers_wake, ENOSYS, SYS_membarrier>},
    {"env_no_membarrier_on_one_side", without<1, sleepers_wake, ENOSYS, SYS_membarrier>},
    {"env_no_pidfd", without<kBoth, everything_works, ENOSYS, SYS_pidfd_open>},
    {"env_no_random_numbers_call", without<kBoth, everything_works, ENOSYS, SYS_getrandom>},
    {"env_no_memory_files", no_memory_files},
    {"env_no_locked_memory", no_locked_memory},
    {"env_small_files", small_files, 2, 120},
    {"env_few_descriptors", few_descriptors, 2, 120},
    {"env_little_memory", little_memory, 2, 60},
    {"env_no_memory_for_a_peer", no_memory_for_a_peer, 2, 60},
    {"env_another_user", another_user, 2, 60},
};

}  // namespace

const std::span<const Case> kEnvCases = kEnvTable;

}  // namespace fab
