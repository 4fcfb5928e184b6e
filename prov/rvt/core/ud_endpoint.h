// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The service under FI_EP_DGRAM: a UD pair on a device of its own. The pair's number and Q_Key are
// the same for all such endpoints, so that the address of the device says where a datagram goes. Or
// one of the pairs on a device that is shared: then addresses name services, whose pairs
// core/ud_resolver.h finds.
//
// Each receive that is posted to the pair is the application's buffers between two areas of the
// endpoint's own: the route header goes into the first, and into the last what is longer than the
// buffers, so that a datagram that is cut can be told from one that never came.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/address_vector.h"
#include "core/ah.h"
#include "core/context.h"
#include "core/counter.h"
#include "core/cq.h"
#include "core/device.h"
#include "core/device_memory.h"
#include "core/mad.h"
#include "core/mr.h"
#include "core/owned.h"
#include "core/progress_source.h"
#include "core/qp.h"
#include "core/rd_types.h"
#include "core/ud_resolver.h"
#include "core/ud_staging.h"
#include "core/verbs_cq.h"
#include "util/cpu.h"
#include "util/iov_cursor.h"
#include "util/sock_addr.h"

namespace rvt::core {

/// The number of the pair on a device of its own.
inline constexpr std::uint32_t kUdEndpointQpn = 0x11;
/// The Q_Key of datagrams and groups in the port space UDP of rdma_cm.
inline constexpr std::uint32_t kUdEndpointQkey = 0x01234567;
inline constexpr std::size_t kUdInjectBytes = 256;
/// The port of a group that names none: that of RoCEv2.
inline constexpr std::uint16_t kUdGroupPort = 4791;

/// When an endpoint looks for arrivals by itself.
struct UdPolling {
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    std::uint64_t idle_us = 50;  // so long after the last arrival it leaves that to its host
    bool is_cheap = false;       // then it looks all the same whenever it is called
};

/// A device that endpoints share, as one of them has it.
class UdSharing {
  public:
    virtual ~UdSharing() = default;
    UdSharing(const UdSharing&) = delete;
    UdSharing& operator=(const UdSharing&) = delete;

    virtual Device& device() noexcept = 0;
    /// Whose port is the number of the endpoint's own service.
    [[nodiscard]] virtual util::SockAddr address() const noexcept = 0;
    virtual UdServices& services() noexcept = 0;
    /// Sends what is due, takes in what has arrived.
    virtual void poll() noexcept = 0;
    /// Asks for the next readiness of wake_fd(). Returns: EAGAIN when there is something to poll
    /// now.
    virtual Status arm() noexcept = 0;
    /// Readable when an armed device has something to poll, or a watched descriptor is.
    [[nodiscard]] virtual int wake_fd() const noexcept = 0;
    /// Returns: ENOMEM, ENOSPC.
    virtual Status watch(int fd) noexcept = 0;
    /// What has woken a sleeper may have been a packet: from now on poll() looks.
    virtual void expect_traffic() noexcept = 0;

  protected:
    UdSharing() = default;
};

/// The device of one endpoint, and who looks at it while the application does not.
class UdHost {
  public:
    virtual ~UdHost() = default;
    UdHost(const UdHost&) = delete;
    UdHost& operator=(const UdHost&) = delete;

    virtual Device& device() noexcept = 0;
    virtual util::SockAddr address() const noexcept = 0;
    /// nullptr: the device is the endpoint's alone.
    virtual UdSharing* sharing() noexcept { return nullptr; }
    /// Asked again when nothing has come for as long as it said. Threads: holder of the domain's
    /// lock.
    [[nodiscard]] virtual UdPolling polling() const noexcept { return {}; }
    /// Nothing has come for a while: from now on the host looks, and marks the endpoint hot when
    /// something comes. Threads: holder of the domain's lock.
    virtual void leave_to_host() noexcept = 0;
    /// Begins to call the user. Threads: as stop().
    virtual Status start() = 0;
    /// The user is not called any more when this returns. Threads: not a holder of the lock.
    virtual void stop() noexcept = 0;

  protected:
    UdHost() = default;
};

/// What a host calls. Threads: the control thread.
class UdUser {
  public:
    /// There is something to poll for.
    virtual void mark_hot() noexcept = 0;
    [[nodiscard]] virtual bool is_hot() const noexcept = 0;
    /// How often the application has polled: unchanged, it is elsewhere.
    [[nodiscard]] virtual std::uint64_t poll_count() const noexcept = 0;
    /// Makes progress in the application's stead. Returns: false when it is there itself.
    virtual bool control_progress() noexcept = 0;

  protected:
    ~UdUser() = default;
};

struct UdHostAttr {
    util::SockAddr bind;
    UdUser* user = nullptr;  // outlives the host
    bool has_auto_progress = false;
};

struct UdAttr {
    std::size_t tx_size = 1024;  // datagrams that have not left before EAGAIN
    std::size_t rx_size = 1024;
    bool reports_source = false;
};

/// Threads: holder of the domain's lock, but for mark_hot(), is_hot() and poll_count().
class UdEndpoint final : public ProgressSource, private MadSink, private UdResolverOwner {
  public:
    explicit UdEndpoint(const UdAttr& attr);
    ~UdEndpoint();
    UdEndpoint(const UdEndpoint&) = delete;
    UdEndpoint& operator=(const UdEndpoint&) = delete;

