// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What has to be remembered of a posted work request until it completes: its number is the address
// of one of these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/counter.h"
#include "core/rc_port.h"

namespace rvt::core {
class CachedRegion;
}

namespace rvt::ofi {

class DeviceUse;
class MsgOps;

inline constexpr std::size_t kMsgIov = 8;

/// What a request of a NIC's domain has from NicMemory.
struct MsgLent {
    std::byte* copy = nullptr;
    std::size_t count = 0;
    std::array<core::CachedRegion*, kMsgIov> regions;  // only the first `count` are written

    [[nodiscard]] bool is_any() const noexcept { return copy != nullptr || count != 0; }
};

struct MsgOp {
    MsgOp* next_free = nullptr;
    MsgOps* owner = nullptr;
    void* context = nullptr;
    std::uint64_t flags = 0;           // of its completion
    core::Counter* counter = nullptr;  // counts it; of a receive: that of the endpoint that took it
    bool wants_completion = false;     // also when it succeeds
    bool is_free = false;              // valid within for_each_posted()
    std::uint64_t place = 0;           // of a send of a NIC, in the order of posting
    MsgLent lent;
    // Of one whose number is marked, else nullptr: what it holds of devices, of whose memory the
    // CPU has copies, and how much of that it fills; a receive as much as arrives.
    DeviceUse* use = nullptr;
    std::uint64_t filled_bytes = 0;
};

/// Set in the numbers of requests that are looked at more closely when they complete.
inline constexpr std::uint64_t kMarkedNumber = 1;
static_assert((core::kRcProbe & kMarkedNumber) != 0 && alignof(MsgOp) > kMarkedNumber);

/// As many as a queue takes. Threads: under the domain's lock.
class MsgOps {
  public:
    explicit MsgOps(std::size_t count) : ops_(count) {
        for (MsgOp& op : ops_) {
            op.owner = this;
            put(op);
        }
    }
    MsgOps(const MsgOps&) = delete;
    MsgOps& operator=(const MsgOps&) = delete;
    ~MsgOps() = default;

    [[nodiscard]] bool is_any_free() const noexcept { return free_ != nullptr; }
    /// nullptr: all are posted.
    MsgOp* take() noexcept {
        MsgOp* const op = free_;
        if (op != nullptr) {
            free_ = op->next_free;
        }
        return op;
    }
    void put(MsgOp& op) noexcept {
        op.next_free = free_;
        free_ = &op;
    }

    /// Calls `what` for each that is posted, which puts it back. Returns: how many there were.
    template <class What>
    unsigned for_each_posted(What what) noexcept {
        for (MsgOp& op : ops_) {
            op.is_free = false;
        }
        for (MsgOp* op = free_; op != nullptr; op = op->next_free) {
            op->is_free = true;
        }
        unsigned posted = 0;
        for (MsgOp& op : ops_) {
            if (!op.is_free) {
                ++posted;
                what(op);
            }
        }
        return posted;
    }

    /// Each of them, posted or not.
    [[nodiscard]] std::vector<MsgOp>& all() noexcept { return ops_; }

  private:
    std::vector<MsgOp> ops_;
    MsgOp* free_ = nullptr;
};

/// The sends of one NIC's pair that are under way without a completion, in the order of posting.
/// Sends complete in that order: who completes, well or not, says that all before it have, and
/// well. Threads: under the domain's lock.
class MsgUnsignaled {
  public:
    /// Of so many in a row one is signaled.
    static constexpr unsigned kInterval = 16;

    /// Whether the next one need not be.
    [[nodiscard]] bool has_room() const noexcept { return in_row_ + 1 < kInterval; }
    /// The request has been posted. Order: that of posting.
    void note_posted(MsgOp& op, bool is_signaled) noexcept {
        op.place = ++posted_;
        if (is_signaled) {
            in_row_ = 0;
            return;
        }
        ++in_row_;
        op.next_free = nullptr;
        (oldest_ != nullptr ? latest_->next_free : oldest_) = &op;
        latest_ = &op;
    }
    /// The request has completed. Those before it are their owner's again.
    void note_completed(const MsgOp& op) noexcept {
        while (oldest_ != nullptr && oldest_->place <= op.place) {
            MsgOp& before = *oldest_;
            oldest_ = before.next_free;
            if (&before != &op) {
                before.owner->put(before);
            }
        }
    }
    /// All of them end in another way.
    void forget() noexcept { oldest_ = nullptr; }

  private:
    MsgOp* oldest_ = nullptr;
    MsgOp* latest_ = nullptr;  // where there is an oldest one
    std::uint64_t posted_ = 0;
    unsigned in_row_ = 0;
};

}  // namespace rvt::ofi
