// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Waking the waiter of a counter.
#include "core/counter.h"

#include <sys/eventfd.h>

namespace rvt::core {

void Counter::notify() noexcept {
    // acq_rel: one notifier takes the descriptor; pairs with the release in arm().
    const int fd = armed_fd_.exchange(-1, std::memory_order_acq_rel);
    if (fd >= 0) {
        // EAGAIN: the eventfd is readable already, which is what was wanted.
        [[maybe_unused]] const int ignored = eventfd_write(fd, 1);
    }
}

}  // namespace rvt::core
