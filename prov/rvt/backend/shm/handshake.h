// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One attempt to get two endpoints to know each other, from either side:
//
//     dialling                     answering
//     connect, kHello  ----------> check, map
//     check, map       <---------- kHello
//     kReady           ----------> done
//     done
//
// Neither side writes to a ring before both have mapped it. Threads: control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/shm/connection.h"
#include "backend/shm/peer_memory.h"
#include "backend/shm/wire_up.h"
#include "util/control_thread.h"

namespace rvt::shm {

class Handshake final : public util::ControlThread::Handler {
  public:
    using Clock = util::ControlThread::Clock;

    class Owner {
      public:
        /// A peer has said who it is. Returns: 0 to go on, else what to refuse it with (EALREADY:
        /// crossing).
        virtual util::Status admit(Handshake& handshake) = 0;
        /// The end, good or bad. The owner destroys the handshake.
        virtual void finished(Handshake& handshake) = 0;

        /// Whether a handshake may be under way. Threads: any.
        bool has_handshakes() const noexcept {
            // acquire: pairs with the release in ~Handshake(): what it led to can be seen.
            return handshakes_.load(std::memory_order_acquire) != 0;
        }

      protected:
        ~Owner() = default;

      private:
        friend class Handshake;
        std::atomic<unsigned> handshakes_{0};
    };

    Handshake(util::ControlThread& thread, const LocalEnd& local, Owner& owner) noexcept
        : Handler(thread), local_(local), owner_(owner) {
        // Before the peer gets our key table: it finds a key closed if who has closed it sees us
        // not. seq_cst: pairs with the fence of ReaderWait.
        owner_.handshakes_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Handshake() override {
        unwatch();
        // release: pairs with the acquire in has_handshakes().
        owner_.handshakes_.fetch_sub(1, std::memory_order_release);
    }
    Handshake(const Handshake&) = delete;
    Handshake& operator=(const Handshake&) = delete;

    /// Begins towards the endpoint at `address`.
    /// Returns: ECONNREFUSED (nobody listens), EAGAIN and ETOOMANYREFS (too many at once),
    ///          EACCES (another user), EPERM (a security module), ENOMEM, EMFILE, EFBIG; after
    ///          these it is over and finished() is not called.
    util::Status dial(const util::SockAddr& address, Clock::time_point deadline);
    /// Begins with a peer that has connected to us. Returns: as dial().
    util::Status answer(util::ProcessFd socket, Clock::time_point deadline);

    /// How it ended. ECONNRESET: the peer went away; ETIMEDOUT; EPROTO: it does not keep to the
    /// format; others: it or we refused.
    util::Status status() const noexcept { return status_; }
    bool was_refused_by_peer() const noexcept { return was_refused_by_peer_; }
    const util::SockAddr& peer() const noexcept { return peer_; }
    std::uint64_t incarnation() const noexcept { return incarnation_; }
    int peer_pid() const noexcept { return credentials_.pid; }
    /// For how long this process has been stopped meanwhile, by which the deadline was put off.
    Clock::duration stopped() const noexcept { return stopped_ + stopped_for(); }
    /// Whether the peer has closed its end already.
    bool is_hung_up() const noexcept;
    /// Whether this mark is in the page of the peer, which may be connected before we are.
    bool is_in_use(std::uint64_t mark) const noexcept;

    // After a good end.
    std::unique_ptr<Peering> take_peering() noexcept { return std::move(peering_); }
    util::ProcessFd take_socket() noexcept;

    void on_ready(std::uint32_t events) override;
    void on_timer() override;

  private:
    enum class State : std::uint8_t { kAwaitHello, kAwaitReply, kAwaitReady, kDone, kFailed };

    util::Status begin(State first, Clock::time_point deadline);
    void set_next_look();
    util::Status check_user() noexcept;
    State step(State state);
    State await_hello();
    State await_reply();
    State await_ready();
    State refuse(util::Status why) noexcept;
    State fail(util::Status why) noexcept;

    util::Status introduce();
    util::Result<Message> receive(MessageType wanted);
    util::Status map(Message& message);

    const LocalEnd& local_;
    Owner& owner_;
    util::ProcessFd socket_;
    PeerCredentials credentials_;
    util::SockAddr peer_;
    std::uint64_t incarnation_ = 0;
    util::Mapping outbox_;
    std::unique_ptr<Peering> peering_;
    Clock::time_point deadline_;
    Clock::duration stopped_{};  // up to the last look
    bool had_moment_ = false;    // after a stop
    State state_ = State::kAwaitHello;
    bool was_refused_by_peer_ = false;
    util::Status status_;
};

/// Whether the other end of a socket is closed.
bool is_hung_up(int socket) noexcept;

}  // namespace rvt::shm
