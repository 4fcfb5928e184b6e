// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices in the domain of a NIC, over stand-ins for both: what the NIC imports it is
// given by the device's own addresses, anything else is copied.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "common/standin.h"
#include "core/ud_nic_host.h"
#include "ofi/ep_dgram.h"
#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;
using fab::standin::How;

extern "C" int standin_dma_buf(const void* memory);

namespace {

constinit long page_bytes = 0;  // of the host, if the test says so

}  // namespace

// The provider, which is part of this program, calls this one.
extern "C" long sysconf(int name) noexcept {
    if (name == _SC_PAGESIZE) {
        return page_bytes != 0 ? page_bytes : static_cast<long>(getauxval(AT_PAGESZ));
    }
    static const auto next = reinterpret_cast<decltype(&sysconf)>(dlsym(RTLD_NEXT, "sysconf"));
    return next(name);
}

namespace {

constexpr std::size_t kBytes = 64u << 10;
constexpr std::uint64_t kHere = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
constexpr std::uint64_t kPeers = FI_REMOTE_READ | FI_REMOTE_WRITE;

std::uintptr_t address_of(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
}

std::vector<char> numbered(std::size_t count) {
    std::vector<char> bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
        bytes[i] = static_cast<char>(i * 7 + 3);
    }
    return bytes;
}

/// Connected endpoints with memory of a device that the CPU cannot touch.
struct Devices {
    explicit Devices(int dmabuf_error = 0, How how = How::kUnmappable)
        : is_chosen((fab::standin::use(how), true)) {
        on.mock.dmabuf_error = dmabuf_error;
        memory = static_cast<char*>(fab::standin::allocate(kBytes));
        ep = with.connected();
    }
    ~Devices() {
        if (mr != nullptr) {
            RVT_EQ(fi_close(&mr->fid), 0);
        }
    }
    Devices(const Devices&) = delete;
    Devices& operator=(const Devices&) = delete;

    int try_reg(std::uint64_t access, std::size_t offset = 0) {
        const iovec buffer{memory + offset, kBytes - offset};
        fi_mr_attr attr{};
        attr.mr_iov = &buffer;
        attr.iov_count = 1;
        attr.access = access;
        attr.iface = FI_HMEM_CUDA;
        return fi_mr_regattr(with.domain, &attr, 0, &mr);
    }
    int try_reg_dma_buf(int fd, std::size_t offset, void* base) {
        const ofi::MrDmabuf part{
            .fd = fd, .offset = offset, .len = kBytes - offset, .base_addr = base};
        fi_mr_attr attr{};
        attr.mr_iov = reinterpret_cast<const iovec*>(&part);
        attr.iov_count = 1;
        attr.access = kHere;
        return fi_mr_regattr(with.domain, &attr, ofi::kMrDmabuf, &mr);
    }
    void* desc() { return fi_mr_desc(mr); }
    const verbs::MockNic::Region& region() { return on.mock.regions.back(); }
    /// The NIC has done what was posted last to the pair.
    void complete(std::uint64_t wr_id, ibv_wc_opcode opcode, std::size_t bytes) {
        ibv_wc wc{};
        wc.wr_id = wr_id;
        wc.opcode = opcode;
        wc.byte_len = static_cast<std::uint32_t>(bytes);
        wc.qp_num = on.mock.last_pair->qp_num;
        on.mock.completions.push_back(wc);
        fi_cq_entry entry{};
        RVT_EQ(fi_cq_read(with.cq, &entry, 1), 1);
        RVT_ASSERT(entry.op_context == this);
    }

    // The library is looked for when the first region is registered.
    const bool is_chosen;
    World on;
    Endpoints with{false, FI_MSG | FI_RMA | FI_HMEM};
    char* memory = nullptr;
    fid_ep* ep = nullptr;
    fid_mr* mr = nullptr;
};

}  // namespace

