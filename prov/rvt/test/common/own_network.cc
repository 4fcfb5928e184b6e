// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Namespaces, and the words for ip(8).
#include "common/own_network.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "util/unique_fd.h"

namespace rvt::test {
namespace {

// Without duplicate address detection, for whose end the address would have to wait, and without
// addresses of the kernel's own making, which would come a second or two later.
constexpr const char* kSetUp =
    "ip -batch - <<'end'\n"
    "link set lo up\n"
    "link add wire0 type veth peer name wire1\n"
    "link set wire0 addrgenmode none\n"
    "link set wire1 addrgenmode none\n"
    "addr add 192.0.2.1/24 dev wire0\n"
    "addr add fd99::1/64 dev wire0 nodad\n"
    "link set wire1 up\n"
    "link set wire0 up\n"
    "end\n";

bool write_to(const char* path, const std::string& text) {
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) {
        return false;
    }
    const bool is_written = std::fputs(text.c_str(), file) >= 0;
    return std::fclose(file) == 0 && is_written;
}

/// Who is not root becomes the root of a user namespace, in which it may have networks of its own:
/// when the program starts, as a process that has threads, which Criterion's have, cannot any more.
/// Where the kernel does not allow it, all stays as it is.
[[gnu::constructor]] void become_root() {
    const std::string user = std::to_string(geteuid());
    const std::string group = std::to_string(getegid());
    if (geteuid() != 0 && unshare(CLONE_NEWUSER) == 0) {
        const bool is_root = write_to("/proc/self/setgroups", "deny") &&
                             write_to("/proc/self/uid_map", "0 " + user + " 1") &&
                             write_to("/proc/self/gid_map", "0 " + group + " 1");
        if (!is_root) {
            std::fputs("this user cannot become the root of a namespace\n", stderr);
            std::abort();
        }
    }
}

/// What happens to links from the call on.
util::UniqueFd watch_links() {
    util::UniqueFd links(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    sockaddr_nl all{};
    all.nl_family = AF_NETLINK;
    all.nl_groups = RTMGRP_LINK;
    const bool is_bound =
        bind(links.get(), reinterpret_cast<const sockaddr*>(&all), sizeof all) == 0;
    cr_assert(is_bound, "links cannot be watched");
    return links;
}

/// Whether the message says that wire0 is up.
bool says_up(const nlmsghdr& message) {
    if (message.nlmsg_type != RTM_NEWLINK) {
        return false;
    }
    bool is_wire0 = false;
    bool is_up = false;
    auto bytes = IFLA_PAYLOAD(&message);
    for (const rtattr* one = IFLA_RTA(NLMSG_DATA(&message)); RTA_OK(one, bytes);
         one = RTA_NEXT(one, bytes)) {
        const auto* const value = static_cast<const char*>(RTA_DATA(one));
        is_wire0 = is_wire0 || (one->rta_type == IFLA_IFNAME && std::strcmp(value, "wire0") == 0);
        is_up = is_up || (one->rta_type == IFLA_OPERSTATE && *value == IF_OPER_UP);
    }
    return is_wire0 && is_up;
}

/// The kernel takes notice of a link a moment after it is up; until then it drops what is sent.
void await_link(const util::UniqueFd& links) {
    alignas(nlmsghdr) char room[16384];
    for (bool is_up = false; !is_up;) {
        const ssize_t got = recv(links.get(), room, sizeof room, 0);
        cr_assert(got > 0, "links cannot be watched");
        auto bytes = static_cast<unsigned>(got);
        for (auto* one = reinterpret_cast<const nlmsghdr*>(room); NLMSG_OK(one, bytes);
             one = NLMSG_NEXT(one, bytes)) {
            is_up = is_up || says_up(*one);
        }
    }
}

}  // namespace

bool enter_own_network() {
    if (unshare(CLONE_NEWNET) != 0) {
        return false;
    }
    const util::UniqueFd links = watch_links();
    cr_assert(std::system(kSetUp) == 0, "ip(8) cannot set up a network for this test");
    await_link(links);
    return true;
}

}  // namespace rvt::test
