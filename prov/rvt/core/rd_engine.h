// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The RD service over one host path: sends, receives, one-sided access and atomics between one
// endpoint and its peers.
//
// A template over the lock policy (util/lock.h) and the same-host backend, so that the path of a
// small message from fi_tsend(3) to the ring is straight code. Members are in files by concern:
//   rd_send.inl        messages out        rd_receive.inl     messages in
//   rd_transfer.inl    large messages      rd_posted.inl      receives that are posted
//   rd_progress.inl    progress, waiting
//   rd_access.inl      one-sided access and atomics
//   rd_accessed.inl    the same at the target
//   rd_direct.inl      access that the initiator copies by itself
//   rd_share.inl       access that both copy
//   rd_device.inl      memory of devices that peers of this host open
//   rd_connect.inl     peers that come, life cycle
//   rd_lost.inl        peers that are lost or have left
//
// Host is the backend's policy:
//   Host::Path     the way to one peer
//   Host::Station  the endpoint's presence on this host
//   Host::Event    word of the control thread
//   Host::User     what the control thread calls
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/address_vector.h"
#include "core/addresses.h"
#include "core/atomic_ops.h"
#include "core/counter.h"
#include "core/cq.h"
#include "core/device_memory.h"
#include "core/key_table.h"
#include "core/match_posted_queue.h"
#include "core/match_unexpected_queue.h"
#include "core/peer_device.h"
#include "core/rd_capture.h"
#include "core/rd_copy_batch.h"
#include "core/rd_endpoint.h"
#include "core/rd_method.h"
#include "core/rd_peer.h"
#include "core/rd_record.h"
#include "core/rd_records.h"
#include "core/rd_region.h"
#include "core/rd_tuning.h"
#include "core/rd_types.h"
#include "core/rd_wire.h"
#include "core/reader_pins.h"
#include "util/iov_cursor.h"
#include "util/lock.h"
#include "util/pool.h"
#include "util/spare_blocks.h"

namespace rvt::core {

template <class LockPolicy, class HostPolicy>
class RdEngine final : public RdEndpoint, private HostPolicy::User {
  public:
    using Lock = LockPolicy;
    using Host = HostPolicy;
    using Path = typename Host::Path;
    using Peer = RdPeer<Host>;
    using Status = util::Status;

    /// @param lock  The domain's; outlives the engine.
    /// @param keys  The domain's key table and the memory file it lies in; both outlive the engine.
    /// @param capture  Of what arrives from peers of this host; may be nullptr.
    RdEngine(Lock& lock, const RdAttr& attr, const RdTuning& tuning, const RdKeys& keys,
             std::shared_ptr<protocol::PcapWriter> capture = nullptr);
    ~RdEngine() override;
    RdEngine(const RdEngine&) = delete;
    RdEngine& operator=(const RdEngine&) = delete;

    // ---- data path: messages ----

    /// Sends one buffer. kFixed holds the flags that the caller knows when it is compiled.
    /// Returns: EAGAIN (progress helps), EINVAL (no such peer), EMSGSIZE (inject too large),
    /// ENOMEM.
    template <RdFlags kFixed>
    Status send_one(const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag,
                    std::uint64_t data, void* context, RdFlags flags) noexcept;
    /// Posts one receive buffer. Returns: EAGAIN when no more can be posted.
    template <RdFlags kFixed>
    Status recv_one(void* buf, std::size_t len, std::uint64_t source, std::uint64_t tag,
                    std::uint64_t ignore, void* context, RdFlags flags) noexcept;
    Status send(const RdSend& request) noexcept override;
    Status recv(const RdRecv& request) noexcept override;

    // ---- data path: one-sided ----

    /// Returns: EAGAIN, EINVAL, EMSGSIZE, ENOMEM as send(); a refusal by the target comes as a
    /// completion.
    Status rma(const RdRma& request) noexcept override;
    Status atomic(const RdAtomic& request) noexcept override;
    void send_waiting_locked() noexcept override;
    bool has_unsent_locked() const noexcept override;

    // ---- RdEndpoint ----

    void bind(const RdCompletion& completion, AddressVector* av) noexcept override;
    Status bind_address(const util::SockAddr& address) override;
    Status enable() override;
    std::array<Device*, 2> watch_wire() override { return station_.watch_wire(); }
    util::SockAddr address() const noexcept override { return station_.address(); }
    Status cancel(void* context) noexcept override;
    void set_min_multi_recv(std::size_t bytes) noexcept override { min_multi_recv_ = bytes; }
    std::size_t min_multi_recv() const noexcept override { return min_multi_recv_; }
    void forbid_p2p() noexcept override { keys_.has_p2p = false; }
    void remind_peers_locked() noexcept override;
    /// Whether that looks at the peers. For tests.
    [[nodiscard]] bool may_remind_locked() const noexcept { return has_accessed_; }
    Status arm_locked() noexcept override;
    void disarm_locked() noexcept override { station_.disarm(); }
    int wake_fd() const noexcept override { return station_.wake_fd(); }
    std::string describe_peer(std::uint64_t dest) override;
    bool uses_key(std::uint32_t key) noexcept override;
    Status end_copies(int timeout_ms) noexcept override;
    void withdraw_key(std::uint32_t key) noexcept override;
    void address_inserted(std::uint64_t index, const util::SockAddr& address) noexcept override;
    void address_removed(std::uint64_t index, const util::SockAddr& address) noexcept override;

