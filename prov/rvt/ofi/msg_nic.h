// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NICs, over which endpoints of FI_EP_MSG and FI_EP_DGRAM have domains of their own: keys and local
// memory are the NIC's there. The composition root knows what they are; ofi/ knows them by these
// classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/ud_endpoint.h"
#include "ofi/compat.h"
#include "ofi/msg_port.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::ofi {

/// An address of this host that belongs to a NIC, and what endpoints there can do.
struct MsgNicOffer {
    std::string name;          // of the NIC, and of its domain
    std::string stable_name;   // that its domain may have as well; empty: none
    std::string identity;      // by which its open domains are found; empty: its name
    util::SockAddr address{};  // port 0
    std::size_t inject_bytes = 0;
    std::size_t max_pairs = 0;    // endpoints, of all processes together; 0: it does not say
    std::size_t max_regions = 0;  // the same
    std::size_t max_queue = 0;    // sends, and receives, of an endpoint
    std::size_t max_sge = 0;
    std::size_t max_read_sge = 0;  // of what is read into
    std::size_t max_srq_sge = 0;   // of a receive of a shared context
    std::uint64_t max_bytes = 0;   // of a message
    bool has_atomics = false;      // of one 64-bit integer
    bool has_srq = false;          // shared receive contexts
    bool has_cq_data = true;       // four bytes beside a message or a write
    bool is_iwarp = false;
    bool needs_local_mr = true;      // FI_MR_LOCAL
    std::size_t datagram_bytes = 0;  // of the longest; 0: there are none
    bool is_preferred = false;       // to what reaches the same address without it
};

enum class MsgPortRole : std::uint8_t {
    kConnects,
    kListens,  // its number is taken
};

/// A NIC that domains have open. Threads: any.
class MsgNic {
  public:
    virtual ~MsgNic() = default;
    MsgNic(const MsgNic&) = delete;
    MsgNic& operator=(const MsgNic&) = delete;

    [[nodiscard]] virtual const std::string& name() const noexcept = 0;
    /// As MsgNicOffer says it. It outlasts names.
    [[nodiscard]] virtual const std::string& identity() const noexcept = 0;
    virtual core::Device& device() noexcept = 0;
    /// Returns: EADDRNOTAVAIL for an address that is none of the NIC's; as open_msg_port().
    virtual util::Result<std::shared_ptr<MsgPort>> open_port(const util::SockAddr& address,
                                                             MsgPortRole role) = 0;
    /// The device and a number at it, for one datagram endpoint.
    /// Returns: EADDRINUSE for a number that is taken; EOPNOTSUPP where the NIC has no datagrams.
    virtual util::Result<std::unique_ptr<core::UdSharing>> open_datagrams(
        const util::SockAddr& address) = 0;

  protected:
    MsgNic() = default;
};

struct MsgNics {
    std::vector<MsgNicOffer> (*list)() = nullptr;
    /// The NIC that an info of this name is of.
    ///
    /// @param source  The info's address, which tells it from a NIC that is called so by now; none,
    ///                or the wildcard: not known.
    /// Returns: ENODEV.
    util::Result<std::shared_ptr<MsgNic>> (*open)(const std::string& name,
                                                  const util::SockAddr& source) = nullptr;
};

/// Tells ofi/ where NICs are. Threads: once, at load; without it there are none.
void set_msg_nics(const MsgNics& nics) noexcept;

/// Those of this host at present, each with all its addresses.
std::vector<MsgNicOffer> msg_nics();
/// The one whose domain the info names; nullptr: it names none of a NIC. Returns: as MsgNics::open.
util::Result<std::shared_ptr<MsgNic>> open_msg_nic(const fi_info& info);

}  // namespace rvt::ofi
