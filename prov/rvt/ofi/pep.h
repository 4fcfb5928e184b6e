// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Passive endpoints, fi_passive_ep(3): they listen at a port, and report requests for connections.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/rc_port.h"
#include "ofi/compat.h"
#include "ofi/fabric.h"
#include "ofi/info.h"
#include "ofi/msg_nic.h"
#include "ofi/msg_port.h"

namespace rvt::ofi {

class Eq;
struct Domain;

/// Requests that may wait for an answer where the application has not set FI_BACKLOG.
inline constexpr std::size_t kDefaultBacklog = 4096;

struct Pep {
    static Pep& from(fid_pep* self) noexcept { return *reinterpret_cast<Pep*>(self); }
    static Pep& from(fid* self) noexcept { return *reinterpret_cast<Pep*>(self); }

    Pep() : requests(*this, &Pep::port), host_requests(*this, &Pep::host_port) {}

    fid_pep handle{};
    Fabric* fabric = nullptr;
    Eq* eq = nullptr;
    std::unique_ptr<fi_info, InfoDeleter> info;  // what those of requests are made from
    std::string interface;                       // whose name the infos' domain has; or empty
    std::shared_ptr<MsgNic> nic;                 // which listens; nullptr: a port of the address
    MsgNicOffer nic_offer;                       // and what its endpoints can do
    util::SockAddr bind;
    std::mutex port_lock;                // order: before all others
    std::shared_ptr<MsgPort> port;       // from listening or the first question for the name on
    std::shared_ptr<MsgPort> host_port;  // from listening on; peers of this host come there
    std::atomic<std::size_t> backlog{kDefaultBacklog};  // FI_BACKLOG
    bool is_listening = false;
    bool is_taken_over = false;  // the port is another endpoint's

    class Requests final : public core::RcListener {
      public:
        Requests(Pep& pep, std::shared_ptr<MsgPort> Pep::*port) noexcept : pep_(pep), port_(port) {}
        bool requested(const core::CmEvent& request,
                       std::span<const std::byte> private_data) noexcept override;
        void device_failed(int error) noexcept override;

      private:
        Pep& pep_;
        std::shared_ptr<MsgPort> Pep::*port_;  // where they come
    };
    Requests requests;
    Requests host_requests;
};

/// fi_ops_fabric.passive_ep. Returns: 0, -FI_EINVAL, -FI_ENOMEM, -FI_ENOSYS for another type.
int pep_open(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context) noexcept;

/// Where an open passive endpoint is, as fi_getname(3) says. Returns: nothing where that fails, or
/// none of that domain's name is meant.
std::optional<util::SockAddr> pep_address(const fid* handle, std::string_view domain);
/// The passive endpoint whose address an active one is to acquire, fi_endpoint(3). Returns: nullptr
/// for a handle that is none, or of a NIC, which listens by other objects than it connects by.
Pep* pep_to_take_over(const fid* handle, const Domain& domain) noexcept;
/// Its port, which is the caller's from now on: the passive endpoint is nothing but to be closed.
/// Returns: EBUSY when it listens, or has been taken over; as open_msg_port().
util::Result<std::shared_ptr<MsgPort>> pep_take_over(Pep& pep);
/// Undoes that.
void pep_give_back(Pep& pep, std::shared_ptr<MsgPort> port) noexcept;

}  // namespace rvt::ofi
