// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): what is answered to which request, and what is refused.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/own_network.h"
#include "ofi/ep_dgram.h"
#include "ofi/fixture.h"
#include "ofi/info.h"
#include "ofi/msg_nic.h"
#include "util/local_addresses.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kPrimary = FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | FI_DIRECTED_RECV;

const sockaddr_in& in(const void* address) {
    return *static_cast<const sockaddr_in*>(address);
}

}  // namespace

// ---- requests without wishes ----

Test(info, no_hints_are_answered_with_everything_an_endpoint_can_do) {
    const Answer answer = ask(new_hints());
    RVT_OK(answer.error);
    RVT_EQ(answer.info->caps & kPrimary, kPrimary);
    RVT_EQ(answer.info->ep_attr->type, FI_EP_RDM);
    RVT_EQ(answer.info->mode, 0);
}

Test(info, version_zero_with_null_hints_is_answered) {
    setenv("FI_PROVIDER", "rvt", 1);
    const Answer answer = ask(Info(), nullptr, nullptr, 0, FI_VERSION(0, 0));
    RVT_OK(answer.error);
    cr_assert(eq(str, answer.info->fabric_attr->prov_name, const_cast<char*>("rvt")));
    // Before 1.5 mr_mode was an enumeration.
    RVT_EQ(answer.info->domain_attr->mr_mode, 2);
}

Test(info, every_version_up_to_the_newest_is_answered) {
    setenv("FI_PROVIDER", "rvt", 1);
    // 1.20 was the last before the numbers went on with the library's own.
    for (std::uint32_t minor = 0; minor <= 20 && FI_VERSION(1, minor) <= fi_version(); ++minor) {
        const std::uint32_t version = FI_VERSION(1, minor);
        const Answer open = ask(Info(), nullptr, nullptr, 0, version);
        RVT_OK(open.error);
        RVT_EQ(open.info->fabric_attr->api_version, version);
        const Answer asked = ask(new_hints(), nullptr, nullptr, 0, version);
        RVT_OK(asked.error);
        const Answer again = ask(asked.info, nullptr, nullptr, 0, version);
        RVT_OK(again.error);
        const Opened usable(ask(new_hints(), nullptr, nullptr, 0, version).info);
        const auto cq = usable.cq();
    }
    RVT_OK(ask(new_hints(), nullptr, nullptr, 0, fi_version()).error);
}

Test(info, an_answer_is_accepted_as_hints) {
    const Answer first = ask(new_hints());
    const Answer second = ask(Info(fi_dupinfo(first.info.get())));
    RVT_OK(second.error);
    RVT_EQ(second.info->caps, first.info->caps);
}

