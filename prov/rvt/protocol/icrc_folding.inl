// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A packet's ICRC by the steps of whoever includes this: Sum, begin(), add_blocks(), add_last(),
// add_words(), finish(). Included by icrc_folding_*.cc, since what uses instructions that not every
// processor has goes into functions of its own, as RVT_TARGET and RVT_STEP say.

/// The next word; it is copied if asked to.
template <class Word, bool kCopies>
RVT_STEP std::uint64_t take_word(std::byte*& to, const std::byte*& from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof word);
    from += sizeof word;
    if constexpr (kCopies) {
        std::memcpy(to, &word, sizeof word);
        to += sizeof word;
    }
    return word;
}

/// Adds less than 64 bytes, which have often just been written, and in words: a load of more would
/// wait for all stores before it.
template <bool kCopies>
RVT_STEP Sum add_in_words(Sum sum, std::byte* to, const std::byte* from,
                          std::size_t count) noexcept {
    for (; count >= 16; count -= 16) {
        const std::uint64_t low = take_word<std::uint64_t, kCopies>(to, from);
        const std::uint64_t high = take_word<std::uint64_t, kCopies>(to, from);
        sum = add_words(sum, 16, low, high);
    }
    if ((count & 8) != 0) {
        sum = add_words(sum, 8, 0, take_word<std::uint64_t, kCopies>(to, from));
    }
    if ((count & 4) != 0) {
        sum = add_words(sum, 4, 0, take_word<std::uint32_t, kCopies>(to, from) << 32);
    }
    if ((count & 2) != 0) {
        sum = add_words(sum, 2, 0, take_word<std::uint16_t, kCopies>(to, from) << 48);
    }
    if ((count & 1) != 0) {
        sum = add_words(sum, 1, 0, take_word<std::uint8_t, kCopies>(to, from) << 56);
    }
    return sum;
}

template <bool kCopies>
RVT_STEP Sum add(Sum sum, std::byte* to, const std::byte* from, std::size_t count) noexcept {
    const std::size_t at = add_blocks<kCopies>(sum, to, from, count);
    if constexpr (kCopies) {
        return add_in_words<true>(sum, to + at, from + at, count - at);
    }
    return at == count ? sum : add_last(sum, from + at, count - at);
}

RVT_STEP Sum start(const IpPath& path, std::size_t packet_bytes, const std::byte* bth,
                   std::uint16_t identification) noexcept {
    return is_v4(path.source) ? begin(mask_v4(path, packet_bytes, bth, identification))
                              : begin(mask_v6(path, packet_bytes, bth));
}

RVT_TARGET std::uint32_t sum_of(const IpPath& path, std::span<const std::byte> packet,
                                std::uint16_t identification) noexcept {
    const Sum sum = start(path, packet.size(), packet.data(), identification);
    return finish(add<false>(sum, nullptr, packet.data() + kBthBytes, packet.size() - kBthBytes));
}

RVT_TARGET std::byte* write(std::byte* to, const IpPath& path, const PacketParts& parts,
                            std::uint16_t identification) noexcept {
    const std::byte* const headers = parts.headers.data();
    Sum sum = start(path, packet_bytes(parts), headers, identification);
    for (std::size_t at = 0; at < kBthBytes; at += sizeof(std::uint32_t)) {
        std::memcpy(to + at, headers + at, sizeof(std::uint32_t));
    }
    sum = add<true>(sum, to + kBthBytes, headers + kBthBytes, parts.headers.size() - kBthBytes);
    to += parts.headers.size();
    for (const iovec& piece : parts.payload) {
        sum = add<true>(sum, to, static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
        to += piece.iov_len;
    }
    sum = add<true>(sum, to, kPadding.data(), parts.pad);
    to += parts.pad;
    const std::uint32_t icrc = htole32(finish(sum));
    std::memcpy(to, &icrc, sizeof icrc);
    return to + sizeof icrc;
}
