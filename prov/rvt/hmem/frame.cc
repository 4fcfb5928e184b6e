// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A kind of devices that is on no host: what is to be filled in for one that is (docs/hmem.md, 6).
// Copy it, call the class as the library is called, and follow the comments. It owns no memory, and
// is compiled for tests alone, so that it stays right.
#include <cerrno>

#include "hmem/claimants.h"

namespace rvt::hmem {
namespace {

class Frame final : public Claimant {
  public:
    /// Its value in hmem::Kind, which peers and counters know it by. This one has none.
    [[nodiscard]] Kind kind() const noexcept override { return static_cast<Kind>(kKinds); }
    /// As users know it: it stands in the log and in errors.
    [[nodiscard]] const char* name() const noexcept override { return "nothing"; }

    /// Asks the library what lies at the address. An allocation is answered only if the device owns
    /// it and all `bytes` are in it: `address` is where the device has the bytes, `context` and
    /// `queue` what copies will need. Called for each region, also for ordinary memory, which the
    /// library may know of as well (is_of_host()) and which is not to be claimed.
    util::Result<Allocation> find(const void* /*address*/,
                                  std::uint64_t /*bytes*/) noexcept override {
        return EFAULT;
    }
    /// Asks the library whether it has allocated, or pinned, this in the host's memory: who names
    /// this kind for such memory means ordinary memory.
    [[nodiscard]] bool is_of_host(const void* /*address*/) noexcept override { return false; }

    /// Copies from the device, waits for it, and for what the device was doing to these bytes. From
    /// any thread, with locks of the domain held: it calls back to nobody. Logs why it fails.
    util::Status copy_out(const Allocation& /*from*/, std::uint64_t /*offset*/, std::byte* /*to*/,
                          std::uint64_t /*bytes*/) noexcept override {
        return EIO;
    }
    /// Copies to the device, and waits likewise.
    util::Status copy_in(const Allocation& /*to*/, std::uint64_t /*offset*/,
                         const std::byte* /*from*/, std::uint64_t /*bytes*/) noexcept override {
        return EIO;
    }

    // What follows makes it faster and may be left out, each group by itself.

    /// Exports the allocation, where the driver can: NICs import it, and its memory is mapped. The
    /// descriptor is duplicated if the library keeps it.
    util::Result<DmaBuf> dma_buf(const Allocation& /*of*/) noexcept override { return EOPNOTSUPP; }

    /// Pins host memory so that copies need not wait; with it go unpin(), begin_copy_out(),
    /// begin_copy_in() and finish(), which are not called while this answers so.
    util::Status pin(const Allocation& /*for_copies*/, std::byte* /*begin*/,
                     std::uint64_t /*bytes*/) noexcept override {
        return EOPNOTSUPP;
    }

    /// Makes a handle by which another process of this host opens the allocation; with it go
    /// open(), close(), copy_across() and is_in_use(), which says whether find() has found
    /// something yet.
    util::Result<core::DeviceHandle> share(const Allocation& /*of*/) noexcept override {
        return EOPNOTSUPP;
    }

  private:
    /// Opens the library by its name and ABI ("libframe.so.1") with DeviceLibrary, and looks up all
    /// functions that are needed; what only newer ones have by find_newer(). Their types, and
    /// constants, are written down in this file: none of its headers is included. Once, and without
    /// initialising anything: a process may fork afterwards. What is missing has been logged by
    /// then.
    bool load() noexcept override { return true; }
    /// Initialises it, once, before anything else is asked. Logs at level info why there is no
    /// device, and answers ENOSYS then.
    util::Status initialise() noexcept override { return util::kOk; }
};

}  // namespace

/// The only one. It is never destroyed: copies may run while the process ends.
Claimant& frame() noexcept {
    static auto* const kOnly = new Frame;
    return *kOnly;
}

}  // namespace rvt::hmem
