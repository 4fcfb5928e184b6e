// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of NVIDIA's GPUs, through the driver's own library: cuMemAlloc(), cuMemAllocManaged(), the
// virtual memory management, and what the CUDA runtime makes of them.
//
// Copies run on a stream of ours for each context, so that they neither wait for what the
// application has in its own streams nor are waited for there; fi_mr(3) has applications finish
// with a buffer before they hand it over. cudaMemcpy() from host memory that is not pinned returns
// before it has; registration sees to it that it does not (make_copies_sync()).
#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <vector>

#include <unistd.h>

#include "hmem/claimants.h"
#include "hmem/device_library.h"
#include "util/log.h"

namespace rvt::hmem {
namespace {

// Names and numbers of NVIDIA's "CUDA Driver API" manual.
using CuResult = int;
using CuDevicePtr = unsigned long long;
using CuDevice = int;
using CuContext = void*;
using CuStream = void*;
constexpr CuResult kCuSuccess = 0;
constexpr int kPointerContext = 1;        // CU_POINTER_ATTRIBUTE_CONTEXT
constexpr int kPointerMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kPointerSyncMemops = 6;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
constexpr int kPointerIsManaged = 8;      // CU_POINTER_ATTRIBUTE_IS_MANAGED
constexpr int kPointerDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kPointerRangeStart = 11;    // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
constexpr int kPointerRangeSize = 12;     // CU_POINTER_ATTRIBUTE_RANGE_SIZE
constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kMemoryTypeDevice = 2;
constexpr unsigned kStreamNonBlocking = 1;
// NOLINTNEXTLINE(performance-no-int-to-ptr): CU_STREAM_LEGACY
const CuStream kLegacyStream = reinterpret_cast<CuStream>(std::uintptr_t{1});
constexpr unsigned kRegisterPortable = 1;   // CU_MEMHOSTREGISTER_PORTABLE: for all contexts
constexpr int kDmaBufFd = 1;                // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
constexpr unsigned kIpcLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct CuIpcMemHandle {
    std::array<std::byte, 64> bytes;
};

struct Functions {
    CuResult (*init)(unsigned) = nullptr;
    CuResult (*get_error_string)(CuResult, const char**) = nullptr;
    CuResult (*pointer_get_attribute)(void*, int, CuDevicePtr) = nullptr;
    CuResult (*pointer_set_attribute)(const void*, int, CuDevicePtr) = nullptr;
    CuResult (*device_get)(CuDevice*, int) = nullptr;
    CuResult (*primary_retain)(CuContext*, CuDevice) = nullptr;
    CuResult (*push_current)(CuContext) = nullptr;
    CuResult (*pop_current)(CuContext*) = nullptr;
    CuResult (*stream_create)(CuStream*, unsigned) = nullptr;
    CuResult (*stream_synchronize)(CuStream) = nullptr;
    CuResult (*copy_to_device)(CuDevicePtr, const void*, std::size_t, CuStream) = nullptr;
    CuResult (*copy_to_host)(void*, CuDevicePtr, std::size_t, CuStream) = nullptr;
    CuResult (*copy_on_device)(CuDevicePtr, CuDevicePtr, std::size_t, CuStream) = nullptr;
    CuResult (*host_register)(void*, std::size_t, unsigned) = nullptr;
    CuResult (*host_unregister)(void*) = nullptr;
    // Since CUDA 11.
    CuResult (*ipc_get)(CuIpcMemHandle*, CuDevicePtr) = nullptr;
    CuResult (*ipc_open)(CuDevicePtr*, CuIpcMemHandle, unsigned) = nullptr;
    CuResult (*ipc_close)(CuDevicePtr) = nullptr;
    // Since CUDA 11.7.
    CuResult (*handle_for_range)(void*, CuDevicePtr, std::size_t, int,
                                 unsigned long long) = nullptr;
};

class Cuda final : public Claimant {
  public:
    [[nodiscard]] Kind kind() const noexcept override { return Kind::kCuda; }
    [[nodiscard]] const char* name() const noexcept override { return "CUDA"; }
    util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept override;
    util::Result<DmaBuf> dma_buf(const Allocation& of) noexcept override;
    util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept override;
    util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept override;
    util::Status pin(const Allocation& for_copies, std::byte* begin,
                     std::uint64_t bytes) noexcept override;
    void unpin(const Allocation& for_copies, std::byte* begin) noexcept override;
    util::Status begin_copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                                std::uint64_t bytes) noexcept override;
    util::Status begin_copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                               std::uint64_t bytes) noexcept override;
    util::Status finish(const Allocation& of) noexcept override;
    [[nodiscard]] bool is_of_host(const void* address) noexcept override;
    util::Result<core::DeviceHandle> share(const Allocation& of) noexcept override;
    [[nodiscard]] bool is_in_use() const noexcept override;
    util::Result<Allocation> open(const core::DeviceHandle& handle) noexcept override;
    void close(const Allocation& opened, const core::DeviceHandle& by) noexcept override;
    util::Status copy_across(const Allocation& opened, std::uint64_t to, std::uint64_t from,
                             std::uint64_t bytes) noexcept override;

