// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of AMD's GPUs, through the HSA runtime (ROCr), under HIP as well.
#include <cerrno>
#include <mutex>

#include "hmem/claimants.h"
#include "hmem/library.h"
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

struct Functions {
    HsaStatus (*init)() = nullptr;
    HsaStatus (*status_string)(HsaStatus, const char**) = nullptr;
    HsaStatus (*agent_get_info)(HsaAgent, int, void*) = nullptr;
    HsaStatus (*pointer_info)(const void*, PointerInfo*, void* (*)(std::size_t), std::uint32_t*,
                              HsaAgent**) = nullptr;
    HsaStatus (*memory_copy)(void*, const void*, std::size_t) = nullptr;
    // Since ROCm 5.6.
    HsaStatus (*export_dmabuf)(const void*, std::size_t, int*, std::uint64_t*) = nullptr;
};

class Rocr final : public Claimant {
  public:
    [[nodiscard]] Kind kind() const noexcept override { return Kind::kRocr; }
    [[nodiscard]] const char* name() const noexcept override { return "ROCr"; }
    util::Status start() noexcept override;
    util::Result<Allocation> find(const void* address, std::uint64_t bytes) noexcept override;
    util::Result<DmaBuf> dma_buf(const Allocation& of) noexcept override;
    util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept override;
    util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept override;

  private:
    util::Status load() noexcept;
    [[nodiscard]] const char* text(HsaStatus status) const noexcept;
    util::Status copy(void* to, const void* from, std::uint64_t bytes) noexcept;

    std::once_flag once_;
    util::Status started_;
    Library library_;
    Functions hsa_;
};

void* at(const Allocation& allocation, std::uint64_t offset) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<void*>(allocation.address + offset);
}

util::Status Rocr::load() noexcept {
    const util::Status opened = library_.open("libhsa-runtime64.so.1", name());
    if (!opened.is_ok()) {
        return opened;
    }
    const bool is_whole = library_.find("hsa_init", hsa_.init) &&
                          library_.find("hsa_status_string", hsa_.status_string) &&
                          library_.find("hsa_agent_get_info", hsa_.agent_get_info) &&
                          library_.find("hsa_amd_pointer_info", hsa_.pointer_info) &&
                          library_.find("hsa_memory_copy", hsa_.memory_copy);
    if (!is_whole) {
        return ENOSYS;
    }
    library_.find_newer("hsa_amd_portable_export_dmabuf", hsa_.export_dmabuf);
    const HsaStatus status = hsa_.init();
    if (status != kHsaSuccess) {
        RVT_INFO(kMr, "no memory of ROCr: hsa_init: %s", text(status));
        return ENOSYS;
    }
    return util::kOk;
}

util::Status Rocr::start() noexcept {
    std::call_once(once_, [this] { started_ = load(); });
    return started_;
}

const char* Rocr::text(HsaStatus status) const noexcept {
    const char* text = nullptr;
    return hsa_.status_string(status, &text) == kHsaSuccess && text != nullptr ? text
                                                                               : "unknown error";
}

util::Result<Allocation> Rocr::find(const void* address, std::uint64_t bytes) noexcept {
    PointerInfo info{};
    info.size = sizeof info;
    int device = -1;
    const bool is_device =
        hsa_.pointer_info(address, &info, nullptr, nullptr, nullptr) == kHsaSuccess &&
        info.type != kPointerUnknown && info.type != kPointerLocked &&
        hsa_.agent_get_info(info.owner, kAgentInfoDevice, &device) == kHsaSuccess &&
        device == kDeviceTypeGpu;
    if (!is_device) {
        return EFAULT;
    }
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    const auto base = reinterpret_cast<std::uintptr_t>(info.agent_base);
    if (wanted < base || wanted - base > info.bytes || bytes > info.bytes - (wanted - base)) {
        return EFAULT;
    }
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

}  // namespace

Claimant& rocr() noexcept {
    static auto* const kOnly = new Rocr;  // copies may run while the process ends
    return *kOnly;
}

}  // namespace rvt::hmem
