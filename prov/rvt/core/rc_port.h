// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The connections of one device between pairs that applications own: asked for, accepted and ended
// by messages of the communication manager. Services are numbers of rdma_cm's port space TCP: the
// device's own port, or many at a port that all endpoints of an address share. Datagram services of
// such a port are answered for and asked for beside them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cm_agent.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mad.h"
#include "core/qp.h"
#include "core/sidr_desk.h"
#include "core/verbs_cq.h"
#include "util/annotations.h"
#include "util/mutex.h"

namespace rvt::core {

/// How private data of applications travel.
enum class RcData : std::uint8_t {
    kCounted,  // between devices of this kind: behind a byte with their length
    kPlain,    // as librdmacm has them: nothing tells their length, zeros fill the message
};

/// Whom a connection is asked of, and as whom.
struct RcCall {
    Address dest{};
    std::uint16_t service = 0;  // the number there
    std::uint16_t source = 0;   // that of the caller, which names it to the peer
};

/// The number of who has sent a request.
std::uint16_t rc_caller(const CmEvent& request) noexcept;

/// Of a work request that the port posts on its own account, beside those of the pair's user. It
/// completes only when it fails.
inline constexpr std::uint64_t kRcProbe = ~std::uint64_t{0};

/// Who has a connection. Called under the port's lock: it must not call the port.
/// Threads: any that polls.
class RcUser {
  public:
    /// The pair can be used. What the peer has added to its answer, where it was asked.
    virtual void connected(std::span<const std::byte> private_data) noexcept = 0;
    /// It has come to nothing: ECONNREFUSED, with what the peer has added; ETIMEDOUT, or another
    /// error of the pair's.
    virtual void connect_failed(int error, std::span<const std::byte> private_data) noexcept = 0;
    /// Either side has ended it, or the peer is gone.
    virtual void disconnected() noexcept = 0;

  protected:
    ~RcUser() = default;
};

/// Who listens. Called as RcUser.
class RcListener {
  public:
    /// A peer wants a connection: RcPort::accept() or reject() with the event's handle.
    virtual void requested(const CmEvent& request,
                           std::span<const std::byte> private_data) noexcept = 0;

  protected:
    ~RcListener() = default;
};

/// One pair with what belongs to its connection. Its owner keeps it, RcPort alone looks inside.
class RcConnection {
  public:
    enum class State : std::uint8_t {
        kIdle,
        kDialing,   // our request is out
        kAccepted,  // the peer's request has been answered; the pair works already
        kOpen,
        kClosing,  // the end has been asked for here
        kEnded,
    };

    RcConnection(std::uint64_t id, Qp& qp, RcUser& user) noexcept : id_(id), qp_(qp), user_(user) {}
    ~RcConnection() = default;
    RcConnection(const RcConnection&) = delete;
    RcConnection& operator=(const RcConnection&) = delete;

    [[nodiscard]] Qp& qp() const noexcept { return qp_; }
    [[nodiscard]] State state() const noexcept {
        // acquire: pairs with the release in set_state(): who sees kOpen sees the pair's state.
        return state_.load(std::memory_order_acquire);
    }
    /// Where the pair leads; valid from kDialing or kAccepted on.
    [[nodiscard]] const Address& peer() const noexcept { return peer_; }
    /// The number that the peer has there.
    [[nodiscard]] std::uint16_t peer_service() const noexcept { return peer_service_; }

  private:
    friend class RcPort;
    void set_state(State state) noexcept {
        // release: pairs with the acquire in state().
        state_.store(state, std::memory_order_release);
    }

    const std::uint64_t id_;
    Qp& qp_;
    RcUser& user_;
    std::atomic<State> state_{State::kIdle};
    Address peer_{};
    std::uint16_t peer_service_ = 0;
    std::uint16_t own_service_ = 0;  // of one that dials
    CmHandle handle_ = CmHandle::kNone;
    std::uint32_t psn_ = 0;  // of the first packet of the peer
    std::uint32_t mtu_bytes_ = 0;
    std::uint64_t deadline_us_ = 0;    // of dialing, or of a doubt
    bool is_doubted_ = false;          // the peer's host has said that it is gone
    std::uint64_t completed_ = 0;      // work requests, when the doubt began
    std::vector<std::byte> greeting_;  // private data of the request, which may be sent again
};

struct RcPortAttr {
    Device* device = nullptr;  // packet or segment grade; outlives the port
    RcData data = RcData::kCounted;
    std::uint32_t connect_timeout_ms = 10'000;
    std::uint32_t idle_us = 50;  // after the last arrival there is more to come
    /// Set when there is something to poll for, cleared by a poll that has found nothing for a
    /// while.
    std::atomic<bool>* is_hot = nullptr;
};

/// Threads: any.
class RcPort final : private MadSink, private CmWire {
  public:
    explicit RcPort(const RcPortAttr& attr);
    /// Precondition: no connection and no context of the device is left, nobody polls.
    ~RcPort();
    RcPort(const RcPort&) = delete;
    RcPort& operator=(const RcPort&) = delete;

    [[nodiscard]] Device& device() const noexcept { return device_; }
    /// Room for what applications add to a request, the least of all messages.
    [[nodiscard]] std::size_t private_bytes() const noexcept;

