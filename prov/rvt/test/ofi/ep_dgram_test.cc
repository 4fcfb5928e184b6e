// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_EP_DGRAM through libfabric, over shared memory and by the wire. What becomes of packets that
// no endpoint sends is in core/ud_endpoint_test.cc.
#include <chrono>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/epoll_sets.h"
#include "ofi/host_wire.h"
#include "ofi/pair.h"
#include "ofi/ways.h"

using namespace rvt::test;

namespace {

EndOptions dgram(EndOptions options = {}) {
    options.type = FI_EP_DGRAM;
    options.caps = options.caps != 0 ? options.caps : std::uint64_t{FI_MSG | FI_SOURCE};
    options.node = own_node.c_str();
    return options;
}

Answer ask_dgram() {
    return ask(End::hints_of(dgram()), own_node.c_str(), nullptr, FI_SOURCE);
}

void* context_of(std::uintptr_t number) {
    return reinterpret_cast<void*>(number);
}

struct Dgrams : Pair {
    char out[4096] = {};
    char in[4096] = {};

    explicit Dgrams(const EndOptions& options = {}) : Pair(dgram(options)) {
        if (shares_port) {
            get_acquainted();
        }
        if (has_host_wire) {
            meet_by_host(*this);
        }
    }

    /// So that nothing waits for an answer of the peer, and each knows who the other is.
    void get_acquainted() {
        for (End* end : {&a, &b}) {
            RVT_OK(fi_recv(end->other->ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, nullptr));
            RVT_OK(fi_inject(end->ep.get(), out, 1, end->peer));
        }
        until([&] {
            return fi_cntr_read(a.cntrs[1].get()) == 1 && fi_cntr_read(b.cntrs[1].get()) == 1;
        });
        for (const End* end : {&a, &b}) {
            RVT_OK(fi_cntr_set(end->cntrs[0].get(), 0));
            RVT_OK(fi_cntr_set(end->cntrs[1].get(), 0));
            fi_cq_tagged_entry entry{};
            RVT_ASSERT(fi_cq_read(end->cq.get(), &entry, 1) >= -FI_EAGAIN);
        }
    }

    void recv(std::size_t bytes = sizeof in, std::uintptr_t context = 1) {
        RVT_OK(fi_recv(b.ep.get(), in, bytes, nullptr, FI_ADDR_UNSPEC, context_of(context)));
    }
    void send(std::size_t bytes) {
        RVT_OK(fi_send(a.ep.get(), out, bytes, nullptr, a.peer, context_of(2)));
    }
    /// Sends with `post`, and checks what arrives.
    template <class Post>
    fi_cq_tagged_entry carry(const char* text, Post post) {
        recv();
        std::strcpy(out, text);
        RVT_OK(post(a.ep.get(), out, std::strlen(text) + 1));
        const fi_cq_tagged_entry entry = b.next();
        cr_assert(eq(str, in, const_cast<char*>(text)));
        RVT_EQ(entry.len, std::strlen(text) + 1);
        RVT_EQ(entry.flags & (FI_MSG | FI_RECV), FI_MSG | FI_RECV);
        return entry;
    }
};

}  // namespace

// ---- messages ----

