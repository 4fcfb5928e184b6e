// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What the communication manager remembers: one record for each connection and each resolution,
// found by the handle that the user has, by the id that peers name, and by what a peer calls its
// own. Called by core/cm_agent.cc alone, under its rules for threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "core/cm_secret.h"
#include "protocol/cm_messages.h"
#include "rvt/types.h"
#include "util/pool.h"

namespace rvt::core {

/// Names one connection, request or resolution. A name is not given out again, so that one of
/// something that has ended is harmless: every call with it is ENOENT.
enum class CmHandle : std::uint64_t { kNone = 0 };

/// IBTA vol. 1, 12.9.7, without the states in between that only an MRA makes.
enum class CmState : std::uint8_t {
    kReqSent,      // active
    kReqReceived,  // passive: the user has not answered
    kRepSent,      // passive
    kRepReceived,  // active: the user has not answered
    kEstablished,  // both, as the rest
    kDreqSent,
    kTimeWait,      // the user has no handle any more; messages on their way are recognised
    kSidrSent,      // a resolution
    kSidrReceived,  // the user has not answered
    kRefused,       // passive: likewise without a handle; the peer may not have got the REJ
};
inline constexpr std::size_t kCmStates = 10;
static_assert(static_cast<std::size_t>(CmState::kRefused) + 1 == kCmStates);

/// What a peer's number is.
enum class CmNumber : std::uint8_t { kCommId, kQpn, kSidrId };

struct CmRecord : util::Pooled {
    CmState state = CmState::kReqSent;
    bool is_active = false;      // this side asked
    bool is_open = false;        // the user has a handle
    bool is_delayed = false;     // the peer has been told to wait, by what `mad` holds
    bool has_alternate = false;  // the request named a second path
    std::uint8_t max_retries = 0;
    std::uint8_t retries_left = 0;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    std::uint32_t local_qpn = 0;
    std::uint32_t remote_qpn = 0;
    std::uint32_t remote_psn = 0;
    std::uint32_t timeout_us = 0;
    std::uint32_t time_wait_us = 0;
    std::uint64_t transaction_id = 0;
    std::uint64_t service_id = 0;
    std::uint64_t remote_guid = 0;  // of who has asked
    std::uint64_t context = 0;
    std::uint64_t due_us = 0;  // 0: no timer runs
    AhAttr peer{};
    /// What was sent last, and is sent again after a time-out or when the peer repeats itself.
    std::array<std::byte, protocol::kMadBytes> mad{};
};

class CmRecords {
  public:
    CmRecords(std::uint32_t limit, CmSecret& secret) noexcept;

    /// An empty record with an id and a handle; nullptr at the limit.
    CmRecord* create(CmState state);
    void destroy(CmRecord& record) noexcept;

    static CmHandle handle_of(const CmRecord& record) noexcept {
        return static_cast<CmHandle>(util::Pool<CmRecord>::name_of(record));
    }
    /// nullptr when the user has no such handle any more.
    CmRecord* find(CmHandle handle) noexcept;
    /// The record that a peer names by its id here; nullptr when it has none of that id.
    CmRecord* find_local(std::uint32_t local_id, const Address& peer) noexcept;
    /// The record of a number that the peer has given.
    CmRecord* find_remote(CmNumber kind, std::uint32_t number, const Address& peer) noexcept;

    /// Makes find_remote() find the record, instead of another one.
    void add_remote(CmRecord& record, CmNumber kind);
    void remove_remote(CmRecord& record, CmNumber kind) noexcept;

    void set_state(CmRecord& record, CmState state) noexcept;
    /// Takes the handle from the user.
    void close(CmRecord& record) noexcept;

    void arm(CmRecord& record, std::uint64_t due_us);
    void disarm(CmRecord& record) noexcept;
    /// A record whose timer has run out; it is disarmed.
    CmRecord* take_due(std::uint64_t now_us) noexcept;
    [[nodiscard]] std::optional<std::uint64_t> next_due_us() const noexcept;

    [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
    [[nodiscard]] std::uint32_t open_count() const noexcept { return open_count_; }
    [[nodiscard]] std::uint32_t count_in(CmState state) const noexcept {
        return counts_[static_cast<std::size_t>(state)];
    }
    /// Requests of peers that are neither in use nor over.
    [[nodiscard]] std::uint32_t half_open_count() const noexcept {
        return count_in(CmState::kReqReceived) + count_in(CmState::kRepSent) +
               count_in(CmState::kSidrReceived);
    }
    /// Any that is in that state at a peer; nullptr: none is.
    CmRecord* find_in(CmState state, const Address& peer) noexcept;

  private:
    struct Key {
        CmNumber kind;
        std::uint32_t number;
        Address peer;
        friend bool operator==(const Key&, const Key&) noexcept = default;
    };
    struct KeyHash {
        const CmSecret* secret;
        std::size_t operator()(const Key& key) const noexcept;
    };
    struct ByDue {
        bool operator()(const CmRecord* a, const CmRecord* b) const noexcept {
            return a->due_us != b->due_us ? a->due_us < b->due_us : a->pool_index < b->pool_index;
        }
    };
    static Key key_of(const CmRecord& record, CmNumber kind) noexcept;
    std::uint32_t unused_id() noexcept;

    CmSecret& secret_;
    util::Pool<CmRecord> pool_;
    std::unordered_map<std::uint32_t, CmRecord*> local_ids_;
    std::unordered_map<Key, CmRecord*, KeyHash> remote_numbers_;
    std::set<CmRecord*, ByDue> timers_;
    std::uint32_t count_ = 0;
    std::uint32_t open_count_ = 0;
    std::array<std::uint32_t, kCmStates> counts_{};  // by state
};

}  // namespace rvt::core
