// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints of one process: a side that listens and one that connects, each with a domain
// and a port of its own.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "ofi/fixture.h"
#include "ofi/ways.h"

namespace rvt::test {

inline constexpr std::chrono::seconds kMsgPatience{20};
inline constexpr int kMsgPatienceMs = 20'000;

/// Rights of peers to a region.
inline constexpr std::uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;

template <class T>
std::uint64_t address_of(const T& object) noexcept {
    return reinterpret_cast<std::uintptr_t>(&object);
}

/// Private data as an event brings them. At the port of RoCEv2 zeros fill their room.
inline std::string private_data(std::string_view text, std::size_t room) {
    std::string data(text);
    if (getenv("FI_RVT_ROCE_PORT") != nullptr) {  // NOLINT(concurrency-mt-unsafe): one thread
        data.resize(room, '\0');
    }
    return data;
}
inline constexpr std::size_t kRequestRoom = 56;
inline constexpr std::size_t kReplyRoom = 196;
inline constexpr std::size_t kRejectRoom = 148;

/// Endpoints that are enabled before they know their peer reach it by the wire.
inline bool enables_first = false;

inline void enable_first_by_wire() {
    use_network();
    enables_first = true;
}

/// A test over all ways: over loopback addresses; over a network's by the wire, through shared
/// memory, and by the wire with one port for all.
#define RVT_MSG_TEST(suite, name)                                        \
    static void suite##_##name##_body();                                 \
    Test(suite, name) {                                                  \
        suite##_##name##_body();                                         \
    }                                                                    \
    RVT_TEST_AFTER(rvt::test::enable_first_by_wire(), suite, wire, name) \
    RVT_TEST_AFTER(rvt::test::use_network(), suite, host, name)          \
    RVT_TEST_AFTER(rvt::test::share_roce_port(), suite, roce_port, name) \
    static void suite##_##name##_body()

struct MsgOptions {
    std::uint64_t caps = 0;
    int mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    std::uint64_t mode = FI_RX_CQ_DATA;
    bool is_selective = false;
    bool has_shared_receives = false;
    bool has_counters = false;
    fi_wait_obj wait_obj = FI_WAIT_UNSPEC;
    std::size_t tx_size = 0;
    std::size_t rx_size = 0;
    fi_progress data_progress = FI_PROGRESS_UNSPEC;
};

inline Info msg_hints(const MsgOptions& options) {
    Info hints = new_hints();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = options.caps;
    hints->mode = options.mode;
    hints->domain_attr->mr_mode = options.mr_mode;
    hints->domain_attr->data_progress = options.data_progress;
    hints->tx_attr->size = options.tx_size;
    hints->rx_attr->size = options.rx_size;
    if (options.has_shared_receives) {
        hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    }
    return hints;
}

inline Answer ask_msg(const MsgOptions& options = {}) {
    return ask(msg_hints(options), own_node.c_str(), nullptr, FI_SOURCE);
}

/// An event of connection management with what came behind it.
struct CmEvent {
    std::uint32_t type = 0;
    fid* object = nullptr;
    Info info;
    std::string data;
};

/// Waits for an event; the error entry's number is `error`.
struct NextEvent {
    CmEvent event;
    int error = 0;
    std::string error_data;
};
inline NextEvent next_event(fid_eq* eq, int timeout_ms = kMsgPatienceMs) {
    NextEvent next;
    std::array<char, 512> room{};
    const ssize_t got = fi_eq_sread(eq, &next.event.type, room.data(), room.size(), timeout_ms, 0);
    if (got == -FI_EAVAIL) {
        fi_eq_err_entry entry{};
        RVT_EQ(fi_eq_readerr(eq, &entry, 0), sizeof entry);
        next.event.object = entry.fid;
        next.error = entry.err;
        next.error_data.assign(static_cast<const char*>(entry.err_data), entry.err_data_size);
        return next;
    }
    RVT_ASSERT(got >= static_cast<ssize_t>(sizeof(fi_eq_cm_entry)));
    fi_eq_cm_entry entry{};
    std::memcpy(&entry, room.data(), sizeof entry);
    next.event.object = entry.fid;
    next.event.info.reset(entry.info);
    next.event.data.assign(room.data() + sizeof entry,
                           static_cast<std::size_t>(got) - sizeof entry);
    return next;
}
inline CmEvent expect_event(fid_eq* eq, std::uint32_t type) {
    NextEvent next = next_event(eq);
    RVT_EQ(next.error, 0);
    RVT_EQ(next.event.type, type);
    return std::move(next.event);
}

/// A fabric with an event queue.
struct MsgFabric {
    Info info;
    Owned<fid_fabric> fabric;
    Owned<fid_eq> eq;

    explicit MsgFabric(Info with) : info(std::move(with)) {
        fabric = opened<fid_fabric>(
            [this](fid_fabric** f) { return fi_fabric(info->fabric_attr, f, nullptr); });
        fi_eq_attr attr{};
        attr.wait_obj = FI_WAIT_UNSPEC;
        eq =
            opened<fid_eq>([&](fid_eq** e) { return fi_eq_open(fabric.get(), &attr, e, nullptr); });
    }
};

/// Where something is, as fi_getname says.
inline sockaddr_in name_of(fid* object) {
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(object, &name, &bytes));
    return name;
}

