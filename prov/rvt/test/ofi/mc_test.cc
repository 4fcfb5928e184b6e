// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_join, fi_cm(3), on the loopback interface, for endpoints on shared memory, and on a network's.
#include <chrono>

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include "common/process.h"
#include "ofi/pair.h"
#include "ofi/ways.h"

using namespace rvt::test;

namespace {

/// A group that no other process of this host uses.
sockaddr_in group_address() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(20'000 + getpid() % 40'000));
    inet_pton(AF_INET, "239.255.3.4", &address.sin_addr);
    return address;
}

/// An endpoint that can join.
struct Member {
    Opened open;
    Owned<fid_eq> eq;
    Owned<fid_av> av;
    Owned<fid_cq> cq;
    Owned<fid_ep> ep;
    char in[64] = {};

    explicit Member(std::uint64_t caps = FI_MSG | FI_MULTICAST | FI_SOURCE, bool has_eq = true,
                    fi_progress progress = FI_PROGRESS_UNSPEC)
        : open(ask(hints(caps, progress), own_node.c_str(), nullptr, FI_SOURCE).info) {
        eq = open.eq(with<fi_eq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_FD; }));
        av = open.av();
        cq = open.cq(with<fi_cq_attr>([](auto& attr) {
            attr.format = FI_CQ_FORMAT_TAGGED;
            attr.wait_obj = FI_WAIT_UNSPEC;
        }));
        ep = opened<fid_ep>([&](fid_ep** made) {
            return fi_endpoint(open.domain.get(), open.info.get(), made, nullptr);
        });
        if (has_eq) {
            RVT_OK(fi_ep_bind(ep.get(), &eq->fid, 0));
        }
        RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
        RVT_OK(fi_enable(ep.get()));
    }
    static Info hints(std::uint64_t caps, fi_progress progress) {
        Info hints = new_hints();
        hints->caps = caps;
        hints->domain_attr->data_progress = progress;
        hints->ep_attr->type = FI_EP_DGRAM;
        return hints;
    }

    int try_join(const sockaddr_in& address, std::uint64_t flags, fid_mc** mc) {
        return fi_join(ep.get(), &address, flags, mc, this);
    }
    Owned<fid_mc> join(std::uint64_t flags = 0) {
        const sockaddr_in address = group_address();
        auto mc = opened<fid_mc>([&](fid_mc** made) { return try_join(address, flags, made); });
        std::uint32_t event = 0;
        fi_eq_entry entry{};
        RVT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), sizeof entry);
        RVT_EQ(event, FI_JOIN_COMPLETE);
        RVT_ASSERT(entry.fid == &mc->fid);
        RVT_ASSERT(entry.context == this);
        return mc;
    }
    void recv() { RVT_OK(fi_recv(ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, nullptr)); }
    fi_cq_tagged_entry next() {
        fi_cq_tagged_entry entry{};
        RVT_EQ(fi_cq_sread(cq.get(), &entry, 1, nullptr, 10'000), 1);
        return entry;
    }
    fi_addr_t number_of(const Member& other) {
        sockaddr_in name{};
        std::size_t bytes = sizeof name;
        RVT_OK(fi_getname(&other.ep->fid, &name, &bytes));
        fi_addr_t number = FI_ADDR_UNSPEC;
        RVT_EQ(fi_av_insert(av.get(), &name, 1, &number, 0, nullptr), 1);
        return number;
    }
    bool is_silent() {
        fi_cq_tagged_entry entry{};
        return fi_cq_sread(cq.get(), &entry, 1, nullptr, 50) == -FI_EAGAIN;
    }
};

}  // namespace

RVT_DGRAM_TEST(mc, multicast_is_a_capability_of_the_sending_side) {
    const Member member(FI_MSG | FI_MULTICAST);
    RVT_EQ(member.open.info->caps & FI_MULTICAST, FI_MULTICAST);
    RVT_EQ(member.open.info->tx_attr->caps, FI_MSG | FI_MULTICAST | FI_SEND);
    RVT_EQ(member.open.info->rx_attr->caps, FI_MSG | FI_RECV);
}

RVT_DGRAM_TEST(mc, a_datagram_to_a_group_reaches_all_members_but_the_sender) {
    Member sender;
    Member first;
    Member second;
    const auto sending = sender.join();
    const auto a = first.join();
    const auto b = second.join(FI_RECV);
    sender.recv();
    first.recv();
    second.recv();
    RVT_OK(fi_inject(sender.ep.get(), "group", 6, fi_mc_addr(sending.get())));
    for (Member* member : {&first, &second}) {
        RVT_EQ(member->next().len, 6);
        cr_assert(eq(str, member->in, const_cast<char*>("group")));
    }
    RVT_ASSERT(sender.is_silent());
}

RVT_DGRAM_TEST(mc, a_datagram_to_a_group_needs_no_call_with_automatic_progress) {
    Member sender;
    Member member(FI_MSG | FI_MULTICAST, true, FI_PROGRESS_AUTO);
    const auto sending = sender.join(FI_SEND);
    const auto receiving = member.join(FI_RECV);
    for (char round = 1; round < 20; ++round) {
        member.recv();
        RVT_OK(fi_inject(sender.ep.get(), &round, 1, fi_mc_addr(sending.get())));
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (__atomic_load_n(member.in, __ATOMIC_ACQUIRE) != round &&
               std::chrono::steady_clock::now() < end) {
        }
        RVT_EQ(int{member.in[0]}, int{round});
        member.next();
    }
}

