// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which way a pair's messages take.
#include "core/flow.h"

#include "core/ah.h"
#include "core/device.h"
#include "core/packet_flow.h"
#include "core/qp.h"
#include "core/requester.h"
#include "core/segment_transport.h"

namespace rvt::core {

Result<std::unique_ptr<Flow>> open_flow(Device& device, const Address& dest) {
    // What leaves a verb-grade device is no matter of the core's.
    if (dest == device.address() || device.grade() == Grade::kVerb) {
        return std::unique_ptr<Flow>();
    }
    if (device.grade() == Grade::kPacket) {
        return std::unique_ptr<Flow>(std::make_unique<PacketFlow>(device, dest));
    }
    auto channel = device.ops().open_channel(device, dest);
    if (!channel.is_ok()) {
        return channel.status();
    }
    return std::unique_ptr<Flow>(std::make_unique<SegmentFlow>(device, *channel.value()));
}

bool is_remote(const Qp& qp, const SendWqe& wqe) noexcept {
    if (qp.type() != QpType::kUd) {
        return qp.flow() != nullptr;
    }
    const Ah& ah = *wqe.wr.ah;
    return qp.device().grade() == Grade::kPacket ? ah.attr().dest != qp.device().address()
                                                 : ah.is_group() || ah.channel() != nullptr;
}

bool send_remote_datagram(Qp& qp, SendWqe& wqe, const PieceList& local) noexcept {
    const bool is_packet = qp.device().grade() == Grade::kPacket || wqe.wr.ah->is_group();
    return is_packet ? send_packet_datagram(qp, wqe, local) : send_segment_datagram(qp, wqe, local);
}

void resume(Qp& qp) noexcept {
    {
        const util::Guard guard(qp.rx_lock());
        if (Flow* flow = qp.flow()) {
            flow->send_answers(qp);
        }
    }
    {
        const util::Guard guard(qp.tx_lock());
        if (Flow* flow = qp.flow()) {
            flow->check_time(qp);
        }
    }
    run_send_queue(qp);
}

}  // namespace rvt::core
