// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A peer's request for a connection between FI_CONNREQ and its answer: what the handle of the
// event's info stands for. The passive endpoint keeps those that nobody has taken.
#pragma once

#include <cstddef>
#include <memory>

#include "core/cm_agent.h"
#include "ofi/compat.h"
#include "ofi/msg_port.h"

namespace rvt::ofi {

struct Pep;

struct ConnReq {
    fid handle{};
    const Pep* pep = nullptr;  // of its request; that may be closed
    std::shared_ptr<MsgPort> port;
    core::CmEvent event;
};

/// Makes a request known under its handle. Threads: any, as all of these.
void conn_req_add(std::unique_ptr<ConnReq> request);
/// Takes it from there: nullptr for a handle that is none, or has been answered.
std::unique_ptr<ConnReq> conn_req_take(const fid* handle) noexcept;
/// How many requests of the passive endpoint nobody has answered.
std::size_t conn_req_count_of(const Pep& pep) noexcept;
/// Takes any one that the passive endpoint has left.
std::unique_ptr<ConnReq> conn_req_take_of(const Pep& pep) noexcept;

}  // namespace rvt::ofi
