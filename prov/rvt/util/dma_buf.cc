// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "util/dma_buf.h"

#include <cerrno>

#include <linux/dma-buf.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace rvt::util {
namespace {

/// Whoever writes a part of a cache line also reads the rest of it.
std::uint64_t direction(bool writes) noexcept {
    return writes ? DMA_BUF_SYNC_RW : DMA_BUF_SYNC_READ;
}

Status sync(int fd, std::uint64_t flags) noexcept {
    dma_buf_sync request{.flags = flags};
    int result = 0;
    do {
        result = ioctl(fd, DMA_BUF_IOCTL_SYNC, &request);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    return result == 0 ? kOk : Status(errno);
}

}  // namespace

Result<bool> is_dma_buf(int fd) noexcept {
    struct statfs system {};
    if (fstatfs(fd, &system) != 0) {
        return errno;
    }
    return system.f_type == DMA_BUF_MAGIC;
}

Result<std::uint64_t> dma_buf_bytes(int fd) noexcept {
    const off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes < 0) {
        return errno;
    }
    return static_cast<std::uint64_t>(bytes);
}

Status begin_dma_buf_access(int fd, bool writes) noexcept {
    return sync(fd, DMA_BUF_SYNC_START | direction(writes));
}

void end_dma_buf_access(int fd, bool writes) noexcept {
    // What began can end: the exporter's error would be one of its device, which is gone then.
    [[maybe_unused]] const Status ended = sync(fd, DMA_BUF_SYNC_END | direction(writes));
}

}  // namespace rvt::util
