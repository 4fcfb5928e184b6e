// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The flows of one RD endpoint: opened on first use by messages of the communication manager, ended
// when either side wants or the peer does not answer any more.
//
// A request carries the incarnation of the endpoint that asks. Of two that cross, that of the lower
// address survives. A request of a peer that has a flow already means that the peer knows of none:
// it has given the flow up, or has been started again. Requests are counted, so that an older one
// which comes late is not taken for the former. Nor is one of a process that has ended taken for
// the latter: it gets a second flow, whose answer shows who is there, and the first ends then.
//
// Where there is no room for a flow that is wanted here, or by a peer, those that have been idle
// longest are asked to end (RdFlow, "Leaving"). What is wanted waits for that; peers ask again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cm_agent.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mad.h"
#include "core/owned.h"
#include "core/rd_chores.h"
#include "core/rd_flow.h"
#include "core/rd_nic.h"
#include "core/rd_notices.h"
#include "core/verbs_cq.h"
#include "util/annotations.h"
#include "util/cpu.h"
#include "util/mutex.h"

namespace rvt::core {

/// The service that endpoints listen for. IBTA annex A3: the first byte is that of services which
/// an operating system's own programs choose.
inline constexpr std::uint64_t kRdServiceId = 0x0272767400000001;

/// Who wants flows. It must not call RdFlows or a flow, but for RdFlow::start(). Threads: any that
/// polls.
class RdFlowsUser {
  public:
    /// A flow is ready; start() it, or close() it.
    virtual void flow_opened(RdFlow& flow) noexcept = 0;
    /// connect() has come to nothing: ECONNREFUSED, ETIMEDOUT, EPROTO (another version), ENOMEM.
    virtual void connect_failed(const Address& peer, int error) noexcept = 0;
    /// Nothing comes or goes any more; the flow is there until it is closed.
    virtual void flow_ended(RdFlow& flow) noexcept = 0;
    /// The same, but nothing was under way: what there is to send since can take another one.
    virtual void flow_left(RdFlow& flow) noexcept = 0;
    /// Something waits for the owner's poll(): another thread has taken it in.
    virtual void work_waits() noexcept = 0;

  protected:
    ~RdFlowsUser() = default;
};

struct RdFlowsAttr {
    Device* device = nullptr;  // packet grade, of this endpoint alone; outlives the flows
    /// Of verb grade and of the same address: carries flows to peers that have one, too; outlives
    /// the flows. nullptr: packets carry all of them.
    Device* nic = nullptr;
    RdFlowUser* taker = nullptr;  // outlives them too, as the next
    RdFlowsUser* user = nullptr;
    RdFlowPeer own{};  // what peers are told, but for what the NIC can do
    /// What of the application's memory stays registered with the NIC, without its `pd`; without a
    /// watch nothing, and all data is copied.
    RegCacheAttr registrations{};
    std::uint32_t connect_timeout_ms = 10'000;
    std::uint32_t refused_timeout_ms = 3'000;  // of it, where the peer's host says nobody listens
    /// How long the end waits for peers that owe an acknowledgement and say nothing.
    std::uint32_t linger_silence_ms = 1'500;
    std::uint32_t max_flows = 1u << 16;  // open, or being made
    /// Set when there is something to poll for, cleared by a poll when there has been nothing for a
    /// while.
    std::atomic<bool>* is_hot = nullptr;
};

class RdFlows final : private MadSink, private CmWire {
  public:
    /// Returns: ENOMEM, EMFILE.
    static Result<std::unique_ptr<RdFlows>> open(const RdFlowsAttr& attr);
    /// Ends all flows, and waits a moment for peers to take what they have been sent. The user is
    /// not called any more. Threads: the owner, while nobody polls.
    ~RdFlows();
    RdFlows(const RdFlows&) = delete;
    RdFlows& operator=(const RdFlows&) = delete;

    /// Wants a flow to `peer`: flow_opened() or connect_failed() follows. Threads: any.
    void connect(const Address& peer);
    /// Ends a flow that has been opened: nothing of it is sent any more. It is gone with the
    /// owner's next poll.
    void close(RdFlow& flow) noexcept;

