// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Looking at messages before receiving them: FI_PEEK, FI_CLAIM, FI_DISCARD of fi_tagged(3).
#include <cstring>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kTagCount = 3;
constexpr std::size_t kPeekSizes[kTagCount] = {8, 5000, 200000};

/// fi_trecvmsg with these flags; a buffer is used only where the flags ask for the data.
long trecvmsg(const Party& party, const Buffer* buffer, std::uint64_t tag, std::uint64_t flags,
              void* context) {
    iovec piece{};
    void* desc = nullptr;
    fi_msg_tagged msg{};
    if (buffer != nullptr) {
        piece = {buffer->as(), buffer->size()};
        desc = buffer->desc();
        msg.msg_iov = &piece;
        msg.desc = &desc;
        msg.iov_count = 1;
    }
    msg.addr = FI_ADDR_UNSPEC;
    msg.tag = tag;
    msg.context = context;
    return static_cast<long>(fi_trecvmsg(party.ep.ep, &msg, flags));
}

void post_peek(const Party& party, std::uint64_t tag, std::uint64_t flags, void* context) {
    long rc = 0;
    const double deadline = now_s() + kOpLimitS;
    while ((rc = trecvmsg(party, nullptr, tag, flags, context)) == -FI_EAGAIN) {
        party.ep.progress();
        if (now_s() > deadline) FAB_FAIL("a peek was refused for %.0f s", kOpLimitS);
    }
    if (rc == -FI_EOPNOTSUPP || rc == -FI_ENOSYS || rc == -FI_EBADFLAGS) {
        skip("no peek: %s", fi_strerror(static_cast<int>(-rc)));
    }
    FAB_OK(rc);
}

/// Peeks until the message is there.
Completion peek_until_found(const Party& party, std::uint64_t tag, std::uint64_t flags,
                            void* context) {
    const double deadline = now_s() + kOpLimitS;
    for (;;) {
        post_peek(party, tag, flags, context);
        const Completion got = party.ep.wait_any(party.ep.rx_cq);
        FAB_CHECK(got.context == context);
        if (got.err == 0) return got;
        FAB_EQUAL(got.err, FI_ENOMSG);
        if (now_s() > deadline) FAB_FAIL("a message that was sent is never found");
    }
}

/// The sender of all cases here: tags 0, 1 and 2 with the sizes above.
void send_three(const Party& party, const Buffer& buffer) {
    Contexts contexts(kTagCount);
    buffer.fill(4);
    for (std::size_t i = 0; i < kTagCount; ++i) {
        party.ep.post([&] {
            return fi_tsenddata(party.ep.ep, buffer.as(), kPeekSizes[i], buffer.desc(), 70 + i,
                                party.peer(), i, contexts.at(i));
        });
    }
    for (std::size_t i = 0; i < kTagCount; ++i) party.ep.wait_tx();
}

const EpSpec kSpec{.caps = FI_TAGGED, .cq_data_size = 4};

/// A peek for what is not there completes with FI_ENOMSG, not with a return value.
void absent(Rank& self) {
    Party party(self, kSpec);
    Contexts contexts(1);
    for (int i = 0; i < 3; ++i) {
        post_peek(party, 1, FI_PEEK, contexts.at(0));
        const Completion none = party.ep.wait_any(party.ep.rx_cq);
        FAB_EQUAL(none.err, FI_ENOMSG);
        FAB_CHECK(none.context == contexts.at(0));
    }
}

/// A peek tells length, tag and data, and leaves the message for a receive.
void present(Rank& self) {
    Party party(self, kSpec);
    Buffer buffer(party.ep, 200000);
    if (self.rank == 0) return send_three(party, buffer);
    Contexts contexts(2);
    for (std::size_t i = kTagCount; i-- > 0;) {
        for (int twice = 0; twice < 2; ++twice) {
            const Completion seen = peek_until_found(party, i, FI_PEEK, contexts.at(0));
            FAB_EQUAL(seen.len, kPeekSizes[i]);
            FAB_EQUAL(seen.tag, i);
            if ((seen.flags & FI_REMOTE_CQ_DATA) != 0) FAB_EQUAL(seen.data, 70 + i);
        }
        std::memset(buffer.as(), 0, buffer.size());
        party.trecv(buffer, buffer.size(), i, 0, contexts.at(1));
        FAB_EQUAL(party.ep.wait_rx().len, kPeekSizes[i]);
        buffer.expect(4, kPeekSizes[i]);
    }
}

/// A claimed message is invisible to other receives until it is received with FI_CLAIM.
void claim(Rank& self) {
    Party party(self, kSpec);
    Buffer buffer(party.ep, 200000);
    if (self.rank == 0) return send_three(party, buffer);
    Contexts contexts(3);
    for (std::size_t i = 0; i < kTagCount; ++i) {
        const Completion seen = peek_until_found(party, i, FI_PEEK | FI_CLAIM, contexts.at(0));
        FAB_EQUAL(seen.len, kPeekSizes[i]);
        post_peek(party, i, FI_PEEK, contexts.at(1));
        FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ENOMSG);
        std::memset(buffer.as(), 0, buffer.size());
        party.ep.post([&] { return trecvmsg(party, &buffer, i, FI_CLAIM, contexts.at(0)); });
        const Completion got = party.ep.wait_rx();
        FAB_EQUAL(got.len, kPeekSizes[i]);
        FAB_CHECK(got.context == contexts.at(0));
        buffer.expect(4, kPeekSizes[i]);
    }
}

/// A discarded message is gone, whether discarded by the peek or after a claim.
void discard(Rank& self) {
    Party party(self, kSpec);
    Buffer buffer(party.ep, 200000);
    if (self.rank == 0) return send_three(party, buffer);
    Contexts contexts(2);
    for (std::size_t i = 0; i < kTagCount; ++i) {
        if (i == 1) {
            peek_until_found(party, i, FI_PEEK | FI_CLAIM, contexts.at(0));
            party.ep.post(
                [&] { return trecvmsg(party, nullptr, i, FI_CLAIM | FI_DISCARD, contexts.at(0)); });
            FAB_CHECK(party.ep.wait_rx().context == contexts.at(0));
        } else {
            peek_until_found(party, i, FI_PEEK | FI_DISCARD, contexts.at(0));
        }
        post_peek(party, i, FI_PEEK, contexts.at(1));
        FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ENOMSG);
    }
}

constexpr Case kPeekTable[] = {
    {"peek_absent", absent},
    {"peek_present", present},
    {"peek_claim", claim},
    {"peek_discard", discard},
};

}  // namespace

const std::span<const Case> kPeekCases = kPeekTable;

}  // namespace fab
