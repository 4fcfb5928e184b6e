// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What only concerns memory of GPUs: their addresses in dma-bufs, and that peers of one host open
// it.
#include <rdma/fi_ext_rvt.h>

#include <array>
#include <cstring>
#include <vector>

#include <unistd.h>

#include "common/device_memory.h"
#include "functional/device_case.h"

namespace fab {
namespace {

/// A dma-buf that names its memory by the device's own address does as the memory does, whether the
/// CPU can map it or not.
void named_by_its_address(Rank& self) {
    constexpr std::size_t kBytes = 16 * kPage;
    constexpr std::size_t kSent = 40'000;
    if (is_dma_buf_exporter(settings.exporter) || settings.exporter.empty()) {
        skip("a dma-buf that has no address of its own");
    }
    const DeviceBuffer device = make_device_buffer(settings.exporter, kBytes);
    const int fd = dma_buf_of(device, kBytes);
    if (fd < 0) skip("the driver has no dma-buf for this memory");
    Party party(self, {.caps = FI_TAGGED, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    const fi_mr_dmabuf part{.fd = fd, .offset = kPage, .len = kSent, .base_addr = device.memory};
    fi_mr_attr attr{};
    attr.mr_iov = reinterpret_cast<const iovec*>(&part);
    attr.iov_count = 1;
    attr.access = FI_SEND | FI_RECV;
    attr.requested_key = 5;
    fid_mr* mr = nullptr;
    FAB_OK(fi_mr_regattr(party.ep.domain, &attr, FI_MR_DMABUF, &mr));
    char* const at = static_cast<char*>(device.memory) + kPage;
    fill(at, kSent, static_cast<unsigned>(self.rank));
    if (self.rank == 0) {
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, at, kSent, fi_mr_desc(mr), party.peer(), 1, nullptr);
        });
        party.ep.wait_tx();
    } else {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, at, kSent, fi_mr_desc(mr), FI_ADDR_UNSPEC, 1, 0, nullptr);
        });
        FAB_EQUAL(party.ep.wait_rx().len, kSent);
        std::vector<char> expected(kSent);
        fill(expected.data(), kSent, 0);
        FAB_EQUAL(std::memcmp(at, expected.data(), kSent), 0);
    }
    party.barrier();
    FAB_OK(fi_close(&mr->fid));
    close(fd);
    release_device_buffer(device, kBytes);
}

constexpr std::size_t kOpened = 1 << 20;

bool is_openable() {
    return is_standin(standin::How::kOpenable);
}

/// Has rank 1 take messages of rank 0 until it has opened the memory that they come from.
void have_it_opened(const Party& party, const Buffer& buffer) {
    for (bool is_open = false; !is_open;) {
        if (party.self.rank == 0) {
            party.send(buffer, kOpened);
            party.ep.wait_tx();
        } else {
            party.recv(buffer, kOpened);
            party.ep.wait_rx();
        }
        // Counted once: rank 1 may open it while it trades.
        const unsigned long long mine = standin_counts().opened;
        is_open = mine + party.trade(party.self.other(), mine) != 0;
    }
}

/// What the device's library copied in either process while rank 0 did something that rank 1 saw.
template <class Act>
std::array<standin::Counts, 2> copied_by(const Party& party, Act act) {
    party.barrier();
    const standin::Counts before = standin_counts();
    act();
    party.barrier();
    standin::Counts mine = standin_counts();
    mine.copied -= before.copied;
    mine.between -= before.between;
    const standin::Counts theirs = party.trade(party.self.other(), mine);
    return party.self.rank == 0 ? std::array{mine, theirs} : std::array{theirs, mine};
}

/// A message of rank 0 that the library of rank 1 alone copies, once.
void send_from_device_to_device(const Party& party, const Buffer& buffer) {
    const auto sent = copied_by(party, [&] {
        if (party.self.rank == 0) {
            buffer.fill(3);
            party.send(buffer, kOpened);
            party.ep.wait_tx();
        } else {
            party.recv(buffer, kOpened);
            party.ep.wait_rx();
            buffer.expect(3, kOpened);
        }
    });
    FAB_EQUAL(sent[0].copied, 0U);
    FAB_EQUAL(sent[1].between, kOpened);
    FAB_EQUAL(sent[1].copied, kOpened);
}

/// Data goes from device to device once, and by the library of one process alone.
void opened_by_peer(Rank& self) {
    if (!is_openable()) skip("no device's memory that another process can open");
    Party party(self, {.caps = FI_MSG | FI_RMA,
                       .tx_op_flags = FI_DELIVERY_COMPLETE,
                       .mr_mode = kAnyMrMode | FI_MR_HMEM});
    {
        const Buffer buffer(party.ep, kOpened);
        buffer.fill(static_cast<unsigned>(self.rank));
        have_it_opened(party, buffer);
        send_from_device_to_device(party, buffer);
        const RemoteRegion remote = party.trade(self.other(), buffer.remote());
        for (const bool is_write : {true, false}) {
            // Rank 1 opened rank 0's memory above: it is the initiator here.
            buffer.fill(static_cast<unsigned>(10 + self.rank));
            const auto accessed = copied_by(party, [&] {
                if (self.rank == 0) return;
                party.ep.post([&] {
                    return is_write ? fi_write(party.ep.ep, buffer.as(), kOpened, buffer.desc(),
                                               party.peer(), remote.base, remote.key, nullptr)
                                    : fi_read(party.ep.ep, buffer.as(), kOpened, buffer.desc(),
                                              party.peer(), remote.base, remote.key, nullptr);
                });
                party.ep.wait_tx();
            });
            FAB_EQUAL(accessed[0].copied, 0U);
            FAB_EQUAL(accessed[1].between, kOpened);
            FAB_EQUAL(accessed[1].copied, kOpened);
            buffer.expect(is_write ? 11 : 10, kOpened);
        }
        party.barrier();
    }
    // The region is closed: so is what was opened by it, when the peer's progress hears of it.
    while (standin_counts().opened != 0) party.ep.progress();
}

