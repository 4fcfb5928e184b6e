// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What those flows of an RD endpoint have in common that go over a NIC: receives, which serve all
// their pairs, and completions. A frame arrives whole, in one of the receives, and is handed to its
// flow from there.
//
// Of several frames one completion is asked for. All complete when they fail, and there is room for
// all that can be under way: so many flows the NIC carries, further ones take packets.
//
// Large messages are read by the NIC from where they lie to where they go, if both places can be
// kept registered (core/reg_cache.h). Large accesses to a region of the peer are its too, once the
// peer has told the key by which its NIC knows the region.
//
// A pair that ends may hold a receive, and the queue those that its messages have filled: it goes
// when the NIC has said that it takes no more and the queue has been read, so that none is lost.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/context.h"
#include "core/device.h"
#include "core/device_memory.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/qp.h"
#include "core/rd_chores.h"
#include "core/rd_loan.h"
#include "core/reg_cache.h"
#include "core/srq.h"
#include "core/verbs_cq.h"
#include "util/annotations.h"
#include "util/lock.h"
#include "util/mutex.h"
#include "util/unique_fd.h"

namespace rvt::core {

class RdFlow;

/// Threads: who polls the flows, where a member does not say otherwise.
class RdNic {
  public:
    static constexpr std::uint32_t kFrameBytes = 16u << 10;  // the longest
    static constexpr unsigned kEnoughPerPoll = 64;           // completions
    static constexpr std::uint32_t kMostCqe = 1u << 16;
    static constexpr unsigned kMostPolls = kMostCqe / kEnoughPerPoll;  // until its queue is read

    static constexpr std::uint32_t kMostRdma = 16;  // READs and WRITEs of a flow, at a time
    static constexpr std::uint64_t kIsRdma = std::uint64_t{1} << 62;  // in a request's number

    /// @param device         Of verb grade; outlives this.
    /// @param registrations  Of the application's memory, without `pd`.
    /// Returns: ENOMEM when not even a few receives can be registered; errors of the device.
    static Result<std::unique_ptr<RdNic>> open(Device& device, const RegCacheAttr& registrations,
                                               RdChores& chores);
    /// Precondition: no flow has a pair.
    ~RdNic();
    RdNic(const RdNic&) = delete;
    RdNic& operator=(const RdNic&) = delete;

    [[nodiscard]] Device& device() const noexcept { return device_; }
    /// Whether poll() may have something to do. Threads: any.
    [[nodiscard]] bool is_in_use() const noexcept {
        // relaxed: a hint to who polls.
        return pair_count_.load(std::memory_order_relaxed) != 0 ||
               context_->events().may_have_some();
    }

    /// Where peers find its pairs now: see BackendOps::ib_port(). Threads: any.
    Result<IbPort> port() noexcept;
    /// Makes a pair for the flow, in state INIT. Returns: ENOSPC when the NIC carries as many as it
    /// can, ENODEV when it is gone; errors of the device. Threads: any.
    Status make_pair(RdFlow& flow, const IbPort& port, Owned<Qp>& place);
    /// Registers what the flow's frames lie in. Threads: any.
    Status register_frames(std::span<std::byte> memory, Owned<Mr>& place);

    // ---- the application's memory. Threads: any ----

    /// Whether memory stays registered, and the NIC does and answers READs.
    [[nodiscard]] bool can_rdma() const noexcept {
        return cache_ != nullptr && cache_->keeps() && device_.limits().max_rd_atomic != 0;
    }
    /// Registers what a peer may read. Returns: nullptr when it cannot be kept.
    CachedRegion* lend(const iovec& memory) noexcept;
    void end_loan(CachedRegion& region) noexcept;
    /// Has the NIC reach the region of a device's memory by itself, until withdraw() and until
    /// nobody has what is returned. Returns: nullptr when it does not.
    ImportedRegion import(const BufferUse::NicPlace& place) noexcept;
    struct Begun {
        std::uint32_t index;
        Sge local;
    };
    /// Registers what the pair is to read into, or to write from, and remembers it by a number,
    /// which goes into the request with kIsRdma. Returns: nothing when it cannot be kept.
    std::optional<Begun> begin_rdma(const iovec& local, RegCache::Nic use, const Qp& qp,
                                    std::uint64_t name) noexcept;
    /// The same of memory of a device, from `place` on.
    std::optional<Begun> begin_rdma(const BufferUse::NicPlace& place, std::uint64_t bytes,
                                    const Qp& qp, std::uint64_t name) noexcept;
    /// The request never was.
    void end_rdma(std::uint32_t index) noexcept;
    /// The same, but its taker believes that it was: see take_lost().
    void lose_rdma(std::uint32_t index) noexcept;
    /// The same of one that has ended well, but whose taker was not told.
    void note_lost(std::uint64_t name) noexcept;