Test(info, remote_communication_is_refused_without_a_wire) {
    setenv("FI_RVT_ROCE", "0", 1);
    const Info hints = new_hints();
    hints->caps = FI_TAGGED | FI_REMOTE_COMM;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

Test(info, remote_communication_is_offered_where_there_is_a_network) {
    const auto network = rvt::util::network_address(AF_INET, {});
    const Info hints = new_hints();
    hints->caps = FI_TAGGED | FI_REMOTE_COMM;
    const Answer answer = ask(hints);
    RVT_EQ(answer.error, network ? 0 : -FI_ENODATA);
    if (network) {
        RVT_EQ(in(answer.info->src_addr).sin_addr.s_addr,
               *reinterpret_cast<const in_addr_t*>(network->ip.data()));
    }
}

Test(info, a_host_with_ipv6_alone_reaches_others_by_that) {
    cr_assert(enter_own_network(), "this user cannot have a network of its own");
    RVT_EQ(std::system("ip addr del 192.0.2.1/24 dev wire0"), 0);
    const Info hints = new_hints();
    hints->caps = FI_TAGGED | FI_REMOTE_COMM;
    const auto expect_ipv6 = [&](const Answer& answer, std::uint16_t port) {
        RVT_OK(answer.error);
        RVT_EQ(answer.info->addr_format, FI_SOCKADDR_IN6);
        const auto& source = *static_cast<const sockaddr_in6*>(answer.info->src_addr);
        std::array<char, INET6_ADDRSTRLEN> text{};
        cr_assert(
            eq(str,
               const_cast<char*>(inet_ntop(AF_INET6, &source.sin6_addr, text.data(), text.size())),
               const_cast<char*>("fd99::1")));
        RVT_EQ(ntohs(source.sin6_port), port);
    };
    expect_ipv6(ask(hints), 0);
    expect_ipv6(ask(hints, nullptr, "7777", FI_SOURCE), 7777);
    hints->addr_format = FI_SOCKADDR;
    expect_ipv6(ask(hints), 0);
    hints->addr_format = FI_SOCKADDR_IN;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
    hints->addr_format = FI_FORMAT_UNSPEC;
    setenv("FI_RVT_ROCE_INTERFACE", "wire0", 1);
    expect_ipv6(ask(hints), 0);
}

Test(info, beside_an_answer_reasons_of_others_are_no_warnings) {
    keep_log();
    const Info hints = new_hints();
    hints->caps = FI_TAGGED;
    RVT_OK(ask(hints).error);
    cr_assert(logged_warnings.empty(), "%s", logged_warnings.c_str());
    cr_assert(
        logged_infos.find("FI_EP_DGRAM does not match: caps: FI_TAGGED asked") != std::string::npos,
        "%s", logged_infos.c_str());
}

Test(info, without_an_answer_they_are) {
    keep_log();
    const Info hints = new_hints();
    hints->caps = FI_COLLECTIVE;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
    cr_assert(logged_warnings.find("FI_EP_DGRAM does not match: caps: FI_COLLECTIVE asked") !=
                  std::string::npos,
              "%s", logged_warnings.c_str());
}

Test(info, an_interface_that_is_not_there_is_no_match) {
    setenv("FI_RVT_ROCE_INTERFACE", "nosuch0", 1);
    RVT_EQ(ask(new_hints()).error, -FI_ENODATA);
}

Test(info, remote_communication_is_claimed_for_those_who_insist) {
    setenv("FI_RVT_ROCE", "0", 1);
    setenv("FI_RVT_HOST_REMOTE", "1", 1);
    const Info hints = new_hints();
    hints->caps = FI_TAGGED | FI_REMOTE_COMM;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->caps & FI_REMOTE_COMM, FI_REMOTE_COMM);
}

// ---- capabilities ----

Test(info, only_the_capabilities_asked_for_are_given) {
    const Info hints = new_hints();
    hints->caps = FI_TAGGED;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->caps, FI_TAGGED | FI_SEND | FI_RECV);
    RVT_EQ(answer.info->tx_attr->caps, FI_TAGGED | FI_SEND);
    RVT_EQ(answer.info->rx_attr->caps, FI_TAGGED | FI_RECV);
}

Test(info, events_of_access_are_for_those_who_ask) {
    for (const bool has_hints : {true, false}) {
        setenv("FI_PROVIDER", "rvt", 1);
        const Answer open = ask(has_hints ? new_hints() : Info());
        RVT_OK(open.error);
        RVT_EQ(open.info->caps & (kPrimary | FI_MULTI_RECV), kPrimary | FI_MULTI_RECV);
        RVT_EQ(open.info->caps & FI_RMA_EVENT, 0);
        RVT_EQ(open.info->rx_attr->caps & FI_RMA_EVENT, 0);
    }
    const Info hints = new_hints();
    hints->caps = FI_RMA | FI_RMA_EVENT;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->rx_attr->caps & FI_RMA_EVENT, FI_RMA_EVENT);
    const Info of_side = new_hints();
    of_side->rx_attr->caps = FI_MSG | FI_RMA | FI_RMA_EVENT;
    const Answer for_side = ask(of_side);
    RVT_OK(for_side.error);
    RVT_EQ(for_side.info->caps & FI_RMA_EVENT, FI_RMA_EVENT);
    RVT_EQ(for_side.info->rx_attr->caps & FI_RMA_EVENT, FI_RMA_EVENT);
}

Test(info, each_side_may_be_asked_for_what_the_other_has) {
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE | FI_SOURCE |
                  FI_FENCE | FI_LOCAL_COMM;
    hints->tx_attr->caps = hints->caps;
    hints->rx_attr->caps = hints->caps;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->tx_attr->caps, FI_MSG | FI_RMA | FI_SEND | FI_WRITE | FI_FENCE);
    RVT_EQ(answer.info->rx_attr->caps, FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_WRITE | FI_SOURCE);
    hints->rx_attr->caps |= FI_ATOMIC;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
    hints->rx_attr->caps = 0;
    hints->tx_attr->caps = FI_MSG | FI_COLLECTIVE;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

