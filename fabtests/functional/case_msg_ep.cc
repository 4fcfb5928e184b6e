// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints: fi_cm(3), and what goes through a connection. Rank 0 listens, rank 1
// connects.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <unistd.h>

#include "common/cm.h"
#include "common/device_memory.h"
#include "common/guard.h"
#include "functional/case.h"

namespace fab {
namespace {

constexpr int kLimitMs = static_cast<int>(kOpLimitS * 1000);
constexpr std::uint64_t kRemoteAccess = FI_REMOTE_READ | FI_REMOTE_WRITE;

/// A fabric, a domain, and at most one connection at a time.
class Side {
  public:
    explicit Side(std::uint64_t caps, fi_wait_obj cq_wait = FI_WAIT_NONE, bool is_shared = false)
        : is_shared_(is_shared) {
        fi_info* const hints = fi_allocinfo();
        hints->ep_attr->type = FI_EP_MSG;
        hints->ep_attr->rx_ctx_cnt = is_shared ? FI_SHARED_CONTEXT : 0;
        hints->caps = caps;
        hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
        hints->addr_format = settings.addr_format != FI_FORMAT_UNSPEC
                                 ? settings.addr_format
                                 : std::uint32_t{FI_SOCKADDR_IN};
        hints->domain_attr->mr_mode = kAnyMrMode;
        if (!settings.exporter.empty()) {
            hints->caps |= FI_HMEM;
            hints->domain_attr->mr_mode |= FI_MR_HMEM;
        }
        hints->fabric_attr->prov_name = strdup(settings.provider.c_str());
        if (!settings.nic.empty()) hints->domain_attr->name = strdup(settings.nic.c_str());
        const char* const node = settings.node.empty() ? nullptr : settings.node.c_str();
        // Without a node some providers take no address at all, others that of a network.
        const int rc = fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), node,
                                  node == nullptr ? "0" : nullptr, FI_SOURCE, hints, &info);
        fi_freeinfo(hints);
        if (rc == -FI_ENODATA) {
            skip("fi_getinfo of %s offers no FI_EP_MSG: %s", settings.provider.c_str(),
                 fi_tostr(&caps, FI_TYPE_CAPS));
        }
        FAB_OK(rc);
        FAB_OK(fi_fabric(info->fabric_attr, &fabric, nullptr));
        fi_eq_attr eq_attr{};
        eq_attr.wait_obj = FI_WAIT_UNSPEC;
        FAB_OK(fi_eq_open(fabric, &eq_attr, &eq, nullptr));
        FAB_OK(fi_domain(fabric, info, &domain, nullptr));
        fi_cq_attr cq_attr{};
        cq_attr.format = FI_CQ_FORMAT_DATA;
        cq_attr.wait_obj = cq_wait;
        cq_attr.size = 512;
        FAB_OK(fi_cq_open(domain, &cq_attr, &cq, nullptr));
        guard_calls_of(cq);
        if (is_shared) {
            FAB_OK(fi_srx_context(domain, info->rx_attr, &srx, nullptr));
            guard_calls_of(srx);
        }
    }
    ~Side() {
        disconnect();
        if (pep != nullptr) FAB_OK(fi_close(&pep->fid));
        if (srx != nullptr) FAB_OK(fi_close(&srx->fid));
        FAB_OK(fi_close(&cq->fid));
        FAB_OK(fi_close(&domain->fid));
        FAB_OK(fi_close(&eq->fid));
        FAB_OK(fi_close(&fabric->fid));
        fi_freeinfo(info);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    CmEvent next_event() const { return next_cm_event(eq, cq); }
    CmEvent expect(std::uint32_t type) const { return expect_cm_event(eq, cq, type); }

    /// Tells the other rank where this one listens.
    void listen(const Rank& self) { pep = fab::listen(self, fabric, info, eq); }

    fid_ep* open_endpoint(fi_info* with) const {
        fid_ep* made = nullptr;
        FAB_OK(fi_endpoint(domain, with, &made, nullptr));
        FAB_OK(fi_ep_bind(made, &eq->fid, 0));
        FAB_OK(fi_ep_bind(made, &cq->fid, FI_TRANSMIT | FI_RECV));
        if (is_shared_) FAB_OK(fi_ep_bind(made, &srx->fid, 0));
        FAB_OK(fi_enable(made));
        guard_calls_of(made);
        return made;
    }

    void ask(const std::vector<char>& to, std::string_view data = {}) {
        fi_info* const towards = dup_towards(*info, to);
        ep = open_endpoint(towards);
        fi_freeinfo(towards);
        FAB_OK(fi_connect(ep, to.data(), data.data(), data.size()));
    }

    /// Both ranks end up with a connection.
    void connect(const Rank& self) {
        if (self.rank == kListener) {
            listen(self);
            const CmEvent request = expect(FI_CONNREQ);
            ep = open_endpoint(request.info);
            fi_freeinfo(request.info);
            FAB_OK(fi_accept(ep, nullptr, 0));
        } else {
            ask(receive_listener(self));
        }
        expect(FI_CONNECTED);
    }
    void disconnect() {
        if (ep != nullptr) FAB_OK(fi_close(&ep->fid));
        ep = nullptr;
    }

    /// One completion; an error's number is in `err`.
    Completion wait() const {
        fi_cq_data_entry entry{};
        const double deadline = now_s() + kOpLimitS;
        ssize_t got = -FI_EAGAIN;
        while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
            if (now_s() > deadline) FAB_FAIL("nothing completes for %.0f s", kOpLimitS);
        }
        return taken(got, entry);
    }
    /// Orders what was done to memory before what a peer does to it after: see Party::barrier().
    void progress() const { fi_cq_read(cq, nullptr, 0); }
    Completion sread() const {
        fi_cq_data_entry entry{};
        return taken(fi_cq_sread(cq, &entry, 1, nullptr, kLimitMs), entry);
    }
    Completion wait_good() const {
        const Completion got = wait();
        FAB_EQUAL(got.err, 0);
        return got;
    }

