// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The plainest form of what the matching queues must do, and a random walk that both take.
#pragma once

#include "common/check.h"
#include "core/match_table.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <vector>

namespace rvt::test {

/// A receive (ignore counts, source may be kAnySourceId) or a message.
struct MatchRecord {
    std::uint64_t tag = 0;
    std::uint64_t ignore = 0;
    std::uint32_t source = 0;
    std::uint32_t match_slot = 0;

    std::uint64_t match_tag() const { return tag; }
    std::uint32_t match_source() const { return source; }
};

inline bool fits(const MatchRecord& receive, const MatchRecord& message) {
    return ((receive.tag ^ message.tag) & ~receive.ignore) == 0 &&
           (receive.source == core::kAnySourceId || receive.source == message.source);
}

/// A list in order that is searched from its start.
class MatchModel {
  public:
    MatchRecord* push(const MatchRecord& record) {
        records_.push_back(std::make_unique<MatchRecord>(record));
        return records_.back().get();
    }
    MatchRecord* first(const std::function<bool(const MatchRecord&)>& is_it) const {
        const auto at = std::find_if(records_.begin(), records_.end(),
                                     [&](const auto& each) { return is_it(*each); });
        return at == records_.end() ? nullptr : at->get();
    }
    void remove(MatchRecord* record) {
        records_.remove_if([&](const auto& each) { return each.get() == record; });
    }
    void remove_if(const std::function<bool(const MatchRecord&)>& drop) {
        records_.remove_if([&](const auto& each) { return drop(*each); });
    }
    std::size_t size() const { return records_.size(); }
    std::vector<MatchRecord*> all() const {
        std::vector<MatchRecord*> all;
        for (const auto& each : records_) {
            all.push_back(each.get());
        }
        return all;
    }

  private:
    std::list<std::unique_ptr<MatchRecord>> records_;
};

/// What a walk draws from.
struct MatchWalk {
    std::uint64_t seed;
    std::uint64_t tags = 16;
    std::uint32_t sources = 3;
    std::size_t length = 100;  // of the queue, at most
    std::vector<std::uint64_t> masks{0};
    std::uint64_t any_percent = 30;
    unsigned steps = 12000;
    unsigned phase = 2500;  // steps of mostly growing, then of mostly shrinking
};

/// Posted and Unexpected queues differ in who brings the mask; Face hides that:
/// push(MatchRecord*), match(const MatchRecord&), peek(const MatchRecord&), make(bool is_queued,
/// random).
template <class Face>
class MatchWalker {
  public:
    explicit MatchWalker(const MatchWalk& walk) : walk_(walk), random_(walk.seed) {}

    void run() {
        for (step_ = 0; step_ < walk_.steps; ++step_) {
            step();
            require(face_.queue.size() == model_.size(), "size");
            if (step_ % 512 == 0) {
                compare_order();
            }
        }
        face_.queue.clear();
        require(face_.queue.size() == 0 && face_.queue.memory() == 0, "clear");
    }

  private:
    void step() {
        const bool is_growing = step_ / walk_.phase % 2 == 0;
        const unsigned what = draw(100);
        if (what < (is_growing ? 58 : 20)) {
            push();
        } else if (what < 85) {
            match();
        } else if (what < 92) {
            peek();
        } else if (what < 99) {
            remove_one();
        } else if (draw(8) == 0) {
            remove_some();
        }
    }
    void push() {
        if (model_.size() < walk_.length) {
            MatchRecord* record = model_.push(make(Face::kQueuesReceives));
            require(face_.push(record), "push");
        }
    }
    void match() {
        const MatchRecord asked = make(!Face::kQueuesReceives);
        MatchRecord* expected = expect(asked);
        require(face_.match(asked) == expected, "match");
        model_.remove(expected);
    }
    void peek() {
        const MatchRecord asked = make(!Face::kQueuesReceives);
        MatchRecord* expected = expect(asked);
        require(face_.peek(asked) == expected, "peek");
        if (expected != nullptr && draw(2) == 0) {
            face_.queue.remove(expected);
            model_.remove(expected);
        }
    }
    void remove_one() {
        if (model_.size() != 0) {
            MatchRecord* record = model_.all()[draw(model_.size())];
            face_.queue.remove(record);
            model_.remove(record);
        }
    }
    void remove_some() {
        const std::uint64_t rest = draw(5);
        const auto drop = [&](const MatchRecord& record) { return record.tag % 5 == rest; };
        require(face_.queue.find(drop) == model_.first(drop), "find");
        face_.queue.remove_if(drop);
        model_.remove_if(drop);
    }
    void compare_order() {
        std::vector<MatchRecord*> seen;
        face_.queue.for_each([&](MatchRecord& record) { seen.push_back(&record); });
        require(seen == model_.all(), "order");
    }

    MatchRecord* expect(const MatchRecord& asked) const {
        return model_.first([&](const MatchRecord& each) {
            return Face::kQueuesReceives ? fits(each, asked) : fits(asked, each);
        });
    }
    MatchRecord make(bool is_receive) {
        MatchRecord record{.tag = draw(walk_.tags),
                           .source = static_cast<std::uint32_t>(draw(walk_.sources))};
        if (is_receive) {
            record.ignore = walk_.masks[draw(walk_.masks.size())];
            if (draw(100) < walk_.any_percent) {
                record.source = core::kAnySourceId;
            }
        }
        return record;
    }
    std::uint64_t draw(std::uint64_t below) { return random_() % below; }

    void require(bool holds, const char* what) {
        cr_assert(holds, "%s is wrong at step %u of the walk with seed %lu", what, step_,
                  walk_.seed);
    }

    MatchWalk walk_;
    std::mt19937_64 random_;
    MatchModel model_;
    Face face_;
    unsigned step_ = 0;
};

/// Masks without order or pattern, more of them than the queues keep classes for.
inline std::vector<std::uint64_t> many_masks(std::uint64_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> masks{0, ~0ull};
    while (masks.size() < count) {
        masks.push_back(random() & random() & 0xff);
    }
    return masks;
}

}  // namespace rvt::test
