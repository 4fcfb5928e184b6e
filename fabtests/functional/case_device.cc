// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices, as dma-bufs: fi_mr(3), FI_MR_DMABUF. With -d every other case of RDM endpoints
// has its buffers there, too; here is what only concerns them.
#include <rdma/fi_ext_rvt.h>

#include <array>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/device_memory.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr std::uint64_t kAllAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr std::size_t kPage = 4096;

/// A dma-buf, and the application's own view of it.
struct Device {
    explicit Device(std::size_t bytes) : length(bytes) {
        if (settings.exporter.empty()) skip("no exporter of dma-bufs was named (-d)");
        fd = export_dma_buf(settings.exporter, length);
        memory = static_cast<char*>(map_dma_buf(fd, length));
        std::memset(memory, 0, length);
    }
    ~Device() {
        unmap_dma_buf(memory, length);
        close(fd);
    }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    std::size_t length;
    int fd = -1;
    char* memory = nullptr;
};

/// A part of a dma-buf, registered without an address: its bytes are named by their place in it.
class Part {
  public:
    Part(Endpoint& ep, int fd, std::uint64_t offset, std::size_t length)
        : virtual_addresses_((ep.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0),
          offset_(offset) {
        FAB_OK(try_reg(ep, fd, offset, length, kAllAccess, &mr_));
    }
    ~Part() {
        if (fi_close(&mr_->fid) != 0) FAB_FAIL("a region does not close");
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    static int try_reg(const Endpoint& ep, int fd, std::uint64_t offset, std::size_t length,
                       std::uint64_t access, fid_mr** mr) {
        const fi_mr_dmabuf part{.fd = fd, .offset = offset, .len = length, .base_addr = nullptr};
        fi_mr_attr attr{};
        attr.mr_iov = reinterpret_cast<const iovec*>(&part);
        attr.iov_count = 1;
        attr.access = access;
        attr.requested_key = offset + 1;
        return fi_mr_regattr(ep.domain, &attr, FI_MR_DMABUF, mr);
    }
    void* desc() const { return fi_mr_desc(mr_); }
    RemoteRegion remote() const {
        return {.base = virtual_addresses_ ? offset_ : 0, .key = fi_mr_key(mr_)};
    }

  private:
    fid_mr* mr_ = nullptr;
    bool virtual_addresses_;
    std::uint64_t offset_;
};

/// How a byte of a dma-buf that has no address is named in a call.
void* at(std::uint64_t offset) {
    return reinterpret_cast<void*>(offset);  // NOLINT(performance-no-int-to-ptr)
}

void fill(char* memory, std::size_t length, unsigned seed) {
    for (std::size_t i = 0; i < length; ++i) memory[i] = static_cast<char>(seed + i * 7);
}

/// Without an address buffers are places in the dma-buf, on both sides of a transfer.
template <int kMode>
void named_by_offset(Rank& self) {
    constexpr std::size_t kOffset = kPage + 100;
    constexpr std::size_t kLength = 300'000;
    Device device(kOffset + kLength + kPage);
    Party party(self, {.caps = FI_TAGGED | FI_RMA,
                       .tx_op_flags = FI_DELIVERY_COMPLETE,
                       .mr_mode = kMode | FI_MR_HMEM});
    const Part part(party.ep, device.fd, kOffset, kLength);
    const RemoteRegion remote = party.trade(self.other(), part.remote());
    Contexts contexts(2);
    if (self.rank == 0) {
        fill(device.memory + kOffset, kLength, 1);
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, at(kOffset), kLength, part.desc(), party.peer(), 5,
                            contexts.at(0));
        });
        party.ep.wait_tx();
    } else {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, at(kOffset), kLength, part.desc(), FI_ADDR_UNSPEC, 5, 0,
                            contexts.at(0));
        });
        FAB_EQUAL(party.ep.wait_rx().len, kLength);
        std::vector<char> expected(kLength);
        fill(expected.data(), kLength, 1);
        FAB_EQUAL(std::memcmp(device.memory + kOffset, expected.data(), kLength), 0);
        FAB_EQUAL(device.memory[kOffset - 1], 0);
        FAB_EQUAL(device.memory[kOffset + kLength], 0);
    }
    party.barrier();
    // Back again by a read of a part, which the peer has as well.
    if (self.rank == 0) {
        std::memset(device.memory, 0, device.length);
        party.ep.post([&] {
            return fi_read(party.ep.ep, at(kOffset + 8), 5000, part.desc(), party.peer(),
                           remote.base + 16, remote.key, contexts.at(1));
        });
        party.ep.wait_tx();
        std::vector<char> expected(6000);
        fill(expected.data(), expected.size(), 1);
        FAB_EQUAL(std::memcmp(device.memory + kOffset + 8, expected.data() + 16, 5000), 0);
        FAB_EQUAL(device.memory[kOffset + 8 + 5000], 0);
    }
    party.barrier();
}

