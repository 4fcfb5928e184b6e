// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What goes through a connection: messages, memory, counters, shared receives, sleeping.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/epoll_sets.h"
#include "ofi/msg_pair.h"
#include "util/unique_fd.h"

using namespace rvt::test;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::uint64_t kNoKey = 0xdead;
constexpr int kMany = 64;

/// What `call` answers when there is room, or after a long time.
template <class Call>
ssize_t at_last(Call call) {
    const auto end = std::chrono::steady_clock::now() + kMsgPatience;
    ssize_t result = call();
    while (result == -FI_EAGAIN && std::chrono::steady_clock::now() < end) {
        result = call();
    }
    return result;
}

}  // namespace

RVT_MSG_TEST(msg, a_message_arrives_and_both_sides_complete) {
    const MsgPair pair;
    std::array<char, 32> to{};
    int contexts[2] = {};
    RVT_OK(fi_recv(pair.server.ep.get(), to.data(), to.size(), nullptr, 0, &contexts[0]));
    RVT_OK(fi_send(pair.client.end.ep.get(), "hello", 6, nullptr, 0, &contexts[1]));
    const fi_cq_data_entry received = pair.server.next();
    RVT_ASSERT(received.op_context == &contexts[0]);
    RVT_EQ(received.flags, FI_MSG | FI_RECV);
    RVT_EQ(received.len, 6);
    cr_assert(eq(str, to.data(), "hello"));
    const fi_cq_data_entry sent = pair.client.end.next();
    RVT_ASSERT(sent.op_context == &contexts[1]);
    RVT_EQ(sent.flags, FI_MSG | FI_SEND);
}

