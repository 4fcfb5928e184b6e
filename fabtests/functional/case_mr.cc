// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory registration: fi_mr(3).
#include <malloc.h>

#include <cstring>
#include <memory>
#include <vector>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::uint64_t kAllAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// A write and a read of `length` bytes at the peer's region.
void round_trip(Party& party, const Buffer& local, const RemoteRegion& remote, std::size_t length) {
    Contexts contexts(1);
    local.fill(static_cast<unsigned>(length));
    party.ep.post([&] {
        return fi_write(party.ep.ep, local.as(), length, local.desc(), party.peer(), remote.base,
                        remote.key, contexts.at(0));
    });
    party.ep.wait_tx();
    std::memset(local.as(), 0, length);
    party.ep.post([&] {
        return fi_read(party.ep.ep, local.as(), length, local.desc(), party.peer(), remote.base,
                       remote.key, contexts.at(0));
    });
    party.ep.wait_tx();
    local.expect(static_cast<unsigned>(length), length);
}

/// Works with this mr_mode offered; what comes back is a part of it.
template <int kMode>
void mode(Rank& self) {
    Party party(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE, .mr_mode = kMode});
    FAB_EQUAL(party.ep.info->domain_attr->mr_mode & ~kMode, 0);
    Buffer local(party.ep, 8192);
    Buffer target(party.ep, 8192);
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    if (self.rank == 0) round_trip(party, local, remote, 5000);
    party.barrier();
}

/// Where keys are the application's, the one asked for is the one that works, once.
void own_keys(Rank& self) {
    Party party(self, {.caps = FI_RMA, .mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED});
    static char memory[64];
    fid_mr* first = nullptr;
    fid_mr* second = nullptr;
    const std::uint64_t wanted =
        party.ep.info->domain_attr->mr_key_size >= 8 ? 0x8000000000000123ULL : 0x123;
    FAB_OK(fi_mr_reg(party.ep.domain, memory, 64, kAllAccess, 0, wanted, 0, &first, nullptr));
    FAB_EQUAL(fi_mr_key(first), wanted);
    FAB_EQUAL(fi_mr_reg(party.ep.domain, memory, 64, kAllAccess, 0, wanted, 0, &second, nullptr),
              -FI_ENOKEY);
    FAB_EQUAL(fi_close(&first->fid), 0);
    FAB_OK(fi_mr_reg(party.ep.domain, memory, 64, kAllAccess, 0, wanted, 0, &second, nullptr));
    FAB_EQUAL(fi_close(&second->fid), 0);
}

