// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Options and operation flags of active and passive MSG endpoints, fi_endpoint(3).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/uio.h>

#include "ofi/compat.h"
#include "ofi/op_flags.h"

namespace rvt::ofi {

inline constexpr std::size_t kMsgMaxPairs = 65536;  // endpoints at an address, without a NIC
inline constexpr std::size_t kMsgMaxQueue = 8192;   // sends, and receives, of one endpoint
inline constexpr std::size_t kMsgMaxBytes = std::size_t{1} << 31;

/// Of buffers for a receive, which may be longer than any message, what one can fill.
/// @param most  Bytes of a message.
inline void cut_to_message(std::span<iovec> list, std::size_t most) noexcept {
    std::size_t left = most;
    for (iovec& part : list) {
        part.iov_len = std::min(part.iov_len, left);
        left -= part.iov_len;
    }
}

struct MsgSizes {
    std::size_t cm_data = 0;  // room for private data
    std::size_t tx = 0;
    std::size_t rx = 0;
    std::size_t message = 0;  // bytes of the longest, and
    std::size_t inject = 0;   // of one that is injected
};
int msg_getopt(int level, int option, void* value, std::size_t* bytes,
               const MsgSizes& sizes) noexcept;
int msg_setopt(int level, int option, const void* value, std::size_t bytes,
               const MsgSizes& sizes) noexcept;

/// The default flags that a connected endpoint can have.
OpFlags msg_op_flags() noexcept;
/// Whether an object that is opened can have these default flags. Says so in the log if not.
bool are_offered(const char* object, std::uint64_t asked, std::uint64_t offered);

}  // namespace rvt::ofi
