// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The communication manager of one device: makes and ends connections between queue pairs by
// messages of queue pair 1, and finds the pair of a datagram service. IBTA vol. 1, chapter 12, the
// client-server form of it; annex A11.
//
// It decides only. The caller brings time and messages, carries messages away, reads events, and
// moves the queue pairs:
//
//   active                                    passive
//   connect()                 REQ ->          kRequest: accept(), reject() or delay()
//   kReply: pair to RTS,   <- REP             (the pair is in RTR, before accept())
//   establish()               RTU ->          kEstablished: pair to RTS
//   disconnect()             DREQ ->          kDisconnected
//   kDisconnected          <- DREP
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>

#include "core/cm_records.h"
#include "core/cm_secret.h"
#include "protocol/cm_messages.h"
#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

using CmMadBytes = std::span<const std::byte, protocol::kMadBytes>;

/// Carries messages away.
class CmWire {
  public:
    /// Sends a UD packet from queue pair 1 to queue pair 1, with protocol::kGsiQkey. One that
    /// cannot be sent counts as lost. It must not call the agent, not even for a device's messages
    /// to itself.
    /// @param mad  Copied before return.
    virtual void send_mad(const AhAttr& to, CmMadBytes mad) noexcept = 0;

  protected:
    ~CmWire() = default;
};

struct CmConfig {
    /// The device's: its gid is named in requests, and requests for another one are refused.
    Address local{};
    std::uint64_t ca_guid = 0;
    /// Random, of this device alone: who does not know it cannot tell which communication ids the
    /// agent gives out.
    std::array<std::uint64_t, 2> secret{};
    /// Connections in any state, those in time wait among them.
    std::uint32_t max_connections = 64 * 1024;
    /// Of those, requests of peers that are not connected yet; further ones are dropped.
    std::uint32_t max_half_open = 1024;
};

/// What the two ends of a connection tell each other about their pairs.
struct CmPair {
    std::uint32_t qpn = 0;
    /// With which the other end begins (12.7.31).
    std::uint32_t starting_psn = 0;
    /// READs and atomics that the sender of the message answers at a time, and that it may have
    /// outstanding: its max_dest_rd_atomic and max_rd_atomic.
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t rnr_retry = kRnrRetryForEver;  // for the other end
    bool has_srq = false;
    bool has_flow_control = false;  // end to end: RNR credits in acknowledgements
};

struct CmConnect {
    std::uint64_t service_id = 0;
    AhAttr dest{};
    CmPair own{};
    QpType type = QpType::kRc;  // or kUc
    std::uint32_t path_mtu_bytes = 1024;
    std::uint8_t retry_cnt = 7;
    std::uint8_t local_ack_timeout = 17;  // as QpAttr::timeout, for both ends
    /// For how long each side waits for a message of the other before it sends its own again;
    /// rounded up to 4.096 us * 2^n, 17 ms to 8.6 s.
    std::uint32_t response_timeout_us = 500'000;
    std::uint8_t max_cm_retries = 15;
    /// For a service of the RDMA IP CM: the port that is told beside the device's address.
    std::uint16_t source_port = 0;
    std::uint64_t context = 0;  // comes back in each event
    /// At most req_private_bytes() of the service. Copied before return, as all private data here.
    std::span<const std::byte> private_data{};
};

/// Room for private data in a request to the service.
constexpr std::size_t req_private_bytes(std::uint64_t service_id) noexcept {
    return protocol::kReqPrivateBytes -
           (protocol::is_ip_service(service_id) ? protocol::kIpCmHeaderBytes : 0);
}
constexpr std::size_t sidr_req_private_bytes(std::uint64_t service_id) noexcept {
    return protocol::kSidrReqPrivateBytes -
           (protocol::is_ip_service(service_id) ? protocol::kIpCmHeaderBytes : 0);
}

struct CmAccept {
    CmPair own{};
    std::uint64_t context = 0;                  // replaces the listener's
    std::span<const std::byte> private_data{};  // at most kRepPrivateBytes
};

struct CmResolve {
    std::uint64_t service_id = 0;
    AhAttr dest{};
    std::uint32_t response_timeout_us = 500'000;
    std::uint8_t max_cm_retries = 15;
    std::uint16_t source_port = 0;  // as in CmConnect
    std::uint64_t context = 0;
    std::span<const std::byte> private_data{};  // at most sidr_req_private_bytes()
};

