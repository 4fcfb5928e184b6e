// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What ends connections though nobody has hung up: a peer that is gone, or is said to be, and a
// port, or a way from it, that is not what it was; and what keeps a port until peers have heard.
#include "core/cm_rc_port.h"

#include <utility>

#include "core/addresses.h"
#include "core/missed_pair.h"
#include "util/log.h"

namespace rvt::core {
namespace {

// Anybody can send word that a peer is gone. It is believed when the peer does not acknowledge a
// request within so long.
constexpr std::uint64_t kDoubtUs = 200'000;
constexpr std::size_t kMixer = 31;

/// Of the address the device has told.
void warn_of(const CmRcConnection& connection, Device& device) {
    if (!device.is_port_down()) {
        RVT_WARN(kEpCtrl,
                 "the connection to %s ends: its packets are larger than %u bytes, which is what "
                 "the way there takes now; a new one has smaller packets",
                 to_sock_addr(connection.peer()).to_string().c_str(),
                 device.payload_to(connection.peer()));
    }
}

}  // namespace

// ---- peers ----

/// A peer whose channel has failed is gone, or was never there.
void CmRcPort::lose_peers_locked() {
    for (const Address& peer : std::exchange(lost_, {})) {
        for (const auto& [id, connection] : connections_) {
            if (connection->peer() != peer) {
                continue;
            }
            if (connection->state() == State::kDialing) {
                hang_up_locked(*connection);
                fail_locked(*connection, ECONNREFUSED, {});
            } else if (connection->state() == State::kAccepted) {
                hang_up_locked(*connection);
                fail_locked(*connection, ECONNRESET, {});
            } else if (connection->state() != State::kIdle) {
                end_locked(*connection);
            }
        }
    }
}

/// Nobody listens: that is an answer. Of a connection it is only a suspicion, which a request
/// settles that moves nothing.
void CmRcPort::peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept {
    const util::Guard guard(lock_);
    datagrams_.peer_refused(peer, dest_qpn, device_.now_us());
    if (is_leaving_ && dest_qpn == protocol::kGsiQpn) {
        agent_.give_up_ends(peer, device_.now_us());
    }
    for (const auto& [id, connection] : connections_) {
        if (connection->peer() != peer) {
            continue;
        }
        if (dest_qpn == protocol::kGsiQpn && connection->state() == State::kDialing) {
            connection->is_doubted_ = true;
        } else if (connection->state() == State::kOpen && !connection->is_doubted_ &&
                   connection->qp().attr().dest_qpn == dest_qpn) {
            connection->is_doubted_ = true;
            connection->completed_ = connection->qp().send_queue().completed();
            connection->deadline_us_ = device_.now_us() + kDoubtUs;
            // Not possible when the queue is full: then there is enough to acknowledge.
            [[maybe_unused]] const Status asked =
                connection->qp().post_send({.wr_id = kRcProbe, .opcode = WrOpcode::kWrite});
        }
    }
    look_soon();
}

/// Says so to the peer, which would try for a minute: it had a connection with the process that had
/// the address before, or this one has been closed.
void CmRcPort::pair_missed(const Address& source, std::uint32_t qpn) noexcept {
    const Address peer = answering(source);
    const util::Guard guard(lock_);
    // Each pair of a peer counts for itself: its connections share a port.
    if (notices_.may_tell(to_sock_addr(peer).hash() * kMixer + qpn, device_.now_us())) {
        send_missed(device_, peer, qpn);
    }
}

/// When check_deadlines_locked() has something to settle, or kNever. A peer that has asked for time
/// has it once: it would ask again with each repetition of the request.
std::uint64_t CmRcPort::settled_us(const CmRcConnection& connection) noexcept {
    switch (connection.state()) {
        case State::kDialing:
            return connection.is_doubted_ ? 0 : connection.deadline_us_ + CmAgent::kMostDelayUs;
        case State::kOpen: return connection.is_doubted_ ? connection.deadline_us_ : kNever;
        default: return kNever;
    }
}

/// Settles what has waited long enough.
void CmRcPort::check_deadlines_locked(std::uint64_t now_us) {
    for (const auto& [id, connection] : connections_) {
        if (now_us < settled_us(*connection)) {
            continue;
        }
        if (connection->state() == State::kDialing) {
            const int error = connection->is_doubted_ ? ECONNREFUSED : ETIMEDOUT;
            hang_up_locked(*connection);
            fail_locked(*connection, error, {});
        } else {
            connection->is_doubted_ = false;
            if (connection->qp().send_queue().completed() == connection->completed_) {
                end_locked(*connection);
            }
        }
    }
}

// ---- the last words ----

/// A peer that only receives learns of the end in no other way, and the packet that tells it may be
/// lost. The time is the system's: a device's clock may stand still.
void CmRcPort::say_farewell() noexcept {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + farewell_;
    {
        const util::Guard guard(lock_);
        is_leaving_ = true;
    }
    while (are_ends_unanswered() && Clock::now() < end) {
        if (CmRcPort::poll() == 0) {
            device_.sleep_on(-1, 1);
        }
    }
}

bool CmRcPort::are_ends_unanswered() noexcept {
    const util::Guard guard(lock_);
    return agent_.unanswered_ends() != 0;
}

// ---- pairs ----

/// Whoever is in the pair may hold the port's lock: the next poll sees to it.
void CmRcPort::pair_failed() noexcept {
    // release: pairs with the acquire in end_failed(), which sees the pair's state.
    has_failed_.store(true, std::memory_order_release);
    expect_traffic();
}

/// The peer, and this end's user, may do nothing but wait for the end: both are told, whether or
/// not anybody reads the completion that says why.
void CmRcPort::end_failed() noexcept {
    device_.flush();  // what has arrived, and why the pair has failed, the peer should learn
    const util::Guard guard(lock_);
    // acquire: pairs with the release in pair_failed().
    if (!has_failed_.exchange(false, std::memory_order_acquire)) {
        return;
    }
    lose_peers_locked();  // where the channel is the reason, that is what is told
    for (const auto& [id, connection] : connections_) {
        if (connection->qp().state() == QpState::kErr) {
            end_failed_locked(*connection);
        }
    }
}

/// Of one that works. What has failed may be a request of a peer whose word that it is ready has
/// been lost: the user is told that the connection is there before it is told that it is not.
void CmRcPort::end_failed_locked(CmRcConnection& connection) {
    if (connection.state() == State::kOpen || connection.state() == State::kAccepted) {
        opened_locked(connection, {});
        end_locked(connection);
    }
}

// ---- the port ----

void CmRcPort::port_changed() noexcept {
    const util::Guard guard(lock_);
    has_port_news_ = true;
    look_soon();
}

void CmRcPort::path_narrowed(const Address& /*host*/) noexcept {
    port_changed();
}

/// Whether what it sends cannot leave any more. One that is being made may wait for the address to
/// come back; then its time is up.
bool CmRcPort::is_cut_off_locked(const CmRcConnection& connection) const {
    const bool is_made =
        connection.state() == State::kOpen || connection.state() == State::kAccepted;
    return is_made && (device_.is_port_down() ||
                       connection.mtu_bytes_ > device_.payload_to(connection.peer()));
}

/// A pair's peer knows it by its address and by the size of its packets, and cannot be told of
/// others.
void CmRcPort::look_at_port_locked() {
    if (!std::exchange(has_port_news_, false)) {
        return;
    }
    const int error = device_.is_port_down() ? ENETDOWN : EMSGSIZE;
    for (const auto& [id, connection] : connections_) {
        if (!is_cut_off_locked(*connection)) {
            continue;
        }
        if (connection->state() == State::kAccepted) {
            hang_up_locked(*connection);
            fail_locked(*connection, error, {});
        } else {
            warn_of(*connection, device_);
            connection->user_.device_failed(error);
            end_locked(*connection);
        }
    }
    if (device_.is_port_down()) {
        for (const auto& [service, listener] : listeners_) {
            listener->device_failed(ENETDOWN);
        }
    }
}

}  // namespace rvt::core
