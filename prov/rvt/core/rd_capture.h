// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of RDM endpoints in a capture: as the frames that a flow would carry them in, one record
// each (docs/roce.md, section 5).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "core/rd_record.h"
#include "protocol/pcap_writer.h"
#include "rvt/types.h"

namespace rvt::core {

class RdCapture {
  public:
    RdCapture() noexcept = default;
    /// @param own  Where the endpoint is.
    RdCapture(std::shared_ptr<protocol::PcapWriter> writer, std::string_view name,
              const Address& own) noexcept
        : capture_(std::move(writer), name), own_(own) {}

    [[nodiscard]] bool is_on() const noexcept { return capture_.is_on(); }
    /// A message has arrived, whole. Precondition, as of the next: is_on().
    void received(const Address& source, const RdMessage& message) noexcept;
    void flush_when_idle() const noexcept { capture_.writer().flush_when_idle(); }

  private:
    protocol::PcapInterface capture_;
    Address own_{};
    std::uint32_t psn_ = 0;
};

}  // namespace rvt::core
