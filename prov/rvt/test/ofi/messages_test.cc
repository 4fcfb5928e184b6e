// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_msg(3) and fi_tagged(3) between two endpoints: every call, and what it leaves in queues and
// counters.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ofi/pair.h"
#include "ofi/ways.h"

using namespace rvt::test;

namespace {

constexpr std::uint64_t kSent = FI_SEND;
constexpr std::uint64_t kReceived = FI_RECV;
constexpr std::uint64_t kTaggedDirectedRecv = 1ull << 45;  // FI_TAGGED_DIRECTED_RECV of libfabric 2

std::string text(const char* bytes) {
    return bytes;
}

/// Whether a message of this tag waits for its receive, once the end has looked.
/// @param flags  FI_PEEK and what is to become of the message.
bool has_come(End& end, std::uint64_t tag, std::uint64_t flags = FI_PEEK) {
    fi_msg_tagged msg{};
    msg.addr = FI_ADDR_UNSPEC;
    msg.tag = tag;
    RVT_OK(fi_trecvmsg(end.ep.get(), &msg, flags));
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    while (got == -FI_EAGAIN) {
        got = fi_cq_read(end.cq.get(), &entry, 1);
    }
    if (got == -FI_EAVAIL) {
        fi_cq_err_entry error{};
        RVT_EQ(fi_cq_readerr(end.cq.get(), &error, 0), 1);
        RVT_EQ(error.err, FI_ENOMSG);
    }
    return got == 1;
}

/// Ends that compare a receive late when many messages wait.
EndOptions late_options() {
    EndOptions options;
    options.caps = FI_TAGGED | FI_DIRECTED_RECV;
    options.data_progress = FI_PROGRESS_MANUAL;
    options.has_recv_counter = false;
    return options;
}

/// Lets as many messages wait at b as make its queue long.
void fill_long(Pair& pair) {
    constexpr std::uint64_t kFirst = 1000;
    constexpr std::uint64_t kLast = kFirst + 80;
    for (std::uint64_t tag = kFirst; tag <= kLast; ++tag) {
        pair.post([&] { return fi_tinject(pair.a.ep.get(), "-", 2, pair.a.peer, tag); });
    }
    while (!has_come(pair.b, kLast)) {
        pair.drive();
    }
}

}  // namespace

Test(messages, a_message_arrives_with_its_length_and_flags) {
    Pair pair;
    char in[64] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, in));
    pair.post([&] { return fi_send(pair.a.ep.get(), "hello", 6, nullptr, pair.a.peer, &pair); });
    const fi_cq_tagged_entry sent = pair.a.next();
    RVT_ASSERT(sent.op_context == &pair);
    RVT_EQ(sent.flags, FI_MSG | kSent);
    const fi_cq_tagged_entry received = pair.b.next();
    RVT_ASSERT(received.op_context == in);
    RVT_EQ(received.flags, FI_MSG | kReceived);
    RVT_EQ(received.len, 6);
    RVT_ASSERT(text(in) == "hello");
}

Test(messages, a_tagged_message_finds_its_receive) {
    Pair pair;
    char one[8] = "";
    char two[8] = "";
    RVT_OK(fi_trecv(pair.b.ep.get(), one, 8, nullptr, FI_ADDR_UNSPEC, 0x100, 0xff, one));
    RVT_OK(fi_trecv(pair.b.ep.get(), two, 8, nullptr, FI_ADDR_UNSPEC, 0x2ff, 0, two));
    pair.post([&] { return fi_tsend(pair.a.ep.get(), "b", 2, nullptr, pair.a.peer, 0x2ff, two); });
    pair.post([&] { return fi_tsend(pair.a.ep.get(), "a", 2, nullptr, pair.a.peer, 0x1fe, one); });
    fi_cq_tagged_entry entry = pair.b.next();
    RVT_ASSERT(entry.op_context == two);
    RVT_EQ(entry.tag, 0x2ff);
    RVT_EQ(entry.flags, FI_TAGGED | kReceived);
    entry = pair.b.next();
    RVT_ASSERT(entry.op_context == one);
    RVT_EQ(entry.tag, 0x1fe);
}

