// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A NIC that exists only here: the functions of libibverbs that the backend calls, and what they
// were called with. One at a time; while it exists, the backend finds it in place of rdma-core.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "backend/verbs/library.h"

namespace rvt::verbs {

class MockNic {
  public:
    MockNic();
    ~MockNic();
    MockNic(const MockNic&) = delete;
    MockNic& operator=(const MockNic&) = delete;

    // What it is; to be changed before it is opened.
    ibv_device device{};
    ibv_device_attr attr{};
    ibv_port_attr port{};
    std::uint32_t max_inline = 128;
    std::vector<ibv_gid_entry> gids;  // by index

    // What it answers: an errno, or 0.
    std::string_view failing;  // the call that fails with EMFILE
    int reg_mr_error = 0;
    int dmabuf_error = 0;
    int create_qp_error = 0;

    // What it was asked.
    struct Region {
        std::uint64_t addr, length, iova, offset;
        int fd;  // -1: no dma-buf
        int access;
    };
    std::vector<Region> regions;
    std::vector<ibv_qp_attr> modified;
    std::vector<int> masks;
    std::vector<ibv_send_wr> sends;

    // What happens next.
    std::deque<ibv_wc> completions;
    std::deque<ibv_async_event> events;
    unsigned acknowledged = 0;

    int live = 0;  // objects that have not been destroyed
    ibv_qp* last_pair = nullptr;

  private:
    Library functions_{};
    verbs_context context_{};
};

}  // namespace rvt::verbs
