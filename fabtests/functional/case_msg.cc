// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Untagged messages: fi_msg(3).
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kLargest = (4 << 20) + 3;

/// One message each way, the receive posted first.
void sizes(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer out(party.ep, kLargest);
    Buffer in(party.ep, kLargest);
    Contexts contexts(2);
    unsigned seed = 1;
    for (const std::size_t size : kSizes) {
        for (int sender = 0; sender < 2; ++sender, ++seed) {
            if (self.rank == sender) {
                out.fill(seed, size);
                party.send(out, size, contexts.at(0));
                const Completion sent = party.ep.wait_tx();
                FAB_CHECK(sent.context == contexts.at(0));
                FAB_CHECK((sent.flags & (FI_SEND | FI_MSG)) == (FI_SEND | FI_MSG));
            } else {
                std::memset(in.as(), 0, size + 1 < kLargest ? size + 1 : kLargest);
                party.recv(in, kLargest, contexts.at(1));
                const Completion got = party.ep.wait_rx();
                FAB_CHECK(got.context == contexts.at(1));
                FAB_CHECK((got.flags & (FI_RECV | FI_MSG)) == (FI_RECV | FI_MSG));
                FAB_EQUAL(got.len, size);
                in.expect(seed, size);
                if (size + 1 < kLargest) FAB_EQUAL(in.as()[size], 0);
            }
        }
    }
}

/// All sizes are sent before the first receive is posted.
void unexpected_sizes(Rank& self) {
    constexpr std::size_t kCount = std::size(kSizes);
    Party party(self, {.caps = FI_MSG, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, kLargest);
    Contexts contexts(kCount);
    buffer.fill(5);
    if (self.rank == 0) {
        for (std::size_t i = 0; i < kCount; ++i) {
            party.send(buffer, kSizes[i], contexts.at(i));
        }
        party.barrier();
        for (std::size_t i = 0; i < kCount; ++i) party.ep.wait_tx();
        return;
    }
    party.barrier();
    for (const std::size_t size : kSizes) {
        std::memset(buffer.as(), 0, size);
        party.recv(buffer, kLargest, contexts.at(0));
        FAB_EQUAL(party.ep.wait_rx().len, size);
        buffer.expect(5, size);
    }
}

/// An injected buffer may be changed at once, and nothing completes.
void inject(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    const std::size_t limit = std::min<std::size_t>(party.ep.info->tx_attr->inject_size, 16384);
    Buffer buffer(party.ep, 16384);
    Contexts contexts(1);
    for (std::size_t size = 0; size <= limit; size = size < 8 ? size + 1 : size * 2) {
        const auto seed = static_cast<unsigned>(size + 1);
        if (self.rank == 0) {
            buffer.fill(seed);
            party.ep.post([&] { return fi_inject(party.ep.ep, buffer.as(), size, party.peer()); });
            std::memset(buffer.as(), 0xee, size);
        } else {
            party.recv(buffer, buffer.size(), contexts.at(0));
            FAB_EQUAL(party.ep.wait_rx().len, size);
            buffer.expect(seed, size);
        }
        party.barrier();
    }
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.tx_cq, none));
}

/// Remote data arrives with fi_senddata and with fi_injectdata, in all its bits.
void senddata(Rank& self) {
    Party party(self, {.caps = FI_MSG, .cq_data_size = 4});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(1);
    const std::uint64_t data =
        party.ep.info->domain_attr->cq_data_size >= 8 ? 0x8123456789abcdefULL : 0x89abcdefULL;
    for (const std::size_t size : {0UL, 8UL, 5000UL, 100000UL}) {
        if (self.rank == 0) {
            party.ep.post([&] {
                return fi_senddata(party.ep.ep, buffer.as(), size, buffer.desc(), data + size,
                                   party.peer(), contexts.at(0));
            });
            party.ep.wait_tx();
        } else {
            party.recv(buffer, buffer.size(), contexts.at(0));
            const Completion got = party.ep.wait_rx();
            FAB_CHECK((got.flags & FI_REMOTE_CQ_DATA) != 0);
            FAB_EQUAL(got.data, data + size);
            FAB_EQUAL(got.len, size);
        }
    }
    if (party.ep.info->tx_attr->inject_size < 8) return;
    if (self.rank == 0) {
        party.ep.post(
            [&] { return fi_injectdata(party.ep.ep, buffer.as(), 8, data, party.peer()); });
    } else {
        party.recv(buffer, buffer.size(), contexts.at(0));
        const Completion got = party.ep.wait_rx();
        FAB_CHECK((got.flags & FI_REMOTE_CQ_DATA) != 0);
        FAB_EQUAL(got.data, data);
    }
}

