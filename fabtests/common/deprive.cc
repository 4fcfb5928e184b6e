// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// seccomp(2), setrlimit(2), setuid(2), cgroups(7).
#include "common/deprive.h"

#include "common/fail.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <vector>

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fab {
namespace {

constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

/// Where this process is in the hierarchy of the memory controller, "" if it is in none.
std::string memory_cgroup(bool& is_v2) {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string path = line.substr(second + 1);
        if (("," + controllers + ",").find(",memory,") != std::string::npos) {
            is_v2 = false;
            return std::string(kCgroupRoot) + "/memory" + path;
        }
        if (controllers.empty() &&
            access((std::string(kCgroupRoot) + "/cgroup.controllers").c_str(), F_OK) == 0) {
            is_v2 = true;
            return kCgroupRoot + path;
        }
    }
    return {};
}

bool write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
}

}  // namespace

void refuse_calls(std::initializer_list<int> calls, int error) {
    std::vector<sock_filter> program;
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    for (const int call : calls) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
        program.push_back(
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        skip("no filter of system calls can be installed: %s", strerrordesc_np(errno));
    }
}

void set_limit(__rlimit_resource_t what, rlim_t value) {
    rlimit limit{};
    FAB_EQUAL(getrlimit(what, &limit), 0);
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    FAB_EQUAL(setrlimit(what, &limit), 0);
}

void become_nobody() {
    constexpr unsigned kNobody = 65534;
    if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) {
        skip("only root can become another user");
    }
}

MemoryCgroup::MemoryCgroup() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip("a sanitizer needs more memory than the test leaves");
#endif
    home_ = memory_cgroup(is_v2_);
    path_ = home_ + "/fab-" + std::to_string(getpid());
    if (home_.empty() || mkdir(path_.c_str(), 0755) != 0) {
        skip("no memory cgroup can be made: %s",
             home_.empty() ? "there is no controller" : strerrordesc_np(errno));
    }
    if (access((path_ + (is_v2_ ? "/memory.max" : "/memory.limit_in_bytes")).c_str(), W_OK) != 0) {
        rmdir(path_.c_str());
        skip("a cgroup made here has no memory controller");
    }
}

MemoryCgroup::~MemoryCgroup() {
    leave();
    rmdir(path_.c_str());
}

void MemoryCgroup::enter(std::size_t bytes) const {
    FAB_CHECK(write_file(path_ + (is_v2_ ? "/memory.max" : "/memory.limit_in_bytes"),
                         std::to_string(bytes)));
    FAB_CHECK(write_file(path_ + "/cgroup.procs", std::to_string(getpid())));
}

void MemoryCgroup::leave() const {
    FAB_CHECK(write_file(home_ + "/cgroup.procs", std::to_string(getpid())));
}

}  // namespace fab
