// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Numbers that peers cannot foresee: communication ids, jitter, and the places of keys that peers
// choose in hash tables. SipHash-2-4 (Aumasson and Bernstein, 2012) under a key of the device.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>

namespace rvt::core {

class CmSecret {
  public:
    explicit CmSecret(const std::array<std::uint64_t, 2>& key) noexcept : key_(key) {}

    [[nodiscard]] std::uint64_t hash(std::initializer_list<std::uint64_t> words) const noexcept {
        State s{{key_[0] ^ 0x736f6d6570736575, key_[1] ^ 0x646f72616e646f6d,
                 key_[0] ^ 0x6c7967656e657261, key_[1] ^ 0x7465646279746573}};
        for (const std::uint64_t word : words) {
            s.add(word);
        }
        s.add(std::uint64_t{words.size() * 8} << 56);
        s.v[2] ^= 0xff;
        for (int i = 0; i < 4; ++i) {
            s.mix();
        }
        return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
    }

    /// Another number each time.
    std::uint64_t next() noexcept { return hash({count_++}); }

  private:
    struct State {
        std::uint64_t v[4];

        void add(std::uint64_t word) noexcept {
            v[3] ^= word;
            mix();
            mix();
            v[0] ^= word;
        }
        void mix() noexcept {
            v[0] += v[1];
            v[1] = std::rotl(v[1], 13) ^ v[0];
            v[0] = std::rotl(v[0], 32);
            v[2] += v[3];
            v[3] = std::rotl(v[3], 16) ^ v[2];
            v[0] += v[3];
            v[3] = std::rotl(v[3], 21) ^ v[0];
            v[2] += v[1];
            v[1] = std::rotl(v[1], 17) ^ v[2];
            v[2] = std::rotl(v[2], 32);
        }
    };

    std::array<std::uint64_t, 2> key_;
    std::uint64_t count_ = 0;
};

}  // namespace rvt::core
