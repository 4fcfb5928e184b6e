// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Building, cutting and copying lists of pieces.
#include "core/pieces.h"

#include <algorithm>

#include "core/context.h"
#include "core/segments.h"
#include "util/fault_guard.h"

namespace rvt::core {
namespace {

/// Where the range is in the CPU's copy; that is one piece.
std::byte* place_in(const RegionMemory& copy, const KeyHit& hit) noexcept {
    return static_cast<std::byte*>(copy.segments.front().iov_base) + hit.offset;
}

/// An element whose key says what it may name.
WcStatus append_checked(PieceList& to, const Pd& pd, const Sge& sge, Access access) noexcept {
    const KeyHit hit = pd.key_view().lookup(
        {.key = sge.lkey, .pd = pd.id(), .addr = sge.addr, .length = sge.length, .access = access});
    if (!hit.is_ok()) {
        return WcStatus::kLocProtErr;
    }
    if (!append(to, hit, sge.length)) {
        const bool is_device = hit.indirect && memory_of(hit).device != nullptr;
        return is_device ? WcStatus::kLocProtErr : WcStatus::kLocLenErr;
    }
    return WcStatus::kSuccess;
}

}  // namespace

void PieceList::clear() noexcept {
    accesses_.end();
    count_ = 0;
    bytes_ = 0;
}

PieceList PieceList::part(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    PieceList out;
    for (const iovec& piece : all()) {
        if (offset >= piece.iov_len) {
            offset -= piece.iov_len;
            continue;
        }
        const std::uint64_t take = std::min(bytes, piece.iov_len - offset);
        out.add(static_cast<std::byte*>(piece.iov_base) + offset, take);
        offset = 0;
        bytes -= take;
        if (bytes == 0) {
            break;
        }
    }
    return out;
}

PieceList pieces_of(std::span<const std::byte> bytes) noexcept {
    PieceList pieces;
    pieces.add(const_cast<std::byte*>(bytes.data()), bytes.size());
    return pieces;
}

std::uint64_t copy(const PieceList& to, const PieceList& from) noexcept {
    std::uint64_t copied = 0;
    std::size_t used = 0;  // of the current piece of `to`
    auto target = to.all().begin();
    for (const iovec& source : from.all()) {
        std::size_t done = 0;
        while (done < source.iov_len && target != to.all().end()) {
            const std::size_t n = std::min(source.iov_len - done, target->iov_len - used);
            // A message may be sent into memory that it overlaps.
            if (!util::copy_guarded(static_cast<std::byte*>(target->iov_base) + used,
                                    static_cast<const std::byte*>(source.iov_base) + done, n)) {
                return copied;
            }
            done += n;
            used += n;
            copied += n;
            if (used == target->iov_len) {
                ++target;
                used = 0;
            }
        }
    }
    return copied;
}

bool is_there(const PieceList& memory) noexcept {
    return std::ranges::all_of(memory.all(), [](const iovec& piece) {
        return util::can_read(piece.iov_base, piece.iov_len);
    });
}

bool append(PieceList& to, const KeyHit& hit, std::uint64_t bytes) noexcept {
    if (!hit.indirect) {
        return to.add(hit.data(), bytes);
    }
    const RegionMemory& memory = memory_of(hit);
    DeviceMemory* const device = memory.device;
    if (device != nullptr && (device->is_copy() || !to.accesses().begin(*device))) {
        return false;
    }
    std::uint64_t offset = hit.offset;
    for (const iovec& segment : memory.from(offset)) {
        if (offset >= segment.iov_len) {
            offset -= segment.iov_len;
            continue;
        }
        const std::uint64_t take = std::min(bytes, segment.iov_len - offset);
        if (!to.add(static_cast<std::byte*>(segment.iov_base) + offset, take)) {
            return false;
        }
        offset = 0;
        bytes -= take;
        if (bytes == 0) {
            break;
        }
    }
    return true;
}

bool append_refreshed(PieceList& to, const KeyHit& hit, std::uint64_t bytes) noexcept {
    if (!hit.indirect) {
        return false;
    }
    const RegionMemory& memory = memory_for_peers(hit);
    DeviceMemory* const device = memory.device;
    return device != nullptr && device->is_copy() && to.accesses().begin(*device) &&
           device->refresh(hit.offset, bytes).is_ok() && to.add(place_in(memory, hit), bytes);
}

bool write_to_copy(const KeyHit& hit, const PieceList& from) noexcept {
    DeviceMemory* const device = hit.indirect ? memory_for_peers(hit).device : nullptr;
    if (device == nullptr || !device->is_copy()) {
        return false;
    }
    const CpuAccessScope access(device, CpuAccess::kWrite);
    PieceList to;
    to.add(place_in(memory_for_peers(hit), hit), from.bytes());
    if (!access.status().is_ok()) {
        return false;
    }
    copy(to, from);
    return device->write_back(hit.offset, from.bytes()).is_ok();
}

WcStatus append_local(PieceList& to, const Pd& pd, std::span<const Sge> sg_list,
                      Access access) noexcept {
    for (const Sge& sge : sg_list) {
        WcStatus status = WcStatus::kSuccess;
        if (sge.lkey == kLocalDmaLkey && pd.allows_local_dma()) [[likely]] {
            // NOLINTNEXTLINE(performance-no-int-to-ptr)
            const bool is_added = to.add(reinterpret_cast<void*>(sge.addr), sge.length);
            status = is_added ? WcStatus::kSuccess : WcStatus::kLocLenErr;
        } else if (sge.length != 0) {
            status = append_checked(to, pd, sge, access);
        }
        if (status != WcStatus::kSuccess) {
            return status;
        }
    }
    return WcStatus::kSuccess;
}

}  // namespace rvt::core
