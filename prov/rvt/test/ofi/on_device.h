// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of the stand-in for CUDA, which this process cannot touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cuda_standin.h"
#include "ofi/fixture.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the driver's own names
int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes);
int cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes);
int cuDevicePrimaryCtxRetain(void** retained, int device);
int cuCtxPushCurrent_v2(void* pushed);
int cuCtxPopCurrent_v2(void** popped);
// NOLINTEND(readability-identifier-naming)
}

namespace rvt::test {

inline constexpr std::uint64_t kDeviceAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
inline constexpr std::size_t kDeviceBytes = 3 << 20;

/// The application's own copies need a current context; the provider's must not rely on it.
class InContext {
  public:
    InContext() {
        void* context = nullptr;
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxPushCurrent_v2(context);
    }
    ~InContext() {
        void* popped = nullptr;
        cuCtxPopCurrent_v2(&popped);
    }
    InContext(const InContext&) = delete;
    InContext& operator=(const InContext&) = delete;
};

/// Memory that this process cannot touch.
struct OnDevice {
    explicit OnDevice(std::size_t length = kDeviceBytes) {
        RVT_EQ(cuMemAlloc_v2(&address, length), 0);
    }
    [[nodiscard]] char* at(std::size_t offset = 0) const {
        return reinterpret_cast<char*>(address) + offset;  // NOLINT(performance-no-int-to-ptr)
    }
    void write(std::size_t offset, const std::vector<char>& bytes) const {
        const InContext in;
        RVT_EQ(cuMemcpyHtoD_v2(address + offset, bytes.data(), bytes.size()), 0);
    }
    [[nodiscard]] std::vector<char> read(std::size_t offset, std::size_t count) const {
        const InContext in;
        std::vector<char> bytes(count);
        RVT_EQ(cuMemcpyDtoH_v2(bytes.data(), address + offset, count), 0);
        return bytes;
    }
    unsigned long long address = 0;
};

inline int try_reg(fid_domain* domain, const void* address, std::size_t bytes, fi_hmem_iface iface,
                   fid_mr** mr, std::uint64_t key = 1) {
    const iovec buffer{const_cast<void*>(address), bytes};
    fi_mr_attr attr{};
    attr.mr_iov = &buffer;
    attr.iov_count = 1;
    attr.access = kDeviceAccess;
    attr.requested_key = key;
    attr.iface = iface;
    return fi_mr_regattr(domain, &attr, 0, mr);
}

inline std::vector<char> numbered(std::size_t count, int seed) {
    std::vector<char> bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
        bytes[i] = static_cast<char>(static_cast<std::size_t>(seed) + i * 7 + i / 251);
    }
    return bytes;
}

}  // namespace rvt::test
