// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The fixed list of operations that two verbs devices do with each other, and what the memory of
// both ends is before and after it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace traffic {

/// The queue pairs of an end, each connected with the one of the same name. The last four serve
/// one purpose each: datagrams to a group, which may overtake others, a receive that comes late, a
/// memory window, a key that is refused.
enum class Pair : std::uint8_t { kRc, kUc, kUd, kGroup, kLate, kWindow, kRefused };
inline constexpr std::array kPairs = {Pair::kRc,   Pair::kUc,     Pair::kUd,     Pair::kGroup,
                                      Pair::kLate, Pair::kWindow, Pair::kRefused};

enum class Service : std::uint8_t { kRc, kUc, kUd };
constexpr Service service_of(Pair pair) {
    switch (pair) {
        case Pair::kUc: return Service::kUc;
        case Pair::kUd:
        case Pair::kGroup: return Service::kUd;
        default: return Service::kRc;
    }
}

enum class Verb : std::uint8_t {
    kSend,
    kSendImm,
    kSendInv,
    kWrite,
    kWriteImm,
    kRead,
    kFetchAdd,
    kCompareSwap,
    kAtomicWrite,
    kFlush,  // `bytes` of its place, or the region, to where all of the host sees them
};

/// A set of those verbs that not every device has.
using Verbs = std::uint32_t;
constexpr Verbs set_of(Verb verb) {
    return verb < Verb::kAtomicWrite ? 0 : 1u << static_cast<unsigned>(verb);
}

enum class Outcome : std::uint8_t { kSuccess, kRemoteAccessError, kFlushed, kOther };

inline constexpr std::uint32_t kMtuBytes = 1024;  // what fits into an Ethernet packet of 1500
inline constexpr std::size_t kGrhBytes = 40;      // in front of a datagram
inline constexpr std::size_t kGuardBytes =
    64;  // at least, behind each message: nobody writes there

// What the words are that atomics work on, and what they do to them.
inline constexpr std::uint64_t kWordBefore = 0x1020304050607080;
inline constexpr std::uint64_t kAdd = 0x0102030405060708;
inline constexpr std::uint64_t kSwap = 0x1122334455667788;

/// By which of the passive end's keys a request names its memory.
enum class Key : std::uint8_t { kMemory, kWindow, kWrong };

struct Operation {
    Pair pair{};
    Verb verb{};
    std::uint32_t bytes = 8;
    std::uint32_t count = 1;  // that many requests, one behind the other
    const char* note = "";
    Key key = Key::kMemory;
    Outcome outcome = Outcome::kSuccess;  // of each request
    bool of_region = false;               // FLUSH
    std::uint64_t compare_error = 0;  // COMPARE_SWAP: by how much the value differs from the word's
    std::size_t offset = 0;           // of its part of the memory, at both ends

    [[nodiscard]] bool is_atomic() const {
        return verb == Verb::kFetchAdd || verb == Verb::kCompareSwap;
    }
    [[nodiscard]] bool is_send() const { return verb <= Verb::kSendInv; }
    /// In front of what arrives.
    [[nodiscard]] std::size_t lead() const {
        return service_of(pair) == Service::kUd ? kGrhBytes : 0;
    }
    /// From one message's place to that of the next.
    [[nodiscard]] std::size_t stride() const {
        return (lead() + bytes + 2 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    }
    [[nodiscard]] std::size_t size() const { return count * stride(); }
    /// Receives of the passive end that it uses up.
    [[nodiscard]] std::uint32_t receives() const {
        return is_send() || verb == Verb::kWriteImm || pair == Pair::kRefused ? count : 0;
    }
    /// What becomes of them.
    [[nodiscard]] Outcome receive_outcome() const {
        return pair == Pair::kRefused ? Outcome::kFlushed : Outcome::kSuccess;
    }
};

/// @param is_lossy  Only what has to succeed even if packets are lost: no UC, no UD, and nothing
///                  that is refused, for a pair says so once and is silent when asked again.
std::vector<Operation> operations(bool is_lossy);

std::string name_of(const Operation& op);

/// The memory of an end before the first operation.
std::vector<std::byte> image_before(const std::vector<Operation>& list, bool is_active);

/// Makes of it what it is to be after the last one.
void put_results(std::vector<std::byte>& image, const std::vector<Operation>& list, bool is_active);

}  // namespace traffic