RVT_DGRAM_TEST(ep_dgram, every_form_of_send_arrives) {
    Dgrams ends;
    const fi_addr_t to = ends.a.peer;
    ends.carry("send", [&](fid_ep* ep, char* buffer, std::size_t bytes) {
        return fi_send(ep, buffer, bytes, nullptr, to, nullptr);
    });
    ends.carry("sendv", [&](fid_ep* ep, char* buffer, std::size_t bytes) {
        const iovec iov[] = {{buffer, 2}, {buffer + 2, 0}, {buffer + 2, bytes - 2}};
        return fi_sendv(ep, iov, nullptr, 3, to, nullptr);
    });
    ends.carry("inject", [&](fid_ep* ep, char* buffer, std::size_t bytes) {
        return fi_inject(ep, buffer, bytes, to);
    });
    const auto with_data = [](const fi_cq_tagged_entry& entry, std::uint64_t data) {
        RVT_EQ(entry.flags & FI_REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA);
        RVT_EQ(entry.data, data);
    };
    with_data(ends.carry("senddata",
                         [&](fid_ep* ep, char* buffer, std::size_t bytes) {
                             return fi_senddata(ep, buffer, bytes, nullptr, 0xfffffffe, to,
                                                nullptr);
                         }),
              0xfffffffe);
    with_data(ends.carry("injectdata",
                         [&](fid_ep* ep, char* buffer, std::size_t bytes) {
                             return fi_injectdata(ep, buffer, bytes, 3, to);
                         }),
              3);
    with_data(ends.carry("sendmsg",
                         [&](fid_ep* ep, char* /*buffer*/, std::size_t bytes) {
                             const iovec one{ends.out, bytes};
                             const fi_msg msg{&one, nullptr, 1, to, nullptr, 4};
                             return fi_sendmsg(ep, &msg, FI_REMOTE_CQ_DATA | FI_INJECT);
                         }),
              4);
}

RVT_DGRAM_TEST(ep_dgram, a_receive_of_several_buffers_is_filled_in_their_order) {
    Dgrams ends;
    const iovec iov[] = {{ends.in + 8, 4}, {ends.in, 8}};
    const fi_msg msg{iov, nullptr, 2, FI_ADDR_UNSPEC, context_of(1), 0};
    RVT_OK(fi_recvmsg(ends.b.ep.get(), &msg, 0));
    std::strcpy(ends.out, "datagrams");
    ends.send(10);
    RVT_EQ(ends.b.next().len, 10);
    RVT_ASSERT(std::memcmp(ends.in + 8, "data", 4) == 0);
    cr_assert(eq(str, ends.in, const_cast<char*>("grams")));
}

RVT_DGRAM_TEST(ep_dgram, the_largest_datagram_arrives_and_a_larger_one_is_refused) {
    Dgrams ends;
    const std::size_t most = ends.a.open.info->ep_attr->max_msg_size;
    RVT_ASSERT(std::size_t(most) >= 256u);
    RVT_EQ(fi_send(ends.a.ep.get(), ends.out, most + 1, nullptr, ends.a.peer, nullptr),
           -FI_EMSGSIZE);
    RVT_EQ(fi_inject(ends.a.ep.get(), ends.out, ends.a.open.info->tx_attr->inject_size + 1,
                     ends.a.peer),
           -FI_EMSGSIZE);
    ends.recv();
    ends.send(most);
    RVT_EQ(ends.b.next().len, most);
}

RVT_DGRAM_TEST(ep_dgram, what_does_not_fit_is_an_error_that_says_how_much_is_missing) {
    Dgrams ends;
    ends.recv(10);
    ends.send(30);
    const fi_cq_err_entry error = ends.b.next_error();
    RVT_EQ(error.err, FI_ETRUNC);
    RVT_EQ(error.len, 10);
    RVT_EQ(error.olen, 20);
    RVT_EQ(fi_cntr_readerr(ends.b.cntrs[1].get()), 1);
}

RVT_DGRAM_TEST(ep_dgram, who_sent_is_known_by_the_address_vector) {
    Dgrams ends;
    const auto source = [&] {
        fi_cq_tagged_entry entry{};
        fi_addr_t from = 0;
        ends.recv();
        ends.send(1);
        ssize_t got = -FI_EAGAIN;
        while (got == -FI_EAGAIN) {
            got = fi_cq_readfrom(ends.b.cq.get(), &entry, 1, &from);
        }
        RVT_EQ(got, 1);
        return from;
    };
    RVT_EQ(source(), ends.b.peer);
    RVT_OK(fi_av_remove(ends.b.av.get(), &ends.b.peer, 1, 0));
    RVT_EQ(source(), FI_ADDR_NOTAVAIL);
}

