// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC: that of every packet of kernel rxe, and what a socket can check without the IPv4
// identification.
#include "protocol/icrc.h"

#include "common/check.h"
#include "protocol/capture.h"
#include "protocol/icrc_form.h"
#include "protocol/wire.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

using namespace rvt::protocol;
using rvt::test::CapturedPacket;

namespace {

constexpr std::size_t kMost = 1500;
constexpr std::byte kUntouched{0xa5};

/// Those that this processor has.
std::vector<const IcrcForm*> forms() {
    std::vector<const IcrcForm*> all = {&library_icrc()};
    for (const IcrcForm* form : {folding_icrc_128(), folding_icrc_512()}) {
        if (form != nullptr) {
            all.push_back(form);
        }
    }
    return all;
}

IpPath v4_path() {
    IpPath path{.source_port = 4791, .dest_port = 50000};
    path.source = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
    path.dest = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 200};
    return path;
}

IpPath v6_path() {
    IpPath path{.source_port = 4791, .dest_port = 50000};
    path.source = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    path.dest = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 9, 2, 3, 4, 5, 6, 7, 0xf8};
    return path;
}

std::vector<std::byte> random_bytes(std::size_t count) {
    std::mt19937 random(1);
    std::vector<std::byte> bytes(count);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    return bytes;
}

/// What the ICRC covers, byte for byte: RoCEv2 annex A17.3.3.
std::vector<std::byte> covered_bytes(const IpPath& path, std::span<const std::byte> packet,
                                     std::uint16_t identification) {
    const bool v4 = is_v4(path.source);
    std::vector<std::byte> bytes(8 + (v4 ? 20 : 40) + 8, std::byte{0xff});
    const std::size_t udp_bytes = 8 + packet.size() + kIcrcBytes;
    WireWriter ip(bytes.data() + 8);
    if (v4) {
        ip.u16(0x45ff);
        ip.u16(static_cast<std::uint16_t>(20 + udp_bytes));
        ip.u16(identification);
        ip.u16(0x4000);
        ip.u16(0xff11);
        std::copy_n(std::as_bytes(std::span(path.source)).begin() + 12, 4, bytes.begin() + 20);
        std::copy_n(std::as_bytes(std::span(path.dest)).begin() + 12, 4, bytes.begin() + 24);
    } else {
        ip.u32(0x6fffffff);
        ip.u16(static_cast<std::uint16_t>(udp_bytes));
        ip.u8(17);
        std::copy_n(std::as_bytes(std::span(path.source)).begin(), 16, bytes.begin() + 16);
        std::copy_n(std::as_bytes(std::span(path.dest)).begin(), 16, bytes.begin() + 32);
    }
    WireWriter udp(bytes.data() + bytes.size() - 8);
    udp.u16(path.source_port);
    udp.u16(path.dest_port);
    udp.u16(static_cast<std::uint16_t>(udp_bytes));
    bytes.insert(bytes.end(), packet.begin(), packet.end());
    bytes[bytes.size() - packet.size() + 4] = std::byte{0xff};
    return bytes;
}

/// A bit at a time.
std::uint32_t by_definition(const IpPath& path, std::span<const std::byte> packet,
                            std::uint16_t identification) {
    std::uint32_t crc = ~0u;
    for (const std::byte byte : covered_bytes(path, packet, identification)) {
        crc ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
        }
    }
    return ~crc;
}

/// As many bytes in pieces of lengths that begin with `first` and grow.
std::vector<iovec> in_pieces(std::span<std::byte> bytes, std::size_t first) {
    std::vector<iovec> pieces;
    for (std::size_t length = first; !bytes.empty(); length = length * 3 + 1) {
        const auto piece = bytes.first(std::min(length, bytes.size()));
        pieces.push_back({.iov_base = piece.data(), .iov_len = piece.size()});
        bytes = bytes.subspan(piece.size());
    }
    return pieces;
}

void write_and_check(const IcrcForm& form, const IpPath& path, const PacketParts& parts) {
    std::vector<std::byte> expected(parts.headers.begin(), parts.headers.end());
    for (const iovec& piece : parts.payload) {
        const auto* from = static_cast<const std::byte*>(piece.iov_base);
        expected.insert(expected.end(), from, from + piece.iov_len);
    }
    expected.resize(expected.size() + parts.pad);
    const std::uint32_t icrc = htole32(by_definition(path, expected, 7));
    const auto trailer = std::as_bytes(std::span(&icrc, 1));
    expected.insert(expected.end(), trailer.begin(), trailer.end());

    constexpr std::size_t kAround = 70;
    const std::size_t shift = expected.size() % 5;
    std::vector<std::byte> to(expected.size() + 2 * kAround, kUntouched);
    std::byte* const begin = to.data() + kAround - shift;
    RVT_ASSERT(form.write(begin, path, parts, 7) == begin + expected.size());
    expected.insert(expected.begin(), kAround - shift, kUntouched);
    expected.resize(to.size(), kUntouched);
    RVT_ASSERT(to == expected);
}

