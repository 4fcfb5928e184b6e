// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Names of hints and of the constants that they take.
#include "rvt_info/hints.h"

#include <charconv>
#include <cstring>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

namespace rvt::info {
namespace {

struct Constant {
    std::string_view name;
    std::uint64_t value;
};

#define RVT_NAMED(name) \
    { #name, static_cast < std::uint64_t>(name) }
// clang-format off
const Constant kConstants[] = {
    RVT_NAMED(FI_MSG), RVT_NAMED(FI_RMA), RVT_NAMED(FI_TAGGED), RVT_NAMED(FI_ATOMIC),
    RVT_NAMED(FI_MULTICAST), RVT_NAMED(FI_COLLECTIVE), RVT_NAMED(FI_READ), RVT_NAMED(FI_WRITE),
    RVT_NAMED(FI_RECV), RVT_NAMED(FI_SEND), RVT_NAMED(FI_REMOTE_READ), RVT_NAMED(FI_REMOTE_WRITE),
    RVT_NAMED(FI_MULTI_RECV), RVT_NAMED(FI_TRIGGER), RVT_NAMED(FI_FENCE), RVT_NAMED(FI_HMEM),
    RVT_NAMED(FI_RMA_PMEM), RVT_NAMED(FI_SOURCE_ERR), RVT_NAMED(FI_LOCAL_COMM),
    RVT_NAMED(FI_REMOTE_COMM), RVT_NAMED(FI_SHARED_AV), RVT_NAMED(FI_RMA_EVENT),
    RVT_NAMED(FI_SOURCE), RVT_NAMED(FI_NAMED_RX_CTX), RVT_NAMED(FI_DIRECTED_RECV),
    RVT_NAMED(FI_CONTEXT), RVT_NAMED(FI_CONTEXT2), RVT_NAMED(FI_MSG_PREFIX),
    RVT_NAMED(FI_ASYNC_IOV), RVT_NAMED(FI_RX_CQ_DATA), RVT_NAMED(FI_RESTRICTED_COMP),
    RVT_NAMED(FI_COMPLETION), RVT_NAMED(FI_INJECT), RVT_NAMED(FI_INJECT_COMPLETE),
    RVT_NAMED(FI_TRANSMIT_COMPLETE), RVT_NAMED(FI_DELIVERY_COMPLETE),
    RVT_NAMED(FI_COMMIT_COMPLETE), RVT_NAMED(FI_MATCH_COMPLETE),
    RVT_NAMED(FI_ORDER_RAR), RVT_NAMED(FI_ORDER_RAW), RVT_NAMED(FI_ORDER_RAS),
    RVT_NAMED(FI_ORDER_WAR), RVT_NAMED(FI_ORDER_WAW), RVT_NAMED(FI_ORDER_WAS),
    RVT_NAMED(FI_ORDER_SAR), RVT_NAMED(FI_ORDER_SAW), RVT_NAMED(FI_ORDER_SAS),
    RVT_NAMED(FI_ORDER_RMA_RAR), RVT_NAMED(FI_ORDER_RMA_RAW),
    RVT_NAMED(FI_ORDER_RMA_WAR), RVT_NAMED(FI_ORDER_RMA_WAW),
    RVT_NAMED(FI_ORDER_ATOMIC_RAR), RVT_NAMED(FI_ORDER_ATOMIC_RAW),
    RVT_NAMED(FI_ORDER_ATOMIC_WAR), RVT_NAMED(FI_ORDER_ATOMIC_WAW),
    RVT_NAMED(FI_EP_MSG), RVT_NAMED(FI_EP_DGRAM), RVT_NAMED(FI_EP_RDM),
    RVT_NAMED(FI_PROTO_RDMA_CM_IB_RC), RVT_NAMED(FI_PROTO_IWARP), RVT_NAMED(FI_PROTO_IB_UD),
    RVT_NAMED(FI_SOCKADDR), RVT_NAMED(FI_SOCKADDR_IN), RVT_NAMED(FI_SOCKADDR_IN6),
    RVT_NAMED(FI_SOCKADDR_IB), RVT_NAMED(FI_ADDR_STR),
    RVT_NAMED(FI_THREAD_SAFE), RVT_NAMED(FI_THREAD_FID), RVT_NAMED(FI_THREAD_DOMAIN),
    RVT_NAMED(FI_THREAD_COMPLETION), RVT_NAMED(FI_THREAD_ENDPOINT),
    RVT_NAMED(FI_PROGRESS_AUTO), RVT_NAMED(FI_PROGRESS_MANUAL),
    RVT_NAMED(FI_RM_ENABLED), RVT_NAMED(FI_RM_DISABLED),
    RVT_NAMED(FI_AV_MAP), RVT_NAMED(FI_AV_TABLE),
    RVT_NAMED(FI_MR_LOCAL), RVT_NAMED(FI_MR_RAW), RVT_NAMED(FI_MR_VIRT_ADDR),
    RVT_NAMED(FI_MR_ALLOCATED), RVT_NAMED(FI_MR_PROV_KEY), RVT_NAMED(FI_MR_MMU_NOTIFY),
    RVT_NAMED(FI_MR_RMA_EVENT), RVT_NAMED(FI_MR_ENDPOINT), RVT_NAMED(FI_MR_HMEM),
    // By number, what not every libfabric from 1.17 to 2.x has a name for.
    {"FI_MR_BASIC", 1}, {"FI_MR_SCALABLE", 2},
    {"FI_ORDER_NONE", 0}, {"FI_ORDER_STRICT", 0x1ff}, {"FI_ORDER_DATA", 1ull << 16},
    {"FI_TAGGED_DIRECTED_RECV", 1ull << 45}, {"FI_PROGRESS_CONTROL_UNIFIED", 3},
    {"FI_SHARED_CONTEXT", SIZE_MAX},
};
// clang-format on
#undef RVT_NAMED

struct Field {
    std::string_view name;
    void (*set)(fi_info&, std::uint64_t);
};

#define RVT_FIELD(attr, field)                                                                   \
    {                                                                                            \
#attr "->" #field,                                                                       \
            [](fi_info & info,                                                                   \
               std::uint64_t                                                                     \
                   value) { info.attr->field = static_cast<decltype(info.attr->field)>(value); } \
    }
// clang-format off
const Field kFields[] = {
    {"caps", [](fi_info& info, std::uint64_t value) { info.caps = value; }},
    {"mode", [](fi_info& info, std::uint64_t value) { info.mode = value; }},
    {"addr_format",
     [](fi_info& info, std::uint64_t value) { info.addr_format = static_cast<std::uint32_t>(value); }},
    RVT_FIELD(ep_attr, type), RVT_FIELD(ep_attr, protocol), RVT_FIELD(ep_attr, protocol_version),
    RVT_FIELD(ep_attr, max_msg_size), RVT_FIELD(ep_attr, max_order_raw_size),
    RVT_FIELD(ep_attr, max_order_war_size), RVT_FIELD(ep_attr, max_order_waw_size),
    RVT_FIELD(ep_attr, mem_tag_format), RVT_FIELD(ep_attr, tx_ctx_cnt),
    RVT_FIELD(ep_attr, rx_ctx_cnt), RVT_FIELD(ep_attr, auth_key_size),
    RVT_FIELD(tx_attr, caps), RVT_FIELD(tx_attr, op_flags), RVT_FIELD(tx_attr, msg_order),
    RVT_FIELD(tx_attr, comp_order), RVT_FIELD(tx_attr, inject_size), RVT_FIELD(tx_attr, size),
    RVT_FIELD(tx_attr, iov_limit), RVT_FIELD(tx_attr, rma_iov_limit), RVT_FIELD(tx_attr, tclass),
    RVT_FIELD(rx_attr, caps), RVT_FIELD(rx_attr, op_flags), RVT_FIELD(rx_attr, msg_order),
    RVT_FIELD(rx_attr, comp_order), RVT_FIELD(rx_attr, total_buffered_recv),
    RVT_FIELD(rx_attr, size), RVT_FIELD(rx_attr, iov_limit),
    RVT_FIELD(domain_attr, threading), RVT_FIELD(domain_attr, control_progress),
    RVT_FIELD(domain_attr, data_progress), RVT_FIELD(domain_attr, resource_mgmt),
    RVT_FIELD(domain_attr, av_type), RVT_FIELD(domain_attr, mr_mode),
    RVT_FIELD(domain_attr, mr_key_size), RVT_FIELD(domain_attr, cq_data_size),
    RVT_FIELD(domain_attr, cq_cnt), RVT_FIELD(domain_attr, ep_cnt),
    RVT_FIELD(domain_attr, max_ep_tx_ctx), RVT_FIELD(domain_attr, max_ep_rx_ctx),
    RVT_FIELD(domain_attr, max_ep_stx_ctx), RVT_FIELD(domain_attr, max_ep_srx_ctx),
    RVT_FIELD(domain_attr, cntr_cnt), RVT_FIELD(domain_attr, mr_iov_limit),
    RVT_FIELD(domain_attr, caps), RVT_FIELD(domain_attr, mr_cnt),
    RVT_FIELD(domain_attr, tx_ctx_cnt), RVT_FIELD(domain_attr, rx_ctx_cnt),
    RVT_FIELD(domain_attr, auth_key_size), RVT_FIELD(domain_attr, max_err_data),
    RVT_FIELD(domain_attr, tclass),
    RVT_FIELD(fabric_attr, prov_version),
};
// clang-format on
#undef RVT_FIELD

/// "tx.size" and "tx_attr.size" mean "tx_attr->size".
std::string full_name(std::string_view name) {
    std::string full(name);
    const std::size_t dot = full.find('.');
    if (dot != std::string::npos) {
        full.replace(dot, 1, "->");
    }
    const std::size_t arrow = full.find("->");
    if (arrow != std::string::npos && full.substr(0, arrow).find("_attr") == std::string::npos) {
        full.insert(arrow, "_attr");
    }
    return full;
}

bool parse_constant(std::string_view text, std::uint64_t& value) {
    const bool is_hex = text.starts_with("0x");
    const std::string_view digits = is_hex ? text.substr(2) : text;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, is_hex ? 16 : 10);
    if (error == std::errc{} && end == digits.data() + digits.size()) {
        return true;
    }
    for (const Constant& constant : kConstants) {
        if (constant.name == text || constant.name.substr(3) == text) {
            value = constant.value;
            return true;
        }
    }
    return false;
}

bool parse_value(std::string_view text, std::uint64_t& value, std::string& error) {
    value = 0;
    while (!text.empty()) {
        const std::string_view one = text.substr(0, text.find('|'));
        std::uint64_t bits = 0;
        if (!parse_constant(one, bits)) {
            error = "neither a number nor a constant: " + std::string(one);
            return false;
        }
        value |= bits;
        text.remove_prefix(std::min(text.size(), one.size() + 1));
    }
    return true;
}

bool set_name(fi_info& info, std::string_view name, std::string_view value) {
    char** place = name == "domain_attr->name"   ? &info.domain_attr->name
                   : name == "fabric_attr->name" ? &info.fabric_attr->name
                                                 : nullptr;
    if (place == nullptr) {
        return false;
    }
    free(*place);
    *place = strdup(std::string(value).c_str());
    return true;
}

bool set_hint(fi_info& info, std::string_view hint, std::string& error) {
    const std::size_t equals = hint.find('=');
    if (equals == std::string_view::npos) {
        error = "no value: " + std::string(hint);
        return false;
    }
    const std::string name = full_name(hint.substr(0, equals));
    const std::string_view text = hint.substr(equals + 1);
    if (set_name(info, name, text)) {
        return true;
    }
    for (const Field& field : kFields) {
        if (field.name == name) {
            std::uint64_t value = 0;
            if (!parse_value(text, value, error)) {
                return false;
            }
            field.set(info, value);
            return true;
        }
    }
    error = "no such hint: " + name;
    return false;
}

}  // namespace

Info parse_hints(std::string_view text, std::string& error) {
    Info hints(fi_allocinfo());
    if (!hints) {
        error = "out of memory";
        return nullptr;
    }
    hints->fabric_attr->prov_name = strdup("rvt");
    while (!text.empty()) {
        const std::string_view one = text.substr(0, text.find(','));
        if (!one.empty() && !set_hint(*hints, one, error)) {
            return nullptr;
        }
        text.remove_prefix(std::min(text.size(), one.size() + 1));
    }
    return hints;
}

std::string hint_names() {
    std::string names = "domain_attr->name\nfabric_attr->name\n";
    for (const Field& field : kFields) {
        names += std::string(field.name) + "\n";
    }
    return names;
}

}  // namespace rvt::info
