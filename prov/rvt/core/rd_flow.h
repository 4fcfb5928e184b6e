// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The RD service's way to one peer over a wire: a reliable connected pair whose SENDs are frames of
// records (core/rd_record.h). core/rd_flows.h makes and ends flows.
//
// Sending:   the owner of the endpoint puts records. A frame leaves at once while none before
//            it is under way; else it may be held (core/send_hold.h), and takes further records
//            until it is full.
// Receiving: packets arrive on the thread that polls the device. Where that is the owner, records
//            go straight on to it; what another thread takes in waits for the owner.
// Leaving:   an end that needs the room of an idle flow asks for its end (kLeave) and closes it
//            when the peer agrees. Either side says in the flow that it has nothing under way, so
//            that whatever it has sent before is received, and nothing comes after.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "core/device_memory.h"
#include "core/message_sink.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/rd_frame_ring.h"
#include "core/rd_loan.h"
#include "core/rd_open_frame.h"
#include "core/rd_record.h"
#include "protocol/psn.h"
#include "rvt/types.h"
#include "util/annotations.h"
#include "util/lock.h"

namespace rvt::core {

class Device;
class RdFlow;
class RdFlows;
class RdNic;

/// What the ends of a flow tell each other when they connect.
struct RdFlowPeer {
    std::uint64_t incarnation = 0;
    bool has_user_keys = false;
    bool wants_rma_events = false;
    bool can_rdma = false;  // its NIC does READs and WRITEs, and answers them
};

/// Who takes what arrives. Threads: the owner.
class RdFlowUser {
  public:
    /// A message of the peer that was named by RdFlow::start().
    virtual void take_message(void* peer, const RdMessage& message) noexcept = 0;
    /// The same of kEager, which most messages are: all there is to say goes in registers.
    /// @param payload  Of head.length() bytes.
    virtual void take_eager(void* peer, RdEagerHead head, std::uint64_t tag, std::uint64_t data,
                            const std::byte* payload) noexcept = 0;
    /// What the peer sent makes no sense.
    virtual void take_malformed(void* peer) noexcept = 0;
    /// Whether nothing is under way with this peer, in either direction, so that nobody would miss
    /// the flow. It must not call RdFlows or a flow.
    virtual bool is_idle(void* peer) noexcept = 0;
    /// What RdFlow::fetch() or write() was asked for under that name comes to nothing: the flow has
    /// failed, or is closed. The NIC is not at its memory any more. Only of who asks for it.
    /// @param status  kPeerDead; kRemAccessErr where the peer's NIC refused it.
    virtual void rdma_ended([[maybe_unused]] std::uint64_t name,
                            [[maybe_unused]] WcStatus status) noexcept {}

  protected:
    ~RdFlowUser() = default;
};

/// Threads: the owner of the endpoint, where a member does not say otherwise.
class RdFlow final : public MessageSink {
  public:
    /// For whom there is room: replies have some of their own, which other messages cannot use up.
    enum class Room : std::uint8_t { kAny, kReply };

    RdFlow(RdFlows& flows, std::uint64_t id, const Address& peer) noexcept;
    ~RdFlow();
    RdFlow(const RdFlow&) = delete;
    RdFlow& operator=(const RdFlow&) = delete;

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] const Address& address() const noexcept { return address_; }
    [[nodiscard]] const RdFlowPeer& peer() const noexcept { return peer_; }
    /// Whether a NIC carries it; else packets do.
    [[nodiscard]] bool is_over_nic() const noexcept { return nic_ != nullptr; }
    /// By which one; nullptr: by none.
    [[nodiscard]] const Device* nic() const noexcept;
    /// Of the peer's port, where NICs reach each other over InfiniBand; else 0.
    [[nodiscard]] std::uint16_t peer_lid() const noexcept;
    /// Of a full packet.
    [[nodiscard]] std::uint32_t payload_bytes() const noexcept { return payload_bytes_; }

    /// Begins to hand messages to the user, for `peer`; first those that have waited.
    void start(void* peer) noexcept { user_peer_ = peer; }
    /// That one; nullptr: not begun.
    [[nodiscard]] void* user_peer() const noexcept { return user_peer_; }

    /// Ends the flow; see RdFlows::close().
    void close() noexcept;

