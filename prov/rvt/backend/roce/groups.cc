// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Joining and leaving, and what arrives.
#include "backend/roce/groups.h"

#include "core/addresses.h"
#include "util/fork_guard.h"
#include "util/log.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>

namespace rvt::roce {
namespace {

Status watch(const util::UniqueFd& set, int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? kOk : Status(errno);
}

}  // namespace

Status Groups::open() noexcept {
    group_set_.reset(epoll_create1(EPOLL_CLOEXEC));
    if (!group_set_.is_open()) {
        return errno;
    }
    wake_set_.reset(epoll_create1(EPOLL_CLOEXEC));
    return wake_set_.is_open() ? kOk : Status(errno);
}

Status Groups::add_own(int fd) noexcept {
    const util::Guard guard(lock_);
    const Status watched = has_own_ ? kOk : watch(wake_set_, fd);
    has_own_ = watched.is_ok();
    return watched;
}

Status Groups::add_host(int fd) noexcept {
    return watch(wake_set_, fd);
}

Status Groups::join(const Address& group) {
    const util::ForkHold hold;  // as the thread that calls rejoin() has
    const util::Guard guard(lock_);
    const auto known = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const auto& one) { return one->address == group; });
    if (known != groups_.end()) {
        ++(*known)->users;
        return kOk;
    }
    const Status joined = join_locked(group);
    if (!joined.is_ok()) {
        RVT_WARN(kEpCtrl, "%s cannot join group %s: %s", socket_.port.address.to_string().c_str(),
                 core::to_sock_addr(group).to_string().c_str(), strerrordesc_np(joined.error()));
    }
    return joined;
}

Status Groups::join_locked(const Address& address) {
    auto opened = open_locked(address);
    if (opened.is_ok()) {
        groups_.push_back(opened.take());
        has_any_.store(true, std::memory_order_relaxed);  // relaxed: see poll()
    }
    return opened.status();
}

Result<std::unique_ptr<Groups::Group>> Groups::open_locked(const Address& address) {
    const util::SockAddr group = core::to_sock_addr(address);
    if (group.family != socket_.port.address.family) {
        return EAFNOSUPPORT;
    }
    auto socket = open_group_socket(group, socket_.port.address);
    if (!socket.is_ok()) {
        return socket.status();
    }
    auto made = std::make_unique<Group>(socket.take(), address, faults_, capture_);
    // In each set by itself: the kernel allows few sets within sets.
    for (const util::UniqueFd* const set : {&group_set_, &wake_set_}) {
        if (const Status watched = watch(*set, made->socket.fd()); !watched.is_ok()) {
            return watched;
        }
    }
    return made;
}

/// The kernel knows the interface of a membership, and of a bound socket, by its number.
bool Groups::rejoin() {
    const util::ForkHold hold;
    const util::Guard guard(lock_);
    bool are_joined = true;
    for (auto& group : groups_) {
        auto opened = open_locked(group->address);
        if (!opened.is_ok()) {
            RVT_WARN(kEpCtrl, "%s cannot join group %s anew: %s",
                     socket_.port.address.to_string().c_str(),
                     core::to_sock_addr(group->address).to_string().c_str(),
                     strerrordesc_np(opened.error()));
            are_joined = false;
            continue;
        }
        opened.value()->users = group->users;
        corrupted_ += group->receive.corrupted();
        group = opened.take();
    }
    return are_joined;
}

/// The kernel leaves the group, and the descriptor both sets, when the socket is closed.
void Groups::leave(const Address& group) noexcept {
    const util::Guard guard(lock_);
    const auto known = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const auto& one) { return one->address == group; });
    if (known == groups_.end() || --(*known)->users != 0) {
        return;
    }
    corrupted_ += (*known)->receive.corrupted();
    groups_.erase(known);
    has_any_.store(!groups_.empty(), std::memory_order_relaxed);  // relaxed: see poll()
}

unsigned Groups::poll_all(core::Device& device) noexcept {
    const util::Guard guard(lock_);
    unsigned packets = 0;
    for (const auto& group : groups_) {
        packets += group->receive.poll(device, false);
    }
    return packets;
}

std::uint64_t Groups::corrupted() const noexcept {
    const util::Guard guard(lock_);
    std::uint64_t corrupted = corrupted_;
    for (const auto& group : groups_) {
        corrupted += group->receive.corrupted();
    }
    return corrupted;
}

bool Groups::holds_packets() const noexcept {
    const util::Guard guard(lock_);
    return std::any_of(groups_.begin(), groups_.end(),
                       [](const auto& group) { return group->receive.holds_packets(); });
}

}  // namespace rvt::roce
