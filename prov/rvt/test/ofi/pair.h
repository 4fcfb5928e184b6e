// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two endpoints of one process that know each other, each with a domain of its own.
#pragma once

#include <array>
#include <barrier>
#include <chrono>
#include <thread>

#include <netinet/in.h>

#include "ofi/fixture.h"

namespace rvt::test {

inline constexpr std::chrono::seconds kPatience{30};

/// The port in the name of an endpoint.
inline in_port_t port_of(fid_ep& ep) {
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&ep.fid, &name, &bytes));
    return name.sin_port;
}

/// Does both at once, the second on a thread of its own.
template <class First, class Second>
void do_at_once(First first, Second second) {
    std::barrier start(2);
    std::thread other([&] {
        start.arrive_and_wait();
        second();
    });
    start.arrive_and_wait();
    first();
    other.join();
}

/// How an End is opened; what is left alone is the default of fi_getinfo.
struct EndOptions {
    std::uint64_t caps = 0;
    int mr_mode = 0;
    fi_threading threading = FI_THREAD_UNSPEC;
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
    bool is_selective = false;
    bool has_queue = true;         // else counters alone
    bool has_recv_counter = true;  // else it is open, and not bound
    std::uint32_t version = kVersion;
    fi_wait_obj wait_obj = FI_WAIT_UNSPEC;
    fi_cq_wait_cond wait_cond = FI_CQ_COND_NONE;
    std::size_t cq_size = 0;
    fi_ep_type type = FI_EP_UNSPEC;
    fi_progress data_progress = FI_PROGRESS_UNSPEC;
    const char* node = nullptr;           // the address; none: the default
    const char* service = nullptr;        // the port
    std::size_t total_buffered_recv = 0;  // 0: as offered
    std::uint64_t order = 0;              // FI_ORDER_* asked for
    bool is_enabled = true;               // else it has its address, where nobody listens
};

/// An endpoint with a queue for both directions and a counter for each event.
struct End {
    Opened open;
    Owned<fid_av> av;
    Owned<fid_cq> cq;
    std::array<Owned<fid_cntr>, 6> cntrs;  // send, recv, read, write, remote read, remote write
    Owned<fid_ep> ep;
    fi_addr_t peer = FI_ADDR_UNSPEC;
    End* other = nullptr;  // driven while this end waits: progress is manual

    static Info hints_of(const EndOptions& options) {
        Info hints = new_hints();
        hints->caps = options.caps;
        hints->domain_attr->mr_mode = options.mr_mode;
        hints->domain_attr->threading = options.threading;
        hints->domain_attr->data_progress = options.data_progress;
        hints->ep_attr->type = options.type;
        hints->tx_attr->op_flags = options.tx_op_flags;
        hints->rx_attr->op_flags = options.rx_op_flags;
        hints->tx_attr->msg_order = hints->rx_attr->msg_order = options.order;
        return hints;
    }

    explicit End(const EndOptions& options)
        : open(ask(hints_of(options), options.node, options.service,
                   options.node != nullptr ? FI_SOURCE : 0, options.version)
                   .info) {
        av = open.av();
        cq = open.cq(with<fi_cq_attr>([&](auto& attr) {
            attr.format = FI_CQ_FORMAT_TAGGED;
            attr.wait_obj = options.wait_obj;
            attr.wait_cond = options.wait_cond;
            attr.size = options.cq_size;
        }));
        if (options.total_buffered_recv != 0) {
            open.info->rx_attr->total_buffered_recv = options.total_buffered_recv;
        }
        ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
        });
        const std::uint64_t selective = options.is_selective ? FI_SELECTIVE_COMPLETION : 0;
        RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
        if (options.has_queue) {
            RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV | selective));
        }
        const std::uint64_t events[] = {FI_SEND,  FI_RECV,        FI_READ,
                                        FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};
        for (std::size_t i = 0; i < cntrs.size(); ++i) {
            cntrs[i] = open.cntr();
            if (events[i] == FI_RECV && !options.has_recv_counter) {
                continue;
            }
            RVT_OK(fi_ep_bind(ep.get(), &cntrs[i]->fid, events[i]));
        }
        if (options.is_enabled) {
            RVT_OK(fi_enable(ep.get()));
        }
    }

    /// Waits for one good completion.
    fi_cq_tagged_entry next() {
        fi_cq_tagged_entry entry{};
        const auto end = std::chrono::steady_clock::now() + kPatience;
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            drive_other();
            got = fi_cq_read(cq.get(), &entry, 1);
        }
        RVT_EQ(got, 1);
        drive_other();
        return entry;
    }

    /// Waits for one error entry.
    fi_cq_err_entry next_error() {
        fi_cq_tagged_entry entry{};
        const auto end = std::chrono::steady_clock::now() + kPatience;
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            drive_other();
            got = fi_cq_read(cq.get(), &entry, 1);
        }
        RVT_EQ(got, -FI_EAVAIL);
        fi_cq_err_entry error{};
        RVT_EQ(fi_cq_readerr(cq.get(), &error, 0), 1);
        return error;
    }

    /// Also lets ThreadSanitizer see in what order things happened, when the other end's thread has
    /// worked for this one: the rings that order it are mapped twice here.
    void drive_other() {
        if (other != nullptr) {
            fi_cntr_read(other->cntrs[0].get());
        }
    }

    bool is_quiet() {
        fi_cq_tagged_entry entry{};
        return fi_cq_read(cq.get(), &entry, 1) == -FI_EAGAIN;
    }

    Owned<fid_mr> reg(void* buffer, std::size_t bytes, std::uint64_t access, std::uint64_t key) {
        return opened<fid_mr>([&](fid_mr** mr) {
            return fi_mr_reg(open.domain.get(), buffer, bytes, access, 0, key, 0, mr, nullptr);
        });
    }

    /// The address by which a peer names `buffer` in this domain's mode.
    std::uint64_t address_of(const void* buffer) const {
        const bool is_virtual = (open.info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | 1)) != 0;
        return is_virtual ? reinterpret_cast<std::uintptr_t>(buffer) : 0;
    }
};

struct Pair {
    End a;
    End b;

    explicit Pair(const EndOptions& options = {}) : Pair(options, options) {}
    Pair(const EndOptions& of_a, const EndOptions& of_b) : a(of_a), b(of_b) {
        a.peer = introduce(a, b);
        b.peer = introduce(b, a);
        a.other = &b;
        b.other = &a;
    }

    /// Repeats an operation that may be refused for the moment, driving both ends.
    template <class Post>
    void post(Post operation) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        ssize_t result = operation();
        while (result == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            drive();
            result = operation();
        }
        RVT_EQ(result, 0);
    }

    /// Makes progress without taking completions.
    void drive() {
        fi_cntr_read(a.cntrs[0].get());
        fi_cntr_read(b.cntrs[0].get());
    }

    /// Waits until `holds()`, driving both ends.
    template <class Condition>
    void until(Condition holds) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (!holds() && std::chrono::steady_clock::now() < end) {
            drive();
        }
        drive();
        RVT_ASSERT(holds());
    }

    static fi_addr_t introduce(End& knows, End& whom) {
        std::array<char, 64> name{};
        std::size_t bytes = name.size();
        RVT_OK(fi_getname(&whom.ep->fid, name.data(), &bytes));
        fi_addr_t number = FI_ADDR_UNSPEC;
        RVT_EQ(fi_av_insert(knows.av.get(), name.data(), 1, &number, 0, nullptr), 1);
        return number;
    }
};

}  // namespace rvt::test