RVT_DGRAM_TEST(ep_dgram, an_address_that_was_removed_is_no_destination) {
    Dgrams ends;
    ends.recv();
    ends.send(1);
    ends.b.next();
    RVT_OK(fi_av_remove(ends.a.av.get(), &ends.a.peer, 1, 0));
    RVT_EQ(fi_send(ends.a.ep.get(), ends.out, 1, nullptr, ends.a.peer, nullptr), -FI_EINVAL);
    RVT_EQ(fi_send(ends.a.ep.get(), ends.out, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
}

RVT_DGRAM_TEST(ep_dgram, a_cancelled_receive_completes_and_the_next_one_is_filled) {
    Dgrams ends;
    ends.recv(sizeof ends.in, 7);
    ends.recv(sizeof ends.in, 8);
    RVT_OK(fi_cancel(&ends.b.ep->fid, context_of(7)));
    RVT_EQ(fi_cancel(&ends.b.ep->fid, context_of(7)), -FI_ENOENT);
    const fi_cq_err_entry error = ends.b.next_error();
    RVT_EQ(error.err, FI_ECANCELED);
    RVT_ASSERT(error.op_context == context_of(7));
    ends.send(1);
    RVT_ASSERT(ends.b.next().op_context == context_of(8));
}

RVT_DGRAM_TEST(ep_dgram, without_a_receive_a_datagram_is_lost) {
    Dgrams ends;
    ends.recv();
    ends.send(3);  // before its peer has answered a datagram may wait, and find one
    RVT_EQ(ends.b.next().len, 3);
    ends.a.next();
    ends.send(1);
    ends.a.next();
    // Nothing tells when it is there: this host may be late with a packet, by some milliseconds.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < end) {
        ends.drive();
    }
    ends.recv();
    ends.send(2);
    RVT_EQ(ends.b.next().len, 2);
}

/// Of a nothing is called but to send, and to read what is there: that lets nothing leave.
Test(ep_dgram, what_has_found_no_room_leaves_with_the_next_send) {
    constexpr unsigned kDatagrams = 100;
    Dgrams ends;
    ends.recv();
    ends.send(1);
    ends.b.next();
    ends.a.next();
    for (unsigned sent = 1; sent <= kDatagrams; ++sent) {
        ends.recv();
        ends.send(sizeof ends.out);
        fi_cq_tagged_entry entry{};
        RVT_EQ(fi_cq_read(ends.a.cq.get(), &entry, 1), 1);
        for (int looks = 0; sent > kDatagrams / 3 && looks < 100; ++looks) {
            fi_cntr_read(ends.b.cntrs[1].get());
        }
    }
    RVT_EQ(fi_cntr_read(ends.b.cntrs[1].get()), 1 + kDatagrams);
}

RVT_DGRAM_TEST(ep_dgram, a_datagram_to_oneself_arrives) {
    Dgrams ends;
    const fi_addr_t self = Pair::introduce(ends.b, ends.b);
    ends.recv();
    RVT_OK(fi_inject(ends.b.ep.get(), ends.out, 5, self));
    RVT_EQ(ends.b.next().len, 5);
}

// ---- peers that are not there ----

RVT_DGRAM_TEST(ep_dgram, a_datagram_leaves_though_its_endpoint_is_closed_at_once) {
    Dgrams ends;
    ends.recv();
    ends.send(7);
    ends.a.ep.reset();
    ends.b.other = nullptr;
    RVT_EQ(ends.b.next().len, 7);
}

RVT_TEST_EACH_WAY(ep_dgram, a_peer_that_restarts_is_reached_again) {
    be_alone();
    End from(dgram());
    auto first = std::make_unique<End>(dgram());
    from.peer = Pair::introduce(from, *first);
    char byte = 0;
    RVT_OK(fi_recv(first->ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
    RVT_OK(fi_inject(from.ep.get(), &byte, 1, from.peer));
    first->other = &from;
    first->next();
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&first->ep->fid, &name, &bytes));
    first.reset();
    EndOptions same = dgram();
    const std::string port = std::to_string(ntohs(name.sin_port));
    same.service = port.c_str();
    End second(same);
    RVT_OK(fi_recv(second.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr));
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (second.is_quiet() && std::chrono::steady_clock::now() < end) {
        RVT_OK(
            fi_inject(from.ep.get(), &byte, 1, from.peer));  // until its end is known, one is lost
        fi_cntr_read(from.cntrs[0].get());
    }
    RVT_EQ(fi_cntr_read(second.cntrs[1].get()), 1);
}

RVT_TEST_EACH_WAY(ep_dgram, nobody_waits_for_a_peer_that_is_not_there_or_does_not_read) {
    Dgrams ends;
    End idle(dgram());
    const fi_addr_t deaf = Pair::introduce(ends.a, idle);
    sockaddr_in nobody{};
    nobody.sin_family = AF_INET;
    nobody.sin_port = htons(9);
    inet_pton(AF_INET, own_node.c_str(), &nobody.sin_addr);
    fi_addr_t absent = FI_ADDR_UNSPEC;
    RVT_EQ(fi_av_insert(ends.a.av.get(), &nobody, 1, &absent, 0, nullptr), 1);
    const std::size_t most = ends.a.open.info->ep_attr->max_msg_size;
    for (int i = 0; i < 2000; ++i) {
        for (const fi_addr_t to : {absent, deaf}) {
            ends.post(
                [&] { return fi_send(ends.a.ep.get(), ends.out, most, nullptr, to, nullptr); });
            ends.a.next();
        }
    }
    ends.recv();
    ends.send(5);
    RVT_EQ(ends.b.next().len, 5);
}

// ---- completions ----

RVT_DGRAM_TEST(ep_dgram, selective_completion_is_silent_unless_asked) {
    Dgrams ends({.is_selective = true});
    const iovec room{ends.in, sizeof ends.in};
    const fi_msg in{&room, nullptr, 1, FI_ADDR_UNSPEC, context_of(1), 0};
    const iovec one{ends.out, 1};
    const fi_msg out{&one, nullptr, 1, ends.a.peer, context_of(2), 0};
    ends.recv();
    RVT_OK(fi_sendmsg(ends.a.ep.get(), &out, 0));
    ends.until([&] { return fi_cntr_read(ends.b.cntrs[1].get()) == 1; });
    RVT_ASSERT(ends.a.is_quiet());
    RVT_ASSERT(ends.b.is_quiet());
    RVT_OK(fi_recvmsg(ends.b.ep.get(), &in, FI_COMPLETION));
    RVT_OK(fi_sendmsg(ends.a.ep.get(), &out, FI_COMPLETION));
    RVT_ASSERT(ends.a.next().op_context == context_of(2));
    RVT_ASSERT(ends.b.next().op_context == context_of(1));
    RVT_EQ(fi_cntr_read(ends.a.cntrs[0].get()), 2);
    RVT_EQ(fi_cntr_read(ends.b.cntrs[1].get()), 2);
}

RVT_DGRAM_TEST(ep_dgram, full_queues_are_eagain) {
    Dgrams ends;
    const std::size_t size = ends.b.open.info->rx_attr->size;
    for (std::size_t i = 0; i < size; ++i) {
        ends.recv(1);
    }
    RVT_EQ(fi_recv(ends.b.ep.get(), ends.in, 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EAGAIN);
    ends.send(1);
    ends.b.next();
    ends.recv(1);
}

RVT_DGRAM_TEST(ep_dgram, a_reader_that_sleeps_is_woken) {
    Dgrams ends;
    fi_cq_tagged_entry entry{};
    RVT_EQ(fi_cq_sread(ends.b.cq.get(), &entry, 1, nullptr, 20), -FI_EAGAIN);
    ends.recv();
    ends.send(3);
    RVT_EQ(fi_cq_sread(ends.b.cq.get(), &entry, 1, nullptr, -1), 1);
    RVT_EQ(entry.len, 3);
    ends.recv();
    ends.send(3);
    RVT_OK(fi_cntr_wait(ends.b.cntrs[1].get(), 2, -1));
}

RVT_DGRAM_TEST(ep_dgram, a_wait_descriptor_becomes_readable) {
    Dgrams ends({.wait_obj = FI_WAIT_FD});
    int fd = -1;
    RVT_OK(fi_control(&ends.b.cq->fid, FI_GETWAIT, &fd));
    fid* queue = &ends.b.cq->fid;
    ends.recv();
    while (fi_trywait(ends.b.open.fabric.get(), &queue, 1) != 0) {
        RVT_ASSERT(ends.b.is_quiet());
    }
    pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    RVT_EQ(poll(&readable, 1, 20), 0);
    ends.send(4);
    RVT_EQ(poll(&readable, 1, -1), 1);
    RVT_EQ(ends.b.next().len, 4);
}

RVT_DGRAM_TEST(ep_dgram, automatic_progress_needs_no_call) {
    for (const fi_threading threading : {FI_THREAD_SAFE, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION}) {
        Dgrams ends({.threading = threading, .data_progress = FI_PROGRESS_AUTO});
        ends.recv();
        ends.out[0] = 1;
        ends.send(1);
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (__atomic_load_n(ends.in, __ATOMIC_ACQUIRE) == 0 &&
               std::chrono::steady_clock::now() < end) {
        }
        RVT_EQ(ends.in[0], 1);
        RVT_EQ(ends.b.next().len, 1);
    }
}

RVT_DGRAM_TEST(ep_dgram, every_threading_carries_datagrams) {
    for (const fi_threading threading : {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT,
                                         FI_THREAD_COMPLETION, FI_THREAD_DOMAIN}) {
        Dgrams ends({.threading = threading});
        for (std::size_t bytes = 1; bytes < 50; ++bytes) {
            ends.recv();
            ends.send(bytes);
            RVT_EQ(ends.b.next().len, bytes);
        }
    }
}

// ---- names, options, what there is not ----

RVT_DGRAM_TEST(ep_dgram, a_name_can_be_set_once) {
    const Opened open(ask_dgram().info);
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    std::memcpy(&name, open.info->src_addr, sizeof name);
    RVT_OK(fi_setname(&ep->fid, &name, bytes));
    RVT_EQ(fi_setname(&ep->fid, &name, bytes), -FI_EBUSY);
    sockaddr_in got{};
    RVT_OK(fi_getname(&ep->fid, &got, &bytes));
    RVT_EQ(got.sin_addr.s_addr, name.sin_addr.s_addr);
    RVT_NE(std::uint16_t(got.sin_port), std::uint16_t(0));
    bytes = 4;
    RVT_EQ(fi_getname(&ep->fid, &got, &bytes), -FI_ETOOSMALL);
}

RVT_DGRAM_TEST(ep_dgram, all_who_ask_for_its_name_are_told_the_same) {
    const Opened open(ask_dgram().info);
    for (int round = 0; round < 20; ++round) {
        const auto ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
        });
        in_port_t told = 0;
        in_port_t told_too = 0;
        do_at_once([&] { told = port_of(*ep); }, [&] { told_too = port_of(*ep); });
        RVT_EQ(told, told_too);
    }
}

