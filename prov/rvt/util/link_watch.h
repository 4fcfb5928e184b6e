// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What happens to the network interfaces of this host, as the kernel tells it (rtnetlink(7)): one
// socket for all who want to know. Threads: control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "util/control_thread.h"
#include "util/fork_guard.h"
#include "util/status.h"

namespace rvt::util {

class LinkWatch final : public ControlThread::Handler {
  public:
    /// Who wants to know.
    class Listener {
      public:
        /// The state, the MTU or the addresses of these interfaces may have changed. Changes that
        /// follow each other at once are told together.
        /// @param interfaces  Their numbers; none: nobody knows which.
        virtual void links_changed(std::span<const unsigned> interfaces) = 0;

      protected:
        Listener() = default;
        ~Listener() = default;
        Listener(const Listener&) = delete;
        Listener& operator=(const Listener&) = delete;
    };

    /// The watch of this process; opens it when there is none.
    /// Returns: EMFILE, ENOMEM, ENOSPC; EPERM and the like where the kernel forbids such sockets.
    static Result<std::shared_ptr<LinkWatch>> acquire(ControlThread& thread);
    /// Precondition: no listener is left. Use acquire().
    explicit LinkWatch(ControlThread& thread) noexcept : Handler(thread) {}
    ~LinkWatch() override;
    LinkWatch(const LinkWatch&) = delete;
    LinkWatch& operator=(const LinkWatch&) = delete;

    void add(Listener& listener) { listeners_.push_back(&listener); }
    void remove(Listener& listener) noexcept { std::erase(listeners_, &listener); }

    void on_ready(std::uint32_t events) override;
    void on_timer() override;

  private:
    Status start();
    void take(std::span<const char> messages);
    void note(unsigned interface);

    const unsigned generation_ = fork_generation();
    ProcessFd socket_;
    std::vector<Listener*> listeners_;
    std::vector<unsigned> changed_;  // interfaces that nobody has been told of
    bool is_any_unknown_ = false;    // nor of some whose numbers are lost
};

}  // namespace rvt::util