    // ---- regions of the application's, whose keys peers know. Threads: any ----

    /// Registers exactly this memory for peers, under a key of the domain's, until withdraw().
    /// @param rights  kRemoteRead, kRemoteWrite.
    /// @param device  Whose memory it is, for the NIC to import; nullptr: the application's.
    /// Returns: nullptr when it cannot be registered.
    Mr* expose(std::uint32_t key, const iovec& memory, Access rights,
               DeviceMemory* device) noexcept;
    /// Peers do not reach it any more when this returns: who tries ends its flow. Returns: whether
    /// they did.
    bool withdraw(std::uint32_t key) noexcept;
    /// Whether take_lost() has something to tell.
    [[nodiscard]] bool has_lost() const noexcept {
        return has_lost_.load(std::memory_order_relaxed);  // relaxed: a hint, read under the lock
    }
    /// One that has come to nothing. The NIC is not at its memory any more.
    struct Lost {
        std::uint64_t name;
        WcStatus status;  // kPeerDead: it has ended with its pair
    };
    std::vector<Lost> take_lost() noexcept;

    /// Nothing more is handed to the flow, whose pair ends. Threads: any that keeps poll() out.
    void retire(Owned<Qp> pair) noexcept;

    /// Hands frames to their flows, and counts what has been sent. What a flow has no room for
    /// stays in its receive until it has.
    /// @param failed  Gets the ids of flows whose pairs have failed.
    /// Returns: how many completions there were.
    unsigned poll(std::vector<std::uint64_t>& failed) noexcept;
    /// Tries again what flows had no room for.
    void take_held() noexcept {
        if (has_held()) [[unlikely]] {
            hand_over_held();
        }
    }
    [[nodiscard]] bool has_held() const noexcept { return !held_.empty(); }
    /// Asks that the next completion makes wake_fd() readable, if any pair is there; it is not for
    /// what has come until now. Returns: EAGAIN when there is a completion.
    Status arm() noexcept;
    /// Has wake_fd() not be readable for what has come until now.
    void clear_wake_fd() noexcept;
    [[nodiscard]] int wake_fd() const noexcept { return wake_set_.get(); }

  private:
    struct Unmap {
        std::size_t bytes;
        void operator()(std::byte* memory) const noexcept;
    };

    /// The pair of a flow that is gone.
    struct Leaving {
        Owned<Qp> pair;
        std::uint64_t until_us;
        bool has_told = false;  // that it takes no more receives
    };

    /// What a pair reads, or writes.
    struct Rdma {
        CachedRegion* region = nullptr;
        ImportedRegion imported{};  // of a device; neither: none
        std::uint32_t qpn = 0;
        std::uint64_t name = 0;

        [[nodiscard]] bool is_any() const noexcept {
            return region != nullptr || imported != nullptr;
        }
    };

