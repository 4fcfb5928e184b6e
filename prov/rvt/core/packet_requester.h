// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The sending side of a connected pair over packets: cuts work requests into packets, counts what
// is under way, takes responses in, and sends again what was lost. RC and UC; IBTA vol. 1, 9.7 and
// 9.8. What a message needs before it may leave is decided by core/requester.cc.
//
//   una_ ......... sent_psn_ ......... next_psn_
//   | under way    | started, to be sent | free
//
// Packets are acknowledged in order. Going back takes sent_psn_ to una_ again: the send queue is
// rewound to the work request that holds it, which starts there a second time.
#pragma once

#include <cstdint>
#include <memory>

#include "core/gap_repair.h"
#include "core/pieces.h"
#include "core/send_queue.h"
#include "core/wc.h"
#include "protocol/headers.h"
#include "protocol/psn.h"
#include "rvt/backend.h"

namespace rvt::core {

class Device;
class PacketBurst;
class Qp;

/// The ends of the requests under way that have answers of their own, oldest first: what IBTA
/// counts against max_rd_atomic.
class FetchEnds {
  public:
    static constexpr std::uint32_t kMax = 128;

    [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
    void push(protocol::Psn end) noexcept { ends_[(first_ + count_++) % kMax] = end; }
    /// Drops those that end at `una` or before.
    void drop_until(protocol::Psn una) noexcept {
        while (count_ != 0 && distance(una, ends_[first_]) >= 0) {
            first_ = (first_ + 1) % kMax;
            --count_;
        }
    }
    /// Drops those that end behind `sent`.
    void drop_behind(protocol::Psn sent) noexcept {
        while (count_ != 0 && distance(ends_[(first_ + count_ - 1) % kMax], sent) > 0) {
            --count_;
        }
    }

  private:
    protocol::Psn ends_[kMax];
    std::uint32_t first_ = 0;
    std::uint32_t count_ = 0;
};

/// Guarded by Qp::tx_lock() in all its members.
class PacketRequester {
  public:
    PacketRequester(Device& device, const Address& dest) noexcept : device_(device) {
        dest_.dest = dest;
    }

    void start_at(const QpAttr& attr) noexcept;
    /// The way to the peer, and how long an answer is awaited.
    void change_to(const QpAttr& attr) noexcept;

    bool start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;
    [[nodiscard]] bool is_sending() const noexcept { return sending_ != nullptr; }
    bool go_on(Qp& qp) noexcept;
    void stop() noexcept { sending_ = nullptr; }
    void check_time(Qp& qp) noexcept;

