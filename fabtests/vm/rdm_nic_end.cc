// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A stream of messages from the active to the passive one of two guests' RDM endpoints, one of
// which takes its own NIC, rxe0, away meanwhile. What was under way ends, and messages go on by
// packets.
//
//   rdm_nic_end DIR active|passive OWN-IP PEER-IP [takes-nic]
#include "ends.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "common/endpoint.h"

namespace {

constexpr std::size_t kMost = 1 << 20;
constexpr std::size_t kDepth = 4;      // messages that are always under way
constexpr std::size_t kHeld = kDepth;  // one more, which the peer has no receive for
constexpr std::size_t kSizes[] = {64, 100'000, 1 << 20, 3000, kMost};
constexpr unsigned kMessages = 24;
constexpr double kLimitS = 60;  // emulated processors are slow
constexpr std::uint64_t kTag = 7;
constexpr std::uint64_t kHeldTag = 8;

const fab::EpSpec kSpec{.caps = FI_TAGGED, .addr_format = FI_SOCKADDR_IN};

class Sender {
  public:
    explicit Sender(const traffic::Folder& folder) : ep_(kSpec), buffer_(ep_, kMost) {
        std::ifstream file = folder.await("name");
        const std::vector<char> name{std::istreambuf_iterator<char>(file), {}};
        peer_ = ep_.insert(name);
        for (std::size_t slot = 0; slot < kDepth; ++slot) {
            send(slot);
        }
    }

    /// Sends on until it is so. Returns: what is wrong.
    template <class Is>
    std::string until(Is is) {
        const double end = fab::now_s() + kLimitS;
        while (!is()) {
            if (fab::now_s() > end) {
                return std::to_string(arrived) + " arrived, " + std::to_string(failed) +
                       " failed, " + std::to_string(pending) + " under way";
            }
            step();
        }
        return {};
    }
    /// Has one under way for certain: an emulated machine may let all others arrive between any two
    /// steps.
    void hold_one() { send(kHeld); }
    /// Lets what is under way come to its end.
    std::string finish() {
        is_finishing_ = true;
        waits_.fill(false);
        return until([&] { return pending == 0; });
    }

    std::size_t pending = 0;
    unsigned arrived = 0;
    unsigned failed = 0;

  private:
    void send(std::size_t slot) {
        const auto sent = fi_tsend(ep_.ep, buffer_.as(), kSizes[slot], buffer_.desc(), peer_,
                                   slot == kHeld ? kHeldTag : kTag, &contexts_[slot]);
        waits_[slot] = sent == -FI_EAGAIN;
        if (sent != 0 && sent != -FI_EAGAIN) {
            traffic::fail(std::string("fi_tsend: ") + fi_strerror(static_cast<int>(-sent)));
        }
        pending += sent == 0 ? 1 : 0;
    }
    void step() {
        for (std::size_t slot = 0; slot < waits_.size(); ++slot) {
            if (waits_[slot]) {
                send(slot);
            }
        }
        fab::Completion one;
        if (!ep_.poll(ep_.tx_cq, one)) {
            return;
        }
        --pending;
        ++(one.err != 0 ? failed : arrived);
        const auto slot =
            static_cast<std::size_t>(static_cast<fab::Context*>(one.context) - contexts_.data());
        if (!is_finishing_ && slot != kHeld) {
            send(slot);
        }
    }

    fab::Endpoint ep_;
    fab::Buffer buffer_;
    fi_addr_t peer_ = FI_ADDR_UNSPEC;
    std::array<fab::Context, kDepth + 1> contexts_{};
    std::array<bool, kDepth + 1> waits_{};  // for room
    bool is_finishing_ = false;
};

int active(const traffic::Options& options) {
    const traffic::Folder folder(options.dir);
    traffic::Report report;
    {
        Sender sender(folder);
        report.line("messages over a NIC",
                    sender.until([&] { return sender.arrived >= kMessages; }));
        report.line("none of them fails", sender.failed == 0 ? "" : "some do");
        sender.hold_one();
        if (options.takes_nic) {
            traffic::take_nic_away();
        } else {
            folder.put("take", "");
        }
        report.line("what is under way without it fails",
                    sender.until([&] { return sender.failed != 0; }));
        const unsigned without = sender.arrived;
        report.line("and messages arrive again",
                    sender.until([&] { return sender.arrived >= without + kMessages; }));
        report.line("at most what was under way has failed",
                    sender.failed <= kDepth + 1 ? "" : std::to_string(sender.failed) + " have");
        report.line("all of it comes to its end", sender.finish());
    }
    folder.put("stop", "");
    return report.status();
}

int passive(const traffic::Options& options) {
    const traffic::Folder folder(options.dir);
    fab::Endpoint ep(kSpec);
    const fab::Buffer buffer(ep, kMost);
    std::array<fab::Context, 2 * kDepth> contexts{};
    const auto receive = [&](void* context) {
        ep.post([&] {
            return fi_trecv(ep.ep, buffer.as(), kMost, buffer.desc(), FI_ADDR_UNSPEC, kTag, 0,
                            context);
        });
    };
    for (fab::Context& context : contexts) {
        receive(&context);
    }
    const std::vector<char> name = ep.name();
    folder.put("name", std::string(name.begin(), name.end()));
    bool is_there = true;
    double next_look = 0;
    for (;;) {
        fab::Completion one;
        if (ep.poll(ep.rx_cq, one)) {
            receive(one.context);
        }
        if (fab::now_s() > next_look) {
            if (folder.has("stop")) {
                return 0;
            }
            if (options.takes_nic && is_there && folder.has("take")) {
                traffic::take_nic_away();
                is_there = false;
            }
            next_look = fab::now_s() + 0.2;
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const traffic::Options options = traffic::read_options(argc, argv);
    fab::settings.node = options.own_ip;
    return options.is_active ? active(options) : passive(options);
}
