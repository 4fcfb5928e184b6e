// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The sending side of a pair: takes work requests in, starts them in order, completes them in
// order. Messages to pairs of the same device are carried here, by direct copy; those to other
// devices by core/segment_transport.h. IBTA vol. 1, 10.7 and 10.8.
#pragma once

#include "core/responder.h"
#include "core/send_queue.h"
#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

class Qp;

/// The core's version of post_send: checks against the tables, queues, runs the queue.
/// Cost: for a message within the device one copy; no system call, no allocation.
Status enqueue_send(Qp& qp, const SendWr& wr) noexcept;

/// Starts and completes what can be. If another thread is at it, that thread does it.
/// Threads: any that holds no rx_lock; under a ReadPin unless the pair is the caller's own.
void run_send_queue(Qp& qp) noexcept;

/// Whether somebody has asked for a run in vain since the last one: tx_lock was taken. Threads: who
/// has just let go of it, and did not run the queue.
[[nodiscard]] bool wants_run(Qp& qp) noexcept;

/// Completes what is done and did not fail. Returns: whether a run would find something to do.
/// Threads: holder of tx_lock. Precondition: the pair has a flow.
[[nodiscard]] bool retire_done_locked(Qp& qp) noexcept;

/// As run_send_queue(), and what waits for a receiver that was not ready tries again now.
void retry_send_queue(Qp& qp) noexcept;

/// Delivers a datagram to the attached pairs of its sender's device, but not to the sender.
void deliver_to_group(Qp& qp, const Request& request, const PieceList& local) noexcept;

/// The request that a work request becomes.
Request to_request(const Qp& qp, const SendWqe& wqe) noexcept;

/// The local memory of a work request: what a SEND or WRITE carries, where a READ or atomic puts
/// it.
WcStatus local_pieces(const Qp& qp, const SendWqe& wqe, PieceList& pieces) noexcept;

/// Puts the results of an extended atomic where its list has room for them.
/// Returns: kBadRespErr when they are not as many as the list has room for.
WcStatus take_results(const Qp& qp, const SendWqe& wqe, const PieceList& results) noexcept;

}  // namespace rvt::core