  private:
    class Current;
    struct Stream {
        CuContext context;
        CuStream stream;
    };
    /// What another process has shared. The driver opens an allocation once in a process.
    struct Opened {
        CuIpcMemHandle handle;
        Allocation memory;
        unsigned users;
    };

    bool load() noexcept override;
    util::Status initialise() noexcept override;
    [[nodiscard]] const char* text(CuResult result) const noexcept;
    template <class Value>
    bool get(CuDevicePtr address, int attribute, Value& value) const noexcept {
        return cu_.pointer_get_attribute(&value, attribute, address) == kCuSuccess;
    }
    [[nodiscard]] bool is_device(CuDevicePtr address) const noexcept;
    CuContext context_of(CuDevicePtr address) noexcept;
    CuStream stream_of(CuContext context) noexcept;
    void make_copies_sync(CuDevicePtr address, CuContext context) const noexcept;
    template <class Queue>
    util::Status queue(const Allocation& of, const char* direction, std::uint64_t bytes,
                       Queue queue) noexcept;

    DeviceLibrary library_;
    Functions cu_;
    bool has_ipc_ = false;
    mutable std::mutex lock_;
    std::vector<Stream> streams_;  // guarded by lock_; never fewer
    std::vector<Opened> opened_;   // guarded by lock_
};