/// `count` pieces of different lengths that together cover the first `total` bytes.
std::vector<iovec> cut(char* base, std::size_t total, std::size_t count) {
    std::vector<iovec> pieces;
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t length =
            i + 1 == count ? total - at : (total - at) * (i + 1) / (count + 2);
        pieces.push_back({base + at, length});
        at += length;
    }
    return pieces;
}

/// Gathered and scattered by different numbers of pieces, none and empty ones among them.
void iov(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 300000);
    Contexts contexts(1);
    const std::size_t most_tx = party.ep.info->tx_attr->iov_limit;
    const std::size_t most_rx = party.ep.info->rx_attr->iov_limit;
    for (const std::size_t size : {0UL, 3UL, 60UL, 1000UL, 20000UL, 300000UL}) {
        for (std::size_t count = 0; count <= most_tx; ++count) {
            if (count == 0 && size != 0) continue;
            std::vector<void*> descs(8, buffer.desc());
            if (self.rank == 0) {
                buffer.fill(3);
                const auto pieces = cut(buffer.as(), size, count);
                party.ep.post([&] {
                    return fi_sendv(party.ep.ep, pieces.data(), descs.data(), count, party.peer(),
                                    contexts.at(0));
                });
                party.ep.wait_tx();
            } else {
                std::memset(buffer.as(), 0, size);
                const auto pieces = cut(buffer.as(), size, most_rx - count % most_rx);
                party.ep.post([&] {
                    return fi_recvv(party.ep.ep, pieces.data(), descs.data(), pieces.size(),
                                    FI_ADDR_UNSPEC, contexts.at(0));
                });
                FAB_EQUAL(party.ep.wait_rx().len, size);
                buffer.expect(3, size);
            }
        }
    }
}

/// A message longer than its buffer: FI_ETRUNC, the excess in olen, and the next one is whole.
void truncation(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(1);
    for (const std::size_t size : {8UL, 300UL, 5000UL, 100000UL}) {
        buffer.fill(9);
        if (self.rank == 0) {
            for (int i = 0; i < 2; ++i) {
                party.send(buffer, size, contexts.at(0));
                party.ep.wait_any(party.ep.tx_cq);  // the sender may or may not be told
            }
            continue;
        }
        std::memset(buffer.as(), 0, size);
        party.recv(buffer, size - 5, contexts.at(0));
        const Completion cut_off = party.ep.wait_any(party.ep.rx_cq);
        FAB_EQUAL(cut_off.err, FI_ETRUNC);
        FAB_CHECK(cut_off.context == contexts.at(0));
        FAB_EQUAL(cut_off.olen, 5);
        for (std::size_t i = size - 5; i < size; ++i) FAB_EQUAL(buffer.as()[i], 0);
        party.recv(buffer, size, contexts.at(0));
        FAB_EQUAL(party.ep.wait_rx().len, size);
        buffer.expect(9, size);
    }
}

