// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A connected pair's two directions over a packet-grade backend, and the way in for packets.
// Sending:   the runner of the send queue (core/requester.cc) starts work requests here, under
//            tx_lock.
// Receiving: deliver_packet() of include/rvt/backend.h, on the thread of Device::progress().
// Answers:   queued per pair, sent when a poll has taken in all that there was.
#pragma once

#include <optional>

#include "core/flow.h"
#include "core/packet_requester.h"
#include "core/packet_responder.h"

namespace rvt::core {

class PacketFlow final : public Flow {
  public:
    PacketFlow(Device& device, const Address& dest) noexcept
        : requester_(device, dest), responder_(device, dest) {}

    void start_sending_at(const QpAttr& attr) noexcept override { requester_.start_at(attr); }
    void start_receiving_at(const QpAttr& attr) noexcept override { responder_.start_at(attr); }
    void change_to(const QpAttr& attr) noexcept override {
        requester_.change_to(attr);
        responder_.change_to(attr);
    }

    bool start(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept override {
        return requester_.start(qp, wqe, local);
    }
    [[nodiscard]] bool is_sending() const noexcept override { return requester_.is_sending(); }
    bool go_on(Qp& qp) noexcept override { return requester_.go_on(qp); }
    void stop_sending() noexcept override { requester_.stop(); }
    void check_time(Qp& qp) noexcept override { requester_.check_time(qp); }
    void stop_receiving() noexcept override { responder_.drop_early(); }
    void send_answers(Qp& qp) noexcept override { responder_.send_answers(qp); }

    [[nodiscard]] PacketRequester& requester() noexcept { return requester_; }
    [[nodiscard]] PacketResponder& responder() noexcept { return responder_; }

  private:
    PacketRequester requester_;  // tx_lock
    PacketResponder responder_;  // rx_lock
};

/// Takes the acknowledgement that waits to leave from a connected pair, if nothing else does: the
/// caller tells the peer in another way which packet was the last. Threads: any that holds no lock
/// of the pair.
std::optional<protocol::Psn> take_over_ack(Qp& qp) noexcept;
/// The same, or the packet that has come last, where no acknowledgement waits yet but may soon.
std::optional<protocol::Psn> take_over_coming_ack(Qp& qp) noexcept;

/// Counts packets up to `psn` as acknowledged: the peer has said so in another way. Threads: as
/// above.
/// @param at_us  When, by the device's clock.
void take_acknowledged(Qp& qp, protocol::Psn psn, std::uint64_t at_us) noexcept;

/// Forgets what has been posted to a connected pair, without completions: from the return on
/// nothing of it is sent, or sent again. Threads: as above.
void abandon_sending(Qp& qp) noexcept;

/// send_remote_datagram() as a packet.
bool send_packet_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept;

}  // namespace rvt::core