struct CmSidrAnswer {
    protocol::SidrStatus status = protocol::SidrStatus::kOk;
    std::uint32_t qpn = 0;
    std::uint32_t qkey = 0;
    std::span<const std::byte> private_data{};  // at most kSidrRepPrivateBytes
};

enum class CmEventType : std::uint8_t {
    kRequest,  // a peer wants a connection: accept(), reject(), or delay() and later one of them
    kReply,    // the peer has accepted: establish() or disconnect()
    kEstablished,   // what was accepted is in use by the peer
    kRejected,      // final, with `reason`; of a request, a reply or an accepted request
    kUnreachable,   // final: no answer in time
    kDisconnected,  // final: the peer has ended it, has answered disconnect(), or did not in time
    kSidrRequest,   // a peer asks for the pair of a service: answer_sidr()
    kSidrReply,     // final: the answer to resolve()
};

/// Why a connection is over.
enum class CmEnd : std::uint8_t {
    kPeer,       // the peer's DREQ
    kOwn,        // disconnect() has been answered
    kNoAnswer,   // disconnect() has not been answered
    kRestarted,  // the peer has shown by another request that it knows of no such connection
};

struct CmEvent {
    CmEventType type = CmEventType::kRequest;
    CmHandle handle = CmHandle::kNone;
    std::uint64_t context = 0;  // of the connect(), accept(), resolve() or, in a request, listen()
    Address peer{};

    /// kRequest, kReply.
    CmPair remote{};
    std::uint64_t ca_guid = 0;
    std::uint8_t target_ack_delay = 0;  // kReply

    /// kRequest; the service also in kSidrRequest and kSidrReply.
    std::uint64_t service_id = 0;
    QpType transport = QpType::kRc;
    std::uint32_t path_mtu_bytes = 0;
    std::uint8_t retry_cnt = 0;
    std::uint8_t local_ack_timeout = 0;
    std::uint8_t service_level = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t traffic_class = 0;
    std::uint32_t flow_label = 0;
    /// kRequest and kSidrRequest, of a service of the RDMA IP CM.
    std::optional<protocol::IpCmHeader> ip{};

    protocol::CmRejectReason reason = protocol::CmRejectReason::kConsumer;  // kRejected
    CmEnd end = CmEnd::kPeer;                                               // kDisconnected
    protocol::SidrStatus sidr_status = protocol::SidrStatus::kOk;           // kSidrReply
    std::uint32_t qkey = 0;                                                 // kSidrReply

    /// What the peer added. Messages do not tell how much of it was meant: it is always as long as
    /// there is room, zeros behind.
    std::uint8_t private_bytes = 0;
    std::array<std::byte, protocol::kMostPrivateBytes> private_storage{};
    [[nodiscard]] std::span<const std::byte> private_data() const noexcept {
        return std::span(private_storage).first(private_bytes);
    }
};

struct CmStats {
    std::uint64_t malformed = 0;          // messages that no honest peer sends
    std::uint64_t unmatched = 0;          // of no connection, or not in its state
    std::uint64_t half_open_refused = 0;  // requests beyond max_half_open or max_connections
    std::uint64_t duplicates = 0;         // answered again, or passed over
    std::uint64_t resent = 0;             // after a time-out
    std::uint64_t stale = 0;              // connections ended because the peer had restarted
};

/// Threads: one at a time; the caller serialises. Events are queued, so that every call is allowed
///          while one is looked at.
class CmAgent {
  public:
    /// The shortest and the longest wait for a message, and the longest after an MRA, whatever a
    /// peer asks for.
    static constexpr std::uint8_t kLeastTimeout = 12;  // codes: 4.096 us * 2^n
    static constexpr std::uint8_t kMostTimeout = 21;
    static constexpr std::uint8_t kMostDelay = 24;
    static constexpr std::uint32_t kMostTimeoutUs = protocol::cm_timeout_us(kMostTimeout);
    static constexpr std::uint32_t kMostDelayUs = protocol::cm_timeout_us(kMostDelay);
    /// A resolution waits twice as long after each repetition, up to this unless it began with
    /// more.
    static constexpr std::uint32_t kMostBackoffUs = 1'000'000;

