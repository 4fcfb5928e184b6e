// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of pairs whose buffers the CPU has copies of, a part at a time: BufferUse::stage().
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device_memory.h"
#include "core/pieces.h"
#include "util/status.h"

namespace rvt::core {

/// What is moved in one go where nothing else divides a message.
inline constexpr std::uint64_t kStageBytes = 1u << 20;

/// use->stage(), of what need not have one.
inline util::Status stage(BufferUse* use, std::uint64_t begin, std::uint64_t end) noexcept {
    return use == nullptr ? util::Status(util::kOk) : use->stage(begin, end);
}

/// Calls `move(offset, bytes)` for one part of a message after the other, when its bytes may be
/// looked at, or written. Returns: false when they cannot be had, or a call does.
template <class Move>
bool move_in_stages(BufferUse* use, std::uint64_t total, Move move) noexcept {
    for (std::uint64_t at = 0; at < total; at += kStageBytes) {
        const std::uint64_t bytes = std::min(kStageBytes, total - at);
        if (!stage(use, at, at + bytes).is_ok() || !move(at, bytes)) {
            return false;
        }
    }
    return true;
}

/// The same with the parts of its list, `move(part, offset)`; in one go where all of it is here.
template <class Move>
bool move_list(BufferUse* use, const PieceList& list, Move move) noexcept {
    return use == nullptr
               ? move(list, std::uint64_t{0})
               : move_in_stages(use, list.bytes(), [&](std::uint64_t at, std::uint64_t bytes) {
                     return move(list.part(at, bytes), at);
                 });
}

}  // namespace rvt::core
