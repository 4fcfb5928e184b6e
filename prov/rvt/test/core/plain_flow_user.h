// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A user of flows to whom all messages are alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rd_flow.h"

namespace rvt::test {

class PlainFlowUser : public core::RdFlowUser {
  public:
    void take_eager(void* peer, core::RdEagerHead head, std::uint64_t tag, std::uint64_t data,
                    const std::byte* payload) noexcept final {
        take_message(peer, {.op = core::RdOp::kEager,
                            .flags = head.flags(),
                            .length = head.length(),
                            .tag = tag,
                            .data = data,
                            .payload = payload,
                            .payload_bytes = head.length()});
    }

  protected:
    ~PlainFlowUser() = default;
};

}  // namespace rvt::test