  private:
    using Arrival = typename Path::Arrival;
    using LineArrival = typename Path::LineArrival;
    using Event = typename Host::Event;
    using RegionEntry = typename RdRegionBook<typename Host::Region>::Entry;

    /// A peer that is looked at, and what the look needs: of most peers it is all that a look
    /// touches.
    struct Polled {
        decltype(std::declval<Path>().look()) look;
        Peer* peer = nullptr;
    };

    /// One that may copy to or from our memory by itself, and what it takes to ask whether it does.
    struct Copier {
        decltype(std::declval<Path>().use_look()) use;
        const Peer* peer = nullptr;
    };

    /// Flags that keep a message off the straight path.
    static constexpr RdFlags kSlowSend =
        RdFlags::kDeliveryComplete | RdFlags::kMatchComplete | RdFlags::kFence | RdFlags::kHasUse;
    static constexpr RdFlags kSlowRecv =
        RdFlags::kPeek | RdFlags::kClaim | RdFlags::kDiscard | RdFlags::kMultiRecv;
    static constexpr unsigned kPollBudget = 64;
    // Parts that a message or an access is cut into, so that both sides copy at once: the first,
    // after which the receiver starts, and the longest.
    static constexpr std::uint64_t kFirstPiece = 16 * 1024;
    static constexpr std::uint64_t kLastPiece = 32 * 1024;
    // Of what is longer, a head gains too little. After one that the receiver had no use for, so
    // many headers go without.
    static constexpr std::uint64_t kMostWithHead = 1u << 20;
    static constexpr std::uint32_t kUntilHead = 16;
    // Of a buffer: what a packet brings. Runs through shared memory are longer, and need none.
    static constexpr std::size_t kMostExpected = 2 * 1024;
    static constexpr std::uint64_t kMinSplit = 32 * 1024;
    static constexpr std::uint64_t kMinShared = 64 * 1024;  // smaller accesses have one copier
    static constexpr std::uint64_t kMaxShare = 512 * 1024;  // of an access, at once
    // Of messages from this size on, parts are as large as the path has room for at the time.
    static constexpr std::uint64_t kWorthCutting = 16 * 1024;
    static constexpr std::uint64_t kSmallShare = 64 * 1024;  // up to it, several at once
    static constexpr std::uint64_t kBulk = 16 * 1024;  // what is larger is worth the large rings
    // Of messages from this size on, memory of the sender's device is opened for the first of them.
    // An estimate of what takes longer through host memory than it takes a library to open.
    static constexpr std::uint64_t kWorthOpening = 1u << 20;
    // Copied between devices, or between a device and the host, before others get their turn.
    static constexpr std::uint64_t kDeviceChunk = 256u << 20;
    static constexpr std::uint64_t kDeviceHostChunk = 4u << 20;
    // Larger accesses by NICs wait for the key of a region that is new. An estimate of what takes
    // longer to be copied at both ends than a NIC takes to register and to tell.
    static constexpr std::uint64_t kWorthAwaiting = 256 * 1024;
    static constexpr std::size_t kMostNicKeys = 4096;  // of a peer; then they are asked for anew
    // In the name of what a NIC does for an access, beside that of its record.
    static constexpr std::uint64_t kOfAccess = 1u << 31;
    // An idle look at one costs a nanosecond; of what any other sends, some waits until its turn
    // comes, and each that becomes hot changes places with one that is.
    static constexpr std::size_t kHotPeers = 16;
    static constexpr std::size_t kColdLooks = 4;
    static constexpr std::size_t kColdLooksIdle = 16;
    static constexpr std::size_t kColdLooksInRow = 4;  // with one at who has sent last before
    // In all calls but one of so many, what that one has sent is handed over at once; in that one,
    // the others are looked at, whatever it sends meanwhile.
    static constexpr std::uint32_t kHitsInRow = 8;
    static constexpr unsigned kControlRounds = 1000;
    static constexpr unsigned kLastLooks = 64;  // of kPollBudget lines each: more than all rings
    static constexpr std::size_t kMaxPosted = std::size_t{1} << 22;
    // What bounds them is the memory that unexpected messages may take, and how many headers a peer
    // sends beyond: senders hold back for these, and not for a number.
    static constexpr std::size_t kMaxInbound = std::size_t{1} << 30;
    static_assert(kMaxInbound < kOfAccess);
    static constexpr std::uint64_t kMaxEagerTotal =
        64u << 20;  // no peer may make us keep more for one message

