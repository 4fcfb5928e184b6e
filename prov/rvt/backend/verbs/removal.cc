// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An id of rdma_cm that is bound to the NIC, for nothing but its end.
#include "backend/verbs/removal.h"

#include <cerrno>

#include <fcntl.h>

namespace rvt::verbs {

Result<std::unique_ptr<Removal>> Removal::open(Nic& nic) {
    std::unique_ptr<Removal> removal(new Removal(nic));
    const Status started = removal->start();
    return started.is_ok() ? Result<std::unique_ptr<Removal>>(std::move(removal))
                           : Result<std::unique_ptr<Removal>>(started);
}

Status Removal::start() {
    events_ = {lib().rdma_create_event_channel(), lib().rdma_destroy_event_channel};
    rdma_cm_id* id = nullptr;
    if (events_ == nullptr) {
        return errno;
    }
    events_fd_ = LibraryFd(events_->fd);
    if (lib().rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
        return errno;
    }
    id_ = {id, lib().rdma_destroy_id};
    sockaddr_storage own{};
    nic_.address().address.to(&own);
    const int flags = fcntl(events_->fd, F_GETFL);
    const bool is_bound = lib().rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&own)) == 0 &&
                          flags >= 0 && fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) == 0;
    return is_bound ? kOk : Status(errno);
}

void Removal::take_events() noexcept {
    rdma_cm_event* event = nullptr;
    while (lib().rdma_get_cm_event(events_.get(), &event) == 0) {
        const bool is_removal = event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
        lib().rdma_ack_cm_event(event);
        if (is_removal) {
            id_.reset();  // the kernel may wait for that
            nic_.device().begin_removal();
        }
    }
}

}  // namespace rvt::verbs
