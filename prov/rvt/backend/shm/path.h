// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The way to one peer on this host: both directions of rings, the doorbell, and the peer's memory.
// This is the compile-time policy that the RD engine is instantiated with (core/rd_engine.h).
//
// Messages are lines. A payload of up to kMaxLinePayload bytes travels in the first line and in
// continuation lines that follow it; a larger one is a run in the byte ring that belongs to the
// line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sys/uio.h>

#include "backend/shm/connection.h"
#include "backend/shm/ring.h"
#include "core/rd_record.h"
#include "core/rd_wire.h"
#include "util/cpu.h"
#include "util/mem_copy.h"
#include "util/memory_room.h"
#include "util/status.h"

namespace rvt::shm {

class Path {
  public:
    static constexpr std::size_t kLinePayload = Line::kPayloadBytes;
    /// Of two lines, for which there is code without loops.
    static constexpr std::size_t kPairPayload = kLinePayload + Line::kContinuationBytes;
    static constexpr std::size_t kMaxContinuations = 3;
    static constexpr std::size_t kMaxLines = 1 + kMaxContinuations;
    static constexpr std::size_t kMaxLinePayload =
        kLinePayload + kMaxContinuations * Line::kContinuationBytes;

    /// What stands at the begin of a message; every field was read once.
    class ArrivalHead {
      public:
        core::RdOp op() const noexcept { return static_cast<core::RdOp>(LineMeta::op(meta_)); }
        std::uint8_t flags() const noexcept { return LineMeta::flags(meta_); }
        std::uint32_t length() const noexcept { return LineMeta::length(meta_); }
        std::uint64_t tag() const noexcept { return tag_; }
        std::uint64_t data() const noexcept { return data_; }
        /// The 40 bytes in the first line.
        const std::byte* payload() const noexcept { return payload_; }

      protected:
        RVT_ALWAYS_INLINE ArrivalHead(std::uint64_t meta, std::uint64_t tag, std::uint64_t data,
                                      const std::byte* payload) noexcept
            : payload_(payload), meta_(meta), tag_(tag), data_(data) {}

      private:
        const std::byte* payload_;
        std::uint64_t meta_;
        std::uint64_t tag_;
        std::uint64_t data_;
    };

    /// A message as it lies in the ring; valid until the handler returns.
    class Arrival : public ArrivalHead {
      public:
        /// One that came another way, with its payload in one piece.
        explicit Arrival(const core::RdMessage& message) noexcept
            : ArrivalHead(LineMeta::pack(static_cast<std::uint8_t>(message.op), message.flags,
                                         message.length),
                          message.tag, message.data, message.payload),
              run_(message.run) {}

        /// Copies the first `count` bytes of a line payload. Precondition: count <= min(length(),
        /// kMaxLinePayload).
        RVT_ALWAYS_INLINE void copy_payload(void* to, std::size_t count) const noexcept {
            if (count <= kLinePayload) [[likely]] {
                util::copy_small(to, payload(), count);
            } else if (ring_ != nullptr && count <= kPairPayload) [[likely]] {
                auto* const out = static_cast<std::byte*>(to);
                util::copy_small(out, payload(), kLinePayload);
                util::copy_small(out + kLinePayload, ring_->line(1).continuation(),
                                 count - kLinePayload);
            } else {
                copy_continued(static_cast<std::byte*>(to), count);
            }
        }
        /// The run of length() bytes that belongs to the line; nullptr when the length cannot be
        /// true.
        const std::byte* run() const noexcept {
            return bytes_ != nullptr ? bytes_->run(length()) : run_;
        }

      private:
        friend class Path;
        Arrival(const LineConsumer& ring, const ByteConsumer& bytes, std::uint64_t meta) noexcept
            : ArrivalHead(meta, ring.line().tag, ring.line().data, ring.line().payload),
              ring_(&ring),
              bytes_(&bytes) {}
        void copy_continued(std::byte* to, std::size_t count) const noexcept;

