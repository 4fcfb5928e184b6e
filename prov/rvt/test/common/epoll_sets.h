// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The descriptors of this process, and which are in sets of epoll(7): proc(5) of /proc/self/fdinfo.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <sys/socket.h>

namespace rvt::test {

/// How often descriptors for which `matches(fd)` holds are in a set.
template <class Matches>
unsigned places_in_sets(Matches matches) {
    unsigned places = 0;
    for (const auto& set : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
        std::ifstream lines(set.path());
        for (std::string word; lines >> word;) {
            int fd = -1;
            if (word == "tfd:" && lines >> fd && matches(fd)) {
                ++places;
            }
        }
    }
    return places;
}

template <class Matches>
unsigned open_descriptors(Matches matches) {
    unsigned count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        count += matches(std::stoi(entry.path().filename().string())) ? 1 : 0;
    }
    return count;
}

inline bool is_udp_socket(int fd) {
    const auto option = [fd](int name) {
        int value = -1;
        socklen_t bytes = sizeof value;
        getsockopt(fd, SOL_SOCKET, name, &value, &bytes);
        return value;
    };
    return option(SO_DOMAIN) == AF_INET && option(SO_TYPE) == SOCK_DGRAM;
}

}  // namespace rvt::test
