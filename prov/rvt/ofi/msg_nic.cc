// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where NICs are asked for.
#include "ofi/msg_nic.h"

#include "ofi/address_format.h"
#include "ofi/info.h"

namespace rvt::ofi {
namespace {

MsgNics known;

/// What is no address is refused where it is needed.
util::SockAddr source_in(const fi_info& info) {
    const std::uint32_t format =
        info.addr_format != FI_FORMAT_UNSPEC ? info.addr_format : std::uint32_t{FI_SOCKADDR};
    const auto source = info.src_addr != nullptr ? read_formatted_address(format, info.src_addr)
                                                 : util::Result<util::SockAddr>(EINVAL);
    return source.is_ok() ? source.value() : util::SockAddr{};
}

}  // namespace

void set_msg_nics(const MsgNics& nics) noexcept {
    known = nics;
}

std::vector<MsgNicOffer> msg_nics() {
    return known.list != nullptr ? known.list() : std::vector<MsgNicOffer>();
}

util::Result<std::shared_ptr<MsgNic>> open_msg_nic(const fi_info& info) {
    const char* const name = info.domain_attr != nullptr ? info.domain_attr->name : nullptr;
    if (name == nullptr || std::string(name) == kDomainName) {
        return std::shared_ptr<MsgNic>();
    }
    return known.open != nullptr ? known.open(name, source_in(info))
                                 : util::Result<std::shared_ptr<MsgNic>>(ENODEV);
}

}  // namespace rvt::ofi