RVT_MSG_TEST(msg, long_messages_in_pieces_keep_their_order_and_bytes) {
    const MsgPair pair;
    constexpr std::size_t kBytes = 300'000;
    std::vector<std::uint32_t> from(kBytes / 4);
    std::iota(from.begin(), from.end(), 1);
    std::vector<std::uint32_t> to(kBytes / 4);
    const iovec parts[] = {{from.data(), 100'000}, {from.data() + 25'000, kBytes - 100'000}};
    for (int round = 0; round < 3; ++round) {
        std::fill(to.begin(), to.end(), 0);
        RVT_OK(fi_recv(pair.client.end.ep.get(), to.data(), kBytes, nullptr, 0, nullptr));
        RVT_OK(fi_sendv(pair.server.ep.get(), parts, nullptr, 2, 0, nullptr));
        std::thread peer([&] { pair.server.next(); });
        RVT_EQ(pair.client.end.next().len, kBytes);
        peer.join();
        RVT_ASSERT(from == to);
    }
}

RVT_MSG_TEST(msg, data_and_injected_bytes_arrive) {
    const MsgPair pair;
    std::array<char, 8> to{};
    for (int i = 0; i < 2; ++i) {
        RVT_OK(fi_recv(pair.server.ep.get(), to.data(), to.size(), nullptr, 0, nullptr));
    }
    char from[] = "abc";
    RVT_OK(fi_inject(pair.client.end.ep.get(), from, 4, 0));
    from[0] = 'x';
    const fi_cq_data_entry first = pair.server.next();
    RVT_EQ(first.flags & FI_REMOTE_CQ_DATA, 0);
    cr_assert(eq(str, to.data(), "abc"));
    RVT_OK(fi_injectdata(pair.client.end.ep.get(), from, 4, 0xfedcba98, 0));
    const fi_cq_data_entry second = pair.server.next();
    RVT_EQ(second.flags, FI_MSG | FI_RECV | FI_REMOTE_CQ_DATA);
    RVT_EQ(second.data, 0xfedcba98);
    fi_cq_data_entry none{};
    RVT_EQ(fi_cq_read(pair.client.end.cq.get(), &none, 1), -FI_EAGAIN);
    const std::vector<char> large(pair.client.info->tx_attr->inject_size + 1);
    RVT_EQ(fi_inject(pair.client.end.ep.get(), large.data(), large.size(), 0), -FI_EMSGSIZE);
}

RVT_MSG_TEST(msg, a_selective_queue_shows_what_asks_for_it) {
    const MsgPair pair({.is_selective = true});
    std::array<char, 8> to{};
    const iovec into{to.data(), to.size()};
    fi_msg receive{};
    receive.msg_iov = &into;
    receive.iov_count = 1;
    RVT_OK(fi_recvmsg(pair.server.ep.get(), &receive, 0));
    RVT_OK(fi_recvmsg(pair.server.ep.get(), &receive, FI_COMPLETION));
    const iovec from{to.data(), 3};
    fi_msg send{};
    send.msg_iov = &from;
    send.iov_count = 1;
    int context = 0;
    send.context = &context;
    RVT_OK(fi_send(pair.client.end.ep.get(), "1", 1, nullptr, 0, nullptr));
    RVT_OK(fi_sendmsg(pair.client.end.ep.get(), &send, FI_COMPLETION | FI_DELIVERY_COMPLETE));
    RVT_EQ(pair.server.next().len, 3);
    RVT_ASSERT(pair.client.end.next().op_context == &context);
}

RVT_MSG_TEST(msg, receives_posted_before_the_connection_serve_it) {
    const MsgListener listener;
    MsgClient client;
    std::array<char, 8> to{};
    RVT_OK(fi_enable(client.end.ep.get()));
    RVT_OK(fi_recv(client.end.ep.get(), to.data(), to.size(), nullptr, 0, nullptr));
    RVT_EQ(fi_send(client.end.ep.get(), "x", 1, nullptr, 0, nullptr), -FI_ENOTCONN);
    client.connect(listener);
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    const MsgEnd server(listener.fabric.get(), listener.eq.get(), request.info.get());
    RVT_OK(fi_accept(server.ep.get(), nullptr, 0));
    expect_event(listener.eq.get(), FI_CONNECTED);
    RVT_OK(fi_send(server.ep.get(), "early", 6, nullptr, 0, nullptr));
    RVT_EQ(client.end.next().len, 6);
    cr_assert(eq(str, to.data(), "early"));
}

RVT_MSG_TEST(msg, memory_is_written_and_read) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA});
    std::array<std::uint64_t, 4> memory{1, 2, 3, 4};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), sizeof memory, kRemote);
    const std::uint64_t key = fi_mr_key(mr.get());
    std::array<std::uint64_t, 4> local{};
    fid_ep* const ep = pair.client.end.ep.get();
    RVT_OK(fi_read(ep, local.data(), sizeof local, nullptr, 0, address_of(memory), key, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_RMA | FI_READ);
    RVT_ASSERT(local == memory);
    local = {5, 6, 7, 8};
    RVT_OK(fi_write(ep, local.data(), 16, nullptr, 0, address_of(memory[2]), key, nullptr));
    RVT_EQ(pair.client.end.next().flags, FI_RMA | FI_WRITE);
    constexpr std::array<std::uint64_t, 4> kWritten{1, 2, 5, 6};
    RVT_ASSERT(memory == kWritten);
}

RVT_MSG_TEST(msg, addresses_count_from_zero_without_virtual_ones) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA, .mr_mode = FI_MR_PROV_KEY});
    std::array<char, 16> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), kRemote);
    RVT_OK(fi_inject_write(pair.client.end.ep.get(), "abc", 4, 0, 8, fi_mr_key(mr.get())));
    RVT_OK(fi_send(pair.client.end.ep.get(), "x", 1, nullptr, 0, nullptr));
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    RVT_EQ(pair.server.next().len, 1);  // sent behind the write
    cr_assert(eq(str, memory.data() + 8, "abc"));
}

RVT_MSG_TEST(msg, data_beside_a_write_takes_a_receive) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA});
    std::array<char, 16> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), kRemote);
    char unused = 0;
    int context = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &unused, 1, nullptr, 0, &context));
    RVT_OK(fi_writedata(pair.client.end.ep.get(), "abc", 4, nullptr, 77, 0, address_of(memory),
                        fi_mr_key(mr.get()), nullptr));
    const fi_cq_data_entry got = pair.server.next();
    RVT_EQ(got.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    RVT_EQ(got.data, 77);
    RVT_ASSERT(got.op_context == &context);
    cr_assert(eq(str, memory.data(), "abc"));
}

RVT_MSG_TEST(msg, who_cannot_spare_receives_writes_without_data) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA, .mode = 0});
    RVT_EQ(fi_writedata(pair.client.end.ep.get(), "a", 1, nullptr, 1, 0, 0, 0, nullptr),
           -FI_EOPNOTSUPP);
}

