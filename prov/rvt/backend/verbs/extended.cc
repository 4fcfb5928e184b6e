// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Making what the extended verbs work on.
#include "backend/verbs/extended.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <arpa/inet.h>

#include "backend/verbs/owned_raw.h"
#include "core/wr_table.h"

namespace rvt::verbs {
namespace {

constexpr std::uint64_t kRead =
    IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP;

static_assert(offsetof(ibv_qp_ex, qp_base) == 0, "a pair is found from its base");

template <auto kCall>
bool has_call(const ibv_qp_ex& pair) noexcept {
    return pair.*kCall != nullptr;
}

struct Row {
    WrOpcode opcode;
    std::uint64_t operation;  // as ibv_create_qp_ex(3) calls it
    bool has_list;            // else of one buffer only
    bool (*is_there)(const ibv_qp_ex&) noexcept;
};

// What begin() knows. The one buffer of an atomic is refused by bnxt_re as a list, once for all.
// clang-format off
constexpr Row kRows[] = {
    {WrOpcode::kSend,     IBV_QP_EX_WITH_SEND,                 true,  has_call<&ibv_qp_ex::wr_send>},
    {WrOpcode::kSendImm,  IBV_QP_EX_WITH_SEND_WITH_IMM,        true,  has_call<&ibv_qp_ex::wr_send_imm>},
    {WrOpcode::kSendInv,  IBV_QP_EX_WITH_SEND_WITH_INV,        true,  has_call<&ibv_qp_ex::wr_send_inv>},
    {WrOpcode::kWrite,    IBV_QP_EX_WITH_RDMA_WRITE,           true,  has_call<&ibv_qp_ex::wr_rdma_write>},
    {WrOpcode::kWriteImm, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,  true,  has_call<&ibv_qp_ex::wr_rdma_write_imm>},
    {WrOpcode::kRead,     IBV_QP_EX_WITH_RDMA_READ,            true,  has_call<&ibv_qp_ex::wr_rdma_read>},
    {WrOpcode::kCas,      IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,   false, has_call<&ibv_qp_ex::wr_atomic_cmp_swp>},
    {WrOpcode::kFetchAdd, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, false, has_call<&ibv_qp_ex::wr_atomic_fetch_add>},
};
// clang-format on

/// The calls that build() makes of each request.
bool has_setters(const ibv_qp_ex& pair, QpType type) noexcept {
    return pair.wr_start != nullptr && pair.wr_complete != nullptr && pair.wr_set_sge != nullptr &&
           pair.wr_set_inline_data != nullptr &&
           (type != QpType::kUd || pair.wr_set_ud_addr != nullptr);
}

/// What a pair has that was made for these opcodes. Some drivers take operations, and have no call.
Builds try_builds(ibv_context& context, ibv_pd& pd, ibv_cq& queue, QpType type,
                  std::uint32_t opcodes) noexcept {
    ibv_qp_init_attr init{};
    init.send_cq = &queue;
    init.recv_cq = &queue;
    init.qp_type = to_ibv(type);
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    const OwnedRaw<ibv_qp> made(create_extended_pair(context, pd, init, {.opcodes = opcodes}));
    const auto* const pair = reinterpret_cast<const ibv_qp_ex*>(made.get());
    Builds found;
    if (pair == nullptr || !has_setters(*pair, type)) {
        return found;
    }
    for (const Row& row : kRows) {
        const std::uint32_t bit = Builds::bit_of(row.opcode);
        if ((opcodes & bit) != 0 && row.is_there(*pair)) {
            found.opcodes |= bit;
            found.lists |= row.has_list && pair->wr_set_sge_list != nullptr ? bit : 0;
        }
    }
    return found;
}

}  // namespace

Builds find_builds(ibv_context& context, ibv_pd& pd, ibv_cq& queue, QpType type) noexcept {
    std::uint32_t wanted = 0;
    for (const Row& row : kRows) {
        wanted |= takes(*core::wr_info(row.opcode), type) ? Builds::bit_of(row.opcode) : 0;
    }
    const Builds all = try_builds(context, pd, queue, type, wanted);
    if (all.is_any() || verbs_get_ctx_op(&context, create_qp_ex) == nullptr) {
        return all;
    }
    // One that it does not have is enough for it to refuse all.
    std::uint32_t single = 0;
    for (const Row& row : kRows) {
        const std::uint32_t bit = wanted & Builds::bit_of(row.opcode);
        single |= bit != 0 ? try_builds(context, pd, queue, type, bit).opcodes : 0;
    }
    return single != 0 ? try_builds(context, pd, queue, type, single) : Builds{};
}

ibv_qp* create_extended_pair(ibv_context& context, ibv_pd& pd, ibv_qp_init_attr& init,
                             const Builds& builds) noexcept {
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
    for (const Row& row : kRows) {
        wanted.send_ops_flags |= builds.has(row.opcode) ? row.operation : 0;
    }
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

void begin_other(ibv_qp_ex& to, const SendWr& wr, WrOpcode opcode) noexcept {
    switch (opcode) {
        case WrOpcode::kSendImm: ibv_wr_send_imm(&to, htonl(wr.imm)); break;
        case WrOpcode::kSendInv: ibv_wr_send_inv(&to, wr.imm); break;
        case WrOpcode::kWriteImm:
            ibv_wr_rdma_write_imm(&to, wr.rkey, wr.remote_addr, htonl(wr.imm));
            break;
        case WrOpcode::kCas:
            ibv_wr_atomic_cmp_swp(&to, wr.rkey, wr.remote_addr, wr.compare_add, wr.swap);
            break;
        case WrOpcode::kFetchAdd:
            ibv_wr_atomic_fetch_add(&to, wr.rkey, wr.remote_addr, wr.compare_add);
            break;
        default: break;  // begin()'s own, and none that Builds has
    }
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
