// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What endpoints in the domain of a NIC that lacks something are offered, and what is refused them.
#include <array>
#include <cerrno>
#include <string>

#include "ofi/nic_world.h"
#include "util/log.h"

using namespace rvt;
using namespace rvt::test;

namespace {

void be_iwarp(verbs::MockNic& mock) {
    mock.device.transport_type = IBV_TRANSPORT_IWARP;
}

/// What fi_getinfo says to who asks for connections over the NIC.
template <class Ask>
int asked(const Ask& ask) {
    fi_info* const hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
    hints->domain_attr->name = strdup("mock0");
    ask(*hints);
    fi_info* found = nullptr;
    const int result = ofi::getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found);
    fi_freeinfo(hints);
    fi_freeinfo(found);
    return result;
}

int infos_with_cq_data(std::size_t bytes) {
    return asked([bytes](fi_info& hints) { hints.domain_attr->cq_data_size = bytes; });
}

int infos_with_protocol(std::uint32_t protocol) {
    return asked([protocol](fi_info& hints) { hints.ep_attr->protocol = protocol; });
}

/// How the NIC was asked to register memory with these rights.
int asked_access(World& on, Endpoints& with, std::uint64_t access) {
    fid_mr* mr = nullptr;
    RVT_EQ(fi_mr_reg(with.domain, with.memory.data(), with.memory.size(), access, 0, 0, 0, &mr, {}),
           0);
    RVT_EQ(fi_close(&mr->fid), 0);
    return on.mock.regions.back().access;
}

std::string warnings;

constexpr util::LogSink kSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea /*area*/) noexcept { return level == util::LogLevel::kWarn; },
    .write = [](util::LogLevel /*level*/, util::LogArea /*area*/, const char* /*function*/,
                int /*line*/, const char* text) noexcept { warnings += text; },
};

}  // namespace

Test(nic_offer, data_beside_messages_and_writes_is_offered_where_the_nic_has_it) {
    World on;
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_EQ(with.info->domain_attr->cq_data_size, 4);
    RVT_EQ(infos_with_cq_data(4), 0);
    fid_ep* const ep = with.connected();
    RVT_EQ(fi_senddata(ep, with.memory.data(), 64, fi_mr_desc(with.mr), 7, 0, nullptr), 0);
    RVT_EQ(on.mock.sends.back().opcode, IBV_WR_SEND_WITH_IMM);
}

Test(nic_offer, over_iwarp_there_is_no_data_beside_messages_and_writes) {
    World on(be_iwarp);
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_EQ(with.info->domain_attr->cq_data_size, 0);
    RVT_EQ(with.info->mode & FI_RX_CQ_DATA, 0);
    RVT_EQ(infos_with_cq_data(4), -FI_ENODATA);
    fid_ep* const ep = with.connected();
    void* const desc = fi_mr_desc(with.mr);
    const std::size_t before = on.mock.sends.size();
    RVT_EQ(fi_senddata(ep, with.memory.data(), 64, desc, 7, 0, nullptr), -FI_EOPNOTSUPP);
    RVT_EQ(fi_injectdata(ep, with.memory.data(), 8, 7, 0), -FI_EOPNOTSUPP);
    RVT_EQ(fi_writedata(ep, with.memory.data(), 64, desc, 7, 0, 0x1000, 5, nullptr),
           -FI_EOPNOTSUPP);
    RVT_EQ(fi_inject_writedata(ep, with.memory.data(), 8, 7, 0, 0x1000, 5), -FI_EOPNOTSUPP);
    RVT_EQ(on.mock.sends.size(), before);
    RVT_EQ(with.send(ep), 0);
    RVT_EQ(on.mock.sends.size(), before + 1);
}

