// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two communication managers, one of which listens, and the steps that tests have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "core/cm_world.h"

namespace rvt::test {

inline constexpr std::uint64_t kCmService =
    protocol::ip_service_id(protocol::PortSpace::kTcp, 7471);
inline constexpr std::uint32_t kTimeoutUs = 100'000;

/// Two devices; `b` listens.
struct CmPeers {
    CmWorld world;
    CmNode& a = world.add(1);
    CmNode& b;

    explicit CmPeers(core::CmConfig config = {}) : b(world.add(2, config)) {
        RVT_OK(b.agent().listen(kCmService, 77));
    }

    [[nodiscard]] core::CmConnect request(std::uint32_t qpn = 0x100) const {
        return {.service_id = kCmService,
                .dest = {.dest = address_of(2)},
                .own = {.qpn = qpn, .starting_psn = 0xa00001},
                .response_timeout_us = kTimeoutUs,
                .max_cm_retries = 5,
                .source_port = 999,
                .context = 11};
    }
    CmHandle connect(std::uint32_t qpn = 0x100) { return a.connect(request(qpn)).value(); }
    CmHandle offered() {
        world.pass_us(1000);
        return b.next(CmEventType::kRequest).handle;
    }
    static core::CmAccept answer(std::uint32_t qpn = 0x200) {
        return {.own = {.qpn = qpn, .starting_psn = 0xb00001}, .context = 22};
    }
    struct Connection {
        CmHandle a;
        CmHandle b;
    };
    /// A connection in use at both ends.
    Connection connected(std::uint32_t a_qpn = 0x100, std::uint32_t b_qpn = 0x200) {
        const CmHandle asked = connect(a_qpn);
        const CmHandle got = offered();
        RVT_OK(b.accept(got, answer(b_qpn)));
        world.pass_us(1000);
        a.next(CmEventType::kReply);
        RVT_OK(a.establish(asked));
        world.pass_us(1000);
        b.next(CmEventType::kEstablished);
        return {asked, got};
    }
    template <class Message>
    void lose(int count = 1'000'000) {
        world.is_lost = [left = count](const CmPacket& packet) mutable {
            return packet.is<Message>() && left-- > 0;
        };
    }
    /// The last message of this kind on the wire.
    template <class Message>
    Message last() {
        for (auto at = world.log.rbegin(); at != world.log.rend(); ++at) {
            const CmMad mad = at->decoded();
            if (const Message* message = std::get_if<Message>(&mad.message)) {
                return *message;
            }
        }
        cr_fatal("none was sent");
        return {};
    }
    template <class Message>
    [[nodiscard]] long count() const {
        return std::count_if(world.log.begin(), world.log.end(),
                             [](const CmPacket& packet) { return packet.is<Message>(); });
    }
    static void take(CmNode& to, const Address& from, const protocol::CmMessage& message) {
        MadBytes mad;
        protocol::encode_cm({.transaction_id = 1, .message = message}, mad);
        to.take(from, mad);
    }
    /// And what comes of it.
    void deliver(CmNode& to, const Address& from, const protocol::CmMessage& message) {
        take(to, from, message);
        world.pass_us(1000);
    }
    void expect_all_forgotten() {
        world.settle();
        for (CmNode* node : {&a, &b}) {
            RVT_EQ(node->agent().open_count(), 0);
            RVT_EQ(node->agent().record_count(), 0);
            RVT_EQ(node->agent().next_due_us().has_value(), false);
        }
    }
};

}  // namespace rvt::test
