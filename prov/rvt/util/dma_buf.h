// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Descriptors of dma-bufs: memory of a device that the kernel passes around. Kernel documentation,
// "Buffer Sharing and Synchronization (dma-buf)", "Userspace Interface Notes".
#pragma once

#include <cstdint>

#include "util/status.h"

namespace rvt::util {

/// Returns: EBADF for a descriptor that is not open.
Result<bool> is_dma_buf(int fd) noexcept;

/// The size of a dma-buf, which never changes. Moves no file offset that matters: it has none.
/// Returns: the error of lseek(2).
Result<std::uint64_t> dma_buf_bytes(int fd) noexcept;

/// DMA_BUF_IOCTL_SYNC: one access of the CPU to a mapping of the dma-buf, with or without writing.
/// The begin may wait for what the device does.
/// Returns: what the exporter says; there is no end then.
Status begin_dma_buf_access(int fd, bool writes) noexcept;
void end_dma_buf_access(int fd, bool writes) noexcept;

}  // namespace rvt::util
