// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): of each attribute all that is offered may be asked for, and nothing beyond it.
// What is neither kept nor refused is said in the answer.
#include <netinet/in.h>

#include <iterator>
#include <optional>
#include <string>

#include "ofi/compat.h"
#include "ofi/ep_dgram.h"
#include "ofi/fixture.h"
#include "ofi/info.h"
#include "ofi/msg_nic.h"

using namespace rvt::test;

namespace {

using rvt::ofi::Offer;
using rvt::ofi::Refusal;

/// An attribute of which there is a greatest value.
struct Limit {
    const char* hint;
    std::uint64_t (*most)(const fi_info& offer);
    void (*ask)(fi_info& hints, std::uint64_t value);
};

#define RVT_ASK(attr, field)                                               \
    [](fi_info& info, std::uint64_t value) {                               \
        info.attr->field = static_cast<decltype(info.attr->field)>(value); \
    }
#define RVT_MOST(attr, field)                                                                     \
    Limit {                                                                                       \
#attr "->" #field,                                                                        \
            [](const fi_info& info) -> std::uint64_t { return info.attr->field; }, RVT_ASK(attr,  \
                                                                                           field) \
    }
#define RVT_LAST(attr, field, value)                                                    \
    Limit {                                                                             \
#attr "->" #field,                                                              \
            [](const fi_info&) -> std::uint64_t { return value; }, RVT_ASK(attr, field) \
    }
// clang-format off
constexpr Limit kLimits[] = {
    RVT_MOST(ep_attr, protocol), RVT_MOST(ep_attr, protocol_version), RVT_MOST(ep_attr, max_msg_size),
    RVT_MOST(ep_attr, max_order_raw_size), RVT_MOST(ep_attr, max_order_war_size),
    RVT_MOST(ep_attr, max_order_waw_size), RVT_MOST(ep_attr, tx_ctx_cnt), RVT_MOST(ep_attr, rx_ctx_cnt),
    RVT_MOST(ep_attr, auth_key_size), RVT_MOST(tx_attr, inject_size), RVT_MOST(tx_attr, size),
    RVT_MOST(tx_attr, iov_limit), RVT_MOST(tx_attr, rma_iov_limit), RVT_MOST(rx_attr, total_buffered_recv),
    RVT_MOST(rx_attr, size), RVT_MOST(rx_attr, iov_limit), RVT_MOST(domain_attr, mr_key_size),
    RVT_MOST(domain_attr, cq_data_size), RVT_MOST(domain_attr, cq_cnt), RVT_MOST(domain_attr, ep_cnt),
    RVT_MOST(domain_attr, tx_ctx_cnt), RVT_MOST(domain_attr, rx_ctx_cnt),
    RVT_MOST(domain_attr, max_ep_tx_ctx), RVT_MOST(domain_attr, max_ep_rx_ctx),
    RVT_MOST(domain_attr, max_ep_stx_ctx), RVT_MOST(domain_attr, max_ep_srx_ctx),
    RVT_MOST(domain_attr, cntr_cnt), RVT_MOST(domain_attr, mr_iov_limit),
    RVT_MOST(domain_attr, auth_key_size), RVT_MOST(domain_attr, max_err_data), RVT_MOST(domain_attr, mr_cnt),
    RVT_MOST(fabric_attr, prov_version),
    RVT_LAST(domain_attr, threading, FI_THREAD_ENDPOINT),
    RVT_LAST(domain_attr, control_progress, rvt::ofi::kProgressControlUnified),
    RVT_LAST(domain_attr, data_progress, FI_PROGRESS_MANUAL),
    RVT_LAST(domain_attr, resource_mgmt, FI_RM_ENABLED), RVT_LAST(domain_attr, av_type, FI_AV_TABLE),
};

/// An attribute of bits.
constexpr Limit kBits[] = {
    {"caps", [](const fi_info& info) { return info.caps; }, [](fi_info& info, std::uint64_t value) { info.caps = value; }},
    RVT_MOST(tx_attr, op_flags), RVT_MOST(tx_attr, msg_order), RVT_MOST(tx_attr, comp_order),
    RVT_MOST(rx_attr, op_flags), RVT_MOST(rx_attr, msg_order), RVT_MOST(rx_attr, comp_order),
    RVT_MOST(domain_attr, caps),
};
// clang-format on

#undef RVT_ASK
#undef RVT_MOST
#undef RVT_LAST

/// What is offered of each type, without a NIC and with one.
template <class Visit>
void for_each_offer(Visit visit) {
    rvt::ofi::set_dgram_hosts(
        {.bytes_of = [](const rvt::util::SockAddr&) { return rvt::Result<std::uint32_t>(1000); }});
    const rvt::util::SockAddr address{.family = AF_INET, .ip = {127, 0, 0, 1}};
    for (const rvt::ofi::Candidate& candidate : rvt::ofi::candidates()) {
        Offer offer;
        candidate.fill(offer, address);
        visit(offer);
    }
    const rvt::ofi::MsgNicOffer nic{
        .name = "nic0", .address = address, .max_queue = 64, .datagram_bytes = 4096};
    for (const auto fill : {rvt::ofi::fill_nic_offer, rvt::ofi::fill_nic_dgram_offer}) {
        Offer offer;
        fill(offer, nic);
        visit(offer);
    }
}

/// Why hints that ask for this alone are refused; empty: they are not.
std::string refused_hint(const Offer& offer, const Limit& limit, std::uint64_t value) {
    const Info hints = new_hints();
    hints->domain_attr->mr_mode = offer.memory_mr_mode | offer.needed_mr_mode | FI_MR_HMEM;
    limit.ask(*hints, value);
    const std::optional<Refusal> refusal = judge(offer, kVersion, *hints);
    RVT_ASSERT(!refusal || (!refusal->asked.empty() && !refusal->offered.empty()));
    return refusal ? refusal->hint : "";
}

}  // namespace

