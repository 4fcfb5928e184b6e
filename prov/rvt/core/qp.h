// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Queue pairs: the object with its state, attributes and queues. Who moves messages between pairs:
// core/requester.h (sending side) and core/responder.h (receiving side).
// IBTA vol. 1, 10.2.4 and 10.3; ibv_create_qp(3), ibv_modify_qp(3).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/context.h"
#include "core/flow.h"
#include "core/message_sink.h"
#include "core/object.h"
#include "core/recv_queue.h"
#include "core/send_queue.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

struct QpInit {
    QpType type = QpType::kRc;
    VerbsCq* send_cq = nullptr;
    VerbsCq* recv_cq = nullptr;
    Srq* srq = nullptr;  // instead of a receive queue of its own
    /// Instead of either: receives for pairs of several devices, which outlive them. The keys in
    /// them are those of a table that the pairs' domains share.
    RecvQueue* shared_receives = nullptr;
    MessageSink* sink = nullptr;  // RC over packets: instead of receives; outlives the pair
    QpCap cap{};
    bool signal_all = false;  // as if each work request were kSignaled
    std::uint32_t qpn = 0;    // its number, where peers know it beforehand; 0: any
};

/// The message that a pair is taking in. Guarded by Qp::rx_lock().
struct Inbound {
    enum class Tm : std::uint8_t { kNone, kNoTag, kUnexpected, kMatched };
    Receive receive;
    bool has_receive = false;
    bool is_kept = false;  // UC: `receive` waits for the next message, its own was lost
    Tm tm = Tm::kNone;     // what became of it in a queue that matches tags
    std::uint64_t tm_tag = 0;
    std::uint32_t tm_app_ctx = 0;
    std::uint64_t placed = 0;  // bytes
};

class Qp : public Object {
  public:
    Qp(Pd& pd, const QpInit& init);
    ~Qp();
    Qp(const Qp&) = delete;
    Qp& operator=(const Qp&) = delete;

    [[nodiscard]] Pd& pd() const noexcept { return pd_; }
    [[nodiscard]] Device& device() const noexcept { return pd_.device(); }
    [[nodiscard]] std::uint32_t qpn() const noexcept { return qpn_; }
    [[nodiscard]] QpType type() const noexcept { return init_.type; }
    [[nodiscard]] const QpInit& init() const noexcept { return init_; }
    [[nodiscard]] Srq* srq() const noexcept { return init_.srq; }
    /// Whether its receives are others' too.
    [[nodiscard]] bool shares_receives() const noexcept {
        return init_.srq != nullptr || init_.shared_receives != nullptr;
    }
    [[nodiscard]] QpState state() const noexcept {
        // acquire: pairs with the release in set_state().
        return state_.load(std::memory_order_acquire);
    }

    /// Changes attributes, and the state if `mask` holds kState.
    /// Returns: EINVAL for a transition, attribute or value that core/qp_states.h or the limits of
    ///          the device do not allow; errors of the backend. On any error nothing has changed.
    /// Threads: one at a time per pair; safe beside posts and traffic.
    Status modify(const QpAttr& attr, QpMask mask);
    [[nodiscard]] QpAttr query() const noexcept;

    /// Returns: EINVAL for what the row of the opcode or the state does not allow, ENOMEM when the
    ///          queue is full, EOPNOTSUPP for a pair of type RD: its endpoint takes the requests.
    /// Threads: any.
    Status post_send(const SendWr& wr) noexcept { return post_send_(*this, wr); }
    /// Returns: EINVAL for too many elements, in state RESET, or with a shared queue; ENOMEM when
    /// full; EOPNOTSUPP for a pair of type RD. Threads: any.
    Status post_recv(const RecvWr& wr) noexcept;

    /// Takes a posted receive back, as if it had never been posted.
    /// Returns: ENOENT when a message has taken it, or it has been flushed; EINVAL with a shared
    ///          queue; EOPNOTSUPP where the backend keeps the receives.
    /// Threads: any.
    Status take_back_recv(std::uint64_t wr_id) noexcept;

    /// UD. Attaching twice is attaching once.
    /// @param group  Port 0: that of the device.
    /// Returns: EINVAL for another type or an address that is no group's; ENOMEM when the group is
    ///          full; errors of the backend.
    /// Threads: one at a time per pair.
    Status attach_mcast(const Address& group);
    /// Returns: EINVAL when the pair is not attached.
    Status detach_mcast(const Address& group);

    // ---- for the core and its backends ----

    /// The number that a verb-grade backend has given the pair, before create_qp() returns.
    void set_qpn(std::uint32_t qpn) noexcept { qpn_ = qpn; }
    /// A verb-grade backend has taken the pair into a state on its own account.
    /// Threads: one at a time per pair, and not beside modify().
    void note_state(QpState state) noexcept { set_state(state); }
    /// Its device has completed the last receive of a shared queue that the pair had taken, and
    /// gives it no further one. Threads: any.
    void note_last_receive() noexcept {
        // release: pairs with the acquire in has_last_receive().
        has_last_receive_.store(true, std::memory_order_release);
    }
    [[nodiscard]] bool has_last_receive() const noexcept {
        // acquire: pairs with the release in note_last_receive(); who sees it finds what completed.
        return has_last_receive_.load(std::memory_order_acquire);
    }

    /// The core's version of post_recv.
    Status enqueue_recv(const RecvWr& wr) noexcept;

