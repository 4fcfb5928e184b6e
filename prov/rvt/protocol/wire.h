// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Integers in network byte order, one after the other, wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <endian.h>

namespace rvt::protocol {

/// Precondition of each call: the bytes are there.
class WireWriter {
  public:
    explicit WireWriter(std::byte* to) noexcept : to_(to) {}

    void u8(std::uint8_t value) noexcept { put(value); }
    void u16(std::uint16_t value) noexcept { put(htobe16(value)); }
    void u32(std::uint32_t value) noexcept { put(htobe32(value)); }
    void u64(std::uint64_t value) noexcept { put(htobe64(value)); }

  private:
    template <class T>
    void put(T value) noexcept {
        std::memcpy(to_, &value, sizeof value);
        to_ += sizeof value;
    }
    std::byte* to_;
};

/// Precondition of each call: the bytes are there.
class WireReader {
  public:
    explicit WireReader(const std::byte* from) noexcept : from_(from) {}

    std::uint8_t u8() noexcept { return get<std::uint8_t>(); }
    std::uint16_t u16() noexcept { return be16toh(get<std::uint16_t>()); }
    std::uint32_t u32() noexcept { return be32toh(get<std::uint32_t>()); }
    std::uint64_t u64() noexcept { return be64toh(get<std::uint64_t>()); }

  private:
    template <class T>
    T get() noexcept {
        T value;
        std::memcpy(&value, from_, sizeof value);
        from_ += sizeof value;
        return value;
    }
    const std::byte* from_;
};

}  // namespace rvt::protocol
