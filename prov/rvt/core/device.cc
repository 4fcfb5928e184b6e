// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Devices: creation, progress, waiting work, contexts.
#include "core/device.h"

#include "core/context.h"
#include "core/flow.h"
#include "core/qp.h"
#include "core/reader_pins.h"
#include "core/requester.h"
#include "util/cpu.h"

#include <algorithm>
#include <ctime>
#include <iterator>

#include <poll.h>
#include <sys/mman.h>

namespace rvt::core {
namespace {

std::uint64_t monotonic_us() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

bool is_payload(std::uint32_t bytes) noexcept {
    return bytes >= kMinPayload && bytes <= kMaxPayload && bytes % kPayloadStep == 0;
}

bool are_sane(const DeviceLimits& limits) noexcept {
    return limits.max_qp != 0 && limits.max_cqe != 0 && limits.max_mr != 0 &&
           limits.max_qp_wr != 0 && limits.max_sge != 0 && limits.max_segment_bytes != 0 &&
           limits.max_message_bytes != 0 && limits.max_srq_tags <= 1u << 16 &&
           limits.max_segment_bytes >= sizeof(TmHeader);
}

}  // namespace

// ---- creation ----

Device::KeyBlock::KeyBlock(KeyBlock&& other) noexcept : memory(other.memory), bytes(other.bytes) {
    other.memory = nullptr;
}

Device::KeyBlock::~KeyBlock() {
    if (memory != nullptr) {
        munmap(memory, bytes);
    }
}

Result<Device::KeyBlock> Device::map_key_block(std::uint32_t max_mr) noexcept {
    KeyBlock block;
    block.bytes = KeyTable::block_bytes(max_mr);
    void* memory = mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return ENOMEM;
    }
    block.memory = memory;
    return block;
}

Result<std::unique_ptr<Device>> Device::create(const DeviceInfo& info, const BackendOps& ops) {
    if (!are_sane(info.limits) ||
        (info.grade == Grade::kPacket && !is_payload(info.payload_bytes))) {
        return EINVAL;
    }
    KeyBlock own;
    void* memory = info.key_block;
    std::size_t bytes = info.key_block_bytes;
    if (memory == nullptr) {
        auto mapped = map_key_block(info.limits.max_mr);
        if (!mapped.is_ok()) {
            return mapped.status();
        }
        memory = mapped.value().memory;
        bytes = mapped.value().bytes;
        auto keys = KeyTable::create(memory, bytes);
        return keys.is_ok() ? Result<std::unique_ptr<Device>>(std::unique_ptr<Device>(
                                  new Device(info, ops, mapped.take(), keys.take())))
                            : keys.status();
    }
    auto keys = KeyTable::create(memory, bytes);
    if (!keys.is_ok()) {
        return keys.status();
    }
    return std::unique_ptr<Device>(new Device(info, ops, std::move(own), keys.take()));
}

Device::Device(const DeviceInfo& info, const BackendOps& ops, KeyBlock own,
               std::unique_ptr<KeyTable> keys) noexcept
    : name_(info.name),
      info_(info),
      ops_(ops),
      own_key_block_(std::move(own)),
      keys_(std::move(keys)),
      key_view_(keys_->view()),
      qps_(info.limits.max_qp),
      mcast_(info.limits.max_mcast_qp),
      payload_bytes_(info.payload_bytes) {
    info_.name = name_.c_str();
    // A datagram travels in one segment or packet.
    const bool is_packet = info.grade == Grade::kPacket;
    info_.limits.max_ud_bytes =
        std::min(info.limits.max_ud_bytes, is_packet ? mtu_bytes() : info.limits.max_segment_bytes);
    if (is_packet) {
        // Of the packets of one message, each has to be nearer to the others than half the numbers.
        info_.limits.max_message_bytes =
            std::min(info.limits.max_message_bytes, std::uint64_t{mtu_bytes()} << 23);
    }
    info_.limits.max_mcast_qp = std::min(info.limits.max_mcast_qp, McastMembers::kMax);
    has_own_clock_ = info.now_us != nullptr;
    info_.now_us = has_own_clock_ ? info.now_us : monotonic_us;
}