Test(nic_hmem, what_the_nic_imports_it_is_given_by_the_devices_addresses) {
    Devices at;
    RVT_EQ(at.try_reg(kHere | kPeers), 0);
    RVT_ASSERT(at.region().fd >= 0);
    RVT_EQ(at.region().iova, address_of(at.memory));
    RVT_EQ(at.region().length, kBytes);
    const auto key = static_cast<std::uint32_t>(fi_mr_key(at.mr));
    RVT_EQ(fi_send(at.ep, at.memory + 100, 512, at.desc(), 0, &at), 0);
    RVT_EQ(at.on.mock.lists.back().front().addr, address_of(at.memory) + 100);
    RVT_EQ(at.on.mock.lists.back().front().lkey + 1, key);
    RVT_EQ(at.on.mock.sends.back().send_flags & IBV_SEND_INLINE, 0);
    RVT_EQ(fi_recv(at.ep, at.memory + 8, 64, at.desc(), 0, &at), 0);
    RVT_EQ(at.on.mock.receives.back().second.front().addr, address_of(at.memory) + 8);
    RVT_EQ(fi_read(at.ep, at.memory, 64, at.desc(), 0, 0x1000, 5, &at), 0);
    RVT_EQ(at.on.mock.lists.back().front().addr, address_of(at.memory));
    RVT_EQ(fab::standin::counts().copied, 0);
}

Test(nic_hmem, memory_is_exported_by_whole_pages_of_the_host) {
    constexpr std::size_t kPage = 16u << 10;
    constexpr std::size_t kOffset = 4096;
    fab::standin::use_pages(kPage);
    Devices at;
    page_bytes = kPage;
    RVT_EQ(at.try_reg(kHere | kPeers, kOffset), 0);
    page_bytes = 0;
    RVT_ASSERT(at.region().fd >= 0);
    RVT_EQ(at.region().offset, kOffset);
    RVT_EQ(at.region().iova, address_of(at.memory) + kOffset);
    RVT_EQ(at.region().length, kBytes - kOffset);
}

Test(nic_hmem, what_the_nic_does_not_import_is_copied_before_it_is_sent) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    RVT_EQ(at.region().fd, -1);
    const auto bytes = numbered(512);
    fab::standin::write(at.memory + 100, bytes.data(), bytes.size());
    RVT_EQ(fi_send(at.ep, at.memory + 100, 512, at.desc(), 0, &at), 0);
    const ibv_sge sent = at.on.mock.lists.back().front();
    RVT_EQ(sent.addr, at.region().addr + 100);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the copy
    RVT_EQ(std::memcmp(reinterpret_cast<const void*>(sent.addr), bytes.data(), 512), 0);
    at.complete(at.on.mock.sends.back().wr_id, IBV_WC_SEND, 512);
}

Test(nic_hmem, what_is_received_into_a_copy_is_in_the_device_when_it_completes) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    RVT_EQ(fi_recv(at.ep, at.memory + 8, 600, at.desc(), 0, &at), 0);
    const auto& [wr_id, list] = at.on.mock.receives.back();
    RVT_EQ(list.front().addr, at.region().addr + 8);
    const auto bytes = numbered(300);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the copy
    std::memcpy(reinterpret_cast<void*>(list.front().addr), bytes.data(), bytes.size());
    at.complete(wr_id, IBV_WC_RECV, bytes.size());
    std::vector<char> there(bytes.size());
    fab::standin::read(there.data(), at.memory + 8, there.size());
    RVT_ASSERT(there == bytes);
    RVT_EQ(fab::standin::counts().copied, bytes.size());
}

Test(nic_hmem, what_is_read_into_a_copy_is_in_the_device_when_it_completes) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    RVT_EQ(fi_read(at.ep, at.memory, 200, at.desc(), 0, 0x1000, 5, &at), 0);
    const auto bytes = numbered(200);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the copy
    std::memcpy(reinterpret_cast<void*>(at.on.mock.lists.back().front().addr), bytes.data(), 200);
    at.complete(at.on.mock.sends.back().wr_id, IBV_WC_RDMA_READ, 200);
    std::vector<char> there(200);
    fab::standin::read(there.data(), at.memory, there.size());
    RVT_ASSERT(there == bytes);
}

