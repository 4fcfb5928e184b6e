// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory regions, fi_mr(3), without traffic: keys, modes, refusals.
#include <fcntl.h>
#include <rdma/fi_ext_rvt.h>
#include <sys/mman.h>

#include <iterator>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kAll =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

Opened with_mr_mode(int mode) {
    const Info hints = new_hints();
    hints->domain_attr->mr_mode = mode;
    return Opened(ask(hints).info);
}

Owned<fid_mr> reg(const Opened& open, const void* buffer, std::size_t bytes, std::uint64_t key) {
    return opened<fid_mr>([&](fid_mr** mr) {
        return fi_mr_reg(open.domain.get(), buffer, bytes, kAll, 0, key, 0, mr, nullptr);
    });
}

Opened with_device_memory() {
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_RMA | FI_HMEM;
    hints->domain_attr->mr_mode = FI_MR_HMEM;
    return Opened(ask(hints).info);
}

/// What registering this part of a descriptor's file as a dma-buf returns.
int reg_dma_buf(const Opened& open, int fd, std::size_t count = 1) {
    const fi_mr_dmabuf part{.fd = fd, .offset = 0, .len = 4096, .base_addr = nullptr};
    fi_mr_attr attr{};
    attr.mr_iov = reinterpret_cast<const iovec*>(&part);
    attr.iov_count = count;
    attr.access = kAll;
    fid_mr* mr = nullptr;
    const int result = fi_mr_regattr(open.domain.get(), &attr, FI_MR_DMABUF, &mr);
    if (result == 0) {
        fi_close(&mr->fid);
    }
    return result;
}

}  // namespace

Test(mr, the_application_chooses_64_bit_keys_unless_it_leaves_them_to_the_provider) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    const auto mr = reg(open, buffer, sizeof buffer, 0xfeedface12345678);
    RVT_EQ(fi_mr_key(mr.get()), 0xfeedface12345678);
}

Test(mr, a_requested_key_is_taken_once) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    auto mr = reg(open, buffer, sizeof buffer, 7);
    fid_mr* second = nullptr;
    RVT_EQ(fi_mr_reg(open.domain.get(), buffer, 64, kAll, 0, 7, 0, &second, nullptr), -FI_ENOKEY);
    mr.reset();
    RVT_OK(fi_mr_reg(open.domain.get(), buffer, 64, kAll, 0, 7, 0, &second, nullptr));
    RVT_OK(fi_close(&second->fid));
}

Test(mr, provider_keys_differ_from_region_to_region) {
    const Opened open = with_mr_mode(FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
    char buffer[64];
    const auto a = reg(open, buffer, 64, 7);
    const auto b = reg(open, buffer, 64, 7);
    RVT_NE(fi_mr_key(a.get()), fi_mr_key(b.get()));
}

Test(mr, every_mode_can_register_every_way) {
    for (const int mode :
         {0, 1, 2, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_ENDPOINT | FI_MR_LOCAL,
          FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_MR_RAW | FI_MR_RMA_EVENT}) {
        const Opened open = with_mr_mode(mode);
        char first[64];
        char second[32];
        const iovec buffers[] = {{first, sizeof first}, {second, sizeof second}};
        const auto one = reg(open, first, sizeof first, 1);
        const auto several = opened<fid_mr>([&](fid_mr** mr) {
            return fi_mr_regv(open.domain.get(), buffers, 2, kAll, 0, 2, 0, mr, nullptr);
        });
        fi_mr_attr attr{};
        attr.mr_iov = buffers;
        attr.iov_count = 1;
        attr.access = FI_REMOTE_READ;
        attr.requested_key = 3;
        const auto described = opened<fid_mr>(
            [&](fid_mr** mr) { return fi_mr_regattr(open.domain.get(), &attr, 0, mr); });
        RVT_OK(fi_mr_enable(described.get()));
    }
}

Test(mr, operations_named_beside_the_access_are_accepted) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    for (const std::uint64_t operation : {FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC}) {
        fid_mr* mr = nullptr;
        RVT_OK(fi_mr_reg(open.domain.get(), buffer, 64, kAll | operation, 0, 1, 0, &mr, nullptr));
        RVT_OK(fi_close(&mr->fid));
    }
}

Test(mr, all_memory_can_be_registered_at_once) {
    const Opened open = with_mr_mode(FI_MR_VIRT_ADDR);
    const auto mr = reg(open, nullptr, UINTPTR_MAX, 1);
    RVT_EQ(fi_mr_key(mr.get()), 1);
}

Test(mr, a_raw_key_is_mapped_back_to_the_key) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    const auto mr = reg(open, buffer, sizeof buffer, 0x1122334455667788);
    std::uint8_t raw[16];
    std::uint64_t base = 1;
    std::size_t size = 2;
    RVT_EQ(fi_mr_raw_attr(mr.get(), &base, raw, &size, 0), -FI_ETOOSMALL);
    RVT_EQ(size, 8);
    RVT_OK(fi_mr_raw_attr(mr.get(), &base, raw, &size, 0));
    RVT_EQ(base, 0);
    std::uint64_t key = 0;
    RVT_OK(fi_mr_map_raw(open.domain.get(), base, raw, size, &key, 0));
    RVT_EQ(key, 0x1122334455667788);
    RVT_OK(fi_mr_unmap_key(open.domain.get(), key));
}

