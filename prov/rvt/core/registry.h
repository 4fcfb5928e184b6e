// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Where backends register devices, and where clients of the core hear of them. The libfabric layer
// is such a client.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

/// Somebody who wants to know of devices.
struct Client {
    const char* name = "";
    /// A device is ready. An error means that this client does not use it, and is not told of its
    /// end.
    Status (*add)(Device& device, void* context) = nullptr;
    /// A device goes: let go of everything on it before returning.
    void (*remove)(Device& device, void* context) = nullptr;
    void* context = nullptr;
};

/// A client may look at devices() while it is told of one, on the thread that holds the lock.
class RVT_CAPABILITY("mutex") RecursiveMutex {
  public:
    void lock() noexcept RVT_ACQUIRE() { mutex_.lock(); }
    void unlock() noexcept RVT_RELEASE() { mutex_.unlock(); }

  private:
    std::recursive_mutex mutex_;
};

class Registry {
  public:
    Registry() = default;
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    /// The one that a process normally uses.
    static Registry& instance();

    /// Checks, completes and announces a device to each client, in the order in which they
    /// registered. `priv` is what Device::priv() gives. Returns: EINVAL when entries are missing
    /// (the log names all of them) or the limits make no sense,
    ///          EEXIST for a name that is taken.
    Result<Device*> add_device(const DeviceInfo& info, const BackendOps& ops, void* priv = nullptr);

    /// Tells the clients, the last registered first, and destroys the device.
    /// Returns: EBUSY while contexts are open on it: they got kDeviceFatal; call again.
    Status remove_device(Device* device);

    /// From now on tells `client` of devices, beginning with those that are there.
    /// `client` must outlive its registration.
    void add_client(const Client& client);
    /// Tells the client that each of its devices goes, then forgets it.
    void remove_client(const Client& client);

    [[nodiscard]] std::vector<Device*> devices() const;

    /// Why the last add_device() of this thread failed, as logged; empty when it did not.
    [[nodiscard]] static const std::string& last_error() noexcept;

  private:
    struct Known {  // a client knows a device
        const Client* client;
        Device* device;
    };

    Status refuse(Status status, std::string why);
    [[nodiscard]] std::vector<Device*> devices_locked() const RVT_REQUIRES(lock_);
    void announce_locked(const Client& client, Device& device) RVT_REQUIRES(lock_);
    void withdraw_locked(const Client* client, const Device* device) RVT_REQUIRES(lock_);

    mutable RecursiveMutex lock_;  // order: outermost
    std::vector<std::unique_ptr<Device>> devices_ RVT_GUARDED_BY(lock_);
    std::vector<const Client*> clients_ RVT_GUARDED_BY(lock_);
    std::vector<Known> known_ RVT_GUARDED_BY(lock_);
};

}  // namespace rvt::core
