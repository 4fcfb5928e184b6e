// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The control thread's eye on one wire. While the wire is quiet it waits for a
// packet and tells the owner; while the owner does not poll it answers peers in its stead. Threads:
// control thread, where a member does not say otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "hold_watch.h"
#include "util/busy_poll.h"
#include "util/control_thread.h"

namespace rvt {

/// A wire and its owner: the threads of the application that poll it.
class WatchedWire {
  public:
    /// Changes with each poll of the owner. Threads: any.
    virtual std::uint64_t owner_polls() const noexcept = 0;
    /// Does what the owner's next poll would do, as far as that is allowed to others. It is not
    /// counted by owner_polls(). Returns: false when the owner is inside a poll; nothing is done
    /// then.
    virtual bool poll_for_owner() noexcept = 0;
    /// When the latest poll that found something was; changes with each, as far as its unit tells.
    virtual std::uint64_t wire_traffic_us() const noexcept { return 0; }
    /// No poll follows for a while: lets go what would wait for one, and has wire_fd() tell of what
    /// comes. Returns: false when something has come.
    virtual bool let_go() noexcept { return true; }
    /// Sends what the owner's next poll would let go. Returns: whether it could.
    virtual bool send_held() noexcept = 0;
    /// When the wire has to be polled though nothing arrives, and what time it is, by its clock.
    virtual std::uint64_t wire_due_us() noexcept = 0;
    virtual std::uint64_t wire_now_us() noexcept = 0;
    /// Readable when something has arrived.
    virtual int wire_fd() noexcept = 0;
    /// Something has arrived: wire_fd() was readable.
    virtual void wire_is_ready() noexcept {}
    /// Whether peers have their answers from a NIC, and little of the owner while it is busy
    /// elsewhere.
    virtual bool is_left_to_nic() const noexcept { return false; }
    /// Gives back memory that is not needed now. Called now and then.
    virtual void trim_wire() noexcept {}

  protected:
    ~WatchedWire() = default;
};

class WireWatch final : public util::ControlThread::Handler {
  public:
    /// All outlive the watch.
    /// @param is_hot  Set when there is something to poll for; cleared by who polls.
    WireWatch(util::ControlThread& thread, WatchedWire& wire, std::atomic<bool>& is_hot) noexcept
        : Handler(thread), wire_(wire), is_hot_(is_hot), busy_poll_(kBusyPoll) {}

    /// Lets go what is held on a device of packets for longer than it should be. Before start().
    /// Returns: EMFILE, ENOMEM, ENOSPC.
    util::Status watch_holds(core::Device& device);
    /// Begins to watch the device's socket. Returns: ENOMEM, ENOSPC.
    util::Status start();
    /// The owner has found the wire quiet and leaves it to the watch. Threads: any.
    void leave_to_watch() noexcept;

    void on_ready(std::uint32_t events) override;
    void on_timer() override;

  private:
    using Clock = util::ControlThread::Clock;

    /// How long the next packets are polled for where they have come as soon: the owner may need
    /// the core.
    static constexpr std::chrono::microseconds kBusyPoll{50};

    void take_over();
    void leave_for_owner();
    void rest();
    void trim();

    WatchedWire& wire_;
    std::atomic<bool>& is_hot_;
    std::unique_ptr<HoldWatch> holds_;
    util::BusyPoll busy_poll_;  // in the owner's stead
    bool is_owner_away_ = false;
    std::uint64_t last_count_ = 0;
    std::chrono::milliseconds pause_{0};
    Clock::time_point next_trim_{};
};

}  // namespace rvt
