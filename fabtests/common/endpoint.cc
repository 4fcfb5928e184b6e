// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/endpoint.h"

#include <rdma/fi_ext_rvt.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <unistd.h>

#include "common/cm.h"
#include "common/device_memory.h"
#include "common/guard.h"

namespace fab {
namespace {

constexpr std::size_t kPage = 4096;

fi_info* make_hints(const EpSpec& spec) {
    fi_info* hints = fi_allocinfo();
    if (hints == nullptr) FAB_FAIL("fi_allocinfo: out of memory");
    hints->caps = spec.caps;
    hints->mode = spec.mode;
    hints->ep_attr->type = spec.type;
    hints->addr_format =
        spec.addr_format != FI_FORMAT_UNSPEC ? spec.addr_format : settings.addr_format;
    hints->tx_attr->op_flags = spec.tx_op_flags;
    hints->rx_attr->op_flags = spec.rx_op_flags;
    hints->tx_attr->msg_order = spec.msg_order;
    hints->rx_attr->msg_order = spec.msg_order;
    hints->rx_attr->size = spec.rx_size;
    hints->domain_attr->mr_mode = spec.mr_mode;
    hints->domain_attr->threading = spec.threading;
    hints->domain_attr->data_progress = spec.progress;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = spec.av_type;
    hints->domain_attr->cq_data_size = spec.cq_data_size;
    if (!spec.source.empty()) {
        hints->src_addr = std::malloc(spec.source.size());
        hints->src_addrlen = spec.source.size();
        std::memcpy(hints->src_addr, spec.source.data(), spec.source.size());
    }
    hints->fabric_attr->prov_name = strdup(settings.provider.c_str());
    if (!settings.nic.empty() && spec.type == FI_EP_DGRAM) {
        hints->domain_attr->name = strdup(settings.nic.c_str());
    }
    if (!settings.exporter.empty() && spec.type != FI_EP_MSG) {
        hints->caps |= FI_HMEM;
        hints->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    return hints;
}

void close_if_open(fid* object, const char* what) {
    if (object == nullptr) return;
    const int rc = fi_close(object);
    if (rc != 0) FAB_FAIL("closing the %s gave %d (%s)", what, rc, fi_strerror(-rc));
}

template <class T>
fid* fid_of(T* object) {
    return object == nullptr ? nullptr : &object->fid;
}

const char* wait_name(fi_wait_obj object) {
    switch (object) {
        case FI_WAIT_FD: return "FI_WAIT_FD";
        case FI_WAIT_MUTEX_COND: return "FI_WAIT_MUTEX_COND";
        case FI_WAIT_UNSPEC: return "FI_WAIT_UNSPEC";
        case FI_WAIT_YIELD: return "FI_WAIT_YIELD";
        default: return "of this kind";
    }
}

std::uint64_t access_for(const fi_info& info) {
    std::uint64_t access = 0;
    if ((info.caps & (FI_MSG | FI_TAGGED)) != 0) access |= FI_SEND | FI_RECV;
    if ((info.caps & (FI_RMA | FI_ATOMIC)) != 0) {
        access |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    }
    return access;
}

}  // namespace

fi_info* dup_without_port(const fi_info& first) {
    fi_info* info = fi_dupinfo(&first);
    if (info == nullptr) FAB_FAIL("fi_dupinfo: out of memory");
    if (info->src_addr != nullptr && info->addr_format == FI_SOCKADDR_IN) {
        static_cast<sockaddr_in*>(info->src_addr)->sin_port = 0;
    }
    if (info->src_addr != nullptr && info->addr_format == FI_SOCKADDR_IN6) {
        static_cast<sockaddr_in6*>(info->src_addr)->sin6_port = 0;
    }
    return info;
}

fi_info* find_info(const EpSpec& spec, int* error) {
    fi_info* hints = make_hints(spec);
    fi_info* info = nullptr;
    const char* node = settings.node.empty() ? nullptr : settings.node.c_str();
    const int rc = fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), node, nullptr,
                              node == nullptr ? 0 : FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (error != nullptr) *error = rc;
    return rc == 0 ? info : nullptr;
}

Endpoint::Endpoint(const EpSpec& spec) : spec_(spec) {
    int error = 0;
    info = find_info(spec, &error);
    if (info == nullptr && error == -FI_ENODATA) {
        skip("fi_getinfo of %s offers nothing: %s", settings.provider.c_str(),
             fi_tostr(&spec.caps, FI_TYPE_CAPS));
    }
    if (info == nullptr) fail_fi(__FILE__, __LINE__, "fi_getinfo", error);
    if (settings.addr_format != FI_FORMAT_UNSPEC && spec.addr_format == FI_FORMAT_UNSPEC) {
        FAB_EQUAL(info->addr_format, settings.addr_format);
    }
    FAB_OK(fi_fabric(info->fabric_attr, &fabric, nullptr));
    FAB_OK(fi_domain(fabric, info, &domain, nullptr));
    open_objects();
}

Endpoint::Endpoint(const EpSpec& spec, const Endpoint& first)
    : info(dup_without_port(*first.info)),
      fabric(first.fabric),
      domain(first.domain),
      spec_(spec),
      owns_domain_(false) {
    open_objects();
}

void Endpoint::open_objects() {
    tx_cq = open_cq();
    rx_cq = spec_.one_cq ? tx_cq : open_cq();
    if (spec_.has_eq || spec_.type == FI_EP_MSG) {
        fi_eq_attr eq_attr{};
        eq_attr.wait_obj = FI_WAIT_UNSPEC;
        FAB_OK(fi_eq_open(fabric, &eq_attr, &eq, nullptr));
    }
    if (spec_.type == FI_EP_MSG) return;  // see connect()
    fi_av_attr av_attr{};
    av_attr.type = spec_.av_type != FI_AV_UNSPEC ? spec_.av_type : info->domain_attr->av_type;
    av_attr.count = spec_.av_count;
    FAB_OK(fi_av_open(domain, &av_attr, &av, nullptr));
    open_ep(info);
}

void Endpoint::open_ep(fi_info* with) {
    FAB_OK(fi_endpoint(domain, with, &ep, nullptr));
    if (av != nullptr) FAB_OK(fi_ep_bind(ep, &av->fid, 0));
    if (eq != nullptr) FAB_OK(fi_ep_bind(ep, &eq->fid, 0));
    if (spec_.one_cq) {
        FAB_OK(fi_ep_bind(ep, &tx_cq->fid, spec_.tx_cq_flags | spec_.rx_cq_flags));
    } else {
        FAB_OK(fi_ep_bind(ep, &tx_cq->fid, spec_.tx_cq_flags));
        FAB_OK(fi_ep_bind(ep, &rx_cq->fid, spec_.rx_cq_flags));
    }
    open_counters();
    if (spec_.hmem_p2p != kNotSet) {
        FAB_OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &spec_.hmem_p2p,
                         sizeof spec_.hmem_p2p));
    }
    FAB_OK(fi_enable(ep));
    guard_calls_of(ep);
}

