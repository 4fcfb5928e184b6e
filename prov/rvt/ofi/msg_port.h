// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A port that connections of FI_EP_MSG go through: the device behind it and its connections. The
// composition root makes ports; ofi/ knows them by this class.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/rc_port.h"
#include "util/cpu.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::ofi {

/// Shared by the endpoints of a domain, or by a passive endpoint and those that it accepted.
/// Several have one device where the setting FI_RVT_ROCE_PORT says so, and datagram endpoints with
/// them. Threads: any.
class MsgPort {
  public:
    virtual ~MsgPort() = default;
    MsgPort(const MsgPort&) = delete;
    MsgPort& operator=(const MsgPort&) = delete;

    virtual core::RcPort& rc() noexcept = 0;
    /// The address that it is bound to: the device's, or a number of rdma_cm at it.
    [[nodiscard]] virtual util::SockAddr address() const noexcept = 0;

    /// Whom a connection to `address` is asked of.
    [[nodiscard]] virtual core::RcCall call_to(const util::SockAddr& address) const noexcept = 0;
    /// The address of who has the number `service` there.
    [[nodiscard]] virtual util::SockAddr name_of(const Address& peer,
                                                 std::uint16_t service) const noexcept = 0;

    /// Where its connections go, in words.
    [[nodiscard]] virtual const char* way() const noexcept = 0;
    /// The port of the same address through shared memory, for peers of this host; opened at the
    /// first call. nullptr: there is no other. Returns: as open_msg_port().
    virtual util::Result<std::shared_ptr<MsgPort>> host_side() {
        return std::shared_ptr<MsgPort>();
    }
    /// Whether that is how `peer` is reached, as far as is known now.
    [[nodiscard]] virtual bool is_on_host(const util::SockAddr& /*peer*/) const { return false; }

    /// Once in each progress call of a user. Returns: how much moved.
    RVT_ALWAYS_INLINE unsigned poll() noexcept {
        // relaxed: a hint; the control thread looks after what it misses.
        return polls_always || is_hot.load(std::memory_order_relaxed) ? poll_device() : 0;
    }

    /// A descriptor that is readable when an armed port has something to poll.
    [[nodiscard]] virtual int wake_fd() const noexcept = 0;
    /// Returns: EAGAIN when there is something to poll now.
    virtual util::Status arm() noexcept = 0;

  protected:
    MsgPort() = default;
    /// Whose device a further name is for.
    struct Same {
        MsgPort& port;
    };
    explicit MsgPort(const Same& same) noexcept
        : polls_always(same.port.polls_always), is_hot(same.port.is_hot) {}
    virtual unsigned poll_device() noexcept = 0;

    bool polls_always = false;  // a look for arrivals makes no system call; set once
    std::atomic<bool>& is_hot = own_hot_;

  private:
    std::atomic<bool> own_hot_{false};
};

/// Binds the address and starts to answer peers. Returns: as util::bind_udp_port(); ENOMEM, EMFILE.
using OpenMsgPort = util::Result<std::shared_ptr<MsgPort>> (*)(const util::SockAddr& address);

/// Tells ofi/ how ports are made. Threads: once, at load.
void set_msg_ports(OpenMsgPort open) noexcept;
util::Result<std::shared_ptr<MsgPort>> open_msg_port(const util::SockAddr& address);

}  // namespace rvt::ofi