    /// Sends a message without a run. Returns: false when there is no room.
    bool put(const RdMessage& message, Room room) noexcept;
    /// The same of kEager, unless the peer has asked for headers only: returns false then, too.
    bool put_eager(std::uint8_t flags, std::uint64_t tag, std::uint64_t data, const void* payload,
                   std::size_t bytes) noexcept;
    /// Sends a message whose run stays where it is: it is read until has_let_go(frames()), or until
    /// close(). Returns: false when there is no room.
    /// @param has_more  Another one follows at once.
    bool put_borrowed(const RdMessage& message, const iovec& run, bool has_more) noexcept;
    /// Whether NICs at both ends read and write memory of the application's.
    [[nodiscard]] bool can_rdma() const noexcept;
    /// Registers memory that the peer's NIC may read until the loan ends. Returns: nothing where it
    /// cannot be registered to stay so.
    RdLoan lend(const iovec& memory) noexcept;
    /// The same of memory of a device.
    RdLoan lend(const BufferUse::NicPlace& place) noexcept;
    /// Lets the NIC read the peer's memory at `address` into `to`, which is the NIC's until the
    /// user is told of that name: by a message kRdmaDone, or by rdma_ended(), which may be after
    /// close(). Returns: false when `to` cannot be registered to stay so, or is too long.
    bool fetch(const iovec& to, std::uint64_t address, std::uint64_t key,
               std::uint64_t name) noexcept;
    /// The same into memory of a device.
    bool fetch(const BufferUse::NicPlace& to, std::uint64_t bytes, std::uint64_t address,
               std::uint64_t key, std::uint64_t name) noexcept;
    /// The same in the other direction. What is put later arrives later.
    /// Returns: EAGAIN while as many are under way as can be; EOPNOTSUPP when `from` cannot be
    /// registered to stay so, or is too long.
    util::Status write(const iovec& from, std::uint64_t address, std::uint64_t key,
                       std::uint64_t name) noexcept;
    /// The same from memory of a device.
    util::Status write(const BufferUse::NicPlace& from, std::uint64_t bytes, std::uint64_t address,
                       std::uint64_t key, std::uint64_t name) noexcept;
    /// Lets the peer's NIC reach a region, see RdNic::expose(). Returns: its R_Key, or ENOMEM.
    util::Result<std::uint32_t> expose(std::uint32_t key, const iovec& memory, Access rights,
                                       DeviceMemory* device) noexcept;
    /// How many frames have been put.
    [[nodiscard]] std::uint64_t frames() noexcept;
    /// Whether the peer has the first `frames`, so that they are not sent again.
    [[nodiscard]] bool has_let_go(std::uint64_t frames) const noexcept;
    /// Room for a run of `bytes`, and for its record; nullptr: not now. Nothing is used until
    /// put_run().
    /// @param payload_bytes  Of the record.
    std::byte* reserve_run(std::size_t bytes, std::size_t payload_bytes) noexcept;
    /// Sends a run that has been written there, or the first part of the room.
    void put_run(const RdMessage& message, std::size_t run_bytes) noexcept;
    /// Longest run that counts as one message at the other end as well as in parts.
    [[nodiscard]] std::size_t max_run() const noexcept { return max_run_; }
    /// Longest part of a run, of which so many bytes are left, that the next frame has room for.
    /// Where more frames follow behind a pause, half of one: the peer takes it in while the next
    /// one leaves.
    [[nodiscard]] std::size_t next_run(std::uint64_t left) noexcept;
    /// Whether the peer has everything that was put.
    [[nodiscard]] bool is_drained() noexcept;
    /// Whether one end has asked to close the flow, and neither has said that it stays.
    [[nodiscard]] bool is_leaving() noexcept;

    /// Tells the peer to send headers only, or again everything.
    void hold_eager(bool hold) noexcept;
    /// Whether the peer has asked for headers only.
    [[nodiscard]] bool must_hold_eager() const noexcept { return is_held_; }

    /// The NIC has sent the first `frames`, and the peer has them. Threads: the one that polls.
    void note_sent(std::uint64_t frames) noexcept {
        // release: pairs with the acquire in completed().
        sent_.store(frames, std::memory_order_release);
    }
    /// It has read or written what it was asked for. Returns: false when it does not take what
    /// comes next.
    /// Threads: as above.
    bool note_rdma_done(std::uint64_t name) noexcept;

    // ---- MessageSink ----

