// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The stand-in for the loader of oneAPI Level Zero (standin.h): the functions that copy memory and
// tell about it. There is one driver and one device.
#include <cstdint>
#include <cstring>

#include "common/standin_memory.h"

namespace {

using fab::standin::Copied;
using fab::standin::find;
using fab::standin::world;

constexpr int kSuccess = 0;
constexpr int kUninitialized = 0x78000001;
constexpr int kInvalidArgument = 0x78000004;
constexpr int kUnknown = 0x7ffffffe;

constexpr int kExportFd = 0x1a;

struct ExportFd {
    int stype;
    void* next;
    std::uint32_t flags;
    int fd;
};
struct AllocProperties {
    int stype;
    ExportFd* next;
    int type;
    std::uint64_t id;
    std::uint64_t page_bytes;
};

int driver;  // the addresses of these four are the handles
int context;
int device;
int list;

}  // namespace

#pragma GCC visibility push(default)  // for the libraries that the program loads
extern "C" {

// NOLINTBEGIN(readability-identifier-naming): Level Zero's own names
int zeInit(std::uint32_t /*flags*/) {
    return world().how == fab::standin::How::kBroken ? kUninitialized : kSuccess;
}

int zeDriverGet(std::uint32_t* count, void** drivers) {
    if (drivers != nullptr && *count != 0) drivers[0] = &driver;
    *count = 1;
    return kSuccess;
}

int zeContextCreate(void* of, const void* /*desc*/, void** made) {
    *made = &context;
    return of == &driver ? kSuccess : kInvalidArgument;
}

/// As Level Zero, it answers for any address.
int zeMemGetAllocProperties(void* in, const void* address, AllocProperties* properties,
                            void** of_device) {
    constexpr int kOfNobody = 0;
    constexpr int kOfHost = 1;
    constexpr int kOfDevice = 2;
    constexpr int kOfBoth = 3;
    if (in != &context) return kInvalidArgument;
    const auto found = find(reinterpret_cast<std::uintptr_t>(address));
    const bool is_host = found && found->memory.is_host;
    properties->type = !found                     ? kOfNobody
                       : is_host                  ? kOfHost
                       : found->memory.is_managed ? kOfBoth
                                                  : kOfDevice;
    *of_device = found && !is_host ? &device : nullptr;
    ExportFd* const exported = properties->next;
    if (found && exported != nullptr && exported->stype == kExportFd) {
        // Stays the driver's.
        exported->fd = world().how == fab::standin::How::kWithoutShare ? -1 : found->memory.fd;
    }
    return kSuccess;
}

int zeMemGetAddressRange(void* in, const void* address, void** base, std::size_t* bytes) {
    const auto found = find(reinterpret_cast<std::uintptr_t>(address));
    if (in != &context || !found) return kInvalidArgument;
    *base = reinterpret_cast<void*>(found->begin);  // NOLINT(performance-no-int-to-ptr)
    *bytes = found->memory.bytes;
    return kSuccess;
}

int zeCommandListCreateImmediate(void* in, void* of, const void* /*desc*/, void** made) {
    *made = &list;
    return in == &context && of == &device ? kSuccess : kInvalidArgument;
}

int zeCommandListAppendMemoryCopy(void* on, void* to, const void* from, std::size_t bytes,
                                  void* /*signal*/, std::uint32_t /*waits*/, void** /*events*/) {
    if (on != &list) return kInvalidArgument;
    switch (fab::standin::copy_any(to, from, bytes)) {
        case Copied::kYes: return kSuccess;
        case Copied::kNo: return kUnknown;
        default: return kInvalidArgument;
    }
}
// NOLINTEND(readability-identifier-naming)

}  // extern "C"
#pragma GCC visibility pop