    /// Opens the pair on the host's device, ready for traffic. Once, before all else.
    /// Returns: ENOMEM, EMFILE; EINVAL for queues that the device does not have; EADDRINUSE when
    ///          somebody has the service.
    Status open(std::unique_ptr<UdHost> host);
    [[nodiscard]] UdHost* host() const noexcept { return host_.get(); }
    /// Where its device tells of events. Precondition: it is open.
    [[nodiscard]] Context& context() const noexcept { return *context_; }
    /// Where completions go and who gives numbers to peers. Once, before traffic. Only the queues
    /// and counters of sends and receives are used.
    void bind(const RdCompletion& completion, AddressVector* av) noexcept;

    // ---- data path ----

    /// Of the flags kCompletion, kInject and kData are looked at; of data 32 bits. On a shared
    /// device the first ones to a peer wait for its answer; without one they complete with
    /// kRetryExcErr, or kPeerUnreachable when nobody has the service or the UDP port there. Uses
    /// that are left when the endpoint is closed are their owner's again.
    /// Returns: EAGAIN (progress helps), EINVAL (no such peer), EMSGSIZE, also of what the
    ///          interface takes no more; ENODEV when the NIC is gone, or gives no completions: what
    ///          is under way then completes with kWrFlushErr; errors of create_ah(), where there is
    ///          no way to the peer now.
    Status send_locked(const RdSend& request) noexcept;
    /// Whether that would be EMSGSIZE.
    [[nodiscard]] bool is_too_long(const RdSend& request) const noexcept {
        const std::size_t bytes = util::iov_length(request.iov, request.iov_count);
        // relaxed: a number of its own; the interface may change at any time.
        return bytes > most_bytes_.load(std::memory_order_relaxed) ||
               (has(request.flags, RdFlags::kInject) && bytes > kUdInjectBytes);
    }
    /// Of the flags kCompletion is looked at; uses are as in send_locked(). Returns: EAGAIN when no
    /// more can be posted; ENODEV as above.
    Status recv_locked(const RdRecv& request) noexcept;
    /// Takes a posted receive of that context back; its completion is kCanceled.
    /// Returns: ENOENT.
    Status cancel_locked(void* context) noexcept;

    // ---- peers and groups ----

    /// A number of the address vector has been removed.
    void forget_locked(std::uint64_t index, const util::SockAddr& address) noexcept;

    /// Joins a group. Returns: the number that stands for it as a destination, until leave;
    ///          EINVAL when it is no group's address; errors of Qp::attach_mcast() and create_ah().
    Result<std::uint64_t> join_locked(const util::SockAddr& group, bool sends, bool receives);
    void leave_locked(std::uint64_t number) noexcept;
    /// Whether a destination is a group.
    static constexpr bool is_group(std::uint64_t dest) noexcept {
        return (dest & kGroupBit) != 0 && dest != kAnySource;
    }

    // ---- progress ----

    unsigned progress_locked() noexcept;
    /// The same, also while the wire has been quiet.
    unsigned poll_locked() noexcept;
    Status arm_locked() noexcept override;
    void disarm_locked() noexcept override;
    int wake_fd() const noexcept override { return wake_fd_; }

    void mark_hot() noexcept {
        is_hot_.store(true, std::memory_order_relaxed);  // relaxed: a hint to who polls
    }
    [[nodiscard]] bool is_hot() const noexcept {
        return is_hot_.load(std::memory_order_relaxed);  // relaxed: a hint
    }
    [[nodiscard]] std::uint64_t poll_count() const noexcept {
        return polls_.load(std::memory_order_relaxed);  // relaxed: a hint
    }

  private:
    static constexpr std::uint64_t kGroupBit = std::uint64_t{1} << 63;
    static constexpr std::uint64_t kRecvBit = std::uint64_t{1} << 63;  // of a wr_id
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};
    // Of so many sends in a row to a NIC one is signaled.
    static constexpr std::uint64_t kSignalInterval = 16;

    struct TxRecord {
        void* context;
        BufferUse* use;  // nullptr: the buffers are the CPU's
        bool completes;
        bool is_to_group;
    };
    struct RxRecord {
        void* context;
        void* buffer;        // the first one, as the application calls it
        BufferUse* use;      // nullptr: the buffers are the CPU's
        std::uint64_t room;  // bytes in the application's buffers
        std::uint32_t next;  // while it is free
        bool completes;
        bool is_posted;
    };
    using Grh = std::array<std::byte, kGrhBytes>;
    struct Peer {
        Ah* ah = nullptr;  // nullptr: not known yet
        UdPair pair{};
    };
    struct Group {
        Address address;
        Peer peer;  // without a handle: the place is free
        bool sends = false;
        bool receives = false;
    };