    // ---- rd_send.inl
    enum class Sent : std::uint8_t { kNo, kYes, kToSleeper };
    template <RdFlags kFixed>
    Sent send_simple(const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag,
                     std::uint64_t data, void* context, RdFlags flags) noexcept;
    Status wake_peer(std::uint64_t dest) noexcept;
    template <RdFlags kFixed>
    Status send_late(const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag,
                     std::uint64_t data, void* context, RdFlags flags) noexcept;
    template <RdFlags kFixed>
    Status send_any(const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag,
                    std::uint64_t data, void* context, RdFlags flags) noexcept RVT_RELEASE(lock_);
    template <RdFlags kFixed>
    Status send_any_locked(const void* buf, std::size_t len, std::uint64_t dest, std::uint64_t tag,
                           std::uint64_t data, void* context, RdFlags flags) noexcept
        RVT_REQUIRES(lock_);
    util::Pool<RdTxOp>& pool_of(RdTxOp::Kind kind) noexcept {
        return kind == RdTxOp::Kind::kMessage ? tx_messages_ : tx_accesses_;
    }
    static std::uint8_t wire_flags(RdFlags flags) noexcept;
    static std::uint64_t send_wc_flags(RdFlags flags) noexcept;
    Status send_slow(const RdSend& request) noexcept;
    Status try_send_now(Peer& peer, const RdSend& request, std::uint64_t total) noexcept;
    Status send_lines(Peer& peer, const RdSend& request, std::uint64_t total) noexcept;
    bool send_run(Peer& peer, const RdSend& request, std::uint64_t total) noexcept;
    RVT_ALWAYS_INLINE void expect_run(Peer& peer) noexcept;
    RdTxOp* take_tx(Peer& peer, RdTxOp::Kind kind, void* context, RdFlags flags) noexcept;
    Status fill_message(RdTxOp& op, const RdSend& request, std::uint64_t total) noexcept;
    bool start_message(Peer& peer, RdTxOp& op) noexcept;
    bool stream_eager(Peer& peer, RdTxOp& op) noexcept;
    bool waits_for_match(Peer& peer, RdTxOp& op) noexcept;
    bool lend(Peer& peer, RdTxOp& op) noexcept;
    bool send_rendezvous(Peer& peer, RdTxOp& op) noexcept;
    std::byte* room_for_head(Peer& peer, const RdTxOp& op) noexcept;
    /// Larger messages stay with the sender until they are matched.
    std::size_t eager_max(const Path& path) const noexcept {
        return path.is_remote() ? tuning_.wire_eager_max : tuning_.eager_max;
    }
    std::size_t eager_piece(std::uint64_t total, std::uint64_t done, Path& path) const noexcept;
    std::size_t bulk_piece(Path& path, std::uint64_t done, std::uint64_t end,
                           bool has_others) const noexcept;
    void run_queues(Peer& peer) noexcept;
    bool must_stay(Peer& peer, const RdTxOp& op) noexcept;
    bool must_read_later(Peer& peer, const RdTxOp& op) noexcept;
    void leave_queue(Peer& peer, const RdTxOp& op) noexcept;
    void fence_gone(Peer& peer) noexcept;
    void submit(Peer& peer, RdTxOp& op) noexcept;
    bool run_op(Peer& peer, RdTxOp& op) noexcept;
    void sent(Peer& peer, RdTxOp& op, bool is_answer_due) noexcept;
    bool put_part(Peer& peer, RdTxOp& op, util::IovCursor& from, std::size_t bytes,
                  const RdPart& part) noexcept;
    void finish_answered(Peer& peer, RdTxOp& op, WcStatus status) noexcept;
    void finish_unless_lent(Peer& peer, RdTxOp& op, RdTxOp::State state) noexcept;
    bool finish_let_go(Peer& peer) noexcept;
    void finish_tx(RdTxOp& op, WcStatus status) noexcept;
    void give_back(RdTxOp& op) noexcept;
    WcStatus end_use(RdTxOp& op, WcStatus status) noexcept;
    void complete_tx(void* context, RdFlags flags, std::uint64_t wc_flags,
                     WcStatus status) noexcept;
    Counter* tx_counter(std::uint64_t wc_flags) const noexcept;

    // ---- rd_posted.inl
    RdRxEntry* take_simple(void* buf, std::size_t len, std::uint64_t source, std::uint64_t tag,
                           void* context, RdFlags flags) noexcept;
    template <RdFlags kFixed>
    bool post_simple(void* buf, std::size_t len, std::uint64_t source, std::uint64_t tag,
                     std::uint64_t ignore, void* context, RdFlags flags) noexcept;
    template <RdFlags kFixed>
    Status recv_any(void* buf, std::size_t len, std::uint64_t source, std::uint64_t tag,
                    std::uint64_t ignore, void* context, RdFlags flags) noexcept;
    RdInbound* match_unexpected(const RdRecv& request, std::uint32_t source, bool take) noexcept;
    Status post_receive(const RdRecv& request) noexcept;
    Status queue_receive(RdRxEntry& entry, std::uint64_t ignore) noexcept;
    template <bool kTagged>
    bool has_unexpected() const noexcept;
    bool matches_late() const noexcept;
    Status match_later(RdRxEntry& entry, std::uint64_t ignore) noexcept;
    void ask_for_message(const RdLateReceive& late) noexcept;
    void match_late() noexcept;
    Status ask(const RdRecv& request) noexcept;
    Status receive_claimed(const RdRecv& request) noexcept;
    Status fill_entry(RdRxEntry& entry, const RdRecv& request) noexcept;
    Status use_multi_recv(RdRxEntry& entry) noexcept;
    void report_peek(const RdRecv& request, const RdInbound* inbound) noexcept;
    util::Result<std::uint32_t> source_id(std::uint64_t source) noexcept;

