// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint's presence on this host: its port, its page that peers map, its eventfd, its handle
// on the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <pthread.h>

#include "backend/shm/connection.h"
#include "backend/shm/layout.h"
#include "backend/shm/path.h"
#include "core/rd_types.h"
#include "util/cpu.h"
#include "util/mapping.h"
#include "util/sleepers.h"
#include "util/sock_addr.h"
#include "util/status.h"
#include "util/udp_port.h"
#include "util/unique_fd.h"

namespace rvt::shm {

struct StationAttr {
    ConnectionUser* user = nullptr;
    util::Sleepers* sleepers = nullptr;  // on wake_fd(); nullptr: see arm_by_barrier()
    core::RdKeys keys;
    bool has_auto_progress = false;
    bool wants_rma_events = false;
    bool control_may_enter = false;
    Service service = Service::kRd;
};

/// Threads: the owner of the endpoint, except wake_armed(), wake_owner() and poll_count().
class Station {
  public:
    /// Takes a UDP port. Returns: as util::bind_udp_port(); EBUSY when it has one.
    util::Status bind(const util::SockAddr& address);
    /// Takes one that is bound already. Returns: EBUSY as above.
    util::Status adopt(util::UdpPort port);
    bool is_bound() const noexcept { return port_.address.port != 0; }
    util::SockAddr address() const noexcept { return port_.address; }
    /// The same port once more. Returns: EMFILE.
    util::Result<util::UdpPort> share_port() const { return util::share(port_); }

    /// Starts to answer peers. Returns: EMFILE, ENOMEM, EADDRINUSE, EAGAIN.
    util::Status open(const StationAttr& attr);
    /// Ends all connections; the user is not called any more when this returns.
    void close() noexcept;

    void connect(const util::SockAddr& address) { connector_->connect(address); }
    /// See Connector::look_for().
    void look_for(const util::SockAddr& address) { connector_->look_for(address); }
    void close_link(std::uint64_t link, const char* why) noexcept;
    /// The same where nothing is wrong with the peer.
    void end_link(std::uint64_t link) noexcept { connector_->close(link); }
    void request_region(std::uint64_t link, std::uint32_t key) noexcept {
        connector_->request_region(link, key);
    }
    void wake_peer(std::uint64_t link) noexcept { connector_->wake_peer(link); }
    std::uint64_t incarnation() const noexcept { return page_->incarnation; }
    /// Whether a peer that the user has not been told of yet uses the region of a key of ours, or
    /// with kNoKey any of our memory.
    bool is_in_use(std::uint32_t key) {
        return connector_->is_in_use(use_mark(incarnation(), key));
    }

    /// Once in each progress call. Cost: a counter; every 64th time the page.
    RVT_ALWAYS_INLINE void note_poll() noexcept {
        // relaxed: written by the owner alone; the control thread only compares.
        const std::uint64_t polls = polls_.load(std::memory_order_relaxed) + 1;
        polls_.store(polls, std::memory_order_relaxed);
        if ((polls & 63) == 0) [[unlikely]] {
            note_polling();
        }
    }
    /// Before work that takes as long as many polls, so that peers do not believe that nobody
    /// polls.
    void note_long_work() noexcept { note_polling(); }
    /// What has been noted of the application's polling. Who makes progress in its stead restores
    /// it: those polls are not the application's, neither for peers nor for poll_count().
    struct Polling {
        std::uint64_t count = 0;
        std::uint64_t last = 0;
    };
    Polling polling() noexcept {
        is_in_stead_ = true;
        // relaxed: written by the owner, whom the caller stands for.
        return {.count = poll_count(), .last = page_->last_poll.load(std::memory_order_relaxed)};
    }
    void restore(const Polling& polling) noexcept {
        is_in_stead_ = false;
        polls_.store(polling.count, std::memory_order_relaxed);  // relaxed: as in note_poll()
        page_->last_poll.store(polling.last, std::memory_order_relaxed);  // relaxed: a hint
    }
    // relaxed: a hint.
    std::uint64_t poll_count() const noexcept { return polls_.load(std::memory_order_relaxed); }

