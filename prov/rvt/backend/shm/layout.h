// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Bytes in shared memory: what processes of one host show each other, and who may write what.
//
// Every process writes only to memory files of its own and maps those of others read-only. A peer
// that writes garbage can therefore spoil what it sends, never what it receives. The files are
// sealed against shrinking, so that no access can fault. docs/shm-format.md explains the format;
// kLayoutVersion changes with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/rd_types.h"
#include "util/cpu.h"

namespace rvt::shm {

inline constexpr std::uint32_t kMagic = 0x52565431;  // "RVT1"
inline constexpr std::uint32_t kLayoutVersion = 10;
inline constexpr std::size_t kPageBytes = 4096;

/// One slot of a ring: header and small payload in one cache line.
///
/// | field   | written by | read by  | order                                        | trusted? |
/// |---------|------------|----------|----------------------------------------------|----------|
/// | meta    | sender     | receiver | release when the rest is written / acquire   | no       |
/// | others  | sender     | receiver | published by meta                            | no       |
///
/// meta, from the top: lap 16 (number of the pass over the ring, from 1: a new line is told from an
/// old one by it), op 8, flags 8, 8 that are 0, length 24 (bytes of payload that go with
/// this line).
struct alignas(util::kCacheLine) Line {
    static constexpr std::size_t kPayloadBytes = 40;
    /// A continuation line carries payload in everything but meta.
    static constexpr std::size_t kContinuationBytes = 56;

    std::atomic<std::uint64_t> meta;
    std::uint64_t tag;
    std::uint64_t data;
    std::byte payload[kPayloadBytes];

    /// The kContinuationBytes of a continuation line.
    std::byte* continuation() noexcept { return reinterpret_cast<std::byte*>(this) + sizeof meta; }
    const std::byte* continuation() const noexcept {
        return reinterpret_cast<const std::byte*>(this) + sizeof meta;
    }
};
static_assert(sizeof(Line) == util::kCacheLine);

/// First page of an outbox: the memory file with what one endpoint sends to one peer.
///
/// | field          | written by          | read by             | order               | trusted? |
/// |----------------|---------------------|---------------------|---------------------|----------|
/// | magic..bytes   | owner, once         | peer, once          | the handshake       | checked  |
/// | consumed_lines | owner, as receiver  | peer, as sender     | release / acquire   | bounded  |
/// | consumed_bytes | owner, as receiver  | peer, as sender     | release / acquire   | bounded  |
/// | hold_eager     | owner, as receiver  | peer, as sender     | relaxed: a hint     | a hint   |
struct OutboxHeader {
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t total_bytes;

    // Credits for the opposite direction: how far the owner has read the peer's outbox.
    alignas(util::kCacheLine) std::atomic<std::uint64_t> consumed_lines;
    std::atomic<std::uint64_t> consumed_bytes;
    // 1: too much waits unmatched, send rendezvous headers only. The peer looks at this line only
    // when the rings seem full: each look takes it from the owner's cache, whose next stores, a
    // reply among them, then wait until it is back.
    std::atomic<std::uint32_t> hold_eager;
};
static_assert(sizeof(OutboxHeader) <= kPageBytes);

// A pair starts small and moves to the large rings when it is hot. The pages of a ring cost nothing
// until used.
inline constexpr std::size_t kSmallLines = 64;
inline constexpr std::size_t kLargeLines = 1024;
inline constexpr std::size_t kSmallBytes = 16 * 1024;
inline constexpr std::size_t kLargeBytes = 512 * 1024;
inline constexpr std::size_t kSmallLinesOffset = kPageBytes;
inline constexpr std::size_t kSmallBytesOffset = kSmallLinesOffset + kSmallLines * sizeof(Line);
inline constexpr std::size_t kLargeLinesOffset = kSmallBytesOffset + kSmallBytes;
inline constexpr std::size_t kLargeBytesOffset = kLargeLinesOffset + kLargeLines * sizeof(Line);
inline constexpr std::size_t kOutboxBytes = kLargeBytesOffset + kLargeBytes;
static_assert(kSmallBytesOffset % kPageBytes == 0 && kLargeLinesOffset % kPageBytes == 0 &&
              kLargeBytesOffset % kPageBytes == 0 && kOutboxBytes % kPageBytes == 0);

/// What answers at an endpoint's address. They speak different messages in the same rings.
enum class Service : std::uint32_t {
    kRd = 0,        // an RDM endpoint: the messages of core/rd_wire.h but kSegment
    kSegments = 1,  // a device of the verbs core: kSegment alone
    kPackets = 2,   // such a device with a wire: kSegment with packets, datagrams, in them
};

/// The page of an endpoint that all its peers map: what they need before and beside the rings.
///
/// | field        | written by | read by       | order                                            |
/// |--------------|------------|---------------|--------------------------------------------------|
/// | first line   | owner once | peers         | the handshake                                    |
/// | no_copies    | owner once | who copies    | a fence on either side, see Station::mark_use()  |
/// | armed        | owner      | every sender  | relaxed: the sleeper's membarrier(2) orders it,  |
/// |              |            |               | or the sender's fence where kFenceFirst is set   |
/// | last_poll    | owner      | RMA initiators| relaxed: a hint which method is fast             |
/// | using_key    | owner      | owner of keys | a fence on either side, see Station::mark_use()  |
struct EndpointPage {
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t incarnation;  // random; tells a restarted endpoint from its predecessor
    std::uint64_t probe;  // random; a peer that reads it by process_vm_readv knows that it may
    std::uint32_t control_may_enter;  // 1: a woken control thread makes progress when the
                                      // application does not
    std::uint32_t has_user_keys;      // 1: requests name the application's own keys
    std::uint32_t wants_rma_events;   // 1: tell of each direct access (kRmaEvent)
    std::uint32_t key_domain;         // the protection domain of the keys that requests may name
    Service service;
    // 1: the owner is about to be closed. Nobody copies to or from memory that it has named.
    std::atomic<std::uint32_t> no_copies;