/// What waits is received whole, cut off, in pieces and into a buffer for several, in that order.
void unexpected_receives(Rank& self) {
    constexpr std::size_t kRoom = 512;
    Party party(self, {.caps = FI_MSG | FI_MULTI_RECV, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, kRoom);
    Contexts contexts(4);
    for (const std::size_t size : {1UL, 7UL, 8UL, 9UL, 40UL, 100UL}) {
        if (self.rank == 0) {
            buffer.fill(static_cast<unsigned>(size));
            for (std::size_t i = 0; i < 5; ++i) {
                party.send(buffer, size, contexts.at(0));
                party.ep.wait_any(party.ep.tx_cq);  // of what is cut off it may or may not be told
            }
            party.barrier();
            party.barrier();
            continue;
        }
        party.barrier();
        const auto seed = static_cast<unsigned>(size);
        std::memset(buffer.as(), 0, kRoom);
        party.recv(buffer, size, contexts.at(0));
        FAB_EQUAL(party.ep.wait_rx().len, size);
        buffer.expect(seed, size);

        std::memset(buffer.as(), 0, kRoom);
        party.recv(buffer, size - 1, contexts.at(1));
        const Completion cut_off = party.ep.wait_any(party.ep.rx_cq);
        FAB_EQUAL(cut_off.err, FI_ETRUNC);
        FAB_CHECK(cut_off.context == contexts.at(1));
        FAB_EQUAL(cut_off.olen, 1);
        buffer.expect(seed, size - 1);
        FAB_EQUAL(buffer.as()[size - 1], 0);

        std::memset(buffer.as(), 0, kRoom);
        const auto pieces = cut(buffer.as(), size, party.ep.info->rx_attr->iov_limit);
        std::vector<void*> descs(pieces.size(), buffer.desc());
        party.ep.post([&] {
            return fi_recvv(party.ep.ep, pieces.data(), descs.data(), pieces.size(), FI_ADDR_UNSPEC,
                            contexts.at(2));
        });
        FAB_EQUAL(party.ep.wait_rx().len, size);
        buffer.expect(seed, size);

        std::memset(buffer.as(), 0, kRoom);
        std::size_t least = 2 * size;
        FAB_OK(fi_setopt(&party.ep.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least,
                         sizeof least));
        const iovec room{buffer.as(), 3 * size};
        void* desc = buffer.desc();
        fi_msg several{};
        several.msg_iov = &room;
        several.desc = &desc;
        several.iov_count = 1;
        several.addr = FI_ADDR_UNSPEC;
        several.context = contexts.at(3);
        party.ep.post([&] { return fi_recvmsg(party.ep.ep, &several, FI_MULTI_RECV); });
        bool is_given_back = false;
        for (std::size_t messages = 0; messages < 2 || !is_given_back;) {
            const Completion got = party.ep.wait_rx();
            FAB_CHECK(got.context == contexts.at(3));
            is_given_back = (got.flags & FI_MULTI_RECV) != 0;
            if (got.len == 0) continue;
            FAB_EQUAL(got.len, size);
            FAB_CHECK(got.buf == buffer.as() + messages++ * size);
            FAB_EQUAL(std::memcmp(got.buf, buffer.as(), size), 0);
        }
        buffer.expect(seed, size);
        party.barrier();
    }
}

/// Long messages between two that have exchanged much already, for a receiver that waits and for
/// one that comes later, into buffers that are as long or shorter.
void warm_lengths(Rank& self) {
    constexpr std::size_t kLongest = (1 << 20) + 1;
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, kLongest);
    Contexts contexts(1);
    const auto pass = [&](std::size_t size, std::size_t room, bool is_awaited) {
        if (self.rank == 0) {
            if (is_awaited) party.barrier();
            party.send(buffer, size, contexts.at(0));
            if (!is_awaited) party.barrier();
            party.ep.wait_any(party.ep.tx_cq);  // of what is cut off it may or may not be told
            return;
        }
        std::memset(buffer.as(), 0, size);
        if (!is_awaited) party.barrier();
        party.recv(buffer, room, contexts.at(0));
        if (is_awaited) party.barrier();
        const Completion got = party.ep.wait_any(party.ep.rx_cq);
        FAB_EQUAL(got.err, room < size ? FI_ETRUNC : 0);
        FAB_EQUAL(got.olen, size - room);
        buffer.expect(5, room);
        for (std::size_t i = room; i < size; ++i) FAB_EQUAL(buffer.as()[i], 0);
    };
    if (self.rank == 0) buffer.fill(5);
    for (int i = 0; i < 8; ++i) pass(kLongest, kLongest, true);
    for (const std::size_t size : {32769UL, 65536UL, 100000UL, 1UL << 20, kLongest}) {
        for (const std::size_t room : {0UL, 100UL, 16383UL, 16384UL, 16385UL, size - 5, size}) {
            pass(size, room, true);
            pass(size, room, false);
        }
    }
}

/// Of three receives the second is cancelled: two messages fill the other two.
void cancel(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 64);
    Contexts contexts(3);
    if (self.rank == 0) {
        party.barrier();
        for (int i = 0; i < 2; ++i) {
            party.send(buffer, 8, contexts.at(0));
            party.ep.wait_tx();
        }
        return;
    }
    for (std::size_t i = 0; i < 3; ++i) party.recv(buffer, 64, contexts.at(i));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(1)));
    const Completion gone = party.ep.wait_any(party.ep.rx_cq);
    FAB_EQUAL(gone.err, FI_ECANCELED);
    FAB_CHECK(gone.context == contexts.at(1));
    party.barrier();
    FAB_CHECK(party.ep.wait_rx().context == contexts.at(0));
    FAB_CHECK(party.ep.wait_rx().context == contexts.at(2));
}

