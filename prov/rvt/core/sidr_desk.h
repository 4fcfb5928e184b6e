// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The datagram services of one device, which are numbers of rdma_cm's port space UDP: whose pairs
// answer for them, and the questions for pairs of other devices. Its owner has the communication
// manager that carries both, and hands over the events that are about them. IBTA vol. 1, 12.11
// (service ID resolution).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/cm_agent.h"
#include "core/ud_services.h"
#include "rvt/status.h"
#include "rvt/types.h"

namespace rvt::core {

/// Threads: one at a time; the owner serialises.
class SidrDesk {
  public:
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};

    /// @param agent      Outlives the desk.
    /// @param udp_port   Of this device and of all whom it asks.
    /// @param timeout_us For an answer, all repetitions together.
    SidrDesk(CmAgent& agent, std::uint16_t udp_port, std::uint64_t timeout_us) noexcept
        : agent_(agent), udp_port_(udp_port), timeout_us_(timeout_us) {}

    /// As UdServices::open_service().
    Status open(std::uint16_t service, const UdPair& pair, SidrUser& user);
    /// As UdServices::close_service().
    void close(std::uint16_t service, std::uint64_t now_us) noexcept;

    /// As UdServices::ask().
    Status ask(const Address& peer, std::uint16_t own, std::uint64_t now_us);

    /// Returns: whether the event is about datagram services.
    bool take(const CmEvent& event, std::uint64_t now_us);
    /// As MadSink::peer_refused().
    void peer_refused(const Address& host, std::uint32_t dest_qpn, std::uint64_t now_us);
    void run_timers(std::uint64_t now_us);
    [[nodiscard]] std::uint64_t next_due_us() const noexcept;

  private:
    struct Service {
        UdPair pair;
        SidrUser* user;
    };
    struct Question {
        Address peer;
        std::uint16_t own;
        CmHandle handle;
        std::uint64_t deadline_us;
    };

    Result<CmHandle> send(const Address& peer, std::uint16_t own, std::uint64_t now_us);
    void answer(const CmEvent& request, std::uint64_t now_us);
    void finish(std::size_t i, const Result<UdPair>& pair);

    CmAgent& agent_;
    const std::uint16_t udp_port_;
    const std::uint64_t timeout_us_;
    std::unordered_map<std::uint16_t, Service> services_;
    std::vector<Question> questions_;
};

}  // namespace rvt::core
