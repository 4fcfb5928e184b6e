// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/cuda_standin.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/device_memory.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kUnknown = 999;
constexpr int kNotSupported = 801;
constexpr std::size_t kPage = 4096;

/// One allocation: a file, mapped where the application knows it, and where the copies go.
struct Memory {
    char* copies = nullptr;
    std::size_t bytes = 0;
    int fd = -1;
    bool is_managed = false;
    bool is_opened = false;  // another process's
};

/// What a CUipcMemHandle of the stand-in says.
struct Handle {
    pid_t process;
    int fd;
    std::size_t bytes;
    char unused[48];
};
static_assert(sizeof(Handle) == 64);

/// One that is made when the stream is waited for.
struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
};

struct World {
    std::mutex lock;
    fab::CudaStandIn kind = fab::CudaStandIn::kAbsent;
    bool is_used = false;
    std::map<std::uintptr_t, Memory> memories;
    std::map<std::uintptr_t, std::size_t> pinned;  // of the host
    bool pins_nothing = false;
    std::vector<Copy> queued;  // of pinned memory
    std::atomic<int> copies_left{-1};
    bool is_next_to_fail = false;  // told by the thread that copies
    std::atomic<unsigned long long> copied{0};
    std::atomic<unsigned long long> copied_between{0};
};
World& world() {
    static auto* const kMade = new World;
    return *kMade;
}

int context;  // its address is the handle of the only one
int stream;
thread_local std::vector<void*> current;

void* map(int fd, std::size_t bytes, int protection) {
    // Not mmap(): the stand-in for dma-bufs watches that one.
    const long at = syscall(SYS_mmap, nullptr, bytes, protection, MAP_SHARED, fd, 0);
    return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}

std::size_t whole_pages(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}

/// Makes the file known as an allocation, which only copies reach unless it is managed.
void add(unsigned long long* address, Memory memory) {
    const std::size_t whole = whole_pages(memory.bytes);
    void* const known =
        map(memory.fd, whole, memory.is_managed ? PROT_READ | PROT_WRITE : PROT_NONE);
    memory.copies = static_cast<char*>(map(memory.fd, whole, PROT_READ | PROT_WRITE));
    *address = reinterpret_cast<std::uintptr_t>(known);
    const std::lock_guard guard(world().lock);
    world().memories[reinterpret_cast<std::uintptr_t>(known)] = memory;
}

int allocate(unsigned long long* address, std::size_t bytes, bool is_managed) {
    const std::size_t whole = whole_pages(bytes);
    const bool is_unmappable = world().kind == fab::CudaStandIn::kUnmappable ||
                               world().kind == fab::CudaStandIn::kOpenable;
    const int fd =
        memfd_create(is_unmappable ? fab::kUnmappableName : fab::kStandInName, MFD_CLOEXEC);
    if (bytes == 0 || fd < 0 || ftruncate(fd, static_cast<off_t>(whole)) != 0) {
        return bytes == 0 ? kInvalidValue : kOutOfMemory;
    }
    add(address, {.bytes = bytes, .fd = fd, .is_managed = is_managed});
    return kSuccess;
}

/// The allocation that has this byte. Under the lock.
const Memory* find(unsigned long long address, std::uintptr_t& begin) {
    auto next = world().memories.upper_bound(address);
    if (next == world().memories.begin()) return nullptr;
    --next;
    begin = next->first;
    return address - begin < next->second.bytes ? &next->second : nullptr;
}

/// Where a range can be copied to or from.
char* open_range(unsigned long long address, std::size_t bytes) {
    const std::lock_guard guard(world().lock);
    std::uintptr_t begin = 0;
    const Memory* const memory = find(address, begin);
    if (memory == nullptr || bytes > memory->bytes - (address - begin)) return nullptr;
    return memory->copies + (address - begin);
}

int check_copy(std::size_t bytes) {
    if (std::exchange(world().is_next_to_fail, false)) return kUnknown;
    if (world().copies_left >= 0 && world().copies_left-- <= 0) {
        world().copies_left = 0;
        return kUnknown;
    }
    world().copied += bytes;
    return kSuccess;
}

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