        const LineConsumer* ring_ = nullptr;  // nullptr, as the next: it came another way
        const ByteConsumer* bytes_ = nullptr;
        const std::byte* run_ = nullptr;
    };

    /// A message of kEager that is one line; valid as an Arrival is.
    class LineArrival : public ArrivalHead {
      public:
        /// Precondition: count <= length().
        RVT_ALWAYS_INLINE void copy_payload(void* to, std::size_t count) const noexcept {
            util::copy_small(to, payload(), count);
        }

      private:
        friend class Path;
        RVT_ALWAYS_INLINE LineArrival(const Line& line, std::uint64_t meta) noexcept
            : ArrivalHead(meta, line.tag, line.data, line.payload) {}
    };

    /// Starts to use a finished handshake.
    void open(std::unique_ptr<Peering> peering) noexcept;
    /// Stops to use the rings: nothing can be sent any more. The peer's memory is unmapped.
    void close() noexcept;
    bool is_open() const noexcept { return peering_ != nullptr; }
    const Peering& peering() const noexcept { return *peering_; }

    // ---- sending ----

    /// Sends a small message of the application; `count` is at most kMaxLinePayload.
    /// Returns: false when there is no room, when not connected, and when the peer wants headers
    /// only.
    RVT_ALWAYS_INLINE bool put_eager(std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                                     const void* payload, std::size_t count) noexcept {
        if (!has_line()) [[unlikely]] {
            if (!refresh_eager()) {
                return false;
            }
        }
        if (count > kPairPayload) {
            put_lines(core::RdOp::kEager, flags, tag, data, payload, count);
            return true;
        }
        if (count > kLinePayload) {
            put_pair(flags, tag, data, static_cast<const std::byte*>(payload), count);
        } else {
            put_line(flags, tag, data, payload, count);
        }
        ring_doorbell();
        return true;
    }

    /// Whether put_line() may be called.
    RVT_ALWAYS_INLINE bool has_line() const noexcept {
        return lines_.room() >= kControlLines + kMaxLines;
    }
    /// put_eager() of at most kLinePayload bytes. Calls nothing; rings no doorbell.
    RVT_ALWAYS_INLINE void put_line(std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                                    const void* payload, std::size_t count) noexcept {
        Line& line = lines_.line();
        line.tag = tag;
        line.data = data;
        util::copy_small(line.payload, payload, count);
        publish_quietly(core::RdOp::kEager, flags, count);
    }
    /// Whether the peer sleeps, and what was sent needs ring_doorbell().
    RVT_ALWAYS_INLINE bool is_doorbell_due() const noexcept {
        util::compiler_barrier();
        // relaxed: the sleeper's membarrier(2) between arming and its last look orders this load
        // after our publish; with kFenceFirst it differs, and wake() fences.
        return armed_->load(std::memory_order_relaxed) != woken_episode_;
    }

    /// Sends a message whose payload fits in lines. Returns: false when there is no room.
    bool put(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
             const void* payload, std::size_t count) noexcept;
    /// As put() with at most kLinePayload bytes, out of the lines that are kept for replies.
    bool put_control(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                     const void* payload, std::size_t count) noexcept;