    /// Takes the pair into ERR (or SQE where `send_side_only` and the type has it), and completes
    /// what is posted with kWrFlushErr. Precondition: the caller holds neither rx_lock() nor
    /// tx_lock().
    void enter_error(bool send_side_only = false) noexcept;
    /// Completes what the state says is to be flushed on the receive side.
    void flush_receives_locked() noexcept RVT_REQUIRES(rx_lock_);

    /// Completes into a queue; when that has no room the pair goes to ERR, later, see
    /// take_overrun().
    void complete(VerbsCq& cq, Wc wc, bool solicited = false) noexcept;
    /// Whether a completion was refused since the last call.
    bool take_overrun() noexcept {
        // relaxed: a flag on its own; the thread that set it looks next.
        return overrun_.load(std::memory_order_relaxed) &&
               overrun_.exchange(false, std::memory_order_relaxed);
    }

    void raise(EventType type) noexcept;
    [[nodiscard]] RecvQueue& recv_queue() noexcept {
        return init_.shared_receives != nullptr ? *init_.shared_receives
               : init_.srq != nullptr           ? init_.srq->queue()
                                                : recv_queue_;
    }
    [[nodiscard]] SendQueue& send_queue() noexcept { return send_queue_; }
    [[nodiscard]] Inbound& inbound() noexcept { return inbound_; }
    /// Attributes; stable under either lock.
    [[nodiscard]] const QpAttr& attr() const noexcept { return attr_; }

    /// The receiving side: held while a message is taken in. order: before CQ and queue locks.
    util::SpinLock& rx_lock() noexcept RVT_NO_ANALYSIS { return rx_lock_; }
    /// The sending side: held by the thread that runs the send queue. order: before the rx_lock of
    /// any pair; never taken while another pair's tx_lock is held, only tried.
    util::SpinLock& tx_lock() noexcept RVT_NO_ANALYSIS { return tx_lock_; }

    /// What the runner of the send queue remembers; guarded by tx_lock().
    struct Sending {
        std::uint64_t blocked_until_us = 0;  // waiting for a receiver that was not ready
        std::uint8_t rnr_retries_left = 0;
        std::uint32_t datagram_psn = 0;  // UD over packets: of the next
        bool drained_event_due = false;
    };
    [[nodiscard]] Sending& sending() noexcept { return sending_; }
    /// Set by who wants the send queue run and finds tx_lock() taken, cleared by who runs it.
    std::atomic<std::uint32_t> run_again{0};

    /// Whether READs and atomics can be posted: the pair may have some outstanding.
    [[nodiscard]] bool may_read() const noexcept {
        // relaxed: a post beside a modify sees the attribute of before or after.
        return may_read_.load(std::memory_order_relaxed);
    }
    /// Bytes that a packet or segment of an extended atomic can hold; 0: the pair has none.
    [[nodiscard]] std::uint32_t most_atomic_bytes() const noexcept {
        // relaxed: as above.
        return most_atomic_bytes_.load(std::memory_order_relaxed);
    }
    /// Whether both ends keep packets that come before one that is missing: those of flows do.
    /// Stable under either lock.
    [[nodiscard]] bool keeps_early() const noexcept {
        return init_.sink != nullptr || attr_.keeps_early;
    }
    /// Carries the pair's messages to another device; nullptr while the peer is in this one.
    /// Changes only under both locks.
    [[nodiscard]] Flow* flow() const noexcept { return flow_.get(); }

    [[nodiscard]] bool has_established() const noexcept { return established_; }
    void set_established() noexcept { established_ = true; }

  private:
    friend Result<Qp*> create_qp(Pd& pd, const QpInit& init);
    friend Status destroy_qp(Qp* qp);

    void set_state(QpState state) noexcept {
        // release: pairs with the acquire in state().
        state_.store(state, std::memory_order_release);
    }
    Status check_values(const QpAttr& attr, QpMask mask) const noexcept;
    void apply(const QpAttr& attr, QpMask mask) noexcept;
    void enter(QpState to) noexcept;
    void reset() noexcept;

    Pd& pd_;
    const decltype(BackendOps::post_send) post_send_;  // a copy: some loads less
    Use pd_use_;
    QpInit init_;
    Use send_cq_use_;
    Use recv_cq_use_;
    Use srq_use_;
    std::uint32_t qpn_ = 0;
    std::atomic<QpState> state_{QpState::kReset};  // written with both locks held
    std::atomic<bool> overrun_{false};
    std::atomic<bool> may_read_{false};
    std::atomic<bool> has_last_receive_{false};
    std::atomic<std::uint32_t> most_atomic_bytes_{0};
    bool established_ = false;  // guarded by rx_lock_
    QpAttr attr_;               // written with both locks held
    util::SpinLock tx_lock_;
    util::SpinLock rx_lock_;
    SendQueue send_queue_;
    RecvQueue recv_queue_;
    Sending sending_;
    Inbound inbound_;
    std::unique_ptr<Flow> flow_;
};

/// Returns: EINVAL for sizes beyond the device's limits or missing queues, ENOMEM for no free
///          number, EADDRINUSE where the one that was asked for has another pair.
Result<Qp*> create_qp(Pd& pd, const QpInit& init);
/// Ends traffic, forgets posted work and completions, and destroys. Returns: EBUSY while the pair
/// is attached to a multicast group. Threads: one that holds no ReadPin.
Status destroy_qp(Qp* qp);

}  // namespace rvt::core
