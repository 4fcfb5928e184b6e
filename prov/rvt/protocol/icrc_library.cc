// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ICRC by ISA-L's CRC-32, which knows what each processor does best.
#include "protocol/icrc_form.h"
#include "util/long_copy.h"

#include <isa-l/crc.h>

namespace rvt::protocol {
namespace {

class Sum {
  public:
    Sum(const IpPath& path, std::size_t packet_bytes, const std::byte* bth,
        std::uint16_t identification) noexcept {
        if (is_v4(path.source)) {
            add_words(mask_v4(path, packet_bytes, bth, identification));
        } else {
            add_words(mask_v6(path, packet_bytes, bth));
        }
    }

    void add(std::span<const std::byte> bytes) noexcept {
        value_ = crc32_gzip_refl(value_, reinterpret_cast<const unsigned char*>(bytes.data()),
                                 bytes.size());
    }
    /// Returns: the end of the copy.
    std::byte* add_copy(std::byte* to, std::span<const std::byte> bytes) noexcept {
        util::copy_bytes(to, bytes.data(), bytes.size());
        add({to, bytes.size()});
        return to + bytes.size();
    }

    /// ISA-L leaves the upper halves of the vector registers in use. Until they are cleared each of
    /// the compiler's own vector instructions waits for them, which a stream of packets pays with a
    /// third of its rate.
    [[nodiscard]] std::uint32_t finish() const noexcept {
#if defined(__x86_64__)
        static const bool kHasAvx = __builtin_cpu_supports("avx") != 0;
        if (kHasAvx) {
            __asm__ volatile("vzeroupper" ::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                                   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                                   "xmm15");
        }
#endif
        return value_;
    }

  private:
    template <std::size_t kWords>
    void add_words(const MaskedHeaders<kWords>& words) noexcept {
        add(std::as_bytes(std::span(words)));
    }

    std::uint32_t value_ = kNoRouteHeader;
};

std::uint32_t sum_of(const IpPath& path, std::span<const std::byte> packet,
                     std::uint16_t identification) noexcept {
    Sum sum(path, packet.size(), packet.data(), identification);
    sum.add(packet.subspan(kBthBytes));
    return sum.finish();
}

std::byte* write(std::byte* to, const IpPath& path, const PacketParts& parts,
                 std::uint16_t identification) noexcept {
    Sum sum(path, packet_bytes(parts), parts.headers.data(), identification);
    std::memcpy(to, parts.headers.data(), kBthBytes);
    to = sum.add_copy(to + kBthBytes, parts.headers.subspan(kBthBytes));
    for (const iovec& piece : parts.payload) {
        to = sum.add_copy(to, {static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
    }
    to = sum.add_copy(to, std::span(kPadding).first(parts.pad));
    const std::uint32_t icrc = htole32(sum.finish());
    std::memcpy(to, &icrc, sizeof icrc);
    return to + sizeof icrc;
}

}  // namespace

const IcrcForm& library_icrc() noexcept {
    static constexpr IcrcForm kForm = {.of = sum_of, .write = write};
    return kForm;
}

}  // namespace rvt::protocol
