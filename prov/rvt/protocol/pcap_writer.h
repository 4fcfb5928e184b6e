// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A capture of what devices send and receive, as a file that Wireshark reads: pcapng, one interface
// for each device, packets with the IP and UDP headers that they have on the wire. Writing it never
// disturbs who sends and receives: what goes wrong is said once, and ends the capture.
// Source: draft-ietf-opsawg-pcapng.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/wire_packet.h"
#include "rvt/status.h"
#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/mutex.h"

namespace rvt::protocol {

/// Threads: any. A forked child writes nothing: the file stays with the process that opened it.
class PcapWriter {
  public:
    enum class Direction : std::uint32_t { kIn = 1, kOut = 2 };  // as pcapng numbers them

    struct Record {
        std::uint32_t interface = 0;
        Direction direction = Direction::kIn;
        bool has_right_icrc = true;
        std::uint64_t at_ns = 0;  // of now_ns()
        WirePacket packet{};
    };

    /// Creates the file expand(name), or empties the one that is there.
    /// Returns: why there is no capture, after a warning; EBUSY when another one writes this file.
    static Result<std::shared_ptr<PcapWriter>> open(std::string_view name);
    /// Puts the process's number in the place of %p, and the host's name in that of %h.
    static std::string expand(std::string_view name);
    /// Writes what is left.
    ~PcapWriter() { flush(); }
    PcapWriter(const PcapWriter&) = delete;
    PcapWriter& operator=(const PcapWriter&) = delete;

    /// Describes an interface. Returns: what Record::interface names it by.
    std::uint32_t add_interface(std::string_view name) noexcept;
    void append(const Record& record) noexcept;
    /// Writes what append() has gathered.
    void flush() noexcept;
    /// The same once it has waited for kIdleNs: called again and again by who finds nothing to do,
    /// so that a crash takes little with it. Cost: a load when nothing waits.
    void flush_when_idle() noexcept;

    /// False after something went wrong.
    [[nodiscard]] bool is_on() const noexcept;

    /// Nanoseconds of the clock that captures of all hosts have in common.
    static std::uint64_t now_ns() noexcept;

  private:
    static constexpr std::size_t kBufferBytes = 256u << 10;
    static constexpr std::uint64_t kIdleNs = 10'000'000;

    PcapWriter(std::string file, util::ProcessFd fd, bool is_regular);

    std::byte* room_locked(std::size_t bytes) noexcept RVT_REQUIRES(lock_);
    void take_locked(std::size_t bytes) noexcept RVT_REQUIRES(lock_);
    void flush_locked() noexcept RVT_REQUIRES(lock_);
    Status write_locked() noexcept RVT_REQUIRES(lock_);
    void give_up_locked(Status why) noexcept RVT_REQUIRES(lock_);

    const std::string file_;
    const util::ProcessFd fd_;
    const bool is_regular_;  // a file, not a device
    const unsigned generation_ = util::fork_generation();
    std::atomic<bool> has_failed_{false};
    std::atomic<std::uint64_t> waiting_since_ns_{0};  // 0: nothing waits

    util::Mutex lock_;                                           // order: innermost
    std::unique_ptr<std::byte[]> buffer_ RVT_GUARDED_BY(lock_);  // whole blocks
    std::size_t used_ RVT_GUARDED_BY(lock_) = 0;
    std::uint64_t written_ RVT_GUARDED_BY(lock_) = 0;
    std::uint32_t interfaces_ RVT_GUARDED_BY(lock_) = 0;
};

/// A device's interface in a capture; without one it is off.
class PcapInterface {
  public:
    PcapInterface() noexcept = default;
    PcapInterface(std::shared_ptr<PcapWriter> writer, std::string_view name) noexcept
        : writer_(std::move(writer)), id_(writer_ != nullptr ? writer_->add_interface(name) : 0) {}

    [[nodiscard]] bool is_on() const noexcept { return writer_ != nullptr; }

    // Precondition of each: is_on().
    void sent(const WirePacket& packet, std::uint64_t at_ns) const noexcept {
        writer_->append({.interface = id_,
                         .direction = PcapWriter::Direction::kOut,
                         .at_ns = at_ns,
                         .packet = packet});
    }
    void received(const WirePacket& packet, bool has_right_icrc) const noexcept {
        writer_->append({.interface = id_,
                         .has_right_icrc = has_right_icrc,
                         .at_ns = PcapWriter::now_ns(),
                         .packet = packet});
    }
    [[nodiscard]] PcapWriter& writer() const noexcept { return *writer_; }

  private:
    std::shared_ptr<PcapWriter> writer_;
    std::uint32_t id_ = 0;
};

}  // namespace rvt::protocol