Test(messages, every_way_to_send_carries_its_data) {
    Pair pair;
    char in[16] = "";
    const iovec parts[] = {{const_cast<char*>("ab"), 2}, {const_cast<char*>("cd"), 3}};
    fid_ep* const a = pair.a.ep.get();
    const fi_addr_t to = pair.a.peer;
    const fi_msg msg{parts, nullptr, 2, to, nullptr, 77};
    const fi_msg_tagged tagged{parts, nullptr, 2, to, 5, 0, nullptr, 77};
    const std::function<ssize_t()> calls[] = {
        [&] { return fi_sendv(a, parts, nullptr, 2, to, nullptr); },
        [&] { return fi_senddata(a, "abcd", 5, nullptr, 77, to, nullptr); },
        [&] { return fi_sendmsg(a, &msg, FI_REMOTE_CQ_DATA); },
        [&] { return fi_inject(a, "abcd", 5, to); },
        [&] { return fi_injectdata(a, "abcd", 5, 77, to); },
        [&] { return fi_tsendv(a, parts, nullptr, 2, to, 5, nullptr); },
        [&] { return fi_tsenddata(a, "abcd", 5, nullptr, 77, to, 5, nullptr); },
        [&] { return fi_tsendmsg(a, &tagged, FI_REMOTE_CQ_DATA | FI_INJECT); },
        [&] { return fi_tinject(a, "abcd", 5, to, 5); },
        [&] { return fi_tinjectdata(a, "abcd", 5, 77, to, 5); },
    };
    const bool has_data[] = {false, true, true, false, true, false, true, true, false, true};
    for (std::size_t i = 0; i < 10; ++i) {
        memset(in, 0, sizeof in);
        const bool is_tagged = i >= 5;
        RVT_OK(is_tagged ? fi_trecv(pair.b.ep.get(), in, 16, nullptr, FI_ADDR_UNSPEC, 5, 0, in)
                         : fi_recv(pair.b.ep.get(), in, 16, nullptr, FI_ADDR_UNSPEC, in));
        pair.post(calls[i]);
        const fi_cq_tagged_entry entry = pair.b.next();
        cr_assert(text(in) == "abcd", "call %zu", i);
        RVT_EQ(entry.len, 5);
        RVT_EQ((entry.flags & FI_REMOTE_CQ_DATA) != 0, has_data[i]);
        if (has_data[i]) {
            RVT_EQ(entry.data, 77);
        }
    }
}

Test(messages, every_way_to_receive_scatters) {
    Pair pair;
    char one[4] = "";
    char two[8] = "";
    const iovec parts[] = {{one, 3}, {two, 8}};
    fid_ep* const b = pair.b.ep.get();
    const fi_msg msg{parts, nullptr, 2, FI_ADDR_UNSPEC, two, 0};
    const fi_msg_tagged tagged{parts, nullptr, 2, FI_ADDR_UNSPEC, 5, 0, two, 0};
    RVT_OK(fi_recvv(b, parts, nullptr, 2, FI_ADDR_UNSPEC, two));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "abcdef", 7, pair.a.peer); });
    RVT_ASSERT(pair.b.next().op_context == two);
    RVT_ASSERT(text(one) == "abc" && text(two) == "def");
    RVT_OK(fi_recvmsg(b, &msg, 0));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "ABCDEF", 7, pair.a.peer); });
    RVT_ASSERT(pair.b.next().op_context == two);
    RVT_OK(fi_trecvv(b, parts, nullptr, 2, FI_ADDR_UNSPEC, 5, 0, two));
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "ghijkl", 7, pair.a.peer, 5); });
    RVT_ASSERT(pair.b.next().op_context == two);
    RVT_OK(fi_trecvmsg(b, &tagged, 0));
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "mnopqr", 7, pair.a.peer, 5); });
    RVT_ASSERT(pair.b.next().op_context == two);
    RVT_ASSERT(text(one) == "mno" && text(two) == "pqr");
}

