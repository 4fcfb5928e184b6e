// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Creation and destruction of address handles.
#include "core/ah.h"

#include "core/device.h"

#include <memory>

namespace rvt::core {
namespace {

Result<Ah*> make_ah(Pd& pd, const AhAttr& attr) {
    auto ah = std::make_unique<Ah>(pd, attr, nullptr);
    if (Status status = pd.device().ops().create_ah(*ah); !status.is_ok()) {
        return status;
    }
    return ah.release();
}

}  // namespace

Result<Ah*> create_ah(Pd& pd, const AhAttr& attr) {
    Device& device = pd.device();
    if (is_multicast(attr.dest.gid)) {
        AhAttr whole = attr;
        whole.dest = group_of(attr.dest, device.address());
        return make_ah(pd, whole);
    }
    const bool has_channels = device.grade() != Grade::kVerb;
    if (attr.dest == device.address() || !has_channels) {
        return make_ah(pd, attr);
    }
    auto channel = device.ops().open_channel(device, attr.dest);
    if (channel.is_ok()) {
        return new Ah(pd, attr, channel.value());
    }
    const bool has_wire = device.grade() == Grade::kPacket;
    return has_wire ? make_ah(pd, attr) : channel.status();
}

Status destroy_ah(Ah* ah) {
    if (Status status = ah->is_unused(); !status.is_ok()) {
        return status;
    }
    Device& device = ah->pd().device();
    if (Channel* channel = ah->channel()) {
        device.ops().close_channel(device, *channel);
    } else {
        device.ops().destroy_ah(*ah);
    }
    delete ah;
    return kOk;
}

}  // namespace rvt::core