    // ---- rd_receive.inl
    bool handle(Peer& peer, const Arrival& arrival) noexcept;
    template <class Message>
    bool on_eager(Peer& peer, const Message& message) noexcept;
    template <class Message>
    static RdMessage message_of(const Message& message) noexcept;
    template <class Message>
    bool on_eager_slow(Peer& peer, const Message& message, RdRxEntry* entry) noexcept;
    bool on_eager_first(Peer& peer, const Arrival& arrival) noexcept;
    bool on_eager_more(Peer& peer, const Arrival& arrival) noexcept;
    bool on_rendezvous(Peer& peer, const Arrival& arrival) noexcept;
    bool on_head(Peer& peer, const Arrival& arrival) noexcept;
    void look_ahead(Peer& peer) noexcept;
    RdRxEntry* match_posted(std::uint8_t wire, std::uint64_t tag, Peer& peer) noexcept;
    static bool is_simple(const RdRxEntry& entry, std::size_t len) noexcept;
    static std::uint64_t recv_wc_flags(std::uint8_t wire) noexcept;
    void report_whole(const RdPeerBase& peer, std::uint8_t wire, std::uint64_t length,
                      std::uint64_t data, std::uint64_t tag, const RdRxEntry& entry) noexcept;
    void complete_simple(const RdPeerBase& peer, std::uint8_t wire, std::uint64_t length,
                         std::uint64_t data, std::uint64_t tag, RdRxEntry& entry) noexcept;
    /// Whether a multi-receive buffer of which so much is left takes no message any more.
    bool is_used_up(std::size_t left) const noexcept {
        return left < std::max<std::size_t>(min_multi_recv_, 1);
    }
    bool is_simple_part(const RdRxEntry& entry, std::size_t len) const noexcept;
    void complete_part(const RdPeerBase& peer, std::uint8_t wire, std::uint64_t length,
                       std::uint64_t data, std::uint64_t tag, RdRxEntry& entry) noexcept;
    template <class Message>
    RdInbound* take_inbound(Peer& peer, const Message& message, std::uint64_t total,
                            RdRxEntry* entry) noexcept;
    void give_back(RdInbound& inbound) noexcept;
    bool keep_unexpected(Peer& peer, RdInbound& inbound) noexcept;
    void attach(RdInbound& inbound, RdRxEntry& entry) noexcept;
    void receive_unexpected(RdInbound& inbound, RdRxEntry& entry) noexcept;
    void receive_small(RdInbound& inbound, RdRxEntry& entry) noexcept;
    [[nodiscard]] static util::IovCursor rest_of(const RdInbound& inbound) noexcept;
    void place(RdInbound& inbound, const std::byte* from, std::size_t count) noexcept;
    void acknowledge(const RdInbound& inbound) noexcept;
    void finish_inbound(RdInbound& inbound) noexcept;
    util::Status fill_use(const RdInbound& inbound, const RdRxEntry& entry) noexcept;
    WcStatus delivered(const RdInbound& inbound) noexcept;
    void complete_rx(const RdInbound& inbound, RdRxEntry& entry) noexcept;
    static void fill_rx(Cqe& cqe, const RdInbound& inbound, const RdRxEntry& entry, void* place,
                        WcStatus status, bool is_last_use) noexcept;
    void release_entry(RdRxEntry& entry) noexcept;
    void drop_inbound(RdInbound& inbound) noexcept;
    /// Applications may ask for any number of bytes.
    static std::int64_t most_unexpected(const RdAttr& attr) noexcept {
        constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
        return static_cast<std::int64_t>(std::min(attr.total_buffered_recv, kMost));
    }
    void note_unexpected(std::int64_t bytes) noexcept;
    void hold_peers(bool hold) noexcept;

    // ---- rd_transfer.inl
    RdTxOp* find_message(const Peer& peer, std::uint64_t name) noexcept;
    RdTxOp* find_access(const Peer& peer, std::uint64_t name) noexcept;
    void start_pull(RdInbound& inbound) noexcept;
    void ask_for_data(RdInbound& inbound, std::uint64_t begin, std::uint64_t end,
                      std::uint64_t address) noexcept;
    bool is_small_copy(const RdInbound& inbound) const noexcept;
    void copy_directly(RdInbound& inbound) noexcept;
    unsigned copy_several() noexcept;
    bool copy_part(RdInbound& inbound, std::uint64_t& budget) noexcept;
    void fall_back(RdInbound& inbound) noexcept;
    void finish_shares(RdInbound& inbound) noexcept;
    unsigned run_copies() noexcept;
    void finish_pull(RdInbound& inbound) noexcept;
    bool on_pull(Peer& peer, const Arrival& arrival) noexcept;
    bool on_pull_data(Peer& peer, const Arrival& arrival) noexcept;
    bool on_pull_done(Peer& peer, const Arrival& arrival) noexcept;
    bool fetch(RdInbound& inbound) noexcept;
    const BufferUse::NicPlace* nic_target_of(const RdRxEntry& entry) const noexcept;
    bool on_message_fetched(Peer& peer, std::uint64_t name) noexcept;
    void message_fetch_ended(std::uint64_t name) noexcept;
    bool on_finish(Peer& peer, const Arrival& arrival) noexcept;
    bool run_job(Peer& peer, RdTxOp& op) noexcept;
    bool stream_pulled(Peer& peer, RdTxOp& op) noexcept;
    bool write_several(Peer& peer) noexcept;
    Status copy_named(Peer& peer, bool is_write, const RdCopyBatch& batch) noexcept;
    bool is_gone_by_mail(const Peer& peer) const noexcept;
    bool refuses_copies(const Peer& peer) const noexcept;
    void share_written(Peer& peer, const RdTxOp& op, WcStatus status) noexcept;
    bool write_share(Peer& peer, RdTxOp& op) noexcept;