RVT_MSG_TEST(msg, a_wrong_key_is_refused_and_ends_the_connection) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA});
    std::array<char, 16> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), FI_REMOTE_READ);
    RVT_OK(fi_write(pair.client.end.ep.get(), "abc", 4, nullptr, 0, address_of(memory),
                    fi_mr_key(mr.get()), nullptr));
    RVT_EQ(pair.client.end.next_error().err, FI_EACCES);
    expect_event(pair.client.eq.get(), FI_SHUTDOWN);
    expect_event(pair.listener.eq.get(), FI_SHUTDOWN);
    RVT_EQ(memory[0], 0);
}

RVT_MSG_TEST(msg, a_failed_pair_is_told_though_no_queue_is_read) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA});
    std::array<char, 16> memory{};
    RVT_OK(fi_write(pair.client.end.ep.get(), "abc", 4, nullptr, 0, address_of(memory), kNoKey,
                    nullptr));
    expect_event(pair.client.eq.get(), FI_SHUTDOWN);
    expect_event(pair.listener.eq.get(), FI_SHUTDOWN);
    RVT_EQ(pair.client.end.next_error().err, FI_EACCES);
}

RVT_MSG_TEST(msg, counters_count_each_side) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA, .has_counters = true});
    std::array<char, 16> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), kRemote);
    char to = 0;
    fid_ep* const ep = pair.client.end.ep.get();
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    RVT_OK(fi_write(ep, "a", 1, nullptr, 0, address_of(memory), fi_mr_key(mr.get()), nullptr));
    RVT_OK(fi_inject(ep, "b", 1, 0));
    RVT_OK(fi_cntr_wait(pair.server.cntrs[1].get(), 1, kMsgPatienceMs));
    RVT_OK(fi_cntr_wait(pair.client.end.cntrs[0].get(), 1, kMsgPatienceMs));
    RVT_OK(fi_cntr_wait(pair.client.end.cntrs[3].get(), 1, kMsgPatienceMs));
    RVT_EQ(fi_cntr_read(pair.client.end.cntrs[2].get()), 0);
    RVT_EQ(memory[0], 'a');
}

RVT_MSG_TEST(msg, a_message_that_is_too_long_is_truncated_and_ends_the_connection) {
    const MsgPair pair;
    std::array<char, 4> to{};
    RVT_OK(fi_recv(pair.server.ep.get(), to.data(), to.size(), nullptr, 0, nullptr));
    RVT_OK(fi_send(pair.client.end.ep.get(), "too long", 9, nullptr, 0, nullptr));
    RVT_EQ(pair.server.next_error().err, FI_ETRUNC);
    RVT_EQ(pair.client.end.next_error().err, FI_EINVAL);
    expect_event(pair.listener.eq.get(), FI_SHUTDOWN);
}

RVT_MSG_TEST(msg, a_full_queue_says_so_and_recovers) {
    const MsgPair pair({.tx_size = 4, .rx_size = 8});
    std::array<char, 8> to{};
    fid_ep* const ep = pair.client.end.ep.get();
    int sent = 0;
    while (fi_send(ep, "x", 1, nullptr, 0, nullptr) == 0) {
        RVT_ASSERT(++sent <= 4);
    }
    RVT_EQ(sent, 4);
    RVT_EQ(fi_send(ep, "x", 1, nullptr, 0, nullptr), -FI_EAGAIN);
    int posted = 0;
    while (fi_recv(pair.server.ep.get(), to.data(), 1, nullptr, 0, nullptr) == 0) {
        RVT_ASSERT(++posted <= 8 + sent);
    }
    RVT_ASSERT(posted >= 8);  // and one more for each that is taken meanwhile
    for (int i = 0; i < sent; ++i) {
        RVT_EQ(pair.server.next().len, 1);
        pair.client.end.next();
    }
    RVT_OK(fi_send(ep, "x", 1, nullptr, 0, nullptr));
    RVT_EQ(pair.server.next().len, 1);
}

