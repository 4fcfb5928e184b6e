// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/opened_memory.h"

#include <cerrno>
#include <cstddef>
#include <new>

#include "hmem/claimant.h"
#include "hmem/claimants.h"

namespace rvt::hmem {
namespace {

class OpenedMemory final : public core::PeerDeviceMemory {
  public:
    OpenedMemory(Claimant& claimant, const Allocation& opened,
                 const core::DeviceHandle& handle) noexcept
        : claimant_(claimant), opened_(opened), handle_(handle) {}
    ~OpenedMemory() override { claimant_.close(opened_, handle_); }
    OpenedMemory(const OpenedMemory&) = delete;
    OpenedMemory& operator=(const OpenedMemory&) = delete;

    [[nodiscard]] std::uint32_t kind() const noexcept override { return handle_.kind; }
    util::Status read(std::uint64_t offset, core::DevicePlace to,
                      std::uint64_t bytes) noexcept override {
        const std::uint64_t from = handle_.offset + offset;
        return to.is_device
                   ? claimant_.copy_across(opened_, to.address, opened_.address + from, bytes)
                   // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's
                   : claimant_.copy_out(opened_, from, reinterpret_cast<std::byte*>(to.address),
                                        bytes);
    }
    util::Status write(std::uint64_t offset, core::DevicePlace from,
                       std::uint64_t bytes) noexcept override {
        const std::uint64_t to = handle_.offset + offset;
        return from.is_device
                   ? claimant_.copy_across(opened_, opened_.address + to, from.address, bytes)
                   : claimant_.copy_in(opened_, to,
                                       // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's
                                       reinterpret_cast<const std::byte*>(from.address), bytes);
    }

  private:
    Claimant& claimant_;
    const Allocation opened_;
    const core::DeviceHandle handle_;
};

class Opener final : public core::DeviceOpener {
  public:
    [[nodiscard]] bool is_ready() const noexcept override {
        for (std::size_t i = 0; i < kKinds; ++i) {
            if (known_claimant(static_cast<Kind>(i)).is_in_use()) {
                return true;
            }
        }
        return false;
    }
    util::Result<std::unique_ptr<core::PeerDeviceMemory>> open(
        const core::DeviceHandle& handle) noexcept override {
        if (handle.kind >= kKinds) {
            return EOPNOTSUPP;
        }
        Claimant& claimant = known_claimant(static_cast<Kind>(handle.kind));
        const util::Result<Allocation> opened =
            claimant.is_in_use() ? claimant.open(handle) : util::Result<Allocation>(EOPNOTSUPP);
        if (!opened.is_ok()) {
            return opened.status();
        }
        std::unique_ptr<core::PeerDeviceMemory> made(
            new (std::nothrow) OpenedMemory(claimant, opened.value(), handle));
        if (made == nullptr) {
            claimant.close(opened.value(), handle);
            return ENOMEM;
        }
        return made;
    }
};

}  // namespace

core::DeviceOpener& opener() noexcept {
    static Opener only;
    return only;
}

}  // namespace rvt::hmem
