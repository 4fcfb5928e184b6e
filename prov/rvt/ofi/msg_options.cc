// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// As for RDM endpoints: an option that is not known answers -FI_ENOPROTOOPT to get and
// -FI_EOPNOTSUPP to set.
#include "ofi/msg_options.h"

#include <cstring>

#include "ofi/ep_msg.h"
#include "ofi/info.h"

namespace rvt::ofi {
namespace {

int put_size(void* value, std::size_t* bytes, std::size_t size) noexcept {
    const std::size_t room = *bytes;
    *bytes = sizeof size;
    if (room < sizeof size) {
        return -FI_ETOOSMALL;
    }
    std::memcpy(value, &size, sizeof size);
    return 0;
}

}  // namespace

int msg_getopt(int level, int option, void* value, std::size_t* bytes,
               const MsgSizes& sizes) noexcept {
    if (level != FI_OPT_ENDPOINT) {
        return -FI_ENOPROTOOPT;
    }
    switch (option) {
        case FI_OPT_CM_DATA_SIZE: return put_size(value, bytes, sizes.cm_data);
        case FI_OPT_TX_SIZE: return put_size(value, bytes, sizes.tx);
        case FI_OPT_RX_SIZE: return put_size(value, bytes, sizes.rx);
        case kOptMaxMsgSize:
        case kOptMaxRmaSize: return put_size(value, bytes, kMsgMaxBytes);
        case kOptMaxAtomicSize: return put_size(value, bytes, sizeof(std::uint64_t));
        case kOptInjectMsgSize:
        case kOptInjectRmaSize: return put_size(value, bytes, kMsgInject);
        default: return -FI_ENOPROTOOPT;
    }
}

int msg_setopt(int level, int option, const void* value, std::size_t bytes,
               const MsgSizes& sizes) noexcept {
    // The room for private data is the messages'; asking for no more than that changes nothing.
    std::size_t size = 0;
    if (level != FI_OPT_ENDPOINT || option != FI_OPT_CM_DATA_SIZE || bytes != sizeof size) {
        return -FI_EOPNOTSUPP;
    }
    std::memcpy(&size, value, sizeof size);
    return size <= sizes.cm_data ? 0 : -FI_EINVAL;
}

int msg_get_op_flags(std::uint64_t tx, std::uint64_t rx, std::uint64_t* flags) noexcept {
    const bool is_tx = (*flags & FI_TRANSMIT) != 0;
    const bool is_rx = (*flags & FI_RECV) != 0;
    if (is_tx == is_rx) {
        return -FI_EINVAL;
    }
    *flags = is_tx ? tx : rx;
    return 0;
}

int msg_set_op_flags(std::uint64_t& tx, std::uint64_t& rx, const std::uint64_t* flags) noexcept {
    const bool is_tx = (*flags & FI_TRANSMIT) != 0;
    const bool is_rx = (*flags & FI_RECV) != 0;
    const std::uint64_t op_flags = *flags & ~std::uint64_t{FI_TRANSMIT | FI_RECV};
    const std::uint64_t known = is_tx ? kTxOpFlags & ~std::uint64_t{FI_MATCH_COMPLETE}
                                      : kRxOpFlags & ~std::uint64_t{FI_MULTI_RECV};
    if (is_tx == is_rx || (op_flags & ~known) != 0) {
        return -FI_EINVAL;
    }
    (is_tx ? tx : rx) = op_flags;
    return 0;
}

}  // namespace rvt::ofi
