// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The rings with both ends on one mapping: every interleaving of a few small messages, and two
// threads (which ThreadSanitizer can judge, unlike two processes).
#include "backend/shm/ring.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "common/check.h"

using namespace rvt::shm;  // NOLINT(google-build-using-namespace)

namespace {

/// Shared memory of one direction: rings, and the credits that come back.
template <std::size_t kLineCount, std::size_t kByteCount>
struct Memory {
    std::array<Line, kLineCount> lines{};
    alignas(64) std::array<std::byte, kByteCount> bytes{};
    alignas(64) std::atomic<std::uint64_t> consumed_lines{0};
    std::atomic<std::uint64_t> consumed_bytes{0};
};

/// A message: so many lines, and a run of so many bytes if that is not 0.
struct Shape {
    std::uint64_t lines;
    std::size_t run;
};

std::byte content(std::uint64_t message, std::uint64_t place) {
    return static_cast<std::byte>(message * 37 + place + 1);
}

/// The sender's end, one access to shared memory in each step.
template <class Shared>
class Sender {
  public:
    Sender(Shared& memory, const std::vector<Shape>& plan) : memory_(memory), plan_(plan) {
        lines_.open(memory.lines.data(), memory.lines.size());
        bytes_.open(memory.bytes.data(), memory.bytes.size());
    }
    bool is_done() const { return sent_ == plan_.size(); }

    /// Returns: whether the step changed anything; the same step is tried again later if not.
    bool step() {
        if (is_done()) {
            return false;
        }
        const Shape& shape = plan_[sent_];
        if (place_ == 0) {
            return begin(shape);
        }
        if (place_ == 1 && shape.run != 0) {
            for (std::size_t i = 0; i < shape.run; ++i) {
                run_[i] = content(sent_, i);
            }
            bytes_.commit(shape.run);
            ++place_;
            return true;
        }
        return show(shape);
    }

  private:
    bool has_room(const Shape& shape) {
        run_ = shape.run == 0 ? nullptr : bytes_.reserve(shape.run);
        return lines_.room() >= shape.lines && (shape.run == 0 || run_ != nullptr);
    }
    bool begin(const Shape& shape) {
        if (!has_room(shape)) {
            // acquire: pairs with the release in Receiver::step().
            lines_.refresh(memory_.consumed_lines.load(std::memory_order_acquire));
            bytes_.refresh(memory_.consumed_bytes.load(std::memory_order_acquire));
            return has_room(shape);
        }
        fill(0);
        bytes_.own(shape.run);
        place_ = 1;
        left_ = shape.lines;
        return true;
    }
    void fill(std::uint64_t ahead) {
        std::memset(lines_.line(ahead).continuation(), static_cast<int>(content(sent_, ahead)),
                    Line::kContinuationBytes);
    }
    /// The first line is shown last.
    bool show(const Shape& shape) {
        --left_;
        const bool is_first = left_ == 0;
        if (!is_first) {
            fill(left_);
        }
        lines_.publish(is_first ? LineMeta::pack(static_cast<std::uint8_t>(shape.lines), 0,
                                                 static_cast<std::uint32_t>(shape.run))
                                : 0,
                       left_);
        if (is_first) {
            lines_.advance(shape.lines);
            bytes_.own(shape.run);  // of the next one, as long as this one
            place_ = 0;
            ++sent_;
        }
        return true;
    }

    Shared& memory_;
    const std::vector<Shape>& plan_;
    LineProducer lines_;
    ByteProducer bytes_;
    std::byte* run_ = nullptr;
    std::size_t sent_ = 0;
    int place_ = 0;
    std::uint64_t left_ = 0;
};

/// The receiver's end, one access to shared memory in each step. It gives credits back after each
/// message, or after each second one.
template <class Shared>
class Receiver {
  public:
    Receiver(Shared& memory, const std::vector<Shape>& plan, std::size_t credit_every)
        : memory_(memory), plan_(plan), credit_every_(credit_every) {
        lines_.open(memory.lines.data(), memory.lines.size());
        bytes_.open(memory.bytes.data(), memory.bytes.size());
    }
    bool is_done() const { return received_ == plan_.size() && place_ == 0; }
    const std::string& complaint() const { return complaint_; }