RVT_DGRAM_TEST(ep_dgram, keeps_the_name_that_is_asked_for_while_it_is_enabled) {
    const Opened open(ask_dgram().info);
    const auto av = open.av();
    const auto cq = open.cq();
    for (int round = 0; round < 20; ++round) {
        const auto ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
        });
        RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
        in_port_t told = 0;
        do_at_once([&] { told = port_of(*ep); }, [&] { RVT_OK(fi_enable(ep.get())); });
        RVT_EQ(told, port_of(*ep));
    }
}

RVT_DGRAM_TEST(ep_dgram, what_it_does_not_do_is_refused) {
    Dgrams ends;
    fid_ep* const ep = ends.a.ep.get();
    RVT_EQ(fi_tsend(ep, ends.out, 1, nullptr, ends.a.peer, 1, nullptr), -FI_ENOSYS);
    RVT_EQ(fi_read(ep, ends.in, 1, nullptr, ends.a.peer, 0, 0, nullptr), -FI_ENOSYS);
    const iovec one{ends.out, 1};
    const fi_msg msg{&one, nullptr, 1, ends.a.peer, nullptr, 0};
    RVT_EQ(fi_sendmsg(ep, &msg, FI_DELIVERY_COMPLETE), -FI_EBADFLAGS);
    RVT_EQ(fi_sendmsg(ep, &msg, FI_MULTICAST), -FI_EINVAL);
    RVT_EQ(fi_recvmsg(ep, &msg, FI_MULTI_RECV), -FI_EBADFLAGS);
    RVT_EQ(fi_sendv(ep, nullptr, nullptr, 1, ends.a.peer, nullptr), -FI_EINVAL);
    RVT_EQ(fi_sendv(ep, &one, nullptr, 9, ends.a.peer, nullptr), -FI_EINVAL);
    std::size_t size = 0;
    std::size_t bytes = sizeof size;
    RVT_OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &size, &bytes));
    RVT_EQ(size, ends.a.open.info->tx_attr->size);
    RVT_EQ(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, &bytes),
           -FI_ENOPROTOOPT);
    RVT_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &size, sizeof size),
           -FI_EOPNOTSUPP);
    RVT_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 9999, &size, sizeof size), -FI_ENOPROTOOPT);
    RVT_EQ(fi_setopt(&ep->fid, 5, FI_OPT_TX_SIZE, &size, sizeof size), -FI_ENOPROTOOPT);
}

