// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies of datagrams.
#include "core/ud_staging.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "util/iov_cursor.h"

namespace rvt::core {

UdStaging::UdStaging(const Size& size)
    : size_(size),
      memory_(util::PrivateMemory::allocate(memory_of(size))),
      buffers_(size.receives),
      waiting_(std::bit_ceil(size.receives)) {
    for (std::uint32_t place = 0; place < size.receives; ++place) {
        free_.push_back(place);
    }
}

Result<std::unique_ptr<UdStaging>> UdStaging::open(Pd& pd, const Size& size) {
    std::unique_ptr<UdStaging> made(new UdStaging(size));
    if (made->memory() == nullptr) {
        return ENOMEM;
    }
    const iovec all{made->memory(), made->memory_.bytes()};
    // Where a NIC has memory on demand, this is known of its RC pairs alone.
    const Access access = Access::kLocalWrite | Access::kPinned;
    const Status registered =
        keep(made->region_, reg_mr(pd, {.segments = {&all, 1}, .access = access}));
    if (!registered.is_ok()) {
        return registered;
    }
    return made;
}

Sge UdStaging::put_send(std::uint64_t position, std::span<const iovec> from) noexcept {
    std::byte* const to = memory() + (position & (size_.sends - 1)) * size_.bytes;
    const std::size_t bytes = util::IovCursor(from.data(), from.size()).gather(to, size_.bytes);
    return {.addr = reinterpret_cast<std::uint64_t>(to),
            .length = static_cast<std::uint32_t>(bytes),
            .lkey = region_->lkey()};
}

/// A receive that was cancelled has left its place with the pair.
Status UdStaging::post(Qp& qp, std::uint64_t wr_id_bits, std::uint32_t receive,
                       std::span<const iovec> to) {
    const std::size_t posted = size_.receives - free_.size();
    if (posted == next_ - oldest_) {
        const std::uint32_t place = free_.back();
        const Sge room{.addr = reinterpret_cast<std::uint64_t>(receive_place(place)),
                       .length = static_cast<std::uint32_t>(kGrhBytes + size_.bytes),
                       .lkey = region_->lkey()};
        const Status status = qp.post_recv({.wr_id = wr_id_bits | place, .sg_list = {&room, 1}});
        if (!status.is_ok()) {
            return status;
        }
        free_.pop_back();
    }
    Buffers& buffers = buffers_[receive];
    buffers.count = to.size();
    std::copy(to.begin(), to.end(), buffers.iov.begin());
    waiting_[next_++ & (waiting_.size() - 1)] = receive;
    return kOk;
}

bool UdStaging::cancel(std::uint32_t receive) noexcept {
    const std::size_t mask = waiting_.size() - 1;
    std::uint64_t at = oldest_;
    while (at != next_ && waiting_[at & mask] != receive) {
        ++at;
    }
    if (at == next_) {
        return false;
    }
    for (--next_; at != next_; ++at) {
        waiting_[at & mask] = waiting_[(at + 1) & mask];
    }
    return true;
}

std::optional<UdStaging::Taken> UdStaging::take(std::uint32_t place, std::size_t bytes) noexcept {
    free_.push_back(place);
    if (oldest_ == next_) {
        return std::nullopt;
    }
    const std::uint32_t receive = waiting_[oldest_++ & (waiting_.size() - 1)];
    const std::byte* const from = receive_place(place);
    const Buffers& buffers = buffers_[receive];
    util::IovCursor(buffers.iov.data(), buffers.count).scatter(from + kGrhBytes, bytes);
    return Taken{.receive = receive, .grh = std::span<const std::byte, kGrhBytes>(from, kGrhBytes)};
}

}  // namespace rvt::core
