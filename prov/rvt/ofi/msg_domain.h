// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the FI_EP_MSG endpoints of a domain have in common: the ports that they use, and their
// progress. Reading any queue of theirs moves all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/owned.h"
#include "core/progress_source.h"
#include "core/recv_queue.h"
#include "ofi/device_events.h"
#include "ofi/domain.h"
#include "ofi/msg_port.h"
#include "ofi/nic_memory.h"
#include "util/unique_fd.h"
#include "util/watched.h"

namespace rvt::ofi {

struct EpMsg;
struct Srx;

/// A port as one domain uses it.
struct MsgPortUse {
    std::shared_ptr<MsgPort> port;
    core::Owned<core::Context> own_context;
    core::Context* context = nullptr;        // that, or the one of the domain's NIC; as `pd`
    core::Owned<core::CompChannel> channel;  // tells sleepers of completions
    core::Owned<core::Pd> own_pd;
    core::Pd* pd = nullptr;                               // with the domain's keys
    std::unique_ptr<util::Watched<DeviceEvents>> events;  // for an event queue of the domain
    bool is_active = false;   // of endpoints that connect, not of accepted ones
    bool is_watched = false;  // the wake set has it
    unsigned endpoints = 0;
};

class MsgDomain final : public core::ProgressSource {
  public:
    /// Returns: EMFILE; errors of a NIC.
    static util::Result<std::unique_ptr<MsgDomain>> open(Domain& domain);
    /// Precondition: no endpoint is left.
    ~MsgDomain();
    MsgDomain(const MsgDomain&) = delete;
    MsgDomain& operator=(const MsgDomain&) = delete;

    /// The port that connecting endpoints of this address share. Returns: as open_msg_port().
    util::Result<MsgPortUse*> use(const util::SockAddr& bind);
    /// A port that a passive endpoint has opened.
    util::Result<MsgPortUse*> use(std::shared_ptr<MsgPort> port);
    void release(MsgPortUse* use) noexcept;

    void add(EpMsg& ep);
    void remove(EpMsg& ep) noexcept;

    /// core::kLocalDmaLkey: local buffers need no registration. In a NIC's domain: a key for
    /// scratch() alone.
    [[nodiscard]] std::uint32_t local_key() const noexcept { return local_key_; }
    /// Where a NIC puts what atomics find that have no result; whoever reads it, learns nothing.
    [[nodiscard]] std::uint64_t* scratch() noexcept { return &scratch_; }
    /// For buffers without a descriptor; nullptr where they need one (or none: without a NIC).
    [[nodiscard]] NicMemory* nic_memory() noexcept { return nic_memory_.get(); }
    /// The request has ended.
    void give_back(MsgOp& op) noexcept {
        if (nic_memory_ != nullptr) {
            nic_memory_->give_back(op);
        }
    }
    /// All of them have.
    void give_back_all(MsgOps& ops) noexcept;

    /// Receives were posted to a queue that pairs on all ports share.
    void wake_waiting_locked(const core::RecvQueue& queue) noexcept;

    /// Who sleeps hears of what is due for a request that was posted, though nothing arrives.
    /// Cost: two loads where no other thread sleeps; else a system call where nothing was due as
    /// soon as that since the timer ran out.
    void note_posted_locked() noexcept {
        if (sleepers.may_others_sleep()) [[unlikely]] {
            set_timer_if_sooner_locked();
        }
    }

    /// Progress of all, for who finds no room in a queue that nobody need read a completion of.
    /// Returns: how much moved.
    unsigned make_room_locked() noexcept { return run_locked(); }

    /// Whether the NIC completes nothing more that its endpoints have taken from that queue.
    [[nodiscard]] bool are_flushed_locked(const Srx& srx) const noexcept;

    /// Whether the NIC is thought to say when a pair gives back its last receive of a shared queue:
    /// it has not been waited for in vain. Threads: any.
    [[nodiscard]] bool tells_last_receive() const noexcept {
        return tells_last_receive_.load(
            std::memory_order_relaxed);  // relaxed: nothing goes with it
    }
    void note_last_receive(bool is_told) noexcept {
        tells_last_receive_.store(is_told, std::memory_order_relaxed);  // relaxed: as above
    }

    util::Status arm_locked() noexcept override;
    void disarm_locked() noexcept override;
    int wake_fd() const noexcept override { return wake_set_.get(); }

  private:
    explicit MsgDomain(Domain& domain) noexcept : domain_(domain) { progress = run; }
    static unsigned run(core::ProgressSource* self) noexcept {
        return static_cast<MsgDomain*>(self)->run_locked();
    }
    unsigned run_locked() noexcept;
    [[nodiscard]] bool may_have_completions_locked() noexcept;
    unsigned drain_locked() noexcept;
    util::Status watch_port_locked(MsgPortUse& use) noexcept;
    void arm_queues_locked() noexcept;
    [[nodiscard]] std::uint64_t next_due_us_locked() noexcept;
    [[nodiscard]] std::uint64_t now_us_locked() const noexcept;
    util::Status arm_timer_locked() noexcept;
    util::Status set_timer_locked(std::uint64_t due_us) noexcept;
    [[gnu::cold]] void set_timer_if_sooner_locked() noexcept;
    util::Status name_local_memory();
    util::Result<MsgPortUse*> add_use(std::shared_ptr<MsgPort> port, bool is_active);

    Domain& domain_;
    std::uint32_t local_key_ = 0;
    std::uint64_t scratch_ = 0;
    core::Owned<core::Mr> scratch_region_;  // of a NIC's domain
    std::unique_ptr<NicMemory> nic_memory_;
    std::mutex uses_lock_;  // of opening and releasing; order: before the domain's lock
    std::vector<std::unique_ptr<MsgPortUse>> uses_;  // changes under both locks
    std::vector<EpMsg*> endpoints_;                  // under the domain's lock
    std::atomic<bool> tells_last_receive_{true};
    util::UniqueFd timer_;     // runs out when something is due while everybody sleeps
    util::UniqueFd wake_set_;  // of all ports and channels, and the timer
    const unsigned generation_ = util::fork_generation();  // whose set it is
    std::uint64_t timer_due_us_ =
        core::RcPort::kNever;  // when it runs out; under the domain's lock
};

}  // namespace rvt::ofi