    RdNic(Device& device, RdChores& chores) noexcept : device_(device), chores_(chores) {}
    Status start(const RegCacheAttr& registrations);
    void take_rdma(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept;
    std::optional<std::uint64_t> rdma_has_ended(const Wc& wc) noexcept;
    void lose_rdma_of(std::uint32_t qpn) noexcept;
    std::uint32_t keep_rdma_locked(Rdma rdma) noexcept RVT_REQUIRES(memory_lock_);
    std::uint64_t free_rdma_locked(std::uint32_t index) noexcept RVT_REQUIRES(memory_lock_);
    void give_back_locked(Rdma& rdma) noexcept RVT_REQUIRES(memory_lock_);
    [[nodiscard]] bool is_too_long(std::uint64_t bytes) const noexcept;
    void note_lost_locked(std::uint64_t name, WcStatus status) noexcept RVT_REQUIRES(memory_lock_);
    Status start_receives();
    Status make_wake_set();
    void give_back(std::uint64_t receive) noexcept;
    void post_free_ones() noexcept;
    Status post_free() noexcept;
    Status refuse(Status why, const char* what_to_change) noexcept;
    void take(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept;
    void hold(const Wc& wc) noexcept;
    void take_lost_receive(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept;
    void take_sent(const Wc& wc, std::vector<std::uint64_t>& failed) noexcept;
    bool take_frame(const Wc& wc) noexcept;
    [[nodiscard]] bool holds_frames_of(std::uint32_t qpn) const noexcept;
    void hand_over_held() noexcept;
    void take_events(std::vector<std::uint64_t>& failed) noexcept;
    void fail_all(std::vector<std::uint64_t>& failed) noexcept;
    void note_last_receive(const Object* pair) noexcept;
    void end_left(bool is_all_read) noexcept;
    void note_pairs_locked() noexcept RVT_REQUIRES(lock_);
    RdFlow* find(std::uint32_t qpn) noexcept;
    RdFlow* look_up(std::uint32_t qpn) noexcept;

    Device& device_;
    RdChores& chores_;
    Owned<Context> context_;
    util::UniqueFd wake_set_;  // of the NIC's completions and events
    Owned<CompChannel> channel_;
    Owned<Pd> pd_;
    util::Mutex memory_lock_;          // order: after all but the watch's
    std::unique_ptr<RegCache> cache_;  // used under memory_lock_
    std::vector<Rdma> rdmas_ RVT_GUARDED_BY(memory_lock_);
    std::vector<std::uint32_t> free_rdmas_ RVT_GUARDED_BY(memory_lock_);
    std::vector<Lost> lost_ RVT_GUARDED_BY(memory_lock_);
    // By the domain's keys.
    std::unordered_map<std::uint32_t, Owned<Mr>> exposed_ RVT_GUARDED_BY(memory_lock_);
    // The same; nullptr: the NIC does not import it.
    std::unordered_map<std::uint32_t, ImportedRegion> imported_ RVT_GUARDED_BY(memory_lock_);
    std::atomic<bool> has_lost_{false};
    Owned<VerbsCq> cq_;
    std::unique_ptr<std::byte[], Unmap> memory_{nullptr, Unmap{0}};
    Owned<Mr> region_;
    Owned<Srq> receives_;
    std::uint32_t max_flows_ = 0;

    std::vector<Sge> rooms_;  // of the receives
    // Receives that have been used, by their wr_id: several are posted at a time.
    static constexpr unsigned kMostFree = 16;
    std::array<std::uint64_t, kMostFree> free_{};
    unsigned free_count_ = 0;
    unsigned most_free_ = 1;

    std::array<Wc, 32> read_{};  // completions
    unsigned unheeded_ = 0;      // of them, that arm() has read
    std::vector<Wc> held_;       // frames that their flows have no room for; fewer than receives
    std::vector<Leaving> leaving_;
    std::vector<const Object*> told_;  // pairs, not leaving yet, that take no more receives
    // Flows that have had completions of late, at the last bits of their pairs' numbers.
    struct Known {
        std::uint32_t qpn = 0;  // no pair has this one
        RdFlow* flow = nullptr;
    };
    std::array<Known, 64> known_{};

    util::SpinLock lock_;  // order: innermost
    // By their pairs; nullptr: the flow is gone, and the pair is leaving.
    std::unordered_map<std::uint32_t, RdFlow*> flows_ RVT_GUARDED_BY(lock_);
    bool is_gone_ RVT_GUARDED_BY(lock_) = false;
    std::atomic<bool> has_refused_{false};  // and said so
    std::atomic<std::size_t> pair_count_{0};
};

}  // namespace rvt::core