    // What is not for the pair concerns nobody, but for a channel that ends.
    void take_mad(const Address& source,
                  std::span<const std::byte, protocol::kMadBytes> mad) noexcept override;
    void peer_refused(const Address& /*peer*/, std::uint32_t /*dest_qpn*/) noexcept override {}
    void channel_failed(Channel& channel) noexcept override;
    void port_changed() noexcept override;

    // UdResolverOwner
    Status post_kept_locked(const UdKept& kept, const UdPair& pair) noexcept override;
    void fail_kept_locked(const UdKept& kept, WcStatus status) noexcept override;
    void unlearn_locked(std::uint64_t number) noexcept override;
    void wake() noexcept override { channel_->notify(*cq_); }

    Status open_queue();
    Status open_pair();
    Status join_device();
    Status start_pair();
    void close() noexcept;

    [[nodiscard]] const Peer* find_peer_locked(std::uint64_t dest) const noexcept;
    void detach_unused_locked(const Address& group) noexcept;
    Result<const Peer*> learn_peer_locked(std::uint64_t dest, const util::SockAddr& address,
                                          const UdPair& pair) noexcept;
    [[gnu::cold]] Status send_first_locked(const RdSend& request) noexcept;
    Status post_locked(const RdSend& request, const Peer& peer) noexcept;
    Status open_memory();
    Status post_staged_recv_locked(const RdRecv& request, std::uint32_t i) noexcept;
    void destroy_ah_locked(Ah* ah) noexcept;
    [[nodiscard]] bool can_send_locked() const noexcept;
    [[nodiscard]] bool has_room_to_send_locked() noexcept;
    [[nodiscard]] bool is_signaled_locked(const RdSend& request) const noexcept;
    /// Whether the completion of a send that is signaled is still to come.
    [[nodiscard]] bool awaits_send_locked() const noexcept { return tx_head_ < signaled_end_; }
    [[nodiscard]] static Sge sge_of(const void* data, std::uint64_t bytes) noexcept;
    unsigned drain_locked() noexcept;
    void finish_send_locked(const Wc& wc) noexcept;
    void report_send_locked(const TxRecord& record, WcStatus status) noexcept;
    void finish_recv_locked(const Wc& wc) noexcept;
    void report_recv_locked(const RxRecord& record, std::span<const std::byte, kGrhBytes> grh,
                            const Wc& wc) noexcept;
    [[nodiscard]] std::uint64_t source_of(std::span<const std::byte, kGrhBytes> grh,
                                          const Wc& wc) const noexcept;
    void run_shared_locked(unsigned moved) noexcept;
    [[nodiscard]] bool is_nic_gone() const noexcept {
        return staging_ != nullptr && (host_->device().is_going() || cq_->has_failed());
    }
    [[gnu::cold]] unsigned end_with_nic_locked() noexcept;
    unsigned flush_lost_locked() noexcept;
    Status arm_device_locked() noexcept;
    void ask_for_notice_locked() noexcept;
    void free_rx_locked(std::uint32_t i) noexcept;
    bool take_back_locked(std::uint32_t i) noexcept;
    [[nodiscard]] bool is_quiet_locked(unsigned moved) noexcept;

    const UdAttr attr_;
    bool has_sources_ = false;  // looks for who has sent
    RdCompletion completion_;
    AddressVector* av_ = nullptr;
    std::unique_ptr<UdHost> host_;
    UdSharing* sharing_ = nullptr;  // the host's; nullptr: as UdHost says
    Owned<Context> context_;
    Owned<CompChannel> channel_;  // with sharing_: others take in what arrives
    Owned<Pd> pd_;
    Owned<VerbsCq> cq_;
    std::unique_ptr<UdStaging> staging_;  // the pair reaches what is registered alone: copies
    Owned<Qp> qp_;
    int wake_fd_ = -1;
    std::size_t max_bytes_ = 0;               // of a datagram that comes
    std::atomic<std::size_t> most_bytes_{0};  // of one that leaves: less while the port takes less
    UdPolling polling_;

    std::atomic<bool> is_hot_{true};
    std::atomic<std::uint64_t> polls_{0};
    std::uint64_t last_arrival_us_ = 0;

    std::vector<TxRecord> tx_;  // a ring by position
    std::uint64_t tx_head_ = 0;
    std::uint64_t tx_tail_ = 0;
    std::uint64_t signaled_end_ = 0;  // behind the last one that is signaled
    std::vector<RxRecord> rx_;
    std::vector<Grh> grhs_;  // one for each place of rx_
    std::uint32_t free_rx_ = kNone;
    std::vector<std::byte> excess_;  // whatever does not fit; nobody reads it
    std::vector<Peer> peers_;        // by their numbers
    std::vector<Group> groups_;
    std::vector<Ah*> unused_ahs_;  // to be destroyed once no datagram that waits names them
    std::unique_ptr<UdResolver> resolver_;  // with sharing_
    std::uint64_t lost_due_us_ =
        0;                  // when a NIC that is gone is not waited for any more; 0: not so
    bool is_lost_ = false;  // that time has come: nothing is under way
};

}  // namespace rvt::core
