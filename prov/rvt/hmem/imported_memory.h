// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A part of a dma-buf that a NIC reaches by itself: the CPU has no part in what goes there.
#pragma once

#include <cerrno>
#include <memory>

#include "core/device_memory.h"
#include "hmem/dma_buf_memory.h"
#include "util/fork_guard.h"
#include "util/status.h"

namespace rvt::hmem {

class ImportedMemory final : public core::DeviceMemory {
  public:
    /// Keeps a descriptor of its own.
    /// Returns: as check_part(); EMFILE.
    static util::Result<std::unique_ptr<ImportedMemory>> make(const DmaBufPart& part, bool writes);

    util::Status begin_cpu_access(core::CpuAccess /*access*/) noexcept override {
        return EOPNOTSUPP;
    }
    void end_cpu_access(core::CpuAccess /*access*/) noexcept override {}
    [[nodiscard]] File file() const noexcept override {
        return {.fd = fd_.get(), .offset = offset_};
    }

  private:
    ImportedMemory(util::UniqueFd fd, std::uint64_t offset) : fd_(std::move(fd)), offset_(offset) {}

    util::ProcessFd fd_;
    const std::uint64_t offset_;
};

}  // namespace rvt::hmem
