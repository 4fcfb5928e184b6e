// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The RD service as the libfabric layer sees it: one reliable-datagram endpoint that talks to many
// peers. The data path is RdEngine (rd_engine.h), a template over the lock policy and the same-host
// path that derives from this class; what stands here is what is asked rarely and may cost a
// virtual call.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/address_vector.h"
#include "core/progress_source.h"
#include "core/rd_types.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::core {

class Device;

/// Threads: as the lock policy of the engine says. Members take the domain's lock themselves,
/// except progress and those with the suffix _locked, whose caller (a completion queue or counter
/// of the same domain) holds it.
class RdEndpoint : public ProgressSource, public AddressObserver {
  public:
    /// Where completions go and who gives numbers to peers. Set before enable(); after it, the same
    /// with more counters.
    virtual void bind(const RdCompletion& completion, AddressVector* av) noexcept = 0;
    /// Binds the address, starts to answer peers.
    /// Returns: EADDRINUSE, EADDRNOTAVAIL, EMFILE, ENOMEM as the system says.
    virtual util::Status enable() = 0;
    /// From now on what happens to the interface of its address is noticed though nothing is sent.
    /// To be called once it is enabled. May throw bad_alloc.
    /// Returns: whose events tell of it: the device of packets, and the NIC that carries flows;
    /// nullptr where there is none. They are there until this is destroyed.
    virtual std::array<Device*, 2> watch_wire() = 0;
    /// The address that peers reach this endpoint at; the port is 0 before it is bound.
    virtual util::SockAddr address() const noexcept = 0;
    /// Binds the address now, before enable(). Returns: as enable(), EBUSY once it has been bound.
    virtual util::Status bind_address(const util::SockAddr& address) = 0;

    // The data path for those who do not know the engine's type; what the engine returns.
    virtual util::Status send(const RdSend& request) noexcept = 0;
    virtual util::Status recv(const RdRecv& request) noexcept = 0;
    virtual util::Status rma(const RdRma& request) noexcept = 0;
    virtual util::Status atomic(const RdAtomic& request) noexcept = 0;

    /// Sends operations that wait for room, or for a connection that is there by now. That does not
    /// count as a poll.
    virtual void send_waiting_locked() noexcept = 0;
    /// Whether there are any.
    virtual bool has_unsent_locked() const noexcept = 0;

    /// Cancels one posted receive, or one send that has not left. Its completion is kCanceled.
    /// Returns: ENOENT when no such operation can be cancelled.
    virtual util::Status cancel(void* context) noexcept = 0;
    /// The bytes below which a multi-receive buffer is given back.
    virtual void set_min_multi_recv(std::size_t bytes) noexcept = 0;
    virtual std::size_t min_multi_recv() const noexcept = 0;
    /// As without RdKeys::has_p2p, for what this endpoint does. Before enable().
    virtual void forbid_p2p() noexcept = 0;

    /// Whether a peer is reading or writing the memory behind this key of the domain directly,
    /// right now. The key is no longer valid when this is asked, so that the answer stays no once
    /// it is no. With kNoKey: any memory of this process, which end_copies() has closed to peers.
    virtual bool uses_key(std::uint32_t key) noexcept = 0;
    /// From now on no peer reads or writes memory of this process directly that this endpoint has
    /// named: what it wants goes through the rings. To be called before the endpoint is destroyed,
    /// as its buffers are the application's then, and nobody can be asked uses_key().
    /// Returns: EBUSY when one is in the middle of that for so long; call again to wait on.
    virtual util::Status end_copies(int timeout_ms) noexcept = 0;

    /// The region of this key is no more, and uses_key() has said no: takes it from the NICs of
    /// peers that have been told by which key of theirs it is to be reached.
    virtual void withdraw_key(std::uint32_t key) noexcept = 0;

    /// How a peer is reached, in words for logs and rvt_info: methods, and why others are not used.
    virtual std::string describe_peer(std::uint64_t dest) = 0;

    ~RdEndpoint() override = default;
};

}  // namespace rvt::core
