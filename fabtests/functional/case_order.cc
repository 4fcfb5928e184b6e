// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The orders that an endpoint may promise: FI_ORDER_* of fi_endpoint(3). Each is asked for by
// hints; a provider that does not offer it is skipped.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <numeric>

#include "functional/case.h"

namespace fab {
namespace {

/// Sizes that take different paths, so that a path that overtakes another is seen.
constexpr std::size_t kMixed[] = {8, 100000, 0, 5000, 64, 1 << 20, 300, 16000};
constexpr std::size_t kMixedCount = std::size(kMixed);
/// FI_RX_CQ_DATA: some endpoints of type FI_EP_MSG want it.
constexpr std::uint64_t kMode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;

/// Send after send: messages of all sizes arrive in the order they were posted in.
template <fi_ep_type kType>
void sas(Rank& self) {
    // One of FI_EP_MSG waits each time that there is no receive.
    constexpr std::size_t kCount = kType == FI_EP_MSG ? 64 : 400;
    Party party(self, {.caps = FI_MSG,
                       .type = kType,
                       .mode = kMode,
                       .msg_order = FI_ORDER_SAS,
                       .cq_data_size = 4});
    Buffer buffer(party.ep, 1 << 20);
    Contexts contexts(1);
    for (std::size_t i = 0, done = 0; done < kCount;) {
        if (self.rank == 0) {
            if (i < kCount) {
                party.ep.post([&] {
                    return fi_senddata(party.ep.ep, buffer.as(), kMixed[i % kMixedCount],
                                       buffer.desc(), i, party.peer(), contexts.at(0));
                });
                ++i;
            }
            Completion sent;
            if (party.ep.poll(party.ep.tx_cq, sent)) {
                FAB_EQUAL(sent.err, 0);
                ++done;
            }
            for (; i == kCount && done < kCount; ++done) {
                party.ep.wait_tx();
            }
        } else {
            party.recv(buffer, 1 << 20, contexts.at(0));
            const Completion got = party.ep.wait_rx();
            FAB_EQUAL(got.data, done);
            FAB_EQUAL(got.len, kMixed[done % kMixedCount]);
            ++done;
        }
    }
}

struct Shared {
    Shared(Rank& self, fi_ep_type type, std::uint64_t order, std::uint64_t caps)
        : party(self, {.caps = caps, .type = type, .mode = kMode, .msg_order = order}),
          local(party.ep, 1 << 20),
          target(party.ep, 1 << 20),
          remote(party.trade(self.other(), target.remote())),
          contexts(64) {}

    void write(std::size_t offset, std::size_t length, std::size_t context) {
        party.ep.post([&] {
            return fi_write(party.ep.ep, local.as() + offset, length, local.desc(), party.peer(),
                            remote.base, remote.key, contexts.at(context));
        });
    }

