// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Opening a device; protection domains.
#include "core/context.h"

#include "core/device.h"

namespace rvt::core {

Context::Context(Device& device, std::unique_ptr<AsyncEvents> events) noexcept
    : device_(device), device_use_(device), events_(std::move(events)) {}

Result<Context*> open_device(Device& device) {
    auto events = AsyncEvents::create();
    if (!events.is_ok()) {
        return events.status();
    }
    auto context = std::make_unique<Context>(device, events.take());
    if (Status status = device.add_context(*context); !status.is_ok()) {
        return status;
    }
    return context.release();
}

Status close_device(Context* context) {
    if (Status status = context->is_unused(); !status.is_ok()) {
        return status;
    }
    context->device().remove_context(*context);
    delete context;
    return kOk;
}

Result<Pd*> alloc_pd(Context& context) {
    Device& device = context.device();
    auto pd = std::make_unique<Pd>(context, device.next_pd_id(), device.keys());
    if (Status status = device.ops().alloc_pd(*pd); !status.is_ok()) {
        return status;
    }
    return pd.release();
}

Result<Pd*> alloc_pd(Context& context, KeyTable& keys) {
    if (context.device().grade() == Grade::kVerb) {
        return EOPNOTSUPP;
    }
    return new Pd(context, Pd::kOwnKeys, keys);
}

Status dealloc_pd(Pd* pd) {
    if (Status status = pd->is_unused(); !status.is_ok()) {
        return status;
    }
    pd->device().ops().dealloc_pd(*pd);
    delete pd;
    return kOk;
}

}  // namespace rvt::core
