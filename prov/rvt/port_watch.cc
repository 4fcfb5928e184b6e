// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which news are about a device's port.
#include "port_watch.h"

#include <algorithm>

#include "backend/roce/packet_device.h"
#include "backend/roce/udp_socket.h"
#include "util/log.h"

namespace rvt {

void PortWatch::start(util::ControlThread& thread) {
    auto links = util::LinkWatch::acquire(thread);
    if (!links.is_ok()) {
        RVT_INFO(kEpCtrl, "changes of interfaces are noticed by packets that are refused only: %s",
                 strerrordesc_np(links.error()));
        return;
    }
    interface_ = roce::interface_of(device_.address());
    if (interface_ != 0) {
        links_ = links.take();
        links_->add(*this);
    }
}

PortWatch::~PortWatch() {
    if (links_ != nullptr) {
        links_->remove(*this);
    }
}

/// Without an interface that has the address any news may be about one that has it now.
void PortWatch::links_changed(std::span<const unsigned> interfaces) {
    if (interface_ != 0 && !interfaces.empty() &&
        std::ranges::find(interfaces, interface_) == interfaces.end()) {
        return;
    }
    interface_ = roce::interface_of(device_.address());
    device_.look_at_port();
    looked_();
}

}  // namespace rvt
