// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of AMD's GPUs, through the HSA runtime (ROCr), under HIP as well.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "hmem/claimants.h"
#include "hmem/device_library.h"
#include "util/log.h"

namespace rvt::hmem {
namespace {

// Names and numbers of the HSA Runtime Programmer's Reference and of AMD's extensions to it.
using HsaStatus = int;
constexpr HsaStatus kHsaSuccess = 0;
struct HsaAgent {
    std::uint64_t handle;
};
constexpr int kAgentInfoDevice = 17;  // HSA_AGENT_INFO_DEVICE
constexpr int kDeviceTypeCpu = 0;     // HSA_DEVICE_TYPE_CPU
constexpr int kDeviceTypeGpu = 1;     // HSA_DEVICE_TYPE_GPU
constexpr int kPointerUnknown = 0;    // HSA_EXT_POINTER_TYPE_UNKNOWN
constexpr int kPointerLocked = 2;     // HSA_EXT_POINTER_TYPE_LOCKED: the host's own

/// hsa_amd_pointer_info_t, which newer runtimes have made longer: `size` says how much is there.
struct PointerInfo {
    std::uint32_t size;
    int type;
    void* agent_base;
    void* host_base;
    std::size_t bytes;
    void* user_data;
    HsaAgent owner;
};

/// hsa_amd_ipc_memory_t.
struct HsaIpcMemory {
    std::array<std::uint32_t, 8> words;
};

/// What another process needs to open an allocation.
struct SharedAllocation {
    HsaIpcMemory handle;
    std::uint64_t bytes;
};
static_assert(sizeof(SharedAllocation) <= sizeof core::DeviceHandle::bytes);

struct Functions {
    HsaStatus (*init)() = nullptr;
    HsaStatus (*status_string)(HsaStatus, const char**) = nullptr;
    HsaStatus (*agent_get_info)(HsaAgent, int, void*) = nullptr;
    HsaStatus (*pointer_info)(const void*, PointerInfo*, void* (*)(std::size_t), std::uint32_t*,
                              HsaAgent**) = nullptr;
    HsaStatus (*memory_copy)(void*, const void*, std::size_t) = nullptr;
    HsaStatus (*ipc_create)(void*, std::size_t, HsaIpcMemory*) = nullptr;
    HsaStatus (*ipc_attach)(const HsaIpcMemory*, std::size_t, std::uint32_t, const HsaAgent*,
                            void**) = nullptr;
    HsaStatus (*ipc_detach)(void*) = nullptr;
    // Since ROCm 5.6.
    HsaStatus (*export_dmabuf)(const void*, std::size_t, int*, std::uint64_t*) = nullptr;
};

class Rocr final : public Claimant {
  public:
    [[nodiscard]] Kind kind() const noexcept override { return Kind::kRocr; }
    [[nodiscard]] const char* name() const noexcept override { return "ROCr"; }
    util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept override;
    util::Result<DmaBuf> dma_buf(const Allocation& of) noexcept override;
    util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept override;
    util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept override;
    [[nodiscard]] bool is_of_host(const void* address) noexcept override;
    util::Result<core::DeviceHandle> share(const Allocation& of) noexcept override;
    [[nodiscard]] bool is_in_use() const noexcept override {
        return is_in_use_.load(std::memory_order_relaxed);  // relaxed: a flag on its own
    }
    util::Result<Allocation> open(const core::DeviceHandle& handle) noexcept override;
    void close(const Allocation& opened, const core::DeviceHandle& by) noexcept override;
    util::Status copy_across(const Allocation& opened, std::uint64_t to, std::uint64_t from,
                             std::uint64_t bytes) noexcept override;

  private:
    bool load() noexcept override;
    util::Status initialise() noexcept override;
    [[nodiscard]] const char* text(HsaStatus status) const noexcept;
    [[nodiscard]] int describe(const void* address, PointerInfo& info) noexcept;
    util::Status copy(void* to, const void* from, std::uint64_t bytes) noexcept;