Test(messages, unknown_flags_and_too_many_buffers_are_refused) {
    Pair pair;
    const iovec parts[9] = {};
    const fi_msg msg{parts, nullptr, 9, pair.a.peer, nullptr, 0};
    const fi_msg one{parts, nullptr, 1, pair.a.peer, nullptr, 0};
    RVT_EQ(fi_sendmsg(pair.a.ep.get(), &one, 1ull << 61), -FI_EBADFLAGS);
    RVT_EQ(fi_sendmsg(pair.a.ep.get(), &one, FI_COMMIT_COMPLETE), -FI_EBADFLAGS);
    RVT_EQ(fi_recvmsg(pair.a.ep.get(), &one, FI_PEEK), -FI_EBADFLAGS);
    RVT_EQ(fi_sendmsg(pair.a.ep.get(), &msg, 0), -FI_EINVAL);
    RVT_EQ(fi_sendv(pair.a.ep.get(), parts, nullptr, 9, pair.a.peer, nullptr), -FI_EINVAL);
    RVT_EQ(fi_recvv(pair.a.ep.get(), parts, nullptr, 9, pair.a.peer, nullptr), -FI_EINVAL);
}

Test(messages, an_injected_message_leaves_no_completion_but_counts) {
    Pair pair;
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, nullptr));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
    pair.b.next();
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[0].get()) == 1; });
    RVT_ASSERT(pair.a.is_quiet());
    RVT_EQ(fi_cntr_read(pair.b.cntrs[1].get()), 1);
}

Test(messages, what_is_too_long_to_inject_is_refused) {
    Pair pair;
    const std::vector<char> big(pair.a.open.info->tx_attr->inject_size + 1);
    RVT_EQ(fi_inject(pair.a.ep.get(), big.data(), big.size(), pair.a.peer), -FI_EMSGSIZE);
}

Test(messages, with_selective_completion_only_those_complete_that_say_so) {
    EndOptions options;
    options.is_selective = true;
    Pair pair(options);
    char in[8] = "";
    const iovec part{in, sizeof in};
    fi_msg msg{&part, nullptr, 1, FI_ADDR_UNSPEC, in, 0};
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_recvmsg(pair.b.ep.get(), &msg, FI_COMPLETION));
    pair.post([&] { return fi_send(pair.a.ep.get(), "1", 2, nullptr, pair.a.peer, nullptr); });
    const iovec out{const_cast<char*>("2"), 2};
    msg = {&out, nullptr, 1, pair.a.peer, &pair, 0};
    pair.post([&] { return fi_sendmsg(pair.a.ep.get(), &msg, FI_COMPLETION); });
    RVT_ASSERT(pair.a.next().op_context == &pair);
    RVT_ASSERT(pair.b.next().op_context == in);
    RVT_ASSERT(text(in) == "2");
    RVT_ASSERT(pair.a.is_quiet());
    RVT_ASSERT(pair.b.is_quiet());
}

Test(messages, a_long_message_is_truncated_with_an_error) {
    Pair pair;
    char in[4] = "";
    RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 9, 0, in));
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "0123456789", 10, pair.a.peer, 9); });
    const fi_cq_err_entry error = pair.b.next_error();
    RVT_EQ(error.err, FI_ETRUNC);
    RVT_EQ(error.olen, 6);
    RVT_EQ(error.tag, 9);
    RVT_ASSERT(error.op_context == in);
}

Test(messages, the_error_of_a_long_message_has_the_data_beside_it) {
    constexpr std::uint64_t kData = 0x1122334455667788;
    for (const std::size_t bytes : {10, 3000, 200'000}) {
        Pair pair;
        const std::vector<char> out(bytes);
        char in[4] = "";
        RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 9, 0, in));
        pair.post([&] {
            return fi_tsenddata(pair.a.ep.get(), out.data(), bytes, nullptr, kData, pair.a.peer, 9,
                                nullptr);
        });
        const fi_cq_err_entry error = pair.b.next_error();
        RVT_EQ(error.err, FI_ETRUNC);
        RVT_EQ(error.data, kData);
        RVT_EQ(error.flags & FI_REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA);
        pair.a.next();
    }
}

