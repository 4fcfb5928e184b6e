// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// One end of the datagrams of datagrams.h, on FI_EP_DGRAM of rvt: with FI_RVT_ROCE_PORT=4791 for an
// end on librdmacm, or with the name of a NIC in RVT_VM_NIC over that one.
//
//   dgram_datagrams DIR active|passive OWN-IP PEER-IP [strays]
#include "datagrams.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

namespace {

using datagrams::Outcome;
using datagrams::Received;
using datagrams::Sent;
using traffic::fail;

constexpr std::uint32_t kVersion = FI_VERSION(1, 17);

template <class Rc>
void need(Rc result, const char* what) {
    if (result < 0) {
        fail(std::string(what) + ": " + fi_strerror(static_cast<int>(-result)));
    }
}

class DgramEnd final : public datagrams::End {
  public:
    explicit DgramEnd(const traffic::Options& options) : options_(options) {}

    void open(std::uint16_t service) override {
        ask(service);
        fid_fabric* fabric = nullptr;
        fid_domain* domain = nullptr;
        need(fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
        need(fi_domain(fabric, info_, &domain, nullptr), "fi_domain");
        fi_cq_attr completions{};
        completions.format = FI_CQ_FORMAT_MSG;
        need(fi_cq_open(domain, &completions, &cq_, nullptr), "fi_cq_open");
        need(fi_cq_open(domain, &completions, &receive_cq_, nullptr), "fi_cq_open");
        fi_av_attr addresses{};
        need(fi_av_open(domain, &addresses, &av_, nullptr), "fi_av_open");
        need(fi_endpoint(domain, info_, &ep_, nullptr), "fi_endpoint");
        need(fi_ep_bind(ep_, &av_->fid, 0), "fi_ep_bind");
        need(fi_ep_bind(ep_, &cq_->fid, FI_TRANSMIT), "fi_ep_bind");
        need(fi_ep_bind(ep_, &receive_cq_->fid, FI_RECV), "fi_ep_bind");
        need(fi_enable(ep_), "fi_enable");
        for (Buffer& buffer : buffers_) {
            buffer.fill(datagrams::kUntouched);
            need(fi_recv(ep_, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC, &buffer),
                 "fi_recv");
        }
    }

    Sent send(std::uint16_t service, std::span<std::byte> memory) override {
        fi_addr_t to = FI_ADDR_UNSPEC;
        const std::string number = std::to_string(service);
        if (service == found_service_) {
            to = found_;
        } else if (fi_av_insertsvc(av_, options_.peer_ip.c_str(), number.c_str(), &to, 0,
                                   nullptr) != 1) {
            fail("fi_av_insertsvc");
        }
        need(fi_send(ep_, memory.data(), memory.size(), nullptr, to, nullptr), "fi_send");
        fi_cq_msg_entry entry{};
        ssize_t got = 0;
        datagrams::await([&] {
            got = fi_cq_read(cq_, &entry, 1);
            return got != -FI_EAGAIN;
        });
        if (got == 1) {
            found_service_ = service;
            found_ = to;
            return {.outcome = Outcome::kSent};
        }
        fi_cq_err_entry error{};
        need(fi_cq_readerr(cq_, &error, 0), "fi_cq_readerr");
        return {.outcome = error.err == FI_EHOSTUNREACH ? Outcome::kRefused : Outcome::kOther,
                .text = fi_strerror(error.err)};
    }

    Received receive() override {
        fi_cq_msg_entry entry{};
        fi_addr_t from = FI_ADDR_UNSPEC;
        ssize_t got = 0;
        datagrams::await([&] {
            got = fi_cq_readfrom(receive_cq_, &entry, 1, &from);
            return got != -FI_EAGAIN;
        });
        if (got != 1) {
            fi_cq_err_entry error{};
            need(fi_cq_readerr(receive_cq_, &error, 0), "fi_cq_readerr");
            return {.problem = fi_strerror(error.err)};
        }
        const auto* const buffer = static_cast<const Buffer*>(entry.op_context);
        return {.buffer = static_cast<std::size_t>(buffer - buffers_.data()),
                .bytes = entry.len,
                .is_from_peer = from != FI_ADDR_NOTAVAIL && from == found_};
    }

    [[nodiscard]] std::span<const std::byte> buffer(std::size_t index) const override {
        return buffers_.at(index);
    }

    void close() override { need(fi_close(&ep_->fid), "fi_close"); }

  private:
    using Buffer = std::array<std::byte, datagrams::kMostBytes>;

    void ask(std::uint16_t service) {
        fi_info* const hints = fi_allocinfo();
        hints->fabric_attr->prov_name = strdup("rvt");
        hints->ep_attr->type = FI_EP_DGRAM;
        hints->caps = FI_MSG | FI_SOURCE;
        if (const char* const nic = std::getenv("RVT_VM_NIC"); nic != nullptr) {
            hints->domain_attr->name = strdup(nic);
            hints->caps = FI_MSG;
        }
        need(fi_getinfo(kVersion, options_.own_ip.c_str(), std::to_string(service).c_str(),
                        FI_SOURCE, hints, &info_),
             "fi_getinfo");
        fi_freeinfo(hints);
    }

    const traffic::Options& options_;
    fi_info* info_ = nullptr;
    fid_cq* cq_ = nullptr;
    fid_cq* receive_cq_ = nullptr;
    fid_av* av_ = nullptr;
    fid_ep* ep_ = nullptr;
    std::uint16_t found_service_ = 0;
    fi_addr_t found_ = FI_ADDR_UNSPEC;
    std::vector<Buffer> buffers_ = std::vector<Buffer>(datagrams::kReceives);
};

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    std::vector<std::byte> memory(datagrams::kMostBytes);
    DgramEnd end(options);
    return datagrams::run(end, memory, options);
}
