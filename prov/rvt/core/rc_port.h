// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The connections of one device between pairs that applications own: core/cm_rc_port.h speaks to
// peers itself, backend/verbs/rdma_cm_port.h leaves that to rdma_cm.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "core/cm_agent.h"
#include "core/context.h"
#include "core/device.h"
#include "core/qp.h"
#include "core/ud_services.h"
#include "core/verbs_cq.h"

namespace rvt::core {

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

class RcConnection;

/// Who has a connection. Called under the port's lock: it must not call the port, nor look where it
/// keeps the connection, which its owner may be about to destroy.
/// Threads: any that polls.
class RcUser {
  public:
    /// The pair can be used. What the peer has added to its answer, where it was asked.
    virtual void connected(const RcConnection& connection,
                           std::span<const std::byte> private_data) noexcept = 0;
    /// It has come to nothing: ECONNREFUSED, with what the peer has added; ETIMEDOUT, or another
    /// error of the pair's.
    virtual void connect_failed(int error, std::span<const std::byte> private_data) noexcept = 0;
    /// Either side has ended it, or the peer is gone.
    virtual void disconnected() noexcept = 0;
    /// The device is gone (ENODEV), its port has no address any more (ENETDOWN), or takes only
    /// smaller packets than both ends have agreed on (EMSGSIZE); disconnected() follows where there
    /// was a connection.
    virtual void device_failed([[maybe_unused]] int error) noexcept {}

  protected:
    ~RcUser() = default;
};

/// Who listens. Called as RcUser.
class RcListener {
  public:
    /// A peer wants a connection: RcPort::accept() or reject() with the event's handle. Returns:
    /// whether that will come; else the port refuses the request for want of room.
    virtual bool requested(const CmEvent& request,
                           std::span<const std::byte> private_data) noexcept = 0;
    /// The device is gone (ENODEV), or its port has no address any more (ENETDOWN): nobody can ask,
    /// for ever or until it has one again.
    virtual void device_failed([[maybe_unused]] int error) noexcept {}

  protected:
    ~RcListener() = default;
};

/// One pair with what belongs to its connection. Its owner keeps it, the port that made it alone
/// changes it.
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

    virtual ~RcConnection() = default;
    RcConnection(const RcConnection&) = delete;
    RcConnection& operator=(const RcConnection&) = delete;

    [[nodiscard]] Qp& qp() const noexcept { return qp_; }
    [[nodiscard]] State state() const noexcept {
        // acquire: pairs with the release in set_state(): who sees kOpen sees the pair's state.
        return state_.load(std::memory_order_acquire);
    }
    /// Whether nothing more of the pair is waited for, since it or its device has failed. It has
    /// ended then; its user takes what has completed, resets it, so that nothing is touched any
    /// more that was posted, and completes the rest.
    [[nodiscard]] bool is_lost() const noexcept {
        // acquire: pairs with the release in set_lost(): who sees it finds what has completed.
        return is_lost_.load(std::memory_order_acquire);
    }
    /// Where the pair leads; valid from kDialing or kAccepted on.
    [[nodiscard]] const Address& peer() const noexcept { return peer_; }
    /// The number that the peer has there.
    [[nodiscard]] std::uint16_t peer_service() const noexcept { return peer_service_; }

  protected:
    explicit RcConnection(Qp& qp) noexcept : qp_(qp) {}
    void set_state(State state) noexcept {
        // release: pairs with the acquire in state().
        state_.store(state, std::memory_order_release);
    }
    void set_lost() noexcept {
        // release: pairs with the acquire in is_lost().
        is_lost_.store(true, std::memory_order_release);
    }
    void set_peer(const Address& peer, std::uint16_t service) noexcept {
        peer_ = peer;
        peer_service_ = service;
    }

  private:
    Qp& qp_;
    std::atomic<State> state_{State::kIdle};
    std::atomic<bool> is_lost_{false};
    Address peer_{};
    std::uint16_t peer_service_ = 0;
};

/// Threads: any.
class RcPort {
  public:
    /// Precondition: no connection and no context of the device is left, nobody polls.
    virtual ~RcPort() = default;
    RcPort(const RcPort&) = delete;
    RcPort& operator=(const RcPort&) = delete;

    [[nodiscard]] Device& device() const noexcept { return device_; }
    /// Room for what applications add to a request, the least of all messages.
    [[nodiscard]] virtual std::size_t private_bytes() const noexcept = 0;

    /// Makes a pair that takes receives. Returns: as create_qp().
    virtual Result<std::unique_ptr<RcConnection>> make(Pd& pd, const QpInit& init,
                                                       RcUser& user) = 0;
    /// Ends it in any state. The user is not called any more when this returns.
    /// Precondition: the caller holds no ReadPin and no lock that a poll needs.
    virtual void destroy(std::unique_ptr<RcConnection> connection) noexcept = 0;

    /// Asks for a connection; connected() or connect_failed() follows.
    /// Returns: EINVAL in another state than kIdle, and only then; EMSGSIZE, ENOMEM; errors of
    ///          rdma_cm, after which it can be asked for again.
    virtual Status connect(RcConnection& connection, const RcCall& call,
                           std::span<const std::byte> private_data) = 0;
    /// Accepts a peer's request; connected(), connect_failed() or disconnected() follows.
    /// Returns: EINVAL in another state than kIdle, EMSGSIZE, ECONNABORTED when the peer has given
    ///          up; errors of rdma_cm, with which it has ended.
    virtual Status accept(RcConnection& connection, const CmEvent& request,
                          std::span<const std::byte> private_data) = 0;
    /// Returns: EMSGSIZE, ECONNABORTED as above.
    virtual Status reject(CmHandle request, std::span<const std::byte> private_data) = 0;
    /// Ends a connection; disconnected() follows. What has not been sent is flushed.
    /// Returns: ENOTCONN unless it is open or accepted.
    virtual Status disconnect(RcConnection& connection) = 0;

    /// A request of the pair has failed, and with it the pair: the connection ends.
    virtual void note_failure(RcConnection& connection) noexcept = 0;
    /// Something has arrived on an accepted pair: the peer uses it.
    virtual void note_traffic(RcConnection& connection) noexcept = 0;

    /// @param listener  Until unlisten(). Returns: EADDRINUSE when somebody listens already.
    virtual Status listen(std::uint16_t service, RcListener& listener) = 0;
    /// Requests that have been reported stay to be answered.
    virtual void unlisten(std::uint16_t service) noexcept = 0;

    /// Those of the device, where the port has them, too; nullptr: it has not.
    virtual UdServices* datagrams() noexcept { return nullptr; }

    // ---- progress ----

    /// Sends what is due, takes in what has arrived. Returns: how many packets.
    virtual unsigned poll() noexcept = 0;
    /// When poll() is to be called next though nothing arrives; kNever: not at all.
    [[nodiscard]] virtual std::uint64_t next_due_us() noexcept = 0;
    static constexpr std::uint64_t kNever = Device::kNever;
    /// Something leaves: an answer will come.
    void expect_traffic() noexcept {
        // relaxed: a hint to who polls.
        if (!is_hot_.load(std::memory_order_relaxed)) {
            is_hot_.store(true, std::memory_order_relaxed);  // relaxed: as above
        }
    }

  protected:
    /// @param is_hot  Set when there is something to poll for, cleared by a poll that has found
    ///                nothing for a while.
    RcPort(Device& device, std::atomic<bool>& is_hot) noexcept : device_(device), is_hot_(is_hot) {}

  private:
    Device& device_;
    std::atomic<bool>& is_hot_;
};

}  // namespace rvt::core