    Party party;
    Buffer local;
    Buffer target;
    RemoteRegion remote;
    Contexts contexts;
};

/// Up to where rvt keeps the orders of RDM endpoints, and one for those who go further.
constexpr std::size_t kOrderedSizes[] = {8, 512, 3000, 4096, 60000};

/// How far a provider keeps an order: up to this size; nothing is said of larger ones.
std::size_t most(std::size_t limit) {
    return limit == 0 ? 0 : limit > 60000 ? 60000 : limit;
}

/// A completion at the initiator need not mean that the bytes are here yet: waits for them, and a
/// little longer, to see whether others come after them.
void expect_to_stay(const Shared& shared, char value, std::size_t size) {
    const double deadline = now_s() + kOpLimitS;
    const char* bytes = shared.target.as();
    while ((bytes[0] != value || bytes[size - 1] != value) && now_s() < deadline) {
        shared.party.ep.progress();
    }
    for (const double until = now_s() + 0.002; now_s() < until;) shared.party.ep.progress();
    FAB_EQUAL(bytes[0], value);
    FAB_EQUAL(bytes[size - 1], value);
}

/// Write after write: the last one stays.
template <fi_ep_type kType>
void waw(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_WAW, FI_RMA);
    const std::size_t limit = most(shared.party.ep.info->ep_attr->max_order_waw_size);
    if (limit == 0) skip("max_order_waw_size is 0");
    for (const std::size_t size : kOrderedSizes) {
        if (size > limit) continue;
        for (int turn = 0; turn < 20; ++turn) {
            if (self.rank == 0) {
                for (std::size_t i = 0; i < 8; ++i) {
                    std::memset(shared.local.as() + i * 65536, static_cast<int>(i + 1), size);
                    shared.write(i * 65536, size, i);
                }
                for (std::size_t i = 0; i < 8; ++i) shared.party.ep.wait_tx();
            }
            if (self.rank == 1) expect_to_stay(shared, 8, size);
            shared.party.barrier();
            std::memset(shared.target.as(), 0, size);
            shared.party.barrier();
        }
    }
}

/// Writes of which some are posted while a fenced one waits, and some after it has left, all
/// arrive.
template <fi_ep_type kType>
void behind_fence(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_WAW, FI_RMA | FI_FENCE);
    const Party& party = shared.party;
    constexpr std::size_t kPieces[] = {8, 8, 300000, 300000, 300000};
    for (int turn = 1; turn <= 20; ++turn) {
        std::size_t offset = 0;
        for (std::size_t i = 0; i < std::size(kPieces) && self.rank == 0; ++i) {
            const iovec piece{shared.local.as() + offset, kPieces[i]};
            std::memset(piece.iov_base, turn, kPieces[i]);
            void* desc = shared.local.desc();
            const fi_rma_iov place{shared.remote.base + offset, kPieces[i], shared.remote.key};
            const fi_msg_rma msg{.msg_iov = &piece,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = party.peer(),
                                 .rma_iov = &place,
                                 .rma_iov_count = 1,
                                 .context = shared.contexts.at(i),
                                 .data = 0};
            const std::uint64_t flags = FI_DELIVERY_COMPLETE | (i == 1 ? FI_FENCE : 0);
            party.ep.post([&] { return fi_writemsg(party.ep.ep, &msg, FI_COMPLETION | flags); });
            if (i == 2) {
                party.ep.wait_tx();
                party.ep.progress();  // the fenced one leaves, and a part of what follows
            }
            offset += kPieces[i];
        }
        for (std::size_t i = 1; i < std::size(kPieces) && self.rank == 0; ++i) party.ep.wait_tx();
        party.barrier();
        const std::size_t total = std::accumulate(std::begin(kPieces), std::end(kPieces), 0UL);
        const char* const bytes = shared.target.as();
        FAB_CHECK(self.rank == 0 || std::all_of(bytes, bytes + total, [turn](char byte) {
                      return byte == static_cast<char>(turn);
                  }));
        party.barrier();
    }
}

/// Read after write: a read sees what was written before it.
template <fi_ep_type kType>
void raw(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_RAW, FI_RMA);
    const std::size_t limit = most(shared.party.ep.info->ep_attr->max_order_raw_size);
    if (limit == 0) skip("max_order_raw_size is 0");
    if (self.rank == 1) return shared.party.barrier();
    char* back = shared.local.as() + 65536;
    for (const std::size_t size : kOrderedSizes) {
        if (size > limit) continue;
        for (int turn = 1; turn < 50; ++turn) {
            std::memset(shared.local.as(), turn, size);
            std::memset(back, 0, size);
            shared.write(0, size, 0);
            shared.party.ep.post([&] {
                return fi_read(shared.party.ep.ep, back, size, shared.local.desc(),
                               shared.party.peer(), shared.remote.base, shared.remote.key,
                               shared.contexts.at(1));
            });
            shared.party.ep.wait_tx();
            shared.party.ep.wait_tx();
            FAB_EQUAL(std::memcmp(back, shared.local.as(), size), 0);
        }
    }
    shared.party.barrier();
}