/// As the driver: copies of pinned memory wait for their turn, a copy of other memory is made at
/// once, and none can be of both.
int copy(const Copy& wanted, const void* host) {
    if (current.empty() || current.back() != &context) return kInvalidContext;
    {
        const std::lock_guard guard(world().lock);
        const Pinned pinned = pinned_of(host, wanted.bytes);
        if (pinned == Pinned::kPart) return kInvalidValue;
        if (pinned == Pinned::kAll) {
            world().queued.push_back(wanted);
            return kSuccess;
        }
    }
    const int refused = check_copy(wanted.bytes);
    if (refused == kSuccess && wanted.bytes != 0) std::memcpy(wanted.to, wanted.from, wanted.bytes);
    return refused;
}

}  // namespace

namespace fab {

void use_cuda_standin(CudaStandIn kind) {
    world().kind = kind;
    world().is_used = true;
}

void fail_cuda_copies(int after) {
    world().copies_left = after;
}

void refuse_cuda_pins() {
    const std::lock_guard guard(world().lock);
    world().pins_nothing = true;
}

unsigned long long cuda_bytes_copied() {
    return world().copied;
}

CudaCounts cuda_counts() {
    const std::lock_guard guard(world().lock);
    const auto opened = std::count_if(world().memories.begin(), world().memories.end(),
                                      [](const auto& each) { return each.second.is_opened; });
    return {.copied = world().copied,
            .between = world().copied_between,
            .opened = static_cast<unsigned long long>(opened),
            .pinned = world().pinned.size()};
}

}  // namespace fab

#pragma GCC visibility push(default)  // for the libraries that the program loads
extern "C" {

// NOLINTBEGIN(readability-identifier-naming): the driver's own names
int cuInit(unsigned /*flags*/) {
    return world().kind == fab::CudaStandIn::kBroken ? kNoDevice : kSuccess;
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
    current.push_back(pushed);
    return kSuccess;
}

int cuCtxPopCurrent_v2(void** popped) {
    if (current.empty()) return kInvalidContext;
    *popped = current.back();
    current.pop_back();
    return kSuccess;
}

int cuCtxSetCurrent(void* set) {
    if (!current.empty()) current.pop_back();
    current.push_back(set);
    return kSuccess;
}

int cuStreamCreate(void** made, unsigned /*flags*/) {
    *made = &stream;
    return current.empty() ? kInvalidContext : kSuccess;
}

int cuStreamSynchronize(void* /*stream*/) {
    if (current.empty()) return kInvalidContext;
    const std::lock_guard guard(world().lock);
    int failed = kSuccess;
    for (const Copy& each : std::exchange(world().queued, {})) {
        const int refused = check_copy(each.bytes);
        if (refused == kSuccess) std::memcpy(each.to, each.from, each.bytes);
        failed = failed == kSuccess ? refused : failed;
    }
    return failed;
}

int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
    const std::lock_guard guard(world().lock);
    std::uintptr_t begin = 0;
    const Memory* const memory = find(address, begin);
    if (memory == nullptr) return kInvalidValue;
    const unsigned type = 2;
    const unsigned is_managed = memory->is_managed ? 1 : 0;
    const int ordinal = 0;
    void* const its_context = &context;
    const unsigned long long start = begin;
    switch (attribute) {
        case 1: std::memcpy(value, &its_context, sizeof its_context); return kSuccess;
        case 2: std::memcpy(value, &type, sizeof type); return kSuccess;
        case 8: std::memcpy(value, &is_managed, sizeof is_managed); return kSuccess;
        case 9: std::memcpy(value, &ordinal, sizeof ordinal); return kSuccess;
        case 11: std::memcpy(value, &start, sizeof start); return kSuccess;
        case 12: std::memcpy(value, &memory->bytes, sizeof memory->bytes); return kSuccess;
        default: return kInvalidValue;
    }
}

