// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies by the CPU between the host's memory and a dma-buf that it has mapped: for a NIC, which
// reaches no mapping of one.
#pragma once

#include <memory>
#include <utility>

#include "hmem/copier.h"
#include "hmem/dma_buf_memory.h"

namespace rvt::hmem {

class MappedCopier final : public Copier {
  public:
    explicit MappedCopier(std::unique_ptr<DmaBufMemory> memory) noexcept
        : memory_(std::move(memory)) {}

    [[nodiscard]] int device_kind() const noexcept override { return -1; }
    util::Status copy_out(const Allocation& from, std::uint64_t offset, std::byte* to,
                          std::uint64_t bytes) noexcept override;
    util::Status copy_in(const Allocation& to, std::uint64_t offset, const std::byte* from,
                         std::uint64_t bytes) noexcept override;

  private:
    const std::unique_ptr<DmaBufMemory> memory_;
};

}  // namespace rvt::hmem
