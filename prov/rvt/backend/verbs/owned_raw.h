// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Objects of libibverbs that the backend makes for itself, and what is said of one that does not
// end: the kernel has it until the device is closed, or the process is over.
#pragma once

#include <memory>

#include "backend/verbs/library.h"
#include "rvt/status.h"
#include "util/fork_guard.h"

namespace rvt::verbs {

/// @param device  Its name. @param what  The object, with its article.
void log_kept(const char* device, const char* what, Status why) noexcept;

/// Ends them for a std::unique_ptr.
class EndRaw {
  public:
    void operator()(ibv_context* context) const noexcept;
    void operator()(ibv_comp_channel* channel) const noexcept;
    void operator()(ibv_pd* pd) const noexcept;
    void operator()(ibv_cq* queue) const noexcept;
    void operator()(ibv_qp* pair) const noexcept;

  private:
    void note(const char* device, const char* what, Status ended) const noexcept;

    unsigned generation_ = util::fork_generation();  // of the process whose object it is
};

template <class T>
using OwnedRaw = std::unique_ptr<T, EndRaw>;

}  // namespace rvt::verbs
