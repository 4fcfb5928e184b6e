// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Carries RC, UC and UD work requests to another device over a segment-grade backend. The channel
// below is ordered and loses nothing, so there are no timers and no retransmission but one: a
// receiver that was not ready names a message, drops what follows it, and the sender goes back to
// it.
//
// Sending:   the runner of the send queue (core/requester.cc) starts work requests here, under
// tx_lock. Receiving: deliver_segment() of include/rvt/backend.h, on the thread of
// Device::progress(). Answers:   queued per pair, because a channel may have no room; sent in the
// order of the requests.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "core/flow.h"
#include "core/pieces.h"
#include "core/responder.h"
#include "core/segment_wire.h"
#include "core/send_queue.h"
#include "rvt/backend.h"

namespace rvt::core {

class Device;
class Qp;

/// A connected pair's two directions over a channel.
class SegmentFlow final : public Flow {
  public:
    /// Takes over one use of `channel`.
    SegmentFlow(Device& device, Channel& channel) noexcept : device_(device), channel_(channel) {}
    ~SegmentFlow() override;
    SegmentFlow(const SegmentFlow&) = delete;
    SegmentFlow& operator=(const SegmentFlow&) = delete;

    [[nodiscard]] Channel& channel() const noexcept { return channel_; }
    void start_sending_at(const QpAttr& attr) noexcept override { next_msn_ = attr.sq_psn; }
    void start_receiving_at(const QpAttr& attr) noexcept override;
    void change_to(const QpAttr& attr) noexcept override;

    // ---- sending side, under tx_lock ----

    bool start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept override;
    [[nodiscard]] bool is_sending() const noexcept override { return sending_ != nullptr; }
    bool go_on(Qp& qp) noexcept override;
    void stop_sending() noexcept override { sending_ = nullptr; }
    void check_time(Qp&) noexcept override {}  // the channel loses nothing
    /// Takes in an answer.
    void take_answer(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept;
    /// Fails what is under way: nothing will answer any more.
    void fail_sending(Qp& qp) noexcept;

    // ---- receiving side, under rx_lock ----

    /// Takes in a request or a part of one. Returns: why it was refused, for after_refusal().
    Nak take_request(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept;
    void stop_receiving() noexcept override {}  // what comes is taken in at once
    void send_answers(Qp& qp) noexcept override;

  private:
    struct Answer {
        SegmentHeader header{};
        Request request;                       // a READ's, to find its memory when it is sent
        std::uint64_t offset = 0;              // of a READ: bytes sent
        std::span<const std::byte> results{};  // of an extended atomic
    };

    // A responder that stops answering holds at most this many messages of a pair back.
    static constexpr std::uint64_t kWindow = 64;

    bool may_start(Qp& qp, const SendWqe& wqe) noexcept;
    bool start_one_sided(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;
    void finish_sending(Qp& qp, WcStatus status) noexcept;
    void complete(SendWqe& wqe, WcStatus status) noexcept;
    SendWqe* find(Qp& qp, std::uint32_t msn) noexcept;
    void take_read_data(Qp& qp, SendWqe& wqe, const SegmentHeader& header,
                        const PieceList& payload) noexcept;
    void take_ack(Qp& qp, SendWqe& wqe, const SegmentHeader& header,
                  const PieceList& payload) noexcept;
    void take_nak(Qp& qp, SendWqe& wqe, const SegmentHeader& header) noexcept;
    void go_back(Qp& qp, SendWqe& wqe) noexcept;

    Nak begin_message(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept;
    Nak take_part(Qp& qp, const SegmentHeader& header, const PieceList& payload) noexcept;
    Nak answer_now(Qp& qp, const Request& request, const SegmentHeader& header,
                   const PieceList& payload) noexcept;
    Nak answer_extended(Qp& qp, const Request& request, const SegmentHeader& header,
                        const PieceList& operands) noexcept;
    void queue_answer(const Qp& qp, const SegmentHeader& request, SegmentKind kind, Nak nak,
                      std::uint64_t original = 0) noexcept;
    bool send_read_data(Qp& qp, Answer& answer) noexcept;
    void wait_for_room(const Qp& qp) noexcept;

    Device& device_;
    Channel& channel_;

    // tx_lock
    SendWqe* sending_ = nullptr;
    std::uint32_t next_msn_ = 0;
    std::uint32_t fetches_ = 0;  // READs and atomics under way
    bool knows_peer_ = false;    // an ack has told the next two
    std::uint32_t peer_pd_ = 0;
    Access peer_access_ = Access::kNone;

    // rx_lock
    std::uint32_t expected_msn_ = 0;
    bool receiving_ = false;     // in the middle of a message:
    Request receiving_request_;  // as its first part said; later parts cannot change it
    std::deque<Answer> answers_;
    // Of extended atomics: as many slots as the peer may have under way, or might have had.
    std::unique_ptr<std::byte[]> results_;
    std::size_t result_room_ = 0;  // bytes of a slot
    std::size_t result_slots_ = 0;
    std::size_t next_result_ = 0;
};

/// send_remote_datagram() over a channel.
bool send_segment_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;

}  // namespace rvt::core