Test(nic_hmem, a_copy_that_fails_is_said) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    fab::standin::fail_copies(0);
    RVT_EQ(fi_send(at.ep, at.memory, 512, at.desc(), 0, &at), -FI_EIO);
    RVT_ASSERT(at.on.mock.sends.empty());
}

Test(nic_hmem, peers_do_not_reach_what_is_copied) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere | FI_REMOTE_WRITE), -FI_EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere | FI_REMOTE_READ), -FI_EOPNOTSUPP);
}

Test(nic_hmem, what_is_injected_is_copied_by_the_devices_library) {
    Devices at;
    RVT_EQ(at.try_reg(kHere), 0);
    const auto bytes = numbered(32);
    fab::standin::write(at.memory, bytes.data(), bytes.size());
    const iovec buffer{at.memory, bytes.size()};
    void* desc = at.desc();
    const fi_msg message{.msg_iov = &buffer, .desc = &desc, .iov_count = 1, .context = &at};
    RVT_EQ(fi_sendmsg(at.ep, &message, FI_INJECT | FI_COMPLETION), 0);
    RVT_NE(at.on.mock.sends.back().send_flags & IBV_SEND_INLINE, 0);
    RVT_NE(at.on.mock.lists.back().front().addr, address_of(at.memory));
    RVT_EQ(fab::standin::counts().copied, bytes.size());
}

Test(nic_hmem, who_is_not_to_reach_devices_copies) {
    setenv("FI_HMEM_DISABLE_P2P", "1", 1);
    Devices at;
    RVT_EQ(at.try_reg(kHere), 0);
    RVT_EQ(at.region().fd, -1);
}

Test(nic_hmem, a_dma_buf_is_imported_by_its_descriptor) {
    Devices at;
    const int fd = standin_dma_buf(at.memory);
    RVT_EQ(at.try_reg_dma_buf(fd, 4096, at.memory), 0);
    close(fd);
    RVT_ASSERT(at.region().fd >= 0 && at.region().fd != fd);
    RVT_EQ(at.region().offset, 4096);
    RVT_EQ(at.region().iova, address_of(at.memory) + 4096);
    RVT_EQ(fi_send(at.ep, at.memory + 5000, 512, at.desc(), 0, &at), 0);
    RVT_EQ(at.on.mock.lists.back().front().addr, address_of(at.memory) + 5000);
}

Test(nic_hmem, a_dma_buf_that_nobody_reaches_is_refused) {
    Devices at(EOPNOTSUPP);
    const int fd = standin_dma_buf(at.memory);
    RVT_EQ(at.try_reg_dma_buf(fd, 0, nullptr), -FI_EOPNOTSUPP);
    RVT_EQ(at.try_reg_dma_buf(fd, kBytes + 1, at.memory), -FI_EINVAL);
    close(fd);
    RVT_EQ(at.try_reg_dma_buf(fd, 0, at.memory), -FI_EBADF);
}

Test(nic_hmem, a_dma_buf_that_the_cpu_maps_is_copied_where_the_nic_does_not_import_it) {
    Devices at(EOPNOTSUPP, How::kMappable);
    const int fd = standin_dma_buf(at.memory);
    RVT_EQ(at.try_reg_dma_buf(fd, 4096, at.memory), 0);
    close(fd);
    const auto bytes = numbered(512);
    fab::standin::write(at.memory + 5000, bytes.data(), bytes.size());
    RVT_EQ(fi_send(at.ep, at.memory + 5000, 512, at.desc(), 0, &at), 0);
    const ibv_sge sent = at.on.mock.lists.back().front();
    RVT_EQ(sent.addr, at.region().addr + 5000 - 4096);
    RVT_EQ(std::memcmp(reinterpret_cast<const void*>(sent.addr), bytes.data(), 512), 0);
    at.complete(at.on.mock.sends.back().wr_id, IBV_WC_SEND, 512);
    RVT_EQ(fi_recv(at.ep, at.memory + 4096, 512, at.desc(), 0, &at), 0);
    const auto& [wr_id, list] = at.on.mock.receives.back();
    std::memcpy(reinterpret_cast<void*>(list.front().addr), bytes.data(), bytes.size());
    at.complete(wr_id, IBV_WC_RECV, bytes.size());
    std::vector<char> there(bytes.size());
    fab::standin::read(there.data(), at.memory + 4096, there.size());
    RVT_ASSERT(there == bytes);
}