RVT_MSG_TEST(msg, injects_go_on_though_nobody_reads) {
    const MsgPair pair({.tx_size = 4, .data_progress = FI_PROGRESS_AUTO});
    char to = 0;
    for (int i = 0; i < kMany; ++i) {
        RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    }
    std::thread server([&] {
        for (int i = 0; i < kMany; ++i) {
            pair.server.next();
        }
    });
    for (int i = 0; i < kMany; ++i) {
        RVT_OK(at_last([&] { return fi_inject(pair.client.end.ep.get(), "x", 1, 0); }));
    }
    server.join();
}

void receive_silently(bool has_shared_receives) {
    char to = 0;  // until the endpoint is closed: the host may still fill it
    const MsgPair pair({.is_selective = true,
                        .has_shared_receives = has_shared_receives,
                        .rx_size = 4,
                        .data_progress = FI_PROGRESS_AUTO});
    fid_ep* const receives = has_shared_receives ? pair.server.srx.get() : pair.server.ep.get();
    std::thread client([&] {
        for (int i = 0; i < kMany; ++i) {
            RVT_OK(at_last([&] {
                fi_cq_data_entry entry{};
                fi_cq_read(pair.client.end.cq.get(), &entry, 1);
                return fi_inject(pair.client.end.ep.get(), "x", 1, 0);
            }));
        }
    });
    for (int i = 0; i < kMany; ++i) {
        RVT_OK(at_last([&] { return fi_recv(receives, &to, 1, nullptr, 0, nullptr); }));
    }
    client.join();
}
RVT_MSG_TEST(msg, silent_receives_go_on_though_nobody_reads) {
    receive_silently(false);
}
RVT_MSG_TEST(msg, silent_shared_receives_go_on_though_nobody_reads) {
    receive_silently(true);
}

RVT_MSG_TEST(msg, a_sleeper_wakes_up_with_a_message) {
    const MsgPair pair({.wait_obj = FI_WAIT_UNSPEC});
    for (int round = 0; round < 20; ++round) {
        char to = 0;
        RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
        fi_cq_data_entry entry{};
        std::thread sleeper([&] {
            RVT_EQ(fi_cq_sread(pair.server.cq.get(), &entry, 1, nullptr, kMsgPatienceMs), 1);
        });
        RVT_OK(fi_send(pair.client.end.ep.get(), "y", 1, nullptr, 0, nullptr));
        sleeper.join();
        RVT_EQ(to, 'y');
        fi_cq_data_entry sent{};
        RVT_EQ(fi_cq_sread(pair.client.end.cq.get(), &sent, 1, nullptr, kMsgPatienceMs), 1);
    }
}

RVT_MSG_TEST(msg, a_descriptor_becomes_readable_with_a_message) {
    const MsgPair pair({.wait_obj = FI_WAIT_FD});
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
    RVT_OK(fi_control(&pair.server.cq->fid, FI_GETWAIT, &readable.fd));
    fid* waits[] = {&pair.server.cq->fid};
    // What belongs to the connection may still arrive: then there is something to read first.
    int ready = 0;
    while ((ready = fi_trywait(pair.listener.fabric.get(), waits, 1)) == -FI_EAGAIN) {
        RVT_EQ(fi_cq_read(pair.server.cq.get(), nullptr, 0), -FI_EAGAIN);
    }
    RVT_OK(ready);
    RVT_OK(fi_send(pair.client.end.ep.get(), "z", 1, nullptr, 0, nullptr));
    RVT_EQ(poll(&readable, 1, kMsgPatienceMs), 1);
    RVT_EQ(pair.server.next().len, 1);
}

// What is in a set costs more with each packet: at most the control thread has them in one.
Test(msg_wire, sockets_are_in_no_set_of_sleepers_while_nobody_sleeps) {
    enable_first_by_wire();
    const MsgPair pair({.wait_obj = FI_WAIT_FD});
    RVT_ASSERT(places_in_sets(is_udp_socket) <= open_descriptors(is_udp_socket));
}

/// Whatever the state of the connection, busy or at rest, in which the application falls asleep.
RVT_MSG_TEST(msg, a_descriptor_wakes_after_any_pause) {
    const MsgPair pair({.wait_obj = FI_WAIT_FD});
    pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
    RVT_OK(fi_control(&pair.server.cq->fid, FI_GETWAIT, &readable.fd));
    fid* waits[] = {&pair.server.cq->fid};
    for (int round = 0; round < 1000; ++round) {
        char to = 0;
        RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
        const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(round * 100);
        while (std::chrono::steady_clock::now() < end) {
        }
        while (fi_trywait(pair.listener.fabric.get(), waits, 1) == -FI_EAGAIN) {
        }
        RVT_OK(fi_send(pair.client.end.ep.get(), "z", 1, nullptr, 0, nullptr));
        RVT_EQ(poll(&readable, 1, kMsgPatienceMs), 1);
        RVT_EQ(pair.server.next().len, 1);
        pair.client.end.next();
    }
}

