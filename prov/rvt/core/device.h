// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A device: what a backend registered, and what all objects opened on it share - the key table, the
// queue pair numbers, multicast groups, counters, the work that waits for a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/ack_hold.h"
#include "core/answer_hurry.h"
#include "core/early_room.h"
#include "core/key_table.h"
#include "core/mad.h"
#include "core/mcast.h"
#include "core/object.h"
#include "core/qp_table.h"
#include "core/reader_pins.h"
#include "core/segment_wire.h"
#include "core/send_hold.h"
#include "core/stats.h"
#include "rvt/backend.h"
#include "util/annotations.h"
#include "util/cpu.h"
#include "util/lock.h"
#include "util/mutex.h"

namespace rvt::core {

class Context;

inline constexpr std::uint32_t kMinPayload = 256;
// Whole cache lines: where a packet's payload begins in a buffer, so does the next one's.
inline constexpr std::uint32_t kPayloadStep = 64;

/// The largest MTU of the specification in that much payload (IBTA vol. 1, table 39: 256 to 4096).
constexpr std::uint32_t mtu_within(std::uint32_t payload_bytes) noexcept {
    return std::min(std::bit_floor(payload_bytes), 4096u);
}

class Device : public Object {
  public:
    /// @param ops  Already complete, see fill_defaults().
    /// Returns: ENOMEM for the key table, EINVAL for limits or a key block that make no sense.
    static Result<std::unique_ptr<Device>> create(const DeviceInfo& info, const BackendOps& ops);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] Grade grade() const noexcept { return info_.grade; }
    [[nodiscard]] const Address& address() const noexcept { return info_.address; }
    [[nodiscard]] const DeviceLimits& limits() const noexcept { return info_.limits; }
    [[nodiscard]] const BackendOps& ops() const noexcept { return ops_; }
    [[nodiscard]] KeyTable& keys() noexcept { return *keys_; }
    [[nodiscard]] const KeyView& key_view() const noexcept { return key_view_; }
    [[nodiscard]] QpTable& qps() noexcept { return qps_; }
    [[nodiscard]] McastTable& mcast() noexcept { return mcast_; }
    [[nodiscard]] EarlyRoom& early_room() noexcept { return early_room_; }
    [[nodiscard]] Stats& stats() noexcept { return stats_; }
    [[nodiscard]] const Stats& stats() const noexcept { return stats_; }
    /// Most payload of a packet at present. While the port is down, as it was before.
    [[nodiscard]] std::uint32_t payload_bytes() const noexcept {
        return payload_bytes_.load(std::memory_order_relaxed);  // relaxed: nothing goes with it
    }
    /// What peers are told of it that know the MTUs of the specification only.
    [[nodiscard]] std::uint32_t mtu_bytes() const noexcept { return mtu_within(payload_bytes()); }
    /// Most payload of a packet to `peer` at present: what the way there takes, as far as the host
    /// knows it. Not for the data path.
    [[nodiscard]] std::uint32_t payload_to(const Address& peer) noexcept {
        return std::min(payload_bytes(), ops_.path_payload(*this, peer));
    }
    [[nodiscard]] bool is_port_down() const noexcept {
        return is_port_down_.load(std::memory_order_relaxed);  // relaxed: as above
    }
    /// Grows when one of these two changes. Threads: any.
    [[nodiscard]] std::uint32_t port_changes() const noexcept {
        // acquire: pairs with the release in change_port(); who sees the count sees both.
        return port_changes_.load(std::memory_order_acquire);
    }
    /// See port_changed() of include/rvt/backend.h.
    void change_port(std::uint32_t payload_bytes) noexcept;
    [[nodiscard]] std::uint64_t now_us() const noexcept { return info_.now_us(); }

    [[nodiscard]] std::uint32_t next_pd_id() noexcept {
        // relaxed: only uniqueness matters.
        return next_pd_id_.fetch_add(1, std::memory_order_relaxed);
    }

    /// Takes in what the backend has, and starts again what has waited long enough.
    /// Returns: how many packets or segments arrived.
    /// Threads: any; beside a thread that is in it, it returns at once.
    unsigned progress() noexcept;
    /// The same, and tells what time it is, as poll_us() does.
    unsigned progress(std::uint64_t& now_us) noexcept;