/// The same for injected writes, of which the initiator never hears again; a fence and a send come
/// after them as well.
template <fi_ep_type kType>
void after_injected(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_RAW | FI_ORDER_WAW | FI_ORDER_SAW,
                  FI_RMA | FI_MSG | FI_FENCE);
    const Party& party = shared.party;
    const std::size_t inject_size = party.ep.info->tx_attr->inject_size;
    if (inject_size < 8) skip("inject_size is below 8");
    if (most(party.ep.info->ep_attr->max_order_raw_size) < 8) skip("max_order_raw_size is below 8");
    auto* const words = shared.local.as<std::uint64_t>();
    constexpr std::uint64_t kTurns = kType == FI_EP_MSG ? 100 : 300;
    if (self.rank == 1) {
        for (std::uint64_t turn = 1; turn < kTurns; ++turn) {
            shared.party.recv(shared.local, 64, shared.contexts.at(0));
            party.ep.wait_rx();
            FAB_EQUAL(shared.target.as<std::uint64_t>()[0], turn);
            shared.party.barrier();
        }
        return;
    }
    for (std::uint64_t turn = 1; turn < kTurns; ++turn) {
        // More of them than fit on the way to the target.
        for (std::size_t i = 0; i < 2 * turn; ++i) {
            words[0] = i + 1 < 2 * turn ? turn + i : turn;
            party.ep.post([&] {
                return fi_inject_write(party.ep.ep, words, 8, party.peer(), shared.remote.base,
                                       shared.remote.key);
            });
        }
        iovec piece{words + 1, 8};
        void* desc = shared.local.desc();
        const fi_rma_iov place{shared.remote.base, 8, shared.remote.key};
        const fi_msg_rma msg{.msg_iov = &piece,
                             .desc = &desc,
                             .iov_count = 1,
                             .addr = party.peer(),
                             .rma_iov = &place,
                             .rma_iov_count = 1,
                             .context = shared.contexts.at(1),
                             .data = 0};
        const std::uint64_t fence = turn % 2 == 0 ? FI_FENCE : 0;
        party.ep.post([&] { return fi_readmsg(party.ep.ep, &msg, FI_COMPLETION | fence); });
        party.ep.wait_tx();
        FAB_EQUAL(words[1], turn);
        shared.party.send(shared.local, 8, shared.contexts.at(2));
        party.ep.wait_tx();
        shared.party.barrier();
    }
}

/// Write after read: a read does not see what is written after it.
void war(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_WAR, FI_RMA);
    const std::size_t limit = most(shared.party.ep.info->ep_attr->max_order_war_size);
    if (limit == 0) skip("max_order_war_size is 0");
    if (self.rank == 1) return shared.party.barrier();
    char* back = shared.local.as() + 65536;
    for (const std::size_t size : kOrderedSizes) {
        if (size > limit) continue;
        std::memset(shared.local.as(), 0, size);
        shared.write(0, size, 0);
        shared.party.ep.wait_tx();
        for (int turn = 1; turn < 50; ++turn) {
            std::memset(shared.local.as(), turn, size);
            shared.party.ep.post([&] {
                return fi_read(shared.party.ep.ep, back, size, shared.local.desc(),
                               shared.party.peer(), shared.remote.base, shared.remote.key,
                               shared.contexts.at(1));
            });
            shared.write(0, size, 0);
            shared.party.ep.wait_tx();
            shared.party.ep.wait_tx();
            FAB_EQUAL(back[0], turn - 1);
            FAB_EQUAL(back[size - 1], turn - 1);
        }
    }
    shared.party.barrier();
}

