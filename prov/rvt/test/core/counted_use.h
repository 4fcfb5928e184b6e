// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What an operation holds of memory of a device, for tests: counts what it is told.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device_memory.h"

namespace rvt::test {

/// Of an operation's buffer in memory that only this process reaches, or with a place the NIC, too.
struct CountedUse final : core::BufferUse {
    util::Status filled(std::uint64_t begin, std::uint64_t end) noexcept override {
        fills += begin < end ? 1 : 0;
        filled_end = end;
        return outcome;
    }
    void part_done() noexcept override {}
    void release() noexcept override { ++releases; }
    util::Status refresh(std::uint64_t /*end*/) noexcept override {
        ++refreshes;
        return util::kOk;
    }
    void arrived(std::uint64_t end) noexcept override { arrived_end = end; }
    [[nodiscard]] const Source* source() const noexcept override { return nullptr; }
    util::Result<core::DevicePlace> device_place(std::uint32_t /*kind*/,
                                                 const void* /*here*/) const noexcept override {
        return EOPNOTSUPP;
    }
    [[nodiscard]] const NicPlace* nic_place() const noexcept override {
        return place ? &*place : nullptr;
    }
    /// Whether the processor has had no part in it.
    [[nodiscard]] bool is_untouched() const {
        return refreshes == 0 && arrived_end == 0 && fills == 0;
    }
    std::optional<NicPlace> place;
    int refreshes = 0;
    std::uint64_t arrived_end = 0;
    int fills = 0;
    std::uint64_t filled_end = 0;
    util::Status outcome;  // of what has been filled
    int releases = 0;
};

}  // namespace rvt::test
