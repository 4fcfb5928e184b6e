// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Contexts (an opened device with its events) and protection domains.
#pragma once

#include <memory>

#include "core/async_events.h"
#include "core/object.h"

namespace rvt::core {

class Device;

class Context : public Object {
  public:
    Context(Device& device, std::unique_ptr<AsyncEvents> events) noexcept;

    [[nodiscard]] Device& device() const noexcept { return device_; }
    [[nodiscard]] AsyncEvents& events() const noexcept { return *events_; }

  private:
    Device& device_;
    Use device_use_;
    std::unique_ptr<AsyncEvents> events_;
};

/// Returns: EMFILE and the like when there is no descriptor for the events; ENODEV for a device
/// that is going.
Result<Context*> open_device(Device& device);
/// Returns: EBUSY while objects of the context exist.
Status close_device(Context* context);

class Pd : public Object {
  public:
    Pd(Context& context, std::uint32_t id) noexcept : context_(context), use_(context), id_(id) {}

    [[nodiscard]] Context& context() const noexcept { return context_; }
    [[nodiscard]] Device& device() const noexcept { return context_.device(); }
    /// What key entries carry; never 0.
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

  private:
    Context& context_;
    Use use_;
    std::uint32_t id_;
};

Result<Pd*> alloc_pd(Context& context);
/// Returns: EBUSY while objects in the domain exist.
Status dealloc_pd(Pd* pd);

}  // namespace rvt::core
