// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reads /proc/net/udp for the socket's inode, and /proc/PID/fd for who has that.
#include "util/port_owner.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include <dirent.h>
#include <unistd.h>

namespace rvt::util {
namespace {

struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
    void operator()(DIR* folder) const noexcept { closedir(folder); }
};
using File = std::unique_ptr<std::FILE, Close>;
using Directory = std::unique_ptr<DIR, Close>;

File open_file(const std::string& path) {
    return File(std::fopen(path.c_str(), "re"));
}

/// The address as the table shows it: words of 32 bits in the order of the host.
std::string in_hex(const SockAddr& address) {
    const std::size_t words = address.family == AF_INET ? 1 : 4;
    std::string text;
    for (std::size_t i = 0; i < words; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, address.ip.data() + 4 * i, sizeof word);
        std::array<char, 9> hex{};
        std::snprintf(hex.data(), hex.size(), "%08X", word);
        text += hex.data();
    }
    return text;
}

/// Inodes of the sockets that keep others from the address: those bound to it, or to all.
std::vector<unsigned long> sockets_at(const SockAddr& address) {
    const File table = open_file(address.family == AF_INET ? "/proc/net/udp" : "/proc/net/udp6");
    const std::string wanted = in_hex(address);
    const std::string any(wanted.size(), '0');
    std::array<char, 512> line{};
    std::vector<unsigned long> found;
    while (table != nullptr && std::fgets(line.data(), line.size(), table.get()) != nullptr) {
        char ip[33] = {};
        unsigned port = 0;
        unsigned long inode = 0;
        if (std::sscanf(line.data(), " %*d: %32[0-9A-F]:%x %*s %*s %*s %*s %*s %*s %*s %lu", ip,
                        &port, &inode) == 3 &&
            port == address.port && (ip == wanted || ip == any || address.is_any())) {
            found.push_back(inode);
        }
    }
    return found;
}

bool has_open(const std::string& process, const std::vector<unsigned long>& inodes) {
    const std::string folder = "/proc/" + process + "/fd";
    const Directory all(opendir(folder.c_str()));
    if (all == nullptr) {
        return false;
    }
    // NOLINTNEXTLINE(concurrency-mt-unsafe): each thread has a stream of its own.
    while (const dirent* one = readdir(all.get())) {
        std::array<char, 64> target{};
        unsigned long inode = 0;
        const std::string link = folder + "/" + one->d_name;
        if (readlink(link.c_str(), target.data(), target.size() - 1) <= 0 ||
            std::sscanf(target.data(), "socket:[%lu]", &inode) != 1) {
            continue;
        }
        for (const unsigned long wanted : inodes) {
            if (wanted == inode) {
                return true;
            }
        }
    }
    return false;
}

std::string name_of(const std::string& process) {
    const File file = open_file("/proc/" + process + "/comm");
    std::array<char, 64> name{};
    if (file == nullptr || std::fgets(name.data(), name.size(), file.get()) == nullptr) {
        return "?";
    }
    name[std::strcspn(name.data(), "\n")] = '\0';
    return name.data();
}

}  // namespace

std::string udp_port_owner(const SockAddr& address) {
    const std::vector<unsigned long> inodes = sockets_at(address);
    const Directory all(opendir("/proc"));
    if (inodes.empty() || all == nullptr) {
        return {};
    }
    // NOLINTNEXTLINE(concurrency-mt-unsafe): each thread has a stream of its own.
    while (const dirent* one = readdir(all.get())) {
        const std::string process = one->d_name;
        if (process.find_first_not_of("0123456789") == std::string::npos &&
            has_open(process, inodes)) {
            return "process " + process + " (" + name_of(process) + ")";
        }
    }
    return {};
}

}  // namespace rvt::util
