// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/standin.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/device_memory.h"
#include "common/standin_memory.h"

namespace fab::standin {
namespace {

/// Not mmap(): the stand-in for dma-bufs watches that one. The last word is passed as it is.
long map_at(long address, int fd, std::size_t bytes, int protection, int flags) {
    return syscall(SYS_mmap, address, bytes, protection, flags, fd, off_t{0});
}

void* map(int fd, std::size_t bytes, int protection) {
    long begin = 0;
    int flags = MAP_SHARED;
    if (const std::size_t page = world().export_page; page != kPage) {
        // What is left of the room stays.
        const long room = map_at(0, -1, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
        begin = static_cast<long>((static_cast<std::size_t>(room) + page - 1) / page * page);
        flags |= MAP_FIXED;
    }
    const long at = map_at(begin, fd, bytes, protection, flags);
    return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}

std::size_t whole_pages(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}

std::uintptr_t add(Memory memory) {
    const std::size_t whole = whole_pages(memory.bytes);
    const bool is_touched = memory.is_managed || memory.is_host;
    void* const known = map(memory.fd, whole, is_touched ? PROT_READ | PROT_WRITE : PROT_NONE);
    memory.copies = static_cast<char*>(map(memory.fd, whole, PROT_READ | PROT_WRITE));
    const std::lock_guard guard(world().lock);
    world().memories[reinterpret_cast<std::uintptr_t>(known)] = memory;
    return reinterpret_cast<std::uintptr_t>(known);
}

/// Under the lock.
std::optional<Found> find_locked(std::uintptr_t address) {
    auto next = world().memories.upper_bound(address);
    if (next == world().memories.begin()) return {};
    --next;
    if (address - next->first >= next->second.bytes) return {};
    return Found{next->first, next->second};
}

/// memcpy() wants addresses even of nothing.
void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
}

char* application_range(const void* memory, std::size_t bytes) {
    char* const range = open_range(reinterpret_cast<std::uintptr_t>(memory), bytes);
    if (range == nullptr) {
        std::fprintf(stderr, "%zu bytes at %p are not memory of the device\n", bytes, memory);
        std::abort();
    }
    return range;
}

}  // namespace

World& world() {
    static auto* const kMade = new World;
    return *kMade;
}

std::optional<Found> find(std::uintptr_t address) {
    const std::lock_guard guard(world().lock);
    return find_locked(address);
}

char* open_range(std::uintptr_t address, std::size_t bytes) {
    const std::optional<Found> found = find(address);
    const std::uintptr_t offset = found ? address - found->begin : 0;
    return found && bytes <= found->memory.bytes - offset ? found->memory.copies + offset : nullptr;
}

bool make_sync(std::uintptr_t address) {
    const std::lock_guard guard(world().lock);
    const auto found = find_locked(address);
    if (!found || world().makes_nothing_sync) return false;
    world().memories[found->begin].is_sync = true;
    return true;
}

void make_late_copies() {
    const std::lock_guard guard(world().lock);
    for (const Late& each : std::exchange(world().late, {})) {
        copy(each.to, each.bytes.data(), each.bytes.size());
    }
}

bool begin_copy(std::size_t bytes) {
    if (std::exchange(world().is_next_to_fail, false)) return false;
    if (world().copies_left >= 0 && world().copies_left-- <= 0) {
        world().copies_left = 0;
        return false;
    }
    world().copied += bytes;
    return true;
}

Copied copy_any(void* to, const void* from, std::size_t bytes) {
    const auto to_address = reinterpret_cast<std::uintptr_t>(to);
    const auto from_address = reinterpret_cast<std::uintptr_t>(from);
    const bool is_to = find(to_address).has_value();
    const bool is_from = find(from_address).has_value();
    char* const target = is_to ? open_range(to_address, bytes) : static_cast<char*>(to);
    const char* const source =
        is_from ? open_range(from_address, bytes) : static_cast<const char*>(from);
    if (target == nullptr || source == nullptr) return Copied::kNoSuchRange;
    if (!begin_copy(bytes)) return Copied::kNo;
    world().between += is_to && is_from ? bytes : 0;
    copy(target, source, bytes);
    return Copied::kYes;
}

int share_file(const Memory& memory) {
    return world().how == How::kWithoutShare ? -1 : fcntl(memory.fd, F_DUPFD_CLOEXEC, 0);
}

std::optional<Handle> share(const Memory& memory) {
    if ((memory.is_managed && world().how != How::kOpenable) || memory.is_opened) return {};
    return Handle{.process = getpid(), .fd = memory.fd, .bytes = memory.bytes};
}

std::uintptr_t open_shared(const Handle& handle) {
    std::array<char, 64> path{};
    std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", handle.process, handle.fd);
    const int fd = handle.process == getpid() ? -1 : open(path.data(), O_RDWR | O_CLOEXEC);
    return fd < 0 ? 0 : add({.bytes = handle.bytes, .fd = fd, .is_opened = true});
}

bool release_at(std::uintptr_t address) {
    const std::lock_guard guard(world().lock);
    const auto found = world().memories.find(address);
    if (found == world().memories.end()) return false;
    const std::size_t whole = whole_pages(found->second.bytes);
    syscall(SYS_munmap, address, whole);
    syscall(SYS_munmap, found->second.copies, whole);
    close(found->second.fd);
    world().memories.erase(found);
    return true;
}

void use(How how, Library library) {
    world().how = how;
    world().library = library;
    world().is_used = true;
}

void* allocate(std::size_t bytes, Where where) {
    const std::size_t whole = whole_pages(bytes);
    const bool is_unmappable = world().how == How::kUnmappable || world().how == How::kOpenable;
    const int fd = memfd_create(is_unmappable ? kUnmappableName : kStandInName, MFD_CLOEXEC);
    if (bytes == 0 || fd < 0 || ftruncate(fd, static_cast<off_t>(whole)) != 0) {
        std::fprintf(stderr, "no %zu bytes of the stand-in for a device\n", bytes);
        std::abort();
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<void*>(add({.bytes = bytes,
                                        .fd = fd,
                                        .is_managed = where == Where::kManaged,
                                        .is_host = where == Where::kHost}));
}

void release(void* memory) {
    release_at(reinterpret_cast<std::uintptr_t>(memory));
}

void write(void* to, const void* from, std::size_t bytes) {
    copy(application_range(to, bytes), from, bytes);
}

void read(void* to, const void* from, std::size_t bytes) {
    copy(to, application_range(from, bytes), bytes);
}

void write_late(void* to, const void* from, std::size_t bytes) {
    char* const range = application_range(to, bytes);
    const auto found = find(reinterpret_cast<std::uintptr_t>(to));
    if (found->memory.is_sync || found->memory.is_managed) return copy(range, from, bytes);
    const auto* const begin = static_cast<const char*>(from);
    const std::lock_guard guard(world().lock);
    world().late.push_back({range, {begin, begin + bytes}});
}

void use_pages(std::size_t bytes) {
    world().export_page = bytes;
}

void fail_copies(int after) {
    world().copies_left = after;
}

void refuse_pins() {
    const std::lock_guard guard(world().lock);
    world().pins_nothing = true;
}

void refuse_sync() {
    const std::lock_guard guard(world().lock);
    world().makes_nothing_sync = true;
}

Counts counts() {
    const std::lock_guard guard(world().lock);
    const auto opened = std::count_if(world().memories.begin(), world().memories.end(),
                                      [](const auto& each) { return each.second.is_opened; });
    return {.copied = world().copied,
            .between = world().between,
            .opened = static_cast<unsigned long long>(opened),
            .pinned = world().pinned.size()};
}

}  // namespace fab::standin

// For programs that may have no stand-in: common/device_memory.cc looks for these.
#pragma GCC visibility push(default)
extern "C" {

void standin_use(int how, int library) {
    fab::standin::use(static_cast<fab::standin::How>(how),
                      static_cast<fab::standin::Library>(library));
}

void* standin_allocate(std::size_t bytes) {
    return fab::standin::allocate(bytes, fab::standin::Where::kManaged);
}

void standin_release(void* memory) {
    fab::standin::release(memory);
}

int standin_dma_buf(const void* memory) {
    const auto found = fab::standin::find(reinterpret_cast<std::uintptr_t>(memory));
    return found ? fab::standin::share_file(found->memory) : -1;
}

void standin_count(fab::standin::Counts* counts) {
    *counts = fab::standin::counts();
}

/// Has the next copy fail, and no other.
void standin_fail_next() {
    fab::standin::world().is_next_to_fail = true;
}

/// Takes managed memory away from the application, and gives it back.
void standin_close(int is_closed) {
    const std::lock_guard guard(fab::standin::world().lock);
    for (const auto& [address, memory] : fab::standin::world().memories) {
        if (memory.is_managed) {
            syscall(SYS_mprotect, address, fab::standin::whole_pages(memory.bytes),
                    is_closed != 0 ? PROT_NONE : PROT_READ | PROT_WRITE);
        }
    }
}

void* dlopen(const char* name, int flags) {
    using fab::standin::world;
    using Open = void* (*)(const char*, int);
    static const auto kNext = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
    // In the order of Library.
    constexpr std::array<const char*, 3> kNames = {"libcuda.so.1", "libhsa-runtime64.so.1",
                                                   "libze_loader.so.1"};
    const auto* const known = std::find_if(kNames.begin(), kNames.end(), [&](const char* each) {
        return name != nullptr && std::strcmp(name, each) == 0;
    });
    if (!world().is_used || known == kNames.end()) return kNext(name, flags);
    const bool is_there = world().how != fab::standin::How::kAbsent &&
                          known - kNames.begin() == static_cast<int>(world().library);
    return kNext(is_there ? nullptr : "lib-that-nobody-has.so.1", flags);
}

}  // extern "C"
#pragma GCC visibility pop
