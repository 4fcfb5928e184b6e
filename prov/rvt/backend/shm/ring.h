// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The two rings of an outbox, seen from either end: lines (headers with small payloads) and bytes
// (larger payloads).
//
// One producer, the endpoint that owns the outbox; one consumer, the peer it is for. Both count
// positions without wrapping them. The consumer returns credits lazily, in its own outbox; the
// producer looks at them only when the room it knows of is used up.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backend/shm/layout.h"
#include "core/rd_wire.h"
#include "util/cpu.h"

namespace rvt::shm {

/// The fixed part of Line::meta.
struct LineMeta {
    static constexpr unsigned kLapShift = 48;
    static constexpr unsigned kOpShift = 40;
    static constexpr unsigned kFlagsShift = 32;
    static constexpr std::uint32_t kMaxLength = (1u << 24) - 1;

    static constexpr std::uint64_t pack(std::uint8_t op, std::uint8_t flags,
                                        std::uint32_t length) noexcept {
        return (std::uint64_t{op} << kOpShift) | (std::uint64_t{flags} << kFlagsShift) | length;
    }
    static constexpr std::uint8_t op(std::uint64_t meta) noexcept {
        return static_cast<std::uint8_t>(meta >> kOpShift);
    }
    static constexpr std::uint8_t flags(std::uint64_t meta) noexcept {
        return static_cast<std::uint8_t>(meta >> kFlagsShift);
    }
    static constexpr std::uint32_t length(std::uint64_t meta) noexcept {
        return static_cast<std::uint32_t>(meta) & kMaxLength;
    }
    /// Whether the line is a whole message of the application's.
    static constexpr bool is_eager_line(std::uint64_t meta) noexcept {
        return op(meta) == static_cast<std::uint8_t>(core::RdOp::kEager) &&
               length(meta) <= Line::kPayloadBytes;
    }
};

/// Producer's end of a ring of lines.
///
/// Threads: the owner of the endpoint.
class LineProducer {
  public:
    void open(Line* lines, std::size_t count) noexcept {
        lines_ = lines;
        shift_ = static_cast<unsigned>(std::countr_zero(count));
        mask_ = count - 1;
        tail_ = 0;
        limit_ = count;
    }
    std::size_t capacity() const noexcept { return mask_ + 1; }
    std::uint64_t tail() const noexcept { return tail_; }
    std::uint64_t room() const noexcept { return limit_ - tail_; }

    /// The next line, or one further on, to be filled and then published. Precondition: room() >
    /// ahead.
    RVT_ALWAYS_INLINE Line& line(std::uint64_t ahead = 0) noexcept {
        return lines_[(tail_ + ahead) & mask_];
    }

    /// Shows the line `ahead` of the next one to the consumer. The first line of a message is shown
    /// last.
    RVT_ALWAYS_INLINE void publish(std::uint64_t meta, std::uint64_t ahead = 0) noexcept {
        const std::uint64_t position = tail_ + ahead;
        const std::uint64_t lap = (position >> shift_) + 1;
        // release: pairs with the acquire in LineConsumer::peek(): who sees the lap sees the line.
        line(ahead).meta.store(meta | (lap << LineMeta::kLapShift), std::memory_order_release);
    }
    RVT_ALWAYS_INLINE void advance(std::uint64_t lines) noexcept { tail_ += lines; }

    /// Takes in the consumer's count. A count that cannot be true (a broken peer) is ignored.
    void refresh(std::uint64_t consumed) noexcept {
        if (tail_ - consumed <= capacity()) {
            limit_ = consumed + capacity();
        }
    }

  private:
    Line* lines_ = nullptr;
    std::uint64_t tail_ = 0;
    std::uint64_t limit_ = 0;  // position that is not free, as far as known
    std::uint64_t mask_ = 0;
    unsigned shift_ = 0;
};

/// Where the next line of a ring will show, apart from the ring: who looks at many rings has these
/// side by side, and touches nothing else of those where nothing has arrived.
class LineLook {
  public:
    LineLook() noexcept = default;
    LineLook(const Line& line, std::uint64_t lap) noexcept : meta_(&line.meta), lap_(lap) {}

    RVT_ALWAYS_INLINE bool has_arrival() const noexcept {
        // relaxed: who then reads the line looks again, see LineConsumer::peek().
        return meta_->load(std::memory_order_relaxed) >> LineMeta::kLapShift == lap_;
    }

  private:
    const std::atomic<std::uint64_t>* meta_ = nullptr;
    std::uint64_t lap_ = 0;
};

/// Consumer's end of a ring of lines.
///
/// Threads: the owner of the endpoint.
class LineConsumer {
  public:
    void open(const Line* lines, std::size_t count) noexcept {
        lines_ = lines;
        shift_ = static_cast<unsigned>(std::countr_zero(count));
        mask_ = count - 1;
        head_ = 0;
    }
    std::size_t capacity() const noexcept { return mask_ + 1; }

