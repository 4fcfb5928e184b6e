// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Events of a NIC's context. Those of a pair its endpoint learns by completions.
#include "ofi/nic_events.h"

#include <sys/epoll.h>

#include "core/context.h"
#include "ofi/domain.h"
#include "ofi/eq.h"
#include "ofi/errors.h"

namespace rvt::ofi {

util::Status NicEvents::start() {
    return watch(domain_.nic_context->events().fd(), EPOLLIN);
}

void NicEvents::on_ready(std::uint32_t /*events*/) {
    while (const auto event = domain_.nic_context->events().poll()) {
        switch (event->type) {
            case EventType::kDeviceFatal: report(FI_ENODEV); break;
            case EventType::kPortErr: report(FI_ENETDOWN); break;
            default: break;
        }
    }
}

void NicEvents::report(int error) {
    static_cast<void>(entry([&] {
        fi_eq_err_entry event{};
        event.fid = &domain_.handle.fid;
        event.context = domain_.handle.fid.context;
        event.err = error;
        event.prov_errno = error;
        domain_.eq->push_error(event);
        return 0;
    }));
}

}  // namespace rvt::ofi
