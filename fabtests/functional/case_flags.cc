// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flags of the msg variants, and the completion levels.
#include <cstring>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kRoom = 300000;

long sendmsg(const Party& party, const Buffer& buffer, std::size_t size, std::uint64_t flags,
             void* context) {
    const iovec piece{buffer.as(), size};
    void* desc = buffer.desc();
    fi_msg msg{};
    msg.msg_iov = &piece;
    msg.desc = &desc;
    msg.iov_count = 1;
    msg.addr = party.peer();
    msg.context = context;
    msg.data = 0x5a5a;
    return static_cast<long>(fi_sendmsg(party.ep.ep, &msg, flags));
}

long tsendmsg(const Party& party, const Buffer& buffer, std::size_t size, std::uint64_t flags,
              void* context) {
    const iovec piece{buffer.as(), size};
    void* desc = buffer.desc();
    fi_msg_tagged msg{};
    msg.msg_iov = &piece;
    msg.desc = &desc;
    msg.iov_count = 1;
    msg.addr = party.peer();
    msg.tag = 8;
    msg.context = context;
    msg.data = 0x5a5a;
    return static_cast<long>(fi_tsendmsg(party.ep.ep, &msg, flags));
}

/// One message with `flags`, tagged and untagged: it arrives whole and completes once on both
/// sides.
void exchange(const Party& party, const Buffer& buffer, std::size_t size, std::uint64_t flags) {
    Contexts contexts(1);
    for (const bool tagged : {false, true}) {
        buffer.fill(static_cast<unsigned>(size));
        if (party.self.rank == 0) {
            party.ep.post([&] {
                return tagged ? tsendmsg(party, buffer, size, flags, contexts.at(0))
                              : sendmsg(party, buffer, size, flags, contexts.at(0));
            });
            if ((flags & FI_INJECT) != 0) std::memset(buffer.as(), 0xee, size);
            FAB_CHECK(party.ep.wait_tx().context == contexts.at(0));
            continue;
        }
        std::memset(buffer.as(), 0, size);
        if (tagged) {
            party.trecv(buffer, kRoom, 8, 0, contexts.at(0));
        } else {
            party.recv(buffer, kRoom, contexts.at(0));
        }
        const Completion got = party.ep.wait_rx();
        FAB_EQUAL(got.len, size);
        FAB_EQUAL((got.flags & FI_REMOTE_CQ_DATA) != 0, (flags & FI_REMOTE_CQ_DATA) != 0);
        if ((flags & FI_REMOTE_CQ_DATA) != 0) FAB_EQUAL(got.data, 0x5a5a);
        buffer.expect(static_cast<unsigned>(size), size);
    }
}

template <std::uint64_t kFlags>
void with_flags(Rank& self) {
    EpSpec spec{.caps = FI_MSG | FI_TAGGED};
    if ((kFlags & FI_REMOTE_CQ_DATA) != 0) spec.cq_data_size = 4;
    if ((kFlags & FI_FENCE) != 0) spec.caps |= FI_FENCE;
    spec.tx_op_flags = kFlags & (FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MATCH_COMPLETE);
    Party party(self, spec);
    Buffer buffer(party.ep, kRoom);
    for (const std::size_t size : {0UL, 1UL, 64UL, 3000UL, 20000UL, 70000UL, kRoom}) {
        if ((kFlags & FI_INJECT) != 0 && size > party.ep.info->tx_attr->inject_size) continue;
        exchange(party, buffer, size, kFlags);
    }
}

/// With FI_MATCH_COMPLETE no send completes before the receive is posted, at any size.
void match_is_after_match(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .tx_op_flags = FI_MATCH_COMPLETE});
    Buffer buffer(party.ep, kRoom);
    Contexts contexts(1);
    for (const std::size_t size : {1UL, 3000UL, kRoom}) {
        if (self.rank == 0) {
            party.tsend(buffer, size, 1, contexts.at(0));
            Completion early;
            for (const double until = now_s() + 0.05; now_s() < until;) {
                FAB_CHECK(!party.ep.poll(party.ep.tx_cq, early));
            }
            party.barrier();
            party.ep.wait_tx();
        } else {
            party.barrier();
            party.trecv(buffer, kRoom, 1, 0, contexts.at(0));
            FAB_EQUAL(party.ep.wait_rx().len, size);
        }
        party.barrier();
    }
}