Test(info, a_modifier_limits_the_capability) {
    const Info hints = new_hints();
    hints->caps = FI_RMA | FI_WRITE;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->caps, FI_RMA | FI_WRITE);
}

Test(info, capabilities_that_do_not_exist_are_refused) {
    for (const std::uint64_t cap : {FI_HMEM, FI_COLLECTIVE, FI_NAMED_RX_CTX, FI_SHARED_AV,
                                    1ull << 60, 1ull << 63, 1ull << 7}) {
        const Info hints = new_hints();
        hints->caps = FI_MSG | cap;
        RVT_EQ(ask(hints).error, -FI_ENODATA);
    }
}

// ---- each attribute is honoured or refused ----

namespace {

struct Wish {
    const char* what;
    void (*set)(fi_info&);
    int expected;
};

// clang-format off
const Wish kWishes[] = {
    {"msg endpoints", [](fi_info& h) { h.ep_attr->type = FI_EP_MSG; }, 0},
    {"datagram endpoints", [](fi_info& h) { h.ep_attr->type = FI_EP_DGRAM; }, 0},
    {"shared transmit contexts", [](fi_info& h) { h.ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT; }, -FI_ENODATA},
    {"inject of 4 KiB", [](fi_info& h) { h.tx_attr->inject_size = 4096; }, 0},
    {"order of sends", [](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_SAS; }, 0},
    {"an order that is not kept", [](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_WAS; }, -FI_ENODATA},
    {"strict completion order", [](fi_info& h) { h.tx_attr->comp_order = FI_ORDER_STRICT; }, -FI_ENODATA},
    {"delivery complete", [](fi_info& h) { h.tx_attr->op_flags = FI_DELIVERY_COMPLETE; }, 0},
    {"commit complete", [](fi_info& h) { h.tx_attr->op_flags = FI_COMMIT_COMPLETE; }, -FI_ENODATA},
    {"threading domain", [](fi_info& h) { h.domain_attr->threading = FI_THREAD_DOMAIN; }, 0},
    {"automatic progress", [](fi_info& h) { h.domain_attr->data_progress = FI_PROGRESS_AUTO; }, 0},
    {"an address table", [](fi_info& h) { h.domain_attr->av_type = FI_AV_TABLE; }, 0},
    {"8 bytes of cq data", [](fi_info& h) { h.domain_attr->cq_data_size = 8; }, 0},
    {"64-bit keys", [](fi_info& h) { h.domain_attr->mr_key_size = 8; }, 0},
    {"another domain", [](fi_info& h) { h.domain_attr->name = strdup("mlx5_0"); }, -FI_ENODATA},
    {"our domain", [](fi_info& h) { h.domain_attr->name = strdup("shm"); }, 0},
    {"another fabric", [](fi_info& h) { h.fabric_attr->name = strdup("ib0"); }, -FI_ENODATA},
    {"our fabric", [](fi_info& h) { h.fabric_attr->name = strdup("rvt-host"); }, 0},
    {"an address format of others", [](fi_info& h) { h.addr_format = FI_ADDR_EFA; }, -FI_ENODATA},
    {"a domain that is not open", [](fi_info& h) { h.domain_attr->domain = reinterpret_cast<fid_domain*>(8); }, -FI_ENODATA},
    {"a fabric that is not open", [](fi_info& h) { h.fabric_attr->fabric = reinterpret_cast<fid_fabric*>(8); }, -FI_ENODATA},
    {"a connection request", [](fi_info& h) { h.handle = reinterpret_cast<fid_t>(8); }, -FI_ENODATA},
    {"modes we never ask for", [](fi_info& h) { h.mode = ~0ull; }, 0},
};
// clang-format on

}  // namespace

Test(info, every_wish_is_honoured_or_refused) {
    for (const Wish& wish : kWishes) {
        const Info hints = new_hints();
        hints->ep_attr->type = FI_EP_RDM;
        wish.set(*hints);
        const int error = ask(hints).error;
        // What the hints point at is not theirs to free.
        hints->handle = nullptr;
        hints->domain_attr->domain = nullptr;
        hints->fabric_attr->fabric = nullptr;
        cr_assert(error == wish.expected, "%s: %d instead of %d", wish.what, error, wish.expected);
    }
}

