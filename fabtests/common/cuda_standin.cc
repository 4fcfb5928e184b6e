// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The stand-in for CUDA's driver library (standin.h): the functions that copy memory and tell about
// it. As on the real thing, a copy wants a current context, and one of pinned memory is made when
// the stream is waited for.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "common/standin_memory.h"

namespace {

using fab::standin::find;
using fab::standin::kPage;
using fab::standin::world;

constexpr std::uintptr_t kLegacyStream = 1;
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kUnknown = 999;
constexpr int kNotSupported = 801;

/// A CUipcMemHandle, and what it says here.
struct Handle {
    fab::standin::Handle of;
    char unused[48];
};
static_assert(sizeof(Handle) == 64);

/// One that is made when the stream is waited for.
struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
};

/// Those of pinned memory. Under the lock of the world.
std::vector<Copy>& queued() {
    static auto* const kMade = new std::vector<Copy>;
    return *kMade;
}

int context;  // its address is the handle of the only one
int stream;

/// The contexts of a thread, the current one last. None of it is from the heap: a child that is
/// forked while the control thread copies would have leaked that.
struct Contexts {
    std::array<void*, 8> pushed;
    std::size_t count;

    [[nodiscard]] bool empty() const { return count == 0; }
};
thread_local constinit Contexts current{};

enum class Pinned { kNone, kAll, kPart };

/// What of a range of host memory is pinned. Under the lock.
Pinned pinned_of(const void* host, std::size_t bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(host);
    for (const auto& [begin, length] : world().pinned) {
        if (at + bytes > begin && at < begin + length) {
            return at >= begin && at + bytes <= begin + length ? Pinned::kAll : Pinned::kPart;
        }
    }
    return Pinned::kNone;
}

int make(const Copy& copy) {
    if (!fab::standin::begin_copy(copy.bytes)) return kUnknown;
    if (copy.bytes != 0) std::memcpy(copy.to, copy.from, copy.bytes);
    return kSuccess;
}

/// As the driver: copies of pinned memory wait for their turn, a copy of other memory is made at
/// once, and none can be of both.
int copy(const Copy& wanted, const void* host) {
    if (current.empty() || current.pushed.at(current.count - 1) != &context) return kInvalidContext;
    {
        const std::lock_guard guard(world().lock);
        const Pinned pinned = pinned_of(host, wanted.bytes);
        if (pinned == Pinned::kPart) return kInvalidValue;
        if (pinned == Pinned::kAll) {
            queued().push_back(wanted);
            return kSuccess;
        }
    }
    return make(wanted);
}

}  // namespace

#pragma GCC visibility push(default)  // for the libraries that the program loads
extern "C" {

// NOLINTBEGIN(readability-identifier-naming): the driver's own names
int cuInit(unsigned /*flags*/) {
    return world().how == fab::standin::How::kBroken ? kNoDevice : kSuccess;
}

int cuGetErrorString(int error, const char** text) {
    *text = error == kNoDevice ? "no CUDA-capable device is detected" : "the stand-in says no";
    return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? kSuccess : kInvalidValue;
}

int cuDevicePrimaryCtxRetain(void** retained, int /*device*/) {
    *retained = &context;
    return kSuccess;
}

int cuCtxPushCurrent_v2(void* pushed) {
    if (current.count == current.pushed.size()) return kInvalidContext;
    current.pushed.at(current.count++) = pushed;
    return kSuccess;
}

int cuCtxPopCurrent_v2(void** popped) {
    if (current.empty()) return kInvalidContext;
    *popped = current.pushed.at(--current.count);
    return kSuccess;
}

int cuCtxSetCurrent(void* set) {
    if (current.count > 0) --current.count;
    return cuCtxPushCurrent_v2(set);
}

int cuStreamCreate(void** made, unsigned /*flags*/) {
    *made = &stream;
    return current.empty() ? kInvalidContext : kSuccess;
}

int cuStreamSynchronize(void* of) {
    if (current.empty()) return kInvalidContext;
    if (reinterpret_cast<std::uintptr_t>(of) == kLegacyStream) {
        fab::standin::make_late_copies();
        return kSuccess;
    }
    const std::lock_guard guard(world().lock);
    int failed = kSuccess;
    for (const Copy& each : std::exchange(queued(), {})) {
        const int refused = make(each);
        failed = failed == kSuccess ? refused : failed;
    }
    return failed;
}

int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
    const auto found = find(address);
    if (!found) return kInvalidValue;
    const unsigned type = found->memory.is_host ? 1 : 2;
    const unsigned is_managed = found->memory.is_managed ? 1 : 0;
    const unsigned is_sync = found->memory.is_managed || found->memory.is_sync ? 1 : 0;
    const int ordinal = 0;
    void* const its_context = &context;
    const unsigned long long start = found->begin;
    const std::size_t bytes = found->memory.bytes;
    switch (attribute) {
        case 1: std::memcpy(value, &its_context, sizeof its_context); return kSuccess;
        case 2: std::memcpy(value, &type, sizeof type); return kSuccess;
        case 6: std::memcpy(value, &is_sync, sizeof is_sync); return kSuccess;
        case 8: std::memcpy(value, &is_managed, sizeof is_managed); return kSuccess;
        case 9: std::memcpy(value, &ordinal, sizeof ordinal); return kSuccess;
        case 11: std::memcpy(value, &start, sizeof start); return kSuccess;
        case 12: std::memcpy(value, &bytes, sizeof bytes); return kSuccess;
        default: return kInvalidValue;
    }
}