Test(messages, a_receive_can_be_cancelled) {
    Pair pair;
    char in[4];
    RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 9, 0, in));
    RVT_OK(fi_cancel(&pair.b.ep->fid, in));
    const fi_cq_err_entry error = pair.b.next_error();
    RVT_EQ(error.err, FI_ECANCELED);
    RVT_ASSERT(error.op_context == in);
    RVT_EQ(fi_cancel(&pair.b.ep->fid, in), -FI_ENOENT);
}

Test(messages, a_directed_receive_waits_for_its_source) {
    EndOptions options;
    options.caps = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE;
    End b(options);
    End first(options);
    End second(options);
    first.peer = Pair::introduce(first, b);
    second.peer = Pair::introduce(second, b);
    const fi_addr_t from_first = Pair::introduce(b, first);
    const fi_addr_t from_second = Pair::introduce(b, second);
    char in[8] = "";
    RVT_OK(fi_trecv(b.ep.get(), in, 8, nullptr, from_second, 1, 0, in));
    const auto send = [&](End& from, const char* what) {
        while (fi_tinject(from.ep.get(), what, 2, from.peer, 1) == -FI_EAGAIN) {
            fi_cntr_read(from.cntrs[0].get());
            fi_cntr_read(b.cntrs[0].get());
        }
    };
    send(first, "1");
    send(second, "2");
    fi_cq_tagged_entry entry{};
    fi_addr_t source = 0;
    while (fi_cq_readfrom(b.cq.get(), &entry, 1, &source) == -FI_EAGAIN) {
        fi_cntr_read(first.cntrs[0].get());
        fi_cntr_read(second.cntrs[0].get());
    }
    RVT_EQ(source, from_second);
    RVT_ASSERT(text(in) == "2");
    RVT_OK(fi_trecv(b.ep.get(), in, 8, nullptr, from_first, 1, 0, in));
    b.other = &first;  // which may still wait for its connection
    b.next();
    RVT_ASSERT(text(in) == "1");
}

Test(messages, only_tagged_receives_wait_for_their_source_if_only_they_are_to) {
    EndOptions options;
    options.caps = FI_MSG | FI_TAGGED | kTaggedDirectedRecv;
    Pair pair(options);
    End third(options);
    const fi_addr_t silent = Pair::introduce(pair.b, third);
    char in[8] = "";
    char tagged_in[8] = "";
    fid_ep* const b = pair.b.ep.get();
    RVT_OK(fi_trecv(b, tagged_in, sizeof tagged_in, nullptr, silent, 1, 0, tagged_in));
    RVT_OK(fi_recv(b, in, sizeof in, nullptr, silent, in));
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "1", 2, pair.a.peer, 1); });
    pair.post([&] { return fi_inject(pair.a.ep.get(), "2", 2, pair.a.peer); });
    RVT_ASSERT(pair.b.next().op_context == in);
    RVT_ASSERT(text(in) == "2");
    RVT_ASSERT(text(tagged_in).empty());
}

Test(messages, are_received_in_order_when_a_counter_is_bound_in_between) {
    Pair pair(late_options());
    fid_ep* const b = pair.b.ep.get();
    for (const char* const what : {"1", "2"}) {
        pair.post([&] { return fi_tinject(pair.a.ep.get(), what, 2, pair.a.peer, 7); });
    }
    fill_long(pair);
    char first[8] = "";
    char second[8] = "";
    RVT_OK(fi_trecv(b, first, sizeof first, nullptr, FI_ADDR_UNSPEC, 7, 0, first));
    RVT_OK(fi_ep_bind(b, &pair.b.cntrs[1]->fid, FI_RECV));
    RVT_OK(fi_trecv(b, second, sizeof second, nullptr, FI_ADDR_UNSPEC, 7, 0, second));
    pair.b.next();
    pair.b.next();
    RVT_ASSERT(text(first) == "1");
    RVT_ASSERT(text(second) == "2");
}

