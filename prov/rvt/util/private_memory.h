// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whole pages of this process alone, filled with zeros, with one owner.
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>

namespace rvt::util {

class PrivateMemory {
  public:
    /// Pages that nobody touches take no memory. data() is nullptr where there is none.
    static PrivateMemory allocate(std::size_t bytes) noexcept {
        PrivateMemory made;
        void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data != MAP_FAILED) {
            made.data_ = data;
            made.bytes_ = bytes;
        }
        return made;
    }

    PrivateMemory() noexcept = default;
    ~PrivateMemory() { reset(); }
    PrivateMemory(PrivateMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    PrivateMemory& operator=(PrivateMemory&& other) noexcept {
        reset();
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        return *this;
    }
    PrivateMemory(const PrivateMemory&) = delete;
    PrivateMemory& operator=(const PrivateMemory&) = delete;

    [[nodiscard]] void* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  private:
    void reset() noexcept {
        if (data_ != nullptr) {
            munmap(data_, bytes_);
            data_ = nullptr;
        }
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace rvt::util