    /// Sends what has been put, takes in what has arrived. Returns: how many packets, and others
    /// that had waited; not 0 while another thread polls. Threads: the owner.
    /// @param leaves_nic  It may be the last poll for a while: a quiet NIC is left to who watches,
    ///                    too. Else it is the caller who looks at it.
    unsigned poll(bool leaves_nic = false) noexcept;
    /// The same while the owner does not poll, but for handing messages over: those wait.
    /// Threads: another one at a time. Returns: false when the owner is polling; nothing is done
    /// then.
    bool poll_for_owner() noexcept;
    /// Behind such a poll that no other follows soon: lets acknowledgements go that wait for one.
    void let_go_for_owner() noexcept;
    /// Whether the last poll() has brought packets a moment ago, and nothing is held for the next:
    /// who reads its queue until that is empty, before it heeds what has come, may be spared a call
    /// to the kernel that most likely finds nothing. Says so once. Threads: the owner.
    [[nodiscard]] bool take_just_come() noexcept {
        const std::uint64_t ticks = std::exchange(came_ticks_, 0);
        return ticks != 0 && util::cpu_ticks() - ticks < kMomentTicks &&
               !device_.send_hold().is_asked();
    }
    /// Sends what is held for the next poll. Returns: whether it could, since no other thread is at
    /// it. Threads: any.
    bool send_held() noexcept;
    /// Gives memory back that flows have needed and do not need now. Threads: another one than the
    /// owner, now and then: flows that have been used since the last call keep theirs.
    void trim() noexcept;
    /// Asks the NIC, if there is one, to make nic_wake_fd() readable when something comes. Returns:
    /// EAGAIN when something is there. Threads: any, where it keeps out of poll() if it is not the
    /// owner's.
    Status arm_nic() noexcept;
    /// Has nic_wake_fd() not be readable for what has come until now, as it does not matter to who
    /// polls.
    void clear_nic_wake_fd() noexcept;
    /// Whether a poll has found the device's socket quiet, and leaves it to others until
    /// note_packets(). Said once. While a NIC carries flows, `is_hot` stays set all the same,
    /// unless the NIC is left, too. Threads: any.
    [[nodiscard]] bool take_quiet() noexcept {
        // relaxed: here and below, a hint; who misses it is told again by the next quiet poll.
        return is_quiet_.load(std::memory_order_relaxed) &&
               is_quiet_.exchange(false, std::memory_order_relaxed);
    }
    /// -1: there is no NIC.
    [[nodiscard]] int nic_wake_fd() const noexcept {
        return nic_ != nullptr ? nic_->wake_fd() : -1;
    }
    /// When poll_for_owner() is to be called next though nothing arrives; kNever: not at all.
    /// Threads: any.
    [[nodiscard]] std::uint64_t next_due_us() noexcept;
    /// The same for poll(): who makes room for flows is the owner.
    [[nodiscard]] std::uint64_t owner_due_us() noexcept;
    static constexpr std::uint64_t kNever = Device::kNever;
    [[nodiscard]] Device& device() const noexcept { return device_; }

    /// See RdNic::withdraw(). Threads: any.
    bool withdraw(std::uint32_t key) noexcept { return nic_ != nullptr && nic_->withdraw(key); }

    // ---- what a flow needs ----

