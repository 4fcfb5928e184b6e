// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of a device for tests of what NICs do with it, and operations on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

#include "core/counted_use.h"
#include "core/device_memory.h"
#include "core/mock_roce_nic.h"
#include "core/nic_pages.h"
#include "core/segments.h"

namespace rvt::test {

/// A region that has a dma-buf. The mock for NICs, which knows it by its address, is in this
/// process.
struct DevicePages final : core::DeviceMemory {
    DevicePages(const Pages& pages, std::uint32_t key)
        : place{.memory = this,
                .key = key,
                .begin = reinterpret_cast<std::uint64_t>(pages.memory),
                .bytes = pages.bytes,
                .address = reinterpret_cast<std::uint64_t>(pages.memory)},
          region{.segments = {pages.all()}, .device = this} {}
    ~DevicePages() { close(fd); }
    DevicePages(const DevicePages&) = delete;
    DevicePages& operator=(const DevicePages&) = delete;

    util::Status begin_cpu_access(core::CpuAccess /*access*/) noexcept override {
        ++cpu_accesses;
        return util::kOk;
    }
    void end_cpu_access(core::CpuAccess /*access*/) noexcept override {}
    [[nodiscard]] File file() const noexcept override { return {}; }
    [[nodiscard]] File nic_file() noexcept override { return {.fd = fd}; }
    [[nodiscard]] bool is_registered(const verbs::MockNic& mock) const {
        return std::ranges::any_of(
            mock.regions, [this](const auto& each) { return each.fd == fd && each.is_there; });
    }

    const int fd = memfd_create("device", MFD_CLOEXEC);
    const core::BufferUse::NicPlace place;  // of the first byte
    const core::RegionMemory region;
    int cpu_accesses = 0;
};

}  // namespace rvt::test
