// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A device whose memory the CPU cannot touch out of turn. Calls of the C library that a provider
// makes for dma-bufs are interposed: memory files of a certain name look like dma-bufs, and what is
// mapped of them by mmap() can be touched only between DMA_BUF_SYNC_START and DMA_BUF_SYNC_END of
// the same process, and written only where the access said so. A stray access is a SIGSEGV, and
// EFAULT in a system call.
#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <linux/dma-buf.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/device_memory.h"

namespace {

struct Mapped {
    char* address;
    std::size_t length;
    bool is_writable;
};

/// One stand-in, as far as this process has mapped it.
struct Device {
    std::vector<Mapped> mappings;
    int readers = 0;
    int writers = 0;

    void protect() const {
        for (const Mapped& each : mappings) {
            const int write = writers != 0 && each.is_writable ? PROT_WRITE : 0;
            const int read = readers + writers != 0 ? PROT_READ : 0;
            mprotect(each.address, each.length, read | write);
        }
    }
};

/// Both live until the process ends, whose last destructors still unmap.
std::mutex& lock() {
    static auto* const kMade = new std::mutex;
    return *kMade;
}
std::map<ino_t, Device>& devices() {
    static auto* const kMade = new std::map<ino_t, Device>;
    return *kMade;
}

/// A child must not find the lock held by a thread that it does not have. The first handlers to be
/// registered are the last before a fork, and the first after it: the provider's own, which map
/// memory, find the lock free. A child has none of its parent's accesses to end.
[[gnu::constructor]] void guard_forks() {
    pthread_atfork([] { lock().lock(); }, [] { lock().unlock(); },
                   [] {
                       devices().clear();
                       lock().unlock();
                   });
}

/// The file's number, or 0 for anything that has not `name` in its own.
ino_t device_of(int fd, const char* name = fab::kStandInName) {
    char path[64];
    char target[64] = {};
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct stat file {};
    if (fd < 0 || readlink(path, target, sizeof target - 1) < 0 ||
        std::strstr(target, name) == nullptr || fstat(fd, &file) != 0) {
        return 0;
    }
    return file.st_ino;
}

int sync_device(ino_t number, std::uint64_t flags) {
    if ((flags & ~std::uint64_t{DMA_BUF_SYNC_VALID_FLAGS_MASK}) != 0 ||
        (flags & DMA_BUF_SYNC_RW) == 0) {
        errno = EINVAL;
        return -1;
    }
    const std::lock_guard guard(lock());
    Device& device = devices()[number];
    const int step = (flags & DMA_BUF_SYNC_END) != 0 ? -1 : 1;
    int& count = (flags & DMA_BUF_SYNC_WRITE) != 0 ? device.writers : device.readers;
    if (count + step < 0) {
        std::fprintf(stderr, "an access to a device's memory ended that had not begun\n");
        std::abort();
    }
    count += step;
    device.protect();
    return 0;
}

void forget(const char* address, std::size_t length) {
    const std::lock_guard guard(lock());
    for (auto& [number, device] : devices()) {
        const std::size_t gone = std::erase_if(device.mappings, [&](const Mapped& each) {
            return each.address < address + length && address < each.address + each.length;
        });
        if (gone != 0 && device.readers + device.writers != 0 && device.mappings.empty()) {
            std::fprintf(stderr, "a device's memory was unmapped while it was accessed\n");
            std::abort();
        }
    }
}

}  // namespace

#pragma GCC visibility push(default)  // for the libraries that the program loads
extern "C" {

int fstatfs(int fd, struct statfs* system) {
    const long result = syscall(SYS_fstatfs, fd, system);
    if (result == 0 && system->f_type == TMPFS_MAGIC && device_of(fd) != 0) {
        system->f_type = DMA_BUF_MAGIC;
    }
    return static_cast<int>(result);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    const ino_t number = request == DMA_BUF_IOCTL_SYNC ? device_of(fd) : 0;
    return number != 0 ? sync_device(number, static_cast<dma_buf_sync*>(argument)->flags)
                       : static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
    if (device_of(fd, fab::kUnmappableName) != 0) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    const long result = syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    void* const mapped = reinterpret_cast<void*>(result);  // NOLINT(performance-no-int-to-ptr)
    if (mapped == MAP_FAILED) {
        return mapped;
    }
    if ((flags & MAP_FIXED) != 0) {
        forget(static_cast<char*>(mapped), length);
    }
    if (const ino_t number = device_of(fd); number != 0) {
        const std::lock_guard guard(lock());
        Device& device = devices()[number];
        device.mappings.push_back(
            {static_cast<char*>(mapped), length, (protection & PROT_WRITE) != 0});
        device.protect();
    }
    return mapped;
}

int munmap(void* address, std::size_t length) noexcept {
    forget(static_cast<char*>(address), length);
    return static_cast<int>(syscall(SYS_munmap, address, length));
}

}  // extern "C"
#pragma GCC visibility pop
