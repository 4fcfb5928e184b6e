// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions between their registration and their end: other buffers and access, advice, pages that
// have changed. fi_mr(3), rdma/fi_ext_rvt.h.
#include <fcntl.h>
#include <rdma/fi_ext_rvt.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

fi_rvt_ops_mr& ops_of(const Owned<fid_mr>& mr) {
    void* table = nullptr;
    RVT_OK(fi_open_ops(&mr->fid, FI_RVT_MR_OPS, 0, &table, nullptr));
    return *static_cast<fi_rvt_ops_mr*>(table);
}

int change(const Owned<fid_mr>& mr, void* buffer, std::size_t bytes, std::uint64_t access,
           std::uint64_t flags = 0) {
    const iovec one{buffer, bytes};
    return ops_of(mr).reregister(mr.get(), &one, 1, access, flags);
}

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

Test(mr_change, tables_are_opened_by_their_names) {
    End end({});
    char buffer[64];
    const auto mr = end.reg(buffer, sizeof buffer, kPeersAccess, kKey);
    void* table = nullptr;
    RVT_EQ(fi_open_ops(&mr->fid, FI_RVT_EP_OPS, 0, &table, nullptr), -FI_ENOSYS);
    RVT_EQ(fi_open_ops(&mr->fid, FI_RVT_MR_OPS, 1, &table, nullptr), -FI_EBADFLAGS);
    RVT_EQ(ops_of(mr).size, sizeof(fi_rvt_ops_mr));
}

Test(mr_change, peers_reach_the_other_buffer_by_the_same_key) {
    for (const int mode : {0, FI_MR_VIRT_ADDR}) {
        Written on({.mr_mode = mode});
        RVT_EQ(on.write(on.pair.b.address_of(on.first.data())), 0);
        RVT_OK(change(on.mr, on.second.data(), 32, kPeersAccess));
        RVT_EQ(fi_mr_key(on.mr.get()), kKey);
        const std::uint64_t address = on.pair.b.address_of(on.second.data());
        RVT_EQ(on.write(address + 31, 'y'), 0);
        RVT_EQ(on.second[31], 'y');
        RVT_EQ(std::count(on.first.begin(), on.first.end(), 'y'), 0);
        RVT_EQ(on.write(address + 32), FI_EACCES);
        RVT_EQ(on.second[32], 0);
    }
}

Test(mr_change, the_base_that_peers_are_told_is_of_the_other_buffer) {
    for (const int mode : {0, FI_MR_VIRT_ADDR}) {
        Written on({.mr_mode = mode});
        RVT_OK(change(on.mr, on.second.data(), on.second.size(), kPeersAccess));
        std::uint64_t base = 1;
        std::array<std::uint8_t, 8> raw{};
        std::size_t bytes = raw.size();
        RVT_OK(fi_mr_raw_attr(on.mr.get(), &base, raw.data(), &bytes, 0));
        RVT_EQ(base, on.pair.b.address_of(on.second.data()));
        RVT_EQ(on.write(base, 'y'), 0);
        RVT_EQ(on.second[0], 'y');
    }
}

Test(mr_change, access_changes_where_the_buffers_stay) {
    Written on;
    RVT_OK(ops_of(on.mr).reregister(on.mr.get(), nullptr, 0, FI_REMOTE_READ, 0));
    RVT_EQ(on.write(0), FI_EACCES);
    RVT_OK(ops_of(on.mr).reregister(on.mr.get(), nullptr, 0, kPeersAccess, 0));
    RVT_EQ(on.write(0), 0);
    RVT_EQ(on.first[0], 'x');
}

Test(mr_change, one_buffer_becomes_several_and_one_again) {
    Written on;
    const iovec parts[] = {{on.second.data() + 32, 16}, {on.second.data(), 16}};
    RVT_OK(ops_of(on.mr).reregister(on.mr.get(), parts, 2, kPeersAccess, 0));
    RVT_EQ(on.write(16), 0);
    RVT_EQ(on.second[0], 'x');
    RVT_OK(change(on.mr, on.first.data(), on.first.size(), kPeersAccess));
    RVT_EQ(on.write(16), 0);
    RVT_EQ(on.first[16], 'x');
}