Test(nic_offer, a_nic_is_asked_for_by_the_name_that_stays_and_answers_to_it) {
    const World on;
    std::string name;
    const auto ask = [&](const char* asked_for, fid_domain* domain) {
        fi_info* const hints = fi_allocinfo();
        hints->ep_attr->type = FI_EP_MSG;
        hints->domain_attr->mr_mode =
            FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_LOCAL;
        hints->domain_attr->name = strdup(asked_for);
        hints->domain_attr->domain = domain;
        fi_info* found = nullptr;
        const int result = ofi::getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found);
        name = result == 0 ? found->domain_attr->name : "";
        fi_freeinfo(hints);
        return found;
    };
    fi_info* const info = ask(kStableName, nullptr);
    RVT_ASSERT(name == kStableName);
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    RVT_EQ(ofi::fabric_open(info->fabric_attr, &fabric, nullptr), 0);
    RVT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
    RVT_ASSERT(on.asked_name == kStableName);
    RVT_ASSERT(on.asked_source.ip == kOwn.ip);
    // Whatever it is called, it is the same domain.
    for (const char* one : {kStableName, "mock0"}) {
        fi_info* const again = ask(one, domain);
        RVT_ASSERT(name == one);
        RVT_ASSERT(again->domain_attr->domain == domain);
        fi_freeinfo(again);
    }
    RVT_EQ(fi_close(&domain->fid), 0);
    RVT_EQ(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
    RVT_ASSERT(ask("5054:00ff:fe12:3456/2", nullptr) == nullptr);
}

Test(nic_offer, atomics_are_those_of_the_nic) {
    const World on;
    const Endpoints with(false, FI_MSG | FI_ATOMIC);
    fi_atomic_attr attr{};
    RVT_EQ(fi_query_atomic(with.domain, FI_UINT64, FI_SUM, &attr, 0), 0);
    RVT_EQ(attr.count, 1);
    RVT_EQ(attr.size, 8);
    RVT_EQ(fi_query_atomic(with.domain, FI_INT64, FI_ATOMIC_READ, &attr, FI_FETCH_ATOMIC), 0);
    RVT_EQ(fi_query_atomic(with.domain, FI_INT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC), 0);
    RVT_EQ(attr.count, 1);
    RVT_EQ(fi_query_atomic(with.domain, FI_DOUBLE, FI_PROD, &attr, FI_FETCH_ATOMIC),
           -FI_EOPNOTSUPP);
    RVT_EQ(fi_query_atomic(with.domain, FI_UINT64, FI_MAX, &attr, 0), -FI_EOPNOTSUPP);
}

Test(nic_offer, without_atomics_none_are_told_of) {
    const World on;
    const Endpoints with(false, FI_MSG | FI_RMA);
    fi_atomic_attr attr{};
    RVT_EQ(fi_query_atomic(with.domain, FI_UINT64, FI_SUM, &attr, 0), -FI_EOPNOTSUPP);
}

Test(nic_offer, the_protocol_is_that_of_the_nic) {
    {
        World on;
        RVT_EQ(infos_with_protocol(FI_PROTO_RDMA_CM_IB_RC), 0);
        RVT_EQ(infos_with_protocol(FI_PROTO_IWARP), -FI_ENODATA);
    }
    World on(be_iwarp);
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_EQ(with.info->ep_attr->protocol, FI_PROTO_IWARP);
    RVT_EQ(infos_with_protocol(FI_PROTO_IWARP), 0);
    RVT_EQ(infos_with_protocol(FI_PROTO_RDMA_CM_IB_RC), -FI_ENODATA);
}

/// RFC 5040, 5.2: a Read Response is written to the reader's memory as by an RDMA Write.
Test(nic_offer, over_iwarp_what_reads_fill_may_be_written_by_the_peer) {
    World on(be_iwarp);
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_NE(asked_access(on, with, FI_READ) & IBV_ACCESS_REMOTE_WRITE, 0);
    RVT_NE(asked_access(on, with, FI_READ) & IBV_ACCESS_LOCAL_WRITE, 0);
    RVT_EQ(asked_access(on, with, FI_RECV | FI_SEND | FI_WRITE) & IBV_ACCESS_REMOTE_WRITE, 0);
}

