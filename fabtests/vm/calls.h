// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// How two programs that rdma_cm connects go through calls that are refused, answered, used and
// ended, and what each end makes sure of. The ends: msg_calls.cc on FI_EP_MSG of rvt,
// rdmacm_calls.cc on librdmacm. They print a line for each step.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>

#include "ends.h"

namespace calls {

inline constexpr std::uint16_t kService = 7471;
inline constexpr std::uint16_t kNobody = 7472;  // nobody listens
inline constexpr std::uint32_t kMaxRequests = 8;
inline constexpr std::uint8_t kReads = 4;  // under way

/// What happens to a connection.
enum class News : std::uint8_t { kRequest, kConnected, kRefused, kEnded, kOther };

struct Event {
    News news{};
    std::string text{};  // of the news, in the end's own words
    std::string data{};  // which the peer has added
};

struct Completion {
    std::string problem{};  // empty: it is a good one
    std::size_t bytes = 0;  // of a receive: what came
};

/// Who calls or is called, over one connection at a time, with the memory of this end registered.
class End {
  public:
    virtual ~End() = default;

    virtual void listen(std::uint16_t service) = 0;
    /// Asks for a connection.
    virtual void call(std::uint16_t service, const std::string& data) = 0;
    /// Waits for the next news of the connection, or of the listener; ends the program when none
    /// comes.
    virtual Event next_event() = 0;
    /// Gets ready to answer a request, so that receives can be posted.
    virtual void prepare() = 0;
    virtual void accept(const std::string& data) = 0;
    virtual void refuse(const std::string& data) = 0;
    /// Ends the connection.
    virtual void hang_up() = 0;
    /// Frees what belongs to it, after kRefused and kEnded.
    virtual void forget() = 0;

    /// By which the peer names this memory.
    [[nodiscard]] virtual std::uint64_t key() = 0;
    virtual void post_receive(std::span<std::byte> memory) = 0;
    virtual void post_send(std::span<std::byte> memory) = 0;
    virtual void post_write(std::span<std::byte> memory, std::uint64_t to, std::uint64_t key) = 0;
    virtual void post_read(std::span<std::byte> memory, std::uint64_t from, std::uint64_t key) = 0;
    /// Waits for the next completion of a request, or of a receive.
    virtual Completion complete_request() = 0;
    virtual Completion complete_receive() = 0;
};

/// Until `has_come()`; ends the program when nothing comes.
template <class HasCome>
void await_completion(HasCome has_come) {
    const auto end = std::chrono::steady_clock::now() + traffic::kPatience;
    while (!has_come()) {
        if (std::chrono::steady_clock::now() > end) {
            traffic::fail("no completion");
        }
        std::this_thread::yield();  // the device may need this processor
    }
}

/// Goes through all calls, or makes one and writes for a while over its connection; the rate, in
/// KiB/s, is in the file `rate` of the ends' folder. Returns: the exit status of the program.
/// @param memory  kMemoryBytes, registered by `end` for everything.
int run(End& end, std::span<std::byte> memory, const traffic::Options& options);
inline constexpr std::size_t kMemoryBytes = std::size_t{512} << 10;

}  // namespace calls
