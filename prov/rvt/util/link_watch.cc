// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The socket, and which interface a message is about.
#include "util/link_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace rvt::util {
namespace {

// An address that is exchanged for itself, as when a network is configured anew, has not been away;
// and what is removed is told of more than once.
constexpr std::chrono::milliseconds kSettle{50};

static_assert(sizeof(nlmsghdr) == NLMSG_HDRLEN);

std::weak_ptr<LinkWatch>& current() noexcept {
    static auto* const kCurrent = new std::weak_ptr<LinkWatch>;
    return *kCurrent;
}

/// 0: the message is about no interface.
unsigned interface_in(const nlmsghdr& message) noexcept {
    const void* const content = &message + 1;
    switch (message.nlmsg_type) {
        case RTM_NEWLINK:
        case RTM_DELLINK:
            return message.nlmsg_len >= NLMSG_LENGTH(sizeof(ifinfomsg))
                       ? static_cast<unsigned>(static_cast<const ifinfomsg*>(content)->ifi_index)
                       : 0;
        case RTM_NEWADDR:
        case RTM_DELADDR:
            return message.nlmsg_len >= NLMSG_LENGTH(sizeof(ifaddrmsg))
                       ? static_cast<const ifaddrmsg*>(content)->ifa_index
                       : 0;
        default: return 0;
    }
}

}  // namespace

Result<std::shared_ptr<LinkWatch>> LinkWatch::acquire(ControlThread& thread) {
    std::shared_ptr<LinkWatch> watch = current().lock();
    if (watch != nullptr && watch->generation_ == fork_generation()) {
        return watch;
    }
    watch = std::make_shared<LinkWatch>(thread);
    const Status started = watch->start();
    if (!started.is_ok()) {
        return started;
    }
    current() = watch;
    return watch;
}

Status LinkWatch::start() {
    socket_ = ProcessFd(
        UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)));
    sockaddr_nl groups{};
    groups.nl_family = AF_NETLINK;
    groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
    if (!socket_.is_open() ||
        bind(socket_.get(), reinterpret_cast<const sockaddr*>(&groups), sizeof groups) != 0) {
        return errno;
    }
    return watch(socket_.get(), EPOLLIN);
}

LinkWatch::~LinkWatch() {
    unwatch();
}

void LinkWatch::on_ready(std::uint32_t /*events*/) {
    alignas(nlmsghdr) std::array<char, 16384> room;
    for (;;) {
        const ssize_t got = recv(socket_.get(), room.data(), room.size(), 0);
        if (got > 0) {
            take(std::span(room).first(static_cast<std::size_t>(got)));
        } else if (errno == ENOBUFS) {
            note(0);  // more has happened than the socket holds
        } else if (errno != EINTR) {
            return;
        }
    }
}

void LinkWatch::take(std::span<const char> messages) {
    auto left = static_cast<unsigned>(messages.size());
    for (const auto* one = reinterpret_cast<const nlmsghdr*>(messages.data()); NLMSG_OK(one, left);
         one = NLMSG_NEXT(one, left)) {
        if (const unsigned interface = interface_in(*one); interface != 0) {
            note(interface);
        }
    }
}

void LinkWatch::note(unsigned interface) {
    is_any_unknown_ = is_any_unknown_ || interface == 0;
    if (interface != 0 && std::ranges::find(changed_, interface) == changed_.end()) {
        changed_.push_back(interface);
    }
    if (!has_timer()) {
        set_timer(ControlThread::Clock::now() + kSettle);
    }
}

void LinkWatch::on_timer() {
    const std::vector<unsigned> changed = std::exchange(changed_, {});
    const bool is_any_unknown = std::exchange(is_any_unknown_, false);
    for (Listener* const listener : listeners_) {
        listener->links_changed(is_any_unknown ? std::span<const unsigned>() : changed);
    }
}

}  // namespace rvt::util
