// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The receiving side of a connected pair over packets: is this the packet that comes next, does it
// fit its message, and which answer is due. What a request does is core/responder.h's. RC and UC;
// IBTA vol. 1, 9.7.4, 9.7.5 and 9.8.2.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/answer_hurry.h"
#include "core/early_packets.h"
#include "core/responder.h"
#include "protocol/headers.h"
#include "protocol/psn.h"
#include "protocol/syndrome.h"
#include "rvt/backend.h"

namespace rvt::core {

class Device;
class PacketBurst;
class Qp;

/// Guarded by Qp::rx_lock() in all its members.
class PacketResponder {
  public:
    PacketResponder(Device& device, const Address& dest) noexcept;

    void start_at(const QpAttr& attr);
    /// The way to the peer, and how many requests may be answered once more.
    void change_to(const QpAttr& attr);

    /// Takes in a request or a part of one. Returns: why it was refused, for after_refusal().
    Nak take_request(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    /// The same for most packets of pairs with a sink: those of a SEND that brings nothing but its
    /// bytes, and so have no further header, while nothing else is of concern.
    /// Returns: whether it is such a one. It has been taken in then, and its payload is a part of a
    /// message for the sink. Precondition: the pair has one.
    [[nodiscard]] bool take_simple(Qp& qp, const protocol::Bth& header, std::size_t payload_bytes,
                                   bool starts, bool ends) noexcept;
    /// Whether the last packet is a part of a message for the pair's sink.
    [[nodiscard]] bool has_part_for_sink() const noexcept { return has_part_for_sink_; }
    /// Whether the next packet has come before, and is kept.
    [[nodiscard]] bool has_next() const noexcept { return early_.has(expected_); }
    /// That one, for take_request(). Precondition: has_next().
    /// @param bytes  What its payload lies in from now on.
    protocol::DecodedPacket take_next(std::vector<std::byte>& bytes) noexcept {
        return early_.take(expected_, bytes);
    }
    /// Forgets those that are kept.
    void drop_early() noexcept { early_.clear(); }
    /// Forgets an acknowledgement that waits for company, if it is all that waits. Returns: the
    /// packet that it is for.
    std::optional<protocol::Psn> take_over_ack() noexcept;
    /// The packet taken in last, if some have been since the last answer and none waits that says
    /// more than an acknowledgement.
    [[nodiscard]] std::optional<protocol::Psn> newest_taken() const noexcept {
        return since_answer_ == 0 || !answers_.empty() ? std::nullopt
                                                       : std::optional(expected_ - 1);
    }
    /// Sends what answers the backend takes.
    void send_answers(Qp& qp) noexcept;

  private:
    struct Answer {
        enum class Kind : std::uint8_t {
            kAck,
            kNak,
            kSack,
            kReadData,
            kAtomicResult,
            kExtendedResult,
        };
        Kind kind = Kind::kAck;
        std::uint8_t syndrome = 0;
        protocol::Psn psn{};
        std::uint32_t msn = 0;
        std::uint32_t packets = 1;   // READ data: in all
        std::uint32_t sent = 0;      // READ data: packets
        std::uint64_t original = 0;  // atomics
        std::size_t slot = 0;        // extended atomics: of the results
        std::size_t result_bytes = 0;
        Request request{};  // READ data: to find its memory when it is sent
    };
    /// What has been executed and may be asked for again (C9-105 and the rules after it): a READ is
    /// read once more, an atomic's result comes from here, FLUSH and ATOMIC WRITE are only
    /// answered.
    struct Executed {
        protocol::Psn psn{};
        std::uint32_t packets = 0;  // 0: an unused entry
        protocol::Kind kind = protocol::Kind::kRead;
        std::uint64_t original = 0;
        std::size_t result_bytes = 0;  // in the slot with this one's number
    };
    // An acknowledgement for as many packets does not wait for company: the peer's window is in
    // them.
    static constexpr std::uint32_t kUrgentPackets = 32;
    // Answers that wait for the wire; a peer that asks for more gets none until they are sent.
    static constexpr std::size_t kMaxAnswers = 256;

    [[nodiscard]] std::uint32_t packets_of(std::uint64_t bytes) const noexcept {
        return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + mtu_ - 1) / mtu_);
    }
    /// Whether nothing is kept that should be.
    [[nodiscard]] bool keeps_none() const noexcept {
        return early_.is_empty() && (lacks_room_ || newest_unkept_.has_value());
    }
    [[nodiscard]] bool is_expected(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    void note_no_gap() noexcept { has_sent_nak_ = is_refused_ = goes_back_ = false; }
    void keep_early(const protocol::DecodedPacket& packet) noexcept;
    [[nodiscard]] bool is_gap_due() noexcept;
    [[nodiscard]] Nak check_form(const protocol::DecodedPacket& packet) const noexcept;
    Nak begin(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    Nak execute(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    Nak take_data(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    Nak finish(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    Nak answer_now(Qp& qp, const protocol::DecodedPacket& packet) noexcept;
    Nak carry_out(Qp& qp, const protocol::DecodedPacket& packet, Answer& answer) noexcept;
    [[nodiscard]] std::byte* result_slot(std::size_t slot) noexcept {
        return &results_[slot * result_room_];
    }
    [[nodiscard]] const Executed* find_executed(protocol::Psn psn,
                                                protocol::Kind kind) const noexcept;
    void answer_duplicate(Qp& qp, const protocol::PacketHeader& header) noexcept;
    void drop_message(Qp& qp) noexcept;

    void queue(Qp& qp, const Answer& answer) noexcept;
    [[nodiscard]] Answer ack() const noexcept;
    [[nodiscard]] AnswerHurry ack_hurry(const Qp& qp, bool is_awaited) noexcept;
    void queue_ack(Qp& qp, protocol::Psn psn, bool is_awaited) noexcept;
    void queue_nak(Qp& qp, protocol::Syndrome syndrome) noexcept;
    void queue_sack(Qp& qp) noexcept;
    void report_gap(Qp& qp) noexcept;
    void remember(const Executed& executed) noexcept;
    bool send(Qp& qp, Answer& answer) noexcept;
    bool send_sack(const Qp& qp, Answer& answer) noexcept;
    void add_read_data(Qp& qp, Answer& answer, PacketBurst& burst) noexcept;
    bool send_read_data(Qp& qp, Answer& answer) noexcept;
    [[nodiscard]] protocol::PacketHeader answer_header(const Qp& qp, const Answer& answer,
                                                       protocol::Opcode opcode) const noexcept;

    Device& device_;
    AhAttr dest_{};
    std::uint32_t mtu_ = 1024;

    protocol::Psn expected_{};
    std::uint32_t msn_ = 0;      // messages completed, 24 bits
    bool has_sent_nak_ = false;  // for a packet that came too early; one for each gap
    bool is_refused_ = false;    // the packet that is expected, for now: there was no receive
    bool goes_back_ = false;     // the peer, to the packet that is expected: it has been told so
    bool lacks_room_ = false;    // the last that came too early was not kept
    // Of those that were not, and that the peer does not know to be missing, the newest.
    std::optional<protocol::Psn> newest_unkept_;
    EarlyPackets early_;      // those, where the pair keeps them
    bool receiving_ = false;  // in the middle of a message:
    Request request_;         // as far as its packets have told
    protocol::Kind message_kind_ = protocol::Kind::kSend;
    bool has_part_for_sink_ = false;

    std::deque<Answer> answers_;
    // Behind those an acknowledgement: mostly the only answer there is.
    bool has_ack_ = false;
    AnswerHurry ack_hurry_ = AnswerHurry::kNone;  // that it has been given
    protocol::Psn ack_psn_{};
    std::uint32_t ack_msn_ = 0;
    std::uint32_t since_answer_ = 0;  // packets taken in
    std::vector<Executed> executed_;  // a ring of max_dest_rd_atomic, or of the most it was
    std::size_t next_executed_ = 0;
    std::unique_ptr<std::byte[]> results_;  // of extended atomics, a slot for each of those
    std::size_t result_room_ = 0;           // bytes of a slot; 0: there are no such atomics
};

}  // namespace rvt::core
