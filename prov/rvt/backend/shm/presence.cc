// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A call that is not followed by a word.
#include "backend/shm/presence.h"

#include <cerrno>

#include <sys/socket.h>
#include <unistd.h>

#include "backend/shm/wire_up.h"
#include "util/fork_guard.h"

namespace rvt::shm {

bool is_served(const util::SockAddr& address) {
    const util::ProcessFd socket(
        util::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    const SocketName name = socket_name(address);
    if (!socket.is_open() ||
        connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0) {
        return socket.is_open() && errno == EAGAIN;  // somebody, with many callers
    }
    const auto who = peer_credentials(socket.get());
    return who.is_ok() && who.value().uid == geteuid();
}

}  // namespace rvt::shm
