// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An end of calls on FI_EP_MSG.
#include "msg_end.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

namespace {

using calls::Completion;
using calls::Event;
using calls::News;
using traffic::fail;

constexpr int kPatienceMs = std::chrono::milliseconds(traffic::kPatience).count();
constexpr std::uint32_t kVersion = FI_VERSION(1, 17);
constexpr std::size_t kMostData = 256;

template <class Rc>
void need(Rc result, const char* what) {
    if (result < 0) {
        fail(std::string(what) + ": " + fi_strerror(static_cast<int>(-result)));
    }
}

class MsgEnd final : public calls::End {
  public:
    MsgEnd(const traffic::Options& options, std::span<std::byte> memory) : options_(options) {
        info_ = ask(options.own_ip, nullptr, FI_SOURCE);
        need(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
        fi_eq_attr events{};
        events.wait_obj = FI_WAIT_UNSPEC;
        need(fi_eq_open(fabric_, &events, &eq_, nullptr), "fi_eq_open");
        need(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
        fi_cq_attr completions{};
        completions.format = FI_CQ_FORMAT_MSG;
        need(fi_cq_open(domain_, &completions, &cq_, nullptr), "fi_cq_open");
        need(fi_cq_open(domain_, &completions, &receive_cq_, nullptr), "fi_cq_open");
        need(fi_mr_reg(domain_, memory.data(), memory.size(),
                       FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                       0, 0, &mr_, nullptr),
             "fi_mr_reg");
    }

    void listen(std::uint16_t service) override {
        fi_info* const info = ask(options_.own_ip, std::to_string(service).c_str(), FI_SOURCE);
        need(fi_passive_ep(fabric_, info, &pep_, nullptr), "fi_passive_ep");
        need(fi_pep_bind(pep_, &eq_->fid, 0), "fi_pep_bind");
        need(fi_listen(pep_), "fi_listen");
        fi_freeinfo(info);
    }

    void call(std::uint16_t service, const std::string& data) override {
        fi_info* const info = ask(options_.peer_ip, std::to_string(service).c_str(), 0);
        open(info);
        need(fi_connect(ep_, nullptr, data.data(), data.size()), "fi_connect");
        fi_freeinfo(info);
    }

    void prepare() override {
        open(request_);
        fi_freeinfo(request_);
        request_ = nullptr;
    }
    void accept(const std::string& data) override {
        need(fi_accept(ep_, data.data(), data.size()), "fi_accept");
    }
    void refuse(const std::string& data) override {
        need(fi_reject(pep_, request_->handle, data.data(), data.size()), "fi_reject");
        fi_freeinfo(request_);
        request_ = nullptr;
    }
    void hang_up() override { need(fi_shutdown(ep_, 0), "fi_shutdown"); }
    void forget() override {
        need(fi_close(&ep_->fid), "fi_close");
        fi_cq_msg_entry entry;
        fi_cq_err_entry error{};
        for (fid_cq* cq : {cq_, receive_cq_}) {
            ssize_t got = 0;
            while ((got = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN) {
                need(got == -FI_EAVAIL ? fi_cq_readerr(cq, &error, 0) : got, "fi_cq_read");
            }
        }
    }

    Event next_event() override {
        std::array<char, sizeof(fi_eq_cm_entry) + kMostData> room{};
        std::uint32_t type = 0;
        const ssize_t got = fi_eq_sread(eq_, &type, room.data(), room.size(), kPatienceMs, 0);
        if (got == -FI_EAVAIL) {
            return next_error();
        }
        need(got, "fi_eq_sread");
        fi_eq_cm_entry entry{};
        std::memcpy(&entry, room.data(), sizeof entry);
        if (type == FI_CONNREQ) {
            request_ = entry.info;
        }
        return {.news = type == FI_CONNREQ     ? News::kRequest
                        : type == FI_CONNECTED ? News::kConnected
                        : type == FI_SHUTDOWN  ? News::kEnded
                                               : News::kOther,
                .text = fi_tostr(&type, FI_TYPE_EQ_EVENT),
                .data = {room.data() + sizeof entry, static_cast<std::size_t>(got) - sizeof entry}};
    }

    std::uint64_t key() override { return fi_mr_key(mr_); }

    void post_receive(std::span<std::byte> memory) override {
        need(fi_recv(ep_, memory.data(), memory.size(), desc(), 0, nullptr), "fi_recv");
    }
    void post_send(std::span<std::byte> memory) override {
        need(fi_send(ep_, memory.data(), memory.size(), desc(), 0, nullptr), "fi_send");
    }
    void post_write(std::span<std::byte> memory, std::uint64_t to, std::uint64_t key) override {
        need(fi_write(ep_, memory.data(), memory.size(), desc(), 0, to, key, nullptr), "fi_write");
    }
    void post_read(std::span<std::byte> memory, std::uint64_t from, std::uint64_t key) override {
        need(fi_read(ep_, memory.data(), memory.size(), desc(), 0, from, key, nullptr), "fi_read");
    }

    Completion complete_request() override { return complete(cq_); }
    Completion complete_receive() override { return complete(receive_cq_); }

  private:
    /// With the address of the first answer, if that is not what is asked about.
    fi_info* ask(const std::string& ip, const char* service, std::uint64_t flags) const {
        fi_info* const hints = fi_allocinfo();
        const char* const provider = std::getenv("RVT_VM_PROVIDER");
        hints->fabric_attr->prov_name = strdup(provider != nullptr ? provider : "rvt");
        hints->ep_attr->type = FI_EP_MSG;
        hints->caps = FI_MSG | FI_RMA;
        hints->domain_attr->mr_mode =
            FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
        if (const char* const nic = std::getenv("RVT_VM_NIC")) {
            hints->domain_attr->name = strdup(nic);
        }
        if ((flags & FI_SOURCE) == 0) {
            hints->src_addr = std::malloc(info_->src_addrlen);
            hints->src_addrlen = info_->src_addrlen;
            std::memcpy(hints->src_addr, info_->src_addr, info_->src_addrlen);
        }
        fi_info* info = nullptr;
        need(fi_getinfo(kVersion, ip.c_str(), service, flags, hints, &info), "fi_getinfo");
        fi_freeinfo(hints);
        return info;
    }

    void* desc() const {
        return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0 ? fi_mr_desc(mr_) : nullptr;
    }

    void open(fi_info* info) {
        need(fi_endpoint(domain_, info, &ep_, nullptr), "fi_endpoint");
        need(fi_ep_bind(ep_, &eq_->fid, 0), "fi_ep_bind");
        need(fi_ep_bind(ep_, &cq_->fid, FI_TRANSMIT), "fi_ep_bind");
        need(fi_ep_bind(ep_, &receive_cq_->fid, FI_RECV), "fi_ep_bind");
        need(fi_enable(ep_), "fi_enable");
    }

    Event next_error() {
        fi_eq_err_entry error{};
        need(fi_eq_readerr(eq_, &error, 0), "fi_eq_readerr");
        return {.news = error.err == FI_ECONNREFUSED ? News::kRefused : News::kOther,
                .text = fi_strerror(error.err),
                .data = {static_cast<const char*>(error.err_data), error.err_data_size}};
    }

    static Completion complete(fid_cq* cq) {
        fi_cq_msg_entry entry{};
        ssize_t got = 0;
        calls::await_completion([&] {
            got = fi_cq_read(cq, &entry, 1);
            return got != -FI_EAGAIN;
        });
        if (got == 1) {
            return {.bytes = entry.len};
        }
        fi_cq_err_entry error{};
        need(fi_cq_readerr(cq, &error, 0), "fi_cq_readerr");
        return {.problem = fi_strerror(error.err)};
    }

    const traffic::Options& options_;
    fi_info* info_ = nullptr;
    fi_info* request_ = nullptr;
    fid_fabric* fabric_ = nullptr;
    fid_eq* eq_ = nullptr;
    fid_domain* domain_ = nullptr;
    fid_cq* cq_ = nullptr;
    fid_cq* receive_cq_ = nullptr;
    fid_mr* mr_ = nullptr;
    fid_pep* pep_ = nullptr;
    fid_ep* ep_ = nullptr;
};

}  // namespace

std::unique_ptr<calls::End> calls::make_msg_end(const traffic::Options& options,
                                                std::span<std::byte> memory) {
    return std::make_unique<MsgEnd>(options, memory);
}