Test(mr, what_cannot_be_is_refused) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    fid_mr* mr = nullptr;
    RVT_EQ(fi_mr_reg(open.domain.get(), buffer, 64, kAll, 0, 1, 1ull << 33, &mr, nullptr),
           -FI_EBADFLAGS);
    RVT_EQ(fi_mr_reg(open.domain.get(), buffer, 64, 1ull << 40, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
    RVT_EQ(fi_mr_reg(open.domain.get(), buffer, 64, kAll, 8, 1, 0, &mr, nullptr), -FI_EINVAL);
    RVT_EQ(fi_mr_regv(open.domain.get(), nullptr, 1, kAll, 0, 1, 0, &mr, nullptr), -FI_EINVAL);
    const std::vector<iovec> buffers(open.info->domain_attr->mr_iov_limit + 1);
    RVT_EQ(
        fi_mr_regv(open.domain.get(), buffers.data(), buffers.size(), kAll, 0, 1, 0, &mr, nullptr),
        -FI_EINVAL);
    RVT_EQ(fi_mr_reg(open.domain.get(), reinterpret_cast<void*>(UINTPTR_MAX - 8), 64, kAll, 0, 1, 0,
                     &mr, nullptr),
           -FI_EINVAL);
}

Test(mr, a_counter_of_a_domain_without_events_is_warned_of) {
    keep_log();
    char buffer[64];
    for (const bool has_events : {true, false}) {
        const Info hints = new_hints();
        hints->caps = FI_RMA | (has_events ? FI_RMA_EVENT : 0);
        const Opened open(ask(hints).info);
        auto mr = reg(open, buffer, sizeof buffer, 1);
        const auto cntr = open.cntr();
        RVT_OK(fi_mr_bind(mr.get(), &cntr->fid, FI_REMOTE_WRITE));
        RVT_EQ(logged_warnings.find("FI_RMA_EVENT was not asked for") == std::string::npos,
               has_events);
        mr.reset();
    }
}

Test(mr, a_counter_can_be_bound_once) {
    const Opened open = with_mr_mode(0);
    char buffer[64];
    auto mr = reg(open, buffer, sizeof buffer, 1);
    auto cntr = open.cntr();
    RVT_EQ(fi_mr_bind(mr.get(), &cntr->fid, FI_REMOTE_READ), -FI_EBADFLAGS);
    RVT_OK(fi_mr_bind(mr.get(), &cntr->fid, FI_REMOTE_WRITE));
    RVT_EQ(fi_mr_bind(mr.get(), &cntr->fid, FI_REMOTE_WRITE), -FI_EALREADY);
    RVT_EQ(fi_close(&cntr->fid), -FI_EBUSY);
    mr.reset();
    RVT_OK(fi_close(&cntr.release()->fid));
}

/// As applications do where FI_MR_ENDPOINT is in force, which it never is.
Test(mr, a_region_can_be_bound_to_an_endpoint_and_enabled) {
    EndOptions options;
    options.mr_mode = FI_MR_ENDPOINT;
    End end(options);
    RVT_EQ(end.open.info->domain_attr->mr_mode, 0);
    char buffer[64];
    const auto mr = end.reg(buffer, sizeof buffer, kAll, 1);
    RVT_EQ(fi_mr_bind(mr.get(), &end.ep->fid, FI_REMOTE_WRITE), -FI_EBADFLAGS);
    RVT_EQ(fi_mr_bind(mr.get(), &end.cq->fid, 0), -FI_EINVAL);
    RVT_OK(fi_mr_bind(mr.get(), &end.ep->fid, 0));
    RVT_OK(fi_mr_enable(mr.get()));
}

Test(mr, a_region_is_written_whatever_the_application_offers_to_do) {
    constexpr int kModes[] = {FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_ENDPOINT};
    for (unsigned subset = 0; subset < 1u << std::size(kModes); ++subset) {
        EndOptions options;
        options.caps = FI_MSG | FI_RMA;
        for (unsigned i = 0; i < std::size(kModes); ++i) {
            options.mr_mode |= (subset >> i & 1) != 0 ? kModes[i] : 0;
        }
        Pair pair(options);
        std::uint64_t target = 0;
        const auto mr = pair.b.reg(&target, sizeof target, FI_REMOTE_WRITE, 7);
        RVT_OK(fi_mr_bind(mr.get(), &pair.b.ep->fid, 0));
        RVT_OK(fi_mr_enable(mr.get()));
        std::uint64_t value = subset + 1;
        const auto local = pair.a.reg(&value, sizeof value, FI_WRITE, 8);
        pair.post([&] {
            return fi_write(pair.a.ep.get(), &value, sizeof value, fi_mr_desc(local.get()),
                            pair.a.peer, pair.b.address_of(&target), fi_mr_key(mr.get()), nullptr);
        });
        RVT_EQ(pair.a.next().flags, FI_RMA | FI_WRITE);
        cr_assert(target == value, "mr_mode 0x%x", options.mr_mode);
    }
}

Test(mr, a_domain_bound_for_it_reports_registrations) {
    Opened open = with_mr_mode(0);
    auto eq = open.eq();
    RVT_OK(fi_domain_bind(open.domain.get(), &eq->fid, 1ull << 59));
    char buffer[64];
    auto mr = reg(open, buffer, sizeof buffer, 1);
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
    RVT_EQ(event, FI_MR_COMPLETE);
    RVT_ASSERT(entry.fid == &mr->fid);
    reg(open, buffer, sizeof buffer, 2).reset();  // whose event goes with it
    RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), -FI_EAGAIN);
    mr.reset();
    open.domain.reset();  // which keeps the queue from closing
}

