// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sizes at which the RD service changes its way of moving a message. Parameters set them; defaults
// are measured.
#pragma once

#include <cstddef>

namespace rvt::core {

struct RdTuning {
    std::size_t eager_max = 32 * 1024;  // larger messages stay with the sender until matched
    // The same over a wire, where asking costs more. What is larger than eager_max is not copied
    // and completes when the peer has it.
    std::size_t wire_eager_max = 256 * 1024;
    // Copied from or to a peer's memory before other messages get their turn, in 0.2 to 0.4 ms: a
    // system call costs 2 to 3 us, whatever it copies.
    std::size_t direct_chunk = 4 * 1024 * 1024;
    std::size_t direct_min =
        4 * 1024;  // smaller accesses go through the rings while the target polls
    std::size_t rendezvous_headers = 1024;  // unanswered headers for each peer before EAGAIN
};

}  // namespace rvt::core
