// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// First the active end asks and sends, then the other.
#include "datagrams.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

namespace datagrams {
namespace {

constexpr std::array<std::size_t, 5> kSizes = {1, 8, 1000, 1023, kMostBytes};

std::byte pattern(std::size_t i, std::size_t bytes, bool is_active) {
    return static_cast<std::byte>(i * 7 + bytes + (is_active ? 1 : 101));
}

/// Opens the end, and waits for the other one. The active end sends first.
template <class Folder, class Send, class Receive>
void take_turns(End& end, Folder& folder, bool is_active, Send send, Receive receive) {
    end.open(is_active ? kActive : kPassive);
    folder.put(is_active ? "active" : "passive", "");
    folder.await(is_active ? "passive" : "active");
    if (is_active) {
        send();
        receive();
    } else {
        receive();
        send();
    }
}

class Course {
  public:
    Course(End& end, std::span<std::byte> memory, const traffic::Options& options)
        : end_(end), memory_(memory), is_active_(options.is_active), folder_(options.dir) {}

    int run() {
        take_turns(
            end_, folder_, is_active_, [this] { send_all(); }, [this] { receive_all(); });
        return report_.status();
    }

  private:
    void send_all() {
        const Sent refused = end_.send(kNobody, memory_.first(1));
        report_.line("a service that nobody has is refused",
                     refused.outcome == Outcome::kRefused ? "" : "it is not: " + refused.text);
        for (const std::size_t bytes : kSizes) {
            for (std::size_t i = 0; i < bytes; ++i) {
                memory_[i] = pattern(i, bytes, is_active_);
            }
            const Sent sent = end_.send(is_active_ ? kPassive : kActive, memory_.first(bytes));
            report_.line("datagram of " + std::to_string(bytes) + " bytes",
                         sent.outcome == Outcome::kSent ? "" : sent.text);
        }
    }

    /// Who has sent first knows whose the answers are.
    void receive_all() {
        for (const std::size_t bytes : kSizes) {
            const Received got = end_.receive();
            std::string problem = got.problem;
            if (problem.empty() && is_active_ && !got.is_from_peer) {
                problem = "from somebody else";
            }
            report_.line("receive of " + std::to_string(bytes) + " bytes",
                         problem.empty() ? difference(got, bytes) : problem);
        }
    }

    [[nodiscard]] std::string difference(const Received& got, std::size_t bytes) const {
        if (got.bytes != bytes) {
            return std::to_string(got.bytes) + " bytes came";
        }
        const std::span<const std::byte> data = end_.buffer(got.buffer);
        for (std::size_t i = 0; i < bytes; ++i) {
            if (data[i] != pattern(i, bytes, !is_active_)) {
                return "byte " + std::to_string(i) + " is another";
            }
        }
        return "";
    }

    End& end_;
    const std::span<std::byte> memory_;
    const bool is_active_;
    const traffic::Folder folder_;
    traffic::Report report_;
};

// ---- where some get lost, come twice or overtake others ----

constexpr std::uint64_t kNumbered = 150;
constexpr std::uint64_t kLast = ~std::uint64_t{0};  // comes until it is heard
constexpr std::size_t kNumberBytes = sizeof kLast;

constexpr std::size_t bytes_of(std::uint64_t number) {
    return number == kLast ? kNumberBytes
                           : kNumberBytes + number * 37 % (kMostBytes - kNumberBytes + 1);
}

using Numbered = std::array<std::byte, kMostBytes>;

/// As it is in a buffer.
Numbered numbered(std::uint64_t number, bool is_active) {
    Numbered datagram;
    datagram.fill(kUntouched);
    std::memcpy(datagram.data(), &number, kNumberBytes);
    for (std::size_t i = kNumberBytes; i < bytes_of(number); ++i) {
        datagram[i] = pattern(i + number * 59, bytes_of(number), is_active);
    }
    return datagram;
}

class StrayCourse {
  public:
    StrayCourse(End& end, std::span<std::byte> memory, const traffic::Options& options)
        : end_(end), memory_(memory), is_active_(options.is_active), folder_(options.dir) {}

