// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Events of a device's context. Those of a pair its endpoint learns by completions.
#include "ofi/device_events.h"

#include <sys/epoll.h>

#include "core/context.h"
#include "core/device.h"
#include "ofi/eq.h"
#include "ofi/errors.h"

namespace rvt::ofi {

util::Status DeviceEvents::start() {
    return watch(news_.context->events().fd(), EPOLLIN);
}

void DeviceEvents::on_ready(std::uint32_t /*events*/) {
    while (const auto event = news_.context->events().poll()) {
        switch (event->type) {
            case EventType::kDeviceFatal: report(FI_ENODEV); break;
            case EventType::kPortErr: report(port_error()); break;
            default: break;
        }
    }
}

/// A device of packets that is not down takes smaller ones now.
int DeviceEvents::port_error() const noexcept {
    const core::Device& device = news_.context->device();
    return device.grade() == Grade::kPacket && !device.is_port_down() ? FI_EMSGSIZE : FI_ENETDOWN;
}

void DeviceEvents::report(int error) {
    for (const DeviceNews::Told& told : news_.told) {
        if (told.eq == nullptr) {
            continue;
        }
        static_cast<void>(entry([&] {
            fi_eq_err_entry event{};
            event.fid = told.object;
            event.context = told.object->context;
            event.err = error;
            event.prov_errno = error;
            told.eq->push_error(event);
            return 0;
        }));
    }
}

util::Status DeviceWatch::start(core::Device& device, const std::array<DeviceNews::Told, 2>& told) {
    const util::Status opened = core::keep(context_, core::open_device(device));
    return opened.is_ok() ? events_.start(DeviceNews{.context = context_.get(), .told = told})
                          : opened;
}

}  // namespace rvt::ofi
