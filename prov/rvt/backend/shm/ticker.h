// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Progress in the application's stead. While the application polls, the control thread only looks
// now and then whether it still does; when it does not, the control thread asks to be woken by
// arriving work and makes the progress itself. Without automatic progress it does so when a peer
// asks for it, and sends what was posted before its peer was connected. Threads: control thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "backend/shm/connection.h"
#include "util/control_thread.h"
#include "util/unique_fd.h"

namespace rvt::shm {

class Ticker final : public util::ControlThread::Handler {
  public:
    Ticker(util::ControlThread& thread, ConnectionUser& user, bool has_auto_progress) noexcept
        : Handler(thread), user_(user), has_auto_progress_(has_auto_progress) {}

    /// `wake_fd` is what peers write to when they are asked to; it is never read here, as the
    /// application may sleep on it too. It outlives this object.
    void start(int wake_fd);
    /// A peer asks for progress. While the application polls it is left to it, but for a look a
    /// little later whether it still does: the peer asked before it could see that.
    void kick(bool is_polling);
    /// The endpoint is connected to another peer, for whom operations may wait. If the application
    /// does not poll, which it need not do to have them sent, they are sent in its stead.
    void note_connected();
    /// The application polls; threads of it may sleep that are to be woken when it ceases to.
    void note_polling(bool has_sleepers);

    void on_ready(std::uint32_t events) override;
    void on_timer() override;

  private:
    using Clock = util::ControlThread::Clock;

    void watch_application();
    void look_again();
    void look_for_sends();
    void send_for_application();
    void take_over();
    bool arm();
    bool leave_to_sleepers() noexcept;
    void disarm() noexcept;
    void rest();

    ConnectionUser& user_;
    const bool has_auto_progress_;
    int wake_fd_ = -1;
    bool is_armed_ = false;            // peers write to wake_fd, so nothing has to be looked after
    bool only_sends_ = false;          // the timer is for what has been posted
    bool is_newly_connected_ = false;  // and the timer, if there is one, began before
    bool has_sleepers_ = false;        // without automatic progress: the timer is for who sleeps
    std::uint64_t last_count_ = 0;
    std::chrono::milliseconds rest_{0};
};

}  // namespace rvt::shm