/// The rest of a list may be ordinary memory, with its own descriptor.
Test(nic_hmem, a_request_names_memory_of_both) {
    for (const int error : {0, EOPNOTSUPP}) {
        Devices at(error);
        RVT_EQ(at.try_reg(kHere), 0);
        const iovec buffers[] = {{at.memory, 300}, {at.with.memory.data(), 200}};
        void* desc[] = {at.desc(), fi_mr_desc(at.with.mr)};
        RVT_EQ(fi_sendv(at.ep, buffers, desc, 2, 0, &at), 0);
        const auto& list = at.on.mock.lists.back();
        RVT_EQ(list[0].addr, error == 0 ? address_of(at.memory) : at.region().addr);
        RVT_EQ(list[1].addr, address_of(at.with.memory.data()));
        RVT_NE(list[0].lkey, list[1].lkey);
    }
}

/// And one region may be imported where another is not.
Test(nic_hmem, a_request_names_what_is_imported_and_what_is_copied) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    const std::uint64_t copy = at.region().addr;
    fid_mr* const copied = std::exchange(at.mr, nullptr);
    char* const memory = at.memory;
    at.on.mock.dmabuf_error = 0;
    at.memory = static_cast<char*>(fab::standin::allocate(kBytes));
    RVT_EQ(at.try_reg(kHere), 0);
    const iovec buffers[] = {{memory, 300}, {at.memory, 200}};
    void* desc[] = {fi_mr_desc(copied), at.desc()};
    const auto expect_both = [&](const auto& list) {
        RVT_EQ(list[0].addr, copy);
        RVT_EQ(list[1].addr, address_of(at.memory));
        RVT_NE(list[0].lkey, list[1].lkey);
    };
    RVT_EQ(fi_sendv(at.ep, buffers, desc, 2, 0, &at), 0);
    expect_both(at.on.mock.lists.back());
    RVT_EQ(fi_readv(at.ep, buffers, desc, 2, 0, 0x1000, 5, &at), 0);
    expect_both(at.on.mock.lists.back());
    RVT_EQ(fi_recvv(at.ep, buffers, desc, 2, 0, &at), 0);
    expect_both(at.on.mock.receives.back().second);
    RVT_EQ(fi_close(&copied->fid), 0);
}

Test(nic_hmem, what_a_nic_that_is_gone_had_under_way_is_canceled) {
    Devices at(EOPNOTSUPP);
    RVT_EQ(at.try_reg(kHere), 0);
    RVT_EQ(fi_recv(at.ep, at.memory, 64, at.desc(), 0, &at.with.memory), 0);
    RVT_EQ(fi_send(at.ep, at.memory, 512, at.desc(), 0, &at.with.memory), 0);
    at.on.mock.is_gone = true;
    world->nic->device().begin_removal();
    world->port->cm().check_deadlines();
    RVT_EQ(at.with.canceled(), 2);
}

namespace {

int set_p2p(fid_ep* ep, int value) {
    return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &value, sizeof value);
}

}  // namespace

Test(nic_hmem, that_the_nic_does_not_reach_devices_is_not_the_endpoints_choice) {
    Devices at;
    RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_PREFERRED), 0);
    RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_DISABLED), -FI_EOPNOTSUPP);
    RVT_EQ(set_p2p(at.ep, 77), -FI_EINVAL);
    setenv("FI_HMEM_DISABLE_P2P", "1", 1);
    RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_DISABLED), 0);
    RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_REQUIRED), -FI_EOPNOTSUPP);
}

