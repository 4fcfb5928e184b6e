// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices under oneAPI Level Zero: zeMemAllocDevice() and zeMemAllocShared().
//
// Level Zero answers for memory of any context of a driver when it is asked with one of ours. There
// is one for each driver, and an immediate command list, which waits for what it is given, for each
// device; such a list is one thread's at a time.
#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "hmem/claimants.h"
#include "hmem/device_library.h"
#include "util/log.h"

namespace rvt::hmem {
namespace {

// Names and numbers of the oneAPI Level Zero Specification.
using ZeResult = int;
using ZeHandle = void*;
constexpr ZeResult kZeSuccess = 0;
constexpr int kContextDesc = 0x0d;            // ZE_STRUCTURE_TYPE_CONTEXT_DESC
constexpr int kQueueDesc = 0x0e;              // ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
constexpr int kAllocProperties = 0x17;        // ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
constexpr int kExportFd = 0x1a;               // ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD
constexpr int kQueueSynchronous = 1;          // ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS
constexpr int kTypeHost = 1;                  // ZE_MEMORY_TYPE_HOST
constexpr int kTypeDevice = 2;                // ZE_MEMORY_TYPE_DEVICE
constexpr int kTypeShared = 3;                // ZE_MEMORY_TYPE_SHARED
constexpr std::uint32_t kExternalDmaBuf = 2;  // ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF

struct ContextDesc {
    int stype;
    const void* next;
    std::uint32_t flags;
};
struct QueueDesc {
    int stype;
    const void* next;
    std::uint32_t ordinal;
    std::uint32_t index;
    std::uint32_t flags;
    int mode;
    int priority;
};
struct AllocProperties {
    int stype;
    void* next;
    int type;
    std::uint64_t id;
    std::uint64_t page_bytes;
};
struct ExportFd {
    int stype;
    void* next;
    std::uint32_t flags;
    int fd;
};

struct Functions {
    ZeResult (*init)(std::uint32_t) = nullptr;
    ZeResult (*driver_get)(std::uint32_t*, ZeHandle*) = nullptr;
    ZeResult (*context_create)(ZeHandle, const ContextDesc*, ZeHandle*) = nullptr;
    ZeResult (*get_alloc_properties)(ZeHandle, const void*, AllocProperties*, ZeHandle*) = nullptr;
    ZeResult (*get_address_range)(ZeHandle, const void*, void**, std::size_t*) = nullptr;
    ZeResult (*list_create)(ZeHandle, ZeHandle, const QueueDesc*, ZeHandle*) = nullptr;
    ZeResult (*append_copy)(ZeHandle, void*, const void*, std::size_t, ZeHandle, std::uint32_t,
                            ZeHandle*) = nullptr;
};

class Ze final : public Claimant {
  public:
    [[nodiscard]] Kind kind() const noexcept override { return Kind::kZe; }
    [[nodiscard]] const char* name() const noexcept override { return "Level Zero"; }
    util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept override;
    [[nodiscard]] bool is_of_host(const void* address) noexcept override;
    util::Result<DmaBuf> dma_buf(const Allocation& of) noexcept override;
    util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept override;
    util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept override;

  private:
    struct Queue {
        ZeHandle device;
        ZeHandle list;
        std::mutex lock;
    };

    bool load() noexcept override;
    util::Status initialise() noexcept override;
    bool open_contexts() noexcept;
    Queue* queue_of(ZeHandle context, ZeHandle device) noexcept;
    util::Status copy(const Allocation& of, void* to, const void* from,
                      std::uint64_t bytes) noexcept;

