// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/device_library.h"

#include <cerrno>

#include <dlfcn.h>

#include "util/log.h"

namespace rvt::hmem {

util::Status DeviceLibrary::open(const char* name, const char* user) noexcept {
    name_ = name;
    user_ = user;
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): of glibc it is, for each thread its own
        RVT_INFO(kMr, "no memory of %s: %s", user, dlerror());
    }
    return handle_ != nullptr ? util::kOk : util::Status(ENOSYS);
}

void* DeviceLibrary::look_up_newer(const char* name) const noexcept {
    return dlsym(handle_, name);
}

void* DeviceLibrary::look_up(const char* name) const noexcept {
    void* const found = look_up_newer(name);
    if (found == nullptr) {
        RVT_INFO(kMr, "no memory of %s: %s lacks %s", user_, name_, name);
    }
    return found;
}

}  // namespace rvt::hmem