/// The receive has not been compared with what waits when its peer leaves the address vector.
Test(messages, of_a_new_peer_are_not_for_who_waits_for_one_that_was_removed) {
    const EndOptions options = late_options();
    Pair pair(options);
    End removed(options);
    End added(options);
    End& b = pair.b;
    fill_long(pair);
    char never[8] = "";
    char in[8] = "";
    fi_addr_t number = Pair::introduce(b, removed);
    RVT_OK(fi_trecv(b.ep.get(), never, sizeof never, nullptr, number, 7, 0, never));
    RVT_OK(fi_av_remove(b.av.get(), &number, 1, 0));
    number = Pair::introduce(b, added);
    RVT_OK(fi_tinject(b.ep.get(), "-", 2, number, 7));
    b.other = &added;
    added.peer = Pair::introduce(added, b);
    RVT_OK(fi_tinject(added.ep.get(), "1", 2, added.peer, 7));
    RVT_OK(fi_trecv(b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 7, 0, in));
    RVT_ASSERT(b.next().op_context == in);
    RVT_ASSERT(text(in) == "1");
}

Test(messages, a_peek_finds_claims_and_discards) {
    Pair pair;
    char in[8] = "";
    const iovec part{in, sizeof in};
    fid_ep* const b = pair.b.ep.get();
    fi_context2 context{};
    fi_msg_tagged msg{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 3, 0, &context, 0};
    RVT_OK(fi_trecvmsg(b, &msg, FI_PEEK));
    RVT_EQ(pair.b.next_error().err, FI_ENOMSG);
    for (int i = 0; i < 2; ++i) {
        pair.post([&] { return fi_tinject(pair.a.ep.get(), "abcd", 5, pair.a.peer, 3); });
    }
    const auto find = [&](std::uint64_t flags) {
        for (;;) {
            RVT_OK(fi_trecvmsg(b, &msg, flags));
            fi_cq_tagged_entry entry{};
            ssize_t got = 0;
            do {
                got = fi_cq_read(pair.b.cq.get(), &entry, 1);
            } while (got == -FI_EAGAIN);
            if (got == 1) {
                return entry;
            }
            fi_cq_err_entry error{};
            RVT_EQ(fi_cq_readerr(pair.b.cq.get(), &error, 0), 1);
            RVT_EQ(error.err, FI_ENOMSG);
            pair.drive();
        }
    };
    RVT_EQ(find(FI_PEEK | FI_CLAIM).len, 5);
    msg = {&part, nullptr, 1, FI_ADDR_UNSPEC, 3, 0, &context, 0};
    RVT_OK(fi_trecvmsg(b, &msg, FI_CLAIM));
    RVT_EQ(pair.b.next().len, 5);
    RVT_ASSERT(text(in) == "abcd");
    find(FI_PEEK | FI_DISCARD);
    RVT_OK(fi_trecvmsg(b, &msg, FI_PEEK));
    RVT_EQ(pair.b.next_error().err, FI_ENOMSG);
}