/// Who listens.
struct MsgListener : MsgFabric {
    Owned<fid_pep> pep;

    explicit MsgListener(const MsgOptions& options = {}) : MsgFabric(ask_msg(options).info) {
        pep = opened<fid_pep>(
            [this](fid_pep** p) { return fi_passive_ep(fabric.get(), info.get(), p, nullptr); });
        RVT_OK(fi_pep_bind(pep.get(), &eq->fid, 0));
        RVT_OK(fi_listen(pep.get()));
    }
};

/// A domain in a fabric, with an endpoint.
struct MsgEnd {
    fid_fabric* fabric;
    fid_eq* eq;
    Owned<fid_domain> domain;
    Owned<fid_cq> cq;
    std::array<Owned<fid_cntr>, 4> cntrs;
    Owned<fid_ep> srx;
    Owned<fid_ep> ep;

    MsgEnd(fid_fabric* in, fid_eq* events, fi_info* info, const MsgOptions& options = {})
        : fabric(in), eq(events) {
        domain =
            opened<fid_domain>([&](fid_domain** d) { return fi_domain(fabric, info, d, nullptr); });
        cq = opened<fid_cq>([&](fid_cq** c) {
            fi_cq_attr attr{};
            attr.format = FI_CQ_FORMAT_DATA;
            attr.wait_obj = options.wait_obj;
            return fi_cq_open(domain.get(), &attr, c, nullptr);
        });
        if (options.has_shared_receives) {
            srx = opened<fid_ep>([&](fid_ep** s) {
                return fi_srx_context(domain.get(), info->rx_attr, s, nullptr);
            });
        }
        ep = add(info, options);
        if (options.has_counters) {
            count_all();
        }
    }

    /// Another endpoint of the domain.
    Owned<fid_ep> add(fi_info* info, const MsgOptions& options = {}) const {
        auto made =
            opened<fid_ep>([&](fid_ep** e) { return fi_endpoint(domain.get(), info, e, nullptr); });
        const std::uint64_t selective = options.is_selective ? FI_SELECTIVE_COMPLETION : 0;
        RVT_OK(fi_ep_bind(made.get(), &eq->fid, 0));
        RVT_OK(fi_ep_bind(made.get(), &cq->fid, FI_TRANSMIT | FI_RECV | selective));
        if (srx != nullptr) {
            RVT_OK(fi_ep_bind(made.get(), &srx->fid, 0));
        }
        return made;
    }

    void count_all() {
        const std::uint64_t events[] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE};
        for (std::size_t i = 0; i < cntrs.size(); ++i) {
            fi_cntr_attr attr{};
            attr.events = FI_CNTR_EVENTS_COMP;
            attr.wait_obj = FI_WAIT_UNSPEC;
            cntrs[i] = opened<fid_cntr>(
                [&](fid_cntr** c) { return fi_cntr_open(domain.get(), &attr, c, nullptr); });
            RVT_OK(fi_ep_bind(ep.get(), &cntrs[i]->fid, events[i]));
        }
    }

    /// Waits for the next completion, good or not. Returns: what fi_cq_read did.
    ssize_t wait(fi_cq_data_entry& entry) const {
        const auto end = std::chrono::steady_clock::now() + kMsgPatience;
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            got = fi_cq_read(cq.get(), &entry, 1);
        }
        return got;
    }
    fi_cq_data_entry next() const {
        fi_cq_data_entry entry{};
        RVT_EQ(wait(entry), 1);
        return entry;
    }
    fi_cq_err_entry next_error() const {
        fi_cq_data_entry entry{};
        RVT_EQ(wait(entry), -FI_EAVAIL);
        fi_cq_err_entry error{};
        RVT_EQ(fi_cq_readerr(cq.get(), &error, 0), 1);
        return error;
    }

    Owned<fid_mr> reg(void* buffer, std::size_t bytes, std::uint64_t access) const {
        return opened<fid_mr>([&](fid_mr** mr) {
            return fi_mr_reg(domain.get(), buffer, bytes, access, 0, 0, 0, mr, nullptr);
        });
    }
};

/// Who connects, with a fabric of its own.
struct MsgClient : MsgFabric {
    MsgEnd end;

    explicit MsgClient(const MsgOptions& options = {})
        : MsgFabric(ask_msg(options).info), end(fabric.get(), eq.get(), info.get(), options) {}

    void connect(const MsgListener& listener, std::string_view data = {}) {
        const sockaddr_in to = name_of(&listener.pep->fid);
        if (enables_first) {
            [[maybe_unused]] const int is_enabled = fi_enable(end.ep.get());  // or was before
        }
        RVT_OK(fi_connect(end.ep.get(), &to, data.data(), data.size()));
    }
};

/// Both ends, connected.
struct MsgPair {
    MsgListener listener;
    MsgClient client;
    MsgEnd server;

    explicit MsgPair(const MsgOptions& options = {})
        : listener(options), client(options), server(accept(options)) {}

  private:
    MsgEnd accept(const MsgOptions& options) {
        client.connect(listener);
        const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
        MsgEnd made(listener.fabric.get(), listener.eq.get(), request.info.get(), options);
        RVT_OK(fi_accept(made.ep.get(), nullptr, 0));
        expect_event(client.eq.get(), FI_CONNECTED);
        expect_event(listener.eq.get(), FI_CONNECTED);
        return made;
    }
};

}  // namespace rvt::test
