// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tagged messages: fi_tagged(3).
#include <algorithm>
#include <cstring>
#include <iterator>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kLargest = (4 << 20) + 3;
constexpr std::uint64_t kTag = 0x1122334455667788ULL;

/// The tag bits this provider carries.
std::uint64_t tag_of(const Party& party, std::uint64_t wanted) {
    std::uint64_t format = party.ep.info->ep_attr->mem_tag_format;
    unsigned bits = 0;
    for (; format != 0; format >>= 1) ++bits;
    return bits >= 64 || bits == 0 ? wanted : wanted & ((1ULL << bits) - 1);
}

void sizes(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer out(party.ep, kLargest);
    Buffer in(party.ep, kLargest);
    Contexts contexts(2);
    unsigned seed = 1;
    for (const std::size_t size : kSizes) {
        for (int sender = 0; sender < 2; ++sender, ++seed) {
            const std::uint64_t tag = tag_of(party, kTag + seed);
            if (self.rank == sender) {
                out.fill(seed, size);
                party.tsend(out, size, tag, contexts.at(0));
                const Completion sent = party.ep.wait_tx();
                FAB_CHECK(sent.context == contexts.at(0));
                FAB_CHECK((sent.flags & (FI_SEND | FI_TAGGED)) == (FI_SEND | FI_TAGGED));
            } else {
                std::memset(in.as(), 0, size);
                party.trecv(in, kLargest, tag, 0, contexts.at(1));
                const Completion got = party.ep.wait_rx();
                FAB_CHECK(got.context == contexts.at(1));
                FAB_CHECK((got.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
                FAB_EQUAL(got.len, size);
                FAB_EQUAL(got.tag, tag);
                in.expect(seed, size);
            }
        }
    }
}

/// Messages are received in the reverse of the order they were sent in.
void reverse_order(Rank& self) {
    constexpr std::size_t kCount = std::size(kSizes);
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, kLargest);
    Contexts contexts(kCount);
    buffer.fill(77);
    if (self.rank == 0) {
        for (std::size_t i = 0; i < kCount; ++i) {
            party.tsend(buffer, kSizes[i], i, contexts.at(i));
        }
        party.barrier();
        for (std::size_t i = 0; i < kCount; ++i) party.ep.wait_tx();
        return;
    }
    party.barrier();
    for (std::size_t i = kCount; i-- > 0;) {
        std::memset(buffer.as(), 0, kSizes[i]);
        party.trecv(buffer, kLargest, i, 0, contexts.at(0));
        const Completion got = party.ep.wait_rx();
        FAB_EQUAL(got.len, kSizes[i]);
        FAB_EQUAL(got.tag, i);
        buffer.expect(77, kSizes[i]);
    }
}

/// Ignored bits match anything; the completion tells the tag that came.
void ignore_bits(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, 64);
    Contexts contexts(4);
    const std::uint64_t base = tag_of(party, kTag) & ~0xffULL;
    const std::uint64_t all = tag_of(party, ~0ULL);
    if (self.rank == 0) {
        party.barrier();
        for (const std::uint64_t low : {0x13ULL, 0x24ULL, 0x25ULL}) {
            party.tsend(buffer, 8, base | low, contexts.at(0));
            party.ep.wait_tx();
        }
        return;
    }
    party.trecv(buffer, 64, base | 0x20, 0x0f, contexts.at(0));  // takes 0x24
    party.trecv(buffer, 64, base | 0x25, 0, contexts.at(1));     // takes 0x25
    party.trecv(buffer, 64, 0, all, contexts.at(2));             // takes 0x13, the first
    party.barrier();
    std::uint64_t got[3] = {};
    for (int i = 0; i < 3; ++i) {
        const Completion one = party.ep.wait_rx();
        got[contexts.index_of(one.context)] = one.tag;
    }
    FAB_EQUAL(got[0], base | 0x24);
    FAB_EQUAL(got[1], base | 0x25);
    FAB_EQUAL(got[2], base | 0x13);
}