RVT_DGRAM_TEST(mc, the_flag_of_multicast_goes_with_groups) {
    Member sender;
    Member member;
    const auto sending = sender.join(FI_SEND);
    const auto receiving = member.join(FI_RECV);
    member.recv();
    const iovec one{member.in, 3};
    const fi_msg msg{&one, nullptr, 1, fi_mc_addr(sending.get()), nullptr, 0};
    RVT_OK(fi_sendmsg(sender.ep.get(), &msg, FI_MULTICAST));
    RVT_EQ(member.next().len, 3);
}

RVT_DGRAM_TEST(mc, completions_say_what_came_from_or_went_to_a_group) {
    Member sender;
    Member member;
    const auto sending = sender.join(FI_SEND);
    const auto receiving = member.join(FI_RECV);
    member.recv();
    RVT_OK(fi_send(sender.ep.get(), "x", 1, nullptr, fi_mc_addr(sending.get()), nullptr));
    RVT_EQ(member.next().flags, FI_MSG | FI_RECV | FI_MULTICAST);
    RVT_EQ(sender.next().flags, FI_MSG | FI_SEND | FI_MULTICAST);
    member.recv();
    RVT_OK(fi_send(sender.ep.get(), "x", 1, nullptr, sender.number_of(member), nullptr));
    RVT_EQ(sender.next().flags, FI_MSG | FI_SEND);  // which finds the member first
    RVT_EQ(member.next().flags, FI_MSG | FI_RECV);
}

RVT_DGRAM_TEST(mc, a_side_that_was_not_joined_does_not_work) {
    Member sender;
    Member other;
    const auto sending = sender.join(FI_SEND);
    const auto deaf = other.join(FI_SEND);
    const auto mute = sender.join(FI_RECV);
    RVT_EQ(fi_mc_addr(mute.get()), FI_ADDR_NOTAVAIL);
    other.recv();
    RVT_OK(fi_inject(sender.ep.get(), "x", 1, fi_mc_addr(sending.get())));
    RVT_ASSERT(other.is_silent());
}

RVT_DGRAM_TEST(mc, who_has_left_gets_no_more_and_cannot_send) {
    Member sender;
    Member member;
    auto sending = sender.join();
    member.join().reset();
    member.recv();
    const fi_addr_t group = fi_mc_addr(sending.get());
    RVT_OK(fi_inject(sender.ep.get(), "x", 1, group));
    RVT_ASSERT(member.is_silent());
    sending.reset();
    RVT_EQ(fi_inject(sender.ep.get(), "x", 1, group), -FI_EINVAL);
}

RVT_DGRAM_TEST(mc, an_endpoint_is_in_use_while_it_is_a_member) {
    Member member;
    auto joined = member.join();
    RVT_EQ(fi_close(&member.ep->fid), -FI_EBUSY);
    joined.reset();
    RVT_OK(fi_close(&member.ep.release()->fid));
}

RVT_DGRAM_TEST(mc, an_event_that_nobody_has_read_goes_with_its_group) {
    Member member;
    fid_mc* mc = nullptr;
    RVT_OK(member.try_join(group_address(), 0, &mc));
    RVT_OK(fi_close(&mc->fid));
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_read(member.eq.get(), &event, &entry, sizeof entry, 0), -FI_EAGAIN);
}

/// fi_domain(3), fi_domain_bind.
RVT_DGRAM_TEST(mc, the_queue_of_its_domain_hears_of_it_where_there_is_no_other) {
    Member member(FI_MSG | FI_MULTICAST, false);
    RVT_OK(fi_domain_bind(member.open.domain.get(), &member.eq->fid, 0));
    member.join().reset();
    member.ep.reset();
    member.cq.reset();
    member.av.reset();
    member.open.domain.reset();  // which keeps the queue from closing
}

Test(mc, an_event_stays_readable_though_a_forked_child_has_left_the_group) {
    Member member;
    fid_mc* mc = nullptr;
    RVT_OK(member.try_join(group_address(), 0, &mc));
    pollfd source{-1, POLLIN, 0};
    RVT_OK(fi_control(&member.eq->fid, FI_GETWAIT, &source.fd));
    Process child([&](Process&) { _exit(fi_close(&mc->fid) == 0 ? 0 : 1); });
    RVT_EQ(child.wait(), 0);
    RVT_EQ(poll(&source, 1, 0), 1);
    RVT_OK(fi_close(&mc->fid));
    RVT_EQ(poll(&source, 1, 0), 0);
}

RVT_DGRAM_TEST(mc, what_cannot_be_joined_is_refused) {
    fid_mc* mc = nullptr;
    Member member;
    sockaddr_in address = group_address();
    RVT_EQ(member.try_join(address, FI_READ, &mc), -FI_EBADFLAGS);
    RVT_EQ(fi_join(member.ep.get(), nullptr, 0, &mc, nullptr), -FI_EINVAL);
    inet_pton(AF_INET, "192.0.2.9", &address.sin_addr);
    RVT_EQ(member.try_join(address, 0, &mc), -FI_EINVAL);
    address.sin_family = AF_INET6;
    RVT_EQ(member.try_join(address, 0, &mc), -EAFNOSUPPORT);
    Member incapable(FI_MSG);
    RVT_EQ(incapable.try_join(group_address(), 0, &mc), -FI_EOPNOTSUPP);
    Member without_queue(FI_MSG | FI_MULTICAST, false);
    RVT_EQ(without_queue.try_join(group_address(), 0, &mc), -FI_ENOEQ);
    Member receiver(FI_MSG | FI_MULTICAST | FI_RECV);
    RVT_EQ(receiver.try_join(group_address(), FI_SEND, &mc), -FI_EINVAL);
}
