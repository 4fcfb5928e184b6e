// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// As for RDM endpoints: an option that is not known answers -FI_ENOPROTOOPT, and one that cannot
// be set -FI_EOPNOTSUPP.
#include "ofi/msg_options.h"

#include <cstring>

#include "ofi/ep_msg.h"
#include "ofi/info.h"
#include "util/log.h"

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
        case kOptMaxRmaSize: return put_size(value, bytes, sizes.message);
        case kOptMaxAtomicSize: return put_size(value, bytes, sizeof(std::uint64_t));
        case kOptInjectMsgSize:
        case kOptInjectRmaSize: return put_size(value, bytes, sizes.inject);
        default: return -FI_ENOPROTOOPT;
    }
}

int msg_setopt(int level, int option, const void* value, std::size_t bytes,
               const MsgSizes& sizes) noexcept {
    // The room for private data is the messages'; asking for no more than that changes nothing.
    std::size_t size = 0;
    if (level != FI_OPT_ENDPOINT || option != FI_OPT_CM_DATA_SIZE || bytes != sizeof size) {
        return refuse_option(level, option);
    }
    std::memcpy(&size, value, sizeof size);
    return size <= sizes.cm_data ? 0 : -FI_EINVAL;
}

OpFlags msg_op_flags() noexcept {
    return {.tx = kTxOpFlags & ~std::uint64_t{FI_MATCH_COMPLETE},
            .rx = kRxOpFlags & ~std::uint64_t{FI_MULTI_RECV}};
}

bool are_offered(const char* object, std::uint64_t asked, std::uint64_t offered) {
    const std::uint64_t others = asked & ~offered;
    if (others != 0) {
        RVT_WARN(kEpCtrl, "cannot open %s: op_flags %s asked, %s offered", object,
                 to_text(others, FI_TYPE_OP_FLAGS).c_str(),
                 to_text(offered, FI_TYPE_OP_FLAGS).c_str());
    }
    return others == 0;
}

}  // namespace rvt::ofi