/// Of several receives that match, the one posted first takes the message; of several messages
/// that match, the one sent first is taken.
void oldest_first(Rank& self) {
    constexpr std::size_t kCount = 50;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, 64 * kCount);
    Contexts contexts(kCount);
    for (const bool posted_first : {true, false}) {
        if (self.rank == 0) {
            if (posted_first) party.barrier();
            for (std::size_t i = 0; i < kCount; ++i) {
                *buffer.as<std::size_t>() = i;
                party.ep.post([&] {
                    return fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(), party.peer(), 5,
                                    contexts.at(i));
                });
                party.ep.wait_tx();
            }
            if (!posted_first) party.barrier();
            continue;
        }
        if (!posted_first) party.barrier();
        for (std::size_t i = 0; i < kCount; ++i) {
            party.ep.post([&] {
                return fi_trecv(party.ep.ep, buffer.as() + 64 * i, 64, buffer.desc(),
                                FI_ADDR_UNSPEC, i % 2 == 0 ? 5 : 4, i % 2, contexts.at(i));
            });
        }
        if (posted_first) party.barrier();
        for (std::size_t i = 0; i < kCount; ++i) {
            const Completion got = party.ep.wait_rx();
            FAB_EQUAL(contexts.index_of(got.context), i);
            FAB_EQUAL(*reinterpret_cast<std::size_t*>(buffer.as() + 64 * i), i);
        }
    }
}

/// Tagged and untagged messages never match each other.
void apart_from_untagged(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_MSG});
    Buffer buffer(party.ep, 256);
    Contexts contexts(2);
    if (self.rank == 0) {
        party.tsend(buffer, 16, 0, contexts.at(0));
        party.ep.wait_tx();
        party.send(buffer, 32, contexts.at(0));
        party.ep.wait_tx();
        return;
    }
    party.recv(buffer, 64, contexts.at(0));
    const Completion untagged = party.ep.wait_rx();
    FAB_EQUAL(untagged.len, 32);
    FAB_CHECK((untagged.flags & FI_TAGGED) == 0);
    party.trecv(buffer, 64, 0, 0, contexts.at(1));
    FAB_EQUAL(party.ep.wait_rx().len, 16);
}

void inject(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .cq_data_size = 4});
    const std::size_t limit = std::min<std::size_t>(party.ep.info->tx_attr->inject_size, 16384);
    Buffer buffer(party.ep, 16384);
    Contexts contexts(1);
    for (std::size_t size = 0; size <= limit; size = size < 8 ? size + 1 : size * 2) {
        const auto seed = static_cast<unsigned>(size + 1);
        for (const bool with_data : {false, true}) {
            if (self.rank == 0) {
                buffer.fill(seed);
                party.ep.post([&] {
                    return with_data
                               ? fi_tinjectdata(party.ep.ep, buffer.as(), size, 99 + size,
                                                party.peer(), size)
                               : fi_tinject(party.ep.ep, buffer.as(), size, party.peer(), size);
                });
                std::memset(buffer.as(), 0xee, size);
            } else {
                party.trecv(buffer, buffer.size(), size, 0, contexts.at(0));
                const Completion got = party.ep.wait_rx();
                FAB_EQUAL(got.len, size);
                FAB_EQUAL((got.flags & FI_REMOTE_CQ_DATA) != 0, with_data);
                if (with_data) FAB_EQUAL(got.data, 99 + size);
                buffer.expect(seed, size);
            }
        }
        party.barrier();
    }
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.tx_cq, none));
}

/// Data and tag travel together, expected and unexpected, small and large.
void senddata(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .cq_data_size = 4});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(1);
    for (const std::size_t size : {0UL, 8UL, 5000UL, 100000UL}) {
        for (const bool expected : {true, false}) {
            if (self.rank == 0) {
                if (expected) party.barrier();
                party.ep.post([&] {
                    return fi_tsenddata(party.ep.ep, buffer.as(), size, buffer.desc(), 0xf0000000U,
                                        party.peer(), 3, contexts.at(0));
                });
                if (!expected) party.barrier();
                party.ep.wait_tx();
                continue;
            }
            if (!expected) party.barrier();
            party.trecv(buffer, buffer.size(), 3, 0, contexts.at(0));
            if (expected) party.barrier();
            const Completion got = party.ep.wait_rx();
            FAB_CHECK((got.flags & FI_REMOTE_CQ_DATA) != 0);
            FAB_EQUAL(got.data, 0xf0000000U);
            FAB_EQUAL(got.len, size);
            FAB_EQUAL(got.tag, 3);
        }
    }
}