    // kFenceFirst, kWantsRoom and the episode
    alignas(util::kCacheLine) std::atomic<std::uint32_t> armed;
    alignas(util::kCacheLine)
        std::atomic<std::uint64_t> last_poll;  // util::cpu_ticks() of the latest progress
    // The region of a peer that the owner copies to or from right now: low half of the peer's
    // incarnation, which is not 0, and key; core::kNoKey: memory that a message or request has
    // named. 0: none.
    alignas(util::kCacheLine) std::atomic<std::uint64_t> using_key;
};
static_assert(sizeof(EndpointPage) <= kPageBytes);

/// Of EndpointPage::armed: the owner sleeps often, and has stopped to order others by
/// membarrier(2). Who sees this fences between what it publishes and a second look at the word.
inline constexpr std::uint32_t kFenceFirst = 1U << 31;

/// Of EndpointPage::armed: the owner has more to send than there is room for. Peers wake it when
/// they return credits, too.
inline constexpr std::uint32_t kWantsRoom = 1U << 30;

/// The episode of sleep in which the owner asks to be woken; 0: it is awake.
constexpr std::uint32_t episode_of(std::uint32_t armed) noexcept {
    return armed & ~(kFenceFirst | kWantsRoom);
}

/// An endpoint whose last poll is older than this many ticks is taken not to poll. Longer than the
/// longest piece of work between two polls, see Station::note_long_work().
inline const auto kPollingTicks = static_cast<std::int64_t>(util::ticks_of_ns(67'000));

/// Whether the application polls that endpoint, so that work which needs it goes fast.
inline bool is_polling(const EndpointPage& page) noexcept {
    // relaxed: a hint. Cores' clocks may differ a little: the future is now.
    const std::uint64_t last = page.last_poll.load(std::memory_order_relaxed);
    return static_cast<std::int64_t>(util::cpu_ticks() - last) < kPollingTicks;
}

/// Whether the owner asked to be woken by new work.
inline bool is_armed(const EndpointPage& page) noexcept {
    // relaxed: who asked to be woken was, by the sender's Path; who has just ceased to ask looks.
    return episode_of(page.armed.load(std::memory_order_relaxed)) != 0;
}

/// The value of EndpointPage::using_key.
constexpr std::uint64_t use_mark(std::uint64_t owner_incarnation, std::uint32_t key) noexcept {
    return (owner_incarnation << 32) | key;
}

/// Whether the memory that `asked` stands for is marked: with core::kNoKey, any of that owner's.
constexpr bool is_marked(std::uint64_t using_key, std::uint64_t asked) noexcept {
    const bool is_any = static_cast<std::uint32_t>(asked) == core::kNoKey;
    return using_key != 0 && (is_any ? using_key >> 32 == asked >> 32 : using_key == asked);
}

/// A look at what the owner of a page copies to or from, for who asks many: one cache line read.
class UseLook {
  public:
    explicit UseLook(const EndpointPage& page) noexcept : using_key_(&page.using_key) {}

    /// Whether it copies to or from the memory behind this key of that peer's right now; with
    /// core::kNoKey, any of that peer's.
    bool is_of(std::uint64_t owner_incarnation, std::uint32_t key) const noexcept {
        // acquire: pairs with the release in Station::unmark_use(): the copy is over when the mark
        // is gone.
        return is_marked(using_key_->load(std::memory_order_acquire),
                         use_mark(owner_incarnation, key));
    }

  private:
    const std::atomic<std::uint64_t>* using_key_;
};

}  // namespace rvt::shm
