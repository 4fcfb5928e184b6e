// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Opening, and what there is to do before a sleep.
#include "backend/roce/group_port.h"

namespace rvt::roce {

Result<std::unique_ptr<core::GroupWire>> GroupPort::open(const GroupPortAttr& attr) {
    auto socket = open_group_sender(std::move(*attr.port));
    if (!socket.is_ok()) {
        return socket.status();
    }
    std::unique_ptr<GroupPort> made(new GroupPort(socket.take(), attr));
    if (const Status opened = made->groups_.open(); !opened.is_ok()) {
        return opened;
    }
    if (const Status added = made->groups_.add_own(attr.wake_fd); !added.is_ok()) {
        return added;
    }
    return std::unique_ptr<core::GroupWire>(std::move(made));
}

/// See PacketDevice::arm().
Status GroupPort::arm() noexcept {
    if (capture_.is_on()) {
        capture_.writer().flush();
    }
    return transmit_.holds_packets() || groups_.holds_packets() ? EAGAIN : kOk;
}

}  // namespace rvt::roce