    template <class Op>
    void post(Op op) const {
        const double deadline = now_s() + kOpLimitS;
        long rc = 0;
        while ((rc = static_cast<long>(op())) == -FI_EAGAIN) {
            if (now_s() > deadline) FAB_FAIL("an operation was refused for %.0f s", kOpLimitS);
        }
        if (rc < 0) fail_fi(__FILE__, __LINE__, "an operation", rc);
    }

    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_eq* eq = nullptr;
    fid_domain* domain = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* srx = nullptr;
    fid_pep* pep = nullptr;
    fid_ep* ep = nullptr;

  private:
    Completion taken(ssize_t got, const fi_cq_data_entry& entry) const {
        Completion out;
        if (got == 1) {
            out.context = entry.op_context;
            out.flags = entry.flags;
            out.len = entry.len;
            out.data = entry.data;
            return out;
        }
        if (got != -FI_EAVAIL) fail_fi(__FILE__, __LINE__, "reading the queue", got);
        fi_cq_err_entry error{};
        FAB_OK(fi_cq_readerr(cq, &error, 0));
        out.context = error.op_context;
        out.err = error.err;
        return out;
    }

    bool is_shared_;
};

/// Registered memory of one side; a dma-buf where the settings name an exporter.
class Memory {
  public:
    Memory(const Side& side, std::size_t bytes) : side_(side), length_(bytes) {
        const bool is_open = (side.info->caps & (FI_RMA | FI_ATOMIC)) != 0;
        const std::uint64_t access =
            FI_SEND | FI_RECV | FI_READ | FI_WRITE | (is_open ? kRemoteAccess : 0);
        static std::uint64_t last_key = 0;  // for providers that let the application choose
        if (!settings.exporter.empty()) {
            device_ = make_device_buffer(settings.exporter, bytes);
            bytes_ = static_cast<char*>(device_.memory);
            std::memset(bytes_, 0, bytes);
            mr_ = register_device(side.domain, device_, bytes, access, ++last_key);
            return;
        }
        bytes_ = new char[bytes]{};
        FAB_OK(fi_mr_reg(side.domain, bytes_, bytes, access, 0, ++last_key, 0, &mr_, nullptr));
    }
    ~Memory() {
        FAB_OK(fi_close(&mr_->fid));
        if (device_.memory != nullptr) {
            release_device_buffer(device_, length_);
        } else {
            delete[] bytes_;
        }
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    char* at(std::size_t offset = 0) { return bytes_ + offset; }
    /// nullptr where buffers need none.
    void* desc() const {
        const bool is_needed =
            device_.memory != nullptr || (side_.info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
        return is_needed ? fi_mr_desc(mr_) : nullptr;
    }
    RemoteRegion remote() const {
        const bool is_virtual = (side_.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
        return {is_virtual ? reinterpret_cast<std::uintptr_t>(bytes_) : 0, fi_mr_key(mr_)};
    }
    void fill(unsigned seed) { fill(seed, length_); }
    void fill(unsigned seed, std::size_t length) {
        for (std::size_t i = 0; i < length; ++i) {
            bytes_[i] = static_cast<char>(seed * 31 + i + (i >> 8));
        }
    }
    void expect(unsigned seed, std::size_t length) const {
        for (std::size_t i = 0; i < length; ++i) {
            if (bytes_[i] != static_cast<char>(seed * 31 + i + (i >> 8))) {
                FAB_FAIL("byte %zu of %zu is wrong", i, length);
            }
        }
    }

  private:
    const Side& side_;
    std::size_t length_;
    char* bytes_ = nullptr;
    DeviceBuffer device_;
    fid_mr* mr_ = nullptr;
};

// ---- connections ----

bool begins_with(const std::string& data, std::string_view with) {
    return data.compare(0, with.size(), with) == 0;
}

/// Request, reply and refusal carry private data.
void private_data(Rank& self) {
    Side side(FI_MSG);
    if (self.rank == kListener) {
        side.listen(self);
        const CmEvent first = side.expect(FI_CONNREQ);
        FAB_CHECK(begins_with(first.data, "first"));
        FAB_OK(fi_reject(side.pep, first.info->handle, "no", 2));
        fi_freeinfo(first.info);
        const CmEvent second = side.expect(FI_CONNREQ);
        FAB_CHECK(begins_with(second.data, "second"));
        side.ep = side.open_endpoint(second.info);
        fi_freeinfo(second.info);
        FAB_OK(fi_accept(side.ep, "yes", 3));
        side.expect(FI_CONNECTED);
    } else {
        const std::vector<char> to = receive_listener(self);
        side.ask(to, "first");
        const CmEvent refused = side.next_event();
        FAB_EQUAL(refused.error, FI_ECONNREFUSED);
        FAB_CHECK(begins_with(refused.data, "no"));
        side.disconnect();
        side.ask(to, "second");
        FAB_CHECK(begins_with(side.expect(FI_CONNECTED).data, "yes"));
    }
    self.barrier();
}

/// Who does not shut down is told, and so is who does it once more.
void shutdown(Rank& self) {
    Side side(FI_MSG);
    side.connect(self);
    self.barrier();
    if (self.rank != kListener) FAB_OK(fi_shutdown(side.ep, 0));
    side.expect(FI_SHUTDOWN);
    self.barrier();
}

/// A listener takes one connection after the other, and several at a time.
void many_connections(Rank& self) {
    constexpr int kCount = 8;
    Side side(FI_MSG);
    std::vector<fid_ep*> eps;
    int connected = 0;
    if (self.rank == kListener) {
        side.listen(self);
        while (connected < kCount) {
            const CmEvent event = side.next_event();
            FAB_EQUAL(event.error, 0);
            if (event.type == FI_CONNREQ) {
                eps.push_back(side.open_endpoint(event.info));
                fi_freeinfo(event.info);
                FAB_OK(fi_accept(eps.back(), nullptr, 0));
            }
            connected += event.type == FI_CONNECTED ? 1 : 0;
        }
    } else {
        const std::vector<char> to = receive_listener(self);
        for (int i = 0; i < kCount; ++i) {
            side.ask(to);
            eps.push_back(std::exchange(side.ep, nullptr));
        }
        for (; connected < kCount; ++connected) side.expect(FI_CONNECTED);
    }
    self.barrier();
    for (fid_ep* ep : eps) FAB_OK(fi_close(&ep->fid));
}

// ---- traffic ----

void sizes(Rank& self) {
    constexpr std::size_t kMostBytes = (4 << 20) + 3;
    Side side(FI_MSG);
    Memory out(side, kMostBytes);
    Memory in(side, kMostBytes);
    Context contexts[2];
    side.connect(self);
    unsigned seed = 1;
    for (const std::size_t size : kSizes) {
        for (int sender = 0; sender < 2; ++sender, ++seed) {
            if (self.rank == sender) {
                out.fill(seed, size);
                side.post(
                    [&] { return fi_send(side.ep, out.at(), size, out.desc(), 0, &contexts[0]); });
                FAB_CHECK(side.wait_good().context == &contexts[0]);
            } else {
                side.post([&] {
                    return fi_recv(side.ep, in.at(), kMostBytes, in.desc(), 0, &contexts[1]);
                });
                const Completion got = side.wait_good();
                FAB_CHECK(got.context == &contexts[1]);
                FAB_EQUAL(got.len, size);
                in.expect(seed, size);
            }
        }
    }
    self.barrier();
}

/// A stream with a window of receives, whose order and bytes hold.
void stream(Rank& self) {
    constexpr int kMessages = 2000;
    constexpr int kWindow = 16;
    constexpr std::size_t kBytes = 1500;
    Side side(FI_MSG);
    Memory memory(side, kBytes * kWindow);
    std::array<Context, kWindow> contexts;
    const auto receive = [&](int n) {
        const auto slot = static_cast<std::size_t>(n % kWindow);
        side.post([&] {
            return fi_recv(side.ep, memory.at(slot * kBytes), kBytes, memory.desc(), 0,
                           &contexts[slot]);
        });
    };
    side.connect(self);
    if (self.rank == kListener) {
        for (int n = 0; n < kWindow; ++n) receive(n);
        self.barrier();
        for (int n = 0; n < kMessages; ++n) {
            FAB_EQUAL(side.wait_good().len, kBytes);
            int number = -1;
            std::memcpy(&number, memory.at(static_cast<std::size_t>(n % kWindow) * kBytes),
                        sizeof number);
            FAB_EQUAL(number, n);
            receive(n);
        }
    } else {
        self.barrier();
        int completed = 0;
        for (int n = 0; n < kMessages; ++n) {
            if (n >= kWindow) {
                side.wait_good();
                ++completed;
            }
            const auto slot = static_cast<std::size_t>(n % kWindow);
            std::memcpy(memory.at(slot * kBytes), &n, sizeof n);
            side.post([&] {
                return fi_send(side.ep, memory.at(slot * kBytes), kBytes, memory.desc(), 0,
                               &contexts[slot]);
            });
        }
        for (; completed < kMessages; ++completed) side.wait_good();
    }
    self.barrier();
}

void sleepers(Rank& self) {
    constexpr int kRounds = 100;
    Side side(FI_MSG, FI_WAIT_UNSPEC);
    Memory memory(side, 16);
    Context context;
    side.connect(self);
    for (int round = 0; round < kRounds; ++round) {
        for (int sender = 0; sender < 2; ++sender) {
            side.post([&] {
                return self.rank == sender
                           ? fi_send(side.ep, memory.at(), 8, memory.desc(), 0, &context)
                           : fi_recv(side.ep, memory.at(8), 8, memory.desc(), 0, &context);
            });
            FAB_EQUAL(side.sread().err, 0);
        }
    }
    self.barrier();
}

/// The target waits on its side for word, reading its queue as providers need.
void rma(Rank& self) {
    constexpr std::size_t kBytes = 300'000;
    Side side(FI_MSG | FI_RMA);
    Memory memory(side, kBytes);
    Memory local(side, kBytes);
    Context context;
    char word = 0;
    side.connect(self);
    if (self.rank == kListener) {
        memory.fill(1);
        side.progress();
        const RemoteRegion remote = memory.remote();
        side.post([&] { return fi_recv(side.ep, local.at(), 1, local.desc(), 0, &context); });
        self.send(self.other(), &remote, sizeof remote);
        side.wait_good();
        memory.expect(2, kBytes);
    } else {
        RemoteRegion remote;
        self.receive(kListener, &remote, sizeof remote);
        side.post([&] {
            return fi_read(side.ep, local.at(), kBytes, local.desc(), 0, remote.base, remote.key,
                           &context);
        });
        FAB_CHECK((side.wait_good().flags & FI_READ) != 0);
        local.expect(1, kBytes);
        local.fill(2);
        side.post([&] {
            return fi_write(side.ep, local.at(), kBytes, local.desc(), 0, remote.base, remote.key,
                            &context);
        });
        FAB_CHECK((side.wait_good().flags & FI_WRITE) != 0);
        side.post([&] { return fi_inject(side.ep, &word, 1, 0); });
    }
    self.barrier();
}

/// Adds to each element of the peer's, twice: the second time shows what the first made of them.
/// Returns: whether the connection has that for the type.
template <class T>
bool add_to(Side& side, const RemoteRegion& remote, Memory& local, fi_datatype type) {
    std::size_t count = 0;
    if (fi_fetch_atomicvalid(side.ep, type, FI_SUM, &count) != 0) return false;
    count = std::min<std::size_t>(count, 8);
    Context context;
    T* const operand = reinterpret_cast<T*>(local.at());
    T* const found = reinterpret_cast<T*>(local.at(512));
    for (int turn = 0; turn < 2; ++turn) {
        std::iota(operand, operand + count, static_cast<T>(1));
        side.post([&] {
            return fi_fetch_atomic(side.ep, operand, count, local.desc(), found, local.desc(), 0,
                                   remote.base, remote.key, type, FI_SUM, &context);
        });
        FAB_CHECK((side.wait_good().flags & FI_ATOMIC) != 0);
        for (std::size_t i = 0; i < count; ++i) {
            FAB_CHECK(found[i] == static_cast<T>(turn) * operand[i]);
        }
    }
    return true;
}

/// What a provider says that a connection has, it has. The target reads its queue meanwhile.
void atomics(Rank& self) {
    Side side(FI_MSG | FI_ATOMIC);
    Memory memory(side, 1024);
    Memory local(side, 1024);
    Context context;
    char word = 0;
    side.connect(self);
    const auto each = [&](auto&& type_done) {
        type_done(FI_UINT64);
        type_done(FI_UINT32);
        type_done(FI_INT8);
        type_done(FI_DOUBLE);
    };
    if (self.rank == kListener) {
        each([&](fi_datatype) {
            std::memset(memory.at(), 0, 1024);
            side.progress();
            const RemoteRegion remote = memory.remote();
            side.post([&] { return fi_recv(side.ep, local.at(), 1, local.desc(), 0, &context); });
            self.send(self.other(), &remote, sizeof remote);
            side.wait_good();
        });
    } else {
        each([&](fi_datatype type) {
            RemoteRegion remote;
            self.receive(kListener, &remote, sizeof remote);
            const bool has_it = type == FI_UINT64 ? add_to<std::uint64_t>(side, remote, local, type)
                                : type == FI_UINT32
                                    ? add_to<std::uint32_t>(side, remote, local, type)
                                : type == FI_INT8 ? add_to<std::int8_t>(side, remote, local, type)
                                                  : add_to<double>(side, remote, local, type);
            // Of rvt's own devices every connection has all of them, of NICs one.
            FAB_CHECK(has_it || settings.provider != "rvt" ||
                      (!settings.nic.empty() && type != FI_UINT64));
            side.post([&] { return fi_inject(side.ep, &word, 1, 0); });
        });
    }
    self.barrier();
}

/// Two connections take their receives from one context.
void shared_receives(Rank& self) {
    Side side(FI_MSG, FI_WAIT_NONE, true);
    Memory memory(side, 64);
    Context contexts[2];
    fid_ep* first = nullptr;
    side.connect(self);
    first = std::exchange(side.ep, nullptr);
    if (self.rank == kListener) {
        const CmEvent request = side.expect(FI_CONNREQ);
        side.ep = side.open_endpoint(request.info);
        fi_freeinfo(request.info);
        FAB_OK(fi_accept(side.ep, nullptr, 0));
        side.expect(FI_CONNECTED);
        for (Context& context : contexts) {
            side.post(
                [&] { return fi_recv(side.srx, memory.at(), 32, memory.desc(), 0, &context); });
        }
        self.barrier();
        FAB_EQUAL(side.wait_good().len + side.wait_good().len, 3);
    } else {
        std::vector<char> to(sizeof(sockaddr_storage));
        std::size_t bytes = to.size();
        FAB_OK(fi_getpeer(first, to.data(), &bytes));
        to.resize(bytes);
        side.ask(to);
        side.expect(FI_CONNECTED);
        self.barrier();
        side.post([&] { return fi_send(first, memory.at(), 1, memory.desc(), 0, &contexts[0]); });
        side.post([&] { return fi_send(side.ep, memory.at(), 2, memory.desc(), 0, &contexts[1]); });
        side.wait_good();
        side.wait_good();
    }
    self.barrier();
    FAB_OK(fi_close(&first->fid));
}

/// A peer that is killed: what waits for it ends, and the event queue says so.
void killed_peer(Rank& self) {
    Side side(FI_MSG);
    Memory memory(side, 16);
    Context contexts[2];
    side.connect(self);
    if (self.rank != kListener) {
        self.barrier();
        raise(SIGKILL);
    }
    side.post([&] { return fi_recv(side.ep, memory.at(), 8, memory.desc(), 0, &contexts[0]); });
    self.barrier();
    // Nobody hears of a death but by asking: something has to be under way.
    ssize_t sent = 0;
    const double deadline = now_s() + kOpLimitS;
    fi_cq_data_entry entry{};
    ssize_t got = -FI_EAGAIN;
    while (got != -FI_EAVAIL && now_s() < deadline) {
        sent = fi_send(side.ep, memory.at(8), 8, memory.desc(), 0, &contexts[1]);
        if (sent != 0 && sent != -FI_EAGAIN) break;
        got = fi_cq_read(side.cq, &entry, 1);
    }
    side.expect(FI_SHUTDOWN);
}

constexpr Case kMsgEpTable[] = {
    {"msg_ep_private_data", private_data},
    {"msg_ep_shutdown", shutdown},
    {"msg_ep_many_connections", many_connections},
    {"msg_ep_sizes", sizes},
    {"msg_ep_stream", stream},
    {"msg_ep_sleepers", sleepers},
    {"msg_ep_rma", rma},
    {"msg_ep_atomics", atomics},
    {"msg_ep_shared_receives", shared_receives},
    {"msg_ep_killed_peer", killed_peer, 2, 30, 1U << 1},
};

}  // namespace

const std::span<const Case> kMsgEpCases = kMsgEpTable;

}  // namespace fab