    int run() {
        take_turns(
            end_, folder_, is_active_, [this] { send_all(); }, [this] { receive_all(); });
        end_.close();
        report_.line("each receive has one whole datagram or none", problem_of_buffers());
        return report_.status();
    }

  private:
    void send_all() {
        std::string problem;
        for (std::uint64_t number = 0; number < kNumbered && problem.empty(); ++number) {
            problem = send(number);
        }
        const auto end = std::chrono::steady_clock::now() + traffic::kPatience;
        while (problem.empty() && !folder_.has(heard(!is_active_))) {
            problem = std::chrono::steady_clock::now() < end ? send(kLast) : "it is not heard";
        }
        report_.line("each datagram is sent", problem);
    }

    std::string send(std::uint64_t number) {
        std::ranges::copy(numbered(number, is_active_), memory_.begin());
        const Sent sent =
            end_.send(is_active_ ? kPassive : kActive, memory_.first(bytes_of(number)));
        return sent.outcome == Outcome::kSent ? "" : sent.text;
    }

    static std::string heard(bool is_active) {
        return is_active ? "heard-active" : "heard-passive";
    }

    void receive_all() {
        std::string problem;
        traffic::StrayCount count(kNumbered);
        while (problem.empty()) {
            const Received got = end_.receive();
            problem = got.problem.empty() ? objection(got) : got.problem;
            if (!problem.empty()) {
                break;
            }
            const std::uint64_t number = number_in(got.buffer);
            if (number == kLast) {
                break;
            }
            count.note(number);
        }
        folder_.put(heard(is_active_), "");
        report_.line("each datagram that arrives is whole", problem);
        count.put(report_, "", false);  // each waits for the one before it to leave
    }

    [[nodiscard]] std::uint64_t number_in(std::size_t buffer) const {
        std::uint64_t number = 0;
        std::memcpy(&number, end_.buffer(buffer).data(), kNumberBytes);
        return number;
    }

    [[nodiscard]] std::string objection(const Received& got) {
        if (got.buffer >= kReceives || received_[got.buffer]) {
            return "a receive completes twice";
        }
        received_[got.buffer] = number_in(got.buffer);
        if (got.bytes != bytes_of(number_in(got.buffer))) {
            return std::to_string(got.bytes) + " bytes came";
        }
        return problem_of(got.buffer);
    }

    /// Of a buffer into which something has come.
    [[nodiscard]] std::string problem_of(std::size_t buffer) const {
        const std::uint64_t number = number_in(buffer);
        if (number >= kNumbered && number != kLast) {
            return "none has the number " + std::to_string(number);
        }
        return std::ranges::equal(end_.buffer(buffer), numbered(number, !is_active_))
                   ? ""
                   : "number " + std::to_string(number) + " has other bytes";
    }

    /// Others may have come while nobody looked, but those that were there are as they were.
    [[nodiscard]] std::string problem_of_buffers() const {
        std::string problem;
        for (std::size_t i = 0; i < kReceives && problem.empty(); ++i) {
            const bool is_untouched = std::ranges::all_of(
                end_.buffer(i), [](std::byte byte) { return byte == kUntouched; });
            if (received_[i] && received_[i] != number_in(i)) {
                problem = "written after its completion";
            } else if (!is_untouched) {
                problem = problem_of(i);
            }
        }
        return problem;
    }

    End& end_;
    const std::span<std::byte> memory_;
    const bool is_active_;
    const traffic::Folder folder_;
    std::array<std::optional<std::uint64_t>, kReceives> received_{};  // by buffer
    traffic::Report report_;
};

}  // namespace

int run(End& end, std::span<std::byte> memory, const traffic::Options& options) {
    return options.has_strays ? StrayCourse(end, memory, options).run()
                              : Course(end, memory, options).run();
}

}  // namespace datagrams