/// Read after read: what is read behind a flag is not older than the flag, however large it is.
void rar(Rank& self) {
    constexpr std::size_t kFlagRoom = 4096;
    constexpr std::size_t kRoom = 65536 - kFlagRoom;
    constexpr int kPolls = 20;  // between turns: who has not polled lately is not asked to help
    constexpr double kSecondsEach = 0.2;
    Shared shared(self, FI_EP_RDM, FI_ORDER_RAR, FI_RMA | FI_MSG);
    Party& party = shared.party;
    auto* const flag = (self.rank == 1 ? shared.target : shared.local).as<std::uint64_t>();
    auto* const values = flag + kFlagRoom / sizeof *flag;
    Completion done;
    if (self.rank == 1) {  // all values, then the flag, again and again
        party.recv(shared.local, 8, shared.contexts.at(0));
        for (std::uint64_t turn = 1; !party.ep.poll(party.ep.rx_cq, done); ++turn) {
            std::fill_n(values, kRoom / sizeof *values, turn);
            // release: pairs with the read of the flag over there; the values come first.
            std::atomic_ref(*flag).store(turn, std::memory_order_release);
            for (int i = 0; i < kPolls; ++i) party.ep.progress();
        }
        return;
    }
    const auto read = [&](std::uint64_t* to, std::size_t size, std::size_t offset) {
        party.ep.post([&] {
            return fi_read(party.ep.ep, to, size, shared.local.desc(), party.peer(),
                           shared.remote.base + offset, shared.remote.key, shared.contexts.at(1));
        });
    };
    for (const std::size_t size : {std::size_t{8}, std::size_t{4000}, std::size_t{8192}, kRoom}) {
        for (const double until = now_s() + kSecondsEach; now_s() < until;) {
            read(flag, sizeof *flag, 0);
            read(values, size, kFlagRoom);
            party.ep.wait_tx();
            party.ep.wait_tx();
            FAB_CHECK(*std::min_element(values, values + size / sizeof *values) >= *flag);
        }
    }
    party.send(shared.local, 8, shared.contexts.at(0));
    party.ep.wait_tx();
}

/// Send after write: who receives the message sees what was written before it.
template <fi_ep_type kType>
void saw(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_SAW, FI_RMA | FI_MSG);
    for (const std::size_t size : {8UL, 3000UL, 60000UL, 1000000UL}) {
        for (int turn = 1; turn < 30; ++turn) {
            if (self.rank == 0) {
                std::memset(shared.local.as(), turn, size);
                shared.write(0, size, 0);
                shared.party.send(shared.local, 8, shared.contexts.at(1));
                shared.party.ep.wait_tx();
                shared.party.ep.wait_tx();
            } else {
                shared.party.recv(shared.local, 64, shared.contexts.at(0));
                shared.party.ep.wait_rx();
                FAB_EQUAL(shared.target.as()[0], turn);
                FAB_EQUAL(shared.target.as()[size - 1], turn);
            }
            shared.party.barrier();
        }
    }
}

/// The same after an atomic that returns nothing, and so tells its initiator nothing either.
template <fi_ep_type kType>
void send_after_atomic(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_SAW, FI_ATOMIC | FI_MSG);
    auto* const words = shared.local.as<std::uint64_t>();
    for (std::uint64_t turn = 1; turn < 200; ++turn) {
        if (self.rank == 0) {
            words[0] = 1;
            shared.party.ep.post([&] {
                return fi_atomic(shared.party.ep.ep, words, 1, shared.local.desc(),
                                 shared.party.peer(), shared.remote.base, shared.remote.key,
                                 FI_UINT64, FI_SUM, shared.contexts.at(0));
            });
            shared.party.send(shared.local, 8, shared.contexts.at(1));
            shared.party.ep.wait_tx();
            shared.party.ep.wait_tx();
        } else {
            shared.party.recv(shared.local, 64, shared.contexts.at(0));
            shared.party.ep.wait_rx();
            FAB_EQUAL(shared.target.as<std::uint64_t>()[0], turn);
        }
        shared.party.barrier();
    }
}

/// Atomics on one word take effect in the order they were posted in.
template <fi_ep_type kType>
void atomic_order(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAW | FI_ORDER_ATOMIC_WAR,
                  FI_ATOMIC);
    auto* words = shared.local.as<std::uint64_t>();
    if (self.rank == 1) return shared.party.barrier();
    constexpr std::size_t kCount = 16;
    words[0] = 1;
    for (std::size_t i = 0; i < kCount; ++i) {
        shared.party.ep.post([&] {
            return fi_fetch_atomic(shared.party.ep.ep, words, 1, shared.local.desc(), words + 8 + i,
                                   shared.local.desc(), shared.party.peer(), shared.remote.base,
                                   shared.remote.key, FI_UINT64, FI_SUM, shared.contexts.at(i));
        });
    }
    for (std::size_t i = 0; i < kCount; ++i) shared.party.ep.wait_tx();
    for (std::size_t i = 0; i < kCount; ++i) FAB_EQUAL(words[8 + i], i);
    shared.party.barrier();
}