/// A buffer of the device between two of the host, in one message.
void beside_host_memory(Rank& self) {
    Device device(3 * kPage);
    Party party(self, {.caps = FI_TAGGED, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    const Part part(party.ep, device.fd, 0, device.length);
    constexpr std::size_t kEach = 3000;
    std::array<char, kEach> first{};
    std::array<char, kEach> last{};
    const std::array<iovec, 3> iov{{{first.data(), kEach}, {at(50), kEach}, {last.data(), kEach}}};
    std::array<void*, 3> descs{nullptr, part.desc(), nullptr};
    Contexts contexts(1);
    std::vector<char> whole(3 * kEach);
    fill(whole.data(), whole.size(), 9);
    if (self.rank == 0) {
        std::memcpy(first.data(), whole.data(), kEach);
        std::memcpy(device.memory + 50, whole.data() + kEach, kEach);
        std::memcpy(last.data(), whole.data() + 2 * kEach, kEach);
        party.ep.post([&] {
            return fi_tsendv(party.ep.ep, iov.data(), descs.data(), 3, party.peer(), 1,
                             contexts.at(0));
        });
        party.ep.wait_tx();
    } else {
        party.ep.post([&] {
            return fi_trecvv(party.ep.ep, iov.data(), descs.data(), 3, FI_ADDR_UNSPEC, 1, 0,
                             contexts.at(0));
        });
        FAB_EQUAL(party.ep.wait_rx().len, whole.size());
        FAB_EQUAL(std::memcmp(first.data(), whole.data(), kEach), 0);
        FAB_EQUAL(std::memcmp(device.memory + 50, whole.data() + kEach, kEach), 0);
        FAB_EQUAL(std::memcmp(last.data(), whole.data() + 2 * kEach, kEach), 0);
    }
    party.barrier();
}

/// What a dma-buf does not have is refused when it is registered, or when it is named.
void refused(Rank& self) {
    Device device(4 * kPage);
    Party party(self, {.caps = FI_TAGGED | FI_RMA, .mr_mode = FI_MR_HMEM});
    fid_mr* mr = nullptr;
    const auto reg = [&](int fd, std::uint64_t offset, std::size_t length, std::uint64_t access) {
        return Part::try_reg(party.ep, fd, offset, length, access, &mr);
    };
    FAB_EQUAL(reg(device.fd, kPage, 4 * kPage, kAllAccess), -FI_EINVAL);
    FAB_EQUAL(reg(device.fd, 5 * kPage, 0, kAllAccess), -FI_EINVAL);
    FAB_EQUAL(reg(device.fd, ~std::uint64_t{0}, 2, kAllAccess), -FI_EINVAL);
    FAB_EQUAL(reg(device.fd, 0, 0, kAllAccess), -FI_EINVAL);
    const int closed = dup(device.fd);
    close(closed);
    FAB_EQUAL(reg(closed, 0, kPage, kAllAccess), -FI_EBADF);
    const int read_only = export_dma_buf(settings.exporter, kPage, O_RDONLY);
    if (read_only >= 0) {
        FAB_EQUAL(reg(read_only, 0, kPage, kAllAccess), -FI_EACCES);
        FAB_OK(reg(read_only, 0, kPage, FI_SEND | FI_WRITE | FI_REMOTE_READ));
        FAB_OK(fi_close(&mr->fid));
        close(read_only);
    }
    if (settings.exporter == "standin") {
        const int unmappable = export_dma_buf("unmappable", kPage);
        FAB_EQUAL(reg(unmappable, 0, kPage, kAllAccess), -FI_EOPNOTSUPP);
        close(unmappable);
    }

    const Part part(party.ep, device.fd, kPage, kPage);
    char byte = 0;
    Contexts contexts(1);
    const auto send = [&](std::uint64_t offset, std::size_t length) {
        return fi_tsend(party.ep.ep, at(offset), length, part.desc(), party.peer(), 1,
                        contexts.at(0));
    };
    FAB_EQUAL(send(0, 8), -FI_EINVAL);
    FAB_EQUAL(send(kPage + 1, kPage), -FI_EINVAL);
    FAB_EQUAL(send(2 * kPage + 1, 0), -FI_EINVAL);
    FAB_EQUAL(fi_trecv(party.ep.ep, &byte, 1, part.desc(), FI_ADDR_UNSPEC, 1, 0, contexts.at(0)),
              -FI_EINVAL);
    party.barrier();
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.rx_cq, none));
}

/// An endpoint may be closed with receives posted, and a receive taken back: the device's memory is
/// let go. A stand-in whose memory is unmapped while it is accessed ends the test.
void let_go(Rank& self) {
    Device device(16 * kPage);
    Party party(self, {.caps = FI_MSG | FI_TAGGED,
                       .rx_op_flags = FI_MULTI_RECV,
                       .mr_mode = kAnyMrMode | FI_MR_HMEM});
    for (int turn = 0; turn < 3; ++turn) {
        const Part part(party.ep, device.fd, 0, device.length);
        Endpoint second({.caps = FI_MSG | FI_TAGGED}, party.ep);
        second.connect(self);
        Contexts contexts(6);
        const fi_addr_t to = second.peers[static_cast<std::size_t>(self.other())];
        for (std::size_t i = 0; i < 4; ++i) {
            FAB_OK(fi_trecv(second.ep, at(64 * i), 64, part.desc(), FI_ADDR_UNSPEC, 99, 0,
                            contexts.at(i)));
        }
        FAB_OK(fi_cancel(&second.ep->fid, contexts.at(1)));
        FAB_EQUAL(second.wait_any(second.rx_cq).err, FI_ECANCELED);
        second.post(
            [&] { return fi_tsend(second.ep, at(0), 60'000, part.desc(), to, 1, contexts.at(4)); });
        party.barrier();
    }
}

constexpr Case kCases[] = {
    {"device_named_by_offset", named_by_offset<0>},
    {"device_named_by_virtual_offset", named_by_offset<FI_MR_VIRT_ADDR | FI_MR_PROV_KEY>},
    {"device_beside_host_memory", beside_host_memory},
    {"device_refused", refused},
    {"device_let_go", let_go},
};

}  // namespace

const std::span<const Case> kDeviceCases = kCases;

}  // namespace fab
