// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Keeping and taking out.
#include "core/early_packets.h"

#include <cstring>
#include <new>
#include <utility>

namespace rvt::core {

bool EarlyPackets::keep(const protocol::DecodedPacket& packet) noexcept {
    if (count_ != 0 && slot(packet.header.psn).is_used) {
        return true;
    }
    const std::size_t bytes = packet.payload.size() + (count_ == 0 ? kSlotsBytes : 0);
    if (!room_.take(bytes)) {
        return false;
    }
    held_ += bytes;
    try {
        slots_.resize(kMost);
        slot(packet.header.psn).payload.assign(packet.payload.begin(), packet.payload.end());
    } catch (const std::bad_alloc&) {
        release(bytes);
        return false;
    }
    Slot& place = slot(packet.header.psn);
    place.is_used = true;
    place.header = packet.header;
    const std::uint32_t index = packet.header.psn.value() % kMost;
    used_[index / kWordBits] |= std::uint64_t{1} << (index % kWordBits);
    ++count_;
    return true;
}

std::size_t EarlyPackets::write_map(protocol::Psn missing,
                                    std::span<std::byte, kMapBytes> to) const noexcept {
    const std::uint32_t first = (missing + 1).value() % kMost;
    const std::size_t shift = first % kWordBits;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < used_.size(); ++i) {
        const std::size_t at = first / kWordBits + i;
        std::uint64_t word = used_[at % used_.size()] >> shift;
        if (shift != 0) {
            word |= used_[(at + 1) % used_.size()] << (kWordBits - shift);
        }
        std::memcpy(&to[i * sizeof word], &word, sizeof word);  // little-endian, as the wire's
        if (word != 0) {
            bytes = i * sizeof word + (word >> 32 != 0 ? sizeof word : sizeof word / 2);
        }
    }
    return bytes;
}

protocol::DecodedPacket EarlyPackets::take(protocol::Psn psn,
                                           std::vector<std::byte>& bytes) noexcept {
    Slot& place = slot(psn);
    place.is_used = false;
    const std::uint32_t index = psn.value() % kMost;
    used_[index / kWordBits] &= ~(std::uint64_t{1} << (index % kWordBits));
    bytes = std::move(place.payload);
    const protocol::DecodedPacket packet{.header = place.header, .payload = bytes};
    --count_;
    release(bytes.size());
    return packet;
}

/// Gives back what the packets need no longer.
void EarlyPackets::release(std::size_t bytes) noexcept {
    if (count_ == 0) {
        clear();
        return;
    }
    held_ -= bytes;
    room_.give_back(bytes);
}

void EarlyPackets::clear() noexcept {
    slots_ = {};
    used_ = {};
    count_ = 0;
    room_.give_back(std::exchange(held_, 0));
}

}  // namespace rvt::core
