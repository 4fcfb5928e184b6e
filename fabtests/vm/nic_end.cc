// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What becomes of FI_EP_MSG and FI_EP_DGRAM endpoints when their NIC's port goes down, and when the
// NIC is taken away under traffic; and of those that are opened at another one. Two connected with
// each other and two datagram endpoints, over the kernel's rxe0 on eth0, which is taken away and
// given back. The kernel lets go of it when nobody uses it any more, and librdmacm uses it until
// there is another NIC: rxe1.
//
//   nic_end OWN-IP
#include "ends.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/endpoint.h"

namespace {

using traffic::fail;

constexpr int kEventMs = 20'000;  // emulated processors are slow
constexpr std::uint32_t kVersion = FI_VERSION(1, 17);
constexpr std::size_t kReceives = 4;
constexpr std::size_t kWaiting = 3;  // sends that find no receive
constexpr std::size_t kBytes = 64;
constexpr const char* kSecondIp = "198.51.100.1";

template <class Rc>
void need(Rc result, const char* what) {
    if (result < 0) {
        fail(std::string(what) + ": " + fi_strerror(static_cast<int>(-result)));
    }
}

int shell(const std::string& command) {
    return std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe): no thread of ours
}

void run(const std::string& command) {
    if (shell(command) != 0) {
        fail(command);
    }
}