/// Operations on the same words of the target, each with words of its own here.
class Words {
  public:
    static constexpr std::size_t kMost = 512;
    static constexpr std::size_t kOps = 8;

    Words(Shared& shared, std::size_t count) : shared_(shared), count_(count) {}

    void write(std::size_t op, std::uint64_t value) {
        bring(op, value);
        shared_.write(brought_at(op), count_ * 8, op);
    }
    void read(std::size_t op) {
        post([&](fid_ep* ep, fi_addr_t to, void* desc) {
            return fi_read(ep, found(op), count_ * 8, desc, to, shared_.remote.base,
                           shared_.remote.key, shared_.contexts.at(op));
        });
    }
    void add(std::size_t op, std::uint64_t value) {
        bring(op, value);
        post([&](fid_ep* ep, fi_addr_t to, void* desc) {
            return fi_atomic(ep, shared_.local.as() + brought_at(op), count_, desc, to,
                             shared_.remote.base, shared_.remote.key, FI_UINT64, FI_SUM,
                             shared_.contexts.at(op));
        });
    }
    void find_and_add(std::size_t op, std::uint64_t value) {
        bring(op, value);
        post([&](fid_ep* ep, fi_addr_t to, void* desc) {
            return fi_fetch_atomic(ep, shared_.local.as() + brought_at(op), count_, desc, found(op),
                                   desc, to, shared_.remote.base, shared_.remote.key, FI_UINT64,
                                   FI_SUM, shared_.contexts.at(op));
        });
    }
    void expect_found(std::size_t op, std::uint64_t value) const {
        for (std::size_t i = 0; i < count_; ++i) FAB_EQUAL(found(op)[i], value);
    }

  private:
    static std::size_t brought_at(std::size_t op) { return op * kMost * 8; }
    std::uint64_t* found(std::size_t op) const {
        return shared_.local.as<std::uint64_t>() + (kOps + op) * kMost;
    }
    void bring(std::size_t op, std::uint64_t value) {
        std::fill_n(shared_.local.as<std::uint64_t>() + op * kMost, count_, value);
    }
    template <class Call>
    void post(Call call) {
        const Party& party = shared_.party;
        party.ep.post([&] { return call(party.ep.ep, party.peer(), shared_.local.desc()); });
    }

    Shared& shared_;
    const std::size_t count_;
};

void mix(Shared& shared, std::size_t count) {
    Words words(shared, count);
    for (std::uint64_t turn = 1; turn < 200; ++turn) {
        words.write(0, turn * 1000);
        words.add(1, 1);
        words.find_and_add(2, 10);
        words.read(3);
        words.write(4, turn * 2000);
        words.find_and_add(5, 7);
        words.add(6, 100);
        words.read(7);
        for (std::size_t op = 0; op < Words::kOps; ++op) shared.party.ep.wait_tx();
        words.expect_found(2, turn * 1000 + 1);
        words.expect_found(3, turn * 1000 + 11);
        words.expect_found(5, turn * 2000);
        words.expect_found(7, turn * 2000 + 107);
    }
}

/// The orders that do not name one kind bind writes, reads and atomics to each other: each finds
/// what those before it have left, and nothing of those behind it. With rvt also where the target
/// does not poll.
void mixed(Rank& self) {
    Shared shared(self, FI_EP_RDM, FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW, FI_RMA | FI_ATOMIC);
    const Endpoint& ep = shared.party.ep;
    const fi_ep_attr& attr = *ep.info->ep_attr;
    const std::size_t limit =
        std::min({attr.max_order_raw_size, attr.max_order_war_size, attr.max_order_waw_size});
    std::size_t most_words = 0;
    if (limit < 8 || fi_fetch_atomicvalid(ep.ep, FI_UINT64, FI_SUM, &most_words) != 0) {
        skip("no such orders, or no FI_SUM of 64 bits");
    }
    for (const bool polls : {true, false}) {
        if (!polls && settings.provider != "rvt") break;
        for (const std::size_t count : {1UL, 64UL, Words::kMost}) {
            if (self.rank == 0 && count <= most_words && count * 8 <= limit) mix(shared, count);
        }
        self.rank == 0 || polls ? shared.party.barrier() : self.barrier();
    }
}

