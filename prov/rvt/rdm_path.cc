// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a path does for a peer on another host.
#include "rdm_path.h"

#include "core/addresses.h"
#include "core/device.h"
#include "core/reg_cache.h"

namespace rvt {
namespace {

core::RdMessage message_of(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                           const void* payload, std::size_t count) noexcept {
    return {.op = op,
            .flags = flags,
            .tag = tag,
            .data = data,
            .payload = static_cast<const std::byte*>(payload),
            .payload_bytes = count};
}

}  // namespace

static_assert(shm::Path::kMaxLinePayload <= core::kMaxRecordPayload);

std::uint64_t RdmPath::open(shm::ConnectionEvent& event, void* peer) noexcept {
    if (event.flow == nullptr) {
        const std::uint64_t link = event.peering->link;
        shm::Path::open(std::move(event.peering));
        return link;
    }
    flow_ = event.flow;
    flow_->start(peer);
    return link_of(*flow_);
}

void RdmPath::close() noexcept {
    shm::Path::close();
    if (core::RdFlow* const flow = std::exchange(flow_, nullptr)) {
        flow->close();
    }
}

bool RdmPath::put_remote(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                         const void* payload, std::size_t count, core::RdFlow::Room room) noexcept {
    return flow_->put(message_of(op, flags, tag, data, payload, count), room);
}

void RdmPath::put_run(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                      const void* payload, std::size_t payload_bytes,
                      std::size_t run_bytes) noexcept {
    if (flow_ == nullptr) {
        shm::Path::put_run(op, flags, tag, data, payload, payload_bytes, run_bytes);
    } else {
        flow_->put_run(message_of(op, flags, tag, data, payload, payload_bytes), run_bytes);
    }
}

bool RdmPath::put_borrowed(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                           const void* payload, std::size_t payload_bytes, const iovec& run,
                           bool has_more) noexcept {
    return flow_->put_borrowed(message_of(op, flags, tag, data, payload, payload_bytes), run,
                               has_more);
}

std::string RdmPath::describe() const {
    if (flow_ == nullptr) {
        return shm::Path::describe();
    }
    const std::string to = " to " + core::to_sock_addr(flow_->address()).to_string();
    if (const core::Device* const nic = flow_->nic()) {
        const std::uint16_t lid = flow_->peer_lid();
        return (lid != 0 ? "InfiniBand by NIC " : "RoCEv2 by NIC ") + nic->name() + to +
               (lid != 0 ? ", LID " + std::to_string(lid) : "") + "; of its " +
               core::describe_registrations(*nic);
    }
    return "RoCEv2 over UDP" + to + ", packets of " + std::to_string(flow_->payload_bytes()) +
           " bytes";
}

}  // namespace rvt