    /// Asks all peers to wake wake_fd(). The caller looks at the rings once more before it sleeps.
    /// The first time that costs a system call that orders what all senders do; from then on they
    /// fence, and arming costs as little, until kLongAwake polls have gone by without it. While
    /// another thread polls, peers go on without waking anybody, until it ceases to.
    /// @param has_peers  Whether it has rings to look at: without, only those look at the word who
    ///                   fence before, and the system call is spared. What is in the mailbox by
    ///                   then counts as work, so that nobody sleeps on rings that came after.
    /// @param wants_room Whether peers wake it when they return credits, too.
    void arm(bool has_peers, bool wants_room = false) noexcept;
    /// Takes that back unless somebody else may sleep, the control thread among them.
    void disarm() noexcept;
    /// As arm(), for who does not note polls: senders do not fence, and each time costs the call.
    void arm_by_barrier(bool has_peers) noexcept;
    /// The same by the control thread, which a wire tells otherwise. It holds the lock of the
    /// endpoint, whose application may be busy for long.
    void arm_for_control(bool has_peers) noexcept;
    /// Takes that back unless somebody may sleep. Threads: the control thread, without the lock.
    void disarm_for_control() noexcept;
    /// Whether anybody sleeps beside who polls, of whom the connector has been told; else it need
    /// not look any more. Threads: the control thread, without the lock.
    bool goes_on_watching() noexcept;
    /// After arm() or arm_for_control(), where there was work all the same: what they took off
    /// wake_fd() may have been for others who sleep.
    void give_back_wake() noexcept;
    /// There is work now that no peer tells of. Cost: a load where nobody sleeps.
    RVT_ALWAYS_INLINE void wake_sleepers() noexcept {
        // relaxed: our own word.
        if (episode_of(page_->armed.load(std::memory_order_relaxed)) != 0) [[unlikely]] {
            wake_who_sleeps();
        }
    }
    /// The same where nobody has told of sleepers (see arm_by_barrier()): the episode ends with it.
    /// Threads: any. Cost: a fence; a system call once in each episode.
    void wake_armed() noexcept;
    int wake_fd() const noexcept { return wake_fd_.get(); }
    /// Makes wake_fd() readable. Threads: any.
    void wake_owner() noexcept;

    /// Says that the region of a peer's key is in use, before it is looked up (design: section 6,
    /// "marks"); with kNoKey, that memory which the peer has named otherwise is.
    void mark_use(std::uint64_t owner_incarnation, std::uint32_t key) noexcept;
    void unmark_use() noexcept;
    /// Has peers copy nothing any more to or from memory that this endpoint names. Who has marked
    /// it before may go on: the caller looks at the marks.
    void refuse_copies() noexcept;

  private:
    static constexpr std::uint64_t kLongAwake = 64;

    [[gnu::cold]] void note_polling() noexcept;
    void end_episode() noexcept;
    [[gnu::cold]] void wake_who_sleeps() noexcept;
    std::uint32_t next_episode() noexcept;
    void drain() noexcept;
    /// @param is_ordered  A fence is enough: whoever looks at the word fences before.
    void begin_episode(std::uint32_t armed, bool is_ordered) noexcept;

    EndpointPage* page_ = &unopened_;
    std::atomic<std::uint64_t> polls_{0};
    std::uint32_t episode_ = 0;        // of sleep, counts up
    std::uint64_t armed_at_poll_ = 0;  // by the owner
    util::Sleepers* sleepers_ = &nobody_;
    std::atomic<bool> is_control_asleep_{false};
    bool has_auto_progress_ = false;
    std::atomic<bool> is_watched_{false};  // the connector has been told of our polling
    pthread_t poller_ = 0;                 // the last who polled
    bool is_in_stead_ = false;             // see polling()
    bool has_drained_ = false;             // wake_fd(), at the beginning of the episode
    util::UniqueFd wake_fd_;
    util::UdpPort port_;
    util::Mapping page_memory_;
    std::unique_ptr<Connector> connector_;
    EndpointPage unopened_{};
    util::Sleepers nobody_;
};

}  // namespace rvt::shm
