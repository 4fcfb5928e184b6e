// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/device_memory.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/endpoint.h"
#include "common/fail.h"

namespace fab {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t length) {
    return (length + kPage - 1) / kPage * kPage;
}

int open_device(const char* path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) skip("%s: %s", path, strerrordesc_np(errno));
    return fd;
}

int make_file(const char* name, std::size_t length) {
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(length)) != 0) {
        FAB_FAIL("a memory file of %zu bytes: %s", length, strerrordesc_np(errno));
    }
    return fd;
}

/// The file whose pages it is made of must not shrink.
int from_udmabuf(std::size_t length) {
    const int device = open_device("/dev/udmabuf");
    const int file = make_file("udmabuf", length);
    if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0) FAB_FAIL("F_ADD_SEALS");
    const udmabuf_create request{.memfd = static_cast<std::uint32_t>(file),
                                 .flags = UDMABUF_FLAGS_CLOEXEC,
                                 .offset = 0,
                                 .size = length};
    const int fd = ioctl(device, UDMABUF_CREATE, &request);
    if (fd < 0) FAB_FAIL("UDMABUF_CREATE of %zu bytes: %s", length, strerrordesc_np(errno));
    close(file);
    close(device);
    return fd;
}

int from_heap(std::size_t length, int mode) {
    const int device = open_device("/dev/dma_heap/system");
    dma_heap_allocation_data request{.len = length,
                                     .fd = 0,
                                     .fd_flags = static_cast<std::uint32_t>(mode | O_CLOEXEC),
                                     .heap_flags = 0};
    if (ioctl(device, DMA_HEAP_IOCTL_ALLOC, &request) != 0) {
        FAB_FAIL("DMA_HEAP_IOCTL_ALLOC of %zu bytes: %s", length, strerrordesc_np(errno));
    }
    close(device);
    return static_cast<int>(request.fd);
}

// Of drm/drm.h and drm/drm_mode.h, which want a package of their own.
struct DumbBuffer {
    std::uint32_t height;
    std::uint32_t width;
    std::uint32_t bpp;
    std::uint32_t flags;
    std::uint32_t handle;
    std::uint32_t pitch;
    std::uint64_t size;
};
struct PrimeHandle {
    std::uint32_t handle;
    std::uint32_t flags;
    std::int32_t fd;
};
constexpr unsigned long kCreateDumb = _IOWR('d', 0xb2, DumbBuffer);
constexpr unsigned long kHandleToFd = _IOWR('d', 0x2d, PrimeHandle);

int from_vgem(std::size_t length, int mode) {
    const int device = open_device("/dev/dri/card0");
    DumbBuffer buffer{};
    buffer.width = kPage / 4;  // a row is a page
    buffer.height = static_cast<std::uint32_t>(length / kPage);
    buffer.bpp = 32;
    if (ioctl(device, kCreateDumb, &buffer) != 0) {
        FAB_FAIL("DRM_IOCTL_MODE_CREATE_DUMB of %zu bytes: %s", length, strerrordesc_np(errno));
    }
    PrimeHandle prime{
        .handle = buffer.handle, .flags = static_cast<std::uint32_t>(O_CLOEXEC | mode), .fd = -1};
    if (ioctl(device, kHandleToFd, &prime) != 0) {
        FAB_FAIL("DRM_IOCTL_PRIME_HANDLE_TO_FD: %s", strerrordesc_np(errno));
    }
    close(device);
    return prime.fd;
}

int from_file(std::size_t length, int mode) {
    const int file = make_file(kStandInName, length);
    if (mode == O_RDWR) return file;
    const int fd = open(("/proc/self/fd/" + std::to_string(file)).c_str(), mode | O_CLOEXEC);
    if (fd < 0) FAB_FAIL("a memory file once more: %s", strerrordesc_np(errno));
    close(file);
    return fd;
}

/// The functions of CUDA's driver that make memory.
struct Cuda {
    int (*alloc_managed)(unsigned long long*, std::size_t, unsigned) = nullptr;
    int (*free)(unsigned long long) = nullptr;
    int (*handle_for_range)(void*, unsigned long long, std::size_t, int,
                            unsigned long long) = nullptr;
};

template <class Function>
void look_up(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) FAB_FAIL("there is no %s", name);
}

/// In this process, where a context is current from now on.
const Cuda& cuda() {
    static const Cuda kLoaded = [] {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) skip("no memory of CUDA: %s", dlerror());
        Cuda found;
        int (*init)(unsigned) = nullptr;
        int (*retain)(void**, int) = nullptr;
        int (*set_current)(void*) = nullptr;
        look_up(library, "cuInit", init);
        look_up(library, "cuDevicePrimaryCtxRetain", retain);
        look_up(library, "cuCtxSetCurrent", set_current);
        look_up(library, "cuMemAllocManaged", found.alloc_managed);
        look_up(library, "cuMemFree_v2", found.free);
        look_up(library, "cuMemGetHandleForAddressRange", found.handle_for_range);
        void* context = nullptr;
        if (init(0) != 0 || retain(&context, 0) != 0 || set_current(context) != 0) {
            skip("no device of CUDA that can be used");
        }
        return found;
    }();
    return kLoaded;
}

standin::How how_of(const std::string& exporter) {
    return exporter.ends_with("-mapped")     ? standin::How::kMappable
           : exporter.ends_with("-openable") ? standin::How::kOpenable
                                             : standin::How::kUnmappable;
}

