// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory of frames.
#include "core/rd_frame_ring.h"

#include <cstring>

#include "common/check.h"

using rvt::core::RdFrameRing;

namespace {

constexpr std::size_t kLarge = 64u << 10;

/// Puts one frame of 64 KiB.
std::byte* put_large(RdFrameRing& ring) {
    std::byte* const at = ring.room(kLarge, 0, 0);
    std::memset(at, 'x', kLarge);
    ring.take(at, kLarge);
    return at;
}

}  // namespace

Test(rd_frame_ring, has_room_for_so_many_frames) {
    RdFrameRing ring;
    RVT_OK(ring.open());
    for (std::uint32_t i = 0; i < RdFrameRing::kMaxFrames; ++i) {
        std::byte* const at = ring.room(1, 0, 0);
        RVT_ASSERT(at != nullptr);
        ring.take(at, 1);
    }
    RVT_ASSERT(ring.room(1, 0, 0) == nullptr);
    ring.free_until(1);
    RVT_ASSERT(ring.room(1, 0, 0) != nullptr);
}

Test(rd_frame_ring, begins_in_the_same_place_when_it_is_empty) {
    RdFrameRing ring;
    RVT_OK(ring.open());
    std::byte* const first = put_large(ring);
    ring.free_until(1);
    RVT_ASSERT(ring.room(1, 0, 0) == first);
}

Test(rd_frame_ring, gives_back_what_it_does_not_need) {
    RdFrameRing ring;
    RVT_OK(ring.open());
    const std::byte* const at = put_large(ring);
    ring.free_until(1);
    RVT_ASSERT(ring.is_large());
    ring.trim();
    RVT_ASSERT(not(ring.is_large()));
    RVT_ASSERT(at[0] == std::byte{'x'});
    RVT_ASSERT(at[kLarge - 1] == std::byte{0});  // a page that has not been written
}