    /// What time it was when the poll that is under way began, to a few microseconds: never later.
    /// Threads: the one in poll().
    [[nodiscard]] std::uint64_t poll_us() const noexcept { return poll_us_; }

    /// Sleeps until `fd` is readable, the backend has something, waiting work is due or
    /// `timeout_ms` passed.
    void sleep_on(int fd, int timeout_ms) noexcept;
    /// When progress() has to be called next though nothing arrives; kNever: not at all.
    /// Threads: any.
    [[nodiscard]] std::uint64_t next_due_us() const noexcept {
        // relaxed: what begins to wait right now is seen at the next look.
        return earliest_due_us_.load(std::memory_order_relaxed);
    }
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};

    // ---- work that waits ----

    /// Has the send queue of pair `qpn` run again at `due_us`, or as soon as wake_waiting(`on`)
    /// says so.
    void wait_until(std::uint32_t qpn, std::uint64_t due_us, const void* on) noexcept;
    /// Called when what a send queue may be waiting for has come. Cost: a load when nothing waits.
    void wake_waiting(const void* on) noexcept;
    /// Forgets a pair that is being destroyed.
    void stop_waiting(std::uint32_t qpn) noexcept;

    /// Has the send queue of pair `qpn` run when poll() has taken in all that there was: several
    /// acknowledgements together set more going than each by itself. Threads: the one in poll().
    void run_behind_poll(std::uint32_t qpn) noexcept {
        if (behind_poll_.empty() || behind_poll_.back() != qpn) {
            behind_poll_.push_back(qpn);
        }
    }

    /// Has the answers of pair `qpn` sent: with the next packets that leave, as flush() says, else
    /// by progress(). The caller may hold locks of the pair.
    void answer_later(std::uint32_t qpn, AnswerHurry hurry) noexcept;
    /// The pair's answer leaves in another way. The caller holds the lock under which it would be
    /// given another one.
    void has_no_answer(std::uint32_t qpn) noexcept;
    /// Lets urgent answers go. The caller holds no lock of a pair.
    void flush_urgent() noexcept {
        // relaxed: set by this thread, or another's to send.
        if (hurry_.load(std::memory_order_relaxed) == AnswerHurry::kNow) {
            flush();
        }
    }
    /// Whether acknowledgements wait for the application's reply, or its next poll.
    [[nodiscard]] AckHold& ack_hold() noexcept { return ack_hold_; }
    /// Somebody polls, and what is held leaves. It is to be told before it takes time to send.
    void note_poll() noexcept {
        const auto clock = [this] { return now_us(); };
        send_hold_.note_poll(clock);
        ack_hold_.note_poll(clock);
    }
    /// Whether small messages wait for the next progress(), or for send_held().
    [[nodiscard]] SendHold& send_hold() noexcept { return send_hold_; }
    /// Lets them go. Threads: any.
    void send_held() noexcept;
    /// Has a packet leave at once, and what waits with it. Returns: whether the backend takes it.
    /// @param with_answers  As flush() or flush_packets().
    bool send_now(const AhAttr& dest, const OutPacket& packet, bool with_answers) noexcept {
        if (with_answers) {
            ack_hold_.note_reply([this] { return now_us(); });
        }
        // relaxed: see answer_later().
        if (!with_answers || answering_count_.load(std::memory_order_relaxed) == 0) [[likely]] {
            return ops_.send_now(*this, dest, packet);
        }
        const bool is_taken = ops_.send_packets(*this, dest, {&packet, 1}) == 1;
        flush();
        return is_taken;
    }
    /// Lets go what waits to leave: packets that the backend keeps, and behind them answers. The
    /// caller holds no rx_lock.
    void flush() noexcept;
    /// The same without answers: most are for somebody else, to whom something may leave before
    /// long that they can leave with.
    void flush_packets() noexcept { ops_.flush_packets(*this); }

    // ---- management datagrams ----

    /// Who takes them; nullptr: nobody, they are dropped. Threads: while nobody is in progress() or
    /// in change_port().
    void set_mad_sink(MadSink* sink) noexcept { mad_sink_ = sink; }
    [[nodiscard]] MadSink* mad_sink() const noexcept { return mad_sink_; }

    // ---- answers for pairs that are not there ----

    /// Sends the answer now or, when the channel is full, later.
    void refuse(Channel& channel, const SegmentHeader& answer) noexcept;
    void forget_refusals(const Channel& channel) noexcept;

    // ---- contexts ----

    /// Returns: ENODEV once remove() has begun.
    Status add_context(Context& context);
    void remove_context(Context& context) noexcept;
    /// Lets no more contexts open and tells those that are with kDeviceFatal.
    void begin_removal() noexcept;
    /// Whether that has been done. Threads: any.
    [[nodiscard]] bool is_going() const noexcept {
        return going_.load(std::memory_order_relaxed);  // relaxed: a flag on its own
    }

  private:
    struct Waiting {
        std::uint32_t qpn;
        std::uint64_t due_us;
        const void* on;
    };
    struct Refusal {
        Channel* channel;
        SegmentHeader answer;
    };
    // Requests to pairs that are not there and whose answers wait for room; beyond it, they get
    // none.
    static constexpr std::size_t kMaxRefusals = 1024;
    // Who polls reads the clock again after so much of the processor's own counter, which are a few
    // microseconds, and after so many polls: to read it takes a tenth of a poll in vain.
    static inline const std::uint64_t kTicksPerLook = util::ticks_of_ns(2'700);
    static constexpr std::uint32_t kPollsPerLook = 16;
    // An acknowledgement waits so long for a reply of the application that it can leave with: from
    // the second call on by the clock.
    static constexpr std::uint64_t kAnswerUs = AckHold::kStaysUs;
    static constexpr std::uint32_t kAnswerPolls = 16;
    static constexpr std::uint32_t kReplyPolls = 2;
    // As long as a step of a collective operation takes, behind which the next one begins. In this
    // time the clock is looked at with each kPollsPerLook-th call.
    static constexpr std::uint64_t kLazyUs = 100;
    static constexpr std::uint32_t kLazyPolls = 512;
    static constexpr std::ptrdiff_t kAnswersLookedAt = 16;  // of those that wait

    struct KeyBlock {  // memory of the core's own for the key table
        void* memory = nullptr;
        std::size_t bytes = 0;
        KeyBlock() = default;
        KeyBlock(KeyBlock&& other) noexcept;
        KeyBlock& operator=(KeyBlock&&) = delete;
        KeyBlock(const KeyBlock&) = delete;
        KeyBlock& operator=(const KeyBlock&) = delete;
        ~KeyBlock();
    };

    Device(const DeviceInfo& info, const BackendOps& ops, KeyBlock own,
           std::unique_ptr<KeyTable> keys) noexcept;
    static Result<KeyBlock> map_key_block(std::uint32_t max_mr) noexcept;
    unsigned take_in(std::uint64_t& now) noexcept;
    void look_at_clock_locked() noexcept RVT_REQUIRES(progress_lock_);
    void resume_due(std::uint64_t now_us) noexcept;
    std::vector<std::uint32_t> take_due(std::uint64_t now_us, const void* on) noexcept;
    void note_waiting_locked() noexcept RVT_REQUIRES(waiting_lock_);
    void send_refusals() noexcept;
    void run_send_queues() noexcept;
    [[nodiscard]] bool answers_are_due_locked() noexcept RVT_REQUIRES(progress_lock_);
    [[nodiscard]] bool look_at_answers_locked() noexcept RVT_REQUIRES(progress_lock_);
    void send_answers() noexcept;

    const std::string name_;
    DeviceInfo info_;
    const BackendOps ops_;
    const KeyBlock own_key_block_;
    const std::unique_ptr<KeyTable> keys_;
    const KeyView key_view_;
    QpTable qps_;
    McastTable mcast_;
    Stats stats_;
    EarlyRoom early_room_;
    std::atomic<std::uint32_t> payload_bytes_;
    std::atomic<bool> is_port_down_{false};
    std::atomic<std::uint32_t> port_changes_{0};
    MadSink* mad_sink_ = nullptr;
    std::atomic<std::uint32_t> next_pd_id_{1};

    SendHold send_hold_;
    AckHold ack_hold_;
    util::SpinLock progress_lock_;         // order: outermost; only ever tried
    PinSlot& poll_pin_ = take_pin_slot();  // of who holds progress_lock_
    std::uint64_t poll_us_ = 0;            // as are these
    bool has_own_clock_ = false;           // which a test moves: it is read each time
    std::uint64_t looked_ticks_ = 0;
    std::uint32_t polls_since_look_ = 0;
    std::vector<std::uint32_t> behind_poll_;  // pairs; of who holds progress_lock_
    util::SpinLock waiting_lock_;             // order: innermost
    std::vector<Waiting> waiting_ RVT_GUARDED_BY(waiting_lock_);
    std::atomic<std::uint32_t> waiting_count_{0};
    std::atomic<std::uint64_t> earliest_due_us_{kNever};  // of those that wait

    util::SpinLock answering_lock_;                                         // order: innermost
    std::vector<std::uint32_t> answering_ RVT_GUARDED_BY(answering_lock_);  // pairs with answers
    std::vector<std::uint32_t> answering_now_ RVT_GUARDED_BY(flush_lock_);
    util::SpinLock flush_lock_;  // order: before any rx_lock; only ever tried
    std::atomic<std::uint32_t> answering_count_{0};
    std::atomic<AnswerHurry> hurry_{AnswerHurry::kNone};  // that of the first to leave
    std::atomic<std::uint32_t> polls_with_answers_{0};    // since the first of these has come
    std::uint64_t answers_since_us_ RVT_GUARDED_BY(progress_lock_) = 0;

    util::SpinLock refusals_lock_;  // order: innermost but for the backend's locks
    std::deque<Refusal> refusals_ RVT_GUARDED_BY(refusals_lock_);
    std::atomic<bool> has_refusals_{false};

    util::Mutex contexts_lock_;  // order: before AsyncEvents::lock_
    std::vector<Context*> contexts_ RVT_GUARDED_BY(contexts_lock_);
    std::atomic<bool> going_{false};  // written under contexts_lock_
};