Test(nic_hmem, who_requires_that_the_nic_reaches_the_memory_has_nothing_copied) {
    for (const int error : {0, EOPNOTSUPP}) {
        Devices at(error);
        RVT_EQ(at.try_reg(kHere), 0);
        RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_REQUIRED), 0);
        const int expected = error == 0 ? 0 : -FI_EOPNOTSUPP;
        const auto before = fab::standin::counts().copied;
        RVT_EQ(fi_send(at.ep, at.memory, 512, at.desc(), 0, &at), expected);
        RVT_EQ(fi_recv(at.ep, at.memory, 64, at.desc(), 0, &at), expected);
        RVT_EQ(fi_read(at.ep, at.memory, 64, at.desc(), 0, 0x1000, 5, &at), expected);
        const iovec buffer{at.memory, 8};
        void* desc = at.desc();
        fi_msg injected{};
        injected.msg_iov = &buffer;
        injected.desc = &desc;
        injected.iov_count = 1;
        RVT_EQ(fi_sendmsg(at.ep, &injected, FI_INJECT), -FI_EOPNOTSUPP);
        RVT_EQ(at.with.send(at.ep), 0);  // from the host
        RVT_EQ(fab::standin::counts().copied, before);
        RVT_EQ(set_p2p(at.ep, FI_HMEM_P2P_ENABLED), 0);
        RVT_EQ(fi_sendmsg(at.ep, &injected, FI_INJECT), 0);
    }
}

// ---- datagrams ----

namespace {

constexpr std::size_t kDatagram = 300;  // more than goes inline

NicServices services;

util::Result<std::unique_ptr<core::UdHost>> open_host(const core::UdHostAttr& /*attr*/,
                                                      ofi::MsgNic* nic) {
    return std::unique_ptr<core::UdHost>(std::make_unique<NicHost>(nic->device(), services, kOwn));
}

std::vector<ofi::MsgNicOffer> list_with_datagrams() {
    std::vector<ofi::MsgNicOffer> offers = list();
    offers.front().datagram_bytes = 1024;
    return offers;
}

void give_address(verbs::MockNic& mock) {
    ibv_gid_entry own{};
    own.gid_type = IBV_GID_TYPE_ROCE_V2;
    const Address address = core::to_address(kOwn);
    std::copy(address.gid.begin(), address.gid.end(), own.gid.raw);
    mock.gids = {own};
}

/// An endpoint with memory of a device that the CPU cannot touch, and a peer.
struct Datagrams {
    explicit Datagrams(int dmabuf_error) {
        fab::standin::use(How::kUnmappable);
        on.mock.dmabuf_error = dmabuf_error;
        ofi::set_msg_nics({.list = list_with_datagrams, .open = open});
        ofi::set_dgram_hosts({.open = open_host, .bytes_of = [](const util::SockAddr& /*address*/) {
                                  return util::Result<std::uint32_t>(1024u);
                              }});
        memory = static_cast<char*>(fab::standin::allocate(kBytes));
        fi_info* const hints = fi_allocinfo();
        hints->ep_attr->type = FI_EP_DGRAM;
        hints->caps = FI_MSG | FI_HMEM;
        hints->domain_attr->mr_mode = FI_MR_HMEM;
        hints->domain_attr->name = strdup("mock0");
        RVT_EQ(ofi::getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info), 0);
        fi_freeinfo(hints);
        RVT_EQ(ofi::fabric_open(info->fabric_attr, &fabric, nullptr), 0);
        RVT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
        fi_av_attr addresses{};
        RVT_EQ(fi_av_open(domain, &addresses, &av, nullptr), 0);
        fi_cq_attr completions{};
        completions.format = FI_CQ_FORMAT_CONTEXT;
        RVT_EQ(fi_cq_open(domain, &completions, &cq, nullptr), 0);
        RVT_EQ(fi_endpoint(domain, info, &ep, nullptr), 0);
        RVT_EQ(fi_ep_bind(ep, &av->fid, 0), 0);
        RVT_EQ(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
        RVT_EQ(fi_enable(ep), 0);
        sockaddr_storage to{};
        kPeer.to(&to);
        RVT_EQ(fi_av_insert(av, &to, 1, &peer, 0, nullptr), 1);
        const iovec buffer{memory, kBytes};
        fi_mr_attr attr{};
        attr.mr_iov = &buffer;
        attr.iov_count = 1;
        attr.access = FI_SEND | FI_RECV;
        attr.iface = FI_HMEM_CUDA;
        RVT_EQ(fi_mr_regattr(domain, &attr, 0, &mr), 0);
    }
    ~Datagrams() {
        for (fid* const object :
             {&mr->fid, &ep->fid, &cq->fid, &av->fid, &domain->fid, &fabric->fid}) {
            RVT_EQ(fi_close(object), 0);
        }
        fi_freeinfo(info);
    }
    Datagrams(const Datagrams&) = delete;
    Datagrams& operator=(const Datagrams&) = delete;