    [[nodiscard]] bool has_room() noexcept override;
    [[nodiscard]] bool will_tell() const noexcept override {
        // relaxed: set by the poll that is under way, which asks.
        return will_tell_.load(std::memory_order_relaxed);
    }
    /// The same without the call.
    [[nodiscard]] bool can_take() const noexcept {
        return parts_.empty() || has_room_for_waiting();
    }
    void take(std::span<const std::byte> part, bool starts, bool ends) noexcept override;
    /// The same of a whole one, from a NIC.
    void take_frame(std::span<const std::byte> frame) noexcept;

  private:
    friend class RdFlows;

    /// A packet's part of a frame that waits for the owner.
    struct Part {
        std::vector<std::byte> bytes;
        bool starts;
        bool ends;
        bool is_rdma_done = false;  // no part, but the word that `rdma` is done
        std::uint64_t rdma = 0;
    };

    /// What the NIC is to read or write.
    struct Rdma {
        WrOpcode opcode;
        std::uint32_t index;  // at the NIC
        Sge local;
        std::uint64_t address;
        std::uint32_t key;
    };

    /// A run of which a part has arrived.
    struct Incoming {
        std::uint32_t left = 0;  // bytes to come
        RdOp more = RdOp::kInvalid;
        std::uint8_t last_flags = 0;  // of its last part
        std::uint64_t data = 0;
        // Of a run that counts as a whole: what has come of it, and its record.
        std::vector<std::byte> whole{};
        std::vector<std::byte> payload{};
        RdMessage message{};
    };

    /// How far the ends have got with closing the flow.
    enum class Leave : std::uint8_t {
        kNo,
        kAsked,   // by this end, which takes it back with the next message that it sends
        kAgreed,  // both: nothing is sent, until the asker closes the flow or stays
    };

    // What other messages leave free for replies.
    static constexpr std::size_t kReplyBytes = 32u << 10;
    static constexpr std::uint32_t kReplyFrames = 16;
    // Parts of one message that is lent, but for the last: behind more there is another message.
    static constexpr std::uint64_t kMostFramesOfOne = 4;
    // Of an open frame the part that is worth dividing a run for.
    static constexpr std::size_t kLeastShare = 4;

    // Over a NIC a completion is asked for behind so many frames, or bytes. Both are well within
    // what the ring leaves to all messages, so that who waits for room waits for a completion.
    static constexpr std::uint32_t kMostUnsignaled = 16;
    static constexpr std::size_t kMostUnsignaledBytes = 32u << 10;
    static constexpr std::uint32_t kMostInlineBytes =
        256;  // of a frame that is posted from the stack

    void set_packet(std::uint32_t payload_bytes) noexcept;
    /// What is held is not sent any more, nor read where the application has it.
    void drop_open() noexcept;

