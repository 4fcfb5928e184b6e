// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The answer of fi_getinfo. It is released piece by piece by the application's fi_freeinfo, which
// may belong to a newer libfabric than our headers: each structure has room behind it, zeroed, for
// fields that came later.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ofi/address_format.h"
#include "ofi/info.h"
#include "ofi/registry.h"
#include "util/params.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kMessageCaps = FI_MSG | FI_TAGGED;
constexpr std::uint64_t kMessageModifiers = FI_SEND | FI_RECV;

/// Capabilities for those who name them. An event costs each access that its initiator carries out
/// alone a message to the target, which has to take it.
constexpr std::uint64_t kForWhoAsks = FI_RMA_EVENT | kTaggedDirectedRecv;

template <class T>
T* make_padded() noexcept {
    return static_cast<T*>(std::calloc(1, sizeof(T) + kTailRoom));
}

template <class T>
T pick(T asked, T otherwise) noexcept {
    return asked != T{} ? asked : otherwise;
}

/// Capabilities of an answer: what was asked for, with the modifiers that a bare request implies.
std::uint64_t answer_caps(const Offer& offer, std::uint32_t version,
                          const fi_info* hints) noexcept {
    if (hints == nullptr || hints->caps == 0) {
        const std::uint64_t unusable =
            allows_memory(offer, version, hints) ? 0 : kMemoryCaps | kMemoryModifiers;
        const std::uint64_t devices = offer.is_for_devices ? 0 : FI_HMEM;
        const bool names_some = hints != nullptr && hints->rx_attr != nullptr;
        const std::uint64_t unnamed = kForWhoAsks & ~(names_some ? hints->rx_attr->caps : 0);
        return offer.info.caps & ~(unnamed | devices | unusable);
    }
    std::uint64_t caps = hints->caps;
    if ((caps & kMessageCaps) != 0 && (caps & kMessageModifiers) == 0) {
        caps |= kMessageModifiers;
    }
    if ((caps & kMemoryCaps) != 0 && (caps & kMemoryModifiers) == 0) {
        caps |= kMemoryModifiers;
    }
    return caps;
}

void build_tx(fi_tx_attr& tx, const Offer& offer, const fi_tx_attr* asked,
              std::uint64_t caps) noexcept {
    tx = offer.tx;
    tx.msg_order &= ~offer.order_for_who_asks;
    tx.caps = caps & kTxCaps;
    tx.op_flags = 0;
    tx.size = std::min(offer.default_queue, offer.tx.size);
    if (asked == nullptr) {
        return;
    }
    if (asked->caps != 0) {
        tx.caps &= asked->caps | FI_SEND | FI_READ | FI_WRITE;
    }
    tx.op_flags = asked->op_flags;
    tx.msg_order = pick(asked->msg_order, tx.msg_order);
    tx.size = pick(asked->size, tx.size);
}

void build_rx(fi_rx_attr& rx, const Offer& offer, const fi_rx_attr* asked,
              std::uint64_t caps) noexcept {
    rx = offer.rx;
    rx.msg_order &= ~offer.order_for_who_asks;
    rx.caps = caps & kRxCaps;
    rx.op_flags = 0;
    rx.size = std::min(offer.default_queue, offer.rx.size);
    rx.total_buffered_recv =
        std::min(offer.rx.total_buffered_recv,
                 static_cast<std::size_t>(util::param_number(util::ParamId::kUnexpectedBytes)));
    if (asked == nullptr) {
        return;
    }
    if (asked->caps != 0) {
        rx.caps &= asked->caps | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
    }
    rx.op_flags = asked->op_flags;
    rx.msg_order = pick(asked->msg_order, rx.msg_order);
    rx.size = pick(asked->size, rx.size);
    rx.total_buffered_recv = pick(asked->total_buffered_recv, rx.total_buffered_recv);
}

/// The sizes up to which order holds mean something only where that order was given.
void build_ep(fi_ep_attr& ep, const Offer& offer, const fi_ep_attr* asked,
              std::uint64_t order) noexcept {
    ep = offer.ep;
    ep.auth_key = nullptr;
    if (asked != nullptr) {
        if (ep.mem_tag_format != 0) {
            ep.mem_tag_format = pick(asked->mem_tag_format, ep.mem_tag_format);
        }
        ep.rx_ctx_cnt = asked->rx_ctx_cnt == FI_SHARED_CONTEXT ? asked->rx_ctx_cnt : ep.rx_ctx_cnt;
    }
    const auto size_if = [order](std::uint64_t bits, std::size_t size) {
        return (order & bits) != 0 ? size : 0;
    };
    ep.max_order_raw_size =
        size_if(FI_ORDER_RAW | FI_ORDER_RMA_RAW | FI_ORDER_ATOMIC_RAW, ep.max_order_raw_size);
    ep.max_order_war_size =
        size_if(FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR, ep.max_order_war_size);
    ep.max_order_waw_size =
        size_if(FI_ORDER_WAW | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_WAW, ep.max_order_waw_size);
}

void build_domain(fi_domain_attr& domain, const Offer& offer, const fi_domain_attr* asked,
                  std::uint64_t caps) noexcept {
    domain = offer.domain;
    domain.name = strdup(offer.domain.name);
    domain.caps = caps & kDomainCaps;
    if (asked == nullptr) {
        return;
    }
    domain.threading = pick(asked->threading, domain.threading);
    domain.control_progress = pick(asked->control_progress, domain.control_progress);
    domain.data_progress = pick(asked->data_progress, domain.data_progress);
    domain.resource_mgmt = pick(asked->resource_mgmt, domain.resource_mgmt);
    domain.av_type = pick(asked->av_type, domain.av_type);
}

