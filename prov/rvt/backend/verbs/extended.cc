// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Making what the extended verbs work on.
#include "backend/verbs/extended.h"

#include <cerrno>
#include <cstddef>

#include "backend/verbs/owned_raw.h"

namespace rvt::verbs {
namespace {

constexpr std::uint64_t kBuilt =
    IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ;
constexpr std::uint64_t kRead =
    IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP;

static_assert(offsetof(ibv_qp_ex, qp_base) == 0, "a pair is found from its base");

}  // namespace

ibv_qp* create_extended_pair(ibv_context& context, ibv_pd& pd, ibv_qp_init_attr& init) noexcept {
    auto* const driver = verbs_get_ctx_op(&context, create_qp_ex);
    if (driver == nullptr) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_context = init.qp_context;
    wanted.send_cq = init.send_cq;
    wanted.recv_cq = init.recv_cq;
    wanted.srq = init.srq;
    wanted.cap = init.cap;
    wanted.qp_type = init.qp_type;
    wanted.sq_sig_all = init.sq_sig_all;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    wanted.pd = &pd;
    wanted.send_ops_flags = kBuilt;
    ibv_qp* const made = driver->create_qp_ex(&context, &wanted);
    if (made == nullptr) {
        return nullptr;
    }
    ibv_qp_ex* const extended = lib().ibv_qp_to_qp_ex(made);
    if (extended == nullptr) {
        EndRaw{}(made);
        errno = EOPNOTSUPP;
        return nullptr;
    }
    init.cap = wanted.cap;
    return &extended->qp_base;
}

ibv_cq* create_extended_queue(ibv_context& context, int depth, void* user,
                              ibv_comp_channel* channel) noexcept {
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = static_cast<std::uint32_t>(depth);
    wanted.cq_context = user;
    wanted.channel = channel;
    wanted.wc_flags = kRead;
    ibv_cq_ex* const made = ibv_create_cq_ex(&context, &wanted);
    return made != nullptr ? ibv_cq_ex_to_cq(made) : nullptr;
}

Polled poll_extended(ibv_cq& queue, std::span<core::Wc> to) noexcept {
    auto* const from = reinterpret_cast<ibv_cq_ex*>(&queue);  // as ibv_cq_ex_to_cq() has it
    ibv_poll_cq_attr attr{};
    if (to.empty()) {
        return {};
    }
    unsigned taken = 0;
    int answer = ibv_start_poll(from, &attr);
    if (answer == 0) {
        do {
            read_completion(*from, to[taken]);
            ++taken;
            answer = taken < to.size() ? ibv_next_poll(from) : ENOENT;
        } while (answer == 0);
        ibv_end_poll(from);
    }
    return {.taken = taken, .error = answer == ENOENT ? 0 : answer};
}

}  // namespace rvt::verbs
