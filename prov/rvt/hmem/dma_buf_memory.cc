// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/dma_buf_memory.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "util/dma_buf.h"

namespace rvt::hmem {
namespace {

bool is_read_only(int fd) noexcept {
    return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

/// ENOTSUPP of the kernel, which is not meant to get out of it, and does from NVIDIA's exporter.
constexpr int kKernelNotSupported = 524;

/// An exporter without a mapping for the CPU has several ways to say so.
util::Status to_map_error(util::Status status) noexcept {
    const int error = status.error();
    return error == EINVAL || error == ENODEV || error == ENOTSUP || error == ENXIO ||
                   error == EPERM || error == kKernelNotSupported
               ? util::Status(EOPNOTSUPP)
               : status;
}

}  // namespace

util::Status check_part(const DmaBufPart& part, bool writes) noexcept {
    const util::Result<bool> is_one = util::is_dma_buf(part.fd);
    if (!is_one.is_ok()) {
        return is_one.status();
    }
    if (!is_one.value()) {
        return EINVAL;
    }
    const util::Result<std::uint64_t> all = util::dma_buf_bytes(part.fd);
    if (!all.is_ok()) {
        return all.status();
    }
    const bool is_inside = part.offset <= all.value() && part.bytes <= all.value() - part.offset;
    if (part.bytes == 0 || !is_inside) {
        return EINVAL;
    }
    return writes && is_read_only(part.fd) ? util::Status(EACCES) : util::kOk;
}

util::Result<std::unique_ptr<DmaBufMemory>> DmaBufMemory::map(const DmaBufPart& part, bool writes) {
    const util::Status checked = check_part(part, writes);
    if (!checked.is_ok()) {
        return checked;
    }
    util::UniqueFd kept = util::duplicate(part.fd);
    util::UniqueFd mapped = util::duplicate(part.fd);
    if (!kept.is_open() || !mapped.is_open()) {
        return errno;
    }
    const bool is_writable = !is_read_only(part.fd);
    // From the start on: exporters of DRM (drm_gem_shmem_fault) map the first pages whatever offset
    // mmap(2) was given.
    util::Result<util::Mapping> mapping =
        util::Mapping::attach(std::move(mapped), 0, part.offset + part.bytes, is_writable);
    if (!mapping.is_ok()) {
        return to_map_error(mapping.status());
    }
    std::unique_ptr<DmaBufMemory> made(
        new DmaBufMemory(mapping.value().at<std::byte>(part.offset), part.bytes, is_writable));
    made->offset_ = part.offset;
    made->mapping_ = mapping.take();
    made->fd_ = util::ProcessFd(std::move(kept));
    return made;
}

util::Status DmaBufMemory::begin_cpu_access(core::CpuAccess access) noexcept {
    return util::begin_dma_buf_access(fd_.get(), access == core::CpuAccess::kWrite);
}

void DmaBufMemory::end_cpu_access(core::CpuAccess access) noexcept {
    util::end_dma_buf_access(fd_.get(), access == core::CpuAccess::kWrite);
}

}  // namespace rvt::hmem
