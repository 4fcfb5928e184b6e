// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The peers of a datagram endpoint at a port that is shared: an address names a host and a service,
// and the pair behind it is asked for with the first datagram to it. Until the answer comes,
// datagrams are kept.
//
// How long an answer is believed: until the peer's host says that nobody has its UDP port, else for
// kBelievedUs, and as long again while datagrams of that pair come. The first send after that asks
// again and goes where the last answer said. Another answer replaces it; a refusal or silence does
// not: who does not listen any more may receive all the same.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "core/address_vector.h"
#include "core/device.h"
#include "core/rd_types.h"
#include "core/ud_services.h"
#include "core/wc.h"
#include "util/annotations.h"
#include "util/mutex.h"

namespace rvt::core {

/// A datagram that waits, with what was injected copied.
struct UdKept {
    RdSend request;
    std::array<iovec, kMaxIov> iov;
    std::vector<std::byte> injected;
};

/// What the endpoint does. Threads: holder of the domain's lock.
class UdResolverOwner {
  public:
    /// Sends one that has waited, and may use the pair for its number as with find_locked().
    /// Returns: EAGAIN: later; any other end is reported.
    virtual Status post_kept_locked(const UdKept& kept, const UdPair& pair) noexcept = 0;
    virtual void fail_kept_locked(const UdKept& kept, WcStatus status) noexcept = 0;
    /// The pair of a number is to be asked for by find_locked() again.
    virtual void unlearn_locked(std::uint64_t number) noexcept = 0;
    /// There is news; the caller holds locks. Threads: any.
    virtual void wake() noexcept = 0;

  protected:
    ~UdResolverOwner() = default;
};

/// Threads: holder of the domain's lock.
class UdResolver final : private SidrUser {
  public:
    static constexpr std::uint64_t kBelievedUs = 5'000'000;
    static constexpr std::size_t kMostKept = 64;  // for one peer

    /// @param most_kept  For all peers together.
    UdResolver(const Device& device, UdServices& services, std::uint16_t service,
               std::size_t most_kept, UdResolverOwner& owner) noexcept
        : device_(device),
          services_(services),
          service_(service),
          most_kept_(most_kept),
          owner_(owner) {}
    /// What is kept is dropped.
    ~UdResolver();
    UdResolver(const UdResolver&) = delete;
    UdResolver& operator=(const UdResolver&) = delete;

    /// Lets others find this pair. Once, before all else. Returns: EADDRINUSE.
    Status open(const UdPair& own);

    /// The pair behind an address. The owner may use it for that number without asking until
    /// unlearn_locked(). Returns: EAGAIN while it is asked for.
    Result<UdPair> find_locked(std::uint64_t number, const util::SockAddr& address) noexcept;
    /// Keeps a datagram until then. Precondition: find_locked() has just been EAGAIN.
    /// Returns: EAGAIN when as many are kept as may be.
    Status keep_locked(const RdSend& request, const util::SockAddr& address) noexcept;
    /// A number of the address has been removed.
    void forget_locked(std::uint64_t number, const util::SockAddr& address) noexcept;

    /// The address of who sent a datagram. Returns: ENOENT when no answer has named that pair.
    Result<util::SockAddr> source_of(const Address& host, std::uint32_t qpn) noexcept;

    /// What is kept ends with that status.
    void fail_all_locked(WcStatus status) noexcept;
    /// Acts on what has been answered.
    void run_locked(const AddressVector& av) noexcept;
    /// Whether something has been.
    [[nodiscard]] bool has_news() const noexcept {
        // acquire: pairs with the release in tell().
        return has_news_.load(std::memory_order_acquire);
    }

  private:
    struct Peer {
        UdPair pair{};          // number 0: not known
        bool is_asked = false;  // an answer is due
        bool was_heard = false;
        std::uint64_t believed_until_us = 0;
        std::vector<std::uint64_t> numbers;  // that the owner uses
        std::deque<UdKept> kept;
    };
    struct News {
        Address peer;            // of pair_gone(): the host's
        std::uint32_t gone_qpn;  // 0: an answer
        Result<UdPair> pair;
    };
    struct Hash {
        std::size_t operator()(const Address& address) const noexcept;
    };
    struct Source {
        std::array<std::uint8_t, 16> gid;
        std::uint32_t qpn;
        friend bool operator==(const Source&, const Source&) noexcept = default;
    };
    struct SourceHash {
        std::size_t operator()(const Source& source) const noexcept;
    };
    using Peers = std::unordered_map<Address, Peer, Hash>;

    // SidrUser
    void resolved(const Address& peer, const Result<UdPair>& pair) noexcept override;
    void pair_gone(const Address& host, std::uint32_t qpn) noexcept override;
    void device_gone() noexcept override { owner_.wake(); }
    void tell(News news) noexcept;

    void take_news_locked() noexcept;
    void take_answer_locked(const Address& address, Peer& peer,
                            const Result<UdPair>& pair) noexcept;
    Status ask_locked(const Address& address, Peer& peer) noexcept;
    void learn_locked(const Address& address, Peer& peer, const UdPair& pair) noexcept;
    void unlearn_locked(const Address& address, Peer& peer) noexcept;
    void lose_locked(const Address& address, Peer& peer) noexcept;
    static void note_use_locked(Peer& peer, std::uint64_t number) noexcept;
    void stop_use_locked(Peer& peer) noexcept;
    void fail_locked(const Address& address, Peer& peer, int error) noexcept;
    void send_kept_locked(Peer& peer) noexcept;
    void look_at_peers_locked(const AddressVector& av, std::uint64_t now_us) noexcept;

    const Device& device_;
    UdServices& services_;
    const std::uint16_t service_;
    const std::size_t most_kept_;
    UdResolverOwner& owner_;
    bool is_open_ = false;
    Peers peers_;  // by host and service
    std::unordered_map<Source, Address, SourceHash> sources_;
    std::size_t kept_ = 0;
    bool can_send_kept_ = false;  // of peers whose pair is known
    std::uint64_t next_look_us_ = 0;
    std::atomic<bool> has_news_{false};
    util::Mutex news_lock_;  // order: after the port's lock
    std::vector<News> news_ RVT_GUARDED_BY(news_lock_);
};

}  // namespace rvt::core