Test(info, a_provider_is_named_as_libfabric_names_it) {
    constexpr std::pair<const char*, int> kNames[] = {
        {"RVT", 0},          {"Rvt;^ofi_rxm", 0},   {"^ofi_rxm", 0},
        {"rv", -FI_ENODATA}, {"rvtx", -FI_ENODATA}, {"tcp;rvt", -FI_ENODATA},
    };
    for (const auto& [name, expected] : kNames) {
        const Info hints = new_hints();
        hints->ep_attr->type = FI_EP_RDM;
        free(hints->fabric_attr->prov_name);
        hints->fabric_attr->prov_name = strdup(name);
        fi_info* info = nullptr;
        const int error = rvt::ofi::getinfo(kVersion, nullptr, nullptr, 0, hints.get(), &info);
        const Info made(info);
        cr_assert(error == expected, "%s: %d instead of %d", name, error, expected);
    }
}

/// They offer it and take it for given: without it, no endpoint of theirs could be enabled.
Test(info, utility_providers_that_live_on_buffered_receives_get_nothing) {
    constexpr std::uint64_t kInternal = 1ull << 58;
    for (const bool is_needed : {true, false}) {
        const Info hints = new_hints();
        hints->ep_attr->type = FI_EP_RDM;
        hints->caps = FI_MSG | FI_TAGGED;
        hints->mode = is_needed ? rvt::ofi::kModeBufferedRecv : 0;
        for (const std::uint64_t flags : {std::uint64_t{0}, kInternal}) {
            fi_info* info = nullptr;
            const int error =
                rvt::ofi::getinfo(kVersion, nullptr, nullptr, flags, hints.get(), &info);
            const Info made(info);
            RVT_EQ(error, is_needed && flags != 0 ? -FI_ENODATA : 0);
        }
    }
}

Test(info, what_was_asked_for_is_what_is_answered) {
    const Info hints = new_hints();
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->size = 4096;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->domain_attr->threading, FI_THREAD_DOMAIN);
    RVT_EQ(answer.info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
    RVT_EQ(answer.info->domain_attr->av_type, FI_AV_TABLE);
    RVT_EQ(answer.info->tx_attr->size, 4096);
    RVT_EQ(answer.info->tx_attr->op_flags, FI_DELIVERY_COMPLETE);
}

Test(info, sizes_of_order_go_with_the_order) {
    const Info hints = new_hints();
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->ep_attr->max_order_raw_size, 0);
    hints->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_RAW;
    RVT_EQ(ask(hints).info->ep_attr->max_order_raw_size, 4096);
}

Test(info, reads_are_in_order_for_those_who_ask) {
    constexpr std::uint64_t kReads = FI_ORDER_RAR | FI_ORDER_RMA_RAR;
    const Info hints = new_hints();
    hints->ep_attr->type = FI_EP_RDM;
    RVT_EQ(ask(hints).info->tx_attr->msg_order & kReads, 0u);
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = kReads;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->tx_attr->msg_order, kReads);
    RVT_EQ(answer.info->rx_attr->msg_order, kReads);
}

Test(info, unknown_flags_are_refused) {
    RVT_EQ(ask(new_hints(), nullptr, nullptr, 1ull << 20).error,
           -FI_ENODATA);  // libfabric's word for "none answered"
}

// ---- mr_mode ----

Test(info, no_mr_mode_is_demanded_of_those_who_offer_none) {
    RVT_EQ(ask(new_hints()).info->domain_attr->mr_mode, 0);
}

