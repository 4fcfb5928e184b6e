// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// First the active end asks and sends, then the other.
#include "datagrams.h"

#include <array>

namespace datagrams {
namespace {

constexpr std::array<std::size_t, 5> kSizes = {1, 8, 1000, 1023, kMostBytes};

std::byte pattern(std::size_t i, std::size_t bytes, bool is_active) {
    return static_cast<std::byte>(i * 7 + bytes + (is_active ? 1 : 101));
}

class Course {
  public:
    Course(End& end, std::span<std::byte> memory, const traffic::Options& options)
        : end_(end), memory_(memory), is_active_(options.is_active), folder_(options.dir) {}

    int run() {
        end_.open(is_active_ ? kActive : kPassive);
        folder_.put(is_active_ ? "active" : "passive", "");
        folder_.await(is_active_ ? "passive" : "active");
        if (is_active_) {
            send_all();
            receive_all();
        } else {
            receive_all();
            send_all();
        }
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
                         problem.empty() ? difference(got.data, bytes) : problem);
        }
    }

    [[nodiscard]] std::string difference(std::span<const std::byte> data, std::size_t bytes) const {
        if (data.size() != bytes) {
            return std::to_string(data.size()) + " bytes came";
        }
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

}  // namespace

int run(End& end, std::span<std::byte> memory, const traffic::Options& options) {
    return Course(end, memory, options).run();
}

}  // namespace datagrams