    // ---- rd_access.inl
    Status fill_access(RdTxOp& op, const RdRma& request) noexcept;
    Status fill_atomic(RdTxOp& op, const RdAtomic& request) noexcept;
    bool write_quietly(const RdRma& request) noexcept;
    static bool are_quiet_writes_done(Peer& peer) noexcept;
    bool on_quiet_write_refused(Peer& peer, WcStatus status) noexcept;
    void begin_access(Peer& peer, RdTxOp& op) noexcept;
    bool start_access(Peer& peer, RdTxOp& op) noexcept;
    template <class Fill>
    Status start_one_sided(std::uint64_t dest, RdTxOp::Kind kind, void* context, RdFlags flags,
                           Fill fill) noexcept;
    void access_sent(Peer& peer, RdTxOp& op) noexcept;
    void access_ended(Peer& peer, const RdTxOp& op) noexcept;
    std::uint8_t access_flags(const RdTxOp& op) const noexcept;
    RdAccess access_of(const RdTxOp& op) const noexcept;
    bool send_read(Peer& peer, RdTxOp& op) noexcept;
    bool send_write(Peer& peer, RdTxOp& op) noexcept;
    bool put_atomic(Peer& peer, RdTxOp& op, const RdRemote& remote) noexcept;
    bool start_atomic(Peer& peer, RdTxOp& op) noexcept;
    bool on_read_data(Peer& peer, const Arrival& arrival, bool is_line) noexcept;
    bool on_atomic_result(Peer& peer, const Arrival& arrival, bool is_line) noexcept;
    bool on_access_done(Peer& peer, const Arrival& arrival) noexcept;
    void answered(Peer& peer, RdTxOp& op, WcStatus status) noexcept;

    // ---- rd_accessed.inl
    bool on_write(Peer& peer, const Arrival& arrival) noexcept;
    bool on_write_line(Peer& peer, const Arrival& arrival) noexcept;
    bool on_write_more(Peer& peer, const Arrival& arrival) noexcept;
    bool on_read(Peer& peer, const Arrival& arrival) noexcept;
    bool on_atomic(Peer& peer, const Arrival& arrival, bool is_inline) noexcept;
    bool on_rma_event(Peer& peer, const Arrival& arrival) noexcept;
    KeyHit lookup(const RdAccess& access, Access rights) noexcept;
    bool write_part(Peer& peer, const Arrival& arrival) noexcept;
    bool execute_atomic(Peer& peer, const RdAtomicHeader& header, const RdAtomicKind& what,
                        std::size_t bytes, const std::byte* operand, const std::byte* compare,
                        const Arrival& arrival) noexcept;
    void answer_atomic(Peer& peer, const RdAccess& access, const std::byte* result,
                       std::size_t bytes) noexcept;
    std::uint8_t note_segment(Peer& peer, std::uint64_t operation, std::uint8_t flags) noexcept;
    void note_refused(Peer& peer, std::uint64_t operation) noexcept;
    void report_access(const Peer& peer, const RdAccess& access, std::uint8_t flags,
                       std::uint64_t data, std::uint64_t wc_flags) noexcept;
    void respond(Peer& peer, RdResponse response) noexcept;
    bool run_response(Peer& peer, RdResponse& response) noexcept;
    void answer(Peer& peer, std::uint64_t operation, WcStatus status, std::uint64_t key) noexcept;