Device::~Device() {
    free_pin_slot(poll_pin_);
}

// ---- progress ----

bool Device::look_at_answers_locked() noexcept {
    // relaxed: see answer_later().
    const AnswerHurry hurry = hurry_.load(std::memory_order_relaxed);
    if (hurry >= AnswerHurry::kPoll) {
        return true;
    }
    // relaxed: see answer_later().
    const std::uint32_t polls = polls_with_answers_.load(std::memory_order_relaxed) + 1;
    polls_with_answers_.store(polls, std::memory_order_relaxed);  // relaxed: see answer_later()
    // At first nobody looks at the clock: mostly the application replies at once.
    if (hurry == AnswerHurry::kReply) {
        return polls > kReplyPolls;
    }
    switch (polls) {
        case 1: return false;
        case 2: answers_since_us_ = now_us(); return false;
        default: break;
    }
    if (hurry == AnswerHurry::kSoon) {
        return polls > kAnswerPolls || now_us() - answers_since_us_ >= kAnswerUs;
    }
    return polls > kLazyPolls ||
           (polls % kPollsPerLook == 0 && now_us() - answers_since_us_ >= kLazyUs);
}

unsigned Device::progress() noexcept {
    std::uint64_t ignored = 0;
    const unsigned arrived = take_in(ignored);
    // relaxed: a queue that begins to wait right now is seen at the next call.
    const std::uint64_t due = earliest_due_us_.load(std::memory_order_relaxed);
    const std::uint64_t now = due != kNever ? now_us() : 0;
    if (now >= due) {
        resume_due(now);
    }
    return arrived;
}

void Device::resume_due(std::uint64_t now) noexcept {
    const ReadPin pin;
    for (const std::uint32_t qpn : take_due(now, nullptr)) {
        if (Qp* qp = qps_.find(qpn)) {
            resume(*qp);
        }
    }
}

void Device::run_send_queues() noexcept {
    const ReadPin pin;
    for (const std::uint32_t qpn : behind_poll_) {
        if (Qp* qp = qps_.find(qpn)) {
            run_send_queue(*qp);
        }
    }
    behind_poll_.clear();
}

void Device::answer_later(std::uint32_t qpn, AnswerHurry hurry) noexcept {
    const util::Guard guard(answering_lock_);
    // relaxed: here and below, as for the count.
    const AnswerHurry before = hurry_.load(std::memory_order_relaxed);
    if (answering_.empty() || before < hurry) {
        // relaxed: a poll that counts right now may undo it, and the answer leaves sooner.
        polls_with_answers_.store(0, std::memory_order_relaxed);
    }
    if (answering_.empty() || answering_.back() != qpn) {
        answering_.push_back(qpn);
    }
    const auto count = static_cast<std::uint32_t>(answering_.size());
    // relaxed: who flushes right now and sees the old values leaves the pair to the next time.
    answering_count_.store(count, std::memory_order_relaxed);
    hurry_.store(std::max(before, hurry), std::memory_order_relaxed);  // relaxed: as above
}

void Device::has_no_answer(std::uint32_t qpn) noexcept {
    ack_hold_.note_reply([this] { return now_us(); });
    const util::Guard guard(answering_lock_);
    // Mostly the newest, or one of the oldest. Any other is found to have none when its turn comes.
    if (!answering_.empty() && answering_.back() == qpn) {
        answering_.pop_back();
    } else {
        const auto most = std::min<std::ptrdiff_t>(std::ssize(answering_), kAnswersLookedAt);
        const auto end = answering_.begin() + most;
        const auto found = std::find(answering_.begin(), end, qpn);
        if (found == end) {
            return;
        }
        if (found == answering_.begin()) {
            // relaxed: as in answer_later(). The others have not waited for as long.
            polls_with_answers_.store(0, std::memory_order_relaxed);
        }
        answering_.erase(found);
    }
    const auto count = static_cast<std::uint32_t>(answering_.size());
    answering_count_.store(count, std::memory_order_relaxed);  // relaxed: see answer_later()
    if (count == 0) {
        hurry_.store(AnswerHurry::kNone, std::memory_order_relaxed);  // relaxed: see answer_later()
    }
}

