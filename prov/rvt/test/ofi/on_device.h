// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a stand-in for a device, which this process cannot touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/standin.h"
#include "ofi/fixture.h"

namespace rvt::test {

inline constexpr std::uint64_t kDeviceAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
inline constexpr std::size_t kDeviceBytes = 3 << 20;

/// Memory that this process cannot touch, unless it is the host's.
struct OnDevice {
    explicit OnDevice(std::size_t length = kDeviceBytes,
                      fab::standin::Where where = fab::standin::Where::kDevice)
        : memory(static_cast<char*>(fab::standin::allocate(length, where))) {}
    [[nodiscard]] char* at(std::size_t offset = 0) const { return memory + offset; }
    void write(std::size_t offset, const std::vector<char>& bytes) const {
        fab::standin::write(at(offset), bytes.data(), bytes.size());
    }
    void write_late(std::size_t offset, const std::vector<char>& bytes) const {
        fab::standin::write_late(at(offset), bytes.data(), bytes.size());
    }
    [[nodiscard]] std::vector<char> read(std::size_t offset, std::size_t count) const {
        std::vector<char> bytes(count);
        fab::standin::read(bytes.data(), at(offset), count);
        return bytes;
    }
    char* memory;
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
