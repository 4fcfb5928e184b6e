// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Registered memory that a peer can map: memory which lies in a shared mapping of a file that this
// process still has open, or may open again. One-sided access to it needs neither the target's
// progress nor a system call.
//
// A file that shrinks under a mapping is a SIGBUS for the process that touches it, and not for the
// one that shrank it. So a peer's file is mapped when it is sealed against that (F_SEAL_SHRINK);
// others on request, see map_region(). A dma-buf has one size for ever. A page that nobody has
// touched may be refused to the first who does, as by a limit of huge pages: so each access to what
// is mapped is a guarded one (util/fault_guard.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/shm/connection.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::shm {

/// The pages of a file that hold a piece of memory.
struct FilePart {
    util::UniqueFd fd;
    std::uint64_t offset = 0;  // of the first page, in the file
    std::uint64_t length = 0;  // whole pages
    std::uint64_t skip = 0;    // from the first page to the memory
};

/// What a peer says of its region.
struct RegionPlace {
    std::uint64_t offset = 0;  // of the pages, in the file
    std::uint64_t length = 0;  // of the pages
    std::uint64_t skip = 0;    // from the first page to the region
    std::uint64_t bytes = 0;   // of the region
};

/// The pages of a dma-buf from its start to the end of a piece of it: exporters of DRM map the
/// first pages whatever offset they are asked for.
FilePart part_of_dma_buf(util::UniqueFd fd, std::uint64_t offset, std::uint64_t length) noexcept;

/// Finds the file behind memory of this process.
///
/// Returns:  ENXIO for ordinary memory (private, anonymous, or of more than one file),
///           EMEDIUMTYPE for a file that is not kept in memory, ENOENT when no descriptor leads to
///           the file and the kernel lets us open none, EMFILE.
/// Threads:  any.
/// Cost:     reads /proc/self/maps and looks at each open descriptor.
util::Result<FilePart> find_file(const void* address, std::size_t length);

/// Maps memory that a peer has described.
///
/// @param accepts_unsealed  Take files, too, which may shrink.
/// Returns:  EPERM when the file may shrink, EPROTO when the description does not fit the file,
/// ENOMEM.
util::Result<MappedRegion> map_region(util::UniqueFd fd, const RegionPlace& place,
                                      bool accepts_unsealed);

}  // namespace rvt::shm
