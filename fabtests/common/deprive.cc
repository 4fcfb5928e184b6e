// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// seccomp(2), setrlimit(2), setuid(2).
#include "common/deprive.h"

#include "common/fail.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace fab {

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

}  // namespace fab
