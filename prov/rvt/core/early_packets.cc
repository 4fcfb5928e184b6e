// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Keeping and taking out.
#include "core/early_packets.h"

#include <utility>

namespace rvt::core {

void EarlyPackets::keep(const protocol::DecodedPacket& packet) {
    slots_.resize(kMost);
    Slot& place = slot(packet.header.psn);
    if (place.is_used) {
        return;
    }
    place.is_used = true;
    place.header = packet.header;
    place.payload.assign(packet.payload.begin(), packet.payload.end());
    ++count_;
}

protocol::DecodedPacket EarlyPackets::take(protocol::Psn psn,
                                           std::vector<std::byte>& bytes) noexcept {
    Slot& place = slot(psn);
    place.is_used = false;
    bytes = std::move(place.payload);
    const protocol::DecodedPacket packet{.header = place.header, .payload = bytes};
    if (--count_ == 0) {
        slots_ = {};
    }
    return packet;
}

}  // namespace rvt::core
