// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Creation and destruction of address handles.
#include "core/ah.h"

#include "core/device.h"

namespace rvt::core {

Result<Ah*> create_ah(Pd& pd, const AhAttr& attr) {
    Device& device = pd.device();
    if (is_multicast(attr.dest.gid)) {
        AhAttr whole = attr;
        whole.dest = group_of(attr.dest, device.address());
        return new Ah(pd, whole, nullptr);
    }
    const bool has_channels = device.grade() != Grade::kPacket;
    if (attr.dest == device.address() || !has_channels) {
        return new Ah(pd, attr, nullptr);
    }
    auto channel = device.ops().open_channel(device, attr.dest);
    if (!channel.is_ok()) {
        return channel.status();
    }
    return new Ah(pd, attr, channel.value());
}

Status destroy_ah(Ah* ah) {
    if (Status status = ah->is_unused(); !status.is_ok()) {
        return status;
    }
    Device& device = ah->pd().device();
    if (Channel* channel = ah->channel()) {
        device.ops().close_channel(device, *channel);
    }
    delete ah;
    return kOk;
}

}  // namespace rvt::core
