// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What sets families of NICs apart, as far as it matters here.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace rvt::verbs {

/// Which requests the extended verbs of a driver in rdma-core build wrong, so that it gets them by
/// ibv_post_send(3).
enum class Misbuilt : std::uint8_t {
    kNone,
    kLists,      // rxe's until 2026: as long as the first buffer, times their number
    kDatagrams,  // bnxt_re's: their length keeps bits of what was in their place before
};

struct Quirks {
    const char* family;
    bool is_software;     // the kernel's emulation: rvt's own RoCEv2 is as good
    bool has_rc;          // reliable connections of verbs
    bool cm_moves_pairs;  // iWARP: the connection manager takes pairs to their states
    // rdma-core until 2025: behind an entry that ibv_next_poll(3) does not find, others are
    // read that are none.
    bool breaks_next_poll;
    Misbuilt misbuilt;
    // Of a region on demand that does not begin with a page other bytes are read and written: Linux
    // 7.2, without a word.
    bool misplaces_on_demand;
    bool is_tried;  // this provider has run on one
};

/// The row of a device; NICs of no known family are taken to be as verbs describes them.
const Quirks& quirks_of(const ibv_device& device, const ibv_device_attr& attr) noexcept;

}  // namespace rvt::verbs