    /// Room for a run and the line that announces it; nullptr: not now. Nothing is used until
    /// put_run().
    std::byte* reserve_run(std::size_t count) noexcept;
    /// Announces the reserved and filled run with a line.
    void put_run(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                 const void* payload, std::size_t payload_bytes, std::size_t run_bytes) noexcept;
    /// Takes the cache lines of the next run, which is likely to be as long as the last one, while
    /// the peer is busy with that: for who has nothing else to do.
    void prepare_run() noexcept;
    /// The same once the peer has taken all: it is not busy any more. Returns: whether it has.
    bool prepare_run_if_drained() noexcept;
    std::size_t max_run() const noexcept { return bytes_.max_run(); }
    /// Whether the peer has enough to do with the runs that were sent since it was last heard of,
    /// or had taken all: to start early on the next one gains it nothing then.
    /// Threads: who sends, and nobody receives meanwhile.
    bool is_peer_busy() noexcept {
        if (std::exchange(heard_, in_lines_.head()) != in_lines_.head()) {
            runs_since_idle_ = 0;
        }
        return runs_since_idle_ >= kRunsToBeBusy;
    }
    /// Told of a burst to come. Moves to the large rings when the pair is hot, if there is memory.
    void prepare_bulk() noexcept;
    /// Whether the peer has taken everything that was sent. Looks at the peer's memory.
    bool is_drained() const noexcept;
    /// Whether the peer has asked for headers only. Until it has, this is known from the last look
    /// at how much it has taken, which is due when the rings seem full.
    RVT_ALWAYS_INLINE bool must_hold_eager() noexcept {
        if (is_held_) [[unlikely]] {
            refresh();
        }
        return is_held_;
    }

    /// Whether something could not be put for want of room since this was asked last.
    bool take_lack_of_room() noexcept { return std::exchange(lacks_room_, false); }
    /// Whether the peer has returned credits since the last look at them. Looks at its memory.
    bool has_new_credits() const noexcept;

    RVT_ALWAYS_INLINE void ring_doorbell() noexcept {
        if (is_doorbell_due()) [[unlikely]] {
            wake();
        }
    }

    // ---- receiving ----

    /// Whether something has arrived; the cheapest possible look.
    RVT_ALWAYS_INLINE bool has_arrival() const noexcept {
        std::uint64_t meta = 0;
        return in_lines_.peek(meta);
    }

    /// has_arrival() of a path that is not at hand; good until the next poll().
    LineLook look() const noexcept { return in_lines_.look(); }

    /// Hands up to `budget` arrivals over: to `take_line(const LineArrival&)` what is a whole
    /// message in one line, by far the most, and to `handle(const Arrival&)` all else. Both return
    /// false for a message that no honest peer sends. Returns: how many were handled; is_broken()
    /// tells that the peer misbehaved.
    template <class TakeLine, class Handle>
    RVT_ALWAYS_INLINE unsigned poll(unsigned budget, TakeLine&& take_line,
                                    Handle&& handle) noexcept {
        unsigned handled = 0;
        std::uint64_t meta = 0;
        // A message of two lines is then on its way in one trip, not in two.
        util::prefetch_read(&in_lines_.line(1));
        while (handled < budget && in_lines_.peek(meta)) {
            if (LineMeta::is_eager_line(meta)) [[likely]] {
                if (!take_line(LineArrival(in_lines_.line(), meta))) [[unlikely]] {
                    is_broken_ = true;
                    break;
                }
                in_lines_.advance(1);
            } else if (!take_other(meta, handle)) [[unlikely]] {
                is_broken_ = true;
                break;
            }
            ++handled;
        }
        if (handled != 0) {
            return_credits(handled < budget || !in_lines_.peek(meta));
        }
        return handled;
    }
    /// Whether some messages have arrived behind the one that is being handled that look_ahead()
    /// has not seen.
    RVT_ALWAYS_INLINE bool has_more() const noexcept {
        // Never at the line that the peer is about to write, which it would have to take back: when
        // the one at the end of the range is here, all before it are.
        std::uint64_t meta = 0;
        return seen_ahead_ - in_lines_.head() - 1 >= 2 * kLinesAhead &&
               in_lines_.peek(meta, kLinesAhead);
    }
    /// Calls first(tag) for each of them, then second(tag) for each. What a line says is a hint and
    /// may be anything. Precondition: has_more().
    template <class First, class Second>
    void look_ahead(First first, Second second) noexcept;
    /// Copies the payload of the message that has arrived `ahead` lines behind the one that is
    /// being handled. Returns: false when there is none, or not one of this kind and length.
    bool peek_behind(std::uint64_t ahead, core::RdOp op, std::uint8_t flags, void* to,
                     std::size_t length) const noexcept;
    bool is_broken() const noexcept { return is_broken_; }
    /// Tells the peer to send headers only, or again everything.
    void hold_eager(bool hold) noexcept;

