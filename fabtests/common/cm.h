// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connections of FI_EP_MSG endpoints, by fi_cm(3): what both sides of a test do.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/team.h"

namespace fab {

/// The rank that listens, where two make a connection.
inline constexpr int kListener = 0;

struct CmEvent {
    std::uint32_t type = 0;
    int error = 0;  ///< Of an entry of fi_eq_readerr(); else 0.
    fi_info* info = nullptr;
    std::string data;
};

/// Waits for the next event of a connection, and has `cq` make progress; fails after kOpLimitS.
CmEvent next_cm_event(fid_eq* eq, fid_cq* cq);
/// The same; fails where it is another one, or an error.
CmEvent expect_cm_event(fid_eq* eq, fid_cq* cq, std::uint32_t type);

/// Returns: an endpoint that listens. The other rank is told where, for receive_listener().
fid_pep* listen(const Rank& self, fid_fabric* fabric, fi_info* info, fid_eq* eq);
/// The address of who calls listen().
std::vector<char> receive_listener(const Rank& self);
/// What an endpoint that is to be connected to `to` is opened with: some providers look for the
/// way there when it is made. The caller frees it.
fi_info* dup_towards(const fi_info& info, const std::vector<char>& to);

}  // namespace fab