    /// @param wire  Outlives the agent.
    CmAgent(const CmConfig& config, CmWire& wire);
    ~CmAgent() = default;
    CmAgent(const CmAgent&) = delete;
    CmAgent& operator=(const CmAgent&) = delete;

    // ---- active side ----

    /// Asks for a connection. kReply, kRejected or kUnreachable follows. The peer takes another
    /// request with the same pair for the end of this one. Rejected as a stale connection, a pair
    /// may ask again at once: the peer has ended what a former process had with that number.
    /// Returns: EINVAL for a value that its field cannot hold, EMSGSIZE for too much private data,
    ///          ENOMEM beyond max_connections.
    Result<CmHandle> connect(const CmConnect& request, std::uint64_t now_us);

    /// Takes the reply: the connection is in use from here on. Says so again whenever the peer
    /// repeats its reply.
    /// @param private_data  At most kRtuPrivateBytes.
    /// Returns: ENOENT, EINVAL in another state, EMSGSIZE.
    Status establish(CmHandle handle, std::span<const std::byte> private_data,
                     std::uint64_t now_us);

    // ---- passive side ----

    /// Takes requests and resolutions for the service.
    /// Returns: EADDRINUSE when somebody does already.
    Status listen(std::uint64_t service_id, std::uint64_t context);
    /// Takes those for all services without a listener of their own.
    Status listen_any(std::uint64_t context);
    /// Requests that have been reported stay to be answered. Returns: ENOENT.
    Status unlisten(std::uint64_t service_id);
    Status unlisten_any();

    /// Answers kRequest; kEstablished, kRejected or kUnreachable follows. The pair is in RTR
    /// before: the peer may send as soon as it has the reply.
    /// Returns: ENOENT, EINVAL in another state or for a value that its field cannot hold,
    ///          EMSGSIZE.
    Status accept(CmHandle handle, const CmAccept& answer, std::uint64_t now_us);

    /// Answers kRequest or kReply; the handle ends, without an event. A peer that asks again, not
    /// having got to know of it, is told again; so is one that delay() has told to wait, by itself.
    /// @param private_data  At most kRejPrivateBytes.
    /// Returns: ENOENT, EINVAL in another state, EMSGSIZE.
    Status reject(CmHandle handle, protocol::CmRejectReason reason,
                  std::span<const std::byte> private_data, std::uint64_t now_us);

    /// Tells the peer that the answer to kRequest or kReply takes up to `delay_us`, at most
    /// kMostDelayUs. Returns: ENOENT, EINVAL in another state.
    Status delay(CmHandle handle, std::uint64_t delay_us, std::uint64_t now_us);

    /// Data has arrived on the accepted pair: the peer has the reply, whether or not its word for
    /// it arrives. kEstablished follows if that has not been known. Returns: ENOENT.
    Status note_traffic(CmHandle handle, std::uint64_t now_us);

    // ---- both ----

    /// Ends a connection in any state. After establish() or accept() kDisconnected follows. Before,
    /// the peer is told, and the handle ends without an event; so does that of a resolution.
    /// @param private_data  At most kDreqPrivateBytes; sent only if kDisconnected follows.
    /// Returns: ENOENT, EALREADY after disconnect(), EMSGSIZE.
    Status disconnect(CmHandle handle, std::span<const std::byte> private_data,
                      std::uint64_t now_us);

    /// Peers that have been told of the end and have not answered.
    [[nodiscard]] std::uint32_t unanswered_ends() const noexcept {
        return records_.count_in(CmState::kDreqSent);
    }
    /// Nobody is there any more who would answer: waits for no such answer of this peer.
    void give_up_ends(const Address& peer, std::uint64_t now_us);

    // ---- datagram services ----

    /// Asks for the pair of a service. kSidrReply or kUnreachable follows. Returns: as connect().
    Result<CmHandle> resolve(const CmResolve& request, std::uint64_t now_us);
    /// Answers kSidrRequest; the handle ends. Returns: ENOENT, EINVAL in another state, EMSGSIZE.
    Status answer_sidr(CmHandle handle, const CmSidrAnswer& answer, std::uint64_t now_us);

    // ---- what the caller brings and takes ----

