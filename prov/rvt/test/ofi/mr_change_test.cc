// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions between their registration and their end: flags, and pages that have changed.
// fi_mr(3), rdma/fi_ext_rvt.h.
#include <fcntl.h>
#include <rdma/fi_ext_rvt.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "common/process.h"
#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kKey = 7;
constexpr std::uint64_t kPeersAccess = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 16 * kPage;

struct Written {
    explicit Written(const EndOptions& options = {}) : pair(options) {}

    /// Writes a byte to the region. Returns: 0, or the error of the completion.
    int write(std::uint64_t address, char byte = 'x') {
        const std::array<char, 1> out{byte};
        pair.post([&] {
            return fi_write(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, address,
                            kKey, nullptr);
        });
        fi_cq_tagged_entry entry{};
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN) {
            pair.drive();
            got = fi_cq_read(pair.a.cq.get(), &entry, 1);
        }
        return got == 1 ? 0 : pair.a.next_error().err;
    }

    Pair pair;
    std::array<char, 64> first{};
    std::array<char, 64> second{};
    Owned<fid_mr> mr = pair.b.reg(first.data(), first.size(), kPeersAccess, kKey);
};

void* map(std::size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    return memory;
}

}  // namespace

Test(mr_change, without_a_nic_no_region_is_pinned_and_no_order_relaxed) {
    End end({});
    char buffer[64];
    for (const std::uint64_t flags : {FI_RVT_MR_ON_DEMAND, FI_RVT_MR_RELAXED_ORDERING}) {
        fid_mr* mr = nullptr;
        RVT_OK(fi_mr_reg(end.open.domain.get(), buffer, sizeof buffer, kPeersAccess, 0, kKey, flags,
                         &mr, nullptr));
        RVT_OK(fi_close(&mr->fid));
    }
    fid_mr* mr = nullptr;
    RVT_EQ(fi_mr_reg(end.open.domain.get(), buffer, sizeof buffer, kPeersAccess, 0, kKey,
                     1ull << 62, &mr, nullptr),
           -FI_EBADFLAGS);
}

// ---- pages that have changed ----

Test(mr_change, peers_reach_pages_that_have_changed) {
    Written on({.mr_mode = FI_MR_VIRT_ADDR});
    auto* const memory = static_cast<char*>(map(kBytes));
    on.mr.reset();
    on.mr = on.pair.b.reg(memory, kBytes, kPeersAccess, kKey);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    RVT_EQ(on.write(address), 0);
    RVT_ASSERT(mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0) == memory);
    RVT_OK(fi_mr_refresh(on.mr.get(), nullptr, 0, 0));
    RVT_EQ(memory[0], 0);
    RVT_EQ(on.write(address, 'y'), 0);
    RVT_EQ(memory[0], 'y');
    on.mr.reset();
    munmap(memory, kBytes);
}

Test(mr_change, parts_to_refresh_are_of_the_region) {
    Written on;
    const auto refresh = [&](char* at, std::size_t bytes, std::uint64_t flags = 0) {
        const iovec parts[] = {{on.first.data(), 1}, {at, bytes}};
        return fi_mr_refresh(on.mr.get(), parts, 2, flags);
    };
    RVT_OK(refresh(on.first.data() + 1, 63));
    RVT_EQ(refresh(on.first.data() + 1, 64), -FI_EINVAL);
    RVT_EQ(refresh(on.first.data() - 1, 2), -FI_EINVAL);
    RVT_EQ(refresh(on.first.data(), 1, FI_RMA_EVENT), -FI_EBADFLAGS);
    RVT_EQ(fi_mr_refresh(on.mr.get(), nullptr, 1, 0), -FI_EINVAL);
    RVT_EQ(on.write(0), 0);
}

// ---- peers that have the region's file mapped ----

namespace {

constexpr std::size_t kWrites = 20;  // more than it takes until a region is asked for

struct Place {
    std::array<char, 64> name{};
    std::uint64_t address = 0;
};

/// Writes a byte to each place that it is told of, again and again, and says so.
void write_where_told(Process& parent) {
    End end({.mr_mode = FI_MR_VIRT_ADDR});
    for (Place place = parent.get<Place>(); place.address != 0; place = parent.get<Place>()) {
        if (end.peer == FI_ADDR_UNSPEC) {
            RVT_EQ(fi_av_insert(end.av.get(), place.name.data(), 1, &end.peer, 0, nullptr), 1);
        }
        for (std::size_t i = 0; i < kWrites; ++i) {
            RVT_OK(fi_write(end.ep.get(), "x", 1, nullptr, end.peer, place.address, kKey, nullptr));
            end.next();
        }
        parent.put(true);
    }
}

char* map_file(const char* name, void* at = nullptr) {
    const int file = memfd_create(name, MFD_ALLOW_SEALING);
    RVT_EQ(ftruncate(file, kBytes), 0);
    RVT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    void* const memory = mmap(at, kBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    return static_cast<char*>(memory);  // the descriptor stays, by which a peer gets the file
}

bool has_mapped(int pid, const char* file) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    std::string line;
    while (std::getline(maps, line) && line.find(file) == std::string::npos) {
    }
    return static_cast<bool>(maps);
}

struct Target {
    void let_write(Process& writer) {
        Place place{.name = {}, .address = reinterpret_cast<std::uintptr_t>(memory)};
        std::size_t bytes = place.name.size();
        RVT_OK(fi_getname(&end.ep->fid, place.name.data(), &bytes));
        writer.put(place);
        while (!writer.has_word()) {
            end.is_quiet();
        }
        RVT_ASSERT(writer.get<bool>());
    }

    /// The same, until the writer has mapped the file, and knows.
    void let_write_and_map(Process& writer) {
        while (!has_mapped(writer.pid(), "memfd:first")) {
            let_write(writer);
        }
        let_write(writer);
    }

    End end{{.mr_mode = FI_MR_VIRT_ADDR}};
    char* memory = map_file("first");
    Owned<fid_mr> mr = end.reg(memory, kBytes, kPeersAccess, kKey);
};

}  // namespace

Test(mr_change, a_peer_that_has_mapped_the_file_before_maps_the_one_that_is_there, .timeout = 60) {
    Process writer(write_where_told);
    Target target;
    target.let_write_and_map(writer);
    map_file("second", target.memory);
    RVT_OK(fi_mr_refresh(target.mr.get(), nullptr, 0, 0));
    target.let_write(writer);
    RVT_EQ(target.memory[0], 'x');
}
