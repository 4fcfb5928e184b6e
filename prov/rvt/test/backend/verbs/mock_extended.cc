// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The extended verbs of the mock: each leads to the plain call that does the same.
#include <cerrno>
#include <cstddef>
#include <cstdint>

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

ibv_send_wr& begin(ibv_qp_ex* which, ibv_wr_opcode opcode) {
    MockPair& pair = MockPair::of(which);
    ++pair.steps.operations;
    pair.built.wr_id = pair.wr_id;
    pair.built.opcode = opcode;
    pair.built.send_flags = pair.wr_flags;
    return pair.built;
}
void begin_rdma(ibv_qp_ex* which, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address,
                std::uint32_t imm_data = 0) {
    ibv_send_wr& to = begin(which, opcode);
    to.wr.rdma = {.remote_addr = address, .rkey = rkey};
    to.imm_data = imm_data;
}
void set_places(ibv_qp_ex* which, std::size_t count, const ibv_sge* list) {
    MockPair& pair = MockPair::of(which);
    ++pair.steps.places;
    pair.places.assign(list, list + count);
    pair.built.sg_list = pair.places.data();
    pair.built.num_sge = static_cast<int>(count);
}
void set_place(ibv_qp_ex* which, std::uint32_t lkey, std::uint64_t address, std::uint32_t bytes) {
    const ibv_sge place{.addr = address, .length = bytes, .lkey = lkey};
    set_places(which, 1, &place);
}
void set_address(ibv_qp_ex* which, ibv_ah* ah, std::uint32_t qpn, std::uint32_t qkey) {
    MockPair& pair = MockPair::of(which);
    ++pair.steps.addresses;
    pair.built.wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = qkey};
}
/// ibv_wr_post(3): a request is told each thing that it needs once.
int complete(ibv_qp_ex* self) {
    MockPair& pair = MockPair::of(self);
    const unsigned addresses = self->qp_base.qp_type == IBV_QPT_UD ? 1 : 0;
    if (pair.steps != MockPair::Steps{.operations = 1, .places = 1, .addresses = addresses}) {
        return ENOTRECOVERABLE;
    }
    ++mock->built;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(&self->qp_base, &pair.built, &refused);
    return error == ENOMEM ? ENOSPC : error;
}

void add_sends(ibv_qp_ex& pair, std::uint64_t operations) {
    if ((operations & IBV_QP_EX_WITH_SEND) != 0) {
        pair.wr_send = [](ibv_qp_ex* self) { begin(self, IBV_WR_SEND); };
    }
    if ((operations & IBV_QP_EX_WITH_SEND_WITH_IMM) != 0) {
        pair.wr_send_imm = [](ibv_qp_ex* self, std::uint32_t imm_data) {
            begin(self, IBV_WR_SEND_WITH_IMM).imm_data = imm_data;
        };
    }
    if ((operations & IBV_QP_EX_WITH_SEND_WITH_INV) != 0) {
        pair.wr_send_inv = [](ibv_qp_ex* self, std::uint32_t rkey) {
            begin(self, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey;
        };
    }
}
void add_rdma(ibv_qp_ex& pair, std::uint64_t operations) {
    if ((operations & IBV_QP_EX_WITH_RDMA_WRITE) != 0) {
        pair.wr_rdma_write = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address) {
            begin_rdma(self, IBV_WR_RDMA_WRITE, rkey, address);
        };
    }
    if ((operations & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) != 0) {
        pair.wr_rdma_write_imm = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address,
                                    std::uint32_t imm_data) {
            begin_rdma(self, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm_data);
        };
    }
    if ((operations & IBV_QP_EX_WITH_RDMA_READ) != 0) {
        pair.wr_rdma_read = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address) {
            begin_rdma(self, IBV_WR_RDMA_READ, rkey, address);
        };
    }
}
void add_atomics(ibv_qp_ex& pair, std::uint64_t operations) {
    if ((operations & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) != 0) {
        pair.wr_atomic_cmp_swp = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address,
                                    std::uint64_t compare, std::uint64_t swap) {
            begin(self, IBV_WR_ATOMIC_CMP_AND_SWP).wr.atomic = {
                .remote_addr = address, .compare_add = compare, .swap = swap, .rkey = rkey};
        };
    }
    if ((operations & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) != 0) {
        pair.wr_atomic_fetch_add = [](ibv_qp_ex* self, std::uint32_t rkey, std::uint64_t address,
                                      std::uint64_t add) {
            begin(self, IBV_WR_ATOMIC_FETCH_AND_ADD).wr.atomic = {
                .remote_addr = address, .compare_add = add, .swap = 0, .rkey = rkey};
        };
    }
}
ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
    ibv_qp_init_attr init{};
    init.qp_context = attr->qp_context;
    init.send_cq = attr->send_cq;
    init.recv_cq = attr->recv_cq;
    init.srq = attr->srq;
    init.cap = attr->cap;
    init.qp_type = attr->qp_type;
    init.sq_sig_all = attr->sq_sig_all;
    const std::uint64_t there =
        attr->qp_type == IBV_QPT_UD ? mock->ud_operations : mock->rc_operations;
    const bool is_too_much = mock->refuses_operations && (attr->send_ops_flags & ~there) != 0;
    ibv_qp* const made =
        mock->extends && !is_too_much ? lib().ibv_create_qp(attr->pd, &init) : nullptr;
    if (made == nullptr) {
        errno = mock->extends && !is_too_much ? errno : EOPNOTSUPP;
        return nullptr;
    }
    MockPair& pair = MockPair::of(made);
    pair.is_extended = true;
    pair.wr_start = [](ibv_qp_ex* self) {
        MockPair::of(self).built = {};
        MockPair::of(self).steps = {};
    };
    add_sends(pair, attr->send_ops_flags & there);
    add_rdma(pair, attr->send_ops_flags & there);
    add_atomics(pair, attr->send_ops_flags & there);
    pair.wr_set_ud_addr = attr->qp_type == IBV_QPT_UD ? set_address : nullptr;
    pair.wr_set_sge = set_place;
    pair.wr_set_sge_list = set_places;
    pair.wr_set_inline_data = [](ibv_qp_ex* self, void* data, std::size_t bytes) {
        set_place(self, 0, reinterpret_cast<std::uintptr_t>(data),
                  static_cast<std::uint32_t>(bytes));
    };
    pair.wr_complete = complete;
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