Test(nic_offer, elsewhere_what_reads_fill_is_the_readers_alone) {
    World on;
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_EQ(asked_access(on, with, FI_READ) & IBV_ACCESS_REMOTE_WRITE, 0);
}

/// Of iWARP's NICs most take one buffer, and end the connection over more, or refuse them.
Test(nic_offer, no_more_buffers_are_read_into_than_the_nic_takes) {
    World on([](verbs::MockNic& mock) { mock.attr.max_sge_rd = 2; });
    Endpoints with(false, FI_MSG | FI_RMA);
    RVT_EQ(with.info->tx_attr->iov_limit, 2);
    fid_ep* const ep = with.connected();
    std::array<iovec, 3> parts;
    parts.fill({with.memory.data(), 8});
    std::array<void*, 3> desc;
    desc.fill(fi_mr_desc(with.mr));
    RVT_EQ(fi_readv(ep, parts.data(), desc.data(), 3, 0, 0x1000, 5, nullptr), -FI_EINVAL);
    RVT_EQ(on.mock.sends.size(), 0);
    RVT_EQ(fi_readv(ep, parts.data(), desc.data(), 2, 0, 0x1000, 5, nullptr), 0);
    RVT_EQ(fi_sendv(ep, parts.data(), desc.data(), 3, 0, nullptr), 0);
    RVT_EQ(on.mock.sends.size(), 2);
}

Test(nic_offer, a_shared_context_has_as_many_buffers_as_the_nics_shared_queues) {
    World on([](verbs::MockNic& mock) { mock.attr.max_srq_sge = 2; });
    Endpoints with(true);
    RVT_EQ(with.info->rx_attr->iov_limit, 2);
    std::array<iovec, 3> parts;
    parts.fill({with.memory.data(), 8});
    std::array<void*, 3> desc;
    desc.fill(fi_mr_desc(with.mr));
    RVT_EQ(fi_recvv(with.srx, parts.data(), desc.data(), 3, 0, nullptr), -FI_EINVAL);
    RVT_EQ(fi_recvv(with.srx, parts.data(), desc.data(), 2, 0, nullptr), 0);
}

Test(nic_offer, options_tell_what_can_be_injected_and_sent_over_the_nic) {
    World on([](verbs::MockNic& mock) {
        mock.max_inline = 64;
        mock.port.max_msg_sz = 1024;
    });
    Endpoints with;
    fid_ep* const ep = with.open();
    const auto size_of = [&](int option) {
        std::size_t size = 0;
        std::size_t bytes = sizeof size;
        RVT_EQ(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, option, &size, &bytes), 0);
        return size;
    };
    RVT_EQ(size_of(ofi::kOptInjectMsgSize), 64);
    RVT_EQ(size_of(ofi::kOptInjectRmaSize), 64);
    RVT_EQ(size_of(ofi::kOptMaxMsgSize), 1024);
    RVT_EQ(size_of(ofi::kOptMaxRmaSize), 1024);
    with.connect(ep);
    RVT_EQ(fi_inject(ep, with.memory.data(), 64, 0), 0);
    RVT_EQ(fi_inject(ep, with.memory.data(), 65, 0), -FI_EMSGSIZE);
}

/// It would end the connection.
Test(nic_offer, a_message_that_is_longer_than_the_nics_is_refused) {
    World on([](verbs::MockNic& mock) { mock.port.max_msg_sz = 1024; });
    Endpoints with(false, FI_MSG | FI_RMA);
    fid_ep* const ep = with.connected();
    void* const desc = fi_mr_desc(with.mr);
    RVT_EQ(fi_send(ep, with.memory.data(), 1025, desc, 0, nullptr), -FI_EMSGSIZE);
    RVT_EQ(fi_read(ep, with.memory.data(), 1025, desc, 0, 0x1000, 5, nullptr), -FI_EMSGSIZE);
    RVT_ASSERT(on.mock.sends.empty());
    RVT_EQ(fi_send(ep, with.memory.data(), 1024, desc, 0, nullptr), 0);
    RVT_EQ(fi_recv(ep, with.memory.data(), 1025, desc, 0, nullptr), 0);
}