/// Tries a command until it succeeds.
std::string until(const std::string& command) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kEventMs);
    while (shell(command + " 2> /tmp/until") != 0) {
        if (std::chrono::steady_clock::now() > end) {
            shell("cat /tmp/until >&2");
            return command + " does not succeed";
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
}

/// Returns: nullptr where the NIC is not offered.
fi_info* ask(const std::string& ip, const char* nic) {
    fi_info* const hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->domain_attr->name = strdup(nic);
    hints->fabric_attr->prov_name = strdup("rvt");
    fi_info* info = nullptr;
    const int error = fi_getinfo(kVersion, ip.c_str(), nullptr, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    return error == 0 ? info : nullptr;
}

std::string is_error(int error, int expected) {
    return error == expected ? std::string() : std::string("another error: ") + fi_strerror(error);
}

// ---- connections ----

struct End {
    fid_ep* ep = nullptr;
    fid_cq* cq = nullptr;
};

class Pair {
  public:
    Pair(const std::string& ip, const char* nic) : info_(ask(ip, nic)) {
        if (info_ == nullptr) {
            fail(std::string("rvt does not offer ") + nic);
        }
        need(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
        fi_eq_attr events{};
        events.wait_obj = FI_WAIT_UNSPEC;
        need(fi_eq_open(fabric_, &events, &eq_, nullptr), "fi_eq_open");
        need(fi_eq_open(fabric_, &events, &domain_eq_, nullptr), "fi_eq_open");
        need(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
        need(fi_domain_bind(domain_, &domain_eq_->fid, 0), "fi_domain_bind");
        need(register_region(&mr_), "fi_mr_reg");
        connect();
    }
    ~Pair() {
        for (End* const end : {&caller_, &called_}) {
            need(fi_close(&end->ep->fid), "fi_close of an endpoint");
            need(fi_close(&end->cq->fid), "fi_close of a queue");
        }
        need(fi_close(&pep_->fid), "fi_close of a passive endpoint");
        need(fi_close(&mr_->fid), "fi_close of a region");
        need(fi_close(&domain_->fid), "fi_close of the domain");
        need(fi_close(&eq_->fid), "fi_close of an event queue");
        need(fi_close(&domain_eq_->fid), "fi_close of an event queue");
        need(fi_close(&fabric_->fid), "fi_close of the fabric");
        fi_freeinfo(info_);
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    /// A message from one to the other. Returns: what is wrong with that.
    std::string say() {
        need(send(), "fi_send");
        for (const End* const end : {&caller_, &called_}) {
            fi_cq_entry entry{};
            const ssize_t got = fi_cq_sread(end->cq, &entry, 1, nullptr, kEventMs);
            if (got != 1) {
                return got == -FI_EAGAIN ? "no completion" : "a completion with an error";
            }
        }
        need(receive(called_), "fi_recv");
        return {};
    }
    /// From now on sends wait for receives of the peer.
    void leave_pending() {
        for (std::size_t i = 0; i < kReceives + kWaiting; ++i) {
            need(send(), "fi_send");
        }
        for (std::size_t i = 0; i < kReceives; ++i) {
            fi_cq_entry entry{};
            need(fi_cq_sread(caller_.cq, &entry, 1, nullptr, kEventMs), "a send");
            need(fi_cq_sread(called_.cq, &entry, 1, nullptr, kEventMs), "a receive");
        }
    }

    /// The next error of the domain. Returns: what is wrong with it.
    std::string domain_error(int expected) const {
        std::uint32_t event = 0;
        fi_eq_entry entry{};
        const ssize_t got = fi_eq_sread(domain_eq_, &event, &entry, sizeof entry, kEventMs, 0);
        if (got != -FI_EAVAIL) {
            return got == -FI_EAGAIN ? "no event" : "an event that is no error";
        }
        fi_eq_err_entry error{};
        need(fi_eq_readerr(domain_eq_, &error, 0), "fi_eq_readerr");
        return error.fid == &domain_->fid ? is_error(error.err, expected) : "of something else";
    }

    /// Each endpoint has an error of the device, and those with a connection its end.
    std::string ends() {
        std::map<const fid*, int> errors;
        std::map<const fid*, int> shut_down;
        for (int i = 0; i < 5; ++i) {
            std::uint32_t event = 0;
            fi_eq_cm_entry entry{};
            const ssize_t got = fi_eq_sread(eq_, &event, &entry, sizeof entry, kEventMs, 0);
            if (got == -FI_EAVAIL) {
                fi_eq_err_entry error{};
                need(fi_eq_readerr(eq_, &error, 0), "fi_eq_readerr");
                errors[error.fid] += error.err == FI_ENODEV ? 1 : 100;
            } else if (got > 0 && event == FI_SHUTDOWN) {
                ++shut_down[entry.fid];
            } else {
                return "event " + std::to_string(i) + " of 5 does not come";
            }
        }
        const bool is_right = errors[&pep_->fid] == 1 && errors[&caller_.ep->fid] == 1 &&
                              errors[&called_.ep->fid] == 1 && shut_down[&caller_.ep->fid] == 1 &&
                              shut_down[&called_.ep->fid] == 1;
        return is_right ? std::string() : "the wrong events";
    }

    /// What is posted completes with errors, receives as flushed.
    std::string flushed() const {
        for (std::size_t i = 0; i < kReceives + kWaiting; ++i) {
            fi_cq_entry entry{};
            const ssize_t got = fi_cq_sread(caller_.cq, &entry, 1, nullptr, kEventMs);
            if (got != -FI_EAVAIL) {
                return "request " + std::to_string(i) + " does not end with an error";
            }
            fi_cq_err_entry error{};
            need(fi_cq_readerr(caller_.cq, &error, 0), "fi_cq_readerr");
            if ((error.flags & FI_RECV) != 0 && error.err != FI_ECANCELED) {
                return is_error(error.err, FI_ECANCELED);
            }
        }
        fi_cq_entry entry{};
        return fi_cq_read(caller_.cq, &entry, 1) == -FI_EAGAIN ? std::string() : "there is more";
    }

    std::string refuses() {
        fid_mr* further = nullptr;
        const std::string sends = is_error(static_cast<int>(-send()), FI_ENOTCONN);
        const std::string receives = is_error(static_cast<int>(-receive(caller_)), FI_ENOTCONN);
        const std::string regions = is_error(-register_region(&further), FI_ENODEV);
        return !sends.empty() ? sends : !receives.empty() ? receives : regions;
    }

  private:
    ssize_t send() {
        return fi_send(caller_.ep, memory_.data(), kBytes, fi_mr_desc(mr_), 0, nullptr);
    }
    ssize_t receive(const End& end) {
        return fi_recv(end.ep, memory_.data(), kBytes, fi_mr_desc(mr_), 0, nullptr);
    }
    int register_region(fid_mr** region) {
        return fi_mr_reg(domain_, memory_.data(), memory_.size(), FI_SEND | FI_RECV, 0, 0, 0,
                         region, nullptr);
    }
    void open(End& end, fi_info* info) {
        fi_cq_attr completions{};
        completions.format = FI_CQ_FORMAT_CONTEXT;
        completions.wait_obj = FI_WAIT_UNSPEC;
        need(fi_cq_open(domain_, &completions, &end.cq, nullptr), "fi_cq_open");
        need(fi_endpoint(domain_, info, &end.ep, nullptr), "fi_endpoint");
        need(fi_ep_bind(end.ep, &eq_->fid, 0), "fi_ep_bind");
        need(fi_ep_bind(end.ep, &end.cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
        need(fi_enable(end.ep), "fi_enable");
        for (std::size_t i = 0; i < kReceives; ++i) {
            need(receive(end), "fi_recv");
        }
    }
    /// Returns: the info of a request.
    fi_info* await(std::uint32_t expected) const {
        std::uint32_t event = 0;
        fi_eq_cm_entry entry{};
        const ssize_t got = fi_eq_sread(eq_, &event, &entry, sizeof entry, kEventMs, 0);
        if (got <= 0 || event != expected) {
            fail("no event " + std::to_string(expected));
        }
        return entry.info;
    }
    void connect() {
        need(fi_passive_ep(fabric_, info_, &pep_, nullptr), "fi_passive_ep");
        need(fi_pep_bind(pep_, &eq_->fid, 0), "fi_pep_bind");
        need(fi_listen(pep_), "fi_listen");
        std::array<char, 64> name{};
        std::size_t bytes = name.size();
        need(fi_getname(&pep_->fid, name.data(), &bytes), "fi_getname");
        open(caller_, info_);
        need(fi_connect(caller_.ep, name.data(), nullptr, 0), "fi_connect");
        fi_info* const request = await(FI_CONNREQ);
        open(called_, request);
        need(fi_accept(called_.ep, nullptr, 0), "fi_accept");
        fi_freeinfo(request);
        await(FI_CONNECTED);
        await(FI_CONNECTED);
    }

    std::vector<char> memory_ = std::vector<char>(4096);
    fi_info* info_;
    fid_fabric* fabric_ = nullptr;
    fid_eq* eq_ = nullptr;
    fid_eq* domain_eq_ = nullptr;
    fid_domain* domain_ = nullptr;
    fid_mr* mr_ = nullptr;
    fid_pep* pep_ = nullptr;
    End caller_;
    End called_;
};

// ---- datagrams ----

const fab::EpSpec kDatagrams{
    .type = FI_EP_DGRAM, .addr_format = FI_SOCKADDR_IN, .cq_wait = FI_WAIT_UNSPEC};

class Datagrams {
  public:
    Datagrams() : from_(kDatagrams), to_(kDatagrams, from_), buffer_(from_, 4096) {
        peer_ = from_.insert(to_.name());
        for (std::size_t i = 0; i < kReceives; ++i) {
            need(receive(), "fi_recv");
        }
    }

    std::string say() {
        need(send(), "fi_send");
        fi_cq_tagged_entry entry{};
        const bool has_left = fi_cq_sread(from_.tx_cq, &entry, 1, nullptr, kEventMs) == 1;
        const bool has_come = fi_cq_sread(to_.rx_cq, &entry, 1, nullptr, kEventMs) == 1;
        need(receive(), "fi_recv");
        return has_left && has_come ? std::string() : "it is lost";
    }
    std::string flushed() const {
        for (std::size_t i = 0; i < kReceives; ++i) {
            fi_cq_tagged_entry entry{};
            if (fi_cq_sread(to_.rx_cq, &entry, 1, nullptr, kEventMs) != -FI_EAVAIL) {
                return "receive " + std::to_string(i) + " does not end with an error";
            }
            fi_cq_err_entry error{};
            need(fi_cq_readerr(to_.rx_cq, &error, 0), "fi_cq_readerr");
            if (error.err != FI_ECANCELED) {
                return is_error(error.err, FI_ECANCELED);
            }
        }
        return {};
    }
    std::string refuses() {
        const std::string sends = is_error(static_cast<int>(-send()), FI_ENODEV);
        return sends.empty() ? is_error(static_cast<int>(-receive()), FI_ENODEV) : sends;
    }

  private:
    ssize_t send() {
        return fi_send(from_.ep, buffer_.as(), kBytes, buffer_.desc(), peer_, nullptr);
    }
    ssize_t receive() { return fi_recv(to_.ep, buffer_.as(), kBytes, buffer_.desc(), 0, nullptr); }

    fab::Endpoint from_;
    fab::Endpoint to_;
    fab::Buffer buffer_;
    fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

/// A NIC beside eth0, with an address of its own.
void add_second() {
    run("ip link add end0 type veth peer name end1");
    run("ip addr add " + std::string(kSecondIp) + "/24 dev end0");
    run("ip link set end0 up && ip link set end1 up");
    run("rdma link add rxe1 type rxe netdev end0");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        fail("usage: OWN-IP");
    }
    const std::string ip = argv[1];
    fab::settings.node = ip;
    fab::settings.nic = "rxe0";
    traffic::Report report;
    {
        Pair pair(ip, "rxe0");
        Datagrams datagrams;
        report.line("a message between two endpoints", pair.say());
        report.line("a datagram between two others", datagrams.say());
        run("ip link set eth0 down");
        report.line("a port that goes down is an error of the domain",
                    pair.domain_error(FI_ENETDOWN));
        run("ip link set eth0 up");
        report.line("a connection outlives that", pair.say());
        pair.leave_pending();
        run("rdma link delete rxe0 &");
        report.line("a NIC that is taken away is an error of the domain",
                    pair.domain_error(FI_ENODEV));
        report.line("and of all its endpoints, whose connections end", pair.ends());
        report.line("what was under way ends with errors", pair.flushed());
        report.line("receives of datagrams, too", datagrams.flushed());
        report.line("and nothing is taken any more", pair.refuses());
        report.line("nor datagrams", datagrams.refuses());
    }
    fi_info* const offered = ask(ip, "rxe0");
    report.line("it is not offered any more", offered == nullptr ? "" : "it is");
    add_second();
    {
        Pair second(kSecondIp, "rxe1");
        report.line("another one serves", second.say());
        report.line("one of the first one's name is put in its place",
                    until("rdma link add rxe0 type rxe netdev eth0"));
        Pair pair(ip, "rxe0");
        Datagrams datagrams;
        report.line("it is found, and serves", pair.say());
        report.line("also datagrams", datagrams.say());
        report.line("and the other one still does", second.say());
    }
    return report.status();
}