    bool step() {
        switch (place_) {
            case 0: {
                std::uint64_t meta = 0;
                if (received_ == plan_.size() || !lines_.peek(meta)) {
                    return false;
                }
                check_meta(meta);
                place_ = 1;
                return true;
            }
            case 1:
                check_content();
                place_ = 2;
                return true;
            default:
                ++received_;
                place_ = 0;
                if (received_ % credit_every_ == 0 || received_ == plan_.size()) {
                    // release: pairs with the acquire in Sender::begin(): what has been read may
                    // be overwritten.
                    memory_.consumed_bytes.store(bytes_.head(), std::memory_order_release);
                    memory_.consumed_lines.store(lines_.head(), std::memory_order_release);
                }
                return true;
        }
    }

  private:
    void expect(bool holds, const char* what) {
        if (!holds && complaint_.empty()) {
            complaint_ = "message " + std::to_string(received_) + ": " + what;
        }
    }
    void check_meta(std::uint64_t meta) {
        expect(LineMeta::op(meta) == plan_[received_].lines, "number of lines");
        expect(LineMeta::length(meta) == plan_[received_].run, "length of the run");
        expect(lines_.line().tag == content_word(), "order");
    }
    std::uint64_t content_word() const {
        std::uint64_t word = 0;
        std::memset(&word, static_cast<int>(content(received_, 0)), sizeof word);
        return word;
    }
    void check_content() {
        const Shape& shape = plan_[received_];
        for (std::uint64_t ahead = 0; ahead < shape.lines; ++ahead) {
            const std::byte* const bytes = lines_.line(ahead).continuation();
            for (std::size_t i = 0; i < Line::kContinuationBytes; ++i) {
                expect(bytes[i] == content(received_, ahead), "bytes of a line");
            }
        }
        const std::byte* const run = bytes_.run(shape.run);
        for (std::size_t i = 0; i < shape.run; ++i) {
            expect(run[i] == content(received_, i), "bytes of the run");
        }
        if (shape.run != 0) {
            bytes_.advance(shape.run);
        }
        lines_.advance(shape.lines);
    }

    Shared& memory_;
    const std::vector<Shape>& plan_;
    LineConsumer lines_;
    ByteConsumer bytes_;
    std::size_t received_ = 0;
    std::size_t credit_every_;
    int place_ = 0;
    std::string complaint_;
};

using Tiny = Memory<4, 256>;

/// Every order in which the steps of both ends can follow each other, one after the other.
class Explorer {
  public:
    Explorer(std::vector<Shape> plan, std::size_t credit_every)
        : plan_(std::move(plan)), credit_every_(credit_every) {}

    /// Returns: how many orders there are. Each is played from the beginning.
    std::uint64_t explore() {
        std::uint64_t orders = 0;
        std::vector<bool> choices;
        do {
            play(choices);
            ++orders;
        } while (next(choices) && complaint_.empty());
        return orders;
    }
    const std::string& complaint() const { return complaint_; }

  private:
    /// Follows `choices` (true: the sender), then lets the sender go first wherever it can, and
    /// notes where there was a choice.
    void play(std::vector<bool>& choices) {
        const auto memory = std::make_unique<Tiny>();
        Sender<Tiny> sender(*memory, plan_);
        Receiver<Tiny> receiver(*memory, plan_, credit_every_);
        for (std::size_t turn = 0; !sender.is_done() || !receiver.is_done(); ++turn) {
            if (turn == choices.size()) {
                choices.push_back(true);
            }
            bool has_moved = choices[turn] ? sender.step() : receiver.step();
            if (!has_moved && choices[turn]) {
                choices[turn] = false;  // it can do nothing here
                has_moved = receiver.step();
            }
            if (!has_moved && sender.step()) {
                choices.resize(turn + 1);
                return;  // the receiver can do nothing here: the order with the sender was played
            }
            if (!has_moved) {
                complaint_ = "both ends wait";
                return;
            }
        }
        complaint_ = receiver.complaint();
    }
    /// The next order: the last choice of the sender becomes one of the receiver.
    static bool next(std::vector<bool>& choices) {
        while (!choices.empty() && !choices.back()) {
            choices.pop_back();
        }
        if (choices.empty()) {
            return false;
        }
        choices.back() = false;
        return true;
    }

