// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What each kind of endpoint offers at most. fi_getinfo(3), fi_endpoint(3), fi_domain(3).
#include <algorithm>
#include <bit>

#include "core/rd_types.h"
#include "ofi/domain.h"
#include "ofi/ep_dgram.h"
#include "ofi/ep_msg.h"
#include "ofi/info.h"
#include "ofi/mr.h"
#include "ofi/msg_options.h"
#include "util/params.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kPrimary = FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | FI_READ | FI_WRITE |
                                   FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE |
                                   FI_DIRECTED_RECV;
constexpr std::uint64_t kSecondary =
    FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT | FI_FENCE | FI_LOCAL_COMM | kTaggedDirectedRecv;
// Access overtakes messages that wait, never the other way round: a send after a write or atomic
// stays one. The data of a large read may leave after a later send has, so that SAR is not kept.
constexpr std::uint64_t kOrderOfMessages = FI_ORDER_SAS | FI_ORDER_SAW;
constexpr std::uint64_t kOrderOfMemory =
    FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_RMA_RAR |
    FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAR |
    FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
constexpr std::size_t kMaxQueue = std::size_t{1} << 20;
// Nobody counts queues and counters: there are as many as there are descriptors and memory.
constexpr std::size_t kMaxObjects = 65536;
// Each endpoint has a port of its address.
constexpr std::size_t kMaxPorts = 65535;

/// How many endpoints a domain can have, each with one context for each direction.
void limit_endpoints(fi_domain_attr& domain, std::size_t most) noexcept {
    domain.ep_cnt = most;
    domain.tx_ctx_cnt = most;
    domain.rx_ctx_cnt = most;
}

void fill_tx(fi_tx_attr& tx, std::uint64_t caps) noexcept {
    tx.caps = caps & kTxCaps;
    tx.op_flags = kTxOpFlags;
    tx.msg_order = kOrderOfMessages | kOrderOfMemory;
    tx.comp_order = kOrderNone;
    tx.inject_size = core::kMaxInjectSize;
    tx.size = kMaxQueue;
    tx.iov_limit = core::kMaxIov;
    tx.rma_iov_limit = core::kMaxIov;
}

void fill_rx(fi_rx_attr& rx, std::uint64_t caps) noexcept {
    rx.caps = caps & kRxCaps;
    rx.op_flags = kRxOpFlags;
    rx.msg_order = kOrderOfMessages | kOrderOfMemory;
    rx.comp_order = kOrderNone;
    rx.total_buffered_recv = std::size_t{64} << 30;
    rx.size = kMaxQueue;
    rx.iov_limit = core::kMaxIov;
}

void fill_ep(fi_ep_attr& ep) noexcept {
    ep.type = FI_EP_RDM;
    ep.protocol = kProtocol;
    ep.protocol_version = kProtocolVersion;
    ep.max_msg_size = core::kMaxMessageSize;
    ep.max_order_raw_size = core::kMaxOrderedRmaSize;
    ep.max_order_war_size = core::kMaxOrderedRmaSize;
    ep.max_order_waw_size = core::kMaxOrderedRmaSize;
    ep.mem_tag_format = kTagFormat;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
}

void fill_domain(fi_domain_attr& domain, std::uint64_t caps) noexcept {
    domain.name = const_cast<char*>(kDomainName);
    domain.threading = FI_THREAD_SAFE;
    domain.control_progress = FI_PROGRESS_AUTO;
    domain.data_progress = FI_PROGRESS_MANUAL;
    domain.resource_mgmt = FI_RM_ENABLED;
    domain.av_type = FI_AV_UNSPEC;
    domain.mr_key_size = sizeof(std::uint64_t);
    domain.cq_data_size = sizeof(std::uint64_t);
    domain.cq_cnt = kMaxObjects;
    limit_endpoints(domain, kMaxPorts);
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = kMaxObjects;
    domain.mr_iov_limit = kMaxMrIov;
    domain.caps = caps & kDomainCaps;
    domain.mr_cnt = kKeyTableEntries - 1;
}

}  // namespace

const std::uint64_t kTxCaps = FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | FI_READ | FI_WRITE |
                              FI_SEND | FI_FENCE | FI_MULTICAST | FI_HMEM;
const std::uint64_t kRxCaps = FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | FI_RECV | FI_REMOTE_READ |
                              FI_REMOTE_WRITE | FI_DIRECTED_RECV | kTaggedDirectedRecv |
                              FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT | FI_HMEM;
const std::uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM;
const std::uint64_t kOrderOfReads = FI_ORDER_RAR | FI_ORDER_RMA_RAR;
const std::uint64_t kTxOpFlags = FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE |
                                 FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
const std::uint64_t kRxOpFlags = FI_COMPLETION | FI_MULTI_RECV | FI_TRANSMIT_COMPLETE;