/// So does a long message from a region of which the peer has never heard.
void opened_at_once(Rank& self) {
    if (!is_openable()) skip("no device's memory that another process can open");
    Party party(
        self,
        {.caps = FI_MSG, .tx_op_flags = FI_DELIVERY_COMPLETE, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    for (int i = 0; i < 3; ++i) {
        const Buffer buffer(party.ep, kOpened);
        send_from_device_to_device(party, buffer);
    }
    while (standin_counts().opened != 0) party.ep.progress();
}

/// A region that is closed while the peer may still be asking for it leaves nothing open there.
void closed_while_asked_for(Rank& self) {
    if (!is_openable()) skip("no device's memory that another process can open");
    Party party(self, {.caps = FI_MSG, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    constexpr std::size_t kAskedFor = 64 << 10;
    for (int i = 0; i < 50; ++i) {
        const Buffer buffer(party.ep, kAskedFor);
        if (self.rank == 0) {
            party.send(buffer, kAskedFor);
            party.ep.wait_tx();
        } else {
            party.recv(buffer, kAskedFor);
            party.ep.wait_rx();
        }
    }
    party.barrier();
    while (standin_counts().opened != 0) party.ep.progress();
}

/// A copy that fails is done another way, or ends both sides' operations; what follows succeeds.
void copy_fails(Rank& self) {
    if (!is_openable()) skip("no device's memory that another process can open");
    Party party(self, {.caps = FI_MSG, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    const Buffer buffer(party.ep, kOpened);
    have_it_opened(party, buffer);
    // Whose copy fails: the receiver's from the device of its peer, then, as that one is not asked
    // any more, the sender's to the host.
    for (const int whose : {1, 0, -1}) {
        const bool is_lost = whose == 0;
        buffer.fill(static_cast<unsigned>(self.rank));
        party.barrier();
        if (self.rank == 0) {
            if (whose == 0) fail_next_copy();
            party.send(buffer, kOpened);
            FAB_EQUAL(party.ep.wait_any(party.ep.tx_cq).err, is_lost ? FI_EIO : 0);
        } else {
            party.recv(buffer, kOpened);
            if (whose == 1) fail_next_copy();
            FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, is_lost ? FI_EREMOTEIO : 0);
            if (!is_lost) buffer.expect(0, kOpened);
        }
    }
}

/// Neither opens the memory of the other, whichever of them may not.
template <int kWho, Keeps kHow>
void opened_by_nobody(Rank& self) {
    if (!is_openable()) skip("no device's memory that another process can open");
    Party party(self, spec_of_keeper<kWho, kHow>(self, FI_MSG | FI_RMA));
    const Buffer buffer(party.ep, kOpened);
    const RemoteRegion remote = party.trade(self.other(), buffer.remote());
    for (const int sender : {0, 1, 0, 1}) {
        buffer.fill(static_cast<unsigned>(20 + self.rank));
        party.barrier();
        if (self.rank == sender) {
            party.send(buffer, kOpened);
            party.ep.wait_tx();
        } else {
            party.recv(buffer, kOpened);
            party.ep.wait_rx();
            buffer.expect(static_cast<unsigned>(20 + sender), kOpened);
            buffer.fill(static_cast<unsigned>(30 + self.rank));
        }
        party.barrier();
        if (self.rank == sender) {
            party.ep.post([&] {
                return fi_read(party.ep.ep, buffer.as(), kOpened, buffer.desc(), party.peer(),
                               remote.base, remote.key, nullptr);
            });
            party.ep.wait_tx();
            buffer.expect(static_cast<unsigned>(30 + self.other()), kOpened);
        }
        party.barrier();
        FAB_EQUAL(standin_counts().opened, 0U);
    }
}

constexpr Case kGpuTable[] = {
    {"gpu_opened_by_nobody_by_environment", opened_by_nobody<0, Keeps::kByEnvironment>},
    {"gpu_opened_by_nobody_by_option", opened_by_nobody<1, Keeps::kByOption>},
    {"gpu_named_by_its_address", named_by_its_address},
    {"gpu_opened_by_peer", opened_by_peer},
    {"gpu_opened_at_once", opened_at_once},
    {"gpu_closed_while_asked_for", closed_while_asked_for},
    {"gpu_copy_fails", copy_fails},
};

}  // namespace

const std::span<const Case> kGpuCases = kGpuTable;

}  // namespace fab
