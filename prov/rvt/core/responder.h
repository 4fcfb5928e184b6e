// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The receiving side of a pair: checks a request, takes a receive, puts the bytes where they
// belong. The same code answers requests from this device (core/requester.cc) and from others
// (core/segment_transport.cc), so that both see the same rules. IBTA vol. 1, 9.7 to 9.9.
#pragma once

#include <cstdint>

#include "core/pieces.h"
#include "core/wr_table.h"
#include "rvt/types.h"

namespace rvt::core {

class Qp;

/// A request as the responder sees it, whoever brought it. Nothing in it has been checked.
struct Request {
    const WrInfo* info = nullptr;
    std::uint32_t src_qpn = 0;
    std::uint32_t imm = 0;  // or the key to invalidate
    std::uint32_t rkey = 0;
    std::uint32_t qkey = 0;  // UD
    std::uint64_t remote_addr = 0;
    std::uint64_t bytes = 0;  // of the whole message; FLUSH: of the range; EXTENDED_ATOMIC: of its
                              // target
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    FlushType flush_type = FlushType::kNone;
    FlushLevel flush_level = FlushLevel::kRange;
    ExtendedAtomic atomic{};
    bool solicited = false;
    Address source{};  // UD
    Address dest{};    // UD
};

/// Why a request was not carried out. What each means for both sides is a row of a table,
/// refusal_of().
enum class Nak : std::uint8_t {
    kNone,
    kNotReady,     // no receive is posted
    kInvalid,      // the pair does not do that, or the operands are wrong
    kTooLong,      // longer than the receive
    kAccess,       // the key does not allow it
    kLocalFault,   // the receive's own memory is at fault
    kUnreachable,  // no such pair, or not in a state to answer
};
inline constexpr Nak kLastNak = Nak::kUnreachable;

/// Consequences of a Nak.
struct Refusal {
    WcStatus requester;  // status of the work request at the sender
    WcStatus responder;  // status of the receive that was taken; kSuccess: none is completed
    bool fails_pair;     // takes a connected responder to ERR
    bool raises;         // `event` is raised at the responder
    EventType event;
    bool unreliable_fails;  // also on UC and UD, where most requests are dropped instead
};
const Refusal& refusal_of(Nak nak) noexcept;

/// Microseconds that a code of IBTA table 45 means.
std::uint32_t rnr_timer_us(std::uint8_t code) noexcept;

// The four steps, each with qp.rx_lock() held and under a ReadPin.

/// Checks the request against the pair and takes a receive if it needs one.
/// @param head  The message, or its first part: a queue that matches tags looks into it.
Nak begin_request(Qp& qp, const Request& request, const PieceList& head) noexcept;
/// Puts `data`, which is the message from byte `offset` on, where it belongs.
Nak place_data(Qp& qp, const Request& request, std::uint64_t offset,
               const PieceList& data) noexcept;
/// Whether a SEND that turned out to be longer, as `request.bytes` says now, still fits.
Nak check_longer(const Qp& qp, const Request& request) noexcept;
/// A WRITE that turned out to bring immediate data takes its receive.
Nak take_late_receive(Qp& qp, const Request& request) noexcept;
/// All has been placed: invalidates what is to be, completes the receive.
Nak finish_request(Qp& qp, const Request& request) noexcept;
/// Ends a request that a step refused: completes its receive in error, if the row says so.
void abandon_request(Qp& qp, Nak nak) noexcept;

/// Finds the memory that a READ asks for.
Nak find_source(Qp& qp, const Request& request, std::uint64_t offset, std::uint64_t bytes,
                PieceList& source) noexcept;
/// Carries out an atomic; `original` is what was there before.
Nak do_atomic(Qp& qp, const Request& request, std::uint64_t& original) noexcept;

/// Carries out FLUSH or ATOMIC WRITE, whose answer holds no bytes.
/// @param data  What the latter writes.
Nak do_answered(Qp& qp, const Request& request, const PieceList& data) noexcept;

/// Carries out EXTENDED_ATOMIC.
/// @param operands  What the request carried.
/// @param results   Room for Qp::most_atomic_bytes(): the answer, of result_bytes().
Nak do_extended_atomic(Qp& qp, const Request& request, const PieceList& operands,
                       std::byte* results) noexcept;
/// Precondition: such a request, that has been carried out.
std::size_t result_bytes(const Request& request) noexcept;

/// All of the above for a UD message. The caller holds no lock of the pair, but a ReadPin.
void take_datagram(Qp& qp, const Request& request, const PieceList& payload) noexcept;

/// What follows a refused request: event, error state, count. The caller holds no rx_lock.
void after_refusal(Qp& qp, Nak nak) noexcept;

}  // namespace rvt::core
