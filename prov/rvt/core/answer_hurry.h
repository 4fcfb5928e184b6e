// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How long the answers of a pair may wait for something that leaves to the same peer.
#pragma once

#include <cstdint>

namespace rvt::core {

/// Each is more urgent than the one before it. The times are those of core/device.h.
enum class AnswerHurry : std::uint8_t {
    kNone,   // nobody waits for them: kLazyUs, or kLazyPolls calls of Device::progress()
    kSoon,   // kAnswerUs, or kAnswerPolls calls
    kReply,  // kReplyPolls calls
    kPoll,   // they leave at the end of the call that has brought the question
    kNow,    // they leave behind the packet at hand
};

}  // namespace rvt::core
