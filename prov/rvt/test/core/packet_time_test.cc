// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When a connected pair over packets gives its peer up: after as many whole time-outs without a
// word of it as there are retries, and one more. And an answer that comes while it sends again.
#include "conform/fixture.h"
#include "protocol/headers.h"
#include "protocol/syndrome.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::uint8_t kTimeout = 14;
constexpr std::uint64_t kTimeoutUs = (std::uint64_t{4096} << kTimeout) / 1000;
constexpr std::uint64_t kStepUs = 100;

/// Lets time pass in which only A does something: its peer is silent.
void be_silent(Pair<Packets>& pair, std::uint64_t us) {
    for (std::uint64_t passed = 0; passed < us; passed += kStepUs) {
        fake_now_us += kStepUs;
        pair.a().device->progress();
    }
}

void answer(Pair<Packets>& pair, protocol::Opcode opcode, const protocol::Syndrome& syndrome,
            protocol::Psn psn, std::span<const std::byte> payload = {}) {
    protocol::PacketHeader header{.opcode = opcode, .psn = psn};
    header.dest_qpn = pair.a().qp->qpn();
    header.syndrome = protocol::to_wire(syndrome);
    std::vector<std::byte> bytes(protocol::kMaxHeaderBytes);
    bytes.resize(protocol::encode(header, bytes.data()));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    deliver_packet(*pair.a().device, pair.b().device->address(), pair.a().device->address(), bytes);
    pair.a().device->progress();
}

/// B says that it has taken everything until then.
void acknowledge(Pair<Packets>& pair, protocol::Psn psn) {
    answer(pair, protocol::Opcode::kRcAck,
           {.type = protocol::Syndrome::Type::kAck, .value = protocol::kUnlimitedCredits}, psn);
}

/// B says that this one is missing, and that the one behind it has come.
void report_missing(Pair<Packets>& pair, protocol::Psn psn) {
    constexpr std::array kMap{std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0}};
    answer(pair, protocol::Opcode::kRvtSack, protocol::nak(protocol::NakCode::kPsnSequence), psn,
           kMap);
}

}  // namespace

Test(packet_time, a_peer_that_says_nothing_is_given_up_after_the_last_time_out) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.post_send());
    be_silent(pair, 8 * kTimeoutUs - kStepUs);
    RVT_EQ(pair.a().qp->state(), QpState::kRts);
    be_silent(pair, kTimeoutUs);
    RVT_EQ(pair.a().qp->state(), QpState::kErr);
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
}

/// Large packets may vanish where small ones do not.
Test(packet_time, a_packet_that_never_comes_is_given_up_though_one_behind_it_has) {
    Pair<Packets> pair({.timeout = kTimeout, .keeps_early = true});
    const protocol::Psn first(pair.a().qp->query().sq_psn);
    for (std::uint64_t number = 1; number <= 3; ++number) {
        RVT_OK(pair.post_send({.wr_id = number}));
    }
    for (std::uint64_t passed = 0; passed < 9 * kTimeoutUs; passed += 10 * kStepUs) {
        be_silent(pair, 10 * kStepUs);
        if (pair.a().qp->state() == QpState::kRts) {
            report_missing(pair, first);
        }
    }
    RVT_EQ(pair.a().qp->state(), QpState::kErr);
    RVT_EQ(pair.sent().status, WcStatus::kRetryExcErr);
}

Test(packet_time, a_peer_that_is_not_ready_has_said_something) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.post_send());
    for (int i = 0; i < 3; ++i) {
        for (int n = 0; n < 100; ++n) {
            pair.pass_us(kStepUs);
        }
        be_silent(pair, 6 * kTimeoutUs);
        RVT_EQ(pair.a().qp->state(), QpState::kRts);
    }
    RVT_ASSERT(pair.b().device->stats().sum(Stat::kRnrNaks) > 100);
    RVT_OK(pair.b().post_recv(3));
    RVT_EQ(pair.received().wr_id, 3);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}

// Both have been stopped, say, and the peer goes on later.
Test(packet_time, a_pause_of_its_own_is_one_time_out) {
    Pair<Packets> pair({.timeout = kTimeout});
    RVT_OK(pair.b().post_recv(3));
    RVT_OK(pair.post_send());
    fake_now_us += 100 * kTimeoutUs;
    be_silent(pair, 6 * kTimeoutUs);
    RVT_EQ(pair.a().qp->state(), QpState::kRts);
    RVT_EQ(pair.received().wr_id, 3);
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
}

Test(packet_time, nothing_behind_a_request_that_cannot_be_sent_again_is_taken_as_arrived) {
    Pair<Packets> pair({.timeout = kTimeout});
    const protocol::Psn first(pair.a().qp->query().sq_psn);
    const iovec part{.iov_base = pair.a().memory.data(), .iov_len = 64};
    Mr* const mr = reg_mr(*pair.a().pd, {.segments = {&part, 1}}).value();
    RVT_OK(pair.post_send({.wr_id = 1}));
    RVT_OK(pair.post_send({.wr_id = 2, .lkey = mr->lkey()}));
    RVT_OK(pair.post_send({.wr_id = 3}));
    RVT_OK(dereg_mr(mr));
    while (pair.a().device->stats().sum(Stat::kTimeouts) == 0) {
        be_silent(pair, kStepUs);
    }
    acknowledge(pair, first + 1);  // the third was lost
    const std::pair<std::uint64_t, WcStatus> expected[] = {
        {1, WcStatus::kSuccess}, {2, WcStatus::kLocProtErr}, {3, WcStatus::kWrFlushErr}};
    for (const auto& [number, status] : expected) {
        const Wc wc = pair.sent();
        RVT_EQ(wc.wr_id, number);
        RVT_EQ(wc.status, status);
    }
}