/// Write after send: who sees what was written gets the message that was sent before it. What is in
/// its buffer is for who has its completion.
void was(Rank& self) {
    Shared shared(self, FI_EP_MSG, FI_ORDER_WAS, FI_RMA | FI_MSG);
    const Party& party = shared.party;
    for (const std::size_t size : kOrderedSizes) {
        for (int turn = 1; turn < 30; ++turn) {
            if (self.rank == 1) party.recv(shared.local, size, shared.contexts.at(0));
            party.barrier();
            if (self.rank == 0) {
                std::memset(shared.local.as(), turn, size);
                party.send(shared.local, size, shared.contexts.at(0));
                shared.write(0, 8, 1);
                party.ep.wait_tx();
                party.ep.wait_tx();
            } else {
                const char* const written = shared.target.as();
                for (const double until = now_s() + kOpLimitS; written[7] != turn;) {
                    party.ep.progress();
                    if (now_s() > until) FAB_FAIL("nothing is written");
                }
                party.ep.wait_rx();
                FAB_EQUAL(shared.local.as()[0], turn);
                FAB_EQUAL(shared.local.as()[size - 1], turn);
            }
            party.barrier();
        }
    }
}

/// Read after send: a read of where a message goes finds it there.
void ras(Rank& self) {
    Shared shared(self, FI_EP_MSG, FI_ORDER_RAS, FI_RMA | FI_MSG);
    const Party& party = shared.party;
    char* const back = shared.local.as() + (1 << 19);
    for (const std::size_t size : kOrderedSizes) {
        for (int turn = 1; turn < 30; ++turn) {
            if (self.rank == 1) party.recv(shared.target, size, shared.contexts.at(0));
            party.barrier();
            if (self.rank == 0) {
                std::memset(shared.local.as(), turn, size);
                party.send(shared.local, size, shared.contexts.at(0));
                party.ep.post([&] {
                    return fi_read(party.ep.ep, back, size, shared.local.desc(), party.peer(),
                                   shared.remote.base, shared.remote.key, shared.contexts.at(1));
                });
                party.ep.wait_tx();
                party.ep.wait_tx();
                FAB_EQUAL(std::memcmp(back, shared.local.as(), size), 0);
            } else {
                party.ep.wait_rx();
            }
            party.barrier();
        }
    }
}

constexpr Case kOrderTable[] = {
    {"order_send_after_send", sas<FI_EP_RDM>, 2, 40},
    {"order_write_after_write", waw<FI_EP_RDM>},
    {"order_writes_behind_a_fence", behind_fence<FI_EP_RDM>},
    {"order_read_after_write", raw<FI_EP_RDM>},
    {"order_after_injected_write", after_injected<FI_EP_RDM>},
    {"order_write_after_read", war},
    {"order_read_after_read", rar},
    {"order_send_after_write", saw<FI_EP_RDM>},
    {"order_send_after_atomic", send_after_atomic<FI_EP_RDM>},
    {"order_atomics", atomic_order<FI_EP_RDM>},
    {"order_mixed", mixed},
    {"order_msg_send_after_send", sas<FI_EP_MSG>, 2, 40},
    {"order_msg_write_after_write", waw<FI_EP_MSG>},
    {"order_msg_writes_behind_a_fence", behind_fence<FI_EP_MSG>},
    {"order_msg_read_after_write", raw<FI_EP_MSG>},
    {"order_msg_after_injected_write", after_injected<FI_EP_MSG>},
    {"order_msg_send_after_write", saw<FI_EP_MSG>},
    {"order_msg_write_after_send", was},
    {"order_msg_read_after_send", ras},
    {"order_msg_send_after_atomic", send_after_atomic<FI_EP_MSG>},
    {"order_msg_atomics", atomic_order<FI_EP_MSG>},
};

}  // namespace

const std::span<const Case> kOrderCases = kOrderTable;

}  // namespace fab
