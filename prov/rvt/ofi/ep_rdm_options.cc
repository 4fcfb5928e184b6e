// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getopt and fi_setopt, fi_endpoint(3): what an option is, and which can be changed. An option
// that is not known answers -FI_ENOPROTOOPT, and one that cannot be set -FI_EOPNOTSUPP, which
// applications tell apart from failure.
#include <cstring>

#include "ofi/ep_rdm.h"

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

int put_bool(void* value, std::size_t* bytes, bool is_set) noexcept {
    const std::size_t room = *bytes;
    *bytes = sizeof is_set;
    if (room < sizeof is_set) {
        return -FI_ETOOSMALL;
    }
    std::memcpy(value, &is_set, sizeof is_set);
    return 0;
}

bool get_bool(const void* value, std::size_t bytes, bool& is_set) noexcept {
    if (bytes == sizeof(bool)) {
        std::memcpy(&is_set, value, sizeof is_set);
        return true;
    }
    int number = 0;
    if (bytes != sizeof number) {
        return false;
    }
    std::memcpy(&number, value, sizeof number);
    is_set = number != 0;
    return true;
}

/// Bytes of messages: the library's limit is the address space.
constexpr std::size_t kMaxMessage = SIZE_MAX >> 1;

/// Peers of this host are reached through shared memory and no other way: that cannot be forbidden.
int set_shared_memory(const void* value, std::size_t bytes) noexcept {
    bool is_permitted = false;
    if (!get_bool(value, bytes, is_permitted)) {
        return -FI_EINVAL;
    }
    return is_permitted ? 0 : -FI_EOPNOTSUPP;
}

}  // namespace

int ep_rdm_getopt(fid* self, int level, int option, void* value, std::size_t* bytes) noexcept {
    if (level != FI_OPT_ENDPOINT) {
        return -FI_ENOPROTOOPT;
    }
    const EpRdm& ep = EpRdm::from(self);
    if (is_hmem_option(option)) {
        return hmem_getopt(ep.hmem_options, ep.caps, option, value, bytes);
    }
    switch (option) {
        case FI_OPT_MIN_MULTI_RECV: return put_size(value, bytes, ep.engine->min_multi_recv());
        case FI_OPT_TX_SIZE: return put_size(value, bytes, ep.attr.tx_size);
        case FI_OPT_RX_SIZE: return put_size(value, bytes, ep.attr.rx_size);
        case kOptSharedMemoryPermitted: return put_bool(value, bytes, true);
        case kOptMaxMsgSize:
        case kOptMaxTaggedSize:
        case kOptMaxRmaSize: return put_size(value, bytes, kMaxMessage);
        case kOptMaxAtomicSize: return put_size(value, bytes, core::kMaxAtomicSize);
        case kOptInjectMsgSize:
        case kOptInjectTaggedSize:
        case kOptInjectRmaSize:
        case kOptInjectAtomicSize: return put_size(value, bytes, core::kMaxInjectSize);
        default: return -FI_ENOPROTOOPT;
    }
}

int ep_rdm_setopt(fid* self, int level, int option, const void* value, std::size_t bytes) noexcept {
    if (level != FI_OPT_ENDPOINT) {
        return refuse_option(level, option);
    }
    EpRdm& ep = EpRdm::from(self);
    if (is_hmem_option(option)) {
        return hmem_setopt(ep.hmem_options, ep.caps, option, value, bytes);
    }
    switch (option) {
        case FI_OPT_MIN_MULTI_RECV: {
            std::size_t size = 0;
            if (bytes != sizeof size) {
                return -FI_EINVAL;
            }
            std::memcpy(&size, value, sizeof size);
            ep.engine->set_min_multi_recv(size);
            return 0;
        }
        case kOptSharedMemoryPermitted: return set_shared_memory(value, bytes);
        default: return refuse_option(level, option);
    }
}

}  // namespace rvt::ofi
