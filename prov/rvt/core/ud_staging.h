// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Where datagrams lie whose pair reaches registered memory alone, that of a NIC: each is copied
// from and to the application's buffers, so that these need not be registered. The places of the
// pair's receives are all alike: a datagram is for the oldest receive of the application that
// waits, in whichever place it has come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "core/mr.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/rd_types.h"
#include "rvt/types.h"
#include "util/private_memory.h"

namespace rvt::core {

/// Threads: one at a time.
class UdStaging {
  public:
    struct Size {
        std::size_t sends = 0;     // that can be under way; a power of two
        std::size_t receives = 0;  // that can be posted
        std::size_t bytes = 0;     // of the longest datagram
    };
    /// Bytes of memory that such a one registers.
    static constexpr std::size_t memory_of(const Size& size) noexcept {
        return size.sends * size.bytes + size.receives * (kGrhBytes + size.bytes);
    }
    /// Returns: ENOMEM, also where less memory may be locked; errors of reg_mr().
    static Result<std::unique_ptr<UdStaging>> open(Pd& pd, const Size& size);
    ~UdStaging() = default;
    UdStaging(const UdStaging&) = delete;
    UdStaging& operator=(const UdStaging&) = delete;

    /// Copies what the send at that position is of.
    /// Precondition: at most Size::bytes; that position's last send has completed.
    [[nodiscard]] Sge put_send(std::uint64_t position, std::span<const iovec> from) noexcept;

    /// The application waits for a datagram in `to`, which is copied, as its number `receive`. The
    /// pair gets a place for it.
    /// @param wr_id_bits  Set in the wr_id of the pair's receive, beside the number of the place.
    /// Returns: errors of Qp::post_recv().
    Status post(Qp& qp, std::uint64_t wr_id_bits, std::uint32_t receive, std::span<const iovec> to);
    /// It waits no more. Returns: false when it did not.
    bool cancel(std::uint32_t receive) noexcept;

    struct Taken {
        std::uint32_t receive = 0;                  // whom it is for
        std::span<const std::byte, kGrhBytes> grh;  // until that place is used again
    };
    /// Copies a datagram to who waits for it.
    /// @param bytes  Of the datagram, without the route header; 0 for one that has failed.
    /// Returns: nothing when nobody waits.
    std::optional<Taken> take(std::uint32_t place, std::size_t bytes) noexcept;

  private:
    struct Buffers {
        std::array<iovec, kMaxIov> iov;
        std::size_t count = 0;
    };

    explicit UdStaging(const Size& size);
    [[nodiscard]] std::byte* memory() const noexcept {
        return static_cast<std::byte*>(memory_.data());
    }
    [[nodiscard]] std::byte* receive_place(std::uint32_t place) const noexcept {
        return memory() + size_.sends * size_.bytes + place * (kGrhBytes + size_.bytes);
    }

    const Size size_;
    util::PrivateMemory memory_;
    Owned<Mr> region_;
    std::vector<Buffers> buffers_;        // by the numbers of receives
    std::vector<std::uint32_t> waiting_;  // those, the oldest first: a ring by position
    std::uint64_t oldest_ = 0;
    std::uint64_t next_ = 0;
    std::vector<std::uint32_t> free_;  // places that the pair has not
};

}  // namespace rvt::core