    /// Takes in a message that arrived at queue pair 1 with kGsiQkey.
    /// @param from  Where it came from, and where answers go to. All messages of a connection have
    ///              to come from the address of the first.
    /// @param mad   The payload. Any bytes: what makes no sense is counted and dropped.
    void take_mad(const Address& from, std::span<const std::byte> mad, std::uint64_t now_us);

    /// Does what is due. Cost: nothing is due, one comparison.
    void run_timers(std::uint64_t now_us);
    /// When run_timers() has to be called next; nothing while no timer runs.
    [[nodiscard]] std::optional<std::uint64_t> next_due_us() const noexcept;

    /// The oldest event that has not been read. What was queued for a handle that the user has
    /// ended since is not shown.
    std::optional<CmEvent> poll_event();

    [[nodiscard]] const CmStats& stats() const noexcept { return stats_; }
    /// Handles that have not ended.
    [[nodiscard]] std::uint32_t open_count() const noexcept { return records_.open_count(); }
    /// Connections and resolutions that are remembered: those, and what is in time wait.
    [[nodiscard]] std::uint32_t record_count() const noexcept { return records_.count(); }

  private:
    // What the user asks for: cm_agent.cc.
    void begin_disconnect(CmRecord& record, std::span<const std::byte> private_data,
                          std::uint8_t retries);
    void refuse(CmRecord& record, protocol::CmRejectReason reason,
                std::span<const std::byte> private_data);
    void remember_refusal(CmRecord& record, std::uint8_t repetitions);
    void abort_request(CmRecord& record);
    void answer_resolution(CmRecord& record, const CmSidrAnswer& answer);
    void end_by_user(CmRecord& record);
    void time_out(CmRecord& record);
    void give_up(CmRecord& record);

    // What arrives: cm_agent_messages.cc.
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmReq& req);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmMra& mra);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmRej& rej);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmRep& rep);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmRtu& rtu);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmDreq& dreq);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmDrep& drep);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmSidrReq& req);
    void take(const Address& from, std::uint64_t transaction_id, const protocol::CmSidrRep& rep);
    std::optional<protocol::CmRejectReason> objection_to(const protocol::CmReq& req) const;
    void begin_request(const Address& from, std::uint64_t transaction_id,
                       const protocol::CmReq& req, std::uint64_t context);
    void repeat_answer(CmRecord& record, std::uint64_t transaction_id, const protocol::CmReq& req);
    void repeat_answer(CmRecord& record, std::uint64_t transaction_id, const protocol::CmRep& rep);
    bool is_of_answered_pair(const Address& from, const protocol::CmReq& req);
    bool end_predecessor(const Address& from, std::uint32_t remote_qpn);
    CmRecord* find_disconnected(const Address& from, const protocol::CmDreq& dreq);
    CmRecord* find_rejected(const Address& from, const protocol::CmRej& rej);
    CmRecord* find_exact(const Address& from, std::uint32_t local_id, std::uint32_t remote_id);
    void report_disconnected(CmRecord& record, CmEnd end, std::span<const std::byte> private_data);
    [[nodiscard]] bool has_room_for_request() const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> listener_of(std::uint64_t service_id) const;

    // Both.
    void send(CmRecord& record, const protocol::CmMessage& message);
    void send_again(const CmRecord& record) { wire_.send_mad(record.peer, record.mad); }
    void send_once(const AhAttr& to, std::uint64_t transaction_id,
                   const protocol::CmMessage& message);
    static void set_timing(CmRecord& record, std::uint8_t response_timeout,
                           std::uint8_t local_ack_timeout) noexcept;
    void expect_answer(CmRecord& record, std::uint8_t retries);
    void wait_longer(CmRecord& record, std::uint64_t extra_us);
    CmEvent& report(const CmRecord& record, CmEventType type);
    CmEvent& report_end(CmRecord& record, CmEventType type);
    void establish_passive(CmRecord& record, std::span<const std::byte> private_data);
    void enter_time_wait(CmRecord& record);

    const CmConfig config_;
    CmWire& wire_;
    CmSecret secret_;
    CmRecords records_;
    std::unordered_map<std::uint64_t, std::uint64_t> listeners_;  // contexts by service
    std::optional<std::uint64_t> listener_for_any_;               // its context
    std::deque<CmEvent> events_;
    CmStats stats_;
    std::uint64_t now_us_ = 0;  // of the call under way
};

}  // namespace rvt::core
