// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Word of rdma_cm that a NIC is being taken away. Not every driver says so to who has opened it:
// the kernel then waits until the last of them has closed it.
#pragma once

#include <memory>

#include "backend/verbs/library_fd.h"
#include "backend/verbs/nic.h"

namespace rvt::verbs {

class Removal {
  public:
    /// @param nic  Outlives this. Returns: errors of rdma_cm.
    static Result<std::unique_ptr<Removal>> open(Nic& nic);

    /// Readable when there is something for take_events().
    [[nodiscard]] int event_fd() const noexcept { return events_->fd; }
    /// Tells the NIC's device. Threads: one at a time.
    void take_events() noexcept;

  private:
    explicit Removal(Nic& nic) noexcept : nic_(nic) {}
    Status start();

    Nic& nic_;
    std::unique_ptr<rdma_event_channel, void (*)(rdma_event_channel*)> events_{nullptr, nullptr};
    LibraryFd events_fd_;
    std::unique_ptr<rdma_cm_id, int (*)(rdma_cm_id*)> id_{nullptr, nullptr};
};

}  // namespace rvt::verbs
