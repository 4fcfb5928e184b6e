// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices for tests: dma-bufs of the exporters that a kernel has without any hardware,
// and memory of CUDA.
#pragma once

#include <cstddef>
#include <string>

#include <fcntl.h>

#include "common/cuda_standin.h"

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

/// A new piece of memory of whatever the settings name, where an application sees it.
struct DeviceBuffer {
    void* memory = nullptr;
    int dma_buf = -1;  // -1: memory of CUDA, which is named by its address
};
/// @param exporter  As above; or `cuda`, `cuda-standin` or `cuda-mapped`: memory that both the CPU
///                  and a device can use, of CUDA or, in functional_device, the stand-in for it.
/// Returns: what release_device_buffer() takes. Ends this rank as skipped where there is none.
DeviceBuffer make_device_buffer(const std::string& exporter, std::size_t length);
void release_device_buffer(const DeviceBuffer& buffer, std::size_t length);

/// A dma-buf of memory of CUDA, or -1 where the driver has none for it.
int dma_buf_of(const DeviceBuffer& buffer, std::size_t length);

/// Whether buffers are dma-bufs.
bool is_dma_buf_exporter(const std::string& exporter);
/// Whether the settings name the stand-in for CUDA.
bool is_cuda_standin();
/// What it has done in this process. Precondition: is_cuda_standin().
CudaCounts standin_counts();
/// Has its next copy fail.
void fail_next_copy();

/// The name by which a stand-in is recognised.
inline constexpr const char* kStandInName = "dma-buf-stand-in";
/// And one that the CPU cannot map; contains the other.
inline constexpr const char* kUnmappableName = "dma-buf-stand-in-unmappable";

}  // namespace fab