    // ---- sending ----
    std::byte* place_locked(const RdOpenFrame::Extent& next, Room room) noexcept
        RVT_REQUIRES(lock_);
    std::byte* place_anew_locked(const RdOpenFrame::Extent& next, Room room) noexcept
        RVT_REQUIRES(lock_);
    bool lose_pair_locked() noexcept RVT_REQUIRES(lock_);
    bool post_locked(SendFlags flags = SendFlags::kNone) noexcept RVT_REQUIRES(lock_);
    bool leave_with_poll_locked(std::size_t bytes) noexcept RVT_REQUIRES(lock_);
    void send_or_hold_locked(std::size_t bytes, std::uint64_t frames) noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] bool may_put_inline_locked(std::size_t bytes) noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] bool has_frames_left_locked() noexcept RVT_REQUIRES(lock_);
    void put_inline_locked(std::span<const std::byte> record) noexcept RVT_REQUIRES(lock_);
    void put_taken_locked() noexcept RVT_REQUIRES(lock_);
    void say_taken_locked(protocol::Psn psn) noexcept RVT_REQUIRES(lock_);
    bool post_frame_locked(std::span<const Sge> parts, SendFlags flags,
                           bool wants_completion) noexcept RVT_REQUIRES(lock_);
    bool post_to_nic_locked(std::span<const Sge> parts) noexcept RVT_REQUIRES(lock_);
    bool post_packets_locked(std::span<const Sge> parts, SendFlags flags) noexcept
        RVT_REQUIRES(lock_);
    [[gnu::noinline]] bool post_timed_locked() noexcept RVT_REQUIRES(lock_);
    void post_empty_locked() noexcept RVT_REQUIRES(lock_);
    void ask_for_completion_locked() noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] bool may_leave_alone_locked(std::uint64_t frames) noexcept RVT_REQUIRES(lock_);
    [[nodiscard]] static bool has_followers(const RdMessage& message) noexcept;
    void reclaim_locked() noexcept RVT_REQUIRES(lock_);
    void free_sent_locked() noexcept RVT_REQUIRES(lock_);
    void note_packet() noexcept {
        // relaxed: here and below, see packets_; one thread at a time writes it.
        packets_.store(packets() + 1, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t packets() const noexcept {
        return packets_.load(std::memory_order_relaxed);  // relaxed: s.a.
    }
    [[nodiscard]] bool has_heard() const noexcept {
        return heard_.load(std::memory_order_relaxed) != 0;  // relaxed: settle() looks again
    }
    /// Heeds an acknowledgement that the peer has put into a frame. Returns: whether there was one.
    /// Threads: any.
    bool settle() noexcept;
    void flush_locked() noexcept RVT_REQUIRES(lock_);
    void note_open_locked() noexcept RVT_REQUIRES(lock_);
    void tell_hold_locked() noexcept RVT_REQUIRES(lock_);
    bool put_now(const RdMessage& message, Room room) noexcept;
    bool put_locked(const RdMessage& message, Room room) noexcept RVT_REQUIRES(lock_);
    bool write_record_locked(const RdMessage& message, std::size_t bytes, Room room) noexcept
        RVT_REQUIRES(lock_);

    // ---- leaving, in rd_flow_leave.cc ----
    [[nodiscard]] bool may_put_locked() noexcept RVT_REQUIRES(lock_) {
        return leave_ == Leave::kNo || take_back_locked();
    }
    [[gnu::cold]] bool take_back_locked() noexcept RVT_REQUIRES(lock_);
    void tell_stay_locked() noexcept RVT_REQUIRES(lock_);
    bool ask_to_leave() noexcept;
    bool end_leaving() noexcept;
    void take_word(const RdMessage& message) noexcept;
    void on_leave(std::uint64_t question) noexcept;
    void on_may_leave(std::uint64_t question) noexcept;
    void on_stay(std::uint64_t question, bool is_answer) noexcept;
    /// When it was last in use, as far as the polls of that time knew. In rd_flows.h.
    void note_use() noexcept;

    /// Sees to it that life_signs() grows if the peer is there; the pair fails if it is not.
    void ask_for_life() noexcept;
    /// Grows with each frame that the peer has taken, and each packet of its own. Threads: the one
    /// that polls.
    [[nodiscard]] std::uint64_t life_signs() const noexcept;
    void flush() noexcept;      // Threads: any
    bool try_flush() noexcept;  // Threads: any
    /// Gives back what the ring does not need, if nothing was sent since the last call. Returns:
    /// whether it has no more than it keeps. Threads: any.
    bool trim() noexcept;
    /// How many frames the peer has.
    [[nodiscard]] std::uint64_t completed() const noexcept;

    // ---- READs and WRITEs, over a NIC, in rd_flow_rdma.cc ----
    bool post_read(std::uint32_t index, const Sge& local, std::uint64_t address,
                   std::uint64_t key) noexcept;
    bool is_rdma_full() noexcept;
    util::Status post_write(std::uint32_t index, const Sge& local, std::uint64_t address,
                            std::uint64_t key) noexcept;
    bool post_rdma_locked(const Rdma& rdma) noexcept RVT_REQUIRES(lock_);
    void hand_over_rdma(std::uint64_t name) noexcept;
    /// The flow ends: what has not been posted never is, what waits for the owner is not told of.
    void drop_reads() noexcept;

    // ---- receiving, in rd_flow_receive.cc ----
    [[nodiscard]] bool has_room_for_waiting() const noexcept;
    [[nodiscard]] std::size_t heed_taken(std::span<const std::byte> frame) noexcept;
    [[nodiscard]] bool may_hand_over() const noexcept;
    void keep_part(std::span<const std::byte> part, bool starts, bool ends) noexcept;

    // ---- receiving, on the owner's thread ----
    bool drain() noexcept;
    [[nodiscard]] bool has_waiting() const noexcept { return !parts_.empty(); }
    void handle(std::span<const std::byte> part, bool starts, bool ends) noexcept;
    bool handle_records(std::span<const std::byte> bytes) noexcept;
    [[gnu::noinline]] void begin_run(const RdMessage& message, std::uint32_t run_bytes) noexcept;
    [[gnu::noinline]] void go_on_with_run(std::span<const std::byte> part) noexcept;
    void hand_over(const RdMessage& message) noexcept;
    void hand_over_eager(const DecodedEager& eager) noexcept;

    RdFlows& flows_;
    const std::uint64_t id_;
    const Address address_;
    RdFlowPeer peer_;
    RdNic* nic_ = nullptr;  // which carries it; set before the pair is made
    Owned<Qp> qp_;          // made before the flow opens
    // Set when the flow opens.
    std::uint32_t payload_bytes_ = 1024;
    std::size_t max_run_ = 0;
    std::size_t inline_bytes_ = 0;  // over a NIC: of a frame that is copied as it is posted

    // The owner puts, and who polls in its stead sends what it left.
    util::SpinLock lock_;  // order: before the locks of the pair
    RdFrameRing ring_ RVT_GUARDED_BY(lock_);
    // What all frames have in common; to make it anew for each would cost as much as to send it.
    SendWr send_ RVT_GUARDED_BY(lock_);
    Owned<Mr> ring_region_;                               // over a NIC
    std::atomic<std::uint64_t> sent_{0};                  // over a NIC: frames that the peer has
    std::uint32_t unsignaled_ RVT_GUARDED_BY(lock_) = 0;  // frames since a completion was asked for
    std::size_t unsignaled_bytes_ RVT_GUARDED_BY(lock_) = 0;  // of these in the ring
    std::uint32_t posted_at_ RVT_GUARDED_BY(lock_) = ~0u;  // the last frame; see RdFlows::polls()
    std::uint64_t packets_before_ RVT_GUARDED_BY(lock_) = 0;  // had come by the last message
    std::deque<Rdma> reads_ RVT_GUARDED_BY(lock_);            // wait for those before them
    std::uint32_t rdmas_ RVT_GUARDED_BY(lock_) = 0;           // posted
    RdOpenFrame frame_ RVT_GUARDED_BY(lock_){ring_};
    std::byte* taken_ RVT_GUARDED_BY(lock_) = nullptr;       // the record of frame_, or none
    bool is_awaited_ RVT_GUARDED_BY(lock_) = false;          // the acknowledgement of frame_
    bool is_noted_open_ RVT_GUARDED_BY(lock_) = false;       // in the list of RdFlows
    std::atomic<bool> will_tell_{false};                     // written under lock_
    std::byte* reserved_ RVT_GUARDED_BY(lock_) = nullptr;    // a run
    std::uint64_t frames_before_ RVT_GUARDED_BY(lock_) = 0;  // as of the last trim()
    bool wants_hold_ RVT_GUARDED_BY(lock_) = false;
    bool told_hold_ RVT_GUARDED_BY(lock_) = false;
    Leave leave_ RVT_GUARDED_BY(lock_) = Leave::kNo;
    bool owes_stay_ RVT_GUARDED_BY(lock_) = false;       // of our question `staying_`
    std::uint64_t questions_ RVT_GUARDED_BY(lock_) = 0;  // asked by this end
    std::uint64_t staying_ RVT_GUARDED_BY(lock_) = 0;
    std::uint64_t agreed_ RVT_GUARDED_BY(lock_) = 0;  // the peer's question; 0: it was ours
    std::atomic<std::uint64_t> used_us_;

    // Of who polls: RdFlows lets one thread do it at a time. The first three are the owner's.
    void* user_peer_ = nullptr;
    bool is_held_ = false;
    bool is_closed_ = false;  // by the owner: nothing is handed over any more
    bool is_broken_ = false;
    bool has_left_ = false;  // ended while it was being left: nobody misses anything
    Incoming incoming_;

    // Of the peer, that have come. relaxed: a number; who posts may miss the newest.
    std::atomic<std::uint64_t> packets_{0};
    std::deque<Part> parts_;         // wait for the owner
    std::size_t kept_of_frame_ = 0;  // of the newest frame among them
    bool is_endless_ = false;        // it is, and the flow is about to be found broken

    // What a frame has acknowledged that settle() has not heeded yet: 0, or with wire::kPsn.
    std::atomic<std::uint64_t> heard_{0};
    std::atomic<std::uint64_t> heard_us_{0};  // when; by the device's clock
};

}  // namespace rvt::core
