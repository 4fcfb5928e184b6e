// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// How the messages of a connected pair travel to another device: as segments over a channel
// (core/segment_transport.h) or as packets (core/packet_flow.h). The grade of the device decides;
// the runner of the send queue (core/requester.cc) sees only this.
#pragma once

#include <cstdint>
#include <memory>

#include "core/pieces.h"
#include "core/send_queue.h"
#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

class Device;
class Qp;

class Flow {
  public:
    virtual ~Flow() = default;
    Flow(const Flow&) = delete;
    Flow& operator=(const Flow&) = delete;

    /// First numbers of the two directions (attributes sq_psn and rq_psn). Under both locks.
    virtual void start_sending_at(const QpAttr& attr) noexcept = 0;
    virtual void start_receiving_at(const QpAttr& attr) noexcept = 0;
    /// Takes over what a modify of a pair in SQD may have changed. Under both locks.
    virtual void change_to(const QpAttr& attr) noexcept = 0;

    // ---- sending side, under tx_lock ----

    /// Starts the next work request of the queue. Returns: whether the queue goes on; if not, an
    /// answer, room on the way or a time sets it going again.
    virtual bool start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept = 0;
    /// Whether a message has left in part.
    [[nodiscard]] virtual bool is_sending() const noexcept = 0;
    /// Sends more of it. Returns: as start().
    virtual bool go_on(Qp& qp) noexcept = 0;
    /// Forgets it: the queue is being flushed.
    virtual void stop_sending() noexcept = 0;
    /// Looks whether an answer is overdue.
    virtual void check_time(Qp& qp) noexcept = 0;

    // ---- receiving side, under rx_lock ----

    /// Forgets what has come and waits to be taken in: nothing is any more.
    virtual void stop_receiving() noexcept = 0;
    /// Sends what answers there is room for.
    virtual void send_answers(Qp& qp) noexcept = 0;

  protected:
    Flow() = default;
};

/// The way from `device` to the peer that `dest` names: nothing when that is the device itself.
/// Returns: errors of the backend's open_channel().
Result<std::unique_ptr<Flow>> open_flow(Device& device, const Address& dest);

/// Whether a work request leaves the device.
bool is_remote(const Qp& qp, const SendWqe& wqe) noexcept;

/// Sends one UD message. Returns: whether the queue goes on.
bool send_remote_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;

/// What Device::progress() calls for a pair that waited: answers, overdue ones, the send queue.
void resume(Qp& qp) noexcept;

}  // namespace rvt::core