RVT_DGRAM_TEST(ep_dgram, an_endpoint_needs_its_objects_before_it_works) {
    const Opened open(ask_dgram().info);
    const auto av = open.av();
    const auto cq = open.cq();
    const auto ep = opened<fid_ep>([&](fid_ep** made) {
        return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
    });
    char byte = 0;
    RVT_EQ(fi_send(ep.get(), &byte, 1, nullptr, 0, nullptr), -FI_EOPBADSTATE);
    RVT_EQ(fi_enable(ep.get()), -FI_ENOAV);
    RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT));
    RVT_EQ(fi_enable(ep.get()), -FI_ENOCQ);
    RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_RECV));
    RVT_OK(fi_enable(ep.get()));
    RVT_EQ(fi_enable(ep.get()), -FI_EOPBADSTATE);
    RVT_EQ(fi_ep_bind(ep.get(), &av->fid, 0), -FI_EOPBADSTATE);
}

RVT_DGRAM_TEST(ep_dgram, bytes_that_are_no_packet_are_dropped) {
    Dgrams ends;
    ends.recv();
    sockaddr_storage name{};
    std::size_t bytes = sizeof name;
    RVT_OK(fi_getname(&ends.b.ep->fid, &name, &bytes));
    const int fd = socket(name.ss_family, SOCK_DGRAM, 0);
    char junk[1500];
    for (std::size_t i = 0; i < sizeof junk; ++i) {
        junk[i] = static_cast<char>(i * 37);
    }
    for (const std::size_t length : {0, 1, 11, 12, 16, 24, 40, 1100, 1500}) {
        RVT_EQ(sendto(fd, junk, length, 0, reinterpret_cast<sockaddr*>(&name),
                      static_cast<socklen_t>(bytes)),
               length);
    }
    close(fd);
    ends.send(6);
    RVT_EQ(ends.b.next().len, 6);
}

// What is in a set costs more with each packet.
Test(ep_dgram, has_its_socket_in_the_set_of_sleepers_when_somebody_sleeps) {
    const std::string node = network_node();
    EndOptions options = dgram({.wait_obj = FI_WAIT_FD});
    options.node = node.c_str();
    const End end(options);
    RVT_EQ(places_in_sets(is_udp_socket), 1);  // the control thread's
    fid* queue = &end.cq->fid;
    RVT_OK(fi_trywait(end.open.fabric.get(), &queue, 1));
    RVT_EQ(places_in_sets(is_udp_socket), 2);
}