RVT_MSG_TEST(msg, an_application_that_does_not_call_answers_its_peer) {
    const MsgPair pair({.caps = FI_MSG | FI_RMA});
    std::array<char, 16> memory{};
    const Owned<fid_mr> mr = pair.server.reg(memory.data(), memory.size(), kRemote);
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    for (int round = 0; round < 3; ++round) {
        RVT_OK(fi_write(pair.client.end.ep.get(), "abc", 4, nullptr, 0, address_of(memory),
                        fi_mr_key(mr.get()), nullptr));
        pair.client.end.next();  // the server has not been called
    }
    RVT_OK(fi_send(pair.client.end.ep.get(), "w", 1, nullptr, 0, nullptr));
    pair.client.end.next();
    RVT_EQ(to, 'w');
}

RVT_MSG_TEST(msg, endpoints_share_a_context_of_receives) {
    const MsgOptions options{.has_shared_receives = true};
    MsgPair pair(options);
    MsgClient other(options);
    other.connect(pair.listener);
    const CmEvent request = expect_event(pair.listener.eq.get(), FI_CONNREQ);
    const Owned<fid_ep> second = pair.server.add(request.info.get(), options);
    RVT_OK(fi_accept(second.get(), nullptr, 0));
    expect_event(other.eq.get(), FI_CONNECTED);
    expect_event(pair.listener.eq.get(), FI_CONNECTED);
    std::array<char, 2> to{};
    RVT_OK(fi_recv(pair.server.srx.get(), &to[0], 1, nullptr, 0, &to[0]));
    RVT_OK(fi_recv(pair.server.srx.get(), &to[1], 1, nullptr, 0, &to[1]));
    RVT_EQ(fi_recv(second.get(), to.data(), 1, nullptr, 0, nullptr), -FI_ENOSYS);
    RVT_OK(fi_send(pair.client.end.ep.get(), "1", 1, nullptr, 0, nullptr));
    RVT_ASSERT(pair.server.next().op_context == &to[0]);
    RVT_OK(fi_send(other.end.ep.get(), "2", 1, nullptr, 0, nullptr));
    RVT_ASSERT(pair.server.next().op_context == &to[1]);
    RVT_ASSERT(std::string_view(to.data(), to.size()) == "12");
    RVT_EQ(fi_close(&pair.server.srx->fid), -FI_EBUSY);
}

RVT_MSG_TEST(msg, of_shared_receives_those_complete_that_say_so) {
    MsgPair pair({.is_selective = true, .has_shared_receives = true, .has_counters = true});
    std::array<char, 2> to{};
    RVT_OK(fi_recv(pair.server.srx.get(), &to[0], 1, nullptr, 0, &to[0]));
    const iovec room{&to[1], 1};
    const fi_msg loud{&room, nullptr, 1, 0, &to[1], 0};
    RVT_OK(fi_recvmsg(pair.server.srx.get(), &loud, FI_COMPLETION));
    RVT_OK(fi_send(pair.client.end.ep.get(), "1", 1, nullptr, 0, nullptr));
    RVT_OK(fi_send(pair.client.end.ep.get(), "2", 1, nullptr, 0, nullptr));
    RVT_ASSERT(pair.server.next().op_context == &to[1]);
    RVT_ASSERT(std::string_view(to.data(), to.size()) == "12");
    RVT_EQ(fi_cntr_read(pair.server.cntrs[1].get()), 2);
}

Test(msg, a_shared_context_is_refused_flags_that_it_does_not_have) {
    constexpr std::uint64_t kPeer = 1ull << 43;
    const Opened open(ask_msg({.has_shared_receives = true}).info);
    fi_rx_attr attr = *open.info->rx_attr;
    for (const std::uint64_t flags : {std::uint64_t{FI_MULTI_RECV}, kPeer}) {
        attr.op_flags = flags;
        fid_ep* srx = nullptr;
        RVT_EQ(fi_srx_context(open.domain.get(), &attr, &srx, nullptr), -FI_EBADFLAGS);
    }
    attr.op_flags = FI_COMPLETION;
    const auto srx = opened<fid_ep>(
        [&](fid_ep** made) { return fi_srx_context(open.domain.get(), &attr, made, nullptr); });
}

