// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/mapped_copier.h"

#include "util/long_copy.h"

namespace rvt::hmem {

util::Status MappedCopier::copy_out(const Allocation& /*from*/, std::uint64_t offset, std::byte* to,
                                    std::uint64_t bytes) noexcept {
    const core::CpuAccessScope access(memory_.get(), core::CpuAccess::kRead);
    if (!access.status().is_ok()) {
        return EIO;
    }
    util::copy_bytes(to, memory_->data() + offset, bytes);
    return util::kOk;
}

util::Status MappedCopier::copy_in(const Allocation& /*to*/, std::uint64_t offset,
                                   const std::byte* from, std::uint64_t bytes) noexcept {
    const core::CpuAccessScope access(memory_.get(), core::CpuAccess::kWrite);
    if (!access.status().is_ok()) {
        return EIO;
    }
    util::copy_bytes(memory_->data() + offset, from, bytes);
    return util::kOk;
}

}  // namespace rvt::hmem
