// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The parts of a path that are off the fast path: opening, runs, growth, waking, the peer's memory.
#include "backend/shm/path.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include "backend/shm/ways.h"
#include "util/fault_guard.h"
#include "util/iov_cursor.h"
#include "util/long_copy.h"
#include "util/memory_room.h"

namespace rvt::shm {
namespace {

/// What must have gone through the small rings before a pair counts as hot. A pair that a few large
/// messages fill, or whose receiver was not scheduled for a while, is not worth the memory.
constexpr std::uint64_t kHotBytes = 8 * kLargeBytes;
constexpr std::uint64_t kHotLines = 4 * kLargeLines;
/// How often a hot pair goes on without memory for the large rings before it looks again.
constexpr unsigned kStallsBeforeNextTry = 10'000;
/// The longest run whose cache lines are taken ahead; for longer ones it makes no difference.
constexpr std::size_t kMostOwned = 8192;
/// The longest run that is demoted; longer ones take longer for it (an Emerald Rapids).
constexpr std::size_t kMostDemoted = 1024;

}  // namespace

const std::atomic<std::uint32_t> Path::kNeverArmed{0};
const std::atomic<std::uint32_t> Path::kAlwaysLook{~0u};
const Line Path::kNoLines[1] = {};

void Path::Arrival::copy_continued(std::byte* to, std::size_t count) const noexcept {
    if (ring_ == nullptr) {
        util::copy_bytes(to, payload(), count);
        return;
    }
    util::copy_small(to, payload(), kLinePayload);
    std::size_t done = kLinePayload;
    for (std::uint64_t ahead = 1; done < count; ++ahead) {
        const std::size_t part = std::min(count - done, Line::kContinuationBytes);
        util::copy_small(to + done, ring_->line(ahead).continuation(), part);
        done += part;
    }
}

bool Path::peek_behind(std::uint64_t ahead, core::RdOp op, std::uint8_t flags, void* to,
                       std::size_t length) const noexcept {
    std::uint64_t meta = 0;
    if (!in_lines_.peek(meta, ahead) || LineMeta::op(meta) != static_cast<std::uint8_t>(op) ||
        LineMeta::flags(meta) != flags || LineMeta::length(meta) != length) {
        return false;
    }
    util::copy_small(to, in_lines_.line(ahead).payload, length);
    return true;
}

void Path::open(std::unique_ptr<Peering> peering) noexcept {
    peering_ = std::move(peering);
    const util::Mapping& outbox = peering_->outbox;
    const util::Mapping& inbox = peering_->inbox;
    lines_.open(outbox.at<Line>(kSmallLinesOffset), kSmallLines);
    bytes_.open(outbox.at<std::byte>(kSmallBytesOffset), kSmallBytes);
    in_lines_.open(inbox.at<Line>(kSmallLinesOffset), kSmallLines);
    in_bytes_.open(inbox.at<std::byte>(kSmallBytesOffset), kSmallBytes);
    credits_ = outbox.at<OutboxHeader>(0);
    owes_bytes_ = false;
    is_fenced_ = !peering_->peer_has_membarrier;
    armed_ = is_fenced_ ? &kAlwaysLook : &page().armed;
    woken_episode_ = fenced_episode_ = 0;
    is_large_ = is_large_receive_ = is_broken_ = is_held_ = lacks_room_ = false;
    seen_credit_lines_ = seen_credit_bytes_ = 0;
    growth_wait_ = runs_since_idle_ = 0;
    heard_ = 0;
    credited_lines_ = credited_bytes_ = 0;
    in_epoch_ = 0;
}

void Path::close() noexcept {
    lines_ = LineProducer{};
    bytes_ = ByteProducer{};
    in_lines_ = LineConsumer{};
    in_lines_.open(kNoLines, 1);
    armed_ = &kNeverArmed;
    woken_episode_ = fenced_episode_ = 0;
    is_held_ = false;
    next_run_ = 0;
    runs_since_idle_ = 0;
    promise_ = {};
    peering_.reset();
}

void Path::refresh() noexcept {
    const OutboxHeader* const header = peering_->inbox.at<OutboxHeader>(0);
    const std::uint64_t epoch = is_large_ ? kLargeEpoch : 0;
    // acquire: pairs with the release in show_credit().
    const std::uint64_t lines = header->consumed_lines.load(std::memory_order_acquire);
    const std::uint64_t bytes = header->consumed_bytes.load(std::memory_order_acquire);
    seen_credit_lines_ = lines;
    seen_credit_bytes_ = bytes;
    if ((lines & kLargeEpoch) == epoch && (bytes & kLargeEpoch) == epoch) {
        lines_.refresh(lines & ~kLargeEpoch);
        bytes_.refresh(bytes & ~kLargeEpoch);
    }
    if (promise_.bytes() != 0) {
        // Where the ring has been gone round once, there is a page everywhere.
        promise_.reduce_to(kLargeBytes - std::min<std::uint64_t>(bytes_.tail(), kLargeBytes));
    }
    // relaxed: a hint; a late look costs the receiver one ring of memory at most.
    is_held_ = header->hold_eager.load(std::memory_order_relaxed) != 0;
}

bool Path::is_drained() const noexcept {
    // acquire: pairs with the release in show_credit(): what the peer did for the messages is
    // done.
    const std::uint64_t lines =
        peering_->inbox.at<OutboxHeader>(0)->consumed_lines.load(std::memory_order_acquire);
    return lines == (lines_.tail() | (is_large_ ? kLargeEpoch : 0));
}

bool Path::has_new_credits() const noexcept {
    const OutboxHeader* const header = peering_->inbox.at<OutboxHeader>(0);
    // relaxed: refresh() looks again.
    return header->consumed_lines.load(std::memory_order_relaxed) != seen_credit_lines_ ||
           header->consumed_bytes.load(std::memory_order_relaxed) != seen_credit_bytes_;
}

bool Path::refresh_eager() noexcept {
    return refresh_lines(kControlLines + kMaxLines) && !is_held_;
}

bool Path::refresh_lines(std::uint64_t wanted) noexcept {
    if (!is_open()) {
        return false;
    }
    refresh();
    lacks_room_ = lines_.room() < wanted && !(grow_if_hot() && lines_.room() >= wanted);
    return !lacks_room_;
}

bool Path::grow_if_hot() noexcept {
    const bool is_hot = lines_.tail() >= kHotLines || bytes_.tail() >= kHotBytes;
    return is_hot && grow();
}

bool Path::grow() noexcept {
    if (is_large_ || lines_.room() == 0) {
        return false;
    }
    if (growth_wait_ != 0) {
        --growth_wait_;
        return false;
    }
    util::Mapping& outbox = peering_->outbox;
    // The pages of the large ring of bytes are taken as they are used, as many pairs are hot by
    // lines alone. There must be room for them, also beside those of other pairs, and as much again
    // for what cannot do with less, such as further connections.
    util::MemoryPromise bytes(kLargeBytes);
    if (util::memory_room() < kLargeLines * sizeof(Line) + util::promised_memory() ||
        !outbox.reserve(kLargeLinesOffset, kLargeLines * sizeof(Line)).is_ok()) {
        // Short of memory: go on with the small rings, try again later.
        growth_wait_ = kStallsBeforeNextTry;
        return false;
    }
    lines_.publish(LineMeta::pack(static_cast<std::uint8_t>(core::RdOp::kGrow), 0, 0));
    lines_.open(outbox.at<Line>(kLargeLinesOffset), kLargeLines);
    bytes_.open(outbox.at<std::byte>(kLargeBytesOffset), kLargeBytes);
    is_large_ = true;
    promise_ = std::move(bytes);
    ring_doorbell();
    return true;
}

void Path::prepare_bulk() noexcept {
    if (!is_large_) {
        grow_if_hot();
    }
}

void Path::open_large_receive() noexcept {
    if (is_large_receive_) {
        is_broken_ = true;  // a pair grows once
        return;
    }
    const util::Mapping& inbox = peering_->inbox;
    in_lines_.open(inbox.at<Line>(kLargeLinesOffset), kLargeLines);
    in_bytes_.open(inbox.at<std::byte>(kLargeBytesOffset), kLargeBytes);
    is_large_receive_ = true;
    credited_lines_ = credited_bytes_ = 0;
    in_epoch_ = kLargeEpoch;
    owes_bytes_ = true;  // the peer takes in only counts of one epoch
}

bool Path::put(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
               const void* payload, std::size_t count) noexcept {
    const std::uint64_t needed = lines_of(count) + kControlLines;
    if (lines_.room() < needed && !refresh_lines(needed)) {
        return false;
    }
    put_lines(op, flags, tag, data, payload, count);
    return true;
}

/// Writes a message into lines that are free. The first line is shown last.
void Path::put_lines(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                     const void* payload, std::size_t count) noexcept {
    const std::uint64_t needed = lines_of(count);
    const auto* from = static_cast<const std::byte*>(payload);
    Line& first = lines_.line();
    first.tag = tag;
    first.data = data;
    std::size_t done = std::min(count, kLinePayload);
    util::copy_small(first.payload, from, done);
    for (std::uint64_t ahead = 1; ahead < needed; ++ahead) {
        const std::size_t part = std::min(count - done, Line::kContinuationBytes);
        util::copy_small(lines_.line(ahead).continuation(), from + done, part);
        done += part;
        lines_.publish(0, ahead);
    }
    lines_.publish(
        LineMeta::pack(static_cast<std::uint8_t>(op), flags, static_cast<std::uint32_t>(count)));
    for (std::uint64_t ahead = 0; ahead < needed; ++ahead) {
        util::demote(&lines_.line(ahead));
    }
    // None of the next ones is asked for, as publish() does: the peer waits for a message of
    // several lines with the first two of them in its cache, and would have to fetch both again.
    lines_.advance(needed);
    ring_doorbell();
}

bool Path::put_control(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                       const void* payload, std::size_t count) noexcept {
    // One line stays free for ever: the marker of growth must find room.
    if (lines_.room() < 2 && !refresh_lines(2)) {
        return false;
    }
    Line& line = lines_.line();
    line.tag = tag;
    line.data = data;
    util::copy_small(line.payload, static_cast<const std::byte*>(payload), count);
    publish(op, flags, count);
    return true;
}

std::byte* Path::reserve_run(std::size_t count) noexcept {
    if (lines_.room() <= kControlLines && !refresh_lines(kControlLines + 1)) {
        return nullptr;
    }
    std::byte* run = bytes_.reserve(count);
    if (run == nullptr) {
        refresh();
        run = bytes_.reserve(count);
        if (run == nullptr && grow_if_hot()) {
            run = bytes_.reserve(count);
        }
        lacks_room_ = run == nullptr;
    }
    return run;
}

void Path::put_run(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                   const void* payload, std::size_t payload_bytes, std::size_t run_bytes) noexcept {
    Line& line = lines_.line();
    line.tag = tag;
    line.data = data;
    util::copy_small(line.payload, static_cast<const std::byte*>(payload), payload_bytes);
    if (run_bytes <= kMostDemoted) {
        bytes_.demote(run_bytes);
    }
    bytes_.commit(run_bytes);
    publish(op, flags, run_bytes);
    next_run_ = run_bytes <= kMostOwned ? run_bytes : 0;
    ++runs_since_idle_;
}

void Path::prepare_run() noexcept {
    const std::size_t bytes = std::exchange(next_run_, 0);
    if (bytes != 0) {
        if (!bytes_.has_room(bytes)) {
            refresh();
        }
        bytes_.own(bytes);
    }
}

bool Path::prepare_run_if_drained() noexcept {
    if (!is_drained()) {
        return false;
    }
    runs_since_idle_ = 0;
    prepare_run();
    return true;
}

void Path::hold_eager(bool hold) noexcept {
    // relaxed: as in refresh().
    peering_->outbox.at<OutboxHeader>(0)->hold_eager.store(hold ? 1 : 0, std::memory_order_relaxed);
}

void Path::wake() noexcept {
    // relaxed: as in is_doorbell_due(); a later one is as good.
    std::uint32_t episode = armed_->load(std::memory_order_relaxed);
    if (is_fenced_ || (episode & kFenceFirst) != 0) {
        // seq_cst: orders our publish before the look; pairs with the fence in Station::arm().
        std::atomic_thread_fence(std::memory_order_seq_cst);
        // relaxed: ordered by the fence.
        episode = episode_of(page().armed.load(std::memory_order_relaxed));
        if (episode == 0 || episode == fenced_episode_) {
            return;
        }
        fenced_episode_ = episode;
    } else {
        woken_episode_ = episode;
    }
    if (episode != 0) {
        // EAGAIN: the counter is full, so the peer will wake anyway.
        [[maybe_unused]] const int ignored = eventfd_write(peering_->wake_fd.get(), 1);
    }
}

void Path::wake_for_room() noexcept {
    // relaxed: as in wake().
    std::uint32_t armed = armed_->load(std::memory_order_relaxed);
    if (is_fenced_ || (armed & kFenceFirst) != 0) {
        // seq_cst: orders the credits before the look; pairs with the fence in Station::arm().
        std::atomic_thread_fence(std::memory_order_seq_cst);
        // relaxed: ordered by the fence.
        armed = page().armed.load(std::memory_order_relaxed);
    }
    if ((armed & kWantsRoom) != 0) {
        ring_doorbell();
    }
}

util::Status Path::copy_memory(bool is_write, const iovec* local, const iovec* remote,
                               std::size_t count) noexcept {
    if (peering_->is_same_process) {
        for (std::size_t i = 0; i < count; ++i) {
            const iovec& to = is_write ? remote[i] : local[i];
            const iovec& from = is_write ? local[i] : remote[i];
            if (!util::copy_guarded(to.iov_base, from.iov_base, local[i].iov_len)) {
                return EFAULT;
            }
        }
        return util::kOk;
    }
    const ssize_t done = is_write ? process_vm_writev(peering_->pid, local, count, remote, count, 0)
                                  : process_vm_readv(peering_->pid, local, count, remote, count, 0);
    if (done < 0) {
        // EACCES, by which security modules refuse, is that of the peer's keys elsewhere.
        return errno == EACCES ? EPERM : errno;
    }
    return static_cast<std::size_t>(done) == util::iov_length(local, count) ? util::kOk
                                                                            : util::Status(EFAULT);
}

util::Status Path::read_memory(const iovec& local, std::uint64_t remote) noexcept {
    const iovec there{reinterpret_cast<void*>(remote), local.iov_len};
    return copy_memory(false, &local, &there, 1);
}

util::Status Path::write_memory(const iovec& local, std::uint64_t remote) noexcept {
    const iovec there{reinterpret_cast<void*>(remote), local.iov_len};
    return copy_memory(true, &local, &there, 1);
}

std::string Path::describe() const {
    return "shared memory with process " + std::to_string(peering_->pid) +
           (is_large_ ? ", large rings; " : ", small rings; ") + ways_to(*peering_, sched_getcpu());
}

}  // namespace rvt::shm
