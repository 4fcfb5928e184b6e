// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices for tests: dma-bufs of the exporters that a kernel has without any hardware.
#pragma once

#include <cstddef>
#include <string>

#include <fcntl.h>

namespace fab {

/// A new dma-buf of at least `length` bytes.
///
/// @param exporter  `udmabuf`, `heap` or `vgem`; or `standin`: a memory file that the interposed
///                  calls of functional/device_standin.cc take for one; `unmappable`: the same,
///                  but the CPU cannot map it.
/// @param mode      O_RDWR, or O_RDONLY for a descriptor through which nobody can write.
/// Returns: a descriptor that the caller closes; -1: this exporter has none of that mode. Ends this
///          rank as skipped where there is no such exporter.
int export_dma_buf(const std::string& exporter, std::size_t length, int mode = O_RDWR);

/// Maps all of a dma-buf as an application does, for looking at what a provider did to it.
void* map_dma_buf(int fd, std::size_t length);
void unmap_dma_buf(void* memory, std::size_t length);

/// The name by which a stand-in is recognised.
inline constexpr const char* kStandInName = "dma-buf-stand-in";
/// And one that the CPU cannot map; contains the other.
inline constexpr const char* kUnmappableName = "dma-buf-stand-in-unmappable";

}  // namespace fab