void Device::flush() noexcept {
    // relaxed: see answer_later().
    if (answering_count_.load(std::memory_order_relaxed) != 0) {
        send_answers();
    }
    ops_.flush_packets(*this);
}

void Device::send_held() noexcept {
    send_hold_.note_poll([this] { return now_us(); });
    flush();
}

/// Of two threads one does the work; what the other has added meanwhile waits for the next time.
void Device::send_answers() noexcept {
    if (!flush_lock_.try_lock()) {
        return;
    }
    {
        const util::Guard guard(answering_lock_);
        answering_now_.swap(answering_);
        answering_count_.store(0, std::memory_order_relaxed);         // relaxed: see answer_later()
        hurry_.store(AnswerHurry::kNone, std::memory_order_relaxed);  // relaxed: see answer_later()
    }
    const ReadPin pin;
    for (const std::uint32_t qpn : answering_now_) {
        if (Qp* qp = qps_.find(qpn)) {
            const util::Guard guard(qp->rx_lock());
            if (Flow* flow = qp->flow()) {
                flow->send_answers(*qp);
            }
        }
    }
    answering_now_.clear();
    flush_lock_.unlock();
}

void Device::sleep_on(int fd, int timeout_ms) noexcept {
    flush();
    if (ops_.arm(*this).error() == EAGAIN) {
        return;
    }
    const std::uint64_t due = next_due_us();
    if (due != kNever) {
        const std::uint64_t now = now_us();
        const std::uint64_t left_ms = due > now ? (due - now + 999) / 1000 : 0;
        const int bounded = static_cast<int>(std::min<std::uint64_t>(left_ms, 1000));
        timeout_ms = timeout_ms < 0 ? bounded : std::min(timeout_ms, bounded);
    }
    pollfd readable[] = {{.fd = fd, .events = POLLIN, .revents = 0},
                         {.fd = ops_.wake_fd(*this), .events = POLLIN, .revents = 0}};
    // The caller looks at everything again, whatever the answer.
    [[maybe_unused]] const int ignored = ::poll(readable, 2, timeout_ms);
}

// ---- work that waits ----

void Device::wait_until(std::uint32_t qpn, std::uint64_t due_us, const void* on) noexcept {
    const util::Guard guard(waiting_lock_);
    const auto same = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Waiting& waiting) { return waiting.qpn == qpn; });
    if (same == waiting_.end()) {
        waiting_.push_back({.qpn = qpn, .due_us = due_us, .on = on});
    } else if (due_us < same->due_us) {
        *same = {.qpn = qpn, .due_us = due_us, .on = on};
    }
    note_waiting_locked();
}

void Device::note_waiting_locked() noexcept {
    std::uint64_t earliest = kNever;
    for (const Waiting& waiting : waiting_) {
        earliest = std::min(earliest, waiting.due_us);
    }
    // relaxed: see progress(). Who posts a receive right now and sees the old count leaves the pair
    // to its due time.
    earliest_due_us_.store(earliest, std::memory_order_relaxed);
    waiting_count_.store(static_cast<std::uint32_t>(waiting_.size()), std::memory_order_relaxed);
}

