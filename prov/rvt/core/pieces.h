// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Pieces: what a list of keys, addresses and lengths comes down to once the keys have been checked.
// Used on the stack of one operation, under its ReadPin.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/uio.h>

#include "core/device_memory.h"
#include "core/key_table.h"
#include "core/wc.h"
#include "rvt/types.h"

namespace rvt::core {

class Pd;

/// 2 KiB that lie on the stack of each operation, hence nothing is set before it is used.
///
/// A list that append() has filled with memory of devices stands for the CPU's access to it, until
/// it is destroyed; parts of it do not, and live no longer.
class PieceList {
  public:
    static constexpr std::size_t kMax = 128;

    PieceList() noexcept = default;
    ~PieceList() = default;
    /// A copy is a part.
    PieceList(const PieceList& other) noexcept : count_(other.count_), bytes_(other.bytes_) {
        std::copy_n(other.pieces_.begin(), count_, pieces_.begin());
    }
    PieceList& operator=(const PieceList&) = delete;

    /// Returns: false when the list is full.
    bool add(void* data, std::size_t bytes) noexcept {
        if (bytes == 0) {
            return true;
        }
        if (count_ == kMax) {
            return false;
        }
        pieces_[count_++] = {.iov_base = data, .iov_len = bytes};
        bytes_ += bytes;
        return true;
    }
    /// Those to memory of devices, whose pieces have been added or are about to be.
    [[nodiscard]] DeviceAccesses& accesses() noexcept { return accesses_; }
    [[nodiscard]] const DeviceAccesses& accesses() const noexcept { return accesses_; }
    /// Empties the list.
    void clear() noexcept;

    [[nodiscard]] std::span<const iovec> all() const noexcept { return {pieces_.data(), count_}; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

    /// The part from byte `offset` on, at most `bytes` long.
    [[nodiscard]] PieceList part(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  private:
    std::array<iovec, kMax> pieces_;  // only the first count_ are written
    std::size_t count_ = 0;
    std::uint64_t bytes_ = 0;
    DeviceAccesses accesses_;
};

/// A place in a list, which must outlive it: takes it apart from front to back.
class PieceCursor {
  public:
    PieceCursor(const PieceList& list, std::uint64_t offset) noexcept : left_(list.all()) {
        take(offset, [](const iovec& /*skipped*/) {});
    }
    /// How many pieces there are from here on, the one that has been begun included.
    [[nodiscard]] std::size_t pieces() const noexcept { return left_.size(); }
    /// Calls `visit(iovec)` for what makes up the next bytes, as far as there are so many.
    template <class Visit>
    void take(std::uint64_t bytes, Visit visit) noexcept {
        while (bytes != 0 && !left_.empty()) {
            const iovec& piece = left_.front();
            const std::uint64_t part = std::min<std::uint64_t>(bytes, piece.iov_len - used_);
            visit(iovec{static_cast<std::byte*>(piece.iov_base) + used_, part});
            bytes -= part;
            used_ += part;
            if (used_ == piece.iov_len) {
                left_ = left_.subspan(1);
                used_ = 0;
            }
        }
    }

  private:
    std::span<const iovec> left_;
    std::uint64_t used_ = 0;  // of the first of these
};

/// What arrived, as a list of one piece. Read only; a list of pieces has no const.
PieceList pieces_of(std::span<const std::byte> bytes) noexcept;

/// Copies as much as both have. Returns: bytes copied; fewer where memory of either is not there.
std::uint64_t copy(const PieceList& to, const PieceList& from) noexcept;

/// Whether all of the memory can be read, as far as that is known before it is.
bool is_there(const PieceList& memory) noexcept;

/// Appends the memory behind a hit: one piece, or those of an indirect region.
/// Returns: false when the list is full, and for memory of a device of which the CPU has a copy.
bool append(PieceList& to, const KeyHit& hit, std::uint64_t bytes) noexcept;

/// For memory that append() refuses as a copy: appends it to be read by a peer, with what the
/// device has now. Returns: false for any other, and when the device does not let it be read.
bool append_refreshed(PieceList& to, const KeyHit& hit, std::uint64_t bytes) noexcept;

/// Likewise: writes all of `from` to the memory behind the hit.
/// Returns: false as append_refreshed().
bool write_to_copy(const KeyHit& hit, const PieceList& from) noexcept;

/// Appends local memory named by work-request elements after checking each key.
/// Returns: kLocProtErr when a key, or the device behind it, does not allow it, kLocLenErr when
///          there are too many pieces.
WcStatus append_local(PieceList& to, const Pd& pd, std::span<const Sge> sg_list,
                      Access access) noexcept;

}  // namespace rvt::core
