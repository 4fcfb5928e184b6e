// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The mock as a device: how it is found, opened and asked what it is.
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backend/verbs/mock_objects.h"

namespace rvt::verbs {
namespace {

ibv_context* mock_context = nullptr;

ibv_device** get_device_list(int* count) {
    if (fails("get_device_list")) {
        return nullptr;
    }
    *count = static_cast<int>(mock->others.size()) + 1;
    auto* const list = new ibv_device* [mock->others.size() + 2] {};
    ibv_device** next = list;
    for (MockNic::Other& other : mock->others) {
        *next++ = &other.device;
    }
    *next = &mock->device;
    return list;
}
void free_device_list(ibv_device** list) {
    delete[] list;
}
const char* get_device_name(ibv_device* device) {
    return device->name;
}
/// What is none of the others is this one, also as it was listed before.
MockNic::Other* other_at(const ibv_device* device) {
    for (MockNic::Other& other : mock->others) {
        if (&other.device == device) {
            return &other;
        }
    }
    return nullptr;
}
__be64 get_device_guid(ibv_device* device) {
    const MockNic::Other* const other = other_at(device);
    return other != nullptr ? other->guid : mock->attr.node_guid;
}
ibv_context* open_device(ibv_device* device) {
    if (other_at(device) != nullptr) {
        errno = EACCES;
        return nullptr;
    }
    if (fails("open_device")) {
        return nullptr;
    }
    ++mock->live;
    mock_context->cmd_fd = eventfd(0, EFD_CLOEXEC);
    mock_context->async_fd = eventfd(0, EFD_CLOEXEC);
    return mock_context;
}
int close_device(ibv_context* context) {
    --mock->live;
    close(context->cmd_fd);
    return close(context->async_fd);
}
int query_device(ibv_context*, ibv_device_attr* attr) {
    if (fails("query_device")) {
        return errno;
    }
    *attr = mock->attr;
    return 0;
}
int query_port(ibv_context*, std::uint8_t number, ibv_port_attr* attr, std::size_t) {
    const bool is_one = number != 0 && number <= mock->attr.phys_port_cnt;
    if (!is_one || fails("query_port")) {
        return is_one ? errno : EINVAL;
    }
    *attr = mock->port;
    attr->pkey_tbl_len = static_cast<std::uint16_t>(mock->pkeys.size());
    return 0;
}
int query_gid_ex(ibv_context*, std::uint32_t, std::uint32_t index, ibv_gid_entry* entry,
                 std::uint32_t, std::size_t) {
    if (fails("query_gid") || index >= mock->gids.size()) {
        return ENODATA;
    }
    *entry = mock->gids[index];
    return 0;
}
int query_pkey(ibv_context*, std::uint8_t, int index, __be16* pkey) {
    if (fails("query_pkey")) {
        return -1;
    }
    if (static_cast<std::size_t>(index) >= mock->pkeys.size()) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htons(mock->pkeys[static_cast<std::size_t>(index)]);
    return 0;
}

}  // namespace

void add_device(verbs_context& context, Library& functions) {
    mock_context = &context.context;
    context.sz = sizeof context;
    context.query_port = query_port;
    context.context.device = &mock->device;
    context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    functions.ibv_get_device_list = get_device_list;
    functions.ibv_free_device_list = free_device_list;
    functions.ibv_get_device_name = get_device_name;
    functions.ibv_get_device_guid = get_device_guid;
    functions.ibv_open_device = open_device;
    functions.ibv_close_device = close_device;
    functions.ibv_query_device = query_device;
    functions._ibv_query_gid_ex = query_gid_ex;
    functions.ibv_query_pkey = query_pkey;
}

}  // namespace rvt::verbs