    // ---- the peer's memory ----

    /// Whether this process may read and write the peer's memory directly.
    bool may_access_memory() const noexcept { return peering_->may_read_memory; }
    bool is_same_process() const noexcept { return peering_->is_same_process; }
    /// Copies between our buffers and the peer's. Returns: the error of process_vm_readv(2), never
    /// EACCES: whatever refuses it, that is EPERM.
    util::Status read_memory(const iovec& local, std::uint64_t remote) noexcept;
    util::Status write_memory(const iovec& local, std::uint64_t remote) noexcept;
    /// The same with several pairs of buffers of equal length: one system call, which costs as much
    /// as copying a few KiB. After an error any part of it may have been copied.
    util::Status copy_memory(bool is_write, const iovec* local, const iovec* remote,
                             std::size_t count) noexcept;
    /// So long after its last poll a peer is taken to poll.
    static inline const std::int64_t kPollingTicks = shm::kPollingTicks;
    /// Whether the peer's application polls, so that work which needs it goes fast.
    bool is_peer_polling() const noexcept { return is_polling(page()); }
    /// Whether the peer's control thread would make progress, and has to be told that there is
    /// something to do.
    bool must_wake_peer() const noexcept { return may_need_word() && !is_peer_polling(); }
    /// Whether that may soon be so: the peer polls, and tells nobody when it ceases to.
    bool must_watch_peer() const noexcept { return may_need_word() && is_peer_polling(); }
    bool has_user_keys() const noexcept { return page().has_user_keys != 0; }
    bool wants_rma_events() const noexcept { return page().wants_rma_events != 0; }
    std::uint32_t key_domain() const noexcept { return page().key_domain; }
    std::uint64_t incarnation() const noexcept { return peering_->incarnation; }
    /// The peer's key table; nullptr when it has none or could not be mapped.
    std::pair<const void*, std::size_t> keys_block() const noexcept {
        return {peering_->keys.is_mapped() ? peering_->keys.at<void>(0) : nullptr,
                peering_->keys.length()};
    }
    /// Whether the peer has said that nobody may copy to or from its memory any more. A no holds as
    /// long as the mark that was set before (Station::mark_use()).
    bool refuses_copies() const noexcept {
        // relaxed: ordered by the fence in Station::mark_use().
        return page().no_copies.load(std::memory_order_relaxed) != 0;
    }
    /// Whether the peer copies to or from our memory behind this key right now; kNoKey: to or from
    /// any.
    bool is_peer_using(std::uint64_t our_incarnation, std::uint32_t key) const noexcept {
        return use_look().is_of(our_incarnation, key);
    }
    /// is_peer_using() of a path that is not at hand; good until close().
    UseLook use_look() const noexcept { return UseLook(page()); }
    /// In words, for people.
    std::string describe() const;

  private:
    const EndpointPage& page() const noexcept { return *peering_->page.at<EndpointPage>(0); }
    /// Whether the peer's control thread would make progress, and no message wakes it.
    bool may_need_word() const noexcept {
        return page().control_may_enter != 0 && !is_armed(page());
    }

    /// Lines that application data leaves free, so that replies always find room.
    static constexpr std::size_t kControlLines = 24;
    static constexpr unsigned kRunsToBeBusy = 4;