/// Of whole pages from an allocation's first on.
int cuMemGetHandleForAddressRange(void* handle, unsigned long long address, std::size_t bytes,
                                  int type, unsigned long long /*flags*/) {
    const std::lock_guard guard(world().lock);
    std::uintptr_t begin = 0;
    const Memory* const memory = find(address, begin);
    if (memory == nullptr || type != 1 || address % kPage != 0 || bytes % kPage != 0) {
        return kInvalidValue;
    }
    if (world().kind == fab::CudaStandIn::kWithoutShare || address != begin) return kNotSupported;
    const int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    std::memcpy(handle, &fd, sizeof fd);
    return kSuccess;
}

int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
    return allocate(address, bytes, false);
}

int cuMemAllocManaged(unsigned long long* address, std::size_t bytes, unsigned /*flags*/) {
    return allocate(address, bytes, true);
}

int cuMemFree_v2(unsigned long long address) {
    const std::lock_guard guard(world().lock);
    const auto found = world().memories.find(address);
    if (found == world().memories.end()) return kInvalidValue;
    const std::size_t whole = whole_pages(found->second.bytes);
    syscall(SYS_munmap, address, whole);
    syscall(SYS_munmap, found->second.copies, whole);
    close(found->second.fd);
    world().memories.erase(found);
    return kSuccess;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes,
                         void* /*stream*/) {
    char* const range = open_range(to, bytes);
    return range != nullptr ? copy({range, from, bytes}, from) : kInvalidValue;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* /*stream*/) {
    const char* const range = open_range(from, bytes);
    return range != nullptr ? copy({to, range, bytes}, to) : kInvalidValue;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes,
                         void* /*stream*/) {
    const char* const range = open_range(from, bytes);
    if (range == nullptr) return kInvalidValue;
    world().copied_between += bytes;
    return cuMemcpyHtoDAsync_v2(to, range, bytes, nullptr);
}

int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, std::size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

/// As the driver: of a whole allocation, and not of managed memory unless kOpenable.
int cuIpcGetMemHandle(void* handle, unsigned long long address) {
    const std::lock_guard guard(world().lock);
    std::uintptr_t begin = 0;
    const Memory* const memory = find(address, begin);
    const bool may_be_managed = world().kind == fab::CudaStandIn::kOpenable;
    if (memory == nullptr || (memory->is_managed && !may_be_managed) || memory->is_opened) {
        return kInvalidValue;
    }
    const Handle made{.process = getpid(), .fd = memory->fd, .bytes = memory->bytes, .unused = {}};
    std::memcpy(handle, &made, sizeof made);
    return kSuccess;
}

/// As the driver: not in the process that it comes from.
int cuIpcOpenMemHandle_v2(unsigned long long* address, Handle handle, unsigned /*flags*/) {
    if (current.empty() || handle.process == getpid()) return kInvalidContext;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return kInvalidValue;
    add(address, {.bytes = handle.bytes, .fd = fd, .is_opened = true});
    return kSuccess;
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

/// Not of the driver, nor are those that follow: chooses the stand-in.
void cuStandInUse(int kind) {
    fab::use_cuda_standin(static_cast<fab::CudaStandIn>(kind));
}

void cuStandInCount(fab::CudaCounts* counts) {
    *counts = fab::cuda_counts();
}

/// Has the next copy fail, and no other.
void cuStandInFailNext() {
    world().is_next_to_fail = true;
}

/// Takes managed memory away from the application, and gives it back.
int cuStandInClose(int is_closed) {
    const std::lock_guard guard(world().lock);
    for (const auto& [address, memory] : world().memories) {
        if (memory.is_managed) {
            syscall(SYS_mprotect, address, whole_pages(memory.bytes),
                    is_closed != 0 ? PROT_NONE : PROT_READ | PROT_WRITE);
        }
    }
    return kSuccess;
}
// NOLINTEND(readability-identifier-naming)

void* dlopen(const char* name, int flags) {
    using Open = void* (*)(const char*, int);
    static const auto kNext = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
    if (name == nullptr || !world().is_used || std::strcmp(name, "libcuda.so.1") != 0) {
        return kNext(name, flags);
    }
    return kNext(
        world().kind == fab::CudaStandIn::kAbsent ? "libcuda-that-nobody-has.so.1" : nullptr,
        flags);
}

}  // extern "C"
#pragma GCC visibility pop
