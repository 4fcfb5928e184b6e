// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Segments in a capture: as the RoCEv2 packets that would carry the same over a wire. A segment is
// one packet, however long; the parts of a message have the number of the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <sys/uio.h>

#include "protocol/pcap_writer.h"
#include "rvt/types.h"

namespace rvt::core {

/// Between which devices a segment travels.
struct SegmentPath {
    Address source;
    Address dest;
};

/// Writes a segment; what is none is left out. Precondition: capture.is_on(). Threads: any.
/// @param sent_ns  When it left, by PcapWriter::now_ns(); none: it has arrived.
void capture_segment(const protocol::PcapInterface& capture, std::optional<std::uint64_t> sent_ns,
                     const SegmentPath& path, std::span<const std::byte> header,
                     std::span<const iovec> payload) noexcept;

}  // namespace rvt::core