int cuPointerSetAttribute(const void* value, int attribute, unsigned long long address) {
    unsigned is_sync = 0;
    std::memcpy(&is_sync, value, sizeof is_sync);
    return attribute == 6 && is_sync == 1 && fab::standin::make_sync(address) ? kSuccess
                                                                              : kInvalidValue;
}

/// Of whole pages from an allocation's first on.
int cuMemGetHandleForAddressRange(void* handle, unsigned long long address, std::size_t bytes,
                                  int type, unsigned long long /*flags*/) {
    const auto found = find(address);
    const std::size_t page = world().export_page;
    if (!found || type != 1 || address % page != 0 || bytes % page != 0) return kInvalidValue;
    const int fd = address == found->begin ? fab::standin::share_file(found->memory) : -1;
    if (fd < 0) return kNotSupported;
    std::memcpy(handle, &fd, sizeof fd);
    return kSuccess;
}

int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
    *address = reinterpret_cast<std::uintptr_t>(fab::standin::allocate(bytes));
    return kSuccess;
}

int cuMemFree_v2(unsigned long long address) {
    return fab::standin::release_at(address) ? kSuccess : kInvalidValue;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes,
                         void* /*stream*/) {
    char* const range = fab::standin::open_range(to, bytes);
    return range != nullptr ? copy({range, from, bytes}, from) : kInvalidValue;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* /*stream*/) {
    const char* const range = fab::standin::open_range(from, bytes);
    return range != nullptr ? copy({to, range, bytes}, to) : kInvalidValue;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes,
                         void* /*stream*/) {
    const char* const range = fab::standin::open_range(from, bytes);
    if (range == nullptr) return kInvalidValue;
    world().between += bytes;
    return cuMemcpyHtoDAsync_v2(to, range, bytes, nullptr);
}

int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, std::size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

int cuIpcGetMemHandle(void* handle, unsigned long long address) {
    const auto found = find(address);
    const auto shared = found ? fab::standin::share(found->memory) : std::nullopt;
    if (!shared) return kInvalidValue;
    const Handle made{.of = *shared, .unused = {}};
    std::memcpy(handle, &made, sizeof made);
    return kSuccess;
}

int cuIpcOpenMemHandle_v2(unsigned long long* address, Handle handle, unsigned /*flags*/) {
    if (current.empty()) return kInvalidContext;
    *address = fab::standin::open_shared(handle.of);
    return *address != 0 ? kSuccess : kInvalidValue;
}

int cuIpcCloseMemHandle(unsigned long long address) {
    return cuMemFree_v2(address);
}

/// As the driver: memory that is there, and not twice.
int cuMemHostRegister_v2(void* begin, std::size_t bytes, unsigned /*flags*/) {
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    std::vector<unsigned char> is_there((bytes + kPage - 1) / kPage);
    if (current.empty()) return kInvalidContext;
    if (bytes == 0 || at % kPage != 0 || mincore(begin, bytes, is_there.data()) != 0) {
        return kInvalidValue;
    }
    const std::lock_guard guard(world().lock);
    if (world().pins_nothing) return kOutOfMemory;
    const auto next = world().pinned.lower_bound(at);
    const bool is_free = next == world().pinned.end() || next->first >= at + bytes;
    const bool is_behind =
        next == world().pinned.begin() || std::prev(next)->first + std::prev(next)->second <= at;
    if (!is_free || !is_behind) return kAlreadyRegistered;
    world().pinned[at] = bytes;
    return kSuccess;
}

int cuMemHostUnregister(void* begin) {
    const std::lock_guard guard(world().lock);
    return world().pinned.erase(reinterpret_cast<std::uintptr_t>(begin)) != 0 ? kSuccess
                                                                              : kNotRegistered;
}

int cuCtxSynchronize() {
    return current.empty() ? kInvalidContext : kSuccess;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}

int cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
}
// NOLINTEND(readability-identifier-naming)

}  // extern "C"
#pragma GCC visibility pop