fid_cq* Endpoint::open_cq() const {
    fi_cq_attr attr{};
    attr.size = spec_.cq_size;
    attr.format = spec_.cq_format;
    attr.wait_obj = spec_.cq_wait;
    fid_cq* cq = nullptr;
    const int rc = fi_cq_open(domain, &attr, &cq, nullptr);
    // fi_cq(3) does not name the error.
    const bool is_refused = rc == -FI_ENOSYS || (rc == -FI_EINVAL && settings.provider != "rvt");
    if (is_refused && spec_.cq_wait != FI_WAIT_NONE) {
        skip("fi_cq_open of %s knows no wait object %s", settings.provider.c_str(),
             wait_name(spec_.cq_wait));
    }
    FAB_OK(rc);
    guard_calls_of(cq);
    return cq;
}

void Endpoint::open_counters() {
    const struct {
        std::uint64_t bit;
        fid_cntr** slot;
    } all[] = {
        {FI_SEND, &send_cntr},
        {FI_RECV, &recv_cntr},
        {FI_READ, &read_cntr},
        {FI_WRITE, &write_cntr},
        {FI_REMOTE_READ, &remote_read_cntr},
        {FI_REMOTE_WRITE, &remote_write_cntr},
    };
    for (const auto& one : all) {
        if ((spec_.cntr_flags & one.bit) == 0) continue;
        fi_cntr_attr attr{};
        attr.events = FI_CNTR_EVENTS_COMP;
        attr.wait_obj = spec_.cntr_wait;
        const int rc = fi_cntr_open(domain, &attr, one.slot, nullptr);
        if (rc == -FI_ENOSYS) skip("%s has no such counters", settings.provider.c_str());
        FAB_OK(rc);
        FAB_OK(fi_ep_bind(ep, &(*one.slot)->fid, one.bit));
        guard_calls_of(*one.slot);
    }
}