    DeviceLibrary library_;
    Functions ze_;
    std::vector<ZeHandle> contexts_;  // one for each driver
    std::mutex lock_;
    std::vector<std::unique_ptr<Queue>> queues_;  // guarded by lock_; never fewer
};

void* at(const Allocation& allocation, std::uint64_t offset) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<void*>(allocation.address + offset);
}

bool Ze::open_contexts() noexcept {
    std::array<ZeHandle, 16> drivers{};
    auto count = static_cast<std::uint32_t>(drivers.size());
    if (ze_.driver_get(&count, drivers.data()) != kZeSuccess) {
        return false;
    }
    for (std::uint32_t i = 0; i < count && i < drivers.size(); ++i) {
        const ContextDesc desc{.stype = kContextDesc, .next = nullptr, .flags = 0};
        ZeHandle context = nullptr;
        if (ze_.context_create(drivers[i], &desc, &context) == kZeSuccess) {
            contexts_.push_back(context);
        }
    }
    return !contexts_.empty();
}

bool Ze::load() noexcept {
    if (!library_.open("libze_loader.so.1", name()).is_ok()) {
        return false;
    }
    const bool is_whole = library_.find("zeInit", ze_.init) &&
                          library_.find("zeDriverGet", ze_.driver_get) &&
                          library_.find("zeContextCreate", ze_.context_create) &&
                          library_.find("zeMemGetAllocProperties", ze_.get_alloc_properties) &&
                          library_.find("zeMemGetAddressRange", ze_.get_address_range) &&
                          library_.find("zeCommandListCreateImmediate", ze_.list_create) &&
                          library_.find("zeCommandListAppendMemoryCopy", ze_.append_copy);
    if (!is_whole) {
        return false;
    }
    return true;
}

util::Status Ze::initialise() noexcept {
    const ZeResult result = ze_.init(0);
    if (result != kZeSuccess || !open_contexts()) {
        RVT_INFO(kMr, "no memory of Level Zero: zeInit or what follows: 0x%x",
                 static_cast<unsigned>(result));
        return ENOSYS;
    }
    return util::kOk;
}

Ze::Queue* Ze::queue_of(ZeHandle context, ZeHandle device) noexcept {
    const std::lock_guard guard(lock_);
    for (const auto& each : queues_) {
        if (each->device == device) {
            return each.get();
        }
    }
    const QueueDesc desc{.stype = kQueueDesc,
                         .next = nullptr,
                         .ordinal = 0,
                         .index = 0,
                         .flags = 0,
                         .mode = kQueueSynchronous,
                         .priority = 0};
    ZeHandle list = nullptr;
    if (ze_.list_create(context, device, &desc, &list) != kZeSuccess) {
        return nullptr;
    }
    auto made = std::make_unique<Queue>();
    made->device = device;
    made->list = list;
    queues_.push_back(std::move(made));
    return queues_.back().get();
}

bool Ze::is_of_host(const void* address) noexcept {
    return std::ranges::any_of(contexts_, [&](ZeHandle context) {
        AllocProperties properties{};
        properties.stype = kAllocProperties;
        ZeHandle device = nullptr;
        return ze_.get_alloc_properties(context, address, &properties, &device) == kZeSuccess &&
               properties.type == kTypeHost;
    });
}

util::Result<Allocation> Ze::find(const void* address, std::uint64_t bytes) noexcept {
    for (const ZeHandle context : contexts_) {
        AllocProperties properties{};
        properties.stype = kAllocProperties;
        ZeHandle device = nullptr;
        void* base = nullptr;
        std::size_t size = 0;
        const bool is_device =
            ze_.get_alloc_properties(context, address, &properties, &device) == kZeSuccess &&
            (properties.type == kTypeDevice || properties.type == kTypeShared) &&
            device != nullptr &&
            ze_.get_address_range(context, address, &base, &size) == kZeSuccess;
        if (!is_device) {
            continue;
        }
        const auto wanted = reinterpret_cast<std::uintptr_t>(address);
        const auto begin = reinterpret_cast<std::uintptr_t>(base);
        Queue* const queue = queue_of(context, device);
        const bool is_inside =
            wanted >= begin && wanted - begin <= size && bytes <= size - (wanted - begin);
        if (is_inside && queue != nullptr) {
            return Allocation{
                .address = wanted, .bytes = bytes, .context = context, .queue = queue};
        }
    }
    return EFAULT;
}

/// Only what was allocated to be exported can be; the descriptor is of the whole allocation. It
/// stays the driver's, which answers with the same one each time.
util::Result<Claimant::DmaBuf> Ze::dma_buf(const Allocation& of) noexcept {
    ExportFd exported{.stype = kExportFd, .next = nullptr, .flags = kExternalDmaBuf, .fd = -1};
    AllocProperties properties{};
    properties.stype = kAllocProperties;
    properties.next = &exported;
    ZeHandle device = nullptr;
    void* base = nullptr;
    std::size_t size = 0;
    if (ze_.get_alloc_properties(of.context, at(of, 0), &properties, &device) != kZeSuccess ||
        exported.fd < 0) {
        return EOPNOTSUPP;
    }
    DmaBuf result{.fd = util::duplicate(exported.fd)};
    if (!result.fd.is_open()) {
        return errno;
    }
    if (ze_.get_address_range(of.context, at(of, 0), &base, &size) != kZeSuccess) {
        return EOPNOTSUPP;
    }
    result.offset = of.address - reinterpret_cast<std::uintptr_t>(base);
    return result;
}

util::Status Ze::copy(const Allocation& of, void* to, const void* from,
                      std::uint64_t bytes) noexcept {
    Queue& queue = *static_cast<Queue*>(of.queue);
    const std::lock_guard guard(queue.lock);
    const ZeResult result = ze_.append_copy(queue.list, to, from, bytes, nullptr, 0, nullptr);
    if (result == kZeSuccess) {
        return util::kOk;
    }
    RVT_WARN(kMr, "cannot copy %llu bytes of memory of Level Zero: 0x%x",
             static_cast<unsigned long long>(bytes), static_cast<unsigned>(result));
    return EIO;
}

util::Status Ze::copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept {
    return copy(from, to, at(from, offset), bytes);
}

util::Status Ze::copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept {
    return copy(to, at(to, offset), from, bytes);
}

}  // namespace

Claimant& ze() noexcept {
    static auto* const kOnly = new Ze;  // copies may run while the process ends
    return *kOnly;
}

}  // namespace rvt::hmem
