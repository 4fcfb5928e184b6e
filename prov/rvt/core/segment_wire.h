// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The header of each segment that core/segment_transport.h sends over a segment-grade backend. Both
// ends are of one host and one byte order; the version says that they are of one layout too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rvt/backend.h"

namespace rvt::core {

enum class SegmentKind : std::uint8_t {
    kRequest = 1,  // a message or a part of one, a READ or an atomic
    kReadData,     // what a READ asked for, or a part of it
    kAck,          // a request was carried out
    kNak,          // it was not, `nak` says why
    kMad,          // a management datagram from one device to the other; of no pair
};

// clang-format off
/// Everything is written by the sender and read by the receiver, who trusts none of it.
///
/// field          | request            | read data     | ack                             | nak
/// nak            | -                  | -             | -                               | why: core/responder.h
/// opcode, flags  | work request's     | -             | -                               | -
/// msn            | number in the flow | the request's | the request's                   | the request's
/// imm, rkey      | work request's     | -             | imm: access of the pair, rkey: domain | -
/// qkey           | UD                 | -             | -                               | -
/// retry_after_us | -                  | -             | -                               | receiver not ready
/// message_bytes  | of the whole message; FLUSH: of the range; EXTENDED_ATOMIC: of its target | of the READ | - | -
/// offset         | of this part       | of this part  | -                               | -
/// compare_add    | atomics            | -             | what was there                  | -
/// flush          | FLUSH, as in FETH  | -             | -                               | -
/// atomic_*       | EXTENDED_ATOMIC    | -             | -                               | -
// clang-format on
struct SegmentHeader {
    std::uint8_t version;
    SegmentKind kind;
    std::uint8_t qp_type;
    std::uint8_t nak;
    std::uint32_t src_qpn;
    std::uint32_t dest_qpn;
    std::uint32_t msn;
    std::uint32_t imm;
    std::uint32_t rkey;
    std::uint32_t qkey;
    std::uint32_t retry_after_us;
    std::uint64_t remote_addr;
    std::uint64_t message_bytes;
    std::uint64_t offset;
    std::uint64_t compare_add;
    std::uint64_t swap;
    std::uint8_t source_gid[16];
    std::uint16_t source_port;
    std::uint8_t opcode;
    std::uint8_t is_solicited;
    std::uint8_t flush;
    std::uint8_t atomic_form;
    std::uint8_t atomic_datatype;
    std::uint8_t atomic_op;

    static constexpr std::uint8_t kVersion = 2;
};
static_assert(sizeof(SegmentHeader) == 96 && sizeof(SegmentHeader) <= kMaxSegmentHeader);
static_assert(std::is_standard_layout_v<SegmentHeader> &&
              std::has_unique_object_representations_v<SegmentHeader>);

}  // namespace rvt::core
