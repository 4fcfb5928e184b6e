// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One packet: what is taken for one lies within its bytes, says the same when it is written again,
// and has an ICRC that tells its identification.
#include <array>
#include <vector>

#include "fuzz/input.h"
#include "protocol/headers.h"
#include "protocol/icrc.h"

using namespace rvt;            // NOLINT(google-build-using-namespace)
using namespace rvt::protocol;  // NOLINT(google-build-using-namespace)

namespace {

constexpr IpPath kPath{.source = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1},
                       .dest = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2},
                       .source_port = 49152,
                       .dest_port = 4791};

std::vector<std::byte> written(const DecodedPacket& packet) {
    std::array<std::byte, kMaxHeaderBytes> headers;
    const std::size_t bytes = encode(packet.header, headers.data());
    std::vector<std::byte> whole(headers.begin(),
                                 headers.begin() + static_cast<std::ptrdiff_t>(bytes));
    whole.insert(whole.end(), packet.payload.begin(), packet.payload.end());
    whole.resize(whole.size() + packet.header.pad);
    return whole;
}

void check_icrc(std::span<const std::byte> packet, std::uint16_t identification) {
    if (packet.size() < kBthBytes) {
        return;
    }
    const std::uint32_t difference =
        icrc_of(kPath, packet, identification) ^ icrc_of(kPath, packet, 0);
    fuzz::must(identification_of(difference, packet.size()) == identification);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::uint16_t identification = input.u16();
    const auto bytes = input.rest();
    check_icrc(bytes, identification);
    const auto first = decode(bytes);
    if (!first.is_ok()) {
        return 0;
    }
    fuzz::touch(first.value().payload);
    const auto again = written(first.value());
    fuzz::must(again.size() == bytes.size());
    const auto second = decode(again);
    fuzz::must(second.is_ok() && written(second.value()) == again);
    return 0;
}
