// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A part of a dma-buf, mapped into this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "hmem/device_region.h"
#include "util/fork_guard.h"
#include "util/mapping.h"
#include "util/status.h"

namespace rvt::hmem {

/// Which part. fi_mr(3), struct fi_mr_dmabuf.
struct DmaBufPart {
    int fd = -1;  // stays the caller's
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

/// @param writes  Whether it is to be written, too; a descriptor for reading alone can be read.
/// Returns: EBADF for a descriptor that is not open, EINVAL for one of anything else and for a part
///          of no bytes or past the end, EACCES for one that does not permit what is asked.
util::Status check_part(const DmaBufPart& part, bool writes) noexcept;

/// The mapping follows a buffer that its exporter moves: the kernel takes the pages away, and the
/// next access finds the new ones.
class DmaBufMemory final : public DeviceRegion {
  public:
    /// Keeps a descriptor of its own.
    /// Returns: as check_part(); EOPNOTSUPP when the exporter lets no CPU map it, EMFILE, ENOMEM.
    static util::Result<std::unique_ptr<DmaBufMemory>> map(const DmaBufPart& part, bool writes);

    util::Status begin_cpu_access(core::CpuAccess access) noexcept override;
    void end_cpu_access(core::CpuAccess access) noexcept override;
    [[nodiscard]] File file() const noexcept override {
        return {.fd = fd_.get(), .offset = offset_};
    }

  private:
    DmaBufMemory(std::byte* data, std::uint64_t bytes, bool is_writable) noexcept
        : DeviceRegion(data, bytes, is_writable) {}

    util::ProcessFd fd_;
    util::Mapping mapping_;
    std::uint64_t offset_ = 0;  // of the part in the dma-buf and in the mapping
};

}  // namespace rvt::hmem
