// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of the devices beside CUDA's, over stand-ins for their libraries: what is of ROCr or of
// Level Zero alone. What is of all is shown with CUDA (hmem_test.cc).
#include <cstdlib>
#include <optional>
#include <vector>

#include "hmem/claimants.h"
#include "ofi/on_device.h"
#include "ofi/pair.h"
#include "util/unique_fd.h"

using namespace rvt::test;
using fab::standin::How;
using fab::standin::Library;

extern "C" int standin_dma_buf(const void* memory);

namespace {

constexpr EndOptions kDevices{.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_HMEM,
                              .mr_mode = FI_MR_HMEM,
                              .tx_op_flags = FI_DELIVERY_COMPLETE};

struct Named {
    Library library;
    fi_hmem_iface iface;
};
constexpr Named kKinds[] = {{Library::kRocr, FI_HMEM_ROCR}, {Library::kZe, FI_HMEM_ZE}};

Opened with_device_memory() {
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_RMA | FI_HMEM;
    hints->domain_attr->mr_mode = FI_MR_HMEM;
    return Opened(ask(hints).info);
}

Owned<fid_mr> reg(const End& end, const OnDevice& memory, const Named& kind) {
    return opened<fid_mr>([&](fid_mr** mr) {
        return try_reg(end.open.domain.get(), memory.at(), kDeviceBytes, kind.iface, mr);
    });
}

/// Two ends with memory of such a device each.
struct Devices {
    explicit Devices(const Named& kind) {
        fab::standin::use(How::kWithoutShare, kind.library);
        a.emplace();
        b.emplace();
        pair.emplace(kDevices);
        mr_a = reg(pair->a, *a, kind);
        mr_b = reg(pair->b, *b, kind);
    }
    void* desc_a() { return fi_mr_desc(mr_a.get()); }
    void* desc_b() { return fi_mr_desc(mr_b.get()); }

    std::optional<OnDevice> a;
    std::optional<OnDevice> b;
    std::optional<Pair> pair;
    Owned<fid_mr> mr_a;
    Owned<fid_mr> mr_b;
};

}  // namespace

Test(hmem_kinds, memory_of_a_library_that_does_not_start_is_refused) {
    const Opened open = with_device_memory();
    char host[64];
    for (const Named& kind : kKinds) {
        fab::standin::use(How::kBroken, kind.library);
        fid_mr* mr = nullptr;
        RVT_EQ(try_reg(open.domain.get(), host, sizeof host, kind.iface, &mr), -FI_ENOSYS);
    }
}

Test(hmem_kinds, addresses_that_are_not_in_one_allocation_are_refused) {
    for (const Named& kind : kKinds) {
        fab::standin::use(How::kWithoutShare, kind.library);
        const Opened open = with_device_memory();
        const OnDevice memory(8192);
        char host[64];
        fid_mr* mr = nullptr;
        RVT_EQ(try_reg(open.domain.get(), host, sizeof host, kind.iface, &mr), -FI_EFAULT);
        RVT_EQ(try_reg(open.domain.get(), memory.at(1), 8192, kind.iface, &mr), -FI_EFAULT);
        RVT_OK(try_reg(open.domain.get(), memory.at(1), 8191, kind.iface, &mr));
        RVT_OK(fi_close(&mr->fid));
    }
}

Test(hmem_kinds, who_does_not_say_whose_memory_it_is_need_not) {
    for (const Named& kind : kKinds) {
        fab::standin::use(How::kWithoutShare, kind.library);
        const Opened open = with_device_memory();
        const OnDevice memory;
        const auto mr = opened<fid_mr>([&](fid_mr** made) {
            return fi_mr_reg(open.domain.get(), memory.at(), 64, kDeviceAccess, 0, 1, 0, made,
                             nullptr);
        });
        RVT_ASSERT(fi_mr_desc(mr.get()) != nullptr);
    }
}

