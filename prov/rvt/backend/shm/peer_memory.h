// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What two endpoints give each other in a handshake: making our part, checking and mapping the
// peer's.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/shm/connection.h"
#include "backend/shm/wire_up.h"
#include "util/mapping.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::shm {

/// What an endpoint tells of itself. The pointers are its own; they outlive every handshake.
struct LocalEnd {
    util::SockAddr address;
    const util::Mapping* page = nullptr;
    const util::Mapping* keys = nullptr;  // may be nullptr
    int wake_fd = -1;
    int cpu = -1;
};

/// A new outbox, ready for the peer to map. Returns: as util::Mapping::create().
util::Result<util::Mapping> make_outbox();

/// Sends kHello with the descriptors of `local` and `outbox`. Returns: as send_message().
util::Status send_hello(int socket, const LocalEnd& local, const util::Mapping& outbox) noexcept;

/// Checks and maps what a peer's kHello brought. Everything but `outbox` and `link` is set.
/// Returns: EPROTO when the peer does not keep to the format, ENOMEM, EMFILE.
util::Result<std::unique_ptr<Peering>> map_peer(Message& message,
                                                const PeerCredentials& credentials);

/// What the endpoint of `local` needs to talk to itself: the inbox is a view of its own outbox.
/// Returns: as make_outbox() and map_peer().
util::Result<std::unique_ptr<Peering>> map_self(const LocalEnd& local);

/// Registers the process with membarrier(2) so that sleepers of other processes can order their
/// look against our sends.
bool register_membarrier() noexcept;

}  // namespace rvt::shm