namespace {

/// What all types have in common, and who the attributes belong to.
void fill_names(Offer& offer) noexcept {
    offer.fabric.name = const_cast<char*>(kFabricName);
    offer.fabric.prov_name = const_cast<char*>(kProvName);
    offer.fabric.prov_version = FI_VERSION(RVT_VERSION_MAJOR, RVT_VERSION_MINOR);
    offer.info.tx_attr = &offer.tx;
    offer.info.rx_attr = &offer.rx;
    offer.info.ep_attr = &offer.ep;
    offer.info.domain_attr = &offer.domain;
    offer.info.fabric_attr = &offer.fabric;
}

/// Or says that it does.
bool reaches_others(const util::SockAddr& source) noexcept {
    const bool is_wired = !source.is_loopback() && util::param_is_set(util::ParamId::kRoce);
    return is_wired || util::param_is_set(util::ParamId::kHostRemote);
}

void fill_rdm_offer(Offer& offer, const util::SockAddr& source) noexcept {
    const bool claims_remote = reaches_others(source);
    offer.info.caps = kPrimary | kSecondary | FI_HMEM | (claims_remote ? FI_REMOTE_COMM : 0);
    fill_tx(offer.tx, offer.info.caps);
    fill_rx(offer.rx, offer.info.caps);
    offer.order_for_who_asks = kOrderOfReads;
    fill_ep(offer.ep);
    fill_domain(offer.domain, offer.info.caps);
    fill_names(offer);
}

// A connection keeps all requests in order, but for data that a READ brings: it may come after what
// was asked for later.
constexpr std::uint64_t kMsgOrder = FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS | FI_ORDER_WAW |
                                    FI_ORDER_WAS | FI_ORDER_SAW | FI_ORDER_SAS | FI_ORDER_RMA_RAR |
                                    FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAR |
                                    FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
constexpr std::uint64_t kMsgPrimary = FI_MSG | FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_RECV |
                                      FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE;

}  // namespace

void fill_msg_offer(Offer& offer, const util::SockAddr& source) noexcept {
    fill_rdm_offer(offer, source);
    offer.info.caps =
        kMsgPrimary | FI_FENCE | FI_HMEM | FI_LOCAL_COMM | (offer.info.caps & FI_REMOTE_COMM);
    offer.info.mode = FI_RX_CQ_DATA;
    offer.memory_mr_mode = FI_MR_PROV_KEY;
    offer.default_queue = 256;
    offer.order_for_who_asks = 0;
    offer.tx.caps = offer.info.caps & kTxCaps;
    offer.tx.op_flags = msg_op_flags().tx;
    offer.tx.msg_order = kMsgOrder;
    offer.tx.comp_order = FI_ORDER_STRICT;
    offer.tx.inject_size = kMsgInject;
    offer.tx.size = kMsgMaxQueue;
    offer.tx.iov_limit = kMsgIov;
    offer.tx.rma_iov_limit = 1;
    offer.rx.caps = offer.info.caps & kRxCaps;
    offer.rx.mode = FI_RX_CQ_DATA;
    offer.rx.op_flags = msg_op_flags().rx;
    offer.rx.msg_order = kMsgOrder;
    offer.rx.comp_order = FI_ORDER_STRICT;
    offer.rx.total_buffered_recv = 0;
    offer.rx.size = kMsgMaxQueue;
    offer.rx.iov_limit = kMsgIov;
    offer.domain.max_err_data = protocol::kRejPrivateBytes;
    offer.ep.type = FI_EP_MSG;
    offer.ep.protocol = FI_PROTO_RDMA_CM_IB_RC;
    offer.ep.protocol_version = 1;
    offer.ep.max_msg_size = kMsgMaxBytes;
    offer.ep.max_order_raw_size = kMsgMaxBytes;
    offer.ep.max_order_war_size = sizeof(std::uint64_t);
    offer.ep.max_order_waw_size = kMsgMaxBytes;
    offer.ep.mem_tag_format = 0;
    offer.domain.mr_key_size = sizeof(std::uint32_t);
    offer.domain.cq_data_size = sizeof(std::uint32_t);
    limit_endpoints(offer.domain, kMsgMaxPairs);
    offer.domain.max_ep_srx_ctx = kMsgMaxPairs;
}