    [[nodiscard]] RdFlowUser& taker() const noexcept { return *taker_; }
    /// A frame takes further records: poll() sends it. Threads: any that holds the flow's lock.
    void note_open(RdFlow& flow);
    /// A flow has more memory than it needs for a few small messages. Threads: as above.
    void note_large() noexcept {
        // relaxed: a hint to trim().
        if (!has_large_.load(std::memory_order_relaxed)) {
            has_large_.store(true, std::memory_order_relaxed);  // relaxed: as above
        }
    }
    /// Something leaves: an answer will come. Threads: any.
    void note_traffic() noexcept {
        // relaxed: a hint to who polls.
        if (!is_hot_.load(std::memory_order_relaxed)) {
            is_hot_.store(true, std::memory_order_relaxed);  // relaxed: as above
        }
    }
    /// The same of packets, or some have come. Threads: any.
    void note_packets() noexcept {
        asks_socket_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
        note_traffic();
    }
    /// Something has left that no completion will tell of, or has come: the peer may owe more, and
    /// be gone. Threads: any.
    void expect_life() noexcept {
        // relaxed: a hint to who polls.
        if (look_due_us_.load(std::memory_order_relaxed) == kNever) [[unlikely]] {
            look_due_us_.store(0, std::memory_order_relaxed);  // relaxed: as above
        }
    }
    /// Whether a NIC carries all that moves: no packet is expected. Threads: any.
    [[nodiscard]] bool is_left_to_nic() const noexcept {
        // relaxed: a hint how soon to look again.
        return nic_ != nullptr && nic_->is_in_use() &&
               !asks_socket_.load(std::memory_order_relaxed);
    }
    /// Grows with each poll while a NIC carries flows. Threads: any.
    [[nodiscard]] std::uint32_t polls() const noexcept {
        return polls_.load(std::memory_order_relaxed);  // relaxed: a hint how things follow
    }
    /// When a packet arrived last. Threads: any.
    [[nodiscard]] std::uint64_t traffic_us() const noexcept {
        return last_traffic_us_.load(std::memory_order_relaxed);  // relaxed: a hint
    }
    /// Whether this end's questions go before those of the peer when they cross.
    [[nodiscard]] bool is_before(const Address& peer) const noexcept;
    // Threads: the one that polls.
    [[nodiscard]] bool is_owner_polling() const noexcept { return is_owner_polling_; }
    void note_waiting(RdFlow& flow, std::size_t bytes);
    /// A frame has brought an acknowledgement, which the next poll heeds.
    void note_heard(RdFlow& flow) { heard_.push_back(&flow); }
    /// Both ends agree that this one closes the flow: the owner's poll does.
    void note_left(RdFlow& flow) {
        left_.push_back(&flow);
        chores_.note();
    }
    void note_taken(std::size_t bytes) noexcept { waiting_bytes_ -= bytes; }
    [[nodiscard]] bool has_room_to_wait() const noexcept {
        return waiting_bytes_ < kMaxWaitingBytes;
    }

  private:
    static constexpr std::size_t kMaxWaitingBytes = 16u << 20;
    static constexpr std::size_t kGreetingBytes = 48;

    enum class State : std::uint8_t {
        kDialing,   // our request is out
        kYielded,   // the peer's request is to come in place of ours
        kAccepted,  // the peer's request has been answered
        kOpen,      // the user has been told
        kEnded,     // the user is told of that too, and has to close it
        kClosed,    // to be destroyed by the owner
    };
    struct Link {
        std::unique_ptr<RdFlow> flow;
        State state = State::kDialing;
        bool is_wanted = false;  // connect() has asked for it, and has no answer yet
        CmHandle handle = CmHandle::kNone;
        std::uint64_t deadline_us = 0;    // see has_deadline()
        std::uint64_t asked_us = 0;       // when its end was asked for
        bool is_refused = false;          // the peer's host has said that nobody listens
        std::uint64_t life_signs = 0;     // of an open flow, at that time
        std::uint64_t moved = 0;          // to and fro, as of the last look for silent peers
        bool was_idle = false;            // as of that look
        bool had_moment = false;          // after a stop of this process, for its deadline
        std::uint32_t psn = 0;            // with which the peer begins
        std::uint32_t payload_bytes = 0;  // of the largest packet, as the peer is told
        IbPort own_port{};                // of the NIC that carries it
        std::uint64_t peer_dials = 0;     // requests that the peer had made when it last said so
        std::uint64_t successor = 0;      // of an open flow: see successor_locked()
    };
    /// Of a new link among those to its peer's address.
    enum class Place : std::uint8_t {
        kOwn,        // there is no other
        kOfAnother,  // that of one that is gone
        kNext,       // that of an open one, when it proves that its peer is there
    };
    /// Somebody who wants a flow for which there is no room.
    struct Waiting {
        Address peer;
        bool is_ours;  // wanted here; else the peer has been turned away, and asks again
        std::uint64_t until_us;
        std::uint64_t from_us = 0;  // ours, while the peer has no room: when to ask again
        bool had_moment = false;    // as of a link
    };
    struct News {
        RdFlow* flow;
        bool is_end;
    };
    struct AddressHash {
        std::size_t operator()(const Address& address) const noexcept;
    };