Test(messages, one_buffer_takes_many_messages) {
    Pair pair;
    std::size_t least = 16;
    RVT_OK(
        fi_setopt(&pair.b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    char in[64];
    const iovec part{in, sizeof in};
    const fi_msg msg{&part, nullptr, 1, FI_ADDR_UNSPEC, in, 0};
    RVT_OK(fi_recvmsg(pair.b.ep.get(), &msg, FI_MULTI_RECV));
    std::uint64_t flags = 0;
    for (int i = 0; i < 5; ++i) {
        pair.post([&] { return fi_inject(pair.a.ep.get(), "0123456789", 10, pair.a.peer); });
        const fi_cq_tagged_entry entry = pair.b.next();
        RVT_EQ(static_cast<char*>(entry.buf) - in, i * 10);
        flags = entry.flags;
        RVT_ASSERT(entry.op_context == in);
    }
    RVT_EQ(flags & FI_MULTI_RECV, FI_MULTI_RECV);
}

Test(messages, a_cancelled_buffer_is_released_by_the_last_message_in_it) {
    Pair pair;
    constexpr std::size_t kBytes = 64 << 20;
    const std::vector<char> out(kBytes, 'x');
    std::vector<char> in(kBytes + 4096, '-');
    const iovec part{in.data(), in.size()};
    const fi_msg msg{&part, nullptr, 1, FI_ADDR_UNSPEC, in.data(), 0};
    std::size_t least = 1;
    RVT_OK(
        fi_setopt(&pair.b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    RVT_OK(fi_recvmsg(pair.b.ep.get(), &msg, FI_MULTI_RECV));
    pair.post([&] {
        return fi_send(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, nullptr);
    });
    pair.until([&] { return in.front() == 'x'; });
    RVT_EQ(in[kBytes - 1], '-');
    RVT_OK(fi_cancel(&pair.b.ep->fid, in.data()));
    const fi_cq_err_entry cancelled = pair.b.next_error();
    RVT_EQ(cancelled.err, FI_ECANCELED);
    RVT_EQ(cancelled.flags & FI_MULTI_RECV, 0);
    RVT_EQ(pair.b.next().flags & FI_MULTI_RECV, FI_MULTI_RECV);
    RVT_EQ(in[kBytes - 1], 'x');
}

Test(messages, multi_recv_by_default_is_for_untagged_receives) {
    EndOptions options;
    options.caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV;
    options.rx_op_flags = FI_MULTI_RECV;
    Pair pair(options);
    char in[8] = "";
    iovec halves[2] = {{in, 4}, {in + 4, 4}};
    RVT_OK(fi_trecv(pair.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
    RVT_OK(fi_trecvv(pair.b.ep.get(), halves, nullptr, 2, FI_ADDR_UNSPEC, 2, 0, nullptr));
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "first", 6, pair.a.peer, 1); });
    RVT_EQ(pair.b.next().flags, FI_RECV | FI_TAGGED);
    RVT_ASSERT(strcmp(in, "first") == 0);
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "second", 7, pair.a.peer, 2); });
    RVT_EQ(pair.b.next().flags, FI_RECV | FI_TAGGED);
    RVT_ASSERT(strcmp(in, "second") == 0);
}

Test(messages, a_receive_may_ask_for_transmit_complete) {
    EndOptions options;
    options.caps = FI_MSG | FI_TAGGED;
    options.rx_op_flags = FI_TRANSMIT_COMPLETE;
    Pair pair(options);
    char in[8] = "";
    iovec room{in, sizeof in};
    const fi_msg receive{&room, nullptr, 1, FI_ADDR_UNSPEC, nullptr, 0};
    const fi_msg_tagged tagged{&room, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, nullptr, 0};
    RVT_OK(fi_recvmsg(pair.b.ep.get(), &receive, FI_TRANSMIT_COMPLETE));
    RVT_OK(fi_trecvmsg(pair.b.ep.get(), &tagged, FI_TRANSMIT_COMPLETE));
    pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
    RVT_EQ(pair.b.next().len, 4);
    pair.post([&] { return fi_tinject(pair.a.ep.get(), "abcde", 6, pair.a.peer, 1); });
    RVT_EQ(pair.b.next().len, 6);
}

Test(messages, more_than_fits_into_a_size_is_refused) {
    Pair pair;
    char out[8] = "";
    iovec many[2] = {{out, SIZE_MAX}, {out, 2}};
    const std::size_t most = pair.a.open.info->ep_attr->max_msg_size;
    RVT_EQ(fi_send(pair.a.ep.get(), out, most + 1, nullptr, pair.a.peer, nullptr), -FI_EMSGSIZE);
    RVT_EQ(fi_sendv(pair.a.ep.get(), many, nullptr, 2, pair.a.peer, nullptr), -FI_EMSGSIZE);
    RVT_EQ(fi_writev(pair.a.ep.get(), many, nullptr, 2, pair.a.peer, 0, 1, nullptr), -FI_EMSGSIZE);
    RVT_EQ(fi_readv(pair.a.ep.get(), many, nullptr, 2, pair.a.peer, 0, 1, nullptr), -FI_EMSGSIZE);
    const std::size_t wraps = (std::size_t{1} << 61) + 1;  // of 8 bytes each
    RVT_EQ(fi_atomic(pair.a.ep.get(), out, wraps, nullptr, pair.a.peer, 0, 1, FI_UINT64, FI_SUM,
                     nullptr),
           -FI_EMSGSIZE);
    RVT_EQ(fi_fetch_atomic(pair.a.ep.get(), out, wraps, nullptr, out, nullptr, pair.a.peer, 0, 1,
                           FI_UINT64, FI_SUM, nullptr),
           -FI_EMSGSIZE);
}