    // ---- rd_direct.inl
    bool is_direct_better(Peer& peer, RdTxOp& op) noexcept;
    void learn_access(const RdTxOp& op, bool is_last) noexcept;
    bool tell_of_access(Peer& peer, RdTxOp& op) noexcept;
    std::uint8_t event_flags(const RdTxOp& op) const noexcept;
    bool run_direct(Peer& peer, RdTxOp& op) noexcept;
    std::byte* mapped_target(Peer& peer, std::uint32_t own, const KeyHit& hit,
                             std::uint64_t length) noexcept;
    Status copy_part(Peer& peer, const iovec& part, const KeyHit& hit, std::byte* mapped,
                     std::uint64_t offset, bool is_write) noexcept;
    bool count_use(Peer& peer, std::uint32_t own, std::uint64_t bytes) noexcept;
    bool may_be_direct(Peer& peer, const RdTxOp& op, bool& is_mapped) noexcept;
    Status copy_direct(Peer& peer, RdTxOp& op, std::uint64_t& budget) noexcept;
    Status forget_key(Peer& peer, std::uint64_t key, std::uint32_t own) noexcept;
    Status copy_segment(Peer& peer, RdTxOp& op, std::uint32_t own, const KeyHit& hit,
                        std::uint64_t& budget) noexcept;
    void leave_direct(RdTxOp& op) noexcept;
    bool resolve_key(Peer& peer, std::uint64_t key, std::uint32_t& own) const noexcept;
    static KeyHit look_up(const Peer& peer, std::uint32_t own, const RdRemote& range,
                          bool is_write) noexcept;

    // ---- rd_by_nic.inl
    bool may_go_by_nic(const Peer& peer, const RdTxOp& op) const noexcept;
    bool is_for_nic(Peer& peer, const RdTxOp& op) noexcept;
    bool awaits_nic_key(Peer& peer, const RdTxOp& op) noexcept;
    static RdNicRegion& nic_region_of(Peer& peer, const RdTxOp& op) noexcept;
    void ask_for_nic_key(Peer& peer, const RdTxOp& op, RdNicRegion& region) noexcept;
    bool run_by_nic(Peer& peer, RdTxOp& op) noexcept;
    static Status post_to_nic(Path& path, const RdTxOp& op, std::uint64_t there,
                              std::uint64_t nic_key) noexcept;
    bool on_rdma_done(Peer& peer, const Arrival& arrival) noexcept;
    void rdma_ended(std::uint64_t name, WcStatus status) noexcept override;
    bool on_ask_nic_key(Peer& peer, const Arrival& arrival) noexcept;
    RdNicKey expose(Peer& peer, const RdAccess& asked) noexcept;
    bool on_nic_key(Peer& peer, const Arrival& arrival) noexcept;
    bool on_key_ends(Peer& peer, const Arrival& arrival) noexcept;

    // ---- rd_device.inl
    DeviceOpener* opener_of_devices() const noexcept {
        return keys_.has_p2p ? keys_.opener : nullptr;
    }
    const BufferUse::NicPlace* nic_place_of(const BufferUse& use) const noexcept {
        return keys_.has_p2p ? use.nic_place() : nullptr;
    }
    static Status refresh(RdTxOp& op, std::uint64_t end) noexcept;
    void note_arrival(RdInbound& inbound) noexcept;
    const BufferUse::Source* source_of(const Peer& peer, const RdTxOp& op) const noexcept;
    bool cannot_start(Peer& peer, RdTxOp& op) noexcept;
    void cannot_send(Peer& peer, RdTxOp& op) noexcept;
    bool cannot_arrive(RdInbound& inbound) noexcept;
    [[nodiscard]] KeyHit find_source(const RdInbound& inbound) const noexcept;
    bool take_device(RdInbound& inbound) noexcept;
    bool copy_from_device(RdInbound& inbound, std::uint64_t& budget) noexcept;
    Status read_from_device(RdInbound& inbound, std::uint64_t bytes) noexcept;
    Status read_by_library(RdInbound& inbound, PeerDeviceMemory& device, const KeyHit& hit,
                           std::uint64_t bytes) noexcept;
    Status read_mapped(RdInbound& inbound, const typename Host::Region& region,
                       const std::byte* whole, std::uint64_t bytes) noexcept;
    PeerDeviceMemory* opened_target(Peer& peer, std::uint32_t own, const KeyHit& hit,
                                    std::uint64_t length) noexcept;
    static Status copy_by_library(PeerDeviceMemory& device, std::uint64_t offset,
                                  util::IovCursor buffers, const BufferUse* use,
                                  std::uint64_t bytes, bool is_write) noexcept;
    static Status copy_with_device(PeerDeviceMemory& device, RdTxOp& op, std::uint64_t offset,
                                   std::uint64_t& budget) noexcept;
    void refuse_region(Peer& peer, std::uint32_t own) noexcept;
    void open_region(Peer& peer, std::uint32_t own, RegionEntry& entry,
                     const RdOpening& by) noexcept;
    struct OwnHandle {
        const DeviceHandle* by;
        std::uint64_t length;  // of the region
    };
    std::optional<OwnHandle> find_handle(std::uint32_t key) noexcept;
    bool tell_opening(std::uint32_t key, RdOpening& opening) noexcept;
    bool has_opened(const RdInbound& inbound) noexcept;
    void note_shared(std::uint32_t key) noexcept;
    void withdraw_handle(std::uint32_t key) noexcept;