/// With FI_SELECTIVE_COMPLETION only what asks for a completion gets one; errors come always.
void selective(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_TAGGED,
                       .tx_cq_flags = FI_TRANSMIT | FI_SELECTIVE_COMPLETION,
                       .rx_cq_flags = FI_RECV | FI_SELECTIVE_COMPLETION});
    Buffer buffer(party.ep, kRoom);
    Contexts contexts(4);
    if (self.rank == 0) {
        party.barrier();
        party.ep.post([&] { return sendmsg(party, buffer, 8, 0, contexts.at(0)); });
        party.ep.post([&] { return sendmsg(party, buffer, 8, FI_COMPLETION, contexts.at(1)); });
        FAB_CHECK(party.ep.wait_tx().context == contexts.at(1));
        party.barrier();
        Completion none;
        FAB_CHECK(!party.ep.poll(party.ep.tx_cq, none));
        return;
    }
    const auto post = [&](std::size_t which, std::uint64_t flags) {
        const iovec piece{buffer.as() + 64 * which, 64};
        void* desc = buffer.desc();
        fi_msg msg{};
        msg.msg_iov = &piece;
        msg.desc = &desc;
        msg.iov_count = 1;
        msg.addr = FI_ADDR_UNSPEC;
        msg.context = contexts.at(which);
        party.ep.post([&] { return fi_recvmsg(party.ep.ep, &msg, flags); });
    };
    post(0, 0);
    post(1, FI_COMPLETION);
    post(2, 0);
    party.barrier();
    FAB_CHECK(party.ep.wait_rx().context == contexts.at(1));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(2)));
    FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ECANCELED);
    party.barrier();
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.rx_cq, none));
}

/// A fenced send leaves after all that was posted to that peer before it, RMA included.
void fence(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_RMA | FI_FENCE});
    constexpr std::size_t kSize = 1 << 20;
    Buffer target(party.ep, kSize);
    Buffer source(party.ep, kSize);
    Contexts contexts(2);
    const RemoteRegion remote = party.trade(self.other(), target.remote());
    for (unsigned turn = 1; turn < 6; ++turn) {
        source.fill(turn);
        if (self.rank == 0) {
            party.ep.post([&] {
                return fi_write(party.ep.ep, source.as(), kSize, source.desc(), party.peer(),
                                remote.base, remote.key, contexts.at(0));
            });
            party.ep.post([&] {
                return sendmsg(party, source, 8, FI_FENCE | FI_COMPLETION, contexts.at(1));
            });
            party.ep.wait_tx();
            party.ep.wait_tx();
        } else {
            party.recv(source, kSize, contexts.at(0));
            party.ep.wait_rx();
            target.expect(turn, kSize);
        }
        party.barrier();
    }
}

constexpr Case kFlagTable[] = {
    {"flags_completion", with_flags<FI_COMPLETION>},
    {"flags_more", with_flags<FI_COMPLETION | FI_MORE>},
    {"flags_inject", with_flags<FI_COMPLETION | FI_INJECT>},
    {"flags_remote_data", with_flags<FI_COMPLETION | FI_REMOTE_CQ_DATA>},
    {"flags_inject_complete", with_flags<FI_COMPLETION | FI_INJECT_COMPLETE>},
    {"flags_transmit_complete", with_flags<FI_COMPLETION | FI_TRANSMIT_COMPLETE>},
    {"flags_delivery_complete", with_flags<FI_COMPLETION | FI_DELIVERY_COMPLETE>},
    {"flags_match_complete", with_flags<FI_COMPLETION | FI_MATCH_COMPLETE>},
    {"flags_match_and_delivery_complete",
     with_flags<FI_COMPLETION | FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE>},
    {"flags_fence", with_flags<FI_COMPLETION | FI_FENCE>},
    {"flags_match_is_after_match", match_is_after_match},
    {"flags_selective_completion", selective},
    {"flags_fence_after_write", fence},
};

}  // namespace

const std::span<const Case> kFlagCases = kFlagTable;

}  // namespace fab