Test(info, offered_addresses_and_keys_are_used) {
    const Info hints = new_hints();
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    RVT_EQ(ask(hints).info->domain_attr->mr_mode, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
}

Test(info, the_old_modes_are_understood_by_every_version) {
    for (const std::uint32_t version :
         {std::uint32_t{FI_VERSION(1, 4)}, std::uint32_t{FI_VERSION(1, 5)}, kVersion}) {
        for (const int mode : {1, 2}) {
            const Info hints = new_hints();
            hints->domain_attr->mr_mode = mode;
            const Answer answer = ask(hints, nullptr, nullptr, 0, version);
            RVT_OK(answer.error);
            RVT_EQ(answer.info->domain_attr->mr_mode, mode);
        }
    }
}

Test(info, an_old_mode_does_not_mix_with_bits) {
    const Info hints = new_hints();
    hints->domain_attr->mr_mode = 1 | FI_MR_VIRT_ADDR;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

// ---- addresses ----

Test(info, without_a_node_and_a_wire_the_source_is_the_loopback_address) {
    setenv("FI_RVT_ROCE", "0", 1);
    const Answer answer = ask(new_hints());
    RVT_EQ(answer.info->src_addrlen, sizeof(sockaddr_in));
    RVT_EQ(ntohl(in(answer.info->src_addr).sin_addr.s_addr), INADDR_LOOPBACK);
    RVT_ASSERT(answer.info->dest_addr == nullptr);
}

Test(info, a_node_is_the_destination) {
    const Answer answer = ask(new_hints(), "127.0.0.1", "4711");
    RVT_OK(answer.error);
    RVT_EQ(ntohs(in(answer.info->dest_addr).sin_port), 4711);
    RVT_EQ(ntohs(in(answer.info->src_addr).sin_port), 0);
}

Test(info, with_fi_source_a_node_is_the_source) {
    const Answer answer = ask(new_hints(), "localhost", "4711", FI_SOURCE);
    RVT_OK(answer.error);
    RVT_EQ(ntohs(in(answer.info->src_addr).sin_port), 4711);
    RVT_ASSERT(answer.info->dest_addr == nullptr);
}

Test(info, a_service_alone_is_a_port_of_the_loopback_address) {
    const Answer answer = ask(new_hints(), nullptr, "4711", FI_SOURCE);
    RVT_OK(answer.error);
    RVT_EQ(ntohs(in(answer.info->src_addr).sin_port), 4711);
}

Test(info, a_service_beyond_the_ports_is_refused) {
    RVT_OK(ask(new_hints(), "127.0.0.1", "65535").error);
    RVT_EQ(ask(new_hints(), "127.0.0.1", "65536").error, -FI_ENODATA);
    RVT_EQ(ask(new_hints(), nullptr, "70000", FI_SOURCE).error, -FI_ENODATA);
    RVT_EQ(ask(new_hints(), "127.0.0.1", "18446744073709551617").error, -FI_ENODATA);
}

Test(info, another_host_is_a_destination_and_no_source) {
    const Answer answer = ask(new_hints(), "192.0.2.17", "4711");
    RVT_OK(answer.error);
    RVT_EQ(ntohl(in(answer.info->dest_addr).sin_addr.s_addr), 0xc0000211);
    RVT_EQ(ask(new_hints(), "192.0.2.17", "4711", FI_SOURCE).error, -FI_ENODATA);
}

Test(info, a_name_is_not_a_numeric_host) {
    RVT_EQ(ask(new_hints(), "localhost", "4711", FI_NUMERICHOST).error, -FI_ENODATA);
    RVT_OK(ask(new_hints(), "127.0.0.1", "4711", FI_NUMERICHOST).error);
}

Test(info, a_source_in_hints_is_kept) {
    const Info hints = new_hints();
    auto* source = static_cast<sockaddr_in*>(calloc(1, sizeof(sockaddr_in)));
    source->sin_family = AF_INET;
    source->sin_port = htons(5555);
    source->sin_addr.s_addr = htonl(0x7f000002);
    hints->src_addr = source;
    hints->src_addrlen = sizeof *source;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(ntohs(in(answer.info->src_addr).sin_port), 5555);
    RVT_EQ(ntohl(in(answer.info->src_addr).sin_addr.s_addr), 0x7f000002);
}

Test(info, an_ipv6_endpoint_is_there_for_those_who_ask) {
    const Info hints = new_hints();
    hints->addr_format = FI_SOCKADDR_IN6;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->addr_format, FI_SOCKADDR_IN6);
    RVT_EQ(answer.info->src_addrlen, sizeof(sockaddr_in6));
}

/// An endpoint of an IPv6 domain that was not told its address.
std::size_t name_bytes_of(const Opened& open, fi_ep_type type) {
    const auto cq = open.cq();
    const auto av = open.av();
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_enable(ep.get()));
    sockaddr_in6 name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&ep->fid, &name, &bytes));
    cr_assert(name.sin6_family == AF_INET6, "of type %d it is of family %d", type,
              name.sin6_family);
    return bytes;
}

Test(info, an_ipv6_endpoint_without_an_address_gets_one_of_its_format) {
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_DGRAM}) {
        const Info hints = new_hints();
        hints->addr_format = FI_SOCKADDR_IN6;
        hints->ep_attr->type = type;
        Info info = ask(hints).info;
        free(info->src_addr);
        info->src_addr = nullptr;
        info->src_addrlen = 0;
        RVT_EQ(name_bytes_of(Opened(std::move(info)), type), sizeof(sockaddr_in6));
    }
}