    DeviceLibrary library_;
    Functions hsa_;
    std::atomic<bool> is_in_use_{false};
};

void* pointer(std::uint64_t address) noexcept {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void* at(const Allocation& allocation, std::uint64_t offset) noexcept {
    return pointer(allocation.address + offset);
}

bool Rocr::load() noexcept {
    if (!library_.open("libhsa-runtime64.so.1", name()).is_ok()) {
        return false;
    }
    const bool is_whole = library_.find("hsa_init", hsa_.init) &&
                          library_.find("hsa_status_string", hsa_.status_string) &&
                          library_.find("hsa_agent_get_info", hsa_.agent_get_info) &&
                          library_.find("hsa_amd_pointer_info", hsa_.pointer_info) &&
                          library_.find("hsa_memory_copy", hsa_.memory_copy) &&
                          library_.find("hsa_amd_ipc_memory_create", hsa_.ipc_create) &&
                          library_.find("hsa_amd_ipc_memory_attach", hsa_.ipc_attach) &&
                          library_.find("hsa_amd_ipc_memory_detach", hsa_.ipc_detach);
    if (!is_whole) {
        return false;
    }
    library_.find_newer("hsa_amd_portable_export_dmabuf", hsa_.export_dmabuf);
    return true;
}

util::Status Rocr::initialise() noexcept {
    const HsaStatus status = hsa_.init();
    if (status != kHsaSuccess) {
        RVT_INFO(kMr, "no memory of ROCr: hsa_init: %s", text(status));
        return ENOSYS;
    }
    return util::kOk;
}

const char* Rocr::text(HsaStatus status) const noexcept {
    const char* text = nullptr;
    return hsa_.status_string(status, &text) == kHsaSuccess && text != nullptr ? text
                                                                               : "unknown error";
}

/// Returns: the type of the device that it is memory of; -1: the runtime does not know it.
int Rocr::describe(const void* address, PointerInfo& info) noexcept {
    info = {};
    info.size = sizeof info;
    if (hsa_.pointer_info(address, &info, nullptr, nullptr, nullptr) != kHsaSuccess ||
        info.type == kPointerUnknown) {
        return -1;
    }
    if (info.type == kPointerLocked) {
        return kDeviceTypeCpu;
    }
    int device = -1;
    return hsa_.agent_get_info(info.owner, kAgentInfoDevice, &device) == kHsaSuccess ? device : -1;
}

bool Rocr::is_of_host(const void* address) noexcept {
    PointerInfo info;
    return describe(address, info) == kDeviceTypeCpu;
}

util::Result<Allocation> Rocr::find(const void* address, std::uint64_t bytes) noexcept {
    PointerInfo info;
    if (describe(address, info) != kDeviceTypeGpu) {
        return EFAULT;
    }
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    const auto base = reinterpret_cast<std::uintptr_t>(info.agent_base);
    if (wanted < base || wanted - base > info.bytes || bytes > info.bytes - (wanted - base)) {
        return EFAULT;
    }
    is_in_use_.store(true, std::memory_order_relaxed);  // relaxed: see is_in_use()
    return Allocation{.address = wanted, .bytes = bytes};
}

util::Result<Claimant::DmaBuf> Rocr::dma_buf(const Allocation& of) noexcept {
    int fd = -1;
    std::uint64_t offset = 0;
    if (hsa_.export_dmabuf == nullptr ||
        hsa_.export_dmabuf(at(of, 0), of.bytes, &fd, &offset) != kHsaSuccess || fd < 0) {
        return EOPNOTSUPP;
    }
    return DmaBuf{.fd = util::UniqueFd(fd), .offset = offset};
}

util::Status Rocr::copy(void* to, const void* from, std::uint64_t bytes) noexcept {
    const HsaStatus status = hsa_.memory_copy(to, from, bytes);
    if (status == kHsaSuccess) {
        return util::kOk;
    }
    RVT_WARN(kMr, "cannot copy %llu bytes of memory of ROCr: %s",
             static_cast<unsigned long long>(bytes), text(status));
    return EIO;
}

util::Status Rocr::copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                            std::uint64_t bytes) noexcept {
    return copy(to, at(from, offset), bytes);
}

util::Status Rocr::copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                           std::uint64_t bytes) noexcept {
    return copy(at(to, offset), from, bytes);
}

// ---- between processes: hsa_amd_ipc_memory_create() and what follows ----

/// A handle is of the whole allocation.
util::Result<core::DeviceHandle> Rocr::share(const Allocation& of) noexcept {
    PointerInfo info;
    SharedAllocation shared{};
    if (describe(at(of, 0), info) != kDeviceTypeGpu ||
        hsa_.ipc_create(info.agent_base, info.bytes, &shared.handle) != kHsaSuccess) {
        return EOPNOTSUPP;
    }
    shared.bytes = info.bytes;
    core::DeviceHandle handle{
        .kind = static_cast<std::uint32_t>(kind()),
        .offset = of.address - reinterpret_cast<std::uintptr_t>(info.agent_base)};
    std::memcpy(handle.bytes.data(), &shared, sizeof shared);
    return handle;
}

/// For all agents. Each time it is another place, and counted by the runtime.
util::Result<Allocation> Rocr::open(const core::DeviceHandle& handle) noexcept {
    SharedAllocation shared;
    std::memcpy(&shared, handle.bytes.data(), sizeof shared);
    void* opened = nullptr;
    const HsaStatus status = hsa_.ipc_attach(&shared.handle, shared.bytes, 0, nullptr, &opened);
    if (status != kHsaSuccess) {
        RVT_INFO(kMr, "memory of ROCr of another process cannot be opened: %s", text(status));
        return EOPNOTSUPP;
    }
    return Allocation{.address = reinterpret_cast<std::uintptr_t>(opened), .bytes = shared.bytes};
}

void Rocr::close(const Allocation& opened, const core::DeviceHandle& /*by*/) noexcept {
    // While the process ends the runtime may refuse: it lets go of everything itself.
    static_cast<void>(hsa_.ipc_detach(at(opened, 0)));
}

util::Status Rocr::copy_across(const Allocation& /*opened*/, std::uint64_t to, std::uint64_t from,
                               std::uint64_t bytes) noexcept {
    return copy(pointer(to), pointer(from), bytes);
}

}  // namespace

Claimant& rocr() noexcept {
    static auto* const kOnly = new Rocr;  // copies may run while the process ends
    return *kOnly;
}

}  // namespace rvt::hmem
