// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagram services of a device, which are numbers of rdma_cm's port space UDP: pairs that answer
// for them, and the questions for pairs of other devices. IBTA vol. 1, 12.11 (service ID
// resolution). core/cm_rc_port.h asks and answers itself, backend/verbs/rdma_cm_services.h leaves
// that to rdma_cm.
#pragma once

#include <cstdint>

#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

/// A pair that takes datagrams, as who sends them has to know it.
struct UdPair {
    std::uint32_t qpn = 0;
    std::uint32_t qkey = 0;

    friend constexpr bool operator==(const UdPair&, const UdPair&) noexcept = default;
};

/// Who has a service, and asks for those of others. Called under the lock of the services: it must
/// not call them. Threads: any that polls.
class SidrUser {
  public:
    /// What an ask() has come to: ECONNREFUSED when nobody has the service there, EHOSTUNREACH when
    /// nobody has the UDP port, ETIMEDOUT.
    /// @param peer  As in ask().
    virtual void resolved(const Address& peer, const Result<UdPair>& pair) noexcept = 0;
    /// The host of a peer says that nobody has its UDP port, after a datagram for that pair.
    virtual void pair_gone(const Address& host, std::uint32_t qpn) noexcept = 0;
    /// The device is gone: Device::is_going(). Again and again until close_service().
    virtual void device_gone() noexcept {}

  protected:
    ~SidrUser() = default;
};

/// Threads: any.
class UdServices {
  public:
    UdServices(const UdServices&) = delete;
    UdServices& operator=(const UdServices&) = delete;

    /// @param user  Until close_service(). Returns: EADDRINUSE when somebody has the service
    ///              already.
    virtual Status open_service(std::uint16_t service, const UdPair& pair, SidrUser& user) = 0;
    /// Also ends the questions of that service. The user is not called any more when this returns.
    virtual void close_service(std::uint16_t service) noexcept = 0;
    /// Asks for the pair of a service; resolved() of who has service `own` follows.
    /// @param peer  The gid of the host, and the service as port.
    /// Returns: ENOMEM; errors of the way there.
    virtual Status ask(const Address& peer, std::uint16_t own) = 0;

  protected:
    UdServices() = default;
    ~UdServices() = default;
};

}  // namespace rvt::core