void iov(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(1);
    void* descs[2] = {buffer.desc(), buffer.desc()};
    if (std::min(party.ep.info->tx_attr->iov_limit, party.ep.info->rx_attr->iov_limit) < 2) {
        skip("iov_limit is below 2");
    }
    for (const std::size_t size : {2UL, 40UL, 700UL, 9000UL, 100000UL}) {
        const iovec halves[2] = {{buffer.as(), size / 3},
                                 {buffer.as() + size / 3, size - size / 3}};
        if (self.rank == 0) {
            buffer.fill(6);
            party.ep.post([&] {
                return fi_tsendv(party.ep.ep, halves, descs, 2, party.peer(), 1, contexts.at(0));
            });
            party.ep.wait_tx();
        } else {
            std::memset(buffer.as(), 0, size);
            party.ep.post([&] {
                return fi_trecvv(party.ep.ep, halves, descs, 2, FI_ADDR_UNSPEC, 1, 0,
                                 contexts.at(0));
            });
            FAB_EQUAL(party.ep.wait_rx().len, size);
            buffer.expect(6, size);
        }
    }
}

void truncation(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 100000);
    Contexts contexts(2);
    for (const std::size_t size : {8UL, 300UL, 5000UL, 100000UL}) {
        for (const bool expected : {true, false}) {
            buffer.fill(9);
            if (self.rank == 0) {
                if (expected) party.barrier();
                party.tsend(buffer, size, 1, contexts.at(0));
                party.tsend(buffer, size, 2, contexts.at(1));
                if (!expected) party.barrier();
                party.ep.wait_any(party.ep.tx_cq);
                party.ep.wait_any(party.ep.tx_cq);
                continue;
            }
            if (!expected) party.barrier();
            std::memset(buffer.as(), 0, size);
            party.trecv(buffer, 3, 1, 0, contexts.at(0));
            if (expected) party.barrier();
            const Completion cut_off = party.ep.wait_any(party.ep.rx_cq);
            FAB_EQUAL(cut_off.err, FI_ETRUNC);
            FAB_CHECK(cut_off.context == contexts.at(0));
            FAB_EQUAL(cut_off.tag, 1);
            FAB_EQUAL(cut_off.olen, size - 3);
            FAB_EQUAL(buffer.as()[3], 0);
            party.trecv(buffer, size, 2, 0, contexts.at(1));
            FAB_EQUAL(party.ep.wait_rx().len, size);
            buffer.expect(9, size);
        }
    }
}

/// A cancelled receive takes nothing; cancelling one that completed does nothing.
void cancel(Rank& self) {
    Party party(self, {.caps = FI_TAGGED});
    Buffer buffer(party.ep, 64);
    Contexts contexts(3);
    if (self.rank == 0) {
        party.barrier();
        party.tsend(buffer, 8, 2, contexts.at(0));
        party.ep.wait_tx();
        return;
    }
    party.trecv(buffer, 64, 1, 0, contexts.at(0));
    party.trecv(buffer, 64, 2, 0, contexts.at(1));
    party.trecv(buffer, 64, 2, 0, contexts.at(2));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(1)));
    Completion gone = party.ep.wait_any(party.ep.rx_cq);
    FAB_EQUAL(gone.err, FI_ECANCELED);
    FAB_CHECK(gone.context == contexts.at(1));
    party.barrier();
    FAB_CHECK(party.ep.wait_rx().context == contexts.at(2));
    fi_cancel(&party.ep.ep->fid, contexts.at(2));
    Completion none;
    FAB_CHECK(!party.ep.poll(party.ep.rx_cq, none));
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(0)));
    gone = party.ep.wait_any(party.ep.rx_cq);
    FAB_EQUAL(gone.err, FI_ECANCELED);
    FAB_CHECK(gone.context == contexts.at(0));
}

/// With FI_DIRECTED_RECV the source is part of the match, for messages that came before too.
void directed_recv(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_DIRECTED_RECV});
    Buffer buffer(party.ep, 192);
    Contexts contexts(3);
    if (self.rank != 0) {
        buffer.as()[0] = static_cast<char>('0' + self.rank);
        for (int i = 0; i < 2; ++i) {
            party.ep.post([&] {
                return fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(), party.at(0), 9,
                                contexts.at(0));
            });
            party.ep.wait_tx();
            if (i == 0) party.barrier();
        }
        return;
    }
    party.barrier();
    for (const int from : {2, 1, 1, 2}) {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, buffer.as() + 64 * from, 64, buffer.desc(), party.at(from),
                            9, 0, contexts.at(static_cast<std::size_t>(from)));
        });
        const Completion got = party.ep.wait_rx();
        FAB_CHECK(got.context == contexts.at(static_cast<std::size_t>(from)));
        FAB_EQUAL(buffer.as()[64 * from], '0' + from);
    }
}