    /// Shows the filled next line and wakes a sleeping peer.
    RVT_ALWAYS_INLINE void publish(core::RdOp op, std::uint8_t flags, std::size_t length) noexcept {
        publish_quietly(op, flags, length);
        ring_doorbell();
    }
    RVT_ALWAYS_INLINE void publish_quietly(core::RdOp op, std::uint8_t flags,
                                           std::size_t length) noexcept {
        lines_.publish(LineMeta::pack(static_cast<std::uint8_t>(op), flags,
                                      static_cast<std::uint32_t>(length)));
        util::demote(&lines_.line());
        lines_.advance(1);
        // The peer's cache has it from the last lap: now it gives it back before we need it.
        util::prefetch_write(&lines_.line());
    }
    /// put_line() of a message that takes two.
    RVT_ALWAYS_INLINE void put_pair(std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                                    const std::byte* payload, std::size_t count) noexcept {
        Line& first = lines_.line();
        Line& second = lines_.line(1);
        util::copy_small(second.continuation(), payload + kLinePayload, count - kLinePayload);
        lines_.publish(0, 1);
        first.tag = tag;
        first.data = data;
        util::copy_small(first.payload, payload, kLinePayload);
        lines_.publish(LineMeta::pack(static_cast<std::uint8_t>(core::RdOp::kEager), flags,
                                      static_cast<std::uint32_t>(count)));
        util::demote(&first);
        util::demote(&second);
        lines_.advance(2);  // None of the next ones is asked for: see put_lines().
    }
    void put_lines(core::RdOp op, std::uint8_t flags, std::uint64_t tag, std::uint64_t data,
                   const void* payload, std::size_t count) noexcept;
    [[gnu::cold]] bool refresh_eager() noexcept;
    bool refresh_lines(std::uint64_t wanted) noexcept;
    void refresh() noexcept;
    bool grow_if_hot() noexcept;
    bool grow() noexcept;
    void open_large_receive() noexcept;
    [[gnu::cold]] void wake() noexcept;
    [[gnu::cold]] void wake_for_room() noexcept;

    static constexpr std::size_t lines_of(std::size_t payload) noexcept {
        return payload <= kLinePayload
                   ? 1
                   : 1 + (payload - kLinePayload + Line::kContinuationBytes - 1) /
                             Line::kContinuationBytes;
    }
    /// Hands over the next line, which has this header. Returns: whether an honest peer sends it.
    template <class Handle>
    RVT_ALWAYS_INLINE bool take_other(std::uint64_t meta, Handle& handle) noexcept {
        const Arrival arrival(in_lines_, in_bytes_, meta);
        if (!accept(arrival) || !handle(arrival)) {
            return false;
        }
        consume(arrival);
        return true;
    }
    /// Whether the lengths of an arrival can be true.
    RVT_ALWAYS_INLINE bool accept(const Arrival& arrival) noexcept {
        return core::has_run(arrival.op()) ? arrival.run() != nullptr
                                           : arrival.length() <= kMaxLinePayload;
    }
    RVT_ALWAYS_INLINE void consume(const Arrival& arrival) noexcept {
        if (core::has_run(arrival.op())) {
            in_bytes_.advance(arrival.length());
            in_lines_.advance(1);
            owes_bytes_ = true;
            if (in_bytes_.head() - credited_bytes_ >= in_bytes_.capacity() / 4) {
                return_credits(true);
            }
        } else if (arrival.op() != core::RdOp::kGrow) [[likely]] {
            in_lines_.advance(lines_of(arrival.length()));
        } else {
            open_large_receive();
        }
    }
    /// Credits go back at a quarter of the ring, and when the ring was found empty.
    RVT_ALWAYS_INLINE void return_credits(bool found_empty) noexcept {
        if (found_empty || in_lines_.head() - credited_lines_ >= in_lines_.capacity() / 4) {
            if (owes_bytes_) {
                owes_bytes_ = false;
                credited_bytes_ = in_bytes_.head();
                show_credit(credits_->consumed_bytes, credited_bytes_);
            }
            credited_lines_ = in_lines_.head();
            show_credit(credits_->consumed_lines, credited_lines_);
            if (may_want_room()) [[unlikely]] {
                wake_for_room();
            }
        }
    }
    /// Whether the peer may sleep until it has room.
    RVT_ALWAYS_INLINE bool may_want_room() const noexcept {
        util::compiler_barrier();
        // relaxed: as in is_doorbell_due().
        return (armed_->load(std::memory_order_relaxed) & (kWantsRoom | kFenceFirst)) != 0;
    }
    RVT_ALWAYS_INLINE void show_credit(std::atomic<std::uint64_t>& credit,
                                       std::uint64_t position) const noexcept {
        // release: pairs with the acquire in refresh(): the peer may overwrite only what has been
        // read.
        credit.store(position | in_epoch_, std::memory_order_release);
    }

