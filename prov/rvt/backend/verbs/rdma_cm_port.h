// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Connections over a NIC, which the kernel's rdma_cm asks for, accepts and ends: rdma_cm(7). The
// pairs are ours; rdma_cm says which attributes they need in which state (rdma_init_qp_attr(3)).
// Peers that run libfabric's own verbs provider, or librdmacm, are connected to in the same way.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/verbs/library_fd.h"
#include "backend/verbs/nic.h"
#include "core/rc_port.h"
#include "util/annotations.h"
#include "util/mutex.h"
#include "util/sock_addr.h"

namespace rvt::verbs {

struct RdmaCmPortAttr {
    Nic* nic = nullptr;        // outlives the port
    util::SockAddr address{};  // of the NIC; port 0: any number
    bool listens = false;      // the number is taken when the port opens
    std::uint32_t connect_timeout_ms = 10'000;
};

using CmId = std::unique_ptr<rdma_cm_id, int (*)(rdma_cm_id*)>;

class RdmaCmConnection final : public core::RcConnection {
  public:
    RdmaCmConnection(std::uint64_t number, core::Qp& qp, core::RcUser& user) noexcept
        : RcConnection(qp), number_(number), user_(user) {}

  private:
    friend class RdmaCmPort;
    using RcConnection::set_lost;
    using RcConnection::set_peer;
    using RcConnection::set_state;

    std::uint64_t number_;  // as which rdma_cm knows its id
    core::RcUser& user_;
    CmId id_{nullptr, nullptr};
    std::uint64_t deadline_us_ = 0;    // of dialing and of hanging up; of a pair without a device
    std::vector<std::byte> greeting_;  // private data of the request
    bool has_failed_ = false;          // the pair, by itself
};

/// Threads: any; take_events() and check_deadlines() one at a time, without the lock of a caller.
class RdmaCmPort final : public core::RcPort {
  public:
    /// Returns: EADDRINUSE for a number that is taken; other errors of rdma_cm.
    static Result<std::unique_ptr<RdmaCmPort>> open(const RdmaCmPortAttr& attr);
    ~RdmaCmPort() override;
    RdmaCmPort(const RdmaCmPort&) = delete;
    RdmaCmPort& operator=(const RdmaCmPort&) = delete;

    /// The NIC's, with the number where one is taken.
    [[nodiscard]] const util::SockAddr& address() const noexcept { return address_; }

    [[nodiscard]] std::size_t private_bytes() const noexcept override;
    Result<std::unique_ptr<core::RcConnection>> make(core::Pd& pd, const core::QpInit& init,
                                                     core::RcUser& user) override;
    void destroy(std::unique_ptr<core::RcConnection> connection) noexcept override;
    Status connect(core::RcConnection& connection, const core::RcCall& call,
                   std::span<const std::byte> private_data) override;
    Status accept(core::RcConnection& connection, const core::CmEvent& request,
                  std::span<const std::byte> private_data) override;
    Status reject(core::CmHandle request, std::span<const std::byte> private_data) override;
    Status disconnect(core::RcConnection& connection) override;
    void note_failure(core::RcConnection& connection) noexcept override;
    void note_traffic(core::RcConnection& connection) noexcept override;
    Status listen(std::uint16_t service, core::RcListener& listener) override;
    void unlisten(std::uint16_t service) noexcept override;
    /// Takes notice of which queues have something, for who sleeps; the completions themselves are
    /// taken without it.
    unsigned poll() noexcept override { return device().progress(); }
    [[nodiscard]] std::uint64_t next_due_us() noexcept override { return kNever; }

    // ---- for the thread that looks after the port ----

    /// Readable when there is something for take_events().
    [[nodiscard]] int event_fd() const noexcept { return events_->fd; }
    void take_events() noexcept;
    /// Gives up who has not answered in time, also to a hang-up, and everybody when the device is
    /// gone.
    /// Returns: when to call it next; kNever: nobody is being waited for.
    std::uint64_t check_deadlines() noexcept;

  private:
    using State = core::RcConnection::State;
    using Events = std::unique_ptr<rdma_event_channel, void (*)(rdma_event_channel*)>;

    /// What rdma_cm has reported; no id in it but that of a new request.
    struct News {
        rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
        int status = 0;
        std::uint64_t number = 0;  // of the connection, or the request
        rdma_cm_id* request = nullptr;
        rdma_conn_param param{};
        std::array<std::byte, 256> data{};
        std::size_t bytes = 0;

        [[nodiscard]] std::span<const std::byte> private_data() const noexcept {
            return std::span(data).first(bytes);
        }
    };
    struct Request {
        CmId id{nullptr, nullptr};
        rdma_conn_param param{};
    };

    explicit RdmaCmPort(const RdmaCmPortAttr& attr);
    Status start(bool listens);
    CmId make_id(std::uint64_t number) noexcept;
    static RdmaCmConnection& own(core::RcConnection& connection) noexcept {
        return static_cast<RdmaCmConnection&>(connection);
    }
    static News news_of(const rdma_cm_event& event) noexcept;
    [[nodiscard]] rdma_conn_param param_for(const core::Qp& qp,
                                            std::span<const std::byte> private_data) const noexcept;
    Status move_pair(const RdmaCmConnection& connection, ibv_qp_state to,
                     const rdma_conn_param& peer) const noexcept;
    Status start_pair(const RdmaCmConnection& connection,
                      const rdma_conn_param& peer) const noexcept;

    Status answer_locked(RdmaCmConnection& connection, const rdma_conn_param& peer,
                         std::span<const std::byte> private_data) RVT_REQUIRES(lock_);
    void on_news_locked(const News& news) RVT_REQUIRES(lock_);
    void on_request_locked(const News& news) RVT_REQUIRES(lock_);
    void on_resolved_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);
    void on_route_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);
    void on_reply_locked(RdmaCmConnection& connection, const News& news) RVT_REQUIRES(lock_);
    void opened_locked(RdmaCmConnection& connection, std::span<const std::byte> private_data)
        RVT_REQUIRES(lock_);
    void fail_locked(RdmaCmConnection& connection, int error,
                     std::span<const std::byte> private_data) RVT_REQUIRES(lock_);
    void end_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);
    void end_failed_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);
    Status flush_locked(RdmaCmConnection& connection) noexcept RVT_REQUIRES(lock_);
    static void lose(RdmaCmConnection& connection) noexcept;
    void end_all_locked() RVT_REQUIRES(lock_);
    void end_if_failed_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);
    void end_with_device_locked(RdmaCmConnection& connection) RVT_REQUIRES(lock_);

    Nic& nic_;
    util::SockAddr address_;
    const std::uint64_t connect_timeout_us_;
    std::atomic<bool> is_hot_for_nobody_{false};  // completions need no progress
    Events events_{nullptr, nullptr};
    LibraryFd events_fd_;
    util::Mutex lock_;  // order: after the domain's lock, before those of pairs and event queues
    CmId listening_ RVT_GUARDED_BY(lock_){nullptr, nullptr};
    core::RcListener* listener_ RVT_GUARDED_BY(lock_) = nullptr;
    bool is_gone_ RVT_GUARDED_BY(lock_) = false;  // the device, and everybody knows
    std::unordered_map<std::uint64_t, RdmaCmConnection*> connections_ RVT_GUARDED_BY(lock_);
    std::unordered_map<std::uint64_t, Request> requests_ RVT_GUARDED_BY(lock_);
    std::uint64_t next_number_ RVT_GUARDED_BY(lock_) = 1;
};

}  // namespace rvt::verbs
