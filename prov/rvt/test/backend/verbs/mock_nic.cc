// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The functions of the mock.
#include "backend/verbs/mock_nic.h"

#include <cerrno>
#include <cstring>

#include <sys/eventfd.h>
#include <unistd.h>

namespace rvt::verbs {
namespace {

MockNic* mock = nullptr;
ibv_context* mock_context = nullptr;

/// Whether the test wants this call to fail.
bool fails(std::string_view call) {
    errno = EMFILE;
    return mock->failing == call;
}

template <class T>
T* make(T filled = {}) {
    ++mock->live;
    return new T(filled);
}
template <class T>
int destroy(T* object) {
    --mock->live;
    delete object;
    return 0;
}

ibv_device** get_device_list(int* count) {
    if (fails("get_device_list")) {
        return nullptr;
    }
    *count = 1;
    return new ibv_device* [2] { &mock->device, nullptr };
}
void free_device_list(ibv_device** list) {
    delete[] list;
}
const char* get_device_name(ibv_device* device) {
    return device->name;
}
ibv_context* open_device(ibv_device*) {
    if (fails("open_device")) {
        return nullptr;
    }
    ++mock->live;
    mock_context->async_fd = eventfd(0, EFD_CLOEXEC);
    return mock_context;
}
int close_device(ibv_context* context) {
    --mock->live;
    return close(context->async_fd);
}
int query_device(ibv_context*, ibv_device_attr* attr) {
    if (fails("query_device")) {
        return EMFILE;
    }
    *attr = mock->attr;
    return 0;
}
int query_port(ibv_context*, std::uint8_t number, ibv_port_attr* attr, std::size_t) {
    if (number == 0 || number > mock->attr.phys_port_cnt) {
        return EINVAL;
    }
    if (fails("query_port")) {
        return EMFILE;
    }
    *attr = mock->port;
    return 0;
}
int query_gid_ex(ibv_context*, std::uint32_t, std::uint32_t index, ibv_gid_entry* entry,
                 std::uint32_t, std::size_t) {
    if (index >= mock->gids.size()) {
        return ENODATA;
    }
    *entry = mock->gids[index];
    return 0;
}
ibv_pd* alloc_pd(ibv_context* context) {
    return fails("alloc_pd") ? nullptr : make<ibv_pd>({.context = context, .handle = 0});
}

ibv_mr* region(ibv_pd* pd, const MockNic::Region& asked, int error) {
    if (error != 0) {
        errno = error;
        return nullptr;
    }
    mock->regions.push_back(asked);
    ibv_mr made{};
    made.pd = pd;
    made.lkey = static_cast<std::uint32_t>(2 * mock->regions.size());
    made.rkey = made.lkey + 1;
    return make(made);
}
ibv_mr* reg_mr(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
    return region(pd,
                  {.addr = reinterpret_cast<std::uintptr_t>(addr),
                   .length = length,
                   .iova = iova,
                   .offset = 0,
                   .fd = -1,
                   .access = static_cast<int>(access)},
                  mock->reg_mr_error);
}
ibv_mr* reg_dmabuf(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                   int access) {
    return region(
        pd,
        {.addr = 0, .length = length, .iova = iova, .offset = offset, .fd = fd, .access = access},
        mock->dmabuf_error);
}

ibv_comp_channel* create_channel(ibv_context* context) {
    if (fails("create_comp_channel")) {
        return nullptr;
    }
    ibv_comp_channel made{};
    made.context = context;
    made.fd = eventfd(0, EFD_CLOEXEC);
    return make(made);
}
int destroy_channel(ibv_comp_channel* channel) {
    close(channel->fd);
    return destroy(channel);
}
ibv_cq* create_cq(ibv_context* context, int, void* user, ibv_comp_channel*, int) {
    if (fails("create_cq")) {
        return nullptr;
    }
    auto* const made = new ibv_cq{};
    ++mock->live;
    made->context = context;
    made->cq_context = user;
    return made;
}
int poll_cq(ibv_cq*, int most, ibv_wc* to) {
    int taken = 0;
    for (; taken < most && !mock->completions.empty(); ++taken) {
        to[taken] = mock->completions.front();
        mock->completions.pop_front();
    }
    return taken;
}
int no_cq_event(ibv_comp_channel*, ibv_cq**, void**) {
    return -1;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    const bool is_too_much = init->cap.max_inline_data > mock->max_inline;
    if (is_too_much || mock->create_qp_error != 0) {
        errno = is_too_much ? EINVAL : mock->create_qp_error;
        return nullptr;
    }
    auto* const made = new ibv_qp{};
    ++mock->live;
    made->context = pd->context;
    made->qp_context = init->qp_context;
    made->qp_num = 77;
    mock->last_pair = made;
    return made;
}
int modify_qp(ibv_qp*, ibv_qp_attr* attr, int mask) {
    mock->modified.push_back(*attr);
    mock->masks.push_back(mask);
    return 0;
}
int post_send(ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
    mock->sends.push_back(*wr);
    return 0;
}
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) {
    return ENOMEM;
}
int get_async_event(ibv_context*, ibv_async_event* event) {
    if (mock->events.empty()) {
        return -1;
    }
    *event = mock->events.front();
    mock->events.pop_front();
    return 0;
}
void ack_async_event(ibv_async_event*) {
    ++mock->acknowledged;
}
const char* event_type_str(ibv_event_type) {
    return "an event";
}

}  // namespace