Test(info_limits, what_is_offered_may_be_asked_for_and_one_more_is_refused_for_this_reason) {
    for_each_offer([](const Offer& offer) {
        for (const Limit& limit : kLimits) {
            const std::uint64_t most = limit.most(offer.info);
            const std::string why = refused_hint(offer, limit, most);
            cr_assert(why.empty(), "%s of type %d: %s", limit.hint, offer.ep.type, why.c_str());
            cr_assert(refused_hint(offer, limit, most + 1) == limit.hint, "%s of type %d: one more",
                      limit.hint, offer.ep.type);
        }
    });
}

Test(info_limits, each_bit_that_is_offered_may_be_asked_for_and_no_other) {
    for_each_offer([](const Offer& offer) {
        for (const Limit& bits : kBits) {
            for (unsigned i = 0; i < 64; ++i) {
                const std::uint64_t bit = std::uint64_t{1} << i;
                const bool is_offered = (bits.most(offer.info) & bit) != 0;
                cr_assert(refused_hint(offer, bits, bit) == (is_offered ? "" : bits.hint),
                          "%s of type %d: bit %u", bits.hint, offer.ep.type, i);
            }
        }
    });
}

Test(info_limits, as_many_endpoints_are_offered_as_there_can_be) {
    for_each_offer([](const Offer& offer) {
        const bool has_pairs =
            offer.ep.type == FI_EP_MSG;  // in a table, without ports of their own
        RVT_EQ(offer.domain.ep_cnt, has_pairs ? 65536 : 65535);
        RVT_EQ(offer.domain.tx_ctx_cnt, offer.domain.ep_cnt);
        RVT_EQ(offer.domain.rx_ctx_cnt, offer.domain.ep_cnt);
    });
}

// ---- traffic classes and formats of tags ----

Test(info_limits, no_traffic_class_is_kept_which_answer_and_log_say) {
    keep_log();
    const Info hints = new_hints();
    hints->tx_attr->tclass = FI_TC_LOW_LATENCY;
    hints->domain_attr->tclass = fi_tc_dscp_set(46);
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    for (const fi_info* info = answer.info.get(); info != nullptr; info = info->next) {
        RVT_EQ(info->tx_attr->tclass, FI_TC_UNSPEC);
        RVT_EQ(info->domain_attr->tclass, FI_TC_UNSPEC);
    }
    for (const char* const said :
         {"tx_attr->tclass is not kept: 0x201 asked, FI_TC_UNSPEC answered",
          "domain_attr->tclass is not kept: 0x12e asked"}) {
        cr_assert(logged_infos.find(said) != std::string::npos, "%s", logged_infos.c_str());
    }
}

Test(info_limits, a_format_of_tags_is_kept_where_there_are_tags) {
    keep_log();
    constexpr std::uint64_t kOneField = 0xffff;
    const auto asked = [](fi_ep_type type, std::uint64_t caps) {
        const Info hints = new_hints();
        hints->ep_attr->type = type;
        hints->ep_attr->mem_tag_format = kOneField;
        hints->caps = caps;
        return ask(hints);
    };
    RVT_EQ(asked(FI_EP_RDM, FI_TAGGED).info->ep_attr->mem_tag_format, kOneField);
    for (const fi_ep_type type : {FI_EP_MSG, FI_EP_DGRAM}) {
        RVT_EQ(asked(type, FI_MSG).info->ep_attr->mem_tag_format, 0);
        logged_warnings.clear();
        RVT_EQ(asked(type, 0).error, -FI_ENODATA);
        cr_assert(logged_warnings.find("ep_attr->mem_tag_format: 16 asked, at most 0 offered") !=
                      std::string::npos,
                  "%s", logged_warnings.c_str());
    }
}

// ---- mr_mode ----

Test(info_limits, of_mr_mode_only_what_was_offered_is_demanded_whatever_that_is) {
    setenv("FI_RVT_VERBS", "0", 1);  // NICs of this machine want more
    constexpr int kBitsOfMode[] = {FI_MR_LOCAL,    FI_MR_VIRT_ADDR,  FI_MR_ALLOCATED,
                                   FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT,
                                   FI_MR_ENDPOINT, FI_MR_HMEM,       FI_MR_RAW};
    constexpr unsigned kSubsets = 1u << std::size(kBitsOfMode);
    for (unsigned subset = 0; subset < kSubsets; ++subset) {
        int mode = 0;
        for (unsigned i = 0; i < std::size(kBitsOfMode); ++i) {
            mode |= (subset >> i & 1) != 0 ? kBitsOfMode[i] : 0;
        }
        const Info hints = new_hints();
        hints->domain_attr->mr_mode = mode;
        const Answer answer = ask(hints);
        RVT_OK(answer.error);
        for (const fi_info* info = answer.info.get(); info != nullptr; info = info->next) {
            const int demanded = info->domain_attr->mr_mode;
            const int spared = mode & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
            const int most = mode & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_HMEM);
            cr_assert(demanded == spared || demanded == most, "0x%x offered, 0x%x demanded", mode,
                      demanded);
            const bool is_without_memory =
                info->ep_attr->type == FI_EP_DGRAM ||
                (info->ep_attr->type == FI_EP_MSG && (mode & FI_MR_PROV_KEY) == 0);
            RVT_EQ((info->caps & FI_RMA) == 0, is_without_memory);
        }
    }
}