std::uint32_t difference(const CapturedPacket& captured) {
    return captured.icrc ^ icrc_of(captured.path, captured.packet, 0);
}

}  // namespace

Test(icrc, agrees_with_every_packet_of_kernel_rxe) {
    int v4 = 0;
    int v6 = 0;
    for (const CapturedPacket& captured : rvt::test::reference_capture()) {
        for (const IcrcForm* form : forms()) {
            RVT_EQ(form->of(captured.path, captured.packet, captured.identification),
                   captured.icrc);
        }
        RVT_EQ(icrc_of(captured.path, captured.packet, captured.identification), captured.icrc);
        ++(captured.is_v4 ? v4 : v6);
    }
    RVT_ASSERT(v4 > 0);
    RVT_ASSERT(v6 > 0);
}

Test(icrc, of_any_bytes_is_that_of_the_definition) {
    const std::vector<std::byte> bytes = random_bytes(kMost + 8);
    for (std::size_t count = kBthBytes; count <= kMost; ++count) {
        const auto packet = std::span(bytes).subspan(count % 7, count);
        for (const IpPath& path : {v4_path(), v6_path()}) {
            const std::uint32_t expected = by_definition(path, packet, 0x1234);
            for (const IcrcForm* form : forms()) {
                RVT_EQ(form->of(path, packet, 0x1234), expected);
            }
        }
    }
}

Test(icrc, of_what_is_written_is_that_of_the_definition) {
    const std::vector<std::byte> headers = random_bytes(kMaxHeaderBytes);
    std::vector<std::byte> payload = random_bytes(kMost);
    for (std::size_t count = 0; count <= kMost; count += 1 + count / 100) {
        const std::vector<iovec> pieces = in_pieces(std::span(payload).first(count), count % 67);
        const PacketParts parts{.headers = std::span(headers).first(kBthBytes + count % 8 * 4),
                                .payload = pieces,
                                .pad = static_cast<std::uint8_t>(-count & 3)};
        for (const IcrcForm* form : forms()) {
            write_and_check(*form, v4_path(), parts);
            write_and_check(*form, v6_path(), parts);
        }
    }
}

Test(icrc, what_routers_change_in_the_base_header_does_not_count) {
    CapturedPacket captured = rvt::test::reference_capture().front();
    captured.packet[4] ^= std::byte{0xc0};  // congestion bits
    RVT_EQ(icrc_of(captured.path, captured.packet, captured.identification), captured.icrc);
}

Test(icrc, tells_the_identification_of_packets_of_kernel_rxe) {
    for (const CapturedPacket& captured : rvt::test::reference_capture()) {
        if (captured.is_v4) {
            const auto found = identification_of(difference(captured), captured.packet.size());
            RVT_ASSERT(found.has_value());
            RVT_EQ(*found, captured.identification);
        }
    }
}

Test(icrc, a_flipped_bit_is_no_identification) {
    for (CapturedPacket& captured : rvt::test::reference_capture()) {
        for (std::size_t at = 0; captured.is_v4 && at < captured.packet.size(); ++at) {
            captured.packet[at] ^= std::byte{0x10};
            const bool counts = at != 4;  // the byte that the ICRC does not cover
            const auto found = identification_of(difference(captured), captured.packet.size());
            RVT_EQ(found.has_value(), !counts);
            captured.packet[at] ^= std::byte{0x10};
        }
    }
}

Test(icrc, every_identification_is_found_again) {
    const CapturedPacket captured = rvt::test::reference_capture().front();
    const std::uint32_t zero = icrc_of(captured.path, captured.packet, 0);
    for (std::uint32_t id = 0; id < 0x10000; ++id) {
        const auto wanted = static_cast<std::uint16_t>(id);
        const std::uint32_t icrc = icrc_of(captured.path, captured.packet, wanted);
        const auto found = identification_of(icrc ^ zero, captured.packet.size());
        RVT_ASSERT(found.has_value() && *found == wanted);
    }
}