    // Deadlines are looked at so often, to see for how long this process was stopped.
    static constexpr std::uint64_t kDeadlineLookUs = 500'000;

    /// Whether it waits for the peer, or its peer is in doubt.
    static bool has_deadline(const Link& link) noexcept {
        return link.state == State::kDialing || link.state == State::kYielded ||
               (link.state == State::kOpen && link.is_refused);
    }

    explicit RdFlows(const RdFlowsAttr& attr);
    Status start(Device* nic, const RegCacheAttr& registrations);

    // MadSink, in rd_flows_doubt.cc
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override;
    void peer_refused(const Address& peer, std::uint32_t dest_qpn) noexcept override;
    void pair_missed(const Address& source, std::uint32_t qpn) noexcept override;
    void path_narrowed(const Address& host) noexcept override;
    void resolve_doubt_locked(Link& link) RVT_REQUIRES(lock_);
    Link* successor_locked(const Link& link) RVT_REQUIRES(lock_);
    void drop_successor_locked(const Link& link) RVT_REQUIRES(lock_);
    void succeed_locked(const Link& link) RVT_REQUIRES(lock_);

    // CmWire
    void send_mad(const AhAttr& to, CmMadBytes mad) noexcept override;

    // ---- connections, in rd_flows_cm.cc ----
    Link* find_locked(std::uint64_t id) RVT_REQUIRES(lock_);
    Link* at_locked(const Address& peer) RVT_REQUIRES(lock_);
    Result<Link*> add_locked(const Address& peer, Place place, bool over_nic) RVT_REQUIRES(lock_);
    Result<IbPort> make_pair(RdFlow& flow, bool over_nic);
    Result<IbPort> make_nic_pair_locked(RdFlow& flow) RVT_REQUIRES(flow.lock_);
    [[nodiscard]] std::uint32_t own_payload(const Link& link) const noexcept;
    Result<Link*> add_to_dial_locked(const Address& peer) RVT_REQUIRES(lock_);
    void dial_in_place_locked(const Address& peer, bool over_nic, bool is_wanted,
                              std::uint64_t until_us) RVT_REQUIRES(lock_);
    void dial_anew_locked(Link& link, bool over_nic) RVT_REQUIRES(lock_);
    void ask_instead_locked(Link& link, int error) RVT_REQUIRES(lock_);
    std::array<std::byte, kGreetingBytes> own_greeting_locked(Link& link) RVT_REQUIRES(lock_);
    static void note_greeting(Link& link, const CmEvent& event) noexcept;
    static std::uint8_t reads_of(const RdFlow& flow) noexcept;
    static CmPair own_pair(const Link& link) noexcept;
    Status connect_pair_locked(Link& link, const CmEvent& event) RVT_REQUIRES(lock_);
    void dial_locked(Link& link) RVT_REQUIRES(lock_);
    void run_cm_locked() RVT_REQUIRES(lock_);
    void on_event_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void on_request_locked(const CmEvent& event) RVT_REQUIRES(lock_);
    void accept_locked(const CmEvent& event, bool is_wanted, Place place, std::uint64_t until_us)
        RVT_REQUIRES(lock_);
    void refuse_locked(const CmEvent& event, std::uint8_t why) RVT_REQUIRES(lock_);
    [[nodiscard]] bool can_meet(const CmEvent& event) const noexcept;
    [[nodiscard]] bool is_too_large_locked(const Link& link, std::uint32_t peer_bytes) const
        RVT_REQUIRES(lock_);
    void on_reply_locked(Link& link, const CmEvent& event) RVT_REQUIRES(lock_);
    void on_rejected_locked(Link& link, const CmEvent& event) RVT_REQUIRES(lock_);
    void opened_locked(Link& link) RVT_REQUIRES(lock_);
    void fail_locked(Link& link, int error) RVT_REQUIRES(lock_);
    void end_locked(Link& link) RVT_REQUIRES(lock_);
    void drop_locked(Link& link) RVT_REQUIRES(lock_);
    void hang_up_locked(Link& link) RVT_REQUIRES(lock_);
    void retire_locked(Link& link) RVT_REQUIRES(lock_);
    void forget_address_locked(const Link& link) RVT_REQUIRES(lock_);
    void is_there_locked(Link& link) RVT_REQUIRES(lock_);
    void set_deadline_locked(Link& link, std::uint64_t due_us) RVT_REQUIRES(lock_);
    void heed_stop_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);
    void check_deadlines_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);

    void pause_locked(Link& link) RVT_REQUIRES(lock_);
    std::uint64_t random_locked() noexcept RVT_REQUIRES(lock_);

    // ---- room, in rd_flows_room.cc ----
    [[nodiscard]] bool has_turn_locked(const Address& peer) const RVT_REQUIRES(lock_);
    bool wish_locked(const Address& peer) RVT_REQUIRES(lock_);
    [[nodiscard]] bool is_wished_locked(const Address& peer) const RVT_REQUIRES(lock_);
    void turn_away_locked(const Address& peer) RVT_REQUIRES(lock_);
    void want_room_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);
    void forget_waiting_locked(const Address& peer) RVT_REQUIRES(lock_);
    void grant_wishes_locked(std::uint64_t now_us) RVT_REQUIRES(lock_);
    [[nodiscard]] std::uint64_t wish_due_locked() const RVT_REQUIRES(lock_);
    void make_room() noexcept;
    [[nodiscard]] Link* longest_idle_locked(std::uint64_t now_us, std::size_t& leaving)
        RVT_REQUIRES(lock_);
    void close_left() noexcept;

    // ---- silence, in rd_flows_silence.cc ----
    void look_at_peers(std::uint64_t now_us) noexcept;
    bool look_at_peer(Link& link) noexcept;
    void look_for_silent_locked(std::uint64_t now_us) noexcept RVT_REQUIRES(lock_);

    // How long a moment is for take_just_come(): less than a microsecond, but where a sanitizer
    // takes longer for what happens in one.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static inline const std::uint64_t kMomentTicks = util::ticks_of_ns(22'000);