    /// Takes in an acknowledgement, a READ response or the result of an atomic.
    void take_response(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    /// The peer has said at `at_us` that it has all packets up to `psn`.
    void take_acknowledged(Qp& qp, protocol::Psn psn, std::uint64_t at_us) noexcept;

  private:
    // A READ is asked for in requests of a quarter of the window, so that it holds for what comes
    // back as it does for what leaves; in powers of two of these sizes, since the first and the
    // last packet of each answer leave alone, as those in between do not. What is asked for again
    // is, by the smallest: a responder answers only what is part of one request.
    static constexpr std::uint32_t kReadPackets = 32;
    static constexpr std::uint32_t kMostReadPackets = 128;
    static constexpr std::uint32_t kFirstWindow = 64;
    static constexpr std::uint32_t kMinWindow = 4;
    static constexpr std::uint32_t kMinFillingWindow = 32;
    static constexpr std::uint32_t kMaxWindow = 512;
    // Repeats for one report: as many as have come since the last one, so that what fell over the
    // edge of a queue does not again; and this many in any case.
    static constexpr std::uint32_t kLeastRepeats = 8;
    static constexpr std::uint64_t kMinProbeUs = 1000;
    static constexpr std::uint64_t kMaxProbeUs = 500'000;
    // To a peer that keeps what comes behind a gap a probe is two packets, not all that are under
    // way, until as long a silence as no busy host has; on flows, which answer soon, so much
    // sooner.
    static constexpr std::uint64_t kMinFlowProbeUs = 200;
    static constexpr std::uint64_t kSilenceUs = 8000;

    /// Whether the peer wants of what it has missed no more than that. While something is under way
    /// that has an answer of its own, that may be missing too, of which no report tells.
    [[nodiscard]] bool fills_gaps(const Qp& qp) const noexcept;
    [[nodiscard]] std::uint32_t in_flight() const noexcept {
        return static_cast<std::uint32_t>(distance(sent_psn_, una_));
    }
    /// Whether so many packets more may leave. What has come behind a gap is not under way any
    /// more; the peer keeps no more than a certain number of those.
    [[nodiscard]] bool window_has_room(std::uint32_t packets) const noexcept {
        return in_flight() - here_ + packets <= window_ && in_flight() + packets <= kMaxWindow;
    }
    [[nodiscard]] std::uint32_t packets_of(std::uint64_t bytes) const noexcept {
        return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + mtu_ - 1) / mtu_);
    }
    [[nodiscard]] std::uint32_t read_step(const SendWqe& wqe) const noexcept;
    [[nodiscard]] std::uint32_t next_step(const Qp& qp, const SendWqe& wqe) const noexcept;
    void begin(Qp& qp, SendWqe& wqe) noexcept;
    [[nodiscard]] bool waits_for_more(const SendWqe& wqe) const noexcept;
    [[nodiscard]] std::uint32_t head_start(const Qp& qp, const SendWqe& wqe) const noexcept;
    [[nodiscard]] bool is_solicited(const Qp& qp, const SendWqe& wqe) const noexcept;
    void let_go(const Qp& qp) noexcept;
    bool send_some(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;
    void fail_unsent(SendWqe& wqe, WcStatus status) noexcept;
    util::Status stage_window(const SendWqe& wqe) noexcept;
    std::size_t write_only_header(const Qp& qp, const SendWqe& wqe, std::uint8_t pad,
                                  bool ack_request, std::byte* to) const noexcept;
    bool send_only(Qp& qp, SendWqe& wqe, const PieceList& local, bool leaves_now) noexcept;
    bool send_packets(Qp& qp, SendWqe& wqe, const PieceList& local, bool was_idle) noexcept;
    bool send_burst(Qp& qp, SendWqe& wqe, PacketBurst& burst) noexcept;
    void drop_sent(SendWqe& wqe, protocol::Psn first) noexcept;
    void note_sent(const Qp& qp) noexcept;
    [[nodiscard]] protocol::PacketHeader header_at(const Qp& qp, const SendWqe& wqe,
                                                   std::uint32_t index,
                                                   std::uint32_t packets) const noexcept;
    bool count_sent(Qp& qp, SendWqe& wqe, std::uint32_t packets) noexcept;
    [[nodiscard]] bool wants_ack(Qp& qp, const SendWqe& wqe, bool ends) noexcept;
    [[nodiscard]] bool leaves_now(Qp& qp, const SendWqe& wqe, bool was_idle) noexcept;
    void note_time(Qp& qp, bool was_idle) noexcept;
    void arm_timer(Qp& qp) noexcept;
    void probe(Qp& qp) noexcept;

    void skip_to(Qp& qp, protocol::Psn upto) noexcept;
    bool acknowledge(Qp& qp, protocol::Psn upto) noexcept;
    void move_on_to(Qp& qp, protocol::Psn psn) noexcept;
    void made_progress(const Qp& qp, protocol::Psn from, std::uint64_t now_us) noexcept;
    void note_answer(std::uint64_t now_us) noexcept;
    void grow_window(const Qp& qp, std::uint32_t arrived) noexcept;
    void shrink_window() noexcept;
    void shrink_window_a_little() noexcept;
    void shrink_window_for_repeats() noexcept;
    void take_ack(Qp& qp, const protocol::PacketHeader& header) noexcept;
    void take_all_until(Qp& qp, protocol::Psn upto) noexcept;
    void take_nak(Qp& qp, const protocol::PacketHeader& header) noexcept;
    void take_rnr_nak(Qp& qp, std::uint8_t timer) noexcept;
    void take_read_response(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    void take_atomic_result(Qp& qp, const protocol::PacketHeader& header) noexcept;
    void take_extended_result(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    void repair_gap(Qp& qp, bool may_be_kept = true) noexcept;
    void take_sack(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    void fill_gaps(Qp& qp, std::uint32_t most) noexcept;
    bool send_again(Qp& qp, protocol::Psn psn, PacketBurst& burst) noexcept;
    bool has_repair() noexcept;
    void end_repair() noexcept;
    void go_back(Qp& qp) noexcept;
    void fail_oldest(Qp& qp, WcStatus status) noexcept;

    Device& device_;
    AhAttr dest_{};
    std::uint32_t mtu_ = 1024;

    SendWqe* sending_ = nullptr;
    protocol::Psn una_{};            // the oldest that is not acknowledged
    protocol::Psn sent_psn_{};       // behind the newest that has left
    protocol::Psn ever_sent_psn_{};  // before going back
    protocol::Psn next_psn_{};       // of the next work request to start
    FetchEnds fetches_;
    std::uint32_t since_ack_request_ = 0;  // packets

    // How much may be under way: twice as much with each window that arrives until a loss, then one
    // packet more; half after a loss. To a peer that keeps what comes behind a gap: eight packets
    // more, and an eighth less after the losses of a window; see shrink_window_for_repeats().
    std::uint32_t window_ = kFirstWindow;
    std::uint32_t steep_until_ = kMaxWindow;
    std::uint32_t window_credit_ = 0;  // packets acknowledged since it grew
    bool is_again_ = false;  // what leaves has left before, and no answer has come to it yet
    // A request has failed, and the pair is about to: nothing more is heeded, or what comes in with
    // the answer that says so would fail the next request for the same reason.
    bool has_failed_ = false;
    bool is_repairing_ = false;  // has sent again from una_ on for a gap once
    // While there is a gap, to a peer that keeps what is behind it: what is known of that, and how
    // many of those packets have come.
    std::unique_ptr<GapRepair> repair_;
    std::uint32_t here_ = 0;
    std::uint32_t most_here_ = 0;  // behind una_, at most, so far; kept over going back
    LossCount losses_;
    LossCount crowded_;  // the same of repeats, where they are lost for want of room:
    RepeatLosses repeat_losses_;

    // Time, all in microseconds of the device's clock.
    std::uint64_t timeout_us_ = 0;          // after which a retry counts; 0: never
    std::uint64_t probe_us_ = kMinProbeUs;  // after which the oldest is sent again
    std::uint64_t deadline_us_ = 0;         // of the probe
    std::uint64_t progress_us_ = 0;     // of the last answer, or of the first packet behind a pause
    std::uint64_t retry_since_us_ = 0;  // the same, or when the time-out before was over
    std::uint64_t timer_us_ = 0;        // the device wakes us then; 0: it does not
    std::uint64_t rtt_us_ = 0;          // smoothed; 0: not known
    std::uint64_t timed_at_us_ = 0;     // 0: no packet is being timed
    protocol::Psn timed_psn_{};
    std::uint8_t retries_used_ = 0;
};

}  // namespace rvt::core