Test(msg, an_endpoint_is_refused_flags_that_it_does_not_have) {
    const Opened open(ask_msg().info);
    const auto refusal_of = [&] {
        fid_ep* ep = nullptr;
        return fi_endpoint(open.domain.get(), open.info.get(), &ep, nullptr);
    };
    open.info->rx_attr->op_flags = FI_MULTI_RECV;
    RVT_EQ(refusal_of(), -FI_EBADFLAGS);
    open.info->rx_attr->op_flags = FI_COMPLETION;
    open.info->tx_attr->op_flags = FI_MATCH_COMPLETE;
    RVT_EQ(refusal_of(), -FI_EBADFLAGS);
    open.info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
}

Test(msg, options_that_are_not_known_are_told_from_those_that_cannot_be_set) {
    const MsgListener listener;
    const MsgClient client({.has_shared_receives = true});
    for (fid* const object : {&listener.pep->fid, &client.end.ep->fid, &client.end.srx->fid}) {
        std::size_t size = 64;
        const auto set = [&](int level, int option) {
            auto* const ep = reinterpret_cast<fid_ep*>(object);
            return ep->ops->setopt(object, level, option, &size, sizeof size);
        };
        RVT_EQ(set(FI_OPT_ENDPOINT, 9999), -FI_ENOPROTOOPT);
        RVT_EQ(set(5, FI_OPT_RX_SIZE), -FI_ENOPROTOOPT);
        RVT_EQ(set(FI_OPT_ENDPOINT, FI_OPT_RX_SIZE), -FI_EOPNOTSUPP);
    }
}