/// What is due by now, and what waits for `on`, whatever the time.
std::vector<std::uint32_t> Device::take_due(std::uint64_t now, const void* on) noexcept {
    std::vector<std::uint32_t> due;
    const util::Guard guard(waiting_lock_);
    std::erase_if(waiting_, [&](const Waiting& waiting) {
        const bool ready = waiting.due_us <= now || (on != nullptr && waiting.on == on);
        if (ready) {
            due.push_back(waiting.qpn);
        }
        return ready;
    });
    note_waiting_locked();
    return due;
}

void Device::wake_waiting(const void* on) noexcept {
    // relaxed: see note_waiting_locked().
    if (waiting_count_.load(std::memory_order_relaxed) == 0) [[likely]] {
        return;
    }
    const ReadPin pin;
    for (const std::uint32_t qpn : take_due(0, on)) {
        if (Qp* qp = qps_.find(qpn)) {
            retry_send_queue(*qp);
        }
    }
}

void Device::stop_waiting(std::uint32_t qpn) noexcept {
    const util::Guard guard(waiting_lock_);
    std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.qpn == qpn; });
    note_waiting_locked();
}

// ---- answers for pairs that are not there ----

void Device::refuse(Channel& channel, const SegmentHeader& answer) noexcept {
    {
        const util::Guard guard(refusals_lock_);
        if (refusals_.size() < kMaxRefusals) {
            refusals_.push_back({.channel = &channel, .answer = answer});
            // relaxed: see take_in().
            has_refusals_.store(true, std::memory_order_relaxed);
        }
    }
    send_refusals();
}

void Device::send_refusals() noexcept {
    const util::Guard guard(refusals_lock_);
    while (!refusals_.empty()) {
        const Refusal& first = refusals_.front();
        const auto header = std::as_bytes(std::span(&first.answer, 1));
        if (ops_.send_segment(*this, *first.channel, header, {}).error() == EAGAIN) {
            return;
        }
        refusals_.pop_front();
    }
    has_refusals_.store(false, std::memory_order_relaxed);  // relaxed: see take_in()
}

void Device::forget_refusals(const Channel& channel) noexcept {
    const util::Guard guard(refusals_lock_);
    std::erase_if(refusals_, [&](const Refusal& refusal) { return refusal.channel == &channel; });
}

// ---- contexts ----

Status Device::add_context(Context& context) {
    const util::Guard guard(contexts_lock_);
    if (is_going()) {
        return ENODEV;
    }
    contexts_.push_back(&context);
    return kOk;
}

void Device::remove_context(Context& context) noexcept {
    const util::Guard guard(contexts_lock_);
    std::erase(contexts_, &context);
}

void Device::change_port(std::uint32_t payload_bytes) noexcept {
    const std::uint32_t before = is_port_down() ? 0 : this->payload_bytes();
    if (payload_bytes == before) {
        return;
    }
    // relaxed: released with the count.
    is_port_down_.store(payload_bytes == 0, std::memory_order_relaxed);
    if (payload_bytes != 0) {
        payload_bytes_.store(payload_bytes, std::memory_order_relaxed);  // relaxed: as above
    }
    // release: pairs with the acquire in port_changes().
    port_changes_.fetch_add(1, std::memory_order_release);
    const util::Guard guard(contexts_lock_);
    for (Context* context : contexts_) {
        context->events().post(
            {.type = payload_bytes < before ? EventType::kPortErr : EventType::kPortActive,
             .object = this});
    }
    if (mad_sink_ != nullptr) {
        mad_sink_->port_changed();
    }
}

void Device::begin_removal() noexcept {
    const util::Guard guard(contexts_lock_);
    if (is_going()) {
        return;
    }
    going_.store(true, std::memory_order_relaxed);  // relaxed: see is_going()
    for (Context* context : contexts_) {
        context->events().post({.type = EventType::kDeviceFatal, .object = this});
    }
}

}  // namespace rvt::core

namespace rvt {

void port_changed(core::Device& device, std::uint32_t payload_bytes) noexcept {
    device.change_port(payload_bytes);
}

}  // namespace rvt
