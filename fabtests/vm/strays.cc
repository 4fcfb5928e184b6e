// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The course of the end that sends, and that of the one that receives.
#include "strays.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

namespace strays {
namespace {

using traffic::Completion;
using traffic::kGrhBytes;
using traffic::kMtuBytes;
using traffic::Outcome;
using traffic::Pair;
using Clock = std::chrono::steady_clock;

// Behind each batch comes an empty SEND of RC: when it is acknowledged, the peer has looked at all
// that came before, and no datagram is lost for want of room.
constexpr std::size_t kBatch = 30;
constexpr std::size_t kBatches = 20;
constexpr std::size_t kDatagrams = kBatch * kBatches;  // to each
constexpr std::size_t kReceives = 1000;                // more than come even if many come twice
static_assert(kBatch <= traffic::kMaxSends && kReceives <= traffic::kMaxReceives);
static_assert(2 * kReceives + kBatches <= traffic::kMaxCompletions);

struct Way {
    Pair pair;
    const char* name;
};
constexpr std::array<Way, 2> kWays = {Way{Pair::kUd, "UD"}, Way{Pair::kGroup, "UD to a group"}};
constexpr std::size_t kRc = kWays.size();  // in a wr_id, in the place of the way

constexpr std::byte kUntouched{0xee};
constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);
constexpr std::size_t kSlotBytes = kGrhBytes + kMtuBytes + traffic::kGuardBytes;
constexpr unsigned kWayShift = 32;  // of a wr_id

constexpr std::uint64_t wr_id(std::size_t way, std::size_t index) {
    return static_cast<std::uint64_t>(way) << kWayShift | index;
}
constexpr std::size_t way_of(std::uint64_t id) {
    return id >> kWayShift;
}
constexpr std::size_t index_of(std::uint64_t id) {
    return static_cast<std::uint32_t>(id);
}
constexpr std::size_t slot_at(std::size_t way, std::size_t index) {
    return (way * kReceives + index) * kSlotBytes;
}

// ---- a datagram ----

constexpr std::size_t bytes_of(std::size_t number) {
    return kNumberBytes + number * 37 % (kMtuBytes - kNumberBytes + 1);
}

std::byte pattern(std::size_t way, std::size_t number, std::size_t at) {
    return static_cast<std::byte>(number * 59 + at * 31 + (at >> 8) * 7 + way * 101 + 1);
}

void put_datagram(std::span<std::byte> to, std::size_t way, std::size_t number) {
    const std::uint64_t first = number;
    std::memcpy(to.data(), &first, kNumberBytes);
    for (std::size_t at = kNumberBytes; at < bytes_of(number); ++at) {
        to[at] = pattern(way, number, at);
    }
}

bool is_untouched(std::span<const std::byte> memory) {
    return std::ranges::all_of(memory, [](std::byte byte) { return byte == kUntouched; });
}

/// Returns: what is wrong with a slot into which a datagram has come, or nothing.
std::string objection(std::span<const std::byte> slot, std::size_t way, std::uint64_t bytes) {
    const std::span<const std::byte> data = slot.subspan(kGrhBytes);
    std::uint64_t number = 0;
    std::memcpy(&number, data.data(), kNumberBytes);
    if (number >= kDatagrams) {
        return "none has the number " + std::to_string(number);
    }
    const std::string which = "of " + std::to_string(number) + " ";
    if (bytes != kGrhBytes + bytes_of(number)) {
        return which + std::to_string(bytes) + " bytes came";
    }
    for (std::size_t at = kNumberBytes; at < bytes_of(number); ++at) {
        if (data[at] != pattern(way, number, at)) {
            return which + "byte " + std::to_string(at) + " is another";
        }
    }
    return is_untouched(data.subspan(bytes_of(number))) ? "" : which + "more has been written";
}

// ---- the course ----

class Course {
  public:
    Course(traffic::End& end, std::span<std::byte> memory, const traffic::Options& options)
        : end_(end), memory_(memory), options_(options), folder_(options.dir) {}

    int run() {
        traffic::connect(end_, options_);
        if (options_.is_active) {
            be_active();
        } else {
            be_passive();
        }
        return report_.status();
    }

  private:
    // ---- active ----

    void be_active() {
        folder_.await("ready");
        std::string problem;
        for (std::size_t batch = 0; batch < kBatches && problem.empty(); ++batch) {
            problem = send_batch(batch);
        }
        report_.line("each datagram is sent, in its order", problem);
        folder_.put("done", "");
    }

