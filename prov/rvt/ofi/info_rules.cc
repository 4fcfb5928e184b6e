// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The rules by which hints are judged: one row for each attribute, in the order in which a user
// would look for the reason. A hint of zero asks for nothing, fi_getinfo(3).
//
// Offers of the application are not judged: bits of mode and mr_mode that are not known here only
// say that the application could do more than is asked of it. Unknown bits in everything else are
// requests, and refused.
#include <rdma/fabric.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <string>
#include <string_view>

#include <strings.h>

#include "ofi/info.h"
#include "ofi/registry.h"
#include "util/local_addresses.h"
#include "util/params.h"

namespace rvt::ofi {
namespace {

enum class Kind : std::uint8_t {
    kAtMost,  // a number up to the offered
    kShared,  // the same, or FI_SHARED_CONTEXT where receive contexts can be shared
    kBits,    // a subset of the offered bits
    kEqual,   // the offered value
    kOneOf,   // a value whose bit is set in `allowed`
};

struct Rule {
    const char* hint;
    Kind kind;
    std::uint64_t (*value)(const fi_info&);  // of hints and of an offer
    fi_type type = FI_TYPE_VERSION;  // how the value is called; FI_TYPE_VERSION: a plain number
    std::uint64_t allowed = 0;
};

// One accessor reads an attribute that may be missing altogether.
#define RVT_VALUE(attr, field)                                                          \
    [](const fi_info& info) -> std::uint64_t {                                          \
        return info.attr != nullptr ? static_cast<std::uint64_t>(info.attr->field) : 0; \
    }
#define RVT_AT_MOST(attr, field)                                 \
    Rule {                                                       \
#attr "->" #field, Kind::kAtMost, RVT_VALUE(attr, field) \
    }
#define RVT_EQUAL(attr, field)                                  \
    Rule {                                                      \
#attr "->" #field, Kind::kEqual, RVT_VALUE(attr, field) \
    }
#define RVT_BITS(attr, field, type)                                  \
    Rule {                                                           \
#attr "->" #field, Kind::kBits, RVT_VALUE(attr, field), type \
    }
#define RVT_ONE_OF(attr, field, type, allowed)                                 \
    Rule {                                                                     \
#attr "->" #field, Kind::kOneOf, RVT_VALUE(attr, field), type, allowed \
    }

constexpr std::uint64_t bit(unsigned value) noexcept {
    return std::uint64_t{1} << value;
}

constexpr std::uint64_t kThreadings = bit(FI_THREAD_SAFE) | bit(FI_THREAD_FID) |
                                      bit(FI_THREAD_DOMAIN) | bit(FI_THREAD_COMPLETION) |
                                      bit(FI_THREAD_ENDPOINT);
constexpr std::uint64_t kProgresses = bit(FI_PROGRESS_AUTO) | bit(FI_PROGRESS_MANUAL);
constexpr std::uint64_t kRms = bit(FI_RM_DISABLED) | bit(FI_RM_ENABLED);
constexpr std::uint64_t kAvs = bit(FI_AV_MAP) | bit(FI_AV_TABLE);
constexpr std::uint64_t kFormats =
    bit(FI_SOCKADDR) | bit(FI_SOCKADDR_IN) | bit(FI_SOCKADDR_IN6) | bit(FI_ADDR_STR);

// fi_endpoint(3): a side's capabilities are a subset of the endpoint's. What only the other side or
// the domain can have asks nothing of it.
std::uint64_t tx_caps(const fi_info& info) noexcept {
    return info.tx_attr != nullptr ? info.tx_attr->caps & (kTxCaps | ~(kRxCaps | kDomainCaps)) : 0;
}
std::uint64_t rx_caps(const fi_info& info) noexcept {
    return info.rx_attr != nullptr ? info.rx_attr->caps & (kRxCaps | ~(kTxCaps | kDomainCaps)) : 0;
}

/// Bits of a tag. Whoever names capabilities without FI_TAGGED has none.
std::uint64_t tag_bits(const fi_info& info) noexcept {
    const bool has_tags = info.caps == 0 || (info.caps & FI_TAGGED) != 0;
    return info.ep_attr != nullptr && has_tags
               ? static_cast<std::uint64_t>(std::bit_width(info.ep_attr->mem_tag_format))
               : 0;
}

// clang-format off
constexpr std::array kRules{
    Rule{"ep_attr->type", Kind::kEqual, [](const fi_info& info) -> std::uint64_t {
             return info.ep_attr != nullptr ? info.ep_attr->type : 0; }, FI_TYPE_EP_TYPE},
    Rule{"caps", Kind::kBits, [](const fi_info& info) { return info.caps; }, FI_TYPE_CAPS},
    Rule{"addr_format", Kind::kOneOf, [](const fi_info& info) -> std::uint64_t { return info.addr_format; },
         FI_TYPE_ADDR_FORMAT, kFormats},
    RVT_EQUAL(ep_attr, protocol),
    RVT_AT_MOST(ep_attr, protocol_version),
    RVT_AT_MOST(ep_attr, max_msg_size),
    RVT_AT_MOST(ep_attr, max_order_raw_size),
    RVT_AT_MOST(ep_attr, max_order_war_size),
    RVT_AT_MOST(ep_attr, max_order_waw_size),
    Rule{"ep_attr->mem_tag_format", Kind::kAtMost, tag_bits},
    RVT_AT_MOST(ep_attr, tx_ctx_cnt),
    Rule{"ep_attr->rx_ctx_cnt", Kind::kShared, [](const fi_info& info) -> std::uint64_t {
             return info.ep_attr != nullptr ? info.ep_attr->rx_ctx_cnt : 0; }},
    RVT_AT_MOST(ep_attr, auth_key_size),
    Rule{"tx_attr->caps", Kind::kBits, tx_caps, FI_TYPE_CAPS},
    RVT_BITS(tx_attr, op_flags, FI_TYPE_OP_FLAGS),
    RVT_BITS(tx_attr, msg_order, FI_TYPE_MSG_ORDER),
    RVT_BITS(tx_attr, comp_order, FI_TYPE_MSG_ORDER),
    RVT_AT_MOST(tx_attr, inject_size),
    RVT_AT_MOST(tx_attr, size),
    RVT_AT_MOST(tx_attr, iov_limit),
    RVT_AT_MOST(tx_attr, rma_iov_limit),
    Rule{"rx_attr->caps", Kind::kBits, rx_caps, FI_TYPE_CAPS},
    RVT_BITS(rx_attr, op_flags, FI_TYPE_OP_FLAGS),
    RVT_BITS(rx_attr, msg_order, FI_TYPE_MSG_ORDER),
    RVT_BITS(rx_attr, comp_order, FI_TYPE_MSG_ORDER),
    RVT_AT_MOST(rx_attr, total_buffered_recv),
    RVT_AT_MOST(rx_attr, size),
    RVT_AT_MOST(rx_attr, iov_limit),
    RVT_ONE_OF(domain_attr, threading, FI_TYPE_THREADING, kThreadings),
    RVT_ONE_OF(domain_attr, control_progress, FI_TYPE_PROGRESS, kProgresses | bit(kProgressControlUnified)),
    RVT_ONE_OF(domain_attr, data_progress, FI_TYPE_PROGRESS, kProgresses),
    RVT_ONE_OF(domain_attr, resource_mgmt, FI_TYPE_CAPS, kRms),
    RVT_ONE_OF(domain_attr, av_type, FI_TYPE_AV_TYPE, kAvs),
    RVT_AT_MOST(domain_attr, mr_key_size),
    RVT_AT_MOST(domain_attr, cq_data_size),
    RVT_AT_MOST(domain_attr, cq_cnt),
    RVT_AT_MOST(domain_attr, ep_cnt),
    RVT_AT_MOST(domain_attr, tx_ctx_cnt),
    RVT_AT_MOST(domain_attr, rx_ctx_cnt),
    RVT_AT_MOST(domain_attr, max_ep_tx_ctx),
    RVT_AT_MOST(domain_attr, max_ep_rx_ctx),
    RVT_AT_MOST(domain_attr, max_ep_stx_ctx),
    RVT_AT_MOST(domain_attr, max_ep_srx_ctx),
    RVT_AT_MOST(domain_attr, cntr_cnt),
    RVT_AT_MOST(domain_attr, mr_iov_limit),
    RVT_BITS(domain_attr, caps, FI_TYPE_CAPS),
    RVT_AT_MOST(domain_attr, auth_key_size),
    RVT_AT_MOST(domain_attr, max_err_data),
    RVT_AT_MOST(domain_attr, mr_cnt),
    RVT_EQUAL(fabric_attr, prov_version),
};
// clang-format on

#undef RVT_VALUE
#undef RVT_AT_MOST
#undef RVT_EQUAL
#undef RVT_BITS
#undef RVT_ONE_OF

}  // namespace

std::string to_text(std::uint64_t value, fi_type type) {
    std::array<char, 512> text{};
    const auto narrow = static_cast<std::uint32_t>(value);
    if (type == FI_TYPE_VERSION) {
        return std::to_string(value);
    }
    const bool is_wide =
        type == FI_TYPE_CAPS || type == FI_TYPE_OP_FLAGS || type == FI_TYPE_MSG_ORDER;
    fi_tostr_r(text.data(), text.size(), is_wide ? static_cast<const void*>(&value) : &narrow,
               type);
    std::string named(text.data());
    // Bits without a name leave an empty text.
    if (named.empty() || named == "[ ]") {
        std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
        return text.data();
    }
    return named;
}

namespace {

std::string allowed_text(const Rule& rule) {
    std::string text;
    for (unsigned value = 0; value < 64; ++value) {
        if ((rule.allowed & bit(value)) != 0) {
            text += (text.empty() ? "" : " or ") +
                    to_text(value, rule.type == FI_TYPE_CAPS ? FI_TYPE_VERSION : rule.type);
        }
    }
    return text;
}

std::optional<Refusal> judge_count(const Rule& rule, std::uint64_t asked, std::uint64_t greatest) {
    if (asked <= greatest) {
        return std::nullopt;
    }
    return Refusal{rule.hint,
                   asked == FI_SHARED_CONTEXT ? "FI_SHARED_CONTEXT" : std::to_string(asked),
                   "at most " + std::to_string(greatest)};
}

std::optional<Refusal> judge_rule(const Rule& rule, const Offer& offer, const fi_info& hints) {
    const std::uint64_t asked = rule.value(hints);
    const std::uint64_t offered = rule.value(offer.info);
    switch (rule.kind) {
        case Kind::kShared:
            return asked == FI_SHARED_CONTEXT && offer.domain.max_ep_srx_ctx != 0
                       ? std::nullopt
                       : judge_count(rule, asked, offered);
        case Kind::kAtMost: return judge_count(rule, asked, offered);
        case Kind::kBits:
            if ((asked & ~offered) != 0) {
                return Refusal{rule.hint, to_text(asked & ~offered, rule.type),
                               to_text(offered, rule.type)};
            }
            break;
        case Kind::kEqual:
            if (asked != 0 && asked != offered) {
                return Refusal{rule.hint, to_text(asked, rule.type), to_text(offered, rule.type)};
            }
            break;
        case Kind::kOneOf:
            if (asked != 0 &&
                (asked >= 64 || (rule.allowed & bit(static_cast<unsigned>(asked))) == 0)) {
                return Refusal{
                    rule.hint,
                    to_text(asked, rule.type == FI_TYPE_CAPS ? FI_TYPE_VERSION : rule.type),
                    allowed_text(rule)};
            }
            break;
    }
    return std::nullopt;
}

std::optional<Refusal> judge_name(const char* hint, const char* asked, const char* offered) {
    if (asked != nullptr && std::string(asked) != offered) {
        return Refusal{hint, asked, offered};
    }
    return std::nullopt;
}

/// A name of an interface has become the offer's, if there is such an interface.
std::optional<Refusal> judge_domain_name(const char* asked, const char* offered) {
    std::optional<Refusal> refusal = judge_name("domain_attr->name", asked, offered);
    if (refusal && refusal->offered == kDomainName && util::param_is_set(util::ParamId::kRoce)) {
        refusal->offered += ", or an interface: " + util::network_interfaces(AF_UNSPEC);
    }
    return refusal;
}

/// Whether it is our name, in any case, alone or with what libfabric puts behind it:
/// "rvt;^ofi_rxm". "^ofi_rxm" alone names whoever is not that.
bool is_our_name(std::string_view asked) noexcept {
    const std::string_view first = asked.substr(0, asked.find(';'));
    const std::string_view own = kProvName;
    return first.starts_with('^') ||
           (first.size() == own.size() && strncasecmp(first.data(), own.data(), own.size()) == 0);
}

std::optional<Refusal> judge_prov_name(const char* asked) {
    return asked == nullptr || is_our_name(asked)
               ? std::nullopt
               : std::optional(Refusal{"fabric_attr->prov_name", asked, kProvName});
}

std::optional<Refusal> judge_names(const Offer& offer, const fi_info& hints) {
    if (hints.fabric_attr != nullptr) {
        if (auto refusal = judge_prov_name(hints.fabric_attr->prov_name)) {
            return refusal;
        }
        if (auto refusal = judge_name("fabric_attr->name", hints.fabric_attr->name, kFabricName)) {
            return refusal;
        }
    }
    return hints.domain_attr != nullptr
               ? judge_domain_name(hints.domain_attr->name, offer.domain.name)
               : std::nullopt;
}

/// Objects that hints refer to must be open ones of ours.
std::optional<Refusal> judge_objects(const Offer& offer, const fi_info& hints) {
    if (hints.fabric_attr != nullptr && hints.fabric_attr->fabric != nullptr &&
        registry::find(&hints.fabric_attr->fabric->fid, FI_CLASS_FABRIC, kFabricName) == nullptr) {
        return Refusal{"fabric_attr->fabric", "an object that is not open here", kFabricName};
    }
    if (hints.handle != nullptr &&
        (offer.ep.type != FI_EP_MSG ||
         registry::find(hints.handle, FI_CLASS_PEP, offer.domain.name) == nullptr)) {
        return Refusal{"handle", "an endpoint to take over",
                       "for FI_EP_MSG without a NIC a passive one that is open here, else NULL"};
    }
    return std::nullopt;
}

/// From version 1.5 on the two old values stand alone; before, there were no others.
std::optional<Refusal> judge_mr_mode(const Offer& offer, std::uint32_t version,
                                     const fi_info& hints) {
    const int asked = hints.domain_attr != nullptr ? hints.domain_attr->mr_mode : 0;
    const bool has_old = (asked & (kMrBasic | kMrScalable)) != 0;
    const bool is_old = asked == kMrBasic || asked == kMrScalable;
    if ((has_old && !is_old) || (version < kVersionMrModeBits && asked != 0 && !is_old)) {
        return Refusal{"domain_attr->mr_mode", std::to_string(asked),
                       version < kVersionMrModeBits
                           ? "FI_MR_BASIC or FI_MR_SCALABLE"
                           : "FI_MR_BASIC, FI_MR_SCALABLE, or bits without these"};
    }
    if ((offer.needed_mr_mode & (is_old ? -1 : ~asked)) != 0) {
        return Refusal{"domain_attr->mr_mode",
                       to_text(static_cast<unsigned>(asked), FI_TYPE_MR_MODE),
                       to_text(static_cast<unsigned>(offer.needed_mr_mode), FI_TYPE_MR_MODE)};
    }
    if ((hints.caps & kMemoryCaps) != 0 && !allows_memory(offer, version, &hints)) {
        return Refusal{"domain_attr->mr_mode",
                       to_text(static_cast<unsigned>(asked), FI_TYPE_MR_MODE),
                       "remote memory with " +
                           to_text(static_cast<unsigned>(offer.memory_mr_mode), FI_TYPE_MR_MODE)};
    }
    if ((hints.caps & FI_HMEM) != 0 && hints.domain_attr != nullptr && (asked & FI_MR_HMEM) == 0) {
        return Refusal{"domain_attr->mr_mode",
                       to_text(static_cast<unsigned>(asked), FI_TYPE_MR_MODE),
                       "FI_HMEM with FI_MR_HMEM"};
    }
    return std::nullopt;
}

/// The sides of an endpoint cannot do more than the endpoint.
std::optional<Refusal> judge_sides(const fi_info& hints) {
    if (hints.caps == 0) {
        return std::nullopt;
    }
    constexpr std::uint64_t kModifiers =
        FI_READ | FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
    const std::uint64_t tx =
        hints.tx_attr != nullptr ? hints.tx_attr->caps & ~hints.caps & ~kModifiers : 0;
    if (tx != 0) {
        return Refusal{"tx_attr->caps", to_text(tx, FI_TYPE_CAPS), "what hints->caps names"};
    }
    const std::uint64_t rx =
        hints.rx_attr != nullptr ? hints.rx_attr->caps & ~hints.caps & ~kModifiers : 0;
    if (rx != 0) {
        return Refusal{"rx_attr->caps", to_text(rx, FI_TYPE_CAPS), "what hints->caps names"};
    }
    return std::nullopt;
}

}  // namespace

std::optional<Refusal> judge(const Offer& offer, std::uint32_t version, const fi_info& hints) {
    if (auto refusal = judge_names(offer, hints)) {
        return refusal;
    }
    for (const Rule& rule : kRules) {
        if (auto refusal = judge_rule(rule, offer, hints)) {
            return refusal;
        }
    }
    if (auto refusal = judge_mr_mode(offer, version, hints)) {
        return refusal;
    }
    if (auto refusal = judge_sides(hints)) {
        return refusal;
    }
    return judge_objects(offer, hints);
}

}  // namespace rvt::ofi
