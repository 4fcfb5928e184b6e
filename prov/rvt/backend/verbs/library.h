// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The functions of libibverbs and librdmacm that the backend calls. Both are loaded when a NIC is
// looked for, so that the provider also runs where there is no rdma-core.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

namespace rvt::verbs {

// clang-format off
#define RVT_IBVERBS_FUNCTIONS(X) \
    X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_get_device_guid) \
    X(ibv_open_device) X(ibv_close_device) X(ibv_query_device) X(_ibv_query_gid_ex) X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr_iova2) \
    X(ibv_reg_dmabuf_mr) X(ibv_dereg_mr) X(ibv_rereg_mr) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) X(ibv_create_cq) \
    X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_create_qp) X(ibv_qp_to_qp_ex) X(ibv_modify_qp) X(ibv_destroy_qp) \
    X(ibv_create_srq) X(ibv_destroy_srq) \
    X(ibv_create_ah) X(ibv_destroy_ah) X(ibv_attach_mcast) X(ibv_detach_mcast) X(ibv_get_async_event) \
    X(ibv_ack_async_event) X(ibv_event_type_str) X(ibv_query_pkey)
#define RVT_RDMACM_FUNCTIONS(X) \
    X(rdma_create_event_channel) X(rdma_destroy_event_channel) X(rdma_create_id) X(rdma_destroy_id) X(rdma_bind_addr) \
    X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_init_qp_attr) X(rdma_connect) X(rdma_establish) X(rdma_listen) \
    X(rdma_accept) X(rdma_reject) X(rdma_disconnect) X(rdma_notify) X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_get_src_port)
// clang-format on

/// Each function under its name, as the manual pages of rdma-core describe it.
struct Library {
    // NOLINTNEXTLINE(bugprone-macro-parentheses): a member's name has none
#define RVT_FUNCTION(name) decltype(&::name) name = nullptr;
    RVT_IBVERBS_FUNCTIONS(RVT_FUNCTION)
    RVT_RDMACM_FUNCTIONS(RVT_FUNCTION)
#undef RVT_FUNCTION
};

/// nullptr: this host has no rdma-core, or one older than the functions above. Loaded at the first
/// call and kept. Threads: any.
const Library* library() noexcept;

/// The same, where an object of it exists already.
const Library& lib() noexcept;

/// Has library() give these functions in place of rdma-core's; nullptr: rdma-core's again. For
/// tests. Threads: while no other thread is in this backend.
void use_library(const Library* functions) noexcept;

}  // namespace rvt::verbs
