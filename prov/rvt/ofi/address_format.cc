// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reading and writing addresses in libfabric's forms.
#include "ofi/address_format.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

namespace rvt::ofi {
namespace {

struct Bytes {
    sockaddr_storage storage{};
    std::string text;
    const void* data = nullptr;
    std::size_t size = 0;
};

void fill(Bytes& bytes, std::uint32_t format, const util::SockAddr& address) {
    if (format == FI_ADDR_STR) {
        bytes.text = to_fi_text(address);
        bytes.data = bytes.text.c_str();
        bytes.size = bytes.text.size() + 1;
    } else {
        bytes.size = address.to(&bytes.storage);
        bytes.data = &bytes.storage;
    }
}

}  // namespace

std::string to_fi_text(const util::SockAddr& address) {
    return (address.family == AF_INET6 ? "fi_sockaddr_in6://" : "fi_sockaddr_in://") +
           address.to_string();
}

void* new_formatted_address(std::uint32_t format, const util::SockAddr& address,
                            std::size_t* bytes) noexcept {
    Bytes source;
    fill(source, format, address);
    void* copy = std::malloc(source.size);
    if (copy != nullptr) {
        std::memcpy(copy, source.data, source.size);
        *bytes = source.size;
    }
    return copy;
}

bool write_formatted_address(std::uint32_t format, const util::SockAddr& address, void* buffer,
                             std::size_t* bytes) {
    Bytes source;
    fill(source, format, address);
    const std::size_t room = *bytes;
    if (buffer != nullptr) {
        std::memcpy(buffer, source.data, std::min(room, source.size));
    }
    *bytes = source.size;
    return room >= source.size;
}

util::Result<util::SockAddr> read_formatted_address(std::uint32_t format, const void* address) {
    if (format == FI_ADDR_STR) {
        return util::SockAddr::from_string(static_cast<const char*>(address));
    }
    sa_family_t family = AF_UNSPEC;
    std::memcpy(&family, address, sizeof family);
    const sa_family_t wanted = format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_INET;
    if (family != wanted) {
        return EAFNOSUPPORT;
    }
    return util::SockAddr::from(static_cast<const sockaddr*>(address), formatted_stride(format));
}

util::Result<util::SockAddr> read_sized_address(std::uint32_t format, const void* address,
                                                std::size_t bytes) {
    if (address == nullptr || (format != FI_ADDR_STR && bytes < formatted_stride(format))) {
        return EINVAL;
    }
    return read_formatted_address(format, address);
}

bool is_beyond_ports(const char* service) noexcept {
    const std::string_view digits(service != nullptr ? service : "");
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return end == digits.data() + digits.size() &&
           (number > 0xffff || error == std::errc::result_out_of_range);
}

std::size_t formatted_stride(std::uint32_t format) noexcept {
    switch (format) {
        case FI_ADDR_STR: return sizeof(char*);
        case FI_SOCKADDR_IN6: return sizeof(sockaddr_in6);
        default: return sizeof(sockaddr_in);
    }
}

}  // namespace rvt::ofi
