// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Communication managers joined by a wire in memory that can lose, double and delay, in a time that
// only passes when a test lets it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "core/cm_agent.h"

namespace rvt::test {

using core::CmAgent;
using core::CmEvent;
using core::CmEventType;
using core::CmHandle;
using protocol::CmMad;
using protocol::CmRejectReason;

using MadBytes = std::array<std::byte, protocol::kMadBytes>;

struct CmPacket {
    Address from;
    Address to;
    MadBytes mad;
    [[nodiscard]] CmMad decoded() const { return protocol::decode_cm(mad).value(); }
    template <class Message>
    [[nodiscard]] bool is() const {
        return std::holds_alternative<Message>(decoded().message);
    }
};

/// 10.0.0.`host`, as rvt writes IPv4 addresses.
inline Address address_of(std::uint8_t host, std::uint16_t port = 4791) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host}, .port = port};
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}
/// What stands before the zeros.
inline std::string_view text_of(std::span<const std::byte> data) {
    const auto end = std::find(data.begin(), data.end(), std::byte{0});
    return {reinterpret_cast<const char*>(data.data()),
            static_cast<std::size_t>(end - data.begin())};
}

class CmWorld;

/// One device's manager.
class CmNode final : public core::CmWire {
  public:
    CmNode(CmWorld& world, core::CmConfig config) : world_(world), config_(config) { restart(1); }

    /// A new process on the same address.
    void restart(std::uint64_t secret) {
        config_.ca_guid += (secret - 1) << 16;
        config_.secret = {secret * 0x9e3779b97f4a7c15, config_.local.gid[15]};
        agent_ = std::make_unique<CmAgent>(config_, *this);
    }
    void send_mad(const AhAttr& to, core::CmMadBytes mad) noexcept override;

    [[nodiscard]] CmAgent& agent() { return *agent_; }
    [[nodiscard]] const Address& address() const { return config_.local; }

    // As the agent's, at the present time.
    Result<CmHandle> connect(const core::CmConnect& request);
    Status accept(CmHandle handle, const core::CmAccept& answer);
    Status establish(CmHandle handle, std::span<const std::byte> data = {});
    Status reject(CmHandle handle, CmRejectReason reason = CmRejectReason::kConsumer,
                  std::span<const std::byte> data = {});
    Status disconnect(CmHandle handle, std::span<const std::byte> data = {});
    void take(const Address& from, std::span<const std::byte> mad);

    /// The next event, which has to be of this type.
    CmEvent next(CmEventType type);
    void expect_silence();

  private:
    CmWorld& world_;
    core::CmConfig config_;
    std::unique_ptr<CmAgent> agent_;
};

class CmWorld {
  public:
    explicit CmWorld(std::uint64_t seed = 1) : random(seed) {}

    CmNode& add(std::uint8_t host, core::CmConfig config = {}) {
        config.local = address_of(host);
        config.ca_guid = 0x0200000000000000 + host;
        nodes_.push_back(std::make_unique<CmNode>(*this, config));
        return *nodes_.back();
    }

    // What the wire does.
    unsigned drop_percent = 0;
    unsigned double_percent = 0;
    std::uint64_t most_delay_us = 10;
    std::function<bool(const CmPacket&)> is_lost{};  // as well

    std::mt19937_64 random;
    std::uint64_t now_us = 1;
    std::vector<CmPacket> log;  // all that was sent, lost or not

    bool happens(unsigned percent) { return random() % 100 < percent; }
    std::uint64_t pick(std::uint64_t most) { return random() % (most + 1); }

    void send(const CmPacket& packet) {
        log.push_back(packet);
        if (happens(drop_percent) || (is_lost && is_lost(packet))) {
            return;
        }
        for (int copies = happens(double_percent) ? 2 : 1; copies > 0; --copies) {
            packets_.emplace(now_us + 1 + pick(most_delay_us), packet);
        }
    }
    void later(std::uint64_t delay_us, std::function<void()> act) {
        acts_.emplace(now_us + delay_us, std::move(act));
    }

    /// Lets the next thing happen. Returns: whether there was one until then.
    bool step(std::uint64_t until_us = std::numeric_limits<std::uint64_t>::max()) {
        std::optional<std::uint64_t> next;
        const auto consider = [&next](std::uint64_t due) {
            next = std::min(due, next.value_or(due));
        };
        if (!packets_.empty()) {
            consider(packets_.begin()->first);
        }
        if (!acts_.empty()) {
            consider(acts_.begin()->first);
        }
        for (const auto& node : nodes_) {
            if (const auto due = node->agent().next_due_us()) {
                consider(*due);
            }
        }
        if (!next.has_value() || *next > until_us) {
            return false;
        }
        now_us = std::max(now_us, *next);
        happen();
        return true;
    }
    /// Lets all happen that does within this time.
    void pass_us(std::uint64_t us) {
        const std::uint64_t until = now_us + us;
        while (step(until)) {
        }
        now_us = until;
    }
    /// Until nothing is on its way and no timer runs.
    void settle() {
        while (step()) {
        }
    }
    [[nodiscard]] CmNode* find(const Address& address) {
        for (const auto& node : nodes_) {
            if (node->address() == address) {
                return node.get();
            }
        }
        return nullptr;
    }

  private:
    void happen() {
        while (!packets_.empty() && packets_.begin()->first <= now_us) {
            const CmPacket packet = packets_.begin()->second;
            packets_.erase(packets_.begin());
            if (CmNode* node = find(packet.to)) {
                node->take(packet.from, packet.mad);
            }
        }
        while (!acts_.empty() && acts_.begin()->first <= now_us) {
            const auto act = std::move(acts_.begin()->second);
            acts_.erase(acts_.begin());
            act();
        }
        for (const auto& node : nodes_) {
            node->agent().run_timers(now_us);
        }
    }

    std::vector<std::unique_ptr<CmNode>> nodes_;
    std::multimap<std::uint64_t, CmPacket> packets_;
    std::multimap<std::uint64_t, std::function<void()>> acts_;
};

inline void CmNode::send_mad(const AhAttr& to, core::CmMadBytes mad) noexcept {
    CmPacket packet{.from = address(), .to = to.dest, .mad = {}};
    std::copy(mad.begin(), mad.end(), packet.mad.begin());
    world_.send(packet);
}
inline Result<CmHandle> CmNode::connect(const core::CmConnect& request) {
    return agent_->connect(request, world_.now_us);
}
inline Status CmNode::accept(CmHandle handle, const core::CmAccept& answer) {
    return agent_->accept(handle, answer, world_.now_us);
}
inline Status CmNode::establish(CmHandle handle, std::span<const std::byte> data) {
    return agent_->establish(handle, data, world_.now_us);
}
inline Status CmNode::reject(CmHandle handle, CmRejectReason reason,
                             std::span<const std::byte> data) {
    return agent_->reject(handle, reason, data, world_.now_us);
}
inline Status CmNode::disconnect(CmHandle handle, std::span<const std::byte> data) {
    return agent_->disconnect(handle, data, world_.now_us);
}
inline void CmNode::take(const Address& from, std::span<const std::byte> mad) {
    agent_->take_mad(from, mad, world_.now_us);
}
inline CmEvent CmNode::next(CmEventType type) {
    const auto event = agent_->poll_event();
    cr_assert(event.has_value(), "no event, %d expected", static_cast<int>(type));
    RVT_EQ(event->type, type);
    return *event;
}
inline void CmNode::expect_silence() {
    if (const auto event = agent_->poll_event()) {
        cr_fatal("unexpected event %d", static_cast<int>(event->type));
    }
}

}  // namespace rvt::test
