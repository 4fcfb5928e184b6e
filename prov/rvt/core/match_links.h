// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Positions in a queue of the matching engine, and the links between those whose entries answer the
// same question.
//
// A position counts the entries ever appended to a queue, modulo 2^32, so comparing two positions
// compares age. Links lie beside the ring of entries, one for each of its slots, and make circles:
// behind the youngest comes the oldest. Whoever uses a circle knows its oldest position.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "util/cpu.h"
#include "util/status.h"
#include "util/table_memory.h"

namespace rvt::core {

/// Whether position `a` was appended before `b`. Precondition: less than 2^31 apart.
RVT_ALWAYS_INLINE bool is_older(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::int32_t>(a - b) < 0;
}

/// The links of a ring of slots. Freed with the object; a capacity of 0 means none.
class MatchLinks {
  public:
    MatchLinks() = default;
    ~MatchLinks() { std::free(links_); }
    MatchLinks(const MatchLinks&) = delete;
    MatchLinks& operator=(const MatchLinks&) = delete;

    /// Makes room for `capacity` slots (a power of two) and keeps the links of positions [head,
    /// tail). Returns: ENOMEM, and then nothing has changed.
    util::Status reserve(std::uint32_t capacity, std::uint32_t head, std::uint32_t tail) noexcept {
        if (links_ != nullptr && mask_ + 1 == capacity) {
            return util::kOk;
        }
        auto* links = static_cast<Link*>(util::allocate_table(sizeof(Link) * capacity));
        if (links == nullptr) {
            return ENOMEM;
        }
        for (std::uint32_t pos = head; links_ != nullptr && pos != tail; ++pos) {
            links[pos & (capacity - 1)] = links_[pos & mask_];
        }
        std::free(links_);
        links_ = links;
        mask_ = capacity - 1;
        return util::kOk;
    }
    void release() noexcept {
        std::free(std::exchange(links_, nullptr));
        mask_ = 0;
    }
    std::size_t memory() const noexcept {
        return links_ == nullptr ? 0 : sizeof(Link) * (std::size_t{mask_} + 1);
    }

    /// Makes a circle of one.
    void start(std::uint32_t pos) noexcept { at(pos) = {.prev = pos, .next = pos}; }
    /// Adds the youngest.
    void append(std::uint32_t oldest, std::uint32_t pos) noexcept {
        const std::uint32_t youngest = at(oldest).prev;
        at(pos) = {.prev = youngest, .next = oldest};
        at(youngest).next = pos;
        at(oldest).prev = pos;
    }
    /// Takes one out. Returns: what came behind it, itself when it was alone.
    std::uint32_t remove(std::uint32_t pos) noexcept {
        const Link link = at(pos);
        at(link.prev).next = link.next;
        at(link.next).prev = link.prev;
        return link.next;
    }
    /// The entry at `from` is now at `to`; its order among the others is the same.
    void move(std::uint32_t from, std::uint32_t to) noexcept {
        const Link link = at(from);
        if (link.next == from) {
            start(to);
            return;
        }
        at(link.prev).next = to;
        at(link.next).prev = to;
        at(to) = link;
    }
    std::uint32_t next(std::uint32_t pos) noexcept { return at(pos).next; }
    bool is_alone(std::uint32_t pos) noexcept { return at(pos).next == pos; }

  private:
    struct Link {
        std::uint32_t prev;
        std::uint32_t next;
    };
    Link& at(std::uint32_t pos) noexcept { return links_[pos & mask_]; }

    Link* links_ = nullptr;
    std::uint32_t mask_ = 0;
};

}  // namespace rvt::core