/// One buffer takes many messages; it is given back with FI_MULTI_RECV when it is nearly full.
void multi_recv(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_MULTI_RECV, .msg_order = FI_ORDER_SAS});
    constexpr std::size_t kSize = 1000;
    constexpr std::size_t kRoom = 8 * kSize + 200;
    constexpr unsigned kMessages = 40;
    Buffer buffer(party.ep, 2 * kRoom);
    Contexts contexts(2);
    if (self.rank == 0) {
        party.barrier();
        for (unsigned i = 0; i < kMessages; ++i) {
            buffer.fill(i);
            party.send(buffer, kSize, contexts.at(0));
            party.ep.wait_tx();
        }
        return;
    }
    std::size_t least = 500;
    FAB_OK(
        fi_setopt(&party.ep.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    const auto give = [&](std::size_t which) {
        const iovec piece{buffer.as() + which * kRoom, kRoom};
        void* desc = buffer.desc();
        fi_msg msg{};
        msg.msg_iov = &piece;
        msg.desc = &desc;
        msg.iov_count = 1;
        msg.addr = FI_ADDR_UNSPEC;
        msg.context = contexts.at(which);
        party.ep.post([&] { return fi_recvmsg(party.ep.ep, &msg, FI_MULTI_RECV); });
    };
    give(0);
    give(1);
    party.barrier();
    unsigned released = 0;
    for (unsigned seen = 0; seen < kMessages;) {
        const Completion got = party.ep.wait_rx();
        if (got.len > 0) {
            FAB_EQUAL(got.len, kSize);
            const auto* bytes = static_cast<const unsigned char*>(got.buf);
            FAB_CHECK(bytes >= buffer.as<unsigned char>() &&
                      bytes + kSize <= buffer.as<unsigned char>() + 2 * kRoom);
            FAB_EQUAL(bytes[3], static_cast<unsigned char>(seen + 21));
            ++seen;
        }
        if ((got.flags & FI_MULTI_RECV) != 0) {
            ++released;
            give(contexts.index_of(got.context));
        }
    }
    FAB_CHECK(released >= 4);
}

/// With FI_DIRECTED_RECV a receive takes only what its source sent.
void directed_recv(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_DIRECTED_RECV});
    Buffer buffer(party.ep, 192);
    Contexts contexts(3);
    if (self.rank != 0) {
        buffer.as()[0] = static_cast<char>('0' + self.rank);
        if (self.rank == 2) party.barrier();
        party.ep.post([&] {
            return fi_send(party.ep.ep, buffer.as(), 64, buffer.desc(), party.at(0),
                           contexts.at(0));
        });
        if (self.rank == 1) party.barrier();
        party.ep.wait_tx();
        return;
    }
    for (const int from : {2, 1}) {
        party.ep.post([&] {
            return fi_recv(party.ep.ep, buffer.as() + 64 * from, 64, buffer.desc(), party.at(from),
                           contexts.at(static_cast<std::size_t>(from)));
        });
    }
    party.barrier();
    for (int i = 0; i < 2; ++i) {
        const Completion got = party.ep.wait_rx();
        const auto from = contexts.index_of(got.context);
        FAB_EQUAL(buffer.as()[64 * from], '0' + static_cast<int>(from));
    }
}

/// With FI_SOURCE a completion names its sender.
void source(Rank& self) {
    Party party(self, {.caps = FI_MSG | FI_SOURCE});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    for (int sender = 1; sender < self.size; ++sender) {
        if (self.rank == sender) {
            buffer.as()[0] = static_cast<char>(sender);
            party.ep.post([&] {
                return fi_send(party.ep.ep, buffer.as(), 8, buffer.desc(), party.at(0),
                               contexts.at(0));
            });
            party.ep.wait_tx();
        }
        if (self.rank == 0) {
            party.recv(buffer, 64, contexts.at(0));
            const fi_addr_t from = party.ep.wait_rx().source;
            FAB_EQUAL(from, party.at(buffer.as()[0]));
        }
    }
}

/// An endpoint can send to itself, before and after the receive is posted.
void to_itself(Rank& self) {
    Party party(self, {.caps = FI_MSG});
    Buffer out(party.ep, 100000);
    Buffer in(party.ep, 100000);
    Contexts contexts(2);
    for (const std::size_t size : {0UL, 8UL, 4000UL, 100000UL}) {
        for (const bool receive_first : {true, false}) {
            out.fill(static_cast<unsigned>(size));
            std::memset(in.as(), 0, size);
            if (receive_first) party.recv(in, size, contexts.at(1));
            party.ep.post([&] {
                return fi_send(party.ep.ep, out.as(), size, out.desc(), party.at(self.rank),
                               contexts.at(0));
            });
            if (!receive_first) party.recv(in, size, contexts.at(1));
            FAB_EQUAL(party.ep.wait_rx().len, size);
            party.ep.wait_tx();
            in.expect(static_cast<unsigned>(size), size);
        }
    }
}

