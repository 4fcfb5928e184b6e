// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opens an endpoint, reads zero bytes from the peer (which connects and touches nothing), and asks
// the provider what it connected with.
#include "rvt_info/peer.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext_rvt.h>
#include <rdma/fi_rma.h>

#include "rvt_info/refusals.h"

namespace rvt::info {
namespace {

constexpr std::chrono::seconds kPatience{15};

template <class Fid>
struct Close {
    void operator()(Fid* object) const noexcept { fi_close(&object->fid); }
};
template <class Fid>
using Owned = std::unique_ptr<Fid, Close<Fid>>;

/// What is opened on the way, in the order of opening; closed in reverse.
class Prober {
  public:
    explicit Prober(std::string address) : address_(std::move(address)) {
        if (!address_.starts_with("fi_sockaddr_in")) {
            address_ =
                (address_.starts_with("[") ? "fi_sockaddr_in6://" : "fi_sockaddr_in://") + address_;
        }
    }

    Section run() {
        section_.title = "peer " + address_;
        if (find() && open() && check("fi_av_insert", insert()) && check("fi_read", connect())) {
            add_ways(describe());
        }
        return std::move(section_);
    }

  private:
    bool check(const char* step, int error) {
        if (error != 0) {
            section_.add("not reached", std::string(step) + ": " + fi_strerror(-error));
        }
        return error == 0;
    }

    /// The way, then "name: value" of each other one.
    void add_ways(const std::string& text) {
        std::size_t end = text.find("; ");
        section_.add("reached by", text.substr(0, end));
        while (end != std::string::npos) {
            const std::size_t begin = end + 2;
            end = text.find("; ", begin);
            const std::string one = text.substr(begin, end - begin);
            const std::size_t colon = one.find(": ");
            section_.add(one.substr(0, colon), one.substr(colon + 2));
        }
    }

    bool find() {
        std::string error;
        const Info hints = parse_hints(
            "ep_attr->type=FI_EP_RDM,caps=FI_MSG|FI_RMA,addr_format=FI_ADDR_STR", error);
        take_refusals();  // of what was asked before
        fi_info* found = nullptr;
        const int result =
            fi_getinfo(FI_VERSION(1, 17), address_.c_str(), nullptr, 0, hints.get(), &found);
        info_.reset(found);
        if (!check("fi_getinfo", result)) {
            for (const Refused& refused : take_refusals()) {
                add_reason(section_, refused);
            }
        }
        return result == 0;
    }

    /// Each step is known by its call.
    bool open() {
        fi_av_attr av_attr{};
        fi_cq_attr cq_attr{};
        return step("fi_fabric", fabric_,
                    [&](fid_fabric** made) {
                        return fi_fabric(info_->fabric_attr, made, nullptr);
                    }) &&
               step("fi_domain", domain_,
                    [&](fid_domain** made) {
                        return fi_domain(fabric_.get(), info_.get(), made, nullptr);
                    }) &&
               step("fi_av_open", av_,
                    [&](fid_av** made) {
                        return fi_av_open(domain_.get(), &av_attr, made, nullptr);
                    }) &&
               step("fi_cq_open", cq_,
                    [&](fid_cq** made) {
                        return fi_cq_open(domain_.get(), &cq_attr, made, nullptr);
                    }) &&
               step("fi_endpoint", ep_,
                    [&](fid_ep** made) {
                        return fi_endpoint(domain_.get(), info_.get(), made, nullptr);
                    }) &&
               check("fi_ep_bind", fi_ep_bind(ep_.get(), &av_->fid, 0)) &&
               check("fi_ep_bind", fi_ep_bind(ep_.get(), &cq_->fid, FI_TRANSMIT | FI_RECV)) &&
               check("fi_enable", fi_enable(ep_.get()));
    }

    template <class Fid, class Open>
    bool step(const char* name, Owned<Fid>& place, Open open) {
        Fid* made = nullptr;
        const int error = open(&made);
        place.reset(made);
        return check(name, error);
    }

    int insert() {
        const char* one = address_.c_str();
        return fi_av_insert(av_.get(), &one, 1, &peer_, 0, nullptr) == 1 ? 0 : -FI_EINVAL;
    }

    int connect() {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        char nothing = 0;
        ssize_t result = -FI_EAGAIN;
        while (result == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            result = fi_read(ep_.get(), &nothing, 0, nullptr, peer_, 0, 0, nullptr);
            fi_cq_read(cq_.get(), nullptr, 0);
        }
        fi_cq_entry entry{};
        ssize_t got = result == 0 ? -FI_EAGAIN : result;
        while (got == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
            got = fi_cq_read(cq_.get(), &entry, 1);
        }
        if (got != -FI_EAVAIL) {
            return got == 1 ? 0 : got == -FI_EAGAIN ? -FI_ETIMEDOUT : static_cast<int>(got);
        }
        fi_cq_err_entry error{};
        fi_cq_readerr(cq_.get(), &error, 0);
        // No region of the peer's was named: an answer that refuses access is an answer.
        return error.err == FI_EACCES ? 0 : -error.err;
    }

    std::string describe() {
        fi_rvt_ops_ep* ops = nullptr;
        const int result =
            fi_open_ops(&ep_->fid, FI_RVT_EP_OPS, 0, reinterpret_cast<void**>(&ops), nullptr);
        if (result != 0) {
            return std::string("this provider does not say: ") + fi_strerror(-result);
        }
        std::vector<char> text(1024);
        std::size_t length = text.size();
        ops->describe_peer(ep_.get(), peer_, text.data(), &length);
        return text.data();
    }

    std::string address_;
    Section section_;
    Info info_;
    Owned<fid_fabric> fabric_;
    Owned<fid_domain> domain_;
    Owned<fid_av> av_;
    Owned<fid_cq> cq_;
    Owned<fid_ep> ep_;
    fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

}  // namespace

Section describe_peer(const std::string& address) {
    return Prober(address).run();
}

}  // namespace rvt::info
