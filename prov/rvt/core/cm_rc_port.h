// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections over a device of packet or segment grade: asked for, accepted and ended by messages
// of the communication manager. Services are numbers of rdma_cm's port space TCP: the device's own
// port, or many at a port that all endpoints of an address share. Datagram services of such a port
// are answered for and asked for beside them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/rc_port.h"
#include "core/rd_notices.h"
#include "core/sidr_desk.h"
#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/mutex.h"

namespace rvt::core {

/// How private data of applications travel.
enum class RcData : std::uint8_t {
    kCounted,  // between devices of this kind: behind a byte with their length
    kPlain,    // as librdmacm has them: nothing tells their length, zeros fill the message
};

/// A connection of this kind of port, which alone looks inside.
class CmRcConnection final : public RcConnection {
  public:
    CmRcConnection(std::uint64_t id, Qp& qp, RcUser& user) noexcept
        : RcConnection(qp), id_(id), user_(user) {}

  private:
    friend class CmRcPort;
    using RcConnection::set_peer;
    using RcConnection::set_state;

    const std::uint64_t id_;
    RcUser& user_;
    std::uint16_t own_service_ = 0;  // of one that dials
    CmHandle handle_ = CmHandle::kNone;
    std::uint32_t psn_ = 0;  // of the first packet of the peer
    std::uint32_t mtu_bytes_ = 0;
    std::uint64_t deadline_us_ = 0;    // of dialing, or of a doubt
    bool is_doubted_ = false;          // the peer's host has said that it is gone
    std::uint64_t completed_ = 0;      // work requests, when the doubt began
    std::vector<std::byte> greeting_;  // private data of the request, which may be sent again
};

struct CmRcPortAttr {
    Device* device = nullptr;  // packet or segment grade; outlives the port
    RcData data = RcData::kCounted;
    std::uint32_t connect_timeout_ms = 10'000;
    /// For so long, by the system's clock, the last packets of a port are those that tell peers of
    /// the end of their connections, until they have answered. Packet grade.
    std::uint32_t farewell_ms = 300;
    std::uint32_t idle_us = 50;  // after the last arrival there is more to come
    /// Set when there is something to poll for, cleared by a poll that has found nothing for a
    /// while.
    std::atomic<bool>* is_hot = nullptr;
};

/// Threads: any.
class CmRcPort final : public RcPort, public UdServices, private MadSink, private CmWire {
  public:
    explicit CmRcPort(const CmRcPortAttr& attr);
    /// Precondition: no connection and no context of the device is left, nobody polls.
    ~CmRcPort() override;
    CmRcPort(const CmRcPort&) = delete;
    CmRcPort& operator=(const CmRcPort&) = delete;

    [[nodiscard]] std::size_t private_bytes() const noexcept override;
    Result<std::unique_ptr<RcConnection>> make(Pd& pd, const QpInit& init, RcUser& user) override;
    void destroy(std::unique_ptr<RcConnection> connection) noexcept override;
    Status connect(RcConnection& connection, const RcCall& call,
                   std::span<const std::byte> private_data) override;
    Status accept(RcConnection& connection, const CmEvent& request,
                  std::span<const std::byte> private_data) override;
    Status reject(CmHandle request, std::span<const std::byte> private_data) override;
    Status disconnect(RcConnection& connection) override;
    void note_failure(RcConnection& connection) noexcept override;
    void note_traffic(RcConnection& connection) noexcept override;
    Status listen(std::uint16_t service, RcListener& listener) override;
    void unlisten(std::uint16_t service) noexcept override;
    UdServices* datagrams() noexcept override {
        return device().grade() == Grade::kPacket ? this : nullptr;
    }
    Status open_service(std::uint16_t service, const UdPair& pair, SidrUser& user) override;
    void close_service(std::uint16_t service) noexcept override;
    Status ask(const Address& peer, std::uint16_t own) override;
    unsigned poll() noexcept override;
    [[nodiscard]] std::uint64_t next_due_us() noexcept override;
    /// When poll() has found something last. Threads: any.
    [[nodiscard]] std::uint64_t traffic_us() const noexcept {
        return last_traffic_us_.load(std::memory_order_relaxed);  // relaxed: a hint
    }

  private:
    using State = RcConnection::State;

    static CmRcConnection& own(RcConnection& connection) noexcept {
        return static_cast<CmRcConnection&>(connection);
    }

    // MadSink, CmWire
    [[nodiscard]] Address answering(const Address& source) const noexcept;
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override;
    void peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept override;
    void pair_missed(const Address& source, std::uint32_t qpn) noexcept override;
    void channel_failed(Channel& channel) noexcept override;
    void pair_failed() noexcept override;
    void port_changed() noexcept override;
    void path_narrowed(const Address& host) noexcept override;
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override;

