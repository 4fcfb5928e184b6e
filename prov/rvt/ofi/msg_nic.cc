// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where NICs are asked for.
#include "ofi/msg_nic.h"

#include "ofi/info.h"

namespace rvt::ofi {
namespace {

MsgNics known;

}  // namespace

void set_msg_nics(const MsgNics& nics) noexcept {
    known = nics;
}

std::vector<MsgNicOffer> msg_nics() {
    return known.list != nullptr ? known.list() : std::vector<MsgNicOffer>();
}

util::Result<std::shared_ptr<MsgNic>> open_msg_nic(const char* name) {
    if (name == nullptr || std::string(name) == kDomainName) {
        return std::shared_ptr<MsgNic>();
    }
    return known.open != nullptr ? known.open(name) : util::Result<std::shared_ptr<MsgNic>>(ENODEV);
}

}  // namespace rvt::ofi