/// Makes a context that of the calling thread for a while.
class Cuda::Current {
  public:
    Current(const Functions& cu, CuContext context) noexcept
        : cu_(cu), result_(cu.push_current(context)) {}
    ~Current() {
        CuContext popped = nullptr;
        if (result_ == kCuSuccess) {
            cu_.pop_current(&popped);
        }
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    [[nodiscard]] CuResult result() const noexcept { return result_; }

  private:
    const Functions& cu_;
    const CuResult result_;
};

bool Cuda::load() noexcept {
    if (!library_.open("libcuda.so.1", name()).is_ok()) {
        return false;
    }
    const bool is_whole = library_.find("cuInit", cu_.init) &&
                          library_.find("cuGetErrorString", cu_.get_error_string) &&
                          library_.find("cuPointerGetAttribute", cu_.pointer_get_attribute) &&
                          library_.find("cuPointerSetAttribute", cu_.pointer_set_attribute) &&
                          library_.find("cuDeviceGet", cu_.device_get) &&
                          library_.find("cuDevicePrimaryCtxRetain", cu_.primary_retain) &&
                          library_.find("cuCtxPushCurrent_v2", cu_.push_current) &&
                          library_.find("cuCtxPopCurrent_v2", cu_.pop_current) &&
                          library_.find("cuStreamCreate", cu_.stream_create) &&
                          library_.find("cuStreamSynchronize", cu_.stream_synchronize) &&
                          library_.find("cuMemcpyHtoDAsync_v2", cu_.copy_to_device) &&
                          library_.find("cuMemcpyDtoHAsync_v2", cu_.copy_to_host) &&
                          library_.find("cuMemcpyDtoDAsync_v2", cu_.copy_on_device) &&
                          library_.find("cuMemHostRegister_v2", cu_.host_register) &&
                          library_.find("cuMemHostUnregister", cu_.host_unregister);
    if (!is_whole) {
        return false;
    }
    library_.find_newer("cuMemGetHandleForAddressRange", cu_.handle_for_range);
    library_.find_newer("cuIpcGetMemHandle", cu_.ipc_get);
    library_.find_newer("cuIpcOpenMemHandle_v2", cu_.ipc_open);
    library_.find_newer("cuIpcCloseMemHandle", cu_.ipc_close);
    has_ipc_ = cu_.ipc_get != nullptr && cu_.ipc_open != nullptr && cu_.ipc_close != nullptr;
    return true;
}

util::Status Cuda::initialise() noexcept {
    const CuResult result = cu_.init(0);
    if (result != kCuSuccess) {
        RVT_INFO(kMr, "no memory of CUDA: cuInit: %s", text(result));
        return ENOSYS;
    }
    return util::kOk;
}

const char* Cuda::text(CuResult result) const noexcept {
    const char* text = nullptr;
    return cu_.get_error_string(result, &text) == kCuSuccess && text != nullptr ? text
                                                                                : "unknown error";
}

bool Cuda::is_device(CuDevicePtr address) const noexcept {
    unsigned type = 0;
    unsigned is_managed = 0;
    return (get(address, kPointerMemoryType, type) && type == kMemoryTypeDevice) ||
           (get(address, kPointerIsManaged, is_managed) && is_managed != 0);
}

bool Cuda::is_of_host(const void* address) noexcept {
    const auto at = static_cast<CuDevicePtr>(reinterpret_cast<std::uintptr_t>(address));
    unsigned type = 0;
    return !is_device(at) && get(at, kPointerMemoryType, type) && type == kMemoryTypeHost;
}

/// That of the allocation; memory of the virtual memory management has none, any of its device
/// will do.
CuContext Cuda::context_of(CuDevicePtr address) noexcept {
    CuContext context = nullptr;
    if (get(address, kPointerContext, context) && context != nullptr) {
        return context;
    }
    int ordinal = 0;
    CuDevice device = 0;
    const bool is_found = get(address, kPointerDeviceOrdinal, ordinal) &&
                          cu_.device_get(&device, ordinal) == kCuSuccess &&
                          cu_.primary_retain(&context, device) == kCuSuccess;
    return is_found ? context : nullptr;
}

CuStream Cuda::stream_of(CuContext context) noexcept {
    const std::lock_guard guard(lock_);
    for (const Stream& each : streams_) {
        if (each.context == context) {
            return each.stream;
        }
    }
    const Current current(cu_, context);
    CuStream stream = nullptr;
    if (current.result() != kCuSuccess ||
        cu_.stream_create(&stream, kStreamNonBlocking) != kCuSuccess) {
        return nullptr;
    }
    streams_.push_back({context, stream});
    return stream;
}

/// Has the application's synchronous copies of this allocation be over when they return, from now
/// on, and waits for those that have returned. Memory of the virtual memory management has no such
/// attribute.
void Cuda::make_copies_sync(CuDevicePtr address, CuContext context) const noexcept {
    unsigned is_sync = 0;
    if (get(address, kPointerSyncMemops, is_sync) && is_sync != 0) {
        return;
    }
    is_sync = 1;
    const CuResult set = cu_.pointer_set_attribute(&is_sync, kPointerSyncMemops, address);
    if (set != kCuSuccess) {
        RVT_INFO(kMr,
                 "memory of CUDA at 0x%llx: cudaMemcpy() from there on may return before it is "
                 "over (%s), cudaDeviceSynchronize() behind it does not",
                 address, text(set));
    }
    const Current current(cu_, context);
    if (current.result() == kCuSuccess) {
        // An error would be of the application's own work, and comes up there.
        [[maybe_unused]] const CuResult ignored = cu_.stream_synchronize(kLegacyStream);
    }
}

util::Result<Allocation> Cuda::find(const void* address, std::uint64_t bytes) noexcept {
    const auto at = static_cast<CuDevicePtr>(reinterpret_cast<std::uintptr_t>(address));
    if (!is_device(at)) {
        return EFAULT;
    }
    CuDevicePtr start = 0;
    std::size_t size = 0;
    const bool is_known = get(at, kPointerRangeStart, start) && get(at, kPointerRangeSize, size);
    if (!is_known || at < start || at - start > size || bytes > size - (at - start)) {
        return EFAULT;
    }
    Allocation found{.address = at, .bytes = bytes, .context = context_of(at)};
    found.queue = found.context != nullptr ? stream_of(found.context) : nullptr;
    if (found.queue == nullptr) {
        RVT_INFO(kMr, "memory of CUDA at 0x%llx has no context that can be used", at);
        return EFAULT;
    }
    make_copies_sync(at, found.context);
    return found;
}

/// Whole pages of the host can be exported, which may be of 16 or 64 KiB; an allocation begins and
/// ends with one.
util::Result<Claimant::DmaBuf> Cuda::dma_buf(const Allocation& of) noexcept {
    if (cu_.handle_for_range == nullptr) {
        return EOPNOTSUPP;
    }
    const Current current(cu_, of.context);
    const auto page = static_cast<CuDevicePtr>(sysconf(_SC_PAGESIZE));
    const CuDevicePtr begin = of.address / page * page;
    const CuDevicePtr end = (of.address + of.bytes + page - 1) / page * page;
    int fd = -1;
    if (current.result() != kCuSuccess ||
        cu_.handle_for_range(&fd, begin, end - begin, kDmaBufFd, 0) != kCuSuccess || fd < 0) {
        return EOPNOTSUPP;
    }
    return DmaBuf{.fd = util::UniqueFd(fd), .offset = of.address - begin};
}

/// Has a copy queued.
template <class Queue>
util::Status Cuda::queue(const Allocation& of, const char* direction, std::uint64_t bytes,
                         Queue queue) noexcept {
    const Current current(cu_, of.context);
    const CuResult result = current.result() == kCuSuccess ? queue() : current.result();
    if (result != kCuSuccess) {
        RVT_WARN(kMr, "cannot copy %llu bytes %s memory of CUDA: %s",
                 static_cast<unsigned long long>(bytes), direction, text(result));
        return EIO;
    }
    return util::kOk;
}

util::Status Cuda::finish(const Allocation& of) noexcept {
    const Current current(cu_, of.context);
    const CuResult result =
        current.result() == kCuSuccess ? cu_.stream_synchronize(of.queue) : current.result();
    if (result != kCuSuccess) {
        RVT_WARN(kMr, "copies of memory of CUDA have failed: %s", text(result));
        return EIO;
    }
    return util::kOk;
}

util::Status Cuda::begin_copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                                  std::uint64_t bytes) noexcept {
    return queue(from, "from", bytes,
                 [&] { return cu_.copy_to_host(to, from.address + offset, bytes, from.queue); });
}

