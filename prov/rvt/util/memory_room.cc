// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Limits and use of memory cgroups, of version 1 and 2.
#include "util/memory_room.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace rvt::util {
namespace {

/// Version 1 says "no limit" with a number near the largest that there is.
constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

std::atomic<std::uint64_t> promised{0};  // by all of the process

struct CloseFile {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

/// The first bytes of a small file; "" when it cannot be read.
std::string read_file(const std::string& path) {
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "re"));
    std::string text(file != nullptr ? 8192 : 0, '\0');
    text.resize(file != nullptr ? std::fread(text.data(), 1, text.size(), file.get()) : 0);
    return text;
}

/// The number in a file; kUnlimitedMemory for "max" and for no file.
std::uint64_t read_number(const std::string& path) {
    const std::string text = read_file(path);
    if (text.empty() || text[0] < '0' || text[0] > '9') {
        return kUnlimitedMemory;
    }
    const std::uint64_t number = std::strtoull(text.c_str(), nullptr, 10);
    return number < kHuge ? number : kUnlimitedMemory;
}

/// The value behind a name in lines "name value", before which a line ends, too; 0 when it is not
/// there.
std::uint64_t value_in(const std::string& text, const std::string& name) {
    std::string wanted(1, '\n');
    wanted += name;
    wanted += ' ';
    const std::size_t at = text.find(wanted);
    return at == std::string::npos ? 0
                                   : std::strtoull(text.c_str() + at + wanted.size(), nullptr, 10);
}

struct Names {
    const char* limit;
    const char* used;
    const char* reclaimable[2];
};
constexpr Names kVersion1{"/memory.limit_in_bytes",
                          "/memory.usage_in_bytes",
                          {"total_inactive_file", "total_active_file"}};
constexpr Names kVersion2{"/memory.max", "/memory.current", {"inactive_file", "active_file"}};

std::uint64_t room_of(const std::string& group, const Names& names) {
    const std::uint64_t limit = read_number(group + names.limit);
    if (limit == kUnlimitedMemory) {
        return limit;
    }
    const std::uint64_t used = read_number(group + names.used);
    // Pages of files make room, those in use as well: the kernel takes them before it kills. Those
    // of memory files are not counted among them.
    std::string stat(1, '\n');
    stat += read_file(group + "/memory.stat");  // the kernel adds it up for each reader
    std::uint64_t freed = 0;
    for (const char* const reclaimable : names.reclaimable) {
        freed += value_in(stat, reclaimable);
    }
    return limit + freed > used ? limit + freed - used : 0;
}

/// The least room on the way from a group up to the root of its hierarchy.
std::uint64_t least_room(const std::string& root, std::string path, const Names& names) {
    std::uint64_t least = room_of(root, names);
    while (path.size() > 1) {
        least = std::min(least, room_of(root + path, names));
        path.resize(path.rfind('/'));
    }
    return least;
}

bool has_memory_controller(const std::string& controllers) {
    std::string list(1, ',');
    list += controllers;
    list += ',';
    return list.find(",memory,") != std::string::npos;
}

}  // namespace

std::uint64_t memory_room(const std::string& groups, const std::string& root) {
    std::uint64_t least = kUnlimitedMemory;
    const std::string text = read_file(groups);
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string line = text.substr(begin, end - begin);
        begin = end + 1;
        // Hierarchy, its controllers, the path of the group in it.
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string path = line.substr(second + 1);
        if (has_memory_controller(controllers)) {
            least = std::min(least, least_room(root + "/memory", path, kVersion1));
        } else if (controllers.empty()) {
            least = std::min(least, least_room(root, path, kVersion2));
        }
    }
    // Whoever cannot do with less than what is left, such as a new connection, has half of it.
    return least == kUnlimitedMemory ? least : least - std::min(promised_memory(), least / 2);
}

std::uint64_t memory_room() noexcept {
    return memory_room("/proc/self/cgroup", "/sys/fs/cgroup");
}

MemoryPromise::MemoryPromise(std::uint64_t bytes) noexcept : bytes_(bytes) {
    // relaxed: a sum, which says nothing of other memory.
    promised.fetch_add(bytes, std::memory_order_relaxed);
}

void MemoryPromise::reduce_to(std::uint64_t bytes) noexcept {
    if (bytes < bytes_) {
        // relaxed: as above.
        promised.fetch_sub(bytes_ - bytes, std::memory_order_relaxed);
        bytes_ = bytes;
    }
}

std::uint64_t promised_memory() noexcept {
    return promised.load(std::memory_order_relaxed);  // relaxed: as above
}

}  // namespace rvt::util