Endpoint::~Endpoint() {
    close_if_open(fid_of(ep), "endpoint");
    for (fid_cntr* counter :
         {send_cntr, recv_cntr, read_cntr, write_cntr, remote_read_cntr, remote_write_cntr}) {
        close_if_open(fid_of(counter), "counter");
    }
    close_if_open(fid_of(tx_cq), "transmit queue");
    if (rx_cq != tx_cq) close_if_open(fid_of(rx_cq), "receive queue");
    close_if_open(fid_of(eq), "event queue");
    close_if_open(fid_of(av), "address vector");
    if (owns_domain_) {
        close_if_open(fid_of(domain), "domain");
        close_if_open(fid_of(fabric), "fabric");
    }
    fi_freeinfo(info);
}

std::vector<char> Endpoint::name() const {
    std::vector<char> address(256);
    std::size_t length = address.size();
    FAB_OK(fi_getname(&ep->fid, address.data(), &length));
    address.resize(length);
    return address;
}

fi_addr_t Endpoint::insert(const std::vector<char>& address) {
    fi_addr_t where = FI_ADDR_NOTAVAIL;
    FAB_EQUAL(fi_av_insert(av, address.data(), 1, &where, 0, nullptr), 1);
    return where;
}

void Endpoint::connect_pair(const Rank& self) {
    if (self.rank == kListener) {
        fid_pep* const pep = listen(self, fabric, info, eq);
        const CmEvent request = expect_cm_event(eq, rx_cq, FI_CONNREQ);
        open_ep(request.info);
        fi_freeinfo(request.info);
        FAB_OK(fi_accept(ep, nullptr, 0));
        expect_cm_event(eq, rx_cq, FI_CONNECTED);
        FAB_OK(fi_close(&pep->fid));
        return;
    }
    const std::vector<char> to = receive_listener(self);
    fi_info* const towards = dup_towards(*info, to);
    open_ep(towards);
    fi_freeinfo(towards);
    FAB_OK(fi_connect(ep, to.data(), nullptr, 0));
    expect_cm_event(eq, rx_cq, FI_CONNECTED);
}

void Endpoint::connect(const Rank& self) {
    if (spec_.type == FI_EP_MSG) {
        connect_pair(self);
        return;
    }
    const std::vector<char> mine = name();
    for (int r = 0; r < self.size; ++r) {
        if (r != self.rank) self.send_string(r, std::string(mine.begin(), mine.end()));
    }
    for (int r = 0; r < self.size; ++r) {
        const std::string theirs =
            r == self.rank ? std::string(mine.begin(), mine.end()) : self.receive_string(r);
        peers[static_cast<std::size_t>(r)] = insert({theirs.begin(), theirs.end()});
    }
}