sockaddr_in6* new_in6(in6_addr address) {
    auto* made = static_cast<sockaddr_in6*>(calloc(1, sizeof(sockaddr_in6)));
    made->sin6_family = AF_INET6;
    made->sin6_addr = address;
    return made;
}

Test(info, a_wildcard_of_another_family_is_no_source) {
    const Info hints = new_hints();
    hints->src_addr = new_in6(IN6ADDR_ANY_INIT);
    hints->src_addrlen = sizeof(sockaddr_in6);
    RVT_EQ(ask(hints, "127.0.0.1", "4711").error, -FI_ENODATA);
    RVT_OK(ask(hints).error);
}

Test(info, a_service_alone_is_a_port_of_the_destinations_family) {
    const Info hints = new_hints();
    hints->dest_addr = new_in6(IN6ADDR_LOOPBACK_INIT);
    hints->dest_addrlen = sizeof(sockaddr_in6);
    const Answer answer = ask(hints, nullptr, "4711", FI_SOURCE);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->addr_format, FI_SOCKADDR_IN6);
    const auto& source = *static_cast<const sockaddr_in6*>(answer.info->src_addr);
    RVT_EQ(source.sin6_family, AF_INET6);
    RVT_EQ(ntohs(source.sin6_port), 4711);
}

Test(info, a_node_in_text_is_of_the_family_asked_for) {
    const Info hints = new_hints();
    hints->addr_format = FI_SOCKADDR_IN6;
    RVT_EQ(ask(hints, "fi_sockaddr_in://127.0.0.1:4711").error, -FI_ENODATA);
    RVT_OK(ask(hints, "fi_sockaddr_in6://[::1]:4711").error);
}

Test(info, addresses_are_text_for_those_who_ask) {
    const Info hints = new_hints();
    hints->addr_format = FI_ADDR_STR;
    const Answer answer = ask(hints, "fi_sockaddr_in://127.0.0.1:4711");
    RVT_OK(answer.error);
    cr_assert(eq(str, static_cast<char*>(answer.info->dest_addr),
                 const_cast<char*>("fi_sockaddr_in://127.0.0.1:4711")));
}

// ---- open objects ----

Test(info, an_answer_refers_to_what_is_open) {
    const Opened open;
    const Answer answer = ask(new_hints());
    RVT_ASSERT(answer.info->fabric_attr->fabric == open.fabric.get());
    RVT_ASSERT(answer.info->domain_attr->domain == open.domain.get());
}

Test(info, an_open_domain_may_be_named_in_hints) {
    const Opened open;
    const Info hints = new_hints();
    hints->domain_attr->domain = open.domain.get();
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_ASSERT(answer.info->domain_attr->domain == open.domain.get());
}

// ---- types of endpoint ----

namespace {

Info hints_for_msg(std::uint64_t caps, int mr_mode) {
    Info hints = new_hints();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = caps;
    hints->domain_attr->mr_mode = mr_mode;
    return hints;
}

}  // namespace

Test(info, each_type_of_endpoint_is_an_answer) {
    const Answer answer = ask(new_hints());
    RVT_EQ(answer.info->ep_attr->type, FI_EP_RDM);
    bool has_msg = false;
    for (const fi_info* info = answer.info->next; info != nullptr; info = info->next) {
        RVT_NE(info->ep_attr->type, FI_EP_RDM);
        has_msg |= info->ep_attr->type == FI_EP_MSG;
    }
    RVT_ASSERT(has_msg);
}

Test(info, a_named_type_is_the_only_answer) {
    const Answer answer = ask(hints_for_msg(0, 0));
    RVT_OK(answer.error);
    RVT_EQ(answer.info->ep_attr->type, FI_EP_MSG);
    RVT_EQ(answer.info->ep_attr->protocol, FI_PROTO_RDMA_CM_IB_RC);
    RVT_EQ(answer.info->domain_attr->cq_data_size, 4);
    RVT_ASSERT(answer.info->next == nullptr);
}

