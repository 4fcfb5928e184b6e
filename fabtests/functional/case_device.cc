// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices, as dma-bufs: fi_mr(3), FI_MR_DMABUF. With -d every other case of RDM and DGRAM
// endpoints has its buffers there, too; here is what only concerns them.
#include <rdma/fi_ext_rvt.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/device_memory.h"
#include "functional/device_case.h"

namespace fab {
namespace {

constexpr std::uint64_t kAllAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

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

/// A word after atomics whose operands, compared values and results are where `at_local` names
/// them.
template <class AtLocal>
void do_atomics(Party& party, char* local, AtLocal at_local, void* desc, const RemoteRegion& word) {
    constexpr std::size_t kOperand = 64;
    constexpr std::size_t kCompare = 128;
    constexpr std::size_t kResult = 192;
    const auto put = [&](std::size_t offset, std::uint64_t value) {
        std::memcpy(local + offset, &value, sizeof value);
    };
    const auto result = [&] {
        std::uint64_t value = 0;
        std::memcpy(&value, local + kResult, sizeof value);
        return value;
    };
    Contexts contexts(2);
    put(kOperand, 5);
    put(kResult, ~std::uint64_t{0});
    party.ep.post([&] {
        return fi_fetch_atomic(party.ep.ep, at_local(kOperand), 1, desc, at_local(kResult), desc,
                               party.peer(), word.base, word.key, FI_UINT64, FI_SUM,
                               contexts.at(0));
    });
    party.ep.wait_tx();
    FAB_EQUAL(result(), 100u);
    put(kOperand, 77);
    put(kCompare, 105);
    party.ep.post([&] {
        return fi_compare_atomic(party.ep.ep, at_local(kOperand), 1, desc, at_local(kCompare), desc,
                                 at_local(kResult), desc, party.peer(), word.base, word.key,
                                 FI_UINT64, FI_CSWAP, contexts.at(1));
    });
    party.ep.wait_tx();
    FAB_EQUAL(result(), 105u);
}

/// Writes, reads and atomics between a dma-buf and memory of the host.
template <bool kIsTargetDevice>
void accesses(Rank& self) {
    constexpr std::size_t kMost = 200'000;
    constexpr std::uint64_t kBefore = 100;
    Device device(kMost);
    std::vector<char> host(kMost);
    Party party(self, {.caps = FI_RMA | FI_ATOMIC,
                       .tx_op_flags = FI_DELIVERY_COMPLETE,
                       .mr_mode = kAnyMrMode | FI_MR_HMEM});
    const Part part(party.ep, device.fd, 0, kMost);
    const Region region(party.ep, host.data(), kMost, kAllAccess);
    const bool has_device = (self.rank == 1) == kIsTargetDevice;
    char* const memory = has_device ? device.memory : host.data();
    const auto at_local = [&](std::size_t offset) {
        return has_device ? at(offset) : host.data() + offset;
    };
    void* const desc = has_device ? part.desc() : region.desc();
    const RemoteRegion remote =
        party.trade(self.other(), has_device ? part.remote() : region.remote());
    if (self.rank == 1) {
        party.barrier();
        std::vector<char> expected(kMost);
        fill(expected.data(), kMost, 3);
        FAB_EQUAL(std::memcmp(memory, expected.data(), kMost), 0);
        std::memcpy(memory + 8, &kBefore, sizeof kBefore);
        party.barrier();
        party.barrier();
        std::uint64_t word = 0;
        std::memcpy(&word, memory + 8, sizeof word);
        FAB_EQUAL(word, 77u);
        return;
    }
    Contexts contexts(2);
    unsigned seed = 1;
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{5000}, kMost}) {
        fill(memory, bytes, seed);
        party.ep.post([&] {
            return fi_write(party.ep.ep, at_local(0), bytes, desc, party.peer(), remote.base,
                            remote.key, contexts.at(0));
        });
        party.ep.wait_tx();
        std::memset(memory, 0, kMost);
        party.ep.post([&] {
            return fi_read(party.ep.ep, at_local(0), bytes, desc, party.peer(), remote.base,
                           remote.key, contexts.at(1));
        });
        party.ep.wait_tx();
        std::vector<char> expected(bytes);
        fill(expected.data(), bytes, seed++);
        FAB_EQUAL(std::memcmp(memory, expected.data(), bytes), 0);
    }
    party.barrier();  // it looks at what was written
    party.barrier();  // and has a word for atomics
    do_atomics(party, memory, at_local, desc, {.base = remote.base + 8, .key = remote.key});
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

/// Hosts map nothing of each other.
bool tells_mappings() {
    return settings.exporter == "standin" && !settings.has_hosts;
}

constexpr ino_t kAnyFile = 0;  // of a process that has none of its own

/// Whether this process has that dma-buf mapped.
bool has_mapped(ino_t number) {
    std::string name;
    if (number != kAnyFile) {
        name.append(" ").append(std::to_string(number)).append(" ");
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(kStandInName) != std::string::npos && line.find(name) != std::string::npos) {
            return true;
        }
    }
    return false;
}

