// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages between the control threads of two processes, over an abstract Unix socket that keeps
// message boundaries (SOCK_SEQPACKET), and the descriptors that travel with them.
// docs/shm-format.md, "Wire-up", explains the exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/types.h>
#include <sys/un.h>

#include "core/peer_device.h"
#include "util/fork_guard.h"
#include "util/sock_addr.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::shm {

inline constexpr std::uint32_t kWireUpMagic = 0x52565457;  // "RVTW"
inline constexpr std::uint16_t kWireUpVersion = 1;

enum class MessageType : std::uint16_t {
    kHello = 1,   // Hello, with descriptors: page, outbox, wake, and the key table when kHasKeys
    kReady = 2,   // MessageHeader: all is mapped, the rings are in use
    kRefuse = 3,  // MessageHeader: error says why, the socket closes
    kRegionRequest = 5,  // RegionRequest
    kRegionReply = 6,    // RegionReply, with the region's file unless the header names an error
    kWake = 4,           // MessageHeader: make progress for your application
    kRegionHandle = 7,   // RegionHandle, in place of a kRegionReply: a device's library has it
};

/// First bytes of every message; the same in every version, so that versions can refuse each other.
struct MessageHeader {
    std::uint32_t magic = kWireUpMagic;
    std::uint16_t version = kWireUpVersion;
    MessageType type = MessageType::kReady;
    std::uint32_t length = sizeof(MessageHeader);  // of the whole message
    std::int32_t error = 0;                        // a positive errno
};
static_assert(sizeof(MessageHeader) == 16);

/// The largest error that a peer may name; anything else is a breach of format.
inline constexpr int kMaxErrno = 4095;

struct WireAddress {
    std::uint16_t family = 0;
    std::uint16_t port = 0;  // host byte order: both ends are on one host
    std::uint32_t scope_id = 0;
    std::array<std::uint8_t, 16> ip{};
};

enum HelloFlag : std::uint32_t {
    kHasKeys = 1U << 0,        // the fourth descriptor is a key table
    kHasMembarrier = 1U << 1,  // registered for membarrier(2), global expedited
};

/// Who an endpoint is, and the sizes of the files that come along. Everything in it is a claim
/// until checked.
struct Hello {
    MessageHeader header{.type = MessageType::kHello, .length = 88};
    WireAddress address;
    std::uint64_t incarnation = 0;
    std::uint64_t probe_address = 0;  // of EndpointPage::probe in the sender
    std::uint64_t process_token = 0;  // random, one for each process
    std::uint64_t keys_bytes = 0;
    std::uint32_t page_bytes = 0;
    std::uint32_t outbox_bytes = 0;
    std::uint32_t flags = 0;
    std::int32_t cpu = -1;  // where the endpoint was opened; -1: not known
};
static_assert(sizeof(Hello) == 88);

/// Asks for the file behind a registered region.
struct RegionRequest {
    MessageHeader header{.type = MessageType::kRegionRequest, .length = 24};
    std::uint64_t key = 0;
};
static_assert(sizeof(RegionRequest) == 24);

/// Where the region is in that file (region.h, RegionPlace).
struct RegionReply {
    MessageHeader header{.type = MessageType::kRegionReply, .length = 56};
    std::uint64_t key = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::uint64_t skip = 0;
    std::uint64_t bytes = 0;
};
static_assert(sizeof(RegionReply) == 56);

/// By what the library of a device opens the region.
struct RegionHandle {
    MessageHeader header{.type = MessageType::kRegionHandle, .length = 112};
    std::uint64_t key = 0;
    std::uint64_t bytes = 0;
    core::DeviceHandle handle;
};
static_assert(sizeof(RegionHandle) == 112);

inline constexpr std::size_t kMaxMessageBytes = 256;
inline constexpr std::size_t kMaxMessageFds = 4;

/// A message as it came, its header checked.
struct Message {
    MessageHeader header;
    alignas(8) std::array<std::byte, kMaxMessageBytes> bytes{};
    std::array<util::UniqueFd, kMaxMessageFds> fds;
    std::size_t fd_count = 0;

    /// Reads the message as a T. Precondition: the length has been checked.
    template <class T>
    T as() const noexcept;
};

/// Sends one message. Returns: EAGAIN when the socket is full, ECONNRESET when the peer has gone,
/// ETOOMANYREFS when too many descriptors of this user are under way.
util::Status send_message(int socket, const void* message, std::size_t length, const int* fds,
                          std::size_t fd_count) noexcept;
inline util::Status send_message(int socket, const MessageHeader& header) noexcept {
    return send_message(socket, &header, sizeof header, nullptr, 0);
}

/// Takes the next message. Returns: EAGAIN when there is none, ECONNRESET when the peer has gone,
/// EMFILE when its descriptors found no place here, EPROTO when it is no message of ours or of
/// another version.
util::Result<Message> receive_message(int socket);

/// The name that the endpoint of an address listens under: "\0rvt1/1.2.3.4:5".
struct SocketName {
    sockaddr_un address{};
    socklen_t length = 0;
};
SocketName socket_name(const util::SockAddr& address);
/// The same for a reader: "@rvt1/1.2.3.4:5".
std::string socket_name_text(const util::SockAddr& address);

WireAddress to_wire(const util::SockAddr& address) noexcept;
/// Returns: EPROTO when it is no address of an endpoint.
util::Result<util::SockAddr> from_wire(const WireAddress& wire) noexcept;

/// The process on the other side of a Unix socket.
struct PeerCredentials {
    pid_t pid = 0;  // in our pid namespace; 0: not visible
    uid_t uid = 0;
};
util::Result<PeerCredentials> peer_credentials(int socket) noexcept;

template <class T>
T Message::as() const noexcept {
    static_assert(sizeof(T) <= kMaxMessageBytes);
    T value;
    __builtin_memcpy(&value, bytes.data(), sizeof value);
    return value;
}

}  // namespace rvt::shm