Test(mr_change, what_cannot_be_is_refused_and_changes_nothing) {
    Written on;
    auto& ops = ops_of(on.mr);
    char* const other = on.second.data();
    RVT_EQ(change(on.mr, other, 64, kPeersAccess, FI_RMA_EVENT), -FI_EBADFLAGS);
    RVT_EQ(change(on.mr, other, 64, 1ull << 40), -FI_EINVAL);
    RVT_EQ(change(on.mr, nullptr, 64, kPeersAccess), -FI_EINVAL);
    RVT_EQ(change(on.mr, other, SIZE_MAX - 8, kPeersAccess), -FI_EINVAL);
    RVT_EQ(ops.reregister(on.mr.get(), nullptr, 1, kPeersAccess, 0), -FI_EINVAL);
    const std::vector<iovec> many(on.pair.b.open.info->domain_attr->mr_iov_limit + 1);
    RVT_EQ(ops.reregister(on.mr.get(), many.data(), many.size(), kPeersAccess, 0), -FI_EINVAL);
    RVT_EQ(on.write(0), 0);
    RVT_EQ(on.first[0], 'x');
}

Test(mr_change, a_counter_goes_on_with_the_other_buffer) {
    EndOptions options;
    options.caps = FI_RMA | FI_RMA_EVENT;
    Written on(options);
    const auto cntr = on.pair.b.open.cntr();
    RVT_OK(fi_mr_bind(on.mr.get(), &cntr->fid, FI_REMOTE_WRITE));
    RVT_OK(change(on.mr, on.second.data(), on.second.size(), kPeersAccess));
    RVT_EQ(on.write(0), 0);
    on.pair.until([&] { return fi_cntr_read(cntr.get()) == 1; });
    on.mr.reset();
}

// ---- advice ----

Test(mr_change, pages_are_brought_in_when_that_is_advised) {
    End end({});
    void* const memory = map(kBytes);
    RVT_OK(madvise(memory, kBytes, MADV_NOHUGEPAGE));
    auto mr = end.reg(memory, kBytes, kPeersAccess, kKey);
    auto& ops = ops_of(mr);
    RVT_OK(ops.advise(mr.get(), FI_RVT_MR_PREFETCH_WRITE, kPage, 2 * kPage));
    unsigned char in_memory[kBytes / kPage] = {};
    RVT_OK(mincore(memory, kBytes, in_memory));
    RVT_EQ(in_memory[0] & 1, 0);
    RVT_EQ(in_memory[1] & in_memory[2] & 1, 1);
    RVT_EQ(in_memory[3] & 1, 0);
    RVT_OK(ops.advise(mr.get(), FI_RVT_MR_PREFETCH_NO_FAULT, 0, kBytes));
    RVT_OK(ops.advise(mr.get(), FI_RVT_MR_PREFETCH, kBytes, 0));
    munmap(memory, kBytes);
    RVT_EQ(ops.advise(mr.get(), FI_RVT_MR_PREFETCH, 0, kBytes), -FI_EFAULT);
}

Test(mr_change, advice_of_what_is_not_in_the_region_is_refused) {
    Written on;
    auto& ops = ops_of(on.mr);
    RVT_EQ(ops.advise(on.mr.get(), FI_RVT_MR_PREFETCH, 1, 64), -FI_EINVAL);
    RVT_EQ(ops.advise(on.mr.get(), FI_RVT_MR_PREFETCH, 65, 0), -FI_EINVAL);
    RVT_EQ(ops.advise(on.mr.get(), FI_RVT_MR_PREFETCH, 64, UINT64_MAX), -FI_EINVAL);
    RVT_EQ(ops.advise(on.mr.get(), static_cast<fi_rvt_mr_advice>(3), 0, 64), -FI_EINVAL);
    RVT_OK(ops.advise(on.mr.get(), FI_RVT_MR_PREFETCH, 0, 64));
}

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
    RVT_OK(change(on.mr, memory, kBytes, kPeersAccess));
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

Test(mr_change, a_peer_that_has_mapped_the_file_leaves_it_for_the_other_buffer, .timeout = 60) {
    Process writer(write_where_told);
    Target target;
    target.let_write_and_map(writer);
    char* const former = target.memory;
    former[0] = 'z';
    target.memory = map_file("second");
    RVT_OK(change(target.mr, target.memory, kBytes, kPeersAccess));
    target.let_write(writer);
    RVT_EQ(target.memory[0], 'x');
    RVT_EQ(former[0], 'z');
}