void Endpoint::progress() const {
    // A count of zero drives progress and takes nothing.
    fi_cq_read(tx_cq, nullptr, 0);
    fi_cq_read(rx_cq, nullptr, 0);
}

bool Endpoint::poll(fid_cq* cq, Completion& out) const {
    fi_cq_tagged_entry entry{};  // each format is a prefix of this one
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    const ssize_t rc = fi_cq_readfrom(cq, &entry, 1, &source);
    if (rc == -FI_EAGAIN) return false;
    if (rc == -FI_EAVAIL) return take_error(cq, out);
    FAB_OK(rc);
    FAB_EQUAL(rc, 1);
    out = Completion{};
    out.context = entry.op_context;
    out.source = source;
    if (spec_.cq_format == FI_CQ_FORMAT_CONTEXT) return true;
    out.flags = entry.flags;
    out.len = entry.len;
    if (spec_.cq_format == FI_CQ_FORMAT_MSG) return true;
    out.buf = entry.buf;
    out.data = entry.data;
    if (spec_.cq_format == FI_CQ_FORMAT_TAGGED) out.tag = entry.tag;
    return true;
}

bool Endpoint::take_error(fid_cq* cq, Completion& out) const {
    fi_cq_err_entry entry{};
    const ssize_t rc = fi_cq_readerr(cq, &entry, 0);
    if (rc == -FI_EAGAIN) return false;
    FAB_EQUAL(rc, 1);
    out = Completion{.context = entry.op_context,
                     .flags = entry.flags,
                     .len = entry.len,
                     .buf = entry.buf,
                     .data = entry.data,
                     .tag = entry.tag,
                     .source = FI_ADDR_NOTAVAIL,
                     .err = entry.err,
                     .olen = entry.olen};
    if (out.err == 0) FAB_FAIL("fi_cq_readerr gave an entry whose err is 0");
    return true;
}

Completion Endpoint::wait_any(fid_cq* cq) const {
    Completion entry;
    const double deadline = now_s() + kOpLimitS;
    for (unsigned turn = 0; !poll(cq, entry); ++turn) {
        fi_cq_read(cq == tx_cq ? rx_cq : tx_cq, nullptr, 0);
        if ((turn & 0xff) == 0 && now_s() > deadline) {
            FAB_FAIL("no completion of the %s side within %.0f s",
                     cq == tx_cq ? "transmit" : "receive", kOpLimitS);
        }
    }
    return entry;
}

Completion Endpoint::wait(fid_cq* cq) const {
    const Completion entry = wait_any(cq);
    if (entry.err != 0) {
        FAB_FAIL("a %s operation ended with error %d (%s)", cq == tx_cq ? "transmit" : "receive",
                 entry.err, fi_strerror(entry.err));
    }
    return entry;
}

void Endpoint::wait_cntr(fid_cntr* counter, std::uint64_t value) const {
    const double deadline = now_s() + kOpLimitS;
    while (fi_cntr_read(counter) < value) {
        progress();
        if (now_s() > deadline) {
            FAB_FAIL("a counter stayed at %llu of %llu for %.0f s",
                     static_cast<unsigned long long>(fi_cntr_read(counter)),
                     static_cast<unsigned long long>(value), kOpLimitS);
        }
    }
}

