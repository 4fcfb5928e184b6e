// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Registration of devices and of clients.
#include "core/registry.h"

#include "core/requirements.h"
#include "util/log.h"

#include <algorithm>

namespace rvt::core {
namespace {

thread_local std::string last_error_text;

const char* to_string(Grade grade) noexcept {
    switch (grade) {
        case Grade::kPacket: return "packet";
        case Grade::kSegment: return "segment";
        case Grade::kVerb: return "verb";
    }
    return "?";
}

}  // namespace

Registry::~Registry() = default;

Registry& Registry::instance() {
    static Registry& registry =
        *new Registry;  // outlives static destruction: closing may come late
    return registry;
}

const std::string& Registry::last_error() noexcept {
    return last_error_text;
}

Status Registry::refuse(Status status, std::string why) {
    RVT_WARN(kCore, "%s", why.c_str());
    last_error_text = std::move(why);
    return status;
}

Result<Device*> Registry::add_device(const DeviceInfo& info, const BackendOps& ops, void* priv) {
    last_error_text.clear();
    const std::string name = info.name;
    if (const std::string missing = missing_entries(ops, info.grade); !missing.empty()) {
        return refuse(EINVAL, "cannot register device " + name + ": a " + to_string(info.grade) +
                                  "-grade backend must fill " + missing);
    }
    const util::Guard guard(lock_);
    const auto same_name = [&](const auto& device) { return device->name() == name; };
    if (std::any_of(devices_.begin(), devices_.end(), same_name)) {
        return refuse(EEXIST, "cannot register device " + name + ": the name is taken");
    }
    auto created = Device::create(info, fill_defaults(ops));
    if (!created.is_ok()) {
        return refuse(created.status(),
                      "cannot register device " + name + ": " +
                          (created.error() == EINVAL ? "its limits or its key block make no sense"
                                                     : "no memory for its key table"));
    }
    Device& device = *devices_.emplace_back(created.take());
    device.set_priv(priv);
    for (const Client* client : std::vector(clients_)) {
        announce_locked(*client, device);
    }
    return &device;
}

void Registry::announce_locked(const Client& client, Device& device) {
    if (client.add(device, client.context).is_ok()) {
        known_.push_back({.client = &client, .device = &device});
    }
}

/// Tells of the end of what matches, the last announced first; nullptr matches all.
void Registry::withdraw_locked(const Client* client, const Device* device) {
    for (std::size_t i = known_.size(); i-- > 0;) {
        const Known known = known_[i];
        const bool matches = (client == nullptr || known.client == client) &&
                             (device == nullptr || known.device == device);
        if (matches) {
            known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(i));
            known.client->remove(*known.device, known.client->context);
        }
    }
}

Status Registry::remove_device(Device* device) {
    const util::Guard guard(lock_);
    withdraw_locked(nullptr, device);
    device->begin_removal();
    if (Status status = device->is_unused(); !status.is_ok()) {
        return status;
    }
    std::erase_if(devices_, [&](const auto& owned) { return owned.get() == device; });
    return kOk;
}

void Registry::add_client(const Client& client) {
    const util::Guard guard(lock_);
    clients_.push_back(&client);
    for (Device* device : devices_locked()) {
        announce_locked(client, *device);
    }
}

void Registry::remove_client(const Client& client) {
    const util::Guard guard(lock_);
    withdraw_locked(&client, nullptr);
    std::erase(clients_, &client);
}

std::vector<Device*> Registry::devices() const {
    const util::Guard guard(lock_);
    return devices_locked();
}

std::vector<Device*> Registry::devices_locked() const {
    std::vector<Device*> all;
    for (const auto& device : devices_) {
        all.push_back(device.get());
    }
    return all;
}

}  // namespace rvt::core