Test(info, remote_memory_of_msg_endpoints_needs_the_providers_keys) {
    RVT_EQ(ask(hints_for_msg(FI_RMA, 0)).error, -FI_ENODATA);
    RVT_EQ(ask(hints_for_msg(FI_ATOMIC, FI_MR_VIRT_ADDR)).error, -FI_ENODATA);
    const Answer answer = ask(hints_for_msg(FI_RMA, FI_MR_PROV_KEY | FI_MR_LOCAL));
    RVT_OK(answer.error);
    RVT_EQ(answer.info->domain_attr->mr_mode, FI_MR_PROV_KEY);
    RVT_EQ(ask(hints_for_msg(0, 0)).info->caps & (FI_RMA | FI_ATOMIC | FI_REMOTE_WRITE), 0);
    RVT_EQ(ask(hints_for_msg(0, FI_MR_PROV_KEY)).info->caps & (FI_RMA | FI_ATOMIC),
           FI_RMA | FI_ATOMIC);
}

Test(info, local_buffers_at_nics_need_descriptors_where_registrations_are_not_kept) {
    rvt::ofi::MsgNicOffer nic;
    for (const bool needs : {true, false}) {
        nic.needs_local_mr = needs;
        rvt::ofi::Offer offer;
        fill_nic_offer(offer, nic);
        constexpr int kAlways = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
        RVT_EQ(offer.needed_mr_mode, kAlways | (needs ? FI_MR_LOCAL : 0));
        RVT_EQ(offer.memory_mr_mode, offer.needed_mr_mode);
    }
}

/// Sends have a ring, whose length is a power of two. A NIC of mlx4 takes 16351.
Test(info, no_longer_ring_of_datagrams_is_offered_than_a_nics_queue_holds) {
    rvt::ofi::set_dgram_hosts({.bytes_of = [](const rvt::util::SockAddr&) {
        return rvt::Result<std::uint32_t>(ENODEV);
    }});
    const rvt::ofi::MsgNicOffer nic{.name = "mlx4_0", .max_queue = 16351, .datagram_bytes = 4096};
    rvt::ofi::Offer offer;
    fill_nic_dgram_offer(offer, nic);
    RVT_EQ(offer.tx.size, 8192);
    RVT_EQ(offer.rx.size, 16350);
}

Test(info, data_beside_a_write_is_for_those_who_offer_receives) {
    const Info hints = hints_for_msg(FI_RMA, FI_MR_PROV_KEY);
    RVT_EQ(ask(hints).info->rx_attr->mode, 0);
    hints->mode = FI_RX_CQ_DATA | FI_CONTEXT;
    RVT_EQ(ask(hints).info->mode, FI_RX_CQ_DATA);
    RVT_EQ(ask(hints).info->rx_attr->mode, FI_RX_CQ_DATA);
}

Test(info, receive_contexts_of_msg_endpoints_can_be_shared) {
    const Info hints = hints_for_msg(FI_MSG, 0);
    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
    hints->ep_attr->type = FI_EP_RDM;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

// ---- memory of devices ----

Test(info, memory_of_devices_is_for_those_who_ask_and_name_it_by_descriptor) {
    RVT_EQ(ask(new_hints()).info->caps & FI_HMEM, 0);
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_HMEM;
    hints->domain_attr->mr_mode = FI_MR_HMEM | FI_MR_LOCAL;
    const Answer answer = ask(hints);
    RVT_OK(answer.error);
    RVT_EQ(answer.info->caps & FI_HMEM, FI_HMEM);
    RVT_EQ(answer.info->domain_attr->mr_mode, FI_MR_HMEM);
    hints->domain_attr->mr_mode = FI_MR_LOCAL;
    RVT_EQ(ask(hints).error, -FI_ENODATA);
}

Test(info, memory_of_devices_is_for_endpoints_of_every_type) {
    const Info hints = new_hints();
    hints->caps = FI_MSG | FI_HMEM;
    for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
        hints->ep_attr->type = type;
        hints->domain_attr->mr_mode = FI_MR_HMEM;
        const Answer answer = ask(hints);
        RVT_OK(answer.error);
        RVT_EQ(answer.info->caps & FI_HMEM, FI_HMEM);
        RVT_EQ(answer.info->tx_attr->caps & FI_HMEM, FI_HMEM);
        RVT_EQ(answer.info->rx_attr->caps & FI_HMEM, FI_HMEM);
        hints->domain_attr->mr_mode = 0;
        RVT_EQ(ask(hints).error, -FI_ENODATA);
    }
}