namespace {

std::uint64_t next_key() {
    static std::atomic<std::uint64_t> next{0x100};
    // relaxed: only that no two are the same counts.
    return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

fid_mr* register_device(fid_domain* domain, const DeviceBuffer& buffer, std::size_t length,
                        std::uint64_t access, std::uint64_t key) {
    const bool is_dma_buf = buffer.dma_buf >= 0;
    const fi_mr_dmabuf part{
        .fd = buffer.dma_buf, .offset = 0, .len = length, .base_addr = buffer.memory};
    const iovec named{buffer.memory, length};
    fi_mr_attr attr{};
    attr.mr_iov = is_dma_buf ? reinterpret_cast<const iovec*>(&part) : &named;
    attr.iov_count = 1;
    attr.access = access;
    attr.requested_key = key;
    attr.iface = is_dma_buf ? FI_HMEM_SYSTEM : iface_of(settings.exporter);
    fid_mr* mr = nullptr;
    FAB_OK(fi_mr_regattr(domain, &attr, is_dma_buf ? FI_MR_DMABUF : 0, &mr));
    return mr;
}

Region::Region(Endpoint& ep, void* memory, std::size_t length, std::uint64_t access)
    : memory_(memory),
      virtual_addresses_((ep.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0),
      needs_desc_((ep.info->domain_attr->mr_mode & (FI_MR_LOCAL | FI_MR_HMEM)) != 0) {
    FAB_OK(fi_mr_reg(ep.domain, memory, length, access, 0, next_key(), 0, &mr, nullptr));
    bind(ep);
}

Region::Region(Endpoint& ep, const DeviceBuffer& buffer, std::size_t length, std::uint64_t access)
    : memory_(buffer.memory),
      virtual_addresses_((ep.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0),
      needs_desc_((ep.info->domain_attr->mr_mode & (FI_MR_LOCAL | FI_MR_HMEM)) != 0) {
    mr = register_device(ep.domain, buffer, length, access, next_key());
    bind(ep);
}

void Region::bind(Endpoint& ep) {
    if ((ep.info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
        FAB_OK(fi_mr_bind(mr, &ep.ep->fid, 0));
        FAB_OK(fi_mr_enable(mr));
    }
}

Region::~Region() {
    close();
}

void Region::close() {
    if (mr != nullptr) close_if_open(&mr->fid, "memory region");
    mr = nullptr;
}

RemoteRegion Region::remote() const {
    return {.base = virtual_addresses_ ? reinterpret_cast<std::uint64_t>(memory_) : 0,
            .key = fi_mr_key(mr)};
}

Buffer::Buffer(Endpoint& ep, std::size_t length)
    : memory_(nullptr), length_(length), owned_(true), region_(nullptr) {
    if (!settings.exporter.empty() && ep.has(FI_HMEM)) {
        device_ = make_device_buffer(settings.exporter, length + 1);
        memory_ = device_.memory;
        std::memset(memory_, 0, length);
        region_ = new Region(ep, device_, length == 0 ? 1 : length, access_for(*ep.info));
        return;
    }
    memory_ = std::aligned_alloc(kPage, (length + kPage) / kPage * kPage);
    if (memory_ == nullptr) FAB_FAIL("out of memory for a buffer of %zu bytes", length);
    std::memset(memory_, 0, (length + kPage) / kPage * kPage);
    region_ = new Region(ep, memory_, length == 0 ? 1 : length, access_for(*ep.info));
}

Buffer::Buffer(Endpoint& ep, void* memory, std::size_t length)
    : memory_(memory),
      length_(length),
      owned_(false),
      region_(new Region(ep, memory, length, access_for(*ep.info))) {}

Buffer::~Buffer() {
    delete region_;
    if (device_.memory != nullptr) {
        release_device_buffer(device_, length_ + 1);
    } else if (owned_) {
        std::free(memory_);
    }
}

void Buffer::fill(unsigned seed, std::size_t length) const {
    auto* bytes = as<unsigned char>();
    for (std::size_t i = 0; i < length; ++i) {
        bytes[i] = static_cast<unsigned char>(seed + i * 7 + (i >> 8) * 13);
    }
}

void Buffer::expect(unsigned seed, std::size_t length) const {
    const auto* bytes = as<unsigned char>();
    for (std::size_t i = 0; i < length; ++i) {
        const auto expected = static_cast<unsigned char>(seed + i * 7 + (i >> 8) * 13);
        if (bytes[i] != expected) {
            FAB_FAIL("byte %zu of %zu is 0x%02x, expected 0x%02x", i, length, bytes[i], expected);
        }
    }
}

}  // namespace fab