Test(nic_offer, who_asks_for_nothing_gets_no_longer_queues_than_the_nic_has) {
    World on;
    Endpoints with;  // of a NIC with 64, of which one is ours
    RVT_EQ(with.info->tx_attr->size, 63);
    RVT_EQ(with.info->rx_attr->size, 63);
}

Test(nic_offer, an_endpoint_without_a_pair_says_how_many_the_nic_has) {
    World on([](verbs::MockNic& mock) { mock.attr.max_qp = 3; });
    Endpoints with;
    on.mock.most_pairs = 0;
    fid_ep* const ep = with.open();
    warnings.clear();
    util::set_log_sink(&kSink);
    RVT_EQ(fi_enable(ep), -FI_ENOMEM);
    cr_assert(warnings.find("3 queue pairs (max_qp) of mock0") != std::string::npos, "%s",
              warnings.c_str());
}

/// The NIC does not say what peers write.
Test(nic_offer, a_counter_of_what_peers_write_is_refused) {
    World on;
    Endpoints with;
    fid_cntr* cntr = nullptr;
    RVT_EQ(fi_cntr_open(with.domain, nullptr, &cntr, nullptr), 0);
    RVT_EQ(fi_mr_bind(with.mr, &cntr->fid, FI_REMOTE_WRITE), -FI_EOPNOTSUPP);
    RVT_EQ(fi_close(&cntr->fid), 0);
}

Test(nic_offer, a_region_that_the_nic_has_no_room_for_is_not_the_limit_of_locked_memory) {
    World on([](verbs::MockNic& mock) { mock.attr.max_mr = 2; });
    Endpoints with;  // has one
    on.mock.most_regions = 2;
    fid_mr* second = nullptr;
    fid_mr* third = nullptr;
    const auto reg = [&](fid_mr** mr) {
        return fi_mr_reg(with.domain, with.memory.data(), 64, FI_SEND, 0, 0, 0, mr, {});
    };
    RVT_EQ(reg(&second), 0);
    warnings.clear();
    util::set_log_sink(&kSink);
    RVT_EQ(reg(&third), -FI_ENOSPC);
    cr_assert(warnings.find("all 2 regions (max_mr)") != std::string::npos &&
                  warnings.find("ulimit") == std::string::npos,
              "%s", warnings.c_str());
    RVT_EQ(fi_close(&second->fid), 0);
}

Test(nic_offer, as_many_endpoints_and_regions_are_offered_as_the_nic_has) {
    World on([](verbs::MockNic& mock) {
        mock.attr.max_qp = 12;
        mock.attr.max_mr = 9;
    });
    Endpoints with(true);
    RVT_EQ(with.info->domain_attr->ep_cnt, 12);
    RVT_EQ(with.info->domain_attr->tx_ctx_cnt, 12);
    RVT_EQ(with.info->domain_attr->rx_ctx_cnt, 12);
    RVT_EQ(with.info->domain_attr->max_ep_srx_ctx, 12);
    RVT_EQ(with.info->domain_attr->mr_cnt, 9);
    const auto asked_regions = [](std::size_t count) {
        return asked([count](fi_info& hints) { hints.domain_attr->mr_cnt = count; });
    };
    RVT_EQ(asked_regions(9), 0);
    RVT_EQ(asked_regions(10), -FI_ENODATA);
}

Test(nic_offer, a_nic_that_does_not_say_how_many_regions_it_has_is_asked_when_they_are_made) {
    World on([](verbs::MockNic& mock) { mock.attr.max_mr = 0; });
    Endpoints with;
    RVT_NE(with.info->domain_attr->mr_cnt, 0);
}