    World on{give_address};
    char* memory = nullptr;
    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_av* av = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;
    fid_mr* mr = nullptr;
    fi_addr_t peer = FI_ADDR_UNSPEC;
    fi_cq_entry entry{};
};

}  // namespace

Test(nic_hmem, a_datagram_is_copied_from_a_device_whether_the_nic_imports_it_or_not) {
    for (const int error : {0, EOPNOTSUPP}) {
        Datagrams at(error);
        const auto bytes = numbered(kDatagram);
        fab::standin::write(at.memory + 100, bytes.data(), bytes.size());
        RVT_EQ(fi_send(at.ep, at.memory + 100, kDatagram, fi_mr_desc(at.mr), at.peer, &at), 0);
        services.user->resolved(core::to_address(kPeer),
                                core::UdPair{.qpn = 0x99, .qkey = core::kUdEndpointQkey});
        RVT_EQ(fi_cq_read(at.cq, &at.entry, 1), -FI_EAGAIN);
        const ibv_sge sent = at.on.mock.lists.back().front();
        RVT_EQ(sent.length, kDatagram);
        // NOLINTNEXTLINE(performance-no-int-to-ptr): of the endpoint's own memory
        RVT_EQ(std::memcmp(reinterpret_cast<const void*>(sent.addr), bytes.data(), kDatagram), 0);
    }
}

Test(nic_hmem, a_datagram_is_in_the_device_when_it_completes) {
    for (const int error : {0, EOPNOTSUPP}) {
        Datagrams at(error);
        RVT_EQ(fi_recv(at.ep, at.memory + 8, 600, fi_mr_desc(at.mr), FI_ADDR_UNSPEC, &at), 0);
        const auto& [wr_id, list] = at.on.mock.receives.back();
        const auto bytes = numbered(kDatagram);
        // NOLINTNEXTLINE(performance-no-int-to-ptr): of the endpoint's own memory
        std::memcpy(reinterpret_cast<std::byte*>(list.front().addr) + kGrhBytes, bytes.data(),
                    kDatagram);
        ibv_wc wc{};
        wc.wr_id = wr_id;
        wc.opcode = IBV_WC_RECV;
        wc.byte_len = static_cast<std::uint32_t>(kGrhBytes + kDatagram);
        wc.qp_num = at.on.mock.last_pair->qp_num;
        at.on.mock.completions.push_back(wc);
        RVT_EQ(fi_cq_read(at.cq, &at.entry, 1), 1);
        RVT_ASSERT(at.entry.op_context == &at);
        std::vector<char> there(kDatagram);
        fab::standin::read(there.data(), at.memory + 8, there.size());
        RVT_ASSERT(there == bytes);
    }
}