void build_fabric(fi_fabric_attr& fabric, std::uint32_t version,
                  const fi_fabric_attr* asked) noexcept {
    fabric.name = strdup(kFabricName);
    fabric.api_version = version;
    fabric.fabric = reinterpret_cast<fid_fabric*>(registry::first(FI_CLASS_FABRIC, kFabricName));
    if (asked != nullptr && asked->fabric != nullptr) {
        fabric.fabric = asked->fabric;
    }
    // prov_name and prov_version are libfabric's to fill in.
}

bool build_addresses(fi_info& info, const InfoAddresses& addresses) noexcept {
    info.addr_format = addresses.format;
    info.src_addr = new_formatted_address(addresses.format, addresses.source, &info.src_addrlen);
    if (addresses.dest) {
        info.dest_addr =
            new_formatted_address(addresses.format, *addresses.dest, &info.dest_addrlen);
    }
    return info.src_addr != nullptr && (info.dest_addr != nullptr || !addresses.dest);
}

bool make_parts(fi_info& info) noexcept {
    info.tx_attr = make_padded<fi_tx_attr>();
    info.rx_attr = make_padded<fi_rx_attr>();
    info.ep_attr = make_padded<fi_ep_attr>();
    info.domain_attr = make_padded<fi_domain_attr>();
    info.fabric_attr = make_padded<fi_fabric_attr>();
    return info.tx_attr != nullptr && info.rx_attr != nullptr && info.ep_attr != nullptr &&
           info.domain_attr != nullptr && info.fabric_attr != nullptr;
}

}  // namespace

bool allows_memory(const Offer& offer, std::uint32_t version, const fi_info* hints) noexcept {
    if (hints == nullptr || hints->domain_attr == nullptr) {
        return true;
    }
    const int asked = hints->domain_attr->mr_mode;
    if (asked == kMrBasic || (version < kVersionMrModeBits && asked == kMrUnspec)) {
        return true;
    }
    return (offer.memory_mr_mode & ~asked) == 0;
}

int answer_mr_mode(const Offer& offer, std::uint32_t version, const fi_info* hints) noexcept {
    const bool is_asked = hints != nullptr && hints->domain_attr != nullptr;
    const int asked = is_asked ? hints->domain_attr->mr_mode : 0;
    if (asked == kMrBasic || asked == kMrScalable) {
        return asked;
    }
    if (version < kVersionMrModeBits) {
        return offer.memory_mr_mode != 0 ? kMrBasic : kMrScalable;
    }
    // Both spare work where the application can do with them: keys need no translation, addresses
    // no base.
    // Memory of a device is known by the descriptor of its region alone.
    const bool has_devices =
        offer.is_for_devices || (hints != nullptr && (hints->caps & FI_HMEM) != 0);
    const int device = has_devices ? FI_MR_HMEM : 0;
    return (asked & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)) | offer.needed_mr_mode |
           (is_asked ? 0 : offer.memory_mr_mode) | device;
}

fi_info* build_info(const Offer& offer, std::uint32_t version, const fi_info* hints,
                    const InfoAddresses& addresses) {
    auto* info = make_padded<fi_info>();
    if (info == nullptr || !make_parts(*info)) {
        free_info(info);
        return nullptr;
    }
    info->caps = answer_caps(offer, version, hints);
    info->handle = hints != nullptr ? hints->handle : nullptr;
    info->mode = offer.info.mode & (hints != nullptr ? hints->mode : ~std::uint64_t{0});
    build_tx(*info->tx_attr, offer, hints != nullptr ? hints->tx_attr : nullptr, info->caps);
    build_rx(*info->rx_attr, offer, hints != nullptr ? hints->rx_attr : nullptr, info->caps);
    build_ep(*info->ep_attr, offer, hints != nullptr ? hints->ep_attr : nullptr,
             info->tx_attr->msg_order);
    build_domain(*info->domain_attr, offer, hints != nullptr ? hints->domain_attr : nullptr,
                 info->caps);
    info->rx_attr->mode &= info->mode;
    info->domain_attr->mr_mode = answer_mr_mode(offer, version, hints);
    build_fabric(*info->fabric_attr, version, hints != nullptr ? hints->fabric_attr : nullptr);
    if (info->domain_attr->name == nullptr || info->fabric_attr->name == nullptr ||
        !build_addresses(*info, addresses)) {
        free_info(info);
        return nullptr;
    }
    name_domain(*info, offer, hints);
    return info;
}

void free_info(fi_info* info) noexcept {
    while (info != nullptr) {
        fi_info* next = info->next;
        if (info->domain_attr != nullptr) {
            std::free(info->domain_attr->name);
        }
        if (info->fabric_attr != nullptr) {
            std::free(info->fabric_attr->name);
            std::free(info->fabric_attr->prov_name);
        }
        for (void* part : {static_cast<void*>(info->tx_attr), static_cast<void*>(info->rx_attr),
                           static_cast<void*>(info->ep_attr), static_cast<void*>(info->domain_attr),
                           static_cast<void*>(info->fabric_attr), info->src_addr, info->dest_addr,
                           static_cast<void*>(info)}) {
            std::free(part);
        }
        info = next;
    }
}

}  // namespace rvt::ofi