util::Status Cuda::begin_copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                                 std::uint64_t bytes) noexcept {
    return queue(to, "to", bytes,
                 [&] { return cu_.copy_to_device(to.address + offset, from, bytes, to.queue); });
}

util::Status Cuda::copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                            std::uint64_t bytes) noexcept {
    const util::Status begun = begin_copy_out(from, offset, to, bytes);
    return begun.is_ok() ? finish(from) : begun;
}

util::Status Cuda::copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                           std::uint64_t bytes) noexcept {
    const util::Status begun = begin_copy_in(to, offset, from, bytes);
    return begun.is_ok() ? finish(to) : begun;
}

util::Status Cuda::pin(const Allocation& for_copies, std::byte* begin,
                       std::uint64_t bytes) noexcept {
    const Current current(cu_, for_copies.context);
    const CuResult result = current.result() == kCuSuccess
                                ? cu_.host_register(begin, bytes, kRegisterPortable)
                                : current.result();
    if (result != kCuSuccess) {
        RVT_INFO(kMr, "CUDA does not pin %llu bytes of host memory, copies take longer: %s",
                 static_cast<unsigned long long>(bytes), text(result));
        return EOPNOTSUPP;
    }
    return util::kOk;
}

void Cuda::unpin(const Allocation& for_copies, std::byte* begin) noexcept {
    const Current current(cu_, for_copies.context);
    // While the process ends the driver may refuse: it has let go of everything itself.
    static_cast<void>(cu_.host_unregister(begin));
}

