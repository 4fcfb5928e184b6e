// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_DGRAM endpoints, fi_endpoint(3): a core::UdEndpoint seen through libfabric. The data path
// is in ep_dgram_msg.inl, that of memory of devices in ep_dgram_device.inl, the groups of
// fi_join(3) in mc.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/ud_endpoint.h"
#include "ofi/compat.h"
#include "ofi/device_events.h"
#include "ofi/device_use.h"
#include "ofi/domain.h"
#include "ofi/fid.h"
#include "ofi/hmem_options.h"
#include "ofi/msg_nic.h"
#include "ofi/rd_flags.h"
#include "util/watched.h"

namespace rvt::ofi {

struct Av;
struct Cq;
struct Cntr;
class Eq;
struct EpDgram;

/// Where datagrams come from and go to, as the composition root knows it.
struct DgramHosts {
    /// @param nic  Over which; nullptr: over none. Outlives the host.
    Result<std::unique_ptr<core::UdHost>> (*open)(const core::UdHostAttr& attr,
                                                  MsgNic* nic) = nullptr;
    /// The payload of a datagram from that address. Returns: ENODEV and the like.
    Result<std::uint32_t> (*bytes_of)(const util::SockAddr& address) = nullptr;
};

/// Threads: once, at load.
void set_dgram_hosts(const DgramHosts& hosts) noexcept;
const DgramHosts& dgram_hosts() noexcept;

/// What the control thread and the address vector call.
class DgramUser final : public core::UdUser, public core::AddressObserver {
  public:
    explicit DgramUser(EpDgram& ep) noexcept : ep_(ep) {}

    void mark_hot() noexcept override;
    [[nodiscard]] bool is_hot() const noexcept override;
    [[nodiscard]] std::uint64_t poll_count() const noexcept override;
    bool control_progress() noexcept override;
    void address_inserted(std::uint64_t /*index*/,
                          const util::SockAddr& /*address*/) noexcept override {}
    void address_removed(std::uint64_t index, const util::SockAddr& address) noexcept override;

  private:
    EpDgram& ep_;
};

struct EpDgram {
    explicit EpDgram(const core::UdAttr& attr) : user(*this), endpoint(attr) {}

    static EpDgram& from(fid_ep* self) noexcept { return *reinterpret_cast<EpDgram*>(self); }
    static EpDgram& from(fid* self) noexcept { return *reinterpret_cast<EpDgram*>(self); }

    /// Derives the ready-made flags from op_flags and the way the queues are bound.
    void prepare_flags() noexcept;

    fid_ep handle{};

    RdFlags send_flags = RdFlags::kNone;  // of calls that bring no flags
    RdFlags recv_flags = RdFlags::kNone;
    RdFlags send_base = RdFlags::kNone;  // of calls that bring their own
    RdFlags recv_base = RdFlags::kNone;

    Domain* domain = nullptr;
    Av* av = nullptr;
    Eq* eq = nullptr;
    Cq* tx_cq = nullptr;
    Cq* rx_cq = nullptr;
    Cntr* send_cntr = nullptr;
    Cntr* recv_cntr = nullptr;
    bool is_tx_selective = false;
    bool is_rx_selective = false;
    bool is_enabled = false;
    std::uint64_t caps = 0;
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
    std::size_t tx_size = 0;
    std::size_t rx_size = 0;
    util::SockAddr bind;
    std::mutex name_lock;  // of opening, which gives it its name; order: before the domain's
    Users groups;
    HmemOptions hmem_options;
    DeviceUses device_uses;  // outlives what works on them
    DgramUser user;
    core::UdEndpoint endpoint;
    std::unique_ptr<util::Watched<DeviceEvents>> events;  // where an event queue is bound
};

/// fi_ops_domain.endpoint for this type. Returns: 0, -FI_EINVAL, -FI_ENOMEM, -FI_EBADFLAGS.
int ep_dgram_open(fid_domain* domain, fi_info* info, fid_ep** ep, std::uint64_t flags,
                  void* context) noexcept;

/// Flags that may be an endpoint's default.
inline constexpr std::uint64_t kDgramTxOpFlags =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MULTICAST;
inline constexpr std::uint64_t kDgramRxOpFlags = FI_COMPLETION | FI_TRANSMIT_COMPLETE;
inline constexpr std::size_t kMaxDgramQueue = std::size_t{1} << 14;
inline constexpr std::size_t kDgramQueue = 1024;  // where none is asked for

}  // namespace rvt::ofi