// ---- a poll ----
//
// Inline, as is what calls it: behind a system call each return to a caller from before it costs
// the processor a misprediction, and whatever it calls it has to fetch anew.

RVT_ALWAYS_INLINE void Device::look_at_clock_locked() noexcept {
    const std::uint64_t ticks = util::cpu_ticks();
    const bool is_old =
        ticks - looked_ticks_ >= kTicksPerLook || ++polls_since_look_ >= kPollsPerLook;
    if (is_old || has_own_clock_) {
        looked_ticks_ = ticks;
        polls_since_look_ = 0;
        poll_us_ = now_us();
    }
}

RVT_ALWAYS_INLINE bool Device::answers_are_due_locked() noexcept {
    // relaxed: see answer_later().
    if (answering_count_.load(std::memory_order_relaxed) == 0) [[likely]] {
        return false;
    }
    return look_at_answers_locked();
}

RVT_ALWAYS_INLINE unsigned Device::take_in(std::uint64_t& now) noexcept {
    if (!progress_lock_.try_lock()) {
        now = now_us();
        return 0;
    }
    look_at_clock_locked();
    now = poll_us_;
    note_poll();
    unsigned arrived = 0;
    {
        const ReadPin pin(poll_pin_);
        arrived = ops_.poll(*this);
    }
    if (!behind_poll_.empty()) [[unlikely]] {
        run_send_queues();
    }
    // relaxed: set by this thread, or another's to send.
    if (has_refusals_.load(std::memory_order_relaxed)) [[unlikely]] {
        send_refusals();
    }
    const bool answers_are_due = answers_are_due_locked();
    progress_lock_.unlock();
    if (answers_are_due) {
        flush();
    }
    if (arrived != 0) {
        ack_hold_.note_turn([this] { return now_us(); });
    }
    return arrived;
}

RVT_ALWAYS_INLINE unsigned Device::progress(std::uint64_t& now) noexcept {
    const unsigned arrived = take_in(now);
    // relaxed: a queue that begins to wait right now is seen at the next call.
    if (now >= earliest_due_us_.load(std::memory_order_relaxed)) [[unlikely]] {
        resume_due(now);
    }
    return arrived;
}

}  // namespace rvt::core
