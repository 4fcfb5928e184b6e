// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an event queue that is bound to a domain is told of its NIC, which exists only here.
#include "ofi/device_events.h"

#include <memory>

#include <poll.h>
#include <sys/eventfd.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/device.h"
#include "ofi/domain.h"
#include "ofi/eq.h"
#include "ofi/fabric.h"

using namespace rvt;

namespace {

struct Bound {
    Bound()
        : nic(verbs::Nic::open(registry, {.device = "mock0",
                                          .port = 1,
                                          .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}})
                  .take()) {
        fabric.handle.api_version = FI_VERSION(1, 17);
        eq.fabric = &fabric;
        domain.handle.fid.context = this;
        domain.eq = &eq;
        eq.wake_fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
        RVT_OK(keep(domain.nic_context, open_device(nic->device())));
        RVT_OK(watch.start(ofi::DeviceNews{.context = domain.nic_context.get(),
                                           .told = {{{&eq, &domain.handle.fid}}}}));
    }
    void happens(ibv_event_type type) {
        ibv_async_event event{};
        event.event_type = type;
        event.element.port_num = 1;
        mock.events.push_back(event);
        nic->take_events();
    }
    /// Waits for the next error.
    fi_eq_err_entry error() {
        pollfd readable{.fd = eq.wake_fd.get(), .events = POLLIN, .revents = 0};
        RVT_EQ(poll(&readable, 1, 10'000), 1);
        fi_eq_err_entry entry{};
        RVT_EQ(eq.read_error(&entry, 0), static_cast<ssize_t>(sizeof entry));
        return entry;
    }

    verbs::MockNic mock;
    core::Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    ofi::Fabric fabric;
    ofi::Eq eq;
    ofi::Domain domain{ofi::LockPolicy::kSpin};
    util::Watched<ofi::DeviceEvents> watch;
};

}  // namespace

Test(device_events, a_nic_that_is_gone_is_an_error_of_the_domain) {
    Bound on;
    on.happens(IBV_EVENT_DEVICE_FATAL);
    const fi_eq_err_entry error = on.error();
    RVT_EQ(error.err, FI_ENODEV);
    RVT_ASSERT(error.fid == &on.domain.handle.fid && error.context == &on);
}

Test(device_events, it_is_told_once) {
    Bound on;
    on.happens(IBV_EVENT_DEVICE_FATAL);
    on.happens(IBV_EVENT_DEVICE_FATAL);
    RVT_EQ(on.error().err, FI_ENODEV);
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
}

Test(device_events, a_port_that_goes_down_again_is_told_again) {
    Bound on;
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
    on.happens(IBV_EVENT_PORT_ACTIVE);
    on.happens(IBV_EVENT_PORT_ERR);
    RVT_EQ(on.error().err, FI_ENETDOWN);
}
