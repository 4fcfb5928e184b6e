// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// How two verbs devices go through the list of operations.h, and what each end makes sure of; the
// course of datagrams that go astray is in strays.h. The ends: rxe_peer.cc on rvt's RoCEv2 device,
// rxe_traffic.cc on a device of libibverbs. They print a line for each operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ends.h"
#include "operations.h"

namespace traffic {

// What every pair of both ends has.
inline constexpr std::uint32_t kQkey = 0x11111111;
inline constexpr std::uint8_t kMaxReads = 4;      // READs and atomics under way
inline constexpr std::uint8_t kMinRnrTimer = 12;  // 0.64 ms
inline constexpr std::uint8_t kTimeout = 16;      // 268 ms
inline constexpr std::uint8_t kRetries = 7;
inline constexpr std::uint8_t kRnrRetries = 7;  // for ever
inline constexpr std::uint32_t kMaxSends = 64;  // requests that a pair takes
inline constexpr std::uint32_t kMaxReceives = 2048;
inline constexpr std::uint32_t kMaxCompletions = 4096;
/// For datagrams to several: the group of the address family of an end.
inline const char* group_of(const std::string& ip) {
    return ip.find(':') == std::string::npos ? "239.192.71.9" : "ff15::71:9";
}
inline constexpr std::uint32_t kGroupQpn = 0xffffff;

/// One work request. The members that its verb does not have are 0.
struct Request {
    Pair pair{};
    Verb verb{};
    std::uint64_t wr_id = 0;
    std::span<std::byte> local{};
    std::uint32_t imm = 0;
    std::uint64_t remote_addr = 0;
    std::uint32_t key = 0;  // of the peer's memory; SEND with invalidate: what ends to be valid
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    bool of_region = false;  // FLUSH
};

struct Completion {
    std::uint64_t wr_id = 0;
    Outcome outcome{};
    const char* text = "";    // of the outcome
    std::uint64_t bytes = 0;  // receives
    std::optional<std::uint32_t> imm{};
    std::optional<std::uint32_t> invalidated{};
};

/// What an end writes down for the other one.
struct Card {
    std::array<std::uint32_t, kPairs.size()> qpns{};
    std::uint32_t psn = 0;  // of the first packet of each pair
    std::uint32_t key = 0;
    std::uint32_t window_key = 0;
    std::uint64_t addr = 0;
    Verbs asks{};     // those that its requests can be
    Verbs answers{};  // and those that it carries out
};

/// A device with its pairs, and the memory of this end registered for everything.
class End {
  public:
    virtual ~End() = default;

    /// All but `psn`, which is as given.
    virtual Card card(std::uint32_t psn) = 0;
    /// Makes every pair ready to send, and joins the group.
    virtual void connect(const Card& own, const Card& peer) = 0;
    /// Opens this memory under the window's key, for pair kWindow.
    virtual void bind_window(std::span<std::byte> memory) = 0;
    virtual void post_receive(Pair pair, std::uint64_t wr_id, std::span<std::byte> memory) = 0;
    virtual void post(const Request& request) = 0;
    /// Moves what can be moved. Returns: the next completion, if there is one.
    virtual std::optional<Completion> poll() = 0;
    /// How often this device has told a peer that no receive was posted.
    virtual std::uint64_t receiver_not_ready_count() = 0;
    /// Brings the pair into the state of errors: nothing arrives any more, and what is posted
    /// completes as flushed.
    virtual void end(Pair pair) = 0;
};

struct Cards {
    Card own;
    Card peer;
};

/// Trades cards with the peer and makes the pairs ready.
Cards connect(End& end, const Options& options);

/// Waits for the next completion; ends the program when none comes.
/// @param what  For the message.
Completion await_completion(End& end, const std::string& what);

/// The memory that an end with these options needs, every byte as the course wants it to begin.
std::vector<std::byte> first_memory(const Options& options);

/// Does its part of all operations, and reports.
/// @param memory  As first_memory() made it, and registered by `end`.
/// Returns: the exit status of the program: 0 when every line is ok.
int run(End& end, std::span<std::byte> memory, const Options& options);

}  // namespace traffic