/// Both sides send and receive at once, more than any ring holds.
void both_ways(Rank& self) {
    constexpr std::size_t kCount = 24;
    constexpr std::size_t kSize = 600000;
    Party party(self, {.caps = FI_MSG, .msg_order = FI_ORDER_SAS});
    Buffer out(party.ep, kSize);
    Buffer in(party.ep, kSize * kCount);
    Contexts contexts(2 * kCount);
    out.fill(static_cast<unsigned>(self.rank));
    for (std::size_t i = 0; i < kCount; ++i) {
        party.ep.post([&] {
            return fi_recv(party.ep.ep, in.as() + i * kSize, kSize, in.desc(), FI_ADDR_UNSPEC,
                           contexts.at(kCount + i));
        });
        party.send(out, kSize, contexts.at(i));
    }
    std::array<bool, kCount> is_here{};  // completions may come in any order
    for (std::size_t i = 0; i < kCount; ++i) {
        const std::size_t which = contexts.index_of(party.ep.wait_rx().context) - kCount;
        FAB_CHECK(which < kCount && !std::exchange(is_here.at(which), true));
        party.ep.wait_tx();
    }
    out.fill(static_cast<unsigned>(self.other()));
    for (std::size_t i = 0; i < kCount; ++i) {
        FAB_EQUAL(std::memcmp(in.as() + i * kSize, out.as(), kSize), 0);
    }
}

/// The first message to a peer arrives though its sender calls nothing any more, or the provider
/// never said it would.
/// @param is_greeted  The peer has sent one before, which nobody has looked for.
void leave_alone(Rank& self, bool is_greeted) {
    Party party(self, {.caps = FI_MSG});
    Buffer buffer(party.ep, 64);
    Contexts contexts(1);
    char word = 0;
    if (party.ep.info->tx_attr->inject_size < 8) skip("8 bytes cannot be injected");
    if (is_greeted && self.rank == 1) {
        // The peer may have to answer before anything is sent to it.
        long rc = 0;
        const double deadline = now_s() + kOpLimitS;
        while ((rc = static_cast<long>(fi_inject(party.ep.ep, "87654321", 8, party.peer()))) ==
               -FI_EAGAIN) {
            party.ep.progress();
            if (now_s() < deadline) continue;
            skip_elsewhere("a peer that sleeps can be sent to");
            FAB_FAIL("nothing can be sent to a peer that sleeps");
        }
        FAB_OK(rc);
        const double until = now_s() + 0.1;
        while (now_s() < until) party.ep.progress();
        self.send(0, "t", 1);
    } else if (is_greeted) {
        self.receive(1, &word, 1);  // sleeps, no progress
    }
    if (self.rank == 0) {
        party.ep.post([&] { return fi_inject(party.ep.ep, "12345678", 8, party.peer()); });
        self.receive(1, &word, 1);  // as above
        party.barrier();
        return;
    }
    party.recv(buffer, 8, contexts.at(0));
    Completion done;
    const double until = now_s() + 5;
    bool completed = false;
    while (!completed && now_s() < until) completed = party.ep.poll(party.ep.rx_cq, done);
    self.send(0, "t", 1);
    if (!completed) done = party.ep.wait_rx();
    party.barrier();
    FAB_EQUAL(done.err, 0);
    if (completed) return;
    skip_elsewhere("messages need no progress at their sender");
    FAB_FAIL("messages wait for their sender");
}

void leaves_alone(Rank& self) {
    leave_alone(self, false);
}

void answer_leaves_alone(Rank& self) {
    leave_alone(self, true);
}

constexpr Case kMsgTable[] = {
    {"msg_sizes", sizes},
    {"msg_unexpected_sizes", unexpected_sizes},
    {"msg_inject", inject},
    {"msg_senddata", senddata},
    {"msg_iov", iov},
    {"msg_truncation", truncation},
    {"msg_warm_lengths", warm_lengths},
    {"msg_unexpected_receives", unexpected_receives},
    {"msg_cancel", cancel},
    {"msg_multi_recv", multi_recv},
    {"msg_directed_recv", directed_recv, 3},
    {"msg_source", source, 4},
    {"msg_to_itself", to_itself},
    {"msg_both_ways", both_ways},
    {"msg_leaves_alone", leaves_alone},
    {"msg_answer_leaves_alone", answer_leaves_alone},
};

}  // namespace

const std::span<const Case> kMsgCases = kMsgTable;

}  // namespace fab
