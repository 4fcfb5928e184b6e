// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The number of one datagram endpoint at an address of a NIC, in the port space UDP of the kernel's
// rdma_cm: it answers for the endpoint's pair, and asks for those of others. rdma_cm(7). Peers are
// endpoints like this one, those of rvt at port 4791 of RoCEv2, and any program on librdmacm.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "backend/verbs/library_fd.h"
#include "backend/verbs/nic.h"
#include "core/ud_services.h"
#include "util/annotations.h"
#include "util/mutex.h"
#include "util/sock_addr.h"

namespace rvt::verbs {

struct RdmaCmServiceAttr {
    const Nic* nic = nullptr;  // outlives the service
    util::SockAddr address{};  // of the NIC; port 0: any number
    std::uint32_t timeout_ms = 10'000;
};

/// Threads: any; take_events() and check_deadlines() one at a time.
class RdmaCmService final : public core::UdServices {
  public:
    static constexpr std::uint64_t kNever = core::Device::kNever;

    /// Takes the number.
    /// Returns: EADDRINUSE for one that is taken, EADDRNOTAVAIL for an address that is none of the
    ///          NIC's; other errors of rdma_cm.
    static Result<std::unique_ptr<RdmaCmService>> open(const RdmaCmServiceAttr& attr);
    /// Precondition: close_service(), if it was opened.
    ~RdmaCmService();
    RdmaCmService(const RdmaCmService&) = delete;
    RdmaCmService& operator=(const RdmaCmService&) = delete;

    [[nodiscard]] core::Device& device() const noexcept { return nic_.device(); }
    /// The NIC's, with the number.
    [[nodiscard]] const util::SockAddr& address() const noexcept { return address_; }

    // ---- core::UdServices: there is the one of address() ----

    Status open_service(std::uint16_t service, const core::UdPair& pair,
                        core::SidrUser& user) override;
    void close_service(std::uint16_t service) noexcept override;
    Status ask(const Address& peer, std::uint16_t own) override;

    // ---- for the thread that looks after it ----

    /// Readable when there is something for take_events().
    [[nodiscard]] int event_fd() const noexcept { return events_->fd; }
    void take_events() noexcept;
    /// Gives up questions that have not been answered in time, and says so when the device is gone.
    void check_deadlines() noexcept;

  private:
    using Events = std::unique_ptr<rdma_event_channel, void (*)(rdma_event_channel*)>;
    using CmId = std::unique_ptr<rdma_cm_id, int (*)(rdma_cm_id*)>;

    struct Question {
        CmId id{nullptr, nullptr};
        Address peer{};
        std::uint64_t deadline_us = 0;
    };
    /// What rdma_cm has reported; no id in it but that of somebody's question.
    struct News {
        rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
        int status = 0;
        std::uint64_t number = 0;  // of the question
        rdma_cm_id* request = nullptr;
        core::UdPair pair{};
    };

    explicit RdmaCmService(const RdmaCmServiceAttr& attr) noexcept;
    Status start();
    CmId make_id(std::uint64_t number) noexcept;
    [[nodiscard]] bool begins_at_nic(const rdma_cm_id& id) const noexcept;
    static News news_of(const rdma_cm_event& event) noexcept;
    void on_news_locked(const News& news) RVT_REQUIRES(lock_);
    void answer_locked(rdma_cm_id* request) RVT_REQUIRES(lock_);
    [[nodiscard]] Status go_on_locked(const Question& question, const News& news)
        RVT_REQUIRES(lock_);
    void finish_locked(std::uint64_t number, const Result<core::UdPair>& pair) RVT_REQUIRES(lock_);

    const Nic& nic_;
    util::SockAddr address_;
    const std::uint64_t timeout_us_;
    Events events_{nullptr, nullptr};
    LibraryFd events_fd_;
    util::Mutex lock_;  // order: after the domain's lock, before that of the user's news
    CmId listening_ RVT_GUARDED_BY(lock_){nullptr, nullptr};
    core::SidrUser* user_ RVT_GUARDED_BY(lock_) = nullptr;
    core::UdPair pair_ RVT_GUARDED_BY(lock_){};
    std::unordered_map<std::uint64_t, Question> questions_ RVT_GUARDED_BY(lock_);
    std::uint64_t next_number_ RVT_GUARDED_BY(lock_) = 1;
};

}  // namespace rvt::verbs