    // ---- rd_share.inl
    bool may_be_shared(Peer& peer, const RdTxOp& op) noexcept;
    bool run_shared(Peer& peer, RdTxOp& op) noexcept;
    static std::uint64_t share_size(const RdTxOp& op) noexcept;
    void ask_for_shares(Peer& peer, RdTxOp& op) noexcept;
    void copy_range(Peer& peer, RdTxOp& op, RdTxOp::Range range) noexcept;
    static bool may_go_on(const RdTxOp& op) noexcept;
    static void hold_messages(Peer& peer, const RdTxOp& op) noexcept;
    static void let_messages_go(Peer& peer, const RdTxOp& op) noexcept;
    void end_shared(Peer& peer, RdTxOp& op) noexcept;
    bool on_share_done(Peer& peer, RdTxOp& op, WcStatus status) noexcept;
    void finish_shared(Peer& peer, RdTxOp& op) noexcept;
    bool is_worth_waiting(const Peer& peer, RdTxOp& op) noexcept;
    bool copy_two(Peer& peer, RdTxOp& op) noexcept;
    bool on_share(Peer& peer, const Arrival& arrival) noexcept;
    KeyHit lookup_share(const RdShare& share, bool is_write) noexcept;
    bool copy_shares(Peer& peer, bool is_write, const RdShare* shares, std::size_t count) noexcept;
    void copy_share(Peer& peer, bool is_write, const RdShare& share) noexcept;
    void answer_share(Peer& peer, const RdShare& share, WcStatus status) noexcept;

    // ---- rd_progress.inl
    static unsigned progress_entry(ProgressSource* source) noexcept {
        return static_cast<RdEngine*>(source)->progress_locked();
    }
    unsigned progress_locked() noexcept;
    unsigned progress_one() noexcept;
    unsigned progress_many() noexcept;
    unsigned progress_rest(unsigned moved) noexcept;
    static unsigned captured_entry(ProgressSource* source) noexcept {
        return static_cast<RdEngine*>(source)->progress_captured();
    }
    unsigned progress_captured() noexcept;
    unsigned progress_any() noexcept;
    void progress_uncounted() noexcept;
    bool handle_captured(Peer& peer, const Arrival& arrival) noexcept;
    bool take_whole(Peer& peer, const RdMessage& message) noexcept;
    unsigned poll_path(Peer& peer) noexcept;
    unsigned poll_peer(Peer& peer) noexcept;
    struct Scan;
    void count_hot() noexcept {
        hot_count_ = static_cast<std::uint32_t>(std::min(kHotPeers, polled_.size()));
        latest_ = latest_ < hot_count_ ? latest_ : 0;
    }
    Polled* next_arrival(Scan& scan, bool has_moved) noexcept;
    Polled* next_cold_arrival(Scan& scan, bool has_moved) noexcept;
    unsigned poll_many() noexcept;
    void prepare_next_run() noexcept;
    unsigned run_busy() noexcept;
    bool run_peer(Peer& peer) noexcept;
    void make_busy(Peer& peer) noexcept;
    [[nodiscard]] bool has_work() const noexcept;
    bool wants_room() const noexcept;
    static bool lacks_room(Peer& peer, const RdTxOp& op) noexcept;
    static bool is_access_due(Peer& peer) noexcept;
    bool must_watch_targets() noexcept;
    void reply(Peer& peer, RdOp op, std::uint8_t flags, std::uint64_t data, const void* payload,
               std::size_t count) noexcept;
    void retire(Peer& peer) noexcept;

    // ---- rd_lost.inl
    void disconnected(Peer& peer, WcStatus status) noexcept;
    void finish_answered_ones(Peer& peer) noexcept;
    void left(Peer& peer) noexcept;
    template <class Record, class Visit>
    void for_each_of(const Peer& peer, util::Pool<Record>& pool, Visit visit) noexcept;
    bool has_nothing_under_way(const Peer& peer) noexcept;
    void fail_operations(Peer& peer, WcStatus status) noexcept;
    void forget_acknowledgements(const Peer& peer) noexcept;
    void fail_inbound(Peer& peer) noexcept;
    void end_lost(RdInbound& inbound) noexcept;

    // ---- rd_connect.inl
    Peer* peer_of(std::uint64_t dest) noexcept {
        return dest < by_index_.size() ? by_index_[dest] : nullptr;
    }
    Peer* find_peer(std::uint64_t dest) noexcept;
    Peer* known_at(const util::SockAddr& address) noexcept;
    Peer* peer_at(const util::SockAddr& address) noexcept;
    std::uint32_t free_peer_id() noexcept;
    void give_up_if_unknown(Peer& peer) noexcept;
    bool is_referred_to(const Peer& peer) noexcept;
    void connect(Peer& peer) noexcept;
    void read_mail() noexcept;
    void take_word(Peer& peer, Event& event) noexcept;
    void receive_last_words(Peer& peer) noexcept;
    void connected(std::unique_ptr<Event> event) noexcept;
    void take_region(Peer& peer, Event& event) noexcept;
    util::Result<typename Host::RegionSource> find_region(std::uint64_t key) noexcept override;
    RdRxEntry* find_posted(void* context) noexcept;
    Status cancel_unsent(void* context) noexcept;
    void end_receive(RdRxEntry& entry, bool is_tagged, WcStatus status) noexcept;
    void deliver(std::unique_ptr<Event> event) noexcept override;
    bool control_progress() noexcept override;
    bool control_arm() noexcept override;
    void control_disarm() noexcept override { station_.disarm_for_control(); }
    bool has_sleepers() noexcept override { return station_.goes_on_watching(); }
    bool control_send() noexcept override;
    void take_message(void* peer, const RdMessage& message) noexcept override;
    void take_eager(void* peer, RdEagerHead head, std::uint64_t tag, std::uint64_t data,
                    const std::byte* payload) noexcept override;
    void take_malformed(void* peer) noexcept override;
    bool is_idle(void* peer) noexcept override;
    std::uint64_t poll_count() const noexcept override { return station_.poll_count(); }

