// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The control thread's side of one Connector: its listening socket, the peers that it knows or
// tries to know, and the rule for crossing connects. Threads: control thread, where a member does
// not say otherwise.
//
// Of two handshakes between the same endpoints, one dialled by each, the one of the lower address
// survives. A peer has at most one of: an established link; a dial of ours; an answer of ours, with
// a dial of ours that waits for its outcome.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>

#include "backend/shm/connection.h"
#include "backend/shm/handshake.h"
#include "backend/shm/link.h"
#include "backend/shm/peer_memory.h"
#include "backend/shm/ticker.h"
#include "util/annotations.h"
#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/mutex.h"

namespace rvt::shm {

class Switchboard;

/// Our wish to reach an address: attempts with jittered back-off until one works or the time is
/// over.
class Dial final : public util::ControlThread::Handler {
  public:
    using Clock = util::ControlThread::Clock;

    Dial(util::ControlThread& thread, Switchboard& board, const util::SockAddr& peer);

    /// Tries now.
    void attempt();
    /// Whether a socket to the peer is open: the peer will see our side of a crossing.
    bool is_under_way() const noexcept { return handshake_ != nullptr; }
    Handshake* handshake() const noexcept { return handshake_.get(); }
    /// Waits for the outcome of an answer to the same peer.
    void yield();
    /// Goes on after an attempt, or an answer in its stead, that ended without success.
    void retry_after(util::Status why);

    void on_timer() override;

  private:
    void end_handshake();
    bool is_transient(util::Status why) const noexcept;
    void give_up(util::Status why, bool was_refused_by_peer);

    Switchboard& board_;
    const util::SockAddr peer_;
    Clock::time_point started_;  // later by the time for which this process was stopped
    std::unique_ptr<Handshake> handshake_;
    std::chrono::microseconds pause_;
    unsigned attempts_ = 0;
};

class Switchboard final : public util::ControlThread::Handler,
                          public Handshake::Owner,
                          public LinkOwner {
  public:
    /// Makes the listening socket. Threads: any. Returns: as Connector::open().
    static util::Result<std::unique_ptr<Switchboard>> open(util::ControlThread& thread,
                                                           const ListenAttr& attr);
    ~Switchboard() override;
    Switchboard(const Switchboard&) = delete;
    Switchboard& operator=(const Switchboard&) = delete;

    util::Status start();
    void connect(const util::SockAddr& address);
    void look_for(const util::SockAddr& address);
    void close(std::uint64_t link);
    void request_region(std::uint64_t link, std::uint64_t key);
    void note_polling(bool has_sleepers) { ticker_.note_polling(has_sleepers); }
    /// See Connector::is_in_use().
    bool is_in_use(std::uint64_t mark) const noexcept;
    /// Threads: any.
    void wake_peer(std::uint64_t link) noexcept;

    // What a Dial needs.
    const ListenAttr& attr() const noexcept { return attr_; }
    const LocalEnd& local() const noexcept { return local_; }
    std::minstd_rand& random() noexcept { return random_; }
    /// @param peer  A copy: the Dial that calls is gone before the end.
    void dial_failed(util::SockAddr peer, util::Status why);

    void on_ready(std::uint32_t events) override;
    void on_timer() override;
    util::Status admit(Handshake& handshake) override;
    void finished(Handshake& handshake) override;
    void link_ended(Link& link, util::Status why) override;
    void link_woken() override;
    util::Result<RegionSource> region_asked(std::uint64_t key) override;
    void region_answered(Link& link, std::uint64_t key, util::Result<MappedRegion> region) override;

  private:
    struct Peer {
        std::unique_ptr<Dial> dial;
        Handshake* answer = nullptr;  // owned by answers_
        std::unique_ptr<Link> link;
    };
    struct Socket {
        int fd = -1;  // -1: an endpoint's link to itself
        util::SockAddr peer;
    };
    struct AddressHash {
        std::size_t operator()(const util::SockAddr& address) const noexcept {
            return address.hash();
        }
    };
    using Clock = util::ControlThread::Clock;

    Switchboard(util::ControlThread& thread, const ListenAttr& attr);
    util::Status listen();

    Link* find_link(std::uint64_t id);
    bool accept_one();
    void turn_away(int error);
    void connect_self(Peer& peer);
    void establish(Peer& peer, std::unique_ptr<Peering> peering, util::ProcessFd socket);
    void answer_ended(Handshake& handshake);
    /// Ends a link, and tells the endpoint.
    void drop_link(Peer& peer, util::Status why);
    void end_link(Peer& peer);
    void forget_if_idle(const util::SockAddr& address);
    void deliver(std::unique_ptr<ConnectionEvent> event);

    const ListenAttr attr_;
    LocalEnd local_;
    util::ProcessFd wake_fd_;
    util::ProcessFd listener_;
    util::UniqueFd spare_;  // given up for a moment to refuse a peer when there are no descriptors
    std::minstd_rand random_;
    Ticker ticker_;
    ProcessWatch processes_;
    std::unordered_map<util::SockAddr, Peer, AddressHash> peers_;
    std::unordered_map<Handshake*, std::unique_ptr<Handshake>> answers_;
    std::uint64_t next_link_ = 1;

    util::Mutex sockets_lock_;  // order: after ForkHold; before none
    std::unordered_map<std::uint64_t, Socket> sockets_
        RVT_GUARDED_BY(sockets_lock_);  // of links, for wake_peer()
};

}  // namespace rvt::shm
