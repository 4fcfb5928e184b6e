// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Contexts (an opened device with its events) and protection domains.
#pragma once

#include <memory>

#include "core/async_events.h"
#include "core/key_table.h"
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

/// In work requests of a domain that allows it, all memory of the process: what local_dma_lkey is
/// in Linux. No table gives this key, so that peers reach nothing by it.
inline constexpr std::uint32_t kLocalDmaLkey = 0;

class Pd : public Object {
  public:
    /// Of all domains with keys of their own, see alloc_pd(): the device's table has none of these.
    static constexpr std::uint32_t kOwnKeys = 0;

    Pd(Context& context, std::uint32_t id, KeyTable& keys) noexcept
        : context_(context), use_(context), id_(id), keys_(keys) {}

    [[nodiscard]] Context& context() const noexcept { return context_; }
    [[nodiscard]] Device& device() const noexcept { return context_.device(); }
    /// What key entries carry; 0 only in a table of the domain's own.
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    /// The keys that requests in this domain can name: the device's, or its own.
    [[nodiscard]] KeyTable& keys() const noexcept { return keys_; }
    [[nodiscard]] KeyView key_view() const noexcept { return keys_.view(); }

    /// Of a client of the core that vouches for the memory which it names by kLocalDmaLkey. Before
    /// there are pairs in the domain; not for verb grade.
    void allow_local_dma() noexcept { allows_local_dma_ = true; }
    [[nodiscard]] bool allows_local_dma() const noexcept { return allows_local_dma_; }

  private:
    Context& context_;
    Use use_;
    std::uint32_t id_;
    KeyTable& keys_;
    bool allows_local_dma_ = false;
};

/// Returns: errors of the backend.
Result<Pd*> alloc_pd(Context& context);
/// A domain with keys of its own, those of the table that were added for domain 0: they are the
/// same for all such domains, on whatever devices. Peers reach this memory by asking for it only.
/// @param keys  Outlives the domain. Returns: EOPNOTSUPP where the backend has the keys.
Result<Pd*> alloc_pd(Context& context, KeyTable& keys);
/// Returns: EBUSY while objects in the domain exist.
Status dealloc_pd(Pd* pd);

}  // namespace rvt::core
