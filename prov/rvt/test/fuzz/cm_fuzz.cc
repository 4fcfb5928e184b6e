// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of connection management: two managers, and somebody who changes what they say, or says
// something else in the name of one of them.
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "core/cm_agent.h"
#include "fuzz/input.h"
#include "fuzz/mad.h"

using namespace rvt;        // NOLINT(google-build-using-namespace)
using namespace rvt::core;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::uint64_t kService = protocol::ip_service_id(protocol::PortSpace::kTcp, 7471);
constexpr std::size_t kMostWaiting = 64;

using fuzz::Mad;

Address address_of(std::uint8_t host) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host}, .port = 4791};
}

class Node final : public CmWire {
  public:
    explicit Node(std::uint8_t host)
        : address(address_of(host)),
          agent({.local = address, .ca_guid = host, .secret = {host, 7}, .max_connections = 64},
                *this) {
        fuzz::must(agent.listen(kService, 1).is_ok());
    }
    void send_mad(const AhAttr& /*to*/, CmMadBytes mad) noexcept override {
        if (sent.size() < kMostWaiting) {
            std::copy(mad.begin(), mad.end(), sent.emplace_back().begin());
        }
    }

    const Address address;
    CmAgent agent;
    std::deque<Mad> sent;
    std::vector<CmHandle> handles;
};

class World {
  public:
    void step(fuzz::Input& input) {
        const std::uint8_t what = input.u8();
        Node& node = *nodes_[what & 1];
        Node& other = *nodes_[~what & 1];
        switch (what >> 1 & 7) {
            case 0: connect(node, other, input.u8()); break;
            case 1: carry(node, other, 0, input); break;
            case 2: carry(node, other, 1 + input.u8() % 4u, input); break;
            case 3: {
                const std::uint8_t kind = input.u8();
                other.agent.take_mad(node.address, fuzz::mad_of(kind, input), now_us_);
                break;
            }
            case 4:
                now_us_ += std::uint64_t{1000} * input.u16();
                node.agent.run_timers(now_us_);
                other.agent.run_timers(now_us_);
                break;
            case 5: answer(node, input.u8()); break;
            case 6: hang_up(node, input.u8()); break;
            default: other.agent.take_mad(node.address, input.take(protocol::kMadBytes), now_us_);
        }
    }

  private:
    void connect(Node& from, const Node& to, std::uint8_t qpn) {
        const auto made = from.agent.connect({.service_id = kService,
                                              .dest = {.dest = to.address},
                                              .own = {.qpn = qpn, .starting_psn = 1},
                                              .max_cm_retries = 3},
                                             now_us_);
        if (made.is_ok()) {
            from.handles.push_back(made.value());
        }
    }
    /// Takes the oldest message along, with some bytes changed.
    void carry(Node& from, Node& to, unsigned changes, fuzz::Input& input) {
        if (from.sent.empty()) {
            return;
        }
        Mad mad = from.sent.front();
        from.sent.pop_front();
        for (; changes != 0; --changes) {
            const std::size_t at = input.u8();
            mad[at] = std::byte{input.u8()};
        }
        to.agent.take_mad(from.address, mad, now_us_);
    }
    void answer(Node& node, std::uint8_t how) {
        const auto event = node.agent.poll_event();
        if (!event) {
            return;
        }
        node.handles.push_back(event->handle);
        fuzz::touch(event->private_data());
        Status done;
        if (event->type == CmEventType::kRequest) {
            done =
                how % 4 == 0 ? node.agent.reject(event->handle, protocol::CmRejectReason::kConsumer,
                                                 {}, now_us_)
                : how % 4 == 1 ? node.agent.delay(event->handle, 1000u * how, now_us_)
                               : node.agent.accept(event->handle, {.own = {.qpn = how}}, now_us_);
        } else if (event->type == CmEventType::kReply) {
            done = node.agent.establish(event->handle, {}, now_us_);
        } else if (event->type == CmEventType::kSidrRequest) {
            done = node.agent.answer_sidr(event->handle, {.qpn = how}, now_us_);
        }
        refused_ += done.is_ok() ? 0 : 1;
    }
    void hang_up(Node& node, std::uint8_t which) {
        if (!node.handles.empty()) {
            const CmHandle handle = node.handles[which % node.handles.size()];
            refused_ += node.agent.disconnect(handle, {}, now_us_).is_ok() ? 0 : 1;
        }
    }

    std::unique_ptr<Node> nodes_[2] = {std::make_unique<Node>(1), std::make_unique<Node>(2)};
    std::uint64_t now_us_ = 1;
    unsigned refused_ = 0;  // calls: events may be old
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::explore<World>(data, size);
}