/// Who receives large messages from a dma-buf on its own host comes to map it, and copies them from
/// there, once; when it is registered no more, the mapping goes.
void message_from_mapping(Rank& self) {
    if (!tells_mappings()) skip("no dma-buf of this host whose mappings can be told");
    constexpr std::size_t kLength = 1 << 20;
    Device device(kLength + kPage);
    Party party(self, {.caps = FI_TAGGED | FI_MSG, .mr_mode = kAnyMrMode | FI_MR_HMEM});
    auto part = std::make_unique<Part>(party.ep, device.fd, kPage, kLength);
    struct stat own {};
    FAB_OK(fstat(device.fd, &own));
    const auto theirs = party.trade(self.other(), own.st_ino);
    Contexts contexts(2);
    const auto exchange = [&](std::uint64_t tag) {
        fill(device.memory + kPage, kLength, static_cast<unsigned>(self.rank));
        party.barrier();
        if (self.rank == 0) {
            party.ep.post([&] {
                return fi_tsend(party.ep.ep, at(kPage), kLength, part->desc(), party.peer(), tag,
                                contexts.at(0));
            });
            party.ep.wait_tx();
        } else {
            party.ep.post([&] {
                return fi_trecv(party.ep.ep, at(kPage), kLength, part->desc(), FI_ADDR_UNSPEC, tag,
                                0, contexts.at(1));
            });
            FAB_EQUAL(party.ep.wait_rx().len, kLength);
            std::vector<char> expected(kLength);
            fill(expected.data(), kLength, 0);
            FAB_EQUAL(std::memcmp(device.memory + kPage, expected.data(), kLength), 0);
        }
        party.barrier();
    };
    bool is_mapped = false;
    const double deadline = now_s() + 10;
    for (std::uint64_t tag = 1; !is_mapped; ++tag) {
        if (now_s() > deadline) FAB_FAIL("the peer does not map what it receives from");
        exchange(tag);
        const bool here = self.rank == 0 || has_mapped(theirs);
        is_mapped = party.trade(self.other(), here) && here;
    }
    for (std::uint64_t tag = 1; tag < 20; ++tag) exchange(tag);
    party.barrier();
    part.reset();
    party.barrier();
    while (has_mapped(theirs)) party.ep.progress();
    party.barrier();
}

/// Rank 1 maps the dma-buf of rank 0 that it accesses, unless one of the two may not.
template <int kWho, Keeps kHow>
void mapped_by_peer(Rank& self) {
    if (!tells_mappings()) skip("no dma-buf of this host whose mappings can be told");
    constexpr std::size_t kBytes = 64 << 10;
    constexpr int kEnough = 300;  // accesses: the first of them asks for the mapping
    Party party(self, spec_of_keeper<kWho, kHow>(self, FI_RMA));
    if (self.rank == 0) {
        Device device(kBytes);
        const Part part(party.ep, device.fd, 0, kBytes);
        party.trade(1, part.remote());
        party.barrier();
        std::vector<char> expected(kBytes);
        fill(expected.data(), kBytes, 5);
        FAB_EQUAL(std::memcmp(device.memory, expected.data(), kBytes), 0);
        party.barrier();
        return;
    }
    const RemoteRegion remote = party.trade(0, RemoteRegion{});
    std::vector<char> bytes(kBytes);
    fill(bytes.data(), kBytes, 5);
    for (int i = 0; kWho == kNobody ? !has_mapped(kAnyFile) : i < kEnough; ++i) {
        party.ep.post([&] {
            return fi_write(party.ep.ep, bytes.data(), kBytes, nullptr, party.peer(), remote.base,
                            remote.key, nullptr);
        });
        party.ep.wait_tx();
    }
    FAB_EQUAL(has_mapped(kAnyFile), kWho == kNobody);
    party.barrier();
    party.barrier();
}

