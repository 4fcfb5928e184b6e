// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The headers that captures put in front of packets, beside those that kernel rxe sent.
#include "protocol/pcap_frame.h"

#include "common/check.h"
#include "protocol/capture.h"
#include "protocol/header_sizes.h"

#include <algorithm>
#include <vector>

using namespace rvt::protocol;
using rvt::test::CapturedPacket;

namespace {

using Bytes = std::span<const std::byte>;

std::vector<std::byte> headers_of(const WirePacket& packet) {
    std::vector<std::byte> headers(kMaxFrameHeaderBytes);
    headers.resize(write_frame_headers(packet, headers.data()));
    return headers;
}

std::uint32_t sum_of_words(Bytes bytes) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        sum += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    }
    return sum;
}

bool adds_up(std::uint32_t sum) {
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

}  // namespace

Test(pcap_frame, headers_are_those_of_kernel_rxe) {
    for (CapturedPacket& captured : rvt::test::reference_capture()) {
        const std::vector<std::byte> bytes(captured.packet.size() + kIcrcBytes);
        std::vector<std::byte> headers = headers_of(
            {.path = captured.path, .identification = captured.identification, .bytes = bytes});
        RVT_EQ(headers.size(), captured.headers.size());
        // rxe leaves the checksum of UDP out, and over IPv6 sets a flow label and a hop limit.
        std::fill_n(headers.end() - 2, 2, std::byte{0});
        std::fill_n(captured.headers.end() - 2, 2, std::byte{0});
        if (!captured.is_v4) {
            std::copy_n(headers.begin() + 1, 3, captured.headers.begin() + 1);
            captured.headers[7] = headers[7];
        }
        RVT_ASSERT(headers == captured.headers);
    }
}

Test(pcap_frame, checksums_are_right_whatever_the_length) {
    for (const CapturedPacket& captured : rvt::test::reference_capture()) {
        for (const std::size_t cut : {0u, 1u, 2u}) {
            const Bytes bytes = Bytes(captured.packet).subspan(cut);
            const auto headers = headers_of({.path = captured.path, .bytes = bytes});
            const std::size_t ip = headers.size() - 8;
            const std::size_t addresses = captured.is_v4 ? 12 : 8;
            const auto udp_bytes = static_cast<std::uint32_t>(8 + bytes.size());
            RVT_ASSERT(adds_up(sum_of_words(Bytes(headers).subspan(addresses)) + 17 + udp_bytes +
                               sum_of_words(bytes)));
            if (captured.is_v4) {
                RVT_ASSERT(adds_up(sum_of_words(Bytes(headers).first(ip))));
            }
        }
    }
}
