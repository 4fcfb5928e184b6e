// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sending and taking of wire-up messages (unix(7), cmsg(3)).
#include "backend/shm/wire_up.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace rvt::shm {
namespace {

union ControlBuffer {
    cmsghdr align;
    std::array<char, CMSG_SPACE(sizeof(int) * kMaxMessageFds)> bytes;
};

void attach_fds(msghdr& header, ControlBuffer& control, const int* fds,
                std::size_t fd_count) noexcept {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    std::memcpy(CMSG_DATA(part), fds, sizeof(int) * fd_count);
}

/// Takes ownership of every descriptor first, whatever the message turns out to be.
void collect_fds(msghdr& header, Message& message) noexcept {
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
         part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count && message.fd_count < kMaxMessageFds; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            message.fds[message.fd_count++].reset(fd);
        }
    }
}

/// The length that a message of this type has; 0 for a type that does not exist.
std::size_t length_of(MessageType type) noexcept {
    switch (type) {
        case MessageType::kHello: return sizeof(Hello);
        case MessageType::kRegionRequest: return sizeof(RegionRequest);
        case MessageType::kRegionReply: return sizeof(RegionReply);
        case MessageType::kRegionHandle: return sizeof(RegionHandle);
        case MessageType::kReady:
        case MessageType::kRefuse:
        case MessageType::kWake: return sizeof(MessageHeader);
    }
    return 0;
}

/// Why descriptors of a message did not come: there is room for no more, or a security module holds
/// those of the peer back.
util::Status why_truncated(int socket) noexcept {
    const util::UniqueFd one_more = util::duplicate(socket);
    return one_more.is_open() ? EPERM : EMFILE;
}

util::Status check(int socket, const Message& message, std::size_t received, int flags) noexcept {
    if ((flags & MSG_CTRUNC) != 0) {
        return message.fd_count < kMaxMessageFds ? why_truncated(socket) : util::Status(EPROTO);
    }
    const MessageHeader& header = message.header;
    const bool is_ours = (flags & MSG_TRUNC) == 0 && received >= sizeof header &&
                         header.magic == kWireUpMagic && header.version == kWireUpVersion &&
                         header.length == received && length_of(header.type) == received;
    return is_ours ? util::kOk : util::Status(EPROTO);
}

int peer_gone_or(int error) noexcept {
    return error == EPIPE || error == ENOTCONN ? ECONNRESET : error;
}

}  // namespace

util::Status send_message(int socket, const void* message, std::size_t length, const int* fds,
                          std::size_t fd_count) noexcept {
    iovec part{const_cast<void*>(message), length};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    ControlBuffer control{};
    if (fd_count != 0) {
        attach_fds(header, control, fds, fd_count);
    }
    const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ? util::kOk : util::Status(peer_gone_or(errno));
}

util::Result<Message> receive_message(int socket) {
    Message message;
    iovec part{message.bytes.data(), message.bytes.size()};
    ControlBuffer control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    const ssize_t received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received < 0) {
        return peer_gone_or(errno);
    }
    collect_fds(header, message);
    if (received == 0 && message.fd_count == 0) {
        return ECONNRESET;
    }
    message.header = message.as<MessageHeader>();
    const util::Status status =
        check(socket, message, static_cast<std::size_t>(received), header.msg_flags);
    if (!status.is_ok()) {
        return status;
    }
    return message;
}

SocketName socket_name(const util::SockAddr& address) {
    const std::string text = socket_name_text(address);
    SocketName name;
    name.address.sun_family = AF_UNIX;
    // The leading '@' becomes the zero byte of the abstract name space.
    const std::size_t count = std::min(text.size(), sizeof name.address.sun_path);
    std::memcpy(name.address.sun_path, text.data(), count);
    name.address.sun_path[0] = '\0';
    name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + count);
    return name;
}

std::string socket_name_text(const util::SockAddr& address) {
    std::string text = "@rvt1/";
    text += address.to_string();
    if (address.scope_id != 0) {
        text += '%';
        text += std::to_string(address.scope_id);
    }
    return text;
}

WireAddress to_wire(const util::SockAddr& address) noexcept {
    return {.family = address.family,
            .port = address.port,
            .scope_id = address.scope_id,
            .ip = address.ip};
}

util::Result<util::SockAddr> from_wire(const WireAddress& wire) noexcept {
    if ((wire.family != AF_INET && wire.family != AF_INET6) || wire.port == 0) {
        return EPROTO;
    }
    return util::SockAddr{
        .family = wire.family, .port = wire.port, .ip = wire.ip, .scope_id = wire.scope_id};
}

util::Result<PeerCredentials> peer_credentials(int socket) noexcept {
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
        return errno;
    }
    return PeerCredentials{credentials.pid, credentials.uid};
}

}  // namespace rvt::shm