Test(messages, delivery_complete_means_delivered) {
    EndOptions options;
    options.tx_op_flags = FI_DELIVERY_COMPLETE;
    Pair pair(options);
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    pair.post([&] { return fi_send(pair.a.ep.get(), "abc", 4, nullptr, pair.a.peer, &pair); });
    pair.until([&] { return fi_cntr_read(pair.a.cntrs[0].get()) == 1; });
    RVT_ASSERT(text(in) == "abc");
}

/// A message of either kind is acknowledged once, and when all of it has left.
Test(messages, of_each_completion_level_complete_once_at_any_size, .timeout = 60) {
    for (const std::uint64_t level :
         {FI_MATCH_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE}) {
        for (const std::size_t size : {0u, 4u, 3000u, 20000u, 32768u, 70000u, 300000u}) {
            EndOptions options;
            options.tx_op_flags = level;
            Pair pair(options);
            const std::vector<char> out(size, 'x');
            std::vector<char> in(size + 1);
            for (std::uint64_t i = 1; i <= 3; ++i) {
                RVT_OK(fi_recv(pair.b.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC,
                               nullptr));
                pair.post([&] {
                    return fi_send(pair.a.ep.get(), out.data(), size, nullptr, pair.a.peer,
                                   nullptr);
                });
                pair.until([&] {
                    return fi_cntr_read(pair.a.cntrs[0].get()) == i ||
                           fi_cntr_readerr(pair.a.cntrs[0].get()) != 0;
                });
                RVT_EQ(fi_cntr_readerr(pair.a.cntrs[0].get()), 0u);
                RVT_ASSERT(std::equal(out.begin(), out.end(), in.begin()));
            }
        }
    }
}

/// A message that is thrown away while the rest of it is on its way is acknowledged behind that.
Test(messages, that_are_discarded_while_they_arrive_complete_once, .timeout = 60) {
    EndOptions options;
    options.caps = FI_TAGGED;
    options.tx_op_flags = FI_DELIVERY_COMPLETE;
    Pair pair(options);
    const std::vector<char> out(30000, 'x');
    pair.post([&] {
        return fi_tsend(pair.a.ep.get(), out.data(), out.size(), nullptr, pair.a.peer, 1, nullptr);
    });
    while (!has_come(pair.b, 1, FI_PEEK | FI_DISCARD)) {
        fi_cntr_read(pair.a.cntrs[0].get());  // until the first part has arrived
    }
    pair.until([&] {
        return fi_cntr_read(pair.a.cntrs[0].get()) == 1 ||
               fi_cntr_readerr(pair.a.cntrs[0].get()) != 0;
    });
    RVT_EQ(fi_cntr_readerr(pair.a.cntrs[0].get()), 0u);
}