    /// Whether the next line, or the one `ahead` lines behind it, has arrived; if so `meta` is its
    /// header.
    RVT_ALWAYS_INLINE bool peek(std::uint64_t& meta, std::uint64_t ahead = 0) const noexcept {
        // acquire: pairs with the release in LineProducer::publish().
        meta = line(ahead).meta.load(std::memory_order_acquire);
        return (meta >> LineMeta::kLapShift) == lap(head_ + ahead);
    }
    /// For the next line; good until advance().
    LineLook look() const noexcept { return {line(), lap(head_)}; }
    RVT_ALWAYS_INLINE const Line& line(std::uint64_t ahead = 0) const noexcept {
        return lines_[(head_ + ahead) & mask_];
    }
    RVT_ALWAYS_INLINE void advance(std::uint64_t lines) noexcept { head_ += lines; }
    std::uint64_t head() const noexcept { return head_; }

  private:
    /// As a line shows it.
    RVT_ALWAYS_INLINE std::uint64_t lap(std::uint64_t position) const noexcept {
        return ((position >> shift_) + 1) & 0xffff;
    }

    const Line* lines_ = nullptr;
    std::uint64_t head_ = 0;
    std::uint64_t mask_ = 0;
    unsigned shift_ = 0;
};

/// Where a run of bytes starts that must not cross the end of the ring. Producer and consumer both
/// follow it.
constexpr std::uint64_t place_bytes(std::uint64_t position, std::uint64_t count,
                                    std::uint64_t capacity) noexcept {
    const std::uint64_t rounded =
        (position + util::kCacheLine - 1) & ~std::uint64_t{util::kCacheLine - 1};
    const std::uint64_t offset = rounded & (capacity - 1);
    return offset + count <= capacity ? rounded : rounded + (capacity - offset);
}

/// Producer's end of a ring of bytes. Runs are at most half the ring, so that one always fits in
/// the end.
class ByteProducer {
  public:
    void open(std::byte* bytes, std::size_t capacity) noexcept {
        bytes_ = bytes;
        capacity_ = capacity;
        tail_ = 0;
        limit_ = capacity;
        owned_ = 0;
    }
    std::size_t capacity() const noexcept { return capacity_; }
    std::size_t max_run() const noexcept { return capacity_ / 2; }
    std::uint64_t tail() const noexcept { return tail_; }

    /// Room for a run of `count` bytes; nullptr: not now.
    RVT_ALWAYS_INLINE std::byte* reserve(std::size_t count) noexcept {
        return has_room(count) ? bytes_ + (next(count) & (capacity_ - 1)) : nullptr;
    }
    [[nodiscard]] RVT_ALWAYS_INLINE bool has_room(std::size_t count) const noexcept {
        return next(count) + count <= limit_;
    }
    RVT_ALWAYS_INLINE void commit(std::size_t count) noexcept { tail_ = next(count) + count; }
    /// Takes the cache lines of the next run of `count` bytes away from the consumer's cache, if
    /// the run has room, by a store into each. The stores of a copy would take one line after the
    /// other, at the time when both ends wait for them; PREFETCHW takes none from another core on
    /// some processors (Zen 4).
    RVT_ALWAYS_INLINE void own(std::size_t count) noexcept {
        if (!has_room(count)) {
            return;
        }
        const std::uint64_t start = next(count);
        for (std::uint64_t at = std::max(start, owned_); at < start + count;
             at += util::kCacheLine) {
            *static_cast<volatile std::byte*>(bytes_ + (at & (capacity_ - 1))) = std::byte{0};
        }
        owned_ = std::max(owned_, start + count);
    }
    /// Lets the reserved and filled run of `count` bytes go to where the consumer finds it sooner.
    void demote(std::size_t count) const noexcept {
        const std::byte* const run = bytes_ + (next(count) & (capacity_ - 1));
        for (std::size_t at = 0; at < count; at += util::kCacheLine) {
            util::demote(run + at);
        }
    }
    void refresh(std::uint64_t consumed) noexcept {
        if (tail_ - consumed <= capacity_) {
            limit_ = consumed + capacity_;
        }
    }

  private:
    /// Where a run of `count` bytes begins.
    [[nodiscard]] RVT_ALWAYS_INLINE std::uint64_t next(std::size_t count) const noexcept {
        return place_bytes(tail_, count, capacity_);
    }

    std::byte* bytes_ = nullptr;
    std::uint64_t capacity_ = 0;
    std::uint64_t tail_ = 0;
    std::uint64_t limit_ = 0;
    std::uint64_t owned_ = 0;  // position up to which own() has been
};

/// Consumer's end of a ring of bytes.
class ByteConsumer {
  public:
    void open(const std::byte* bytes, std::size_t capacity) noexcept {
        bytes_ = bytes;
        capacity_ = capacity;
        head_ = 0;
    }
    /// The run that belongs to a line; nullptr when the length cannot be true.
    RVT_ALWAYS_INLINE const std::byte* run(std::size_t count) const noexcept {
        if (count > capacity_ / 2) [[unlikely]] {
            return nullptr;
        }
        return bytes_ + (place_bytes(head_, count, capacity_) & (capacity_ - 1));
    }
    RVT_ALWAYS_INLINE void advance(std::size_t count) noexcept {
        head_ = place_bytes(head_, count, capacity_) + count;
    }
    std::uint64_t head() const noexcept { return head_; }
    std::size_t capacity() const noexcept { return capacity_; }

  private:
    const std::byte* bytes_ = nullptr;
    std::uint64_t capacity_ = 0;
    std::uint64_t head_ = 0;
};

}  // namespace rvt::shm