namespace {

// What is registered is named by the NIC's keys.
constexpr int kNicMrMode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;

/// An endpoint is a pair of the NIC's, a region one of its regions.
void limit_to_nic(fi_domain_attr& domain, const MsgNicOffer& nic) noexcept {
    if (nic.max_pairs != 0) {
        limit_endpoints(domain, nic.max_pairs);
    }
    domain.mr_cnt = nic.max_regions != 0 ? nic.max_regions : domain.mr_cnt;
}

void name_after(Offer& offer, const MsgNicOffer& nic) noexcept {
    offer.domain.name = const_cast<char*>(nic.name.c_str());
    offer.opened_as = nic.identity.empty() ? nullptr : nic.identity.c_str();
}

/// A datagram is one packet of a UD pair, in no order, with four bytes beside it.
void fill_dgram_offer(Offer& offer, const util::SockAddr& source) noexcept {
    const bool claims_remote = reaches_others(source);
    const auto bytes = dgram_hosts().bytes_of(source);
    offer.info.caps = FI_MSG | FI_MULTICAST | FI_SEND | FI_RECV | FI_SOURCE | FI_HMEM |
                      FI_LOCAL_COMM | (claims_remote ? std::uint64_t{FI_REMOTE_COMM} : 0);
    offer.default_queue = kDgramQueue;
    offer.tx.caps = offer.info.caps & kTxCaps & ~std::uint64_t{FI_RECV};
    offer.tx.op_flags = kDgramTxOpFlags;
    offer.tx.inject_size = core::kUdInjectBytes;
    offer.tx.size = kMaxDgramQueue;
    offer.tx.iov_limit = core::kMaxIov;
    offer.rx.caps = offer.info.caps & kRxCaps & ~std::uint64_t{FI_SEND};
    offer.rx.op_flags = kDgramRxOpFlags;
    offer.rx.size = kMaxDgramQueue;
    offer.rx.iov_limit = core::kMaxIov;
    offer.ep.type = FI_EP_DGRAM;
    offer.ep.protocol = FI_PROTO_IB_UD;
    offer.ep.protocol_version = kProtocolVersion;
    offer.ep.max_msg_size = bytes.is_ok() ? bytes.value() : 0;
    offer.ep.tx_ctx_cnt = 1;
    offer.ep.rx_ctx_cnt = 1;
    fill_domain(offer.domain, offer.info.caps);
    offer.domain.cq_data_size = sizeof(std::uint32_t);
    fill_names(offer);
}

constexpr Candidate kCandidates[] = {
    {FI_EP_RDM, fill_rdm_offer}, {FI_EP_MSG, fill_msg_offer}, {FI_EP_DGRAM, fill_dgram_offer}};

}  // namespace

std::span<const Candidate> candidates() noexcept {
    return kCandidates;
}

void fill_nic_offer(Offer& offer, const MsgNicOffer& nic) noexcept {
    fill_msg_offer(offer, nic.address);
    const std::uint64_t missing = nic.has_atomics ? std::uint64_t{0} : std::uint64_t{FI_ATOMIC};
    offer.info.caps = (offer.info.caps & ~missing) | FI_REMOTE_COMM;
    offer.memory_mr_mode = kNicMrMode | (nic.needs_local_mr ? FI_MR_LOCAL : 0);
    offer.needed_mr_mode = offer.memory_mr_mode;
    const std::size_t queue = std::min(kMsgMaxQueue, nic.max_queue - 1);
    const std::size_t sge = std::min(kMsgIov, nic.max_sge);
    const std::size_t shared_sge = nic.has_srq ? nic.max_srq_sge : sge;
    offer.tx.caps = offer.info.caps & kTxCaps;
    offer.tx.inject_size = nic.inject_bytes;
    offer.tx.size = queue;
    offer.tx.iov_limit = std::min(sge, nic.max_read_sge);
    offer.rx.caps = offer.info.caps & kRxCaps;
    offer.rx.size = queue;
    offer.rx.iov_limit = std::min(sge, shared_sge);
    offer.ep.protocol = nic.is_iwarp ? FI_PROTO_IWARP : FI_PROTO_RDMA_CM_IB_RC;
    offer.ep.max_msg_size = std::min<std::size_t>(kMsgMaxBytes, nic.max_bytes);
    offer.ep.max_order_raw_size = offer.ep.max_msg_size;
    offer.ep.max_order_waw_size = offer.ep.max_msg_size;
    name_after(offer, nic);
    offer.domain.caps = offer.info.caps & kDomainCaps;
    offer.domain.mr_iov_limit = 1;
    limit_to_nic(offer.domain, nic);
    offer.domain.max_ep_srx_ctx = nic.has_srq ? offer.domain.ep_cnt : 0;
    if (!nic.has_cq_data) {
        offer.domain.cq_data_size = 0;
        offer.info.mode &= ~FI_RX_CQ_DATA;
        offer.rx.mode &= ~FI_RX_CQ_DATA;
    }
}

// Each datagram has a place in registered memory.
constexpr std::size_t kNicDgramQueue = 256;
// Who sends is known by its pair, and that only of whom something has been sent to.
constexpr std::uint64_t kNotOfNicDgram = FI_MULTICAST | FI_SOURCE;

void fill_nic_dgram_offer(Offer& offer, const MsgNicOffer& nic) noexcept {
    fill_dgram_offer(offer, nic.address);
    offer.info.caps = (offer.info.caps & ~kNotOfNicDgram) | FI_REMOTE_COMM;
    offer.default_queue = kNicDgramQueue;
    const std::size_t queue = std::min(kMaxDgramQueue, nic.max_queue - 1);
    offer.tx.caps = offer.info.caps & kTxCaps & ~std::uint64_t{FI_RECV};
    offer.tx.op_flags &= ~std::uint64_t{FI_MULTICAST};
    offer.tx.size = std::bit_floor(queue);  // of which each number has its place in a ring
    offer.rx.caps = offer.info.caps & kRxCaps & ~std::uint64_t{FI_SEND};
    offer.rx.size = queue;
    offer.ep.max_msg_size = nic.datagram_bytes;
    name_after(offer, nic);
    offer.domain.caps = offer.info.caps & kDomainCaps;
    limit_to_nic(offer.domain, nic);
}

}  // namespace rvt::ofi