    // Sending: what every send touches.
    LineProducer lines_;
    const std::atomic<std::uint32_t>* armed_ = &kNeverArmed;
    std::uint32_t woken_episode_ = 0;  // of the peer's sleep that we have ended already
    bool is_fenced_ = false;           // no membarrier(2): each send fences before it looks
    bool is_large_ = false;
    bool is_held_ = false;  // the peer wants headers only
    bool lacks_room_ = false;
    std::uint32_t fenced_episode_ = 0;
    bool is_large_receive_ = false;
    bool is_broken_ = false;
    std::size_t next_run_ = 0;  // for prepare_run(); 0: nothing
    unsigned growth_wait_ = 0;
    unsigned runs_since_idle_ = 0;  // see is_peer_busy()
    ByteProducer bytes_;
    std::uint64_t heard_ = 0;  // lines that had been received at the last look

    // Receiving: what every poll touches.
    alignas(util::kCacheLine) LineConsumer in_lines_;
    OutboxHeader* credits_ = nullptr;  // ours
    std::uint64_t credited_lines_ = 0;
    std::uint64_t in_epoch_ = 0;
    bool owes_bytes_ = false;  // of which the peer has not been told
    // And what messages with a run touch.
    alignas(util::kCacheLine) ByteConsumer in_bytes_;
    std::uint64_t credited_bytes_ = 0;
    std::unique_ptr<Peering> peering_;
    std::uint64_t seen_ahead_ = 0;         // lines before it were looked at ahead of their turn
    std::uint64_t seen_credit_lines_ = 0;  // by the last refresh(), as the peer shows them
    std::uint64_t seen_credit_bytes_ = 0;
    util::MemoryPromise promise_;  // for what the large ring of bytes has no pages for yet

    static constexpr std::uint64_t kLargeEpoch = 1ull << 63;
    static constexpr std::uint64_t kLinesAhead = 8;
    static const std::atomic<std::uint32_t> kNeverArmed;
    static const std::atomic<std::uint32_t> kAlwaysLook;
    static const Line kNoLines[1];
};

template <class First, class Second>
[[gnu::noinline]] void Path::look_ahead(First first, Second second) noexcept {
    std::array<std::uint64_t, kLinesAhead> tags;
    std::size_t count = 0;
    std::uint64_t ahead = 0;
    std::uint64_t meta = 0;
    while (ahead < kLinesAhead && in_lines_.peek(meta, ahead)) {
        tags[count] = in_lines_.line(ahead).tag;
        first(tags[count++]);
        // A jump that is foreseen: the lines are asked for together, not one after the other.
        if (LineMeta::is_eager_line(meta)) [[likely]] {
            ++ahead;
            continue;
        }
        const bool is_one_line = core::has_run(static_cast<core::RdOp>(LineMeta::op(meta)));
        ahead += is_one_line
                     ? 1
                     : lines_of(std::min<std::size_t>(LineMeta::length(meta), kMaxLinePayload));
    }
    seen_ahead_ = in_lines_.head() + ahead;
    for (const std::uint64_t tag : std::span(tags.data(), count)) {
        second(tag);
    }
}

}  // namespace rvt::shm