/// Receives posted in any order while hundreds of messages wait: each gets the oldest that fits,
/// one that fits none can be cancelled, and one that does cannot lose its message.
void many_waiting(Rank& self) {
    constexpr std::size_t kTags = 100;
    constexpr std::size_t kRounds = 4;
    constexpr std::uint64_t kLastTag = 5000;
    Party party(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer buffer(party.ep, (kTags * kRounds + 2) * sizeof(std::uint64_t));
    auto* const words = buffer.as<std::uint64_t>();
    Contexts contexts(kTags * kRounds + 2);
    const auto post = [&](std::size_t slot, std::uint64_t tag, std::uint64_t ignore) {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, words + slot, sizeof *words, buffer.desc(), party.peer(),
                            tag, ignore, contexts.at(slot));
        });
    };
    if (self.rank == 0) {
        for (std::uint64_t i = 0; i <= kTags * kRounds; ++i) {
            const std::uint64_t tag = i < kTags * kRounds ? i % kTags : kLastTag;
            words[i] = i;
            party.ep.post([&] {
                return fi_tsend(party.ep.ep, words + i, sizeof *words, buffer.desc(), party.peer(),
                                tag, contexts.at(i));
            });
            party.ep.wait_tx();
        }
        party.barrier();
        return;
    }
    constexpr std::size_t kLast = kTags * kRounds;
    post(kLast, kLastTag, 0);
    FAB_CHECK(party.ep.wait_rx().context == contexts.at(kLast));  // all others are here
    std::memset(words, 0xff, kLast * sizeof *words);
    post(kLast + 1, kLastTag + 1, 0);
    FAB_OK(fi_cancel(&party.ep.ep->fid, contexts.at(kLast + 1)));
    FAB_EQUAL(party.ep.wait_any(party.ep.rx_cq).err, FI_ECANCELED);
    // The slot that a message will reach: tags backwards, messages of one tag in order.
    std::size_t slot = 0;
    for (; slot < kTags * (kRounds - 1); ++slot) post(slot, kTags - 1 - slot % kTags, 0);
    fi_cancel(&party.ep.ep->fid, contexts.at(slot - 1));  // too late, or not
    std::size_t received = 0;
    std::size_t cancelled = 0;
    const auto wait_one = [&] {
        const Completion done = party.ep.wait_any(party.ep.rx_cq);
        done.err == 0 ? ++received : ++cancelled;
        FAB_CHECK(done.err == 0 || done.err == FI_ECANCELED);
    };
    while (received + cancelled < slot) wait_one();
    for (std::size_t i = 0; i < received; ++i) {
        FAB_EQUAL(words[i], i / kTags * kTags + kTags - 1 - i % kTags);
    }
    // What is left comes in the order it was sent in to receives that take any of it.
    const std::size_t first = slot;
    for (const std::size_t end = first + kLast - received; slot < end; ++slot) post(slot, 0, 127);
    while (received < kLast) wait_one();
    for (std::size_t i = first + 1; i < slot; ++i) FAB_CHECK(words[i - 1] < words[i]);
    party.barrier();
}

constexpr Case kTaggedTable[] = {
    {"tagged_sizes", sizes},
    {"tagged_reverse_order", reverse_order},
    {"tagged_ignore_bits", ignore_bits},
    {"tagged_oldest_first", oldest_first},
    {"tagged_apart_from_untagged", apart_from_untagged},
    {"tagged_inject", inject},
    {"tagged_senddata", senddata},
    {"tagged_iov", iov},
    {"tagged_truncation", truncation},
    {"tagged_cancel", cancel},
    {"tagged_many_waiting", many_waiting},
    {"tagged_directed_recv", directed_recv, 3},
};

}  // namespace

const std::span<const Case> kTaggedCases = kTaggedTable;

}  // namespace fab
