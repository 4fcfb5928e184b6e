// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An established connection: the socket of its handshake, kept open so that the kernel tells of the
// peer's death, and the few messages that follow. Threads: control thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "backend/shm/connection.h"
#include "backend/shm/wire_up.h"
#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::shm {

class Link;

class LinkOwner {
  public:
    /// The peer has ended, has closed, or broke the format (EPROTO). The owner destroys the link.
    virtual void link_ended(Link& link, util::Status why) = 0;
    /// The peer asks for progress, once or several times since the last call.
    virtual void link_woken() = 0;
    /// The peer asks for a region of ours. Returns: EACCES.
    virtual util::Result<RegionSource> region_asked(std::uint64_t key) = 0;
    /// The peer's answer to our request.
    virtual void region_answered(Link& link, std::uint64_t key,
                                 util::Result<MappedRegion> region) = 0;

  protected:
    ~LinkOwner() = default;
};

class Link final : public util::ControlThread::Handler {
  public:
    Link(util::ControlThread& thread, LinkOwner& owner, std::uint64_t id,
         const util::SockAddr& peer, std::uint64_t incarnation, int pid) noexcept
        : Handler(thread),
          owner_(owner),
          id_(id),
          peer_(peer),
          incarnation_(incarnation),
          pid_(pid) {}
    ~Link() override { unwatch(); }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Takes over the socket of a finished handshake; an endpoint's link to itself has none.
    /// Returns: ENOMEM, ENOSPC.
    util::Status start(util::ProcessFd socket);

    std::uint64_t id() const noexcept { return id_; }
    const util::SockAddr& peer() const noexcept { return peer_; }
    std::uint64_t incarnation() const noexcept { return incarnation_; }
    int pid() const noexcept { return pid_; }
    int socket() const noexcept { return socket_.get(); }
    bool is_hung_up() const noexcept;
    /// Asks for a region of the peer. Returns: as send_message(), ENOTSUP for a link to oneself.
    util::Status ask_region(std::uint64_t key) noexcept;

    void on_ready(std::uint32_t events) override;

  private:
    util::Status take_messages();
    util::Status take(Message& message);
    void answer_region(std::uint64_t key);
    util::Status answer_with_handle(std::uint64_t key, const RegionSource& source);
    util::Status take_region(Message& message);
    util::Status take_handle(const Message& message);

    LinkOwner& owner_;
    const std::uint64_t id_;
    const util::SockAddr peer_;
    const std::uint64_t incarnation_;
    const int pid_;
    util::ProcessFd socket_;
    std::uint64_t regions_asked_ = 0;  // and not yet answered
    bool is_woken_ = false;            // by the messages being taken
};

/// The processes that links lead to. Their pidfds tell of a death that the sockets hide, when a
/// process made by a bare clone(2) holds copies of them. One descriptor for each process; all of
/// them are given up when descriptors are scarce.
class ProcessWatch {
  public:
    explicit ProcessWatch(util::ControlThread& thread, LinkOwner& owner) noexcept
        : thread_(thread), owner_(owner) {}

    void add(Link& link);
    void remove(Link& link) noexcept;

  private:
    class Process final : public util::ControlThread::Handler {
      public:
        Process(util::ControlThread& thread, LinkOwner& owner) noexcept
            : Handler(thread), owner_(owner) {}
        ~Process() override { unwatch(); }
        Process(const Process&) = delete;
        Process& operator=(const Process&) = delete;

        void start(int socket, int pid);
        /// Leaves it to the sockets to tell of the death.
        void give_up() noexcept;
        void on_ready(std::uint32_t events) override;

        std::set<Link*> links;

      private:
        LinkOwner& owner_;
        util::ProcessFd pidfd_;
    };

    util::ControlThread& thread_;
    LinkOwner& owner_;
    std::map<int, std::unique_ptr<Process>> processes_;
};

}  // namespace rvt::shm