MockNic::MockNic() {
    mock = this;
    std::strncpy(device.name, "mock0", sizeof device.name - 1);
    attr.vendor_id = 0x15b3;
    attr.phys_port_cnt = 2;
    attr.max_qp = 1000;
    attr.max_cqe = 4096;
    attr.max_qp_wr = 2048;
    attr.max_sge = 16;
    attr.max_srq = 4;
    attr.max_srq_wr = 2048;
    attr.max_qp_rd_atom = 8;
    attr.max_qp_init_rd_atom = 4;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    port.active_mtu = IBV_MTU_4096;
    port.max_msg_sz = 1u << 30;

    context_.sz = sizeof context_;
    context_.query_port = query_port;
    context_.context.device = &device;
    context_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context_.context.ops.poll_cq = poll_cq;
    context_.context.ops.post_send = post_send;
    context_.context.ops.post_recv = post_recv;
    mock_context = &context_.context;

    functions_.ibv_get_device_list = get_device_list;
    functions_.ibv_free_device_list = free_device_list;
    functions_.ibv_get_device_name = get_device_name;
    functions_.ibv_open_device = open_device;
    functions_.ibv_close_device = close_device;
    functions_.ibv_query_device = query_device;
    functions_._ibv_query_gid_ex = query_gid_ex;
    functions_.ibv_alloc_pd = alloc_pd;
    functions_.ibv_dealloc_pd = destroy<ibv_pd>;
    functions_.ibv_reg_mr_iova2 = reg_mr;
    functions_.ibv_reg_dmabuf_mr = reg_dmabuf;
    functions_.ibv_dereg_mr = destroy<ibv_mr>;
    functions_.ibv_create_comp_channel = create_channel;
    functions_.ibv_destroy_comp_channel = destroy_channel;
    functions_.ibv_create_cq = create_cq;
    functions_.ibv_destroy_cq = destroy<ibv_cq>;
    functions_.ibv_get_cq_event = no_cq_event;
    functions_.ibv_create_qp = create_qp;
    functions_.ibv_modify_qp = modify_qp;
    functions_.ibv_destroy_qp = destroy<ibv_qp>;
    functions_.ibv_get_async_event = get_async_event;
    functions_.ibv_ack_async_event = ack_async_event;
    functions_.ibv_event_type_str = event_type_str;
    use_library(&functions_);
}

MockNic::~MockNic() {
    use_library(nullptr);
    mock = nullptr;
}

}  // namespace rvt::verbs
