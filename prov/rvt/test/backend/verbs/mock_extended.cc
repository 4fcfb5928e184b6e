// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The extended verbs of the mock: each leads to the plain call that does the same.
#include <cerrno>

#include "backend/verbs/mock_objects.h"

namespace rvt::verbs {
namespace {

bool next_entry(MockCq& queue) {
    const bool is_there = ibv_poll_cq(queue.base(), 1, &queue.now) == 1;
    queue.wr_id = queue.now.wr_id;
    queue.status = queue.now.status;
    errno = ENOENT;
    return is_there;
}
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
    ibv_cq* const made = mock->extends ? lib().ibv_create_cq(context, static_cast<int>(attr->cqe),
                                                             attr->cq_context, attr->channel, 0)
                                       : nullptr;
    if (made == nullptr) {
        errno = mock->extends ? errno : EOPNOTSUPP;
        return nullptr;
    }
    MockCq& queue = MockCq::of(made);
    queue.start_poll = [](ibv_cq_ex* self, ibv_poll_cq_attr*) {
        return mock->failing == "poll_cq" ? mock->error : next_entry(MockCq::of(self)) ? 0 : ENOENT;
    };
    queue.next_poll = [](ibv_cq_ex* self) {
        return mock->failing == "next_poll"   ? mock->error
               : next_entry(MockCq::of(self)) ? 0
                                              : ENOENT;
    };
    queue.end_poll = [](ibv_cq_ex*) {};
    queue.read_opcode = [](ibv_cq_ex* self) { return MockCq::of(self).now.opcode; };
    queue.read_vendor_err = [](ibv_cq_ex* self) { return MockCq::of(self).now.vendor_err; };
    queue.read_byte_len = [](ibv_cq_ex* self) { return MockCq::of(self).now.byte_len; };
    queue.read_imm_data = [](ibv_cq_ex* self) { return MockCq::of(self).now.imm_data; };
    queue.read_qp_num = [](ibv_cq_ex* self) { return MockCq::of(self).now.qp_num; };
    queue.read_src_qp = [](ibv_cq_ex* self) { return MockCq::of(self).now.src_qp; };
    queue.read_wc_flags = [](ibv_cq_ex* self) {
        return static_cast<unsigned>(MockCq::of(self).now.wc_flags);
    };
    ++mock->extended_queues;
    return &queue;
}

void build(ibv_qp_ex* which, ibv_wr_opcode opcode) {
    MockPair& pair = MockPair::of(which);
    pair.built.wr_id = pair.wr_id;
    pair.built.opcode = opcode;
    pair.built.send_flags = pair.wr_flags;
}
void build_rdma(ibv_qp_ex* which, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address) {
    build(which, opcode);
    MockPair::of(which).built.wr.rdma = {.remote_addr = address, .rkey = rkey};
}
void set_place(ibv_qp_ex* which, std::uint32_t lkey, std::uint64_t address, std::uint32_t bytes) {
    MockPair& pair = MockPair::of(which);
    pair.place = {.addr = address, .length = bytes, .lkey = lkey};
    pair.built.sg_list = &pair.place;
    pair.built.num_sge = 1;
}
ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
    ibv_qp_init_attr init{};
    init.qp_context = attr->qp_context;
    init.send_cq = attr->send_cq;
    init.recv_cq = attr->recv_cq;
    init.srq = attr->srq;
    init.cap = attr->cap;
    init.sq_sig_all = attr->sq_sig_all;
    ibv_qp* const made = mock->extends ? lib().ibv_create_qp(attr->pd, &init) : nullptr;
    if (made == nullptr) {
        errno = mock->extends ? errno : EOPNOTSUPP;
        return nullptr;
    }
    MockPair& pair = MockPair::of(made);
    pair.is_extended = true;
    pair.wr_start = [](ibv_qp_ex* self) { MockPair::of(self).built = {}; };
    pair.wr_send = [](ibv_qp_ex* self) { build(self, IBV_WR_SEND); };
    pair.wr_rdma_write = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address) {
        build_rdma(self, IBV_WR_RDMA_WRITE, rkey, address);
    };
    pair.wr_rdma_read = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address) {
        build_rdma(self, IBV_WR_RDMA_READ, rkey, address);
    };
    pair.wr_set_sge = set_place;
    pair.wr_set_inline_data = [](ibv_qp_ex* self, void* data, std::size_t bytes) {
        set_place(self, 0, reinterpret_cast<std::uintptr_t>(data),
                  static_cast<std::uint32_t>(bytes));
    };
    pair.wr_complete = [](ibv_qp_ex* self) {
        ++mock->built;
        ibv_send_wr* refused = nullptr;
        const int error = ibv_post_send(&self->qp_base, &MockPair::of(self).built, &refused);
        return error == ENOMEM ? ENOSPC : error;
    };
    return made;
}
ibv_qp_ex* qp_to_qp_ex(ibv_qp* pair) {
    return MockPair::of(pair).is_extended ? &MockPair::of(pair) : nullptr;
}

}  // namespace

void add_extended_verbs(verbs_context& context, Library& functions) {
    context.create_cq_ex = create_cq_ex;
    context.create_qp_ex = create_qp_ex;
    functions.ibv_qp_to_qp_ex = qp_to_qp_ex;
}

}  // namespace rvt::verbs