/// The next one waits for the acknowledgement of a message of its own, which has the same name.
Test(messages, of_a_lost_peer_are_not_acknowledged_to_the_next_at_its_address, .timeout = 60) {
    be_alone();
    EndOptions options;
    options.caps = FI_TAGGED;
    options.threading = FI_THREAD_DOMAIN;
    options.data_progress = FI_PROGRESS_MANUAL;
    options.tx_op_flags = FI_DELIVERY_COMPLETE;
    End b(options);
    std::optional<End> a(std::in_place, options);
    const auto send = [&](std::uint64_t tag) {
        a->peer = Pair::introduce(*a, b);
        RVT_OK(fi_tsend(a->ep.get(), "abc", 4, nullptr, a->peer, tag, nullptr));
        while (!has_come(b, tag)) {
            fi_cntr_read(a->cntrs[0].get());
        }
    };
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&a->ep->fid, &name, &bytes));
    send(1);
    const std::string node = inet_ntoa(name.sin_addr);
    const std::string service = std::to_string(ntohs(name.sin_port));
    options.node = node.c_str();
    options.service = service.c_str();
    a.reset();
    a.emplace(options);
    send(2);
    b.other = &*a;
    char in[8] = "";
    RVT_OK(fi_trecv(b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
    b.next();
    RVT_EQ(fi_cntr_read(a->cntrs[0].get()) + fi_cntr_readerr(a->cntrs[0].get()), 0);
    RVT_OK(fi_trecv(b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 2, 0, nullptr));
    b.next();
    a->next();
}

/// The application may compute now, or wait for another endpoint: what it has sent to a new peer
/// leaves when that is connected.
Test(messages, to_a_new_peer_leave_without_another_call, .timeout = 30) {
    for (const fi_threading threading : {FI_THREAD_SAFE, FI_THREAD_DOMAIN}) {
        EndOptions options;
        options.threading = threading;
        options.data_progress = FI_PROGRESS_MANUAL;
        Pair pair(options);
        pair.b.other = nullptr;  // a is not driven
        char in[8] = "";
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        RVT_OK(fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer));
        RVT_ASSERT(pair.b.next().op_context == in);
        RVT_ASSERT(text(in) == "abc");
    }
}

/// The same to one that has connected itself, of which the sender has not read yet.
Test(messages, to_a_peer_that_came_unnoticed_leave_without_another_call, .timeout = 30) {
    EndOptions options;
    options.data_progress = FI_PROGRESS_MANUAL;
    Pair pair(options);
    pair.a.other = nullptr;
    pair.b.other = nullptr;
    RVT_OK(fi_inject(pair.b.ep.get(), "abc", 4, pair.b.peer));
    while (fi_cntr_read(pair.b.cntrs[0].get()) == 0) {
    }
    // By now the control thread would have sent what had waited.
    const auto later = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < later) {
        RVT_ASSERT(pair.b.is_quiet());
    }
    char in[8] = "";
    RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
    RVT_OK(fi_inject(pair.a.ep.get(), "def", 4, pair.a.peer));
    RVT_ASSERT(pair.b.next().op_context == in);
    RVT_ASSERT(text(in) == "def");
}

Test(messages, large_messages_arrive_whole) {
    Pair pair;
    for (const std::size_t size : {1u << 12, 1u << 16, 1u << 20, 5u << 20}) {
        std::vector<unsigned char> out(size);
        std::vector<unsigned char> in(size);
        for (std::size_t i = 0; i < size; ++i) {
            out[i] = static_cast<unsigned char>(i * 7 + (i >> 8));
        }
        RVT_OK(fi_trecv(pair.b.ep.get(), in.data(), size, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr));
        pair.post([&] {
            return fi_tsend(pair.a.ep.get(), out.data(), size, nullptr, pair.a.peer, 1, nullptr);
        });
        pair.until([&] {
            return fi_cntr_read(pair.b.cntrs[1].get()) != 0 &&
                   fi_cntr_read(pair.a.cntrs[0].get()) != 0;
        });
        RVT_OK(fi_cntr_set(pair.b.cntrs[1].get(), 0));
        RVT_OK(fi_cntr_set(pair.a.cntrs[0].get(), 0));
        cr_assert(in == out, "%zu bytes", size);
        RVT_EQ(pair.b.next().len, size);
        pair.a.next();
    }
}

Test(messages, sending_to_nobody_in_the_vector_is_refused) {
    Pair pair;
    RVT_EQ(fi_inject(pair.a.ep.get(), "a", 1, 17), -FI_EINVAL);
}

Test(messages, a_message_to_an_address_nobody_listens_on_ends_in_an_error, .timeout = 60) {
    setenv("FI_RVT_REFUSED_TIMEOUT_MS", "300", 1);
    Pair pair({}, {.is_enabled = false});
    RVT_OK(fi_send(pair.a.ep.get(), "a", 1, nullptr, pair.a.peer, &pair));
    const fi_cq_err_entry error = pair.a.next_error();
    cr_assert(error.err == FI_EHOSTUNREACH || error.err == FI_ECONNREFUSED, "err %d", error.err);
    RVT_ASSERT(error.op_context == &pair);
}