#else
    static inline const std::uint64_t kMomentTicks = util::ticks_of_ns(680);
#endif

    // ---- traffic, in rd_flows.cc ----
    unsigned poll_polling(unsigned& arrived) noexcept;
    unsigned poll_packets() noexcept;
    unsigned poll_beside_nic(unsigned moved) noexcept;
    unsigned poll_nic() noexcept;
    [[gnu::cold]] void end_failed() noexcept;
    void read_nic() noexcept;
    unsigned poll_socket() noexcept;
    void look_at_clock() noexcept;
    void note_time(std::uint64_t now_us) noexcept;
    void look_around(std::uint64_t now_us) noexcept;
    void flush_open() noexcept;
    void flush_those_open() noexcept;
    unsigned settle_heard() noexcept;
    [[nodiscard]] bool has_waiting() const noexcept;
    unsigned drain_waiting() noexcept;
    [[nodiscard]] bool has_chores() const noexcept;
    [[gnu::noinline]] unsigned do_chores() noexcept;
    void tell(RdFlow& flow, bool is_end);
    void tell_late() noexcept;
    void tell_lost() noexcept;
    void tell_now(const News& news) noexcept;
    [[nodiscard]] bool is_quiet(std::uint64_t now_us, std::uint64_t due_us) const noexcept;
    [[nodiscard]] std::uint64_t due_us() noexcept;
    [[nodiscard]] std::uint64_t packets_due_us() noexcept;
    void take_errors() noexcept;
    void look_at_cm() noexcept;
    void look_at_port() noexcept;
    void reap() noexcept;
    void linger() noexcept;
    void forget_ended(std::vector<RdFlow*>& flows) noexcept;
    void destroy_locked(Link& link) noexcept RVT_REQUIRES(lock_);

    Device& device_;
    RdFlowUser* const taker_;
    RdFlowsUser* const user_;
    const RdFlowPeer own_;
    const std::uint64_t connect_timeout_us_;
    const std::uint64_t refused_timeout_us_;
    const std::chrono::milliseconds linger_silence_;
    const std::size_t max_flows_;
    std::atomic<bool>& is_hot_;
    Owned<Context> context_;
    Owned<Pd> pd_;
    std::unique_ptr<RdNic> nic_;
    Owned<VerbsCq> cq_;  // of failed work requests: successful ones are not signalled
    std::unique_ptr<CmAgent> agent_ RVT_GUARDED_BY(lock_);

    util::Mutex lock_;  // order: before the locks of flows and pairs
    std::unordered_map<std::uint64_t, Link> links_ RVT_GUARDED_BY(lock_);  // by the flow's id
    // Those that are wanted or open.
    std::unordered_map<Address, std::uint64_t, AddressHash> by_address_ RVT_GUARDED_BY(lock_);
    std::vector<std::uint64_t> closed_ RVT_GUARDED_BY(lock_);
    std::uint64_t next_id_ RVT_GUARDED_BY(lock_) = 1;
    std::uint64_t dials_ RVT_GUARDED_BY(lock_) = 0;
    std::uint64_t random_ RVT_GUARDED_BY(lock_);
    RdNotices notices_ RVT_GUARDED_BY(lock_);                   // of pairs that are not there
    std::uint64_t deadline_us_ RVT_GUARDED_BY(lock_) = kNever;  // when to look at those of links
    std::uint64_t planned_us_ RVT_GUARDED_BY(lock_) = kNever;   // when run_cm_locked() is due
    std::deque<Waiting> for_room_ RVT_GUARDED_BY(lock_);        // in the order of their turns
    bool is_short_ RVT_GUARDED_BY(lock_) = false;               // the last flow found no memory
    std::atomic<std::uint64_t> cm_due_us_{kNever};              // 0: there is something to do
    std::atomic<std::uint64_t> room_due_us_{kNever};            // when the owner has to make room
    // When to look for silent peers; kNever: nothing has moved since the last look; 0: some time
    // after now.
    std::atomic<std::uint64_t> look_due_us_{kNever};
    std::atomic<bool> has_closed_{false};
    RdChores chores_;  // but for open frames; see do_chores()
    std::atomic<bool> has_large_{false};

    util::SpinLock open_lock_;                              // order: after the locks of flows
    std::vector<RdFlow*> open_ RVT_GUARDED_BY(open_lock_);  // with frames that take more records
    std::atomic<bool> has_open_{false};

    // Only who polls touches these; the lock is only ever tried. order: before lock_
    util::SpinLock poll_lock_;
    bool is_owner_polling_ = false;
    bool leaves_nic_ = false;       // see poll()
    std::vector<RdFlow*> waiting_;  // with parts that wait for the owner
    std::size_t waiting_bytes_ = 0;
    std::deque<News> news_;  // an end behind which parts wait, and what has to be told after it
    std::vector<RdFlow*> opened_now_;
    std::vector<std::uint64_t> failed_;  // flows over the NIC, by id
    std::vector<RdFlow*> left_;          // to be closed
    std::vector<RdFlow*> heard_;         // see note_heard()
    bool wants_look_ = false;            // the owner is to look for silent peers
    std::uint32_t port_changes_ = 0;     // that have been looked at
    std::uint64_t packets_us_ = 0;       // when one came last, while a NIC carries flows
    std::uint64_t came_ticks_ = 0;       // when the owner's last poll brought packets, or 0
    bool nic_has_moved_ = false;         // since the last look at the clock
    std::atomic<std::uint32_t> polls_{0};
    std::atomic<bool> asks_socket_{true};  // beside a NIC's flows: whether it may have something
    std::atomic<bool> is_quiet_{false};    // see take_quiet()
    std::atomic<std::uint64_t> last_traffic_us_{0};
};

// Here, as it needs the flows.
inline void RdFlow::note_use() noexcept {
    // relaxed: a hint which flow has been idle longest.
    used_us_.store(flows_.traffic_us(), std::memory_order_relaxed);
}

}  // namespace rvt::core