    // What every send touches.
    alignas(util::kCacheLine) Lock& lock_;
    std::vector<Peer*> by_index_;  // by number in the address vector; nullptr: not talked to yet
    Cq* tx_cq_ = nullptr;
    Cq* rx_cq_ = nullptr;
    Counter* send_counter_ = nullptr;
    Counter* recv_counter_ = nullptr;

    // What every progress call touches.
    // Connected peers of this host; the first kHotPeers are looked at in every call.
    alignas(util::kCacheLine) std::vector<Polled> polled_;
    std::uint32_t hot_count_ = 0;  // how many of the first kHotPeers there are
    std::uint32_t late_count_ = 0;
    // The peer of several that the last run went to: the next one may do so, too. It is prepared
    // when there is nothing else to do, since what goes to others meanwhile would wait for that.
    Peer* next_run_to_ = nullptr;
    std::atomic<Event*> mail_{nullptr};  // pushed by the control thread, taken whole by the owner
    RdQueue<RdInbound> copies_;          // messages that this process reads itself
    std::vector<Peer*> busy_;
    std::atomic<bool> has_busy_{false};  // whether it has any: for who is not inside
    // And what messages touch that wait for a receive.
    std::int64_t unexpected_room_;      // bytes; less than 0 when too much waits
    std::uint32_t multi_receives_ = 0;  // multi-receive buffers in posted_messages_
    bool is_holding_ = false;
    bool has_accessed_ = false;         // a peer, by a one-sided operation that may not be over
    std::uint32_t latest_ = 0;          // the active peer that has sent last
    std::uint32_t hits_ = 0;            // calls in which that one had sent something
    std::size_t rotation_ = kHotPeers;  // the quiet peer that was looked at last
    std::uint32_t victim_ = 0;          // the active peer that gave way last
    std::vector<Copier> copiers_;       // the peers of polled_, in an order of its own
    std::vector<Peer*> remote_;  // connected peers of other hosts: the station polls for them

    PostedQueue<RdRxEntry> posted_tagged_;
    PostedQueue<RdRxEntry, false> posted_messages_;
    static constexpr std::size_t kLateBehind =
        4;                                // so many receives later its message is asked for
    std::array<RdLateReceive, 16> late_;  // in the order of posting; late_count_ of them
    UnexpectedQueue<RdInbound> unexpected_tagged_;
    UnexpectedQueue<RdInbound, false> unexpected_messages_;
    util::Pool<RdRxEntry> entries_;
    util::SpareBlocks spare_blocks_;  // for RdInbound::storage; outlives inbound_
    util::Pool<RdInbound> inbound_;
    util::Pool<RdTxOp> tx_messages_;
    util::Pool<RdTxOp> tx_accesses_;

    RdCompletion completion_;
    AddressVector* av_ = nullptr;
    RdAttr attr_;
    RdTuning tuning_;
    RdKeys keys_;
    PinSlot& pin_ = take_pin_slot();
    std::size_t min_multi_recv_ = 64;
    bool is_enabled_ = false;
    bool lacks_memory_ = false;  // for a message that has come
    std::unordered_map<void*, RdInbound*> claimed_;
    RdMethodChooser pull_methods_;
    RdMethodChooser write_methods_;
    RdMethodChooser read_methods_;
    std::uint32_t open_operations_ = 0;         // in tx_messages_ and tx_accesses_
    std::uint32_t pulls_ = 0;                   // messages with is_being_pulled()
    std::uint64_t last_pull_end_ = 0;           // ticks
    std::uint64_t last_access_end_ = 0;         // ticks
    std::vector<std::unique_ptr<Peer>> peers_;  // by id
    std::deque<std::uint32_t> given_up_;        // ids of peers that are gone and not in the vector
    std::unordered_multimap<std::size_t, Peer*> peers_by_address_;
    std::mutex shared_keys_lock_;  // order: innermost
    std::unordered_set<std::uint32_t>
        shared_keys_;  // of regions whose handles peers have; under it
    typename Host::Station station_;
    std::shared_ptr<protocol::PcapWriter> capture_file_;
    RdCapture capture_;  // from enabling on
};

}  // namespace rvt::core

#include "core/rd_access.inl"
#include "core/rd_accessed.inl"
#include "core/rd_by_nic.inl"
#include "core/rd_connect.inl"
#include "core/rd_device.inl"
#include "core/rd_direct.inl"
#include "core/rd_lost.inl"
#include "core/rd_posted.inl"
#include "core/rd_progress.inl"
#include "core/rd_receive.inl"
#include "core/rd_send.inl"
#include "core/rd_share.inl"
#include "core/rd_transfer.inl"