/// fi_mr(3): `iface` says by which interface it was allocated, as by cuMemAllocHost().
Test(hmem_kinds, memory_of_the_host_by_a_devices_interface_is_ordinary_memory) {
    for (const Named& kind : {Named{Library::kCuda, FI_HMEM_CUDA}, kKinds[0], kKinds[1]}) {
        fab::standin::use(How::kWithoutShare, kind.library);
        Pair pair(kDevices);
        fid_domain* const domain = pair.a.open.domain.get();
        const OnDevice device;
        const OnDevice memory(kDeviceBytes, fab::standin::Where::kHost);
        const auto mr = opened<fid_mr>([&](fid_mr** made) {
            return try_reg(domain, memory.at(), kDeviceBytes, kind.iface, made);
        });
        RVT_ASSERT(fi_mr_desc(mr.get()) == nullptr);
        memory.write(0, numbered(8, 5));
        char arrived[8] = {};
        pair.post(
            [&] { return fi_recv(pair.b.ep.get(), arrived, 8, nullptr, FI_ADDR_UNSPEC, nullptr); });
        pair.post([&] {
            return fi_send(pair.a.ep.get(), memory.at(), 8, nullptr, pair.a.peer, nullptr);
        });
        pair.b.next();
        pair.a.next();
        cr_assert(std::vector<char>(arrived, arrived + 8) == numbered(8, 5));

        fi_mr_attr attr{};
        const iovec both[] = {{memory.at(), 64}, {device.at(), 64}};
        attr.mr_iov = both;
        attr.iov_count = 1;
        attr.access = kDeviceAccess;
        attr.requested_key = 2;
        attr.iface = kind.iface;
        fid_mr* refused = nullptr;
        RVT_EQ(fi_mr_regattr(domain, &attr, FI_HMEM_DEVICE_ONLY, &refused), -FI_EINVAL);
        attr.iov_count = 2;
        RVT_EQ(fi_mr_regattr(domain, &attr, 0, &refused), -FI_EINVAL);
    }
}

Test(hmem_kinds, the_descriptor_of_an_allocation_stays_level_zeros) {
    fab::standin::use(How::kMappable, Library::kZe);
    const Opened open = with_device_memory();
    const OnDevice memory;
    for (int turn = 0; turn < 2; ++turn) {
        fid_mr* mr = nullptr;
        RVT_OK(try_reg(open.domain.get(), memory.at(), 64, FI_HMEM_ZE, &mr));
        RVT_OK(fi_close(&mr->fid));
        const rvt::util::UniqueFd another(standin_dma_buf(memory.at()));  // of the driver's
        RVT_ASSERT(another.is_open());
    }
}

Test(hmem_kinds, messages_go_from_device_to_device, .timeout = 60) {
    for (const Named& kind : kKinds) {
        Devices at(kind);
        for (const std::size_t size : {8U, 40'000U, 2'500'000U}) {
            const auto bytes = numbered(size, static_cast<int>(size));
            at.a->write(3, bytes);
            at.pair->post([&] {
                return fi_trecv(at.pair->b.ep.get(), at.b->at(5), size, at.desc_b(), FI_ADDR_UNSPEC,
                                7, 0, nullptr);
            });
            at.pair->post([&] {
                return fi_tsend(at.pair->a.ep.get(), at.a->at(3), size, at.desc_a(),
                                at.pair->a.peer, 7, nullptr);
            });
            RVT_EQ(at.pair->b.next().len, size);
            at.pair->a.next();
            cr_assert(at.b->read(5, size) == bytes, "%zu bytes", size);
        }
    }
}

Test(hmem_kinds, what_is_written_and_read_is_in_the_device, .timeout = 60) {
    constexpr std::size_t kBytes = 300'000;
    for (const Named& kind : kKinds) {
        Devices at(kind);
        const auto bytes = numbered(kBytes, 3);
        at.a->write(0, bytes);
        at.pair->post([&] {
            return fi_write(at.pair->a.ep.get(), at.a->at(), kBytes, at.desc_a(), at.pair->a.peer,
                            9, fi_mr_key(at.mr_b.get()), nullptr);
        });
        at.pair->a.next();
        cr_assert(at.b->read(9, kBytes) == bytes);
        at.pair->post([&] {
            return fi_read(at.pair->a.ep.get(), at.a->at(kBytes), kBytes, at.desc_a(),
                           at.pair->a.peer, 9, fi_mr_key(at.mr_b.get()), nullptr);
        });
        at.pair->a.next();
        cr_assert(at.a->read(kBytes, kBytes) == bytes);
    }
}

Test(hmem_kinds, a_copy_that_fails_is_said) {
    for (const Named& kind : kKinds) {
        Devices at(kind);
        fab::standin::fail_copies(0);
        RVT_EQ(fi_tsend(at.pair->a.ep.get(), at.a->at(), 100, at.desc_a(), at.pair->a.peer, 7,
                        nullptr),
               -FI_EIO);
        fab::standin::fail_copies(-1);
    }
}

Test(hmem_kinds, other_ways_than_by_its_owner_are_forbidden_by_a_yes_alone) {
    for (const char* yes : {"1", "yes", "True", "on"}) {
        setenv("FI_HMEM_DISABLE_P2P", yes, 1);
        RVT_ASSERT(rvt::hmem::has_no_p2p());
    }
    for (const char* no : {"0", "no", "False", "off", "", "2"}) {
        setenv("FI_HMEM_DISABLE_P2P", no, 1);
        RVT_ASSERT(!rvt::hmem::has_no_p2p());
    }
    unsetenv("FI_HMEM_DISABLE_P2P");
    RVT_ASSERT(!rvt::hmem::has_no_p2p());
}