/// Several pieces of memory under one key: offsets run on through them.
void pieces(Rank& self) {
    Party party(self, {.caps = FI_RMA,
                       .tx_op_flags = FI_DELIVERY_COMPLETE,
                       .mr_mode = FI_MR_LOCAL | FI_MR_PROV_KEY});
    if (party.ep.info->domain_attr->mr_iov_limit < 2) skip("mr_iov_limit is below 2");
    if ((party.ep.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0) {
        skip("addresses are virtual: pieces have no common offset");
    }
    alignas(64) static char memory[3 * 4096];
    const iovec both[2] = {{memory, 4096}, {memory + 8192, 4096}};
    fid_mr* region = nullptr;
    FAB_OK(fi_mr_regv(party.ep.domain, both, 2, kAllAccess, 0, 0x77, 0, &region, nullptr));
    Buffer local(party.ep, 8192);
    const RemoteRegion remote = party.trade(self.other(), RemoteRegion{0, fi_mr_key(region)});
    if (self.rank == 0) round_trip(party, local, remote, 8192);
    party.barrier();
    if (self.rank == 1) {
        FAB_EQUAL(memory[5000], 0);
        local.fill(8192);
        FAB_EQUAL(std::memcmp(memory, local.as(), 4096), 0);
        FAB_EQUAL(std::memcmp(memory + 8192, local.as() + 4096, 4096), 0);
    }
    party.barrier();
    FAB_EQUAL(fi_close(&region->fid), 0);
}

void by_attributes(Rank& self) {
    Party party(self, {.caps = FI_RMA});
    alignas(64) static char memory[4096];
    const iovec piece{memory, sizeof memory};
    fi_mr_attr attr{};
    attr.mr_iov = &piece;
    attr.iov_count = 1;
    attr.access = kAllAccess;
    attr.requested_key = 0x99;
    attr.context = memory;
    fid_mr* region = nullptr;
    FAB_OK(fi_mr_regattr(party.ep.domain, &attr, 0, &region));
    FAB_CHECK(region->fid.context == memory);
    if ((party.ep.info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
        FAB_OK(fi_mr_bind(region, &party.ep.ep->fid, 0));
        FAB_OK(fi_mr_enable(region));
    }
    const bool is_virtual = (party.ep.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    const RemoteRegion mine{is_virtual ? reinterpret_cast<std::uint64_t>(memory) : 0,
                            fi_mr_key(region)};
    const RemoteRegion remote = party.trade(self.other(), mine);
    Buffer local(party.ep, 4096);
    if (self.rank == 0) round_trip(party, local, remote, 4096);
    party.barrier();
    FAB_EQUAL(fi_close(&region->fid), 0);
}

/// Thousands of registrations, closed in another order, leave room for as many again.
void many(Rank& self) {
    constexpr std::size_t kCount = 5000;
    Party party(self, {.caps = FI_RMA});
    std::vector<char> memory(kCount * 16);
    std::vector<fid_mr*> regions(kCount);
    for (std::size_t turn = 0; turn < 3; ++turn) {
        for (std::size_t i = 0; i < kCount; ++i) {
            FAB_OK(fi_mr_reg(party.ep.domain, memory.data() + 16 * i, 16, kAllAccess, 0, 10'000 + i,
                             0, &regions[i], nullptr));
        }
        for (std::size_t i = 0; i < kCount; ++i) {
            FAB_EQUAL(fi_close(&regions[(i * 7919 + turn) % kCount]->fid), 0);
        }
    }
}

/// Regions of one transfer each, as rendezvous protocols of applications make them.
template <int kMode>
void fresh(Rank& self) {
    constexpr std::size_t kTurns = 400;
    constexpr std::size_t kAtOnce = 16;
    constexpr std::size_t kSizes[] = {64, 20'000};
    struct Offer {
        RemoteRegion regions[kAtOnce];
    };
    Party party(self, {.caps = FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE, .mr_mode = kMode});
    Buffer local(party.ep, kSizes[1]);
    std::vector<char> memory(kAtOnce * kSizes[1]);
    Contexts contexts(kAtOnce);
    std::size_t heap_after_warm_up = 0;
    for (std::size_t turn = 0; turn < turns_here(kTurns); ++turn) {
        const std::size_t size = kSizes[turn % 2];
        std::vector<std::unique_ptr<Buffer>> targets;
        Offer offer;
        for (std::size_t i = 0; i < kAtOnce; ++i) {
            targets.push_back(
                std::make_unique<Buffer>(party.ep, memory.data() + i * kSizes[1], kSizes[1]));
            offer.regions[i] = targets.back()->remote();
        }
        offer = party.trade(self.other(), offer);
        if (self.rank == 0) {
            local.fill(static_cast<unsigned>(turn));
            for (std::size_t i = 0; i < kAtOnce; ++i) {
                party.ep.post([&] {
                    return fi_write(party.ep.ep, local.as(), size, local.desc(), party.peer(),
                                    offer.regions[i].base, offer.regions[i].key, contexts.at(i));
                });
            }
            for (std::size_t i = 0; i < kAtOnce; ++i) {
                party.ep.wait_tx();
            }
        }
        party.barrier();
        for (std::size_t i = 0; self.rank == 1 && i < kAtOnce; ++i) {
            targets[i]->expect(static_cast<unsigned>(turn), size);
        }
        if (turn == kTurns / 4) {
            heap_after_warm_up = mallinfo2().uordblks;
        }
    }
    // What is kept of each region would be more than so much.
    constexpr std::size_t kAllowed = kTurns * kAtOnce * 8;
    const std::size_t heap = mallinfo2().uordblks;
    if (self.rank == 0 && heap_after_warm_up != 0 && heap > heap_after_warm_up + kAllowed) {
        FAB_FAIL("the heap grew by %zu bytes", heap - heap_after_warm_up);
    }
}

/// A domain with a region is busy.
void keeps_domain(Rank& self) {
    Party party(self, {.caps = FI_RMA});
    Buffer buffer(party.ep, 64);
    FAB_EQUAL(fi_close(&party.ep.domain->fid), -FI_EBUSY);
}

constexpr int kBasic = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

constexpr Case kMrTable[] = {
    {"mr_mode_none", mode<0>},
    {"mr_mode_local", mode<FI_MR_LOCAL>},
    {"mr_mode_virtual", mode<FI_MR_VIRT_ADDR>},
    {"mr_mode_provider_keys", mode<FI_MR_PROV_KEY>},
    {"mr_mode_basic", mode<kBasic>},
    {"mr_mode_endpoint", mode<FI_MR_ENDPOINT>},
    {"mr_mode_all", mode<kAnyMrMode>},
    {"mr_own_keys", own_keys},
    {"mr_pieces", pieces},
    {"mr_by_attributes", by_attributes},
    {"mr_many", many},
    {"mr_fresh", fresh<0>},
    {"mr_fresh_provider_keys", fresh<FI_MR_VIRT_ADDR | FI_MR_PROV_KEY>},
    {"mr_keeps_domain", keeps_domain},
};

}  // namespace

const std::span<const Case> kMrCases = kMrTable;

}  // namespace fab