    /// Makes a pair that takes receives. Returns: as create_qp().
    Result<std::unique_ptr<RcConnection>> make(Pd& pd, const QpInit& init, RcUser& user);
    /// Ends it in any state. The user is not called any more when this returns.
    /// Precondition: the caller holds no ReadPin and no lock that a poll needs.
    void destroy(std::unique_ptr<RcConnection> connection) noexcept;

    /// Asks for a connection; connected() or connect_failed() follows.
    /// Returns: EINVAL in another state than kIdle, EMSGSIZE, ENOMEM.
    Status connect(RcConnection& connection, const RcCall& call,
                   std::span<const std::byte> private_data);
    /// Accepts a peer's request; connected(), connect_failed() or disconnected() follows.
    /// Returns: EINVAL in another state than kIdle, EMSGSIZE, ECONNABORTED when the peer has given
    ///          up.
    Status accept(RcConnection& connection, const CmEvent& request,
                  std::span<const std::byte> private_data);
    /// Returns: EMSGSIZE, ECONNABORTED as above.
    Status reject(CmHandle request, std::span<const std::byte> private_data);
    /// Ends a connection; disconnected() follows. What has not been sent is flushed.
    /// Returns: ENOTCONN unless it is open or accepted.
    Status disconnect(RcConnection& connection);

    /// A request of the pair has failed, and with it the pair: the connection ends.
    void note_failure(RcConnection& connection) noexcept;
    /// Something has arrived on an accepted pair: the peer uses it.
    void note_traffic(RcConnection& connection) noexcept;

    /// @param listener  Until unlisten(). Returns: EADDRINUSE when somebody listens already.
    Status listen(std::uint16_t service, RcListener& listener);
    /// Requests that have been reported stay to be answered.
    void unlisten(std::uint16_t service) noexcept;

    // ---- datagram services ----

    /// As SidrDesk::open(). Precondition: a packet-grade device.
    Status open_service(std::uint16_t service, const UdPair& pair, SidrUser& user);
    /// The user is not called any more when this returns.
    void close_service(std::uint16_t service) noexcept;
    /// As SidrDesk::ask().
    Status ask(const Address& peer, std::uint16_t own);

    // ---- progress ----

    /// Sends what is due, takes in what has arrived. Returns: how many packets.
    unsigned poll() noexcept;
    /// When poll() is to be called next though nothing arrives; kNever: not at all.
    [[nodiscard]] std::uint64_t next_due_us() noexcept;
    static constexpr std::uint64_t kNever = Device::kNever;
    /// Something leaves: an answer will come.
    void expect_traffic() noexcept {
        // relaxed: a hint to who polls.
        if (!is_hot_.load(std::memory_order_relaxed)) {
            is_hot_.store(true, std::memory_order_relaxed);  // relaxed: as above
        }
    }

  private:
    using State = RcConnection::State;

    // MadSink, CmWire
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override;
    void peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept override;
    void channel_failed(Channel& channel) noexcept override;
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override;

    RcConnection* find_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    std::uint32_t random_locked() RVT_REQUIRES(lock_);
    Status dial_locked(RcConnection& connection) RVT_REQUIRES(lock_);
    Status start_pair(RcConnection& connection, const CmEvent& peer);
    void run_cm_locked() RVT_REQUIRES(lock_);
    void on_event_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void on_request_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void on_reply_locked(RcConnection& connection, const CmEvent& event) RVT_REQUIRES(lock_);
    void on_rejected_locked(RcConnection& connection, const CmEvent& event) RVT_REQUIRES(lock_);
    void opened_locked(RcConnection& connection, std::span<const std::byte> private_data)
        RVT_REQUIRES(lock_);
    void fail_locked(RcConnection& connection, int error, std::span<const std::byte> private_data)
        RVT_REQUIRES(lock_);
    void end_locked(RcConnection& connection) RVT_REQUIRES(lock_);
    void hang_up_locked(RcConnection& connection) RVT_REQUIRES(lock_);
    void check_deadlines_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);
    Channel* channel_locked(const Address& peer) RVT_REQUIRES(lock_);
    void send_waiting_locked() RVT_REQUIRES(lock_);
    void lose_peers_locked() RVT_REQUIRES(lock_);
    [[nodiscard]] std::vector<std::byte> framed(std::span<const std::byte> data) const;
    [[nodiscard]] bool fits(std::span<const std::byte> data, std::size_t room) const noexcept;
    [[nodiscard]] std::span<const std::byte> data_of(const CmEvent& event) const noexcept;
    void look_soon() noexcept;
    void look_at_cm(std::uint64_t now_us) noexcept;
    [[nodiscard]] bool is_quiet(std::uint64_t now_us) noexcept;

    Device& device_;
    const RcData data_;
    const std::uint64_t connect_timeout_us_;
    const std::uint64_t idle_us_;
    std::atomic<bool>& is_hot_;
    util::Mutex lock_;  // order: after the domain's lock, before those of pairs and event queues
    CmAgent agent_ RVT_GUARDED_BY(lock_);
    SidrDesk datagrams_ RVT_GUARDED_BY(lock_);
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
    std::unordered_map<std::uint64_t, RcConnection*> connections_ RVT_GUARDED_BY(lock_);
    std::uint64_t next_id_ RVT_GUARDED_BY(lock_) = 1;
    std::uint64_t random_ RVT_GUARDED_BY(lock_);
    std::atomic<std::uint64_t> cm_due_us_{kNever};  // 0: there is something to do
    std::atomic<std::uint64_t> last_traffic_us_{0};
};

}  // namespace rvt::core
