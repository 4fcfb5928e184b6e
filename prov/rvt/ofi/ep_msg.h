// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_MSG endpoints, fi_endpoint(3): a reliable connection's pair. Life and connection are in
// ep_msg.cc, the calls of the data path in ep_msg_messages.cc, ep_msg_rma.cc and ep_msg_atomic.cc,
// which post by ep_msg_post.h; what becomes of that is in ep_msg_completions.cc.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/rc_port.h"
#include "ofi/compat.h"
#include "ofi/device_use.h"
#include "ofi/domain.h"
#include "ofi/fid.h"
#include "ofi/hmem_options.h"
#include "ofi/msg_domain.h"
#include "ofi/msg_op.h"
#include "ofi/msg_options.h"

namespace rvt::ofi {

struct Cq;
struct Cntr;
struct Srx;
struct ConnReq;
class Eq;

inline constexpr std::size_t kMsgInject = 256;
inline constexpr std::size_t kMsgAtomicIov = 3 * kMsgIov;  // operands, compared values, results

struct EpMsg {
    static EpMsg& from(fid_ep* self) noexcept { return *reinterpret_cast<EpMsg*>(self); }
    static EpMsg& from(fid* self) noexcept { return *reinterpret_cast<EpMsg*>(self); }

    EpMsg();
    ~EpMsg();
    EpMsg(const EpMsg&) = delete;
    EpMsg& operator=(const EpMsg&) = delete;

    /// Turns completions of the pair into those of the application. Returns: how many.
    unsigned drain_locked() noexcept {
        return queue->may_have_entries() ? drain_queue_locked() : 0;
    }
    /// Completes with errors what a lost pair had under way. Returns: how many.
    [[gnu::cold]] unsigned flush_lost_locked() noexcept;
    /// Asks that the next completion is announced at the port's channel.
    void arm_queue_locked() noexcept;
    /// Has the next completion wake who sleeps, after some have been drained. Returns: how many
    /// more were.
    unsigned arm_drained_locked() noexcept;

    [[nodiscard]] const MsgOps* shared_receives() const noexcept;
    /// Its own, or else that of its domain, which is bound as long: fi_domain(3), fi_domain_bind.
    [[nodiscard]] Eq* event_queue() const noexcept { return eq != nullptr ? eq : domain->eq; }
    [[nodiscard]] core::RcPort& rc() const noexcept { return use->port->rc(); }
    /// Bytes that an extended atomic can carry; 0: the peer has none, or is not known yet.
    [[nodiscard]] std::size_t most_atomic_bytes() const noexcept {
        return is_connected() ? connection->qp().most_atomic_bytes() : 0;
    }
    [[nodiscard]] bool is_connected() const noexcept {
        return connection != nullptr && connection->state() == core::RcConnection::State::kOpen;
    }

    fid_ep handle{};
    DeviceUses device_uses;  // outlives what works on them
    Domain* domain = nullptr;
    MsgPortUse* use = nullptr;
    MsgPortUse* bound = nullptr;  // of its address, while `use` is the one for peers of this host
    std::unique_ptr<core::RcConnection> connection;  // from enabling on
    core::VerbsCq* queue = nullptr;                  // of the pair
    std::unique_ptr<MsgOps> sends;
    std::unique_ptr<MsgOps> receives;
    MsgUnsignaled unsignaled;   // in the domain of a NIC
    std::uint64_t scratch = 0;  // where an atomic without a result puts what it found

    Cq* tx_cq = nullptr;
    Cq* rx_cq = nullptr;
    Eq* eq = nullptr;
    Srx* srx = nullptr;
    bool is_tx_selective = false;
    bool is_rx_selective = false;
    struct Counters {
        Cntr* send = nullptr;
        Cntr* recv = nullptr;
        Cntr* read = nullptr;
        Cntr* write = nullptr;
    } counters;

    std::uint32_t addr_format = FI_SOCKADDR_IN;  // of its info: a domain may have both families
    std::uint64_t caps = 0;
    HmemOptions hmem_options;
    bool has_cq_data = true;      // a message may have data beside it, and
    bool has_rx_cq_data = false;  // a WRITE, where it takes a receive (FI_RX_CQ_DATA)
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
    bool is_flushed = false;  // nothing of a lost pair is under way any more
    // What completes now is silent, but for receives of a shared context, and nothing more is told.
    // Changes under the domain's lock.
    std::atomic<bool> is_silent{false};
    // release: pairs with the acquire in is_closing(): who sees the pair's end sees why it ended.
    void note_closing() noexcept { is_silent.store(true, std::memory_order_release); }
    // acquire: pairs with the release in note_closing().
    [[nodiscard]] bool is_closing() const noexcept {
        return is_silent.load(std::memory_order_acquire);
    }
    std::size_t tx_size = 0;
    std::size_t rx_size = 0;
    // Less where the NIC has less.
    std::size_t inject_bytes = kMsgInject;
    std::uint64_t max_bytes = kMsgMaxBytes;
    std::optional<util::SockAddr> dest;  // of the info that it was opened with, or of connecting
    std::unique_ptr<ConnReq> request;    // which it is to accept

    /// What the port reports goes to the event queue.
    class Events final : public core::RcUser {
      public:
        explicit Events(EpMsg& ep) noexcept : ep_(ep) {}
        void connected(const core::RcConnection& made,
                       std::span<const std::byte> private_data) noexcept override;
        void connect_failed(int error, std::span<const std::byte> private_data) noexcept override;
        void disconnected() noexcept override;
        void device_failed(int error) noexcept override;

      private:
        EpMsg& ep_;
    } events;

  private:
    unsigned drain_queue_locked() noexcept;
};

/// fi_ops_domain.endpoint for infos of FI_EP_MSG. Returns: 0, -FI_EINVAL, -FI_ENOMEM, errors of
/// opening a port.
int ep_msg_open(Domain& domain, const fi_info& info, fid_ep** ep, void* context);

// The tables of enabled endpoints.
extern fi_ops_msg msg_msg_ops;
extern fi_ops_rma msg_rma_ops;
extern fi_ops_atomic msg_atomic_ops;
/// Of one that is not enabled: nothing but what can be known.
extern fi_ops_atomic msg_not_enabled_atomic_ops;

/// One work request of the application, without the lists.
struct MsgPost {
    WrOpcode opcode = WrOpcode::kSend;
    std::uint64_t completion = 0;  // its flags
    std::uint64_t flags = 0;       // FI_COMPLETION, FI_INJECT, FI_REMOTE_CQ_DATA, FI_FENCE
    std::uint64_t data = 0;
    std::uint64_t remote_addr = 0;
    std::uint64_t rkey = 0;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    ExtendedAtomic atomic{};
    std::uint64_t operand_bytes = 0;  // of an extended atomic
    void* context = nullptr;
    void* const* desc = nullptr;  // of the buffers, where any is a device's
};

}  // namespace rvt::ofi
