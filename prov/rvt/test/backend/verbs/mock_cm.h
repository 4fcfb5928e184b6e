// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An rdma_cm that exists only here: what it is asked, and what it reports. One at a time. As with
// the kernel's, the end of an id waits until its events have been acknowledged.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/verbs/library.h"
#include "util/sock_addr.h"

namespace rvt::verbs {

/// The number of who asks for any.
inline constexpr std::uint16_t kAnyNumber = 4242;

class MockCm {
  public:
    /// Has these functions be its own.
    explicit MockCm(Library& functions);
    ~MockCm();
    MockCm(const MockCm&) = delete;
    MockCm& operator=(const MockCm&) = delete;

    struct Report {
        rdma_cm_event_type type;
        int status = 0;
        std::span<const char> private_data{};
        std::uint32_t qpn = 0;
        std::uint32_t qkey = 0;
    };
    /// What it says next of this id.
    void report(rdma_cm_id& id, const Report& what);
    /// A peer at this address asks who listens. Returns: the request's.
    rdma_cm_id* request(rdma_port_space space, const util::SockAddr& from,
                        std::span<const char> private_data = {});

    // What it answers.
    std::string_view failing;    // the call that fails
    int error = EMFILE;          // with this
    ibv_context* nic = nullptr;  // of its ids; nullptr: ways lead elsewhere
    rdma_ib_addr ib{};           // of the interface that ids are bound to
    int retries = 7;             // of a pair that is to send, as the other end has asked for

    // What it was asked.
    std::vector<rdma_cm_id*> ids;  // that there are
    std::vector<std::string_view> calls;
    rdma_conn_param accepted{};             // the latest
    std::vector<char> private_data;         // of the latest call
    std::uint8_t responder_resources = 16;  // of requests and answers that come in, as the
    std::uint8_t initiator_depth = 16;      // recipient is to take them: rdma_get_cm_event(3)
    [[nodiscard]] bool is_asked(std::string_view call) const;
    /// Ids and channels that have not been destroyed.
    [[nodiscard]] std::size_t live() const { return ids.size() + channels; }

    struct Event : rdma_cm_event {
        std::vector<char> bytes;
    };
    std::deque<Event> events;
    std::function<void()> at_acknowledgement;  // what another thread does meanwhile; once
    std::size_t channels = 0;
    std::vector<const rdma_cm_event*> unacknowledged;
    bool waits_for_ever = false;  // an id ends, and events of its have not been acknowledged
};

}  // namespace rvt::verbs