// ---- between processes: "CUDA Driver API", cuIpcGetMemHandle and what follows ----

/// A handle is of the whole allocation. Memory that is managed, of a pool, or of the virtual memory
/// management has none.
util::Result<core::DeviceHandle> Cuda::share(const Allocation& of) noexcept {
    CuDevicePtr start = 0;
    CuIpcMemHandle handle{};
    const Current current(cu_, of.context);
    if (!has_ipc_ || current.result() != kCuSuccess ||
        !get(of.address, kPointerRangeStart, start) ||
        cu_.ipc_get(&handle, of.address) != kCuSuccess) {
        return EOPNOTSUPP;
    }
    return core::DeviceHandle{.kind = static_cast<std::uint32_t>(kind()),
                              .offset = of.address - start,
                              .bytes = handle.bytes};
}

bool Cuda::is_in_use() const noexcept {
    const std::lock_guard guard(lock_);
    return !streams_.empty();
}

/// In the first context that this process has used: a copy may name memory of any other.
util::Result<Allocation> Cuda::open(const core::DeviceHandle& handle) noexcept {
    if (!has_ipc_) {
        return EOPNOTSUPP;
    }
    const std::lock_guard guard(lock_);
    const auto known = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& each) {
        return each.handle.bytes == handle.bytes;
    });
    if (known != opened_.end()) {
        ++known->users;
        return known->memory;
    }
    Opened made{.handle = {handle.bytes},
                .memory = {.context = streams_.front().context, .queue = streams_.front().stream},
                .users = 1};
    CuDevicePtr address = 0;
    const Current current(cu_, made.memory.context);
    const CuResult result = current.result() == kCuSuccess
                                ? cu_.ipc_open(&address, made.handle, kIpcLazyPeerAccess)
                                : current.result();
    if (result != kCuSuccess) {
        RVT_INFO(kMr, "memory of CUDA of another process cannot be opened: %s", text(result));
        return EOPNOTSUPP;
    }
    made.memory.address = address;
    opened_.push_back(made);
    return made.memory;
}

void Cuda::close(const Allocation& opened, const core::DeviceHandle& by) noexcept {
    const std::lock_guard guard(lock_);
    const auto known = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& each) {
        return each.handle.bytes == by.bytes;
    });
    if (known == opened_.end() || --known->users != 0) {
        return;
    }
    const Current current(cu_, opened.context);
    // While the process ends the driver may refuse: it closes everything itself.
    static_cast<void>(cu_.ipc_close(opened.address));
    opened_.erase(known);
}

util::Status Cuda::copy_across(const Allocation& opened, std::uint64_t to, std::uint64_t from,
                               std::uint64_t bytes) noexcept {
    const util::Status queued = queue(opened, "between", bytes, [&] {
        return cu_.copy_on_device(to, from, bytes, opened.queue);
    });
    return queued.is_ok() ? finish(opened) : queued;
}

}  // namespace

Claimant& cuda() noexcept {
    static auto* const kOnly = new Cuda;  // copies may run while the process ends
    return *kOnly;
}

}  // namespace rvt::hmem