namespace {

/// A buffer that takes no memory but where it is written.
struct Arena {
    static constexpr std::size_t kBytes = std::size_t{3} << 30;
    char* const memory =
        static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    Arena() { RVT_ASSERT(memory != MAP_FAILED); }
    ~Arena() { munmap(memory, kBytes); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
};

void receive_into_an_arena(bool has_shared_receives) {
    const Arena arena;
    const MsgPair pair({.has_shared_receives = has_shared_receives});
    fid_ep* const receives = has_shared_receives ? pair.server.srx.get() : pair.server.ep.get();
    RVT_OK(fi_recv(receives, arena.memory, Arena::kBytes, nullptr, 0, nullptr));
    const iovec halves[] = {{arena.memory + 8, Arena::kBytes / 2},
                            {arena.memory, Arena::kBytes / 2}};
    RVT_OK(fi_recvv(receives, halves, nullptr, 2, 0, nullptr));
    RVT_OK(fi_send(pair.client.end.ep.get(), "seven..", 8, nullptr, 0, nullptr));
    RVT_OK(fi_send(pair.client.end.ep.get(), "more...", 8, nullptr, 0, nullptr));
    RVT_EQ(pair.server.next().len, 8);
    RVT_EQ(pair.server.next().len, 8);
    cr_assert(eq(str, arena.memory, const_cast<char*>("seven..")));
    cr_assert(eq(str, arena.memory + 8, const_cast<char*>("more...")));
}

}  // namespace

RVT_MSG_TEST(msg, a_receive_may_be_longer_than_any_message) {
    receive_into_an_arena(false);
}
RVT_MSG_TEST(msg, a_shared_receive_may_be_longer_than_any_message) {
    receive_into_an_arena(true);
}

RVT_MSG_TEST(msg, a_key_of_more_than_four_bytes_is_refused) {
    MsgPair pair;
    std::array<char, 8> memory{};
    const auto mr = pair.server.reg(memory.data(), memory.size(), FI_REMOTE_WRITE | FI_REMOTE_READ);
    const std::uint64_t wrong = fi_mr_key(mr.get()) | (std::uint64_t{1} << 32);
    fid_ep* const ep = pair.client.end.ep.get();
    std::uint64_t word = 1;
    RVT_EQ(fi_write(ep, &word, 8, nullptr, 0, address_of(memory.data()), wrong, nullptr),
           -FI_EINVAL);
    RVT_EQ(fi_atomic(ep, &word, 1, nullptr, 0, address_of(memory.data()), wrong, FI_UINT64, FI_SUM,
                     nullptr),
           -FI_EINVAL);
}

RVT_MSG_TEST(msg, endpoints_of_a_domain_connect_to_each_other) {
    const MsgListener listener;
    MsgEnd end(listener.fabric.get(), listener.eq.get(), listener.info.get());
    const sockaddr_in to = name_of(&listener.pep->fid);
    RVT_OK(fi_connect(end.ep.get(), &to, nullptr, 0));
    const CmEvent request = expect_event(listener.eq.get(), FI_CONNREQ);
    const Owned<fid_ep> far = end.add(request.info.get());
    RVT_OK(fi_accept(far.get(), nullptr, 0));
    expect_event(listener.eq.get(), FI_CONNECTED);
    expect_event(listener.eq.get(), FI_CONNECTED);
    char byte = 0;
    RVT_OK(fi_recv(far.get(), &byte, 1, nullptr, 0, nullptr));
    RVT_OK(fi_send(end.ep.get(), "q", 1, nullptr, 0, nullptr));
    end.next();
    end.next();
    RVT_EQ(byte, 'q');
}

/// What it had begun is taken back: it can be tried again, and takes nothing from others.
RVT_MSG_TEST(msg, an_endpoint_that_cannot_join_a_queue_leaves_no_trace) {
    const MsgPair pair;
    const MsgEnd& end = pair.client.end;
    fi_cq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    const auto tx_cq = opened<fid_cq>(
        [&](fid_cq** cq) { return fi_cq_open(end.domain.get(), &attr, cq, nullptr); });
    int set = -1;
    RVT_OK(fi_control(&tx_cq->fid, FI_GETWAIT, &set));
    const rvt::util::UniqueFd kept(dup(set));
    const rvt::util::UniqueFd none(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < 2; ++i) {
        const auto ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(end.domain.get(), pair.client.info.get(), made, nullptr);
        });
        RVT_OK(fi_ep_bind(ep.get(), &end.eq->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &tx_cq->fid, FI_TRANSMIT));
        RVT_OK(fi_ep_bind(ep.get(), &end.cq->fid, FI_RECV));
        RVT_EQ(dup2(none.get(), set), set);
        RVT_EQ(fi_enable(ep.get()), -FI_EINVAL);
        RVT_EQ(dup2(kept.get(), set), set);
        if (i == 0) {
            RVT_OK(fi_enable(ep.get()));
        }
    }
    char to = 0;
    RVT_OK(fi_recv(pair.server.ep.get(), &to, 1, nullptr, 0, nullptr));
    RVT_OK(fi_send(end.ep.get(), "1", 1, nullptr, 0, nullptr));
    pair.server.next();
    end.next();
}

RVT_MSG_TEST(msg, threads_may_call_at_will) {
    const MsgPair pair;
    constexpr int kEach = 200;
    std::atomic<int> received{0};
    std::array<char, 8> to{};
    std::array<std::thread, 2> senders;
    for (std::thread& sender : senders) {
        sender = std::thread([&] {
            for (int i = 0; i < kEach;) {
                i += fi_inject(pair.client.end.ep.get(), "x", 1, 0) == 0 ? 1 : 0;
                fi_cq_data_entry entry{};
                fi_cq_read(pair.client.end.cq.get(), &entry, 1);
            }
        });
    }
    std::array<std::thread, 2> receivers;
    for (std::thread& receiver : receivers) {
        receiver = std::thread([&] {
            // relaxed: a count.
            while (received.load(std::memory_order_relaxed) < 2 * kEach) {
                fi_recv(pair.server.ep.get(), to.data(), 1, nullptr, 0, nullptr);
                fi_cq_data_entry entry{};
                if (fi_cq_read(pair.server.cq.get(), &entry, 1) == 1) {
                    received.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
                }
            }
        });
    }
    for (std::thread& thread : senders) {
        thread.join();
    }
    for (std::thread& thread : receivers) {
        thread.join();
    }
    // relaxed: the threads have been joined.
    RVT_EQ(received.load(std::memory_order_relaxed), 2 * kEach);
}