    std::string send_batch(std::size_t batch) {
        std::array<std::size_t, kWays.size()> due{};
        for (std::size_t way = 0; way < kWays.size(); ++way) {
            due[way] = batch * kBatch;
            for (std::size_t i = 0; i < kBatch; ++i) {
                post(way, batch * kBatch + i);
            }
        }
        for (std::size_t done = 0; done < kBatch * kWays.size(); ++done) {
            const Completion completion = traffic::await_completion(end_, "a datagram");
            const std::size_t way = way_of(completion.wr_id);
            if (way >= kWays.size() || index_of(completion.wr_id) != due[way]++) {
                return "another request completed";
            }
            if (completion.outcome != Outcome::kSuccess) {
                return completion.text;
            }
        }
        end_.post({.pair = Pair::kRc, .verb = traffic::Verb::kSend, .wr_id = wr_id(kRc, batch)});
        const Completion completion = traffic::await_completion(end_, "the SEND behind a batch");
        return completion.wr_id != wr_id(kRc, batch)     ? "another request completed"
               : completion.outcome != Outcome::kSuccess ? completion.text
                                                         : "";
    }

    void post(std::size_t way, std::size_t number) {
        end_.post({.pair = kWays[way].pair,
                   .verb = traffic::Verb::kSend,
                   .wr_id = wr_id(way, number),
                   .local = memory_.subspan(slot_at(way, number), bytes_of(number))});
    }

    // ---- passive ----

    void be_passive() {
        for (std::size_t i = 0; i < kBatches; ++i) {
            end_.post_receive(Pair::kRc, wr_id(kRc, i), {});
        }
        for (std::size_t way = 0; way < kWays.size(); ++way) {
            for (std::size_t i = 0; i < kReceives; ++i) {
                end_.post_receive(
                    kWays[way].pair, wr_id(way, i),
                    memory_.subspan(slot_at(way, i), kSlotBytes - traffic::kGuardBytes));
            }
        }
        folder_.put("ready", "");
        while (batches_ < kBatches) {
            note(traffic::await_completion(end_, "the receive behind a batch"));
        }
        // Others may be under way still: nothing is written any more when all receives are back.
        for (const Way& way : kWays) {
            end_.end(way.pair);
        }
        while (arrived_[0].size() < kReceives || arrived_[1].size() < kReceives) {
            note(traffic::await_completion(end_, "all receives"));
        }
        answer_until_done();
        for (std::size_t way = 0; way < kWays.size(); ++way) {
            judge(way);
        }
    }

    /// The last acknowledgement may be lost, and comes again only while this end is there.
    void answer_until_done() {
        const auto end = Clock::now() + traffic::kPatience;
        auto look = Clock::now();
        for (bool is_done = false; !is_done;) {
            const auto now = Clock::now();
            if (end_.poll() || now > end) {
                traffic::fail(now > end ? "the other end did not end" : "a surplus completion");
            }
            if (now > look) {
                look = now + traffic::kLook;
                is_done = folder_.has("done");
            }
            std::this_thread::yield();  // the device may need this processor
        }
    }

    void note(const Completion& completion) {
        const std::size_t way = way_of(completion.wr_id);
        if (way == kRc) {
            ++batches_;
            return;
        }
        if (way > kRc || index_of(completion.wr_id) != arrived_[way].size()) {
            traffic::fail("a receive completed that was not the next one");
        }
        arrived_[way].push_back(completion);
    }

    [[nodiscard]] std::span<const std::byte> slot(std::size_t way, std::size_t index) const {
        return memory_.subspan(slot_at(way, index), kSlotBytes);
    }

    void judge(std::size_t way) {
        std::string problem;
        traffic::StrayCount count(kDatagrams);
        for (std::size_t i = 0; i < kReceives && problem.empty(); ++i) {
            const Completion& completion = arrived_[way][i];
            if (completion.outcome == Outcome::kFlushed) {
                problem = is_untouched(slot(way, i)) ? "" : "written though it was not used";
                continue;
            }
            problem = completion.outcome == Outcome::kSuccess
                          ? objection(slot(way, i), way, completion.bytes)
                          : completion.text;
            if (problem.empty()) {
                std::uint64_t number = 0;
                std::memcpy(&number, &slot(way, i)[kGrhBytes], kNumberBytes);
                count.note(number);
            }
        }
        const std::string name = kWays[way].name;
        report_.line(name + ", what arrives is whole and in its place", problem);
        count.put(report_, name + ", ", true);
    }

    traffic::End& end_;
    const std::span<std::byte> memory_;
    const traffic::Options& options_;
    const traffic::Folder folder_;
    std::size_t batches_ = 0;
    std::array<std::vector<Completion>, kWays.size()> arrived_;
    traffic::Report report_;
};

}  // namespace

std::vector<std::byte> first_memory(bool is_active) {
    std::vector<std::byte> memory(slot_at(kWays.size(), 0), kUntouched);
    for (std::size_t way = 0; is_active && way < kWays.size(); ++way) {
        for (std::size_t number = 0; number < kDatagrams; ++number) {
            put_datagram(std::span(memory).subspan(slot_at(way, number)), way, number);
        }
    }
    return memory;
}

int run(traffic::End& end, std::span<std::byte> memory, const traffic::Options& options) {
    return Course(end, memory, options).run();
}

}  // namespace strays
