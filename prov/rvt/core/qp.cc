// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Life cycle, attributes and states of queue pairs.
#include "core/qp.h"

#include "core/device.h"
#include "core/qp_states.h"
#include "core/reader_pins.h"
#include "core/requester.h"
#include "core/responder.h"

#include <thread>

namespace rvt::core {
namespace {

bool fits(const QpInit& init, const DeviceLimits& limits) noexcept {
    const QpCap& cap = init.cap;
    return init.send_cq != nullptr && init.recv_cq != nullptr && cap.max_send_wr != 0 &&
           cap.max_send_wr <= limits.max_qp_wr && cap.max_recv_wr <= limits.max_qp_wr &&
           cap.max_send_sge <= limits.max_sge && cap.max_recv_sge <= limits.max_sge &&
           cap.max_recv_sge <= Receive::kMaxSge && cap.max_inline_bytes <= limits.max_inline_bytes;
}

bool is_backends(const Pd& pd) noexcept {
    return pd.device().grade() == Grade::kVerb;
}

/// One of the specification, whatever the device carries at present, or a payload that it carries.
bool is_path_mtu(std::uint32_t bytes, const Device& device) noexcept {
    return bytes >= kMinPayload && (bytes == mtu_within(bytes) ||
                                    (bytes % kPayloadStep == 0 && bytes <= device.payload_bytes()));
}

/// Nobody finds the pair by its number any more.
void withdraw(Qp& qp) noexcept {
    Device& device = qp.device();
    device.qps().remove(qp.qpn());
    device.stop_waiting(qp.qpn());
    // Whoever found the pair before that may still be in it.
    for (ReaderWait readers; !readers.readers_are_gone();) {
        std::this_thread::yield();
    }
    device.stop_waiting(qp.qpn());  // a run that ended just now may have begun to wait
}

}  // namespace

// ---- life cycle ----

// A verb-grade device keeps what is posted itself.
Qp::Qp(Pd& pd, const QpInit& init)
    : pd_(pd),
      post_send_(pd.device().ops().post_send),
      pd_use_(pd),
      init_(init),
      send_cq_use_(*init.send_cq),
      recv_cq_use_(*init.recv_cq),
      srq_use_(init.srq != nullptr ? Use(*init.srq) : Use()),
      send_queue_(is_backends(pd) ? SendQueue(1, 1, 0)
                                  : SendQueue(init.cap.max_send_wr, init.cap.max_send_sge,
                                              init.cap.max_inline_bytes)),
      recv_queue_(shares_receives() || init.cap.max_recv_wr == 0 || is_backends(pd)
                      ? 1
                      : init.cap.max_recv_wr,
                  is_backends(pd) ? 1 : init.cap.max_recv_sge) {}

Qp::~Qp() = default;

Result<Qp*> create_qp(Pd& pd, const QpInit& init) {
    Device& device = pd.device();
    if (!fits(init, device.limits()) || (init.srq != nullptr && &init.srq->pd() != &pd)) {
        return EINVAL;
    }
    if (init.srq != nullptr && init.srq->tags() != nullptr && init.type != QpType::kRc) {
        return EINVAL;  // tag matching is defined for reliable connections
    }
    auto qp = std::make_unique<Qp>(pd, init);
    if (is_backends(pd)) {
        const Status status = device.ops().create_qp(*qp);
        return status.is_ok() ? Result<Qp*>(qp.release()) : Result<Qp*>(status);
    }
    auto qpn = device.qps().add(*qp, init.qpn);
    if (!qpn.is_ok()) {
        return qpn.status();
    }
    qp->qpn_ = qpn.value();
    if (Status status = device.ops().create_qp(*qp); !status.is_ok()) {
        device.qps().remove(qp->qpn());
        return status;
    }
    return qp.release();
}

Status destroy_qp(Qp* qp) {
    Device& device = qp->device();
    if (Status status = qp->is_unused(); !status.is_ok()) {
        return status;
    }
    if (device.mcast().is_attached(qp->qpn())) {
        return EBUSY;
    }
    if (!is_backends(qp->pd())) {
        withdraw(*qp);
    }
    device.ops().destroy_qp(*qp);
    qp->reset();
    qp->pd().context().events().forget(*qp);
    delete qp;
    return kOk;
}

// ---- attributes ----

Status Qp::modify(const QpAttr& attr, QpMask mask) {
    const QpState from = state();
    const QpState to = has_any(mask, QpMask::kState) ? attr.state : from;
    if (has_any(mask, QpMask::kCurState) && attr.cur_state != from) {
        return EINVAL;
    }
    if (Status status = check_transition(type(), from, to, mask); !status.is_ok()) {
        return status;
    }
    if (Status status = check_values(attr, mask); !status.is_ok()) {
        return status;
    }
    auto flow = has_any(mask, QpMask::kAv) ? open_flow(device(), attr.ah.dest)
                                           : Result(std::unique_ptr<Flow>());
    if (!flow.is_ok()) {
        return flow.status();
    }
    if (Status status = device().ops().modify_qp(*this, attr, mask); !status.is_ok()) {
        return status;
    }
    // From RESET no error of the pair's own leads there, and nothing has been posted.
    if (to == QpState::kErr && from != QpState::kReset) {
        enter_error();
        return kOk;
    }
    bool is_overtaken = false;
    {
        const ReadPin pin;
        const util::Guard tx(tx_lock_);
        const util::Guard rx(rx_lock_);
        is_overtaken = state() != from;  // by an error, whose flush may have been left to us
        if (!is_overtaken) {
            apply(attr, mask);
            if (from == QpState::kInit && to == QpState::kRtr) {
                flow_ = flow.take();
            }
            enter(to);
        }
    }
    run_send_queue(*this);
    return is_overtaken ? Status(EINVAL) : Status(kOk);
}

Status Qp::check_values(const QpAttr& attr, QpMask mask) const noexcept {
    const DeviceLimits& limits = pd_.device().limits();
    const auto names = [&](QpMask bit) { return has_any(mask, bit); };
    const bool bad =
        (names(QpMask::kPathMtu) && !is_path_mtu(attr.path_mtu_bytes, pd_.device())) ||
        (names(QpMask::kPort) && attr.port != 1) ||
        // Which entries a NIC's table of P_Keys has, the NIC knows.
        (names(QpMask::kPkeyIndex) && attr.pkey_index != 0 && !is_backends(pd_)) ||
        (names(QpMask::kDestQpn) && attr.dest_qpn > kQpnMask) ||
        (names(QpMask::kRqPsn) && attr.rq_psn > kQpnMask) ||
        (names(QpMask::kSqPsn) && attr.sq_psn > kQpnMask) ||
        (names(QpMask::kMaxRdAtomic) && attr.max_rd_atomic > limits.max_rd_atomic) ||
        (names(QpMask::kMaxDestRdAtomic) && attr.max_dest_rd_atomic > limits.max_rd_atomic) ||
        (names(QpMask::kMinRnrTimer) && attr.min_rnr_timer > 31) ||
        (names(QpMask::kTimeout) && attr.timeout > 31) ||
        (names(QpMask::kRetryCnt) && attr.retry_cnt > 7) ||
        (names(QpMask::kRnrRetry) && attr.rnr_retry > kRnrRetryForEver) ||
        (names(QpMask::kAv) && is_multicast(attr.ah.dest.gid)) ||
        // A connected pair keeps its peer's address: what is under way has its way.
        (names(QpMask::kAv) && state() == QpState::kSqd && attr.ah.dest != attr_.ah.dest);
    return bad ? Status(EINVAL) : kOk;
}

void Qp::apply(const QpAttr& attr, QpMask mask) noexcept {
    const auto take = [&](QpMask bit, auto member) {
        if (has_any(mask, bit)) {
            attr_.*member = attr.*member;
        }
    };
    take(QpMask::kAccess, &QpAttr::access);
    take(QpMask::kAv, &QpAttr::ah);
    take(QpMask::kDestQpn, &QpAttr::dest_qpn);
    take(QpMask::kQkey, &QpAttr::qkey);
    take(QpMask::kRqPsn, &QpAttr::rq_psn);
    take(QpMask::kSqPsn, &QpAttr::sq_psn);
    take(QpMask::kPathMtu, &QpAttr::path_mtu_bytes);
    take(QpMask::kPkeyIndex, &QpAttr::pkey_index);
    take(QpMask::kPort, &QpAttr::port);
    take(QpMask::kMaxRdAtomic, &QpAttr::max_rd_atomic);
    take(QpMask::kMaxDestRdAtomic, &QpAttr::max_dest_rd_atomic);
    take(QpMask::kMinRnrTimer, &QpAttr::min_rnr_timer);
    take(QpMask::kTimeout, &QpAttr::timeout);
    take(QpMask::kRetryCnt, &QpAttr::retry_cnt);
    take(QpMask::kRnrRetry, &QpAttr::rnr_retry);
    take(QpMask::kSqdNotify, &QpAttr::sqd_notify);
    take(QpMask::kExtendedAtomics, &QpAttr::extended_atomics);
    take(QpMask::kKeepsEarly, &QpAttr::keeps_early);
    // relaxed: see may_read().
    may_read_.store(attr_.max_rd_atomic != 0, std::memory_order_relaxed);
    const std::uint32_t most =
        std::min({attr_.path_mtu_bytes, device().mtu_bytes(), device().limits().max_segment_bytes});
    // relaxed: see most_atomic_bytes().
    most_atomic_bytes_.store(attr_.extended_atomics ? most : 0, std::memory_order_relaxed);
}

/// The work of a transition beyond its attributes. Both locks are held.
void Qp::enter(QpState to) noexcept {
    const QpState from = state();
    if (to == QpState::kReset) {
        reset();
        return;
    }
    if (to == QpState::kSqd && from != QpState::kSqd) {
        sending_.drained_event_due = attr_.sqd_notify;
    }
    if (from == QpState::kInit && to == QpState::kRtr && flow_ != nullptr) {
        flow_->start_receiving_at(attr_);
    }
    if (from == QpState::kSqd && flow_ != nullptr) {
        flow_->change_to(attr_);
    }
    if (from == QpState::kRtr && to == QpState::kRts) {
        sending_.rnr_retries_left = attr_.rnr_retry;
        if (flow_ != nullptr) {
            flow_->start_sending_at(attr_);
        }
    }
    set_state(to);
}

/// Forgets work without completing it, and what has been completed but not read (IBTA 10.3.1,
/// RESET).
void Qp::reset() noexcept {
    if (flow_ != nullptr) {
        flow_->send_answers(*this);  // what has been completed here, the peer should learn
        device().ops().flush_packets(device());
    }
    set_state(QpState::kReset);
    send_queue_.clear();
    if (!shares_receives()) {
        Receive dropped;
        while (recv_queue_.take(dropped) == RecvQueue::Taken::kYes) {
        }
    }
    init_.send_cq->remove_qp(qpn_);
    init_.recv_cq->remove_qp(qpn_);
    attr_ = QpAttr{};
    sending_ = Sending{};
    inbound_.has_receive = false;
    inbound_.is_kept = false;
    established_ = false;
    flow_.reset();
    // relaxed: see may_read(), most_atomic_bytes() and take_overrun().
    may_read_.store(false, std::memory_order_relaxed);
    most_atomic_bytes_.store(0, std::memory_order_relaxed);
    overrun_.store(false, std::memory_order_relaxed);
}

QpAttr Qp::query() const noexcept {
    auto& self = const_cast<Qp&>(*this);  // NOLINT(cppcoreguidelines-pro-type-const-cast): the lock
    const util::Guard guard(self.rx_lock_);
    QpAttr attr = attr_;
    attr.state = state();
    attr.cur_state = attr.state;
    return attr;
}

// ---- posting ----

Status Qp::post_recv(const RecvWr& wr) noexcept {
    return device().ops().post_recv(*this, wr);
}

Status Qp::enqueue_recv(const RecvWr& wr) noexcept {
    if (type() == QpType::kRd) {
        return EOPNOTSUPP;
    }
    if (shares_receives() || init_.cap.max_recv_wr == 0 || !rights_of(state()).post_recv) {
        return EINVAL;
    }
    if (Status status = recv_queue_.post(wr); !status.is_ok()) {
        return status;
    }
    if (rights_of(state()).flush_recv) {
        const util::Guard guard(rx_lock_);
        flush_receives_locked();
    }
    device().wake_waiting(&recv_queue_);
    return kOk;
}

Status Qp::take_back_recv(std::uint64_t wr_id) noexcept {
    if (device().grade() == Grade::kVerb) {
        return EOPNOTSUPP;
    }
    return shares_receives() ? Status(EINVAL) : recv_queue_.take_back(wr_id);
}

Status Qp::attach_mcast(const Address& group) {
    if (type() != QpType::kUd) {
        return EINVAL;
    }
    const Address whole = group_of(group, device().address());
    if (device().mcast().is_attached(whole, qpn_)) {
        return kOk;
    }
    if (Status status = device().mcast().attach(whole, qpn_); !status.is_ok()) {
        return status;
    }
    const Status status = device().ops().attach_mcast(*this, whole);
    if (!status.is_ok()) {
        [[maybe_unused]] const Status undone = device().mcast().detach(whole, qpn_);
    }
    return status;
}

Status Qp::detach_mcast(const Address& group) {
    const Address whole = group_of(group, device().address());
    const Status status = device().mcast().detach(whole, qpn_);
    if (status.is_ok()) {
        device().ops().detach_mcast(*this, whole);
    }
    return status;
}

// ---- completions and errors ----

void Qp::raise(EventType type) noexcept {
    pd_.context().events().post({.type = type, .object = this});
}

void Qp::complete(VerbsCq& cq, Wc wc, bool solicited) noexcept {
    wc.qpn = qpn_;
    if (!cq.push(wc, solicited)) {
        // relaxed: a flag on its own; this thread looks at it next.
        overrun_.store(true, std::memory_order_relaxed);
    }
}

void Qp::flush_receives_locked() noexcept {
    if (inbound_.is_kept) {
        inbound_.is_kept = false;
        complete(*init_.recv_cq, {.wr_id = inbound_.receive.wr_id,
                                  .status = WcStatus::kWrFlushErr,
                                  .opcode = WcOpcode::kRecv});
    }
    if (shares_receives()) {
        return;  // the receives are everybody's
    }
    Receive receive;
    while (recv_queue_.take(receive) == RecvQueue::Taken::kYes) {
        device().stats().add(Stat::kFlushed);
        complete(
            *init_.recv_cq,
            {.wr_id = receive.wr_id, .status = WcStatus::kWrFlushErr, .opcode = WcOpcode::kRecv});
    }
}

void Qp::enter_error(bool send_side_only) noexcept {
    const ReadPin pin;
    bool last_receive = false;
    {
        const util::Guard guard(rx_lock_);
        const QpState from = state();
        if (from == QpState::kErr || from == QpState::kReset) {
            return;
        }
        if (send_side_only && type() != QpType::kRc) {
            set_state(QpState::kSqe);
        } else {
            set_state(QpState::kErr);
            abandon_request(*this, Nak::kUnreachable);  // the rest of a message does not come
            flush_receives_locked();
            if (flow_ != nullptr) {
                flow_->stop_receiving();
            }
            last_receive = shares_receives() && !is_backends(pd_);  // of others a NIC knows
        }
    }
    if (last_receive) {
        raise(EventType::kQpLastWqeReached);
    }
    run_send_queue(*this);
    MadSink* const sink = type() == QpType::kRc ? device().mad_sink() : nullptr;
    if (sink != nullptr) {
        sink->pair_failed();
    }
}

}  // namespace rvt::core