    std::vector<Shape> plan_;
    std::size_t credit_every_;
    std::string complaint_;
};

void expect_sound(const std::vector<Shape>& plan, std::size_t credit_every,
                  std::uint64_t least_orders) {
    Explorer explorer(plan, credit_every);
    const std::uint64_t orders = explorer.explore();
    cr_assert(explorer.complaint().empty(), "%s", explorer.complaint().c_str());
    cr_assert(orders >= least_orders, "only %llu orders were tried",
              static_cast<unsigned long long>(orders));
}

}  // namespace

Test(ring, of_lines_is_sound_in_every_interleaving, .timeout = 60) {
    // One line, two and four, in a ring of four: each message waits for credits, and laps change.
    expect_sound({{1, 0}, {2, 0}, {4, 0}, {1, 0}, {3, 0}}, 1, 1000);
    expect_sound({{1, 0}, {1, 0}, {2, 0}, {1, 0}, {2, 0}}, 2, 1000);
}

Test(ring, of_bytes_is_sound_in_every_interleaving, .timeout = 60) {
    // Runs that fill the ring, that do not fit its end, and that are as long as may be.
    expect_sound({{1, 100}, {1, 100}, {1, 128}, {1, 30}}, 1, 500);
    expect_sound({{1, 64}, {2, 65}, {1, 128}, {1, 1}}, 1, 500);
}

Test(ring, between_two_threads_loses_and_reorders_nothing, .timeout = 120) {
    constexpr std::size_t kMessages = 20'000;
    using Shared = Memory<64, 8192>;
    const auto memory = std::make_unique<Shared>();
    std::vector<Shape> plan;
    for (std::size_t i = 0; i < kMessages; ++i) {
        plan.push_back({1 + i % 4, i % 3 == 0 ? i % 700 : 0});
    }
    Sender<Shared> sender(*memory, plan);
    Receiver<Shared> receiver(*memory, plan, 8);
    std::thread other([&] {
        while (!sender.is_done()) {
            if (!sender.step()) {
                std::this_thread::yield();
            }
        }
    });
    while (!receiver.is_done() && receiver.complaint().empty()) {
        if (!receiver.step()) {
            std::this_thread::yield();
        }
    }
    if (!receiver.complaint().empty()) {
        // The sender may wait for ever: the process ends with the test.
        other.detach();
    } else {
        other.join();
    }
    cr_assert(receiver.complaint().empty(), "%s", receiver.complaint().c_str());
}

Test(ring, shows_its_next_line_apart) {
    Tiny memory;
    LineProducer sent;
    LineConsumer taken;
    sent.open(memory.lines.data(), memory.lines.size());
    taken.open(memory.lines.data(), memory.lines.size());
    for (std::size_t i = 0; i < 3 * memory.lines.size(); ++i) {
        const LineLook next = taken.look();
        RVT_ASSERT(!next.has_arrival());
        sent.publish(LineMeta::pack(1, 0, 0));
        RVT_ASSERT(next.has_arrival());
        sent.advance(1);
        taken.advance(1);
    }
}

Test(ring, ignores_credits_that_cannot_be_true) {
    Tiny memory;
    LineProducer lines;
    ByteProducer bytes;
    lines.open(memory.lines.data(), memory.lines.size());
    bytes.open(memory.bytes.data(), memory.bytes.size());
    lines.advance(3);
    bytes.commit(100);
    for (const std::uint64_t wrong : {std::uint64_t{4}, std::uint64_t{5}, ~std::uint64_t{0},
                                      std::uint64_t{1} << 62, ~std::uint64_t{0} - 8}) {
        lines.refresh(wrong);
        RVT_ASSERT(lines.room() <= memory.lines.size());
    }
    for (const std::uint64_t wrong : {std::uint64_t{101}, std::uint64_t{1} << 40}) {
        bytes.refresh(wrong);
        RVT_ASSERT(bytes.reserve(128) != nullptr);
        bytes.commit(128);
        RVT_ASSERT(bytes.reserve(128) == nullptr);
        bytes.open(memory.bytes.data(), memory.bytes.size());
        bytes.commit(100);
    }
}

Test(ring, gives_no_run_longer_than_half) {
    Tiny memory;
    ByteConsumer bytes;
    bytes.open(memory.bytes.data(), memory.bytes.size());
    RVT_ASSERT(bytes.run(128) != nullptr);
    RVT_ASSERT(bytes.run(129) == nullptr);
    RVT_ASSERT(bytes.run(~std::size_t{0}) == nullptr);
}