/// The functions of standin.cc that make memory, which a program may be without.
struct StandInMemory {
    void* (*allocate)(std::size_t) = nullptr;
    void (*release)(void*) = nullptr;
    int (*dma_buf)(const void*) = nullptr;
};

/// In this process, where the one that the settings name is used from now on.
const StandInMemory& standin_memory() {
    static const StandInMemory kUsed = [] {
        void (*use)(int, int) = nullptr;
        look_up(RTLD_DEFAULT, "standin_use", use);
        const fi_hmem_iface iface = iface_of(settings.exporter);
        use(static_cast<int>(how_of(settings.exporter)),
            static_cast<int>(iface == FI_HMEM_CUDA   ? standin::Library::kCuda
                             : iface == FI_HMEM_ROCR ? standin::Library::kRocr
                                                     : standin::Library::kZe));
        StandInMemory found;
        look_up(RTLD_DEFAULT, "standin_allocate", found.allocate);
        look_up(RTLD_DEFAULT, "standin_release", found.release);
        look_up(RTLD_DEFAULT, "standin_dma_buf", found.dma_buf);
        return found;
    }();
    return kUsed;
}

}  // namespace

bool is_dma_buf_exporter(const std::string& exporter) {
    return !exporter.empty() && iface_of(exporter) == FI_HMEM_SYSTEM;
}

fi_hmem_iface iface_of(const std::string& exporter) {
    const std::string library = exporter.substr(0, exporter.find('-'));
    return library == "cuda"   ? FI_HMEM_CUDA
           : library == "rocr" ? FI_HMEM_ROCR
           : library == "ze"   ? FI_HMEM_ZE
                               : FI_HMEM_SYSTEM;
}

bool is_standin() {
    return iface_of(settings.exporter) != FI_HMEM_SYSTEM &&
           settings.exporter.find('-') != std::string::npos;
}

bool is_standin(standin::How how) {
    return is_standin() && how_of(settings.exporter) == how;
}

standin::Counts standin_counts() {
    void (*count)(standin::Counts*) = nullptr;
    look_up(RTLD_DEFAULT, "standin_count", count);
    standin::Counts counts{};
    count(&counts);
    return counts;
}

void fail_next_copy() {
    void (*fail)() = nullptr;
    look_up(RTLD_DEFAULT, "standin_fail_next", fail);
    fail();
}

DeviceBuffer make_device_buffer(const std::string& exporter, std::size_t length) {
    if (is_dma_buf_exporter(exporter)) {
        const int fd = export_dma_buf(exporter, length);
        return {.memory = map_dma_buf(fd, length), .dma_buf = fd};
    }
    if (is_standin()) return {.memory = standin_memory().allocate(whole_pages(length))};
    constexpr unsigned kAttachGlobal = 1;
    unsigned long long address = 0;
    const int refused = cuda().alloc_managed(&address, whole_pages(length), kAttachGlobal);
    if (refused != 0) FAB_FAIL("cuMemAllocManaged of %zu bytes: error %d", length, refused);
    return {.memory = reinterpret_cast<void*>(address)};  // NOLINT(performance-no-int-to-ptr)
}

void release_device_buffer(const DeviceBuffer& buffer, std::size_t length) {
    if (buffer.dma_buf >= 0) {
        unmap_dma_buf(buffer.memory, length);
        close(buffer.dma_buf);
    } else if (is_standin()) {
        standin_memory().release(buffer.memory);
    } else {
        cuda().free(reinterpret_cast<unsigned long long>(buffer.memory));
    }
}

int dma_buf_of(const DeviceBuffer& buffer, std::size_t length) {
    if (is_standin()) return standin_memory().dma_buf(buffer.memory);
    constexpr int kDmaBufFd = 1;
    int fd = -1;
    const int refused =
        cuda().handle_for_range(&fd, reinterpret_cast<unsigned long long>(buffer.memory),
                                whole_pages(length), kDmaBufFd, 0);
    return refused == 0 ? fd : -1;
}

int export_dma_buf(const std::string& exporter, std::size_t length, int mode) {
    const std::size_t bytes = whole_pages(length);
    if (exporter == "udmabuf") return mode == O_RDWR ? from_udmabuf(bytes) : -1;
    if (exporter == "heap") return from_heap(bytes, mode);
    if (exporter == "vgem") return from_vgem(bytes, mode);
    if (exporter == "standin") return from_file(bytes, mode);
    if (exporter == "unmappable") return make_file(kUnmappableName, bytes);
    if (!is_dma_buf_exporter(exporter)) skip("%s has no dma-bufs of its own", exporter.c_str());
    FAB_FAIL("no exporter %s: udmabuf, heap, vgem, standin or cuda", exporter.c_str());
}

void* map_dma_buf(int fd, std::size_t length) {
    // Not mmap(): a stand-in watches that one.
    const long address = syscall(SYS_mmap, nullptr, whole_pages(length), PROT_READ | PROT_WRITE,
                                 MAP_SHARED, fd, off_t{0});
    if (address == -1) FAB_FAIL("mmap of a dma-buf: %s", strerrordesc_np(errno));
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void unmap_dma_buf(void* memory, std::size_t length) {
    syscall(SYS_munmap, memory, whole_pages(length));
}

}  // namespace fab
