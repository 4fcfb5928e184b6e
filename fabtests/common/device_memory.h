// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory of devices for tests: dma-bufs of the exporters that a kernel has without any hardware,
// and memory of CUDA, and of stand-ins for it and its like.
#pragma once

#include <cstddef>
#include <string>

#include <fcntl.h>
#include <rdma/fi_domain.h>

#include "common/standin.h"

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
    int dma_buf = -1;  // -1: it is named by its address
};
/// @param exporter  As above; or `cuda`: memory that both the CPU and a device can use; or, in
///                  functional_device, that of a stand-in (standin.h): `cuda-`, `rocr-` or `ze-`
///                  with `standin` (standin::How::kUnmappable), `openable` or `mapped` behind it.
/// Returns: what release_device_buffer() takes. Ends this rank as skipped where there is none.
DeviceBuffer make_device_buffer(const std::string& exporter, std::size_t length);
void release_device_buffer(const DeviceBuffer& buffer, std::size_t length);

/// A dma-buf of memory that is named by its address, or -1 where its library has none for it.
int dma_buf_of(const DeviceBuffer& buffer, std::size_t length);

/// Whether buffers are dma-bufs.
bool is_dma_buf_exporter(const std::string& exporter);
/// Of memory that is named by its address.
fi_hmem_iface iface_of(const std::string& exporter);
/// Whether the settings name a stand-in for a device's library, or one of that kind.
bool is_standin();
bool is_standin(standin::How how);
/// What it has done in this process. Precondition: is_standin().
standin::Counts standin_counts();
/// Has its next copy fail.
void fail_next_copy();

/// The name by which a stand-in is recognised.
inline constexpr const char* kStandInName = "dma-buf-stand-in";
/// And one that the CPU cannot map; contains the other.
inline constexpr const char* kUnmappableName = "dma-buf-stand-in-unmappable";

}  // namespace fab