/// The exporter takes the buffer's pages away from whoever has mapped them, and has others in their
/// place, with what the device has written meanwhile.
void move_elsewhere(const Device& device, unsigned seed) {
    std::vector<char> now(device.length);
    fill(now.data(), now.size(), seed);
    const auto bytes = static_cast<off_t>(device.length);
    if (fallocate(device.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 ||
        pwrite(device.fd, now.data(), now.size(), 0) != bytes) {
        FAB_FAIL("moving a stand-in: %s", strerrordesc_np(errno));
    }
}

/// What was registered, and mapped by the peer, is where its exporter has it now.
void moved(Rank& self) {
    if (settings.exporter != "standin") skip("no exporter that can be told to move a buffer");
    constexpr std::size_t kBytes = 100'000;
    constexpr unsigned kTurns = 4;
    Party party(self, {.caps = FI_TAGGED | FI_RMA,
                       .tx_op_flags = FI_DELIVERY_COMPLETE,
                       .mr_mode = kAnyMrMode | FI_MR_HMEM});
    std::vector<char> bytes(kBytes);
    std::vector<char> expected(kBytes);
    if (self.rank == 0) {
        Device device(kBytes);
        const Part part(party.ep, device.fd, 0, kBytes);
        party.trade(1, part.remote());
        for (unsigned turn = 0; turn < kTurns; ++turn) {
            move_elsewhere(device, turn);
            party.ep.post([&] {
                return fi_tsend(party.ep.ep, at(0), kBytes, part.desc(), party.peer(), turn,
                                nullptr);
            });
            party.ep.wait_tx();
            party.barrier();  // it may read
            party.barrier();  // it has read, and written half of it
            fill(expected.data(), kBytes / 2, 50 + turn);
            FAB_EQUAL(std::memcmp(device.memory, expected.data(), kBytes / 2), 0);
            party.ep.post([&] {
                return fi_trecv(party.ep.ep, at(0), kBytes, part.desc(), FI_ADDR_UNSPEC, turn, 0,
                                nullptr);
            });
            move_elsewhere(device, 99);
            party.barrier();  // it may send
            party.ep.wait_rx();
            fill(expected.data(), kBytes, 70 + turn);
            FAB_EQUAL(std::memcmp(device.memory, expected.data(), kBytes), 0);
        }
        party.barrier();
        return;
    }
    const RemoteRegion remote = party.trade(0, RemoteRegion{});
    const auto access = [&](bool is_write, std::size_t count) {
        party.ep.post([&] {
            return is_write ? fi_write(party.ep.ep, bytes.data(), count, nullptr, party.peer(),
                                       remote.base, remote.key, nullptr)
                            : fi_read(party.ep.ep, bytes.data(), count, nullptr, party.peer(),
                                      remote.base, remote.key, nullptr);
        });
        party.ep.wait_tx();
    };
    for (unsigned turn = 0; turn < kTurns; ++turn) {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, bytes.data(), kBytes, nullptr, FI_ADDR_UNSPEC, turn, 0,
                            nullptr);
        });
        party.ep.wait_rx();
        fill(expected.data(), kBytes, turn);
        FAB_EQUAL(std::memcmp(bytes.data(), expected.data(), kBytes), 0);
        party.barrier();
        do {  // from the second turn on by a mapping that it had before the buffer moved
            std::memset(bytes.data(), 0, kBytes);
            access(false, kBytes);
            FAB_EQUAL(std::memcmp(bytes.data(), expected.data(), kBytes), 0);
        } while (!settings.has_hosts && !has_mapped(kAnyFile));
        fill(bytes.data(), kBytes, 50 + turn);
        access(true, kBytes / 2);
        party.barrier();
        party.barrier();
        fill(bytes.data(), kBytes, 70 + turn);
        party.ep.post([&] {
            return fi_tsend(party.ep.ep, bytes.data(), kBytes, nullptr, party.peer(), turn,
                            nullptr);
        });
        party.ep.wait_tx();
    }
    party.barrier();
}

constexpr Case kDeviceTable[] = {
    {"device_moved", moved},
    {"device_mapped_by_peer", mapped_by_peer<kNobody, Keeps::kByOption>},
    {"device_kept_from_peers_by_environment", mapped_by_peer<0, Keeps::kByEnvironment>},
    {"device_of_peer_left_alone_by_environment", mapped_by_peer<1, Keeps::kByEnvironment>},
    {"device_kept_from_peers_by_option", mapped_by_peer<0, Keeps::kByOption>},
    {"device_of_peer_left_alone_by_option", mapped_by_peer<1, Keeps::kByOption>},
    {"device_named_by_offset", named_by_offset<0>},
    {"device_named_by_virtual_offset", named_by_offset<FI_MR_VIRT_ADDR | FI_MR_PROV_KEY>},
    {"device_beside_host_memory", beside_host_memory},
    {"device_accesses_host", accesses<false>},
    {"device_accessed_by_host", accesses<true>},
    {"device_refused", refused},
    {"device_let_go", let_go},
    {"device_message_from_mapping", message_from_mapping},
};

}  // namespace

const std::span<const Case> kDeviceCases = kDeviceTable;

}  // namespace fab