    CmRcConnection* find_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    std::uint32_t random_locked() RVT_REQUIRES(lock_);
    Status dial_locked(CmRcConnection& connection) RVT_REQUIRES(lock_);
    Status start_pair(CmRcConnection& connection, const CmEvent& peer);
    Status answer_locked(CmRcConnection& connection, const CmEvent& request,
                         std::span<const std::byte> private_data) RVT_REQUIRES(lock_);
    void give_up_request_locked(CmRcConnection& connection, Status why) RVT_REQUIRES(lock_);
    void run_cm_locked() RVT_REQUIRES(lock_);
    void on_event_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void on_request_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void on_reply_locked(CmRcConnection& connection, const CmEvent& event) RVT_REQUIRES(lock_);
    void on_rejected_locked(CmRcConnection& connection, const CmEvent& event) RVT_REQUIRES(lock_);
    void opened_locked(CmRcConnection& connection, std::span<const std::byte> private_data)
        RVT_REQUIRES(lock_);
    void fail_locked(CmRcConnection& connection, int error, std::span<const std::byte> private_data)
        RVT_REQUIRES(lock_);
    void end_locked(CmRcConnection& connection) RVT_REQUIRES(lock_);
    void hang_up_locked(CmRcConnection& connection) RVT_REQUIRES(lock_);
    void say_farewell() noexcept;
    [[nodiscard]] bool are_ends_unanswered() noexcept;
    static std::uint64_t settled_us(const CmRcConnection& connection) noexcept;
    void check_deadlines_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);
    Channel* channel_locked(const Address& peer) RVT_REQUIRES(lock_);
    void send_waiting_locked() RVT_REQUIRES(lock_);
    void lose_peers_locked() RVT_REQUIRES(lock_);
    void look_at_port_locked() RVT_REQUIRES(lock_);
    void end_failed() noexcept;
    void end_failed_locked(CmRcConnection& connection) RVT_REQUIRES(lock_);
    [[nodiscard]] bool is_cut_off_locked(const CmRcConnection& connection) const
        RVT_REQUIRES(lock_);
    [[nodiscard]] std::vector<std::byte> framed(std::span<const std::byte> data) const;
    [[nodiscard]] bool fits(std::span<const std::byte> data, std::size_t room) const noexcept;
    [[nodiscard]] std::span<const std::byte> data_of(const CmEvent& event) const noexcept;
    void look_soon() noexcept;
    void look_at_cm(std::uint64_t now_us) noexcept;
    [[nodiscard]] bool is_quiet(std::uint64_t now_us) noexcept;

    Device& device_;
    const RcData data_;
    const std::uint64_t connect_timeout_us_;
    const std::chrono::milliseconds farewell_;
    const unsigned generation_ = util::fork_generation();
    const std::uint64_t idle_us_;
    std::atomic<bool>& is_hot_;
    util::Mutex lock_;  // order: after the domain's lock, before those of pairs and event queues
    CmAgent agent_ RVT_GUARDED_BY(lock_);
    SidrDesk datagrams_ RVT_GUARDED_BY(lock_);
    RdNotices notices_ RVT_GUARDED_BY(lock_);  // of pairs that are not there
    std::unordered_map<std::uint16_t, RcListener*> listeners_ RVT_GUARDED_BY(lock_);
    // Segment grade: the way to each peer, from the first message to it or from it on; messages
    // that wait for room there; peers whose channel has failed, to be looked at.
    struct WaitingMad {
        Address to;
        std::array<std::byte, protocol::kMadBytes> mad;
    };
    static constexpr std::size_t kMaxWaitingMads = 1024;  // beyond, they are lost and sent again
    std::vector<std::pair<Address, Channel*>> channels_ RVT_GUARDED_BY(lock_);
    std::vector<WaitingMad> waiting_ RVT_GUARDED_BY(lock_);
    std::vector<Address> lost_ RVT_GUARDED_BY(lock_);
    std::atomic<bool> has_waiting_{false};
    std::atomic<bool> has_failed_{false};  // a pair, of which its connection does not know yet
    bool is_leaving_ RVT_GUARDED_BY(lock_) = false;     // from say_farewell() on
    bool has_port_news_ RVT_GUARDED_BY(lock_) = false;  // that have not been looked at
    std::unordered_map<std::uint64_t, CmRcConnection*> connections_ RVT_GUARDED_BY(lock_);
    std::uint64_t next_id_ RVT_GUARDED_BY(lock_) = 1;
    std::uint64_t random_ RVT_GUARDED_BY(lock_);
    std::atomic<std::uint64_t> cm_due_us_{kNever};  // 0: there is something to do
    std::atomic<std::uint64_t> last_traffic_us_{0};
};

}  // namespace rvt::core
