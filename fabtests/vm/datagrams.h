// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// How two programs that find each other by service ID resolution send each other datagrams, and
// what each end makes sure of. The ends: dgram_datagrams.cc on FI_EP_DGRAM of rvt,
// rdmacm_datagrams.cc on librdmacm in the port space UDP. They print a line for each step.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ends.h"

namespace datagrams {

// The ends' numbers.
inline constexpr std::uint16_t kPassive = 7471;
inline constexpr std::uint16_t kActive = 7472;
inline constexpr std::uint16_t kNobody = 7473;  // nobody has it
inline constexpr std::size_t kMostBytes = 1024;
inline constexpr std::size_t kReceives = 256;  // for all that comes: none is posted twice
inline constexpr std::byte kUntouched{0xee};

enum class Outcome : std::uint8_t { kSent, kRefused, kOther };

struct Sent {
    Outcome outcome{};
    std::string text{};  // in the end's own words
};

struct Received {
    std::string problem{};  // empty: it is a good one
    std::size_t buffer = 0;
    std::size_t bytes = 0;
    bool is_from_peer = false;  // as far as the end has found its peer before
};

/// Both ends answer for a service, and send to the other's. Receives are posted from the start, of
/// kMostBytes each, which are kUntouched.
class End {
  public:
    virtual ~End() = default;

    virtual void open(std::uint16_t service) = 0;
    /// Finds who has the peer's service, if it has not been found, sends, and waits for the
    /// outcome.
    virtual Sent send(std::uint16_t service, std::span<std::byte> memory) = 0;
    /// Waits for the next datagram; ends the program when none comes.
    virtual Received receive() = 0;
    /// What is in one of the kReceives buffers.
    [[nodiscard]] virtual std::span<const std::byte> buffer(std::size_t index) const = 0;
    /// From then on nothing arrives.
    virtual void close() = 0;
};

/// Until `has_come()`; ends the program when nothing comes.
template <class HasCome>
void await(HasCome has_come) {
    const auto end = std::chrono::steady_clock::now() + traffic::kPatience;
    while (!has_come()) {
        if (std::chrono::steady_clock::now() > end) {
            traffic::fail("nothing came");
        }
    }
}

/// Goes through all steps; where datagrams go astray, through others that do not mind. Returns: the
/// exit status of the program.
/// @param memory  kMostBytes, from which `end` sends.
int run(End& end, std::span<std::byte> memory, const traffic::Options& options);

}  // namespace datagrams