// ---- dma-bufs; real ones are in fabtests/functional/case_device.cc ----

Test(mr, a_descriptor_that_is_no_dma_buf_is_refused) {
    const Opened open = with_device_memory();
    const int file = memfd_create("no-dma-buf", MFD_CLOEXEC);
    RVT_OK(ftruncate(file, 4096));
    RVT_EQ(reg_dma_buf(open, file), -FI_EINVAL);
    close(file);
    RVT_EQ(reg_dma_buf(open, file), -FI_EBADF);
    RVT_EQ(reg_dma_buf(open, -1), -FI_EBADF);
}

Test(mr, one_region_is_of_one_dma_buf) {
    const Opened open = with_device_memory();
    RVT_EQ(reg_dma_buf(open, 0, 2), -FI_EINVAL);
}

Test(mr, dma_bufs_are_for_domains_of_device_memory) {
    const Opened open = with_mr_mode(0);
    RVT_EQ(reg_dma_buf(open, 0), -FI_EBADFLAGS);
}

Test(mr, buffers_are_not_taken_for_dma_bufs) {
    const Opened open = with_device_memory();
    char buffer[64];
    fid_mr* mr = nullptr;
    RVT_EQ(
        fi_mr_reg(open.domain.get(), buffer, sizeof buffer, kAll, 0, 1, FI_MR_DMABUF, &mr, nullptr),
        -FI_EBADFLAGS);
}

Test(mr, flags_that_say_whose_memory_it_is_are_for_domains_of_device_memory) {
    char buffer[64];
    const auto reg_as = [&](const Opened& open, std::uint64_t flags) {
        fid_mr* mr = nullptr;
        const int result =
            fi_mr_reg(open.domain.get(), buffer, sizeof buffer, kAll, 0, 1, flags, &mr, nullptr);
        return result == 0 ? fi_close(&mr->fid) : result;
    };
    const Opened without = with_mr_mode(0);
    RVT_EQ(reg_as(without, FI_HMEM_HOST_ALLOC), -FI_EBADFLAGS);
    RVT_EQ(reg_as(without, FI_HMEM_DEVICE_ONLY), -FI_EBADFLAGS);
    RVT_EQ(reg_as(without, FI_RMA_PMEM), -FI_EBADFLAGS);
    const Opened open = with_device_memory();
    RVT_OK(reg_as(open, FI_HMEM_HOST_ALLOC));
    RVT_EQ(reg_as(open, FI_HMEM_DEVICE_ONLY), -FI_EINVAL);  // it is no device's
    RVT_EQ(reg_as(open, FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC), -FI_EINVAL);
}

Test(mr, memory_of_the_host_needs_no_device_whatever_has_allocated_it) {
    const Opened open = with_device_memory();
    char buffer[64];
    const iovec one{buffer, sizeof buffer};
    fi_mr_attr attr{};
    attr.mr_iov = &one;
    attr.iov_count = 1;
    attr.access = kAll;
    attr.iface = FI_HMEM_CUDA;  // whose library is not here
    fid_mr* mr = nullptr;
    RVT_OK(fi_mr_regattr(open.domain.get(), &attr, FI_HMEM_HOST_ALLOC, &mr));
    RVT_OK(fi_close(&mr->fid));
}

Test(mr, nobody_has_to_be_told_of_pages_that_change) {
    const Opened open = with_mr_mode(FI_MR_MMU_NOTIFY);
    RVT_EQ(open.info->domain_attr->mr_mode & FI_MR_MMU_NOTIFY, 0);
}

Test(mr, memory_of_an_interface_that_is_not_there_is_refused) {
    const Opened open = with_device_memory();
    char buffer[64];
    const iovec one{buffer, sizeof buffer};
    fi_mr_attr attr{};
    attr.mr_iov = &one;
    attr.iov_count = 1;
    attr.access = kAll;
    attr.iface = FI_HMEM_CUDA;
    fid_mr* mr = nullptr;
    RVT_EQ(fi_mr_regattr(open.domain.get(), &attr, 0, &mr), -FI_ENOSYS);
    attr.iface = FI_HMEM_SYSTEM;
    RVT_OK(fi_mr_regattr(open.domain.get(), &attr, 0, &mr));
    RVT_OK(fi_close(&mr->fid));
}
