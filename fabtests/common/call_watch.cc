// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The kernel sends SIGSYS in place of a system call while a byte of this process says so; the
// handler makes the call.
#include "common/call_watch.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "common/fail.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_OFF 0
#define PR_SYS_DISPATCH_ON 1
#endif

namespace fab {
namespace {

constexpr char kLetPass = 0;  // SYSCALL_DISPATCH_FILTER_ALLOW
constexpr char kCatch = 1;    // SYSCALL_DISPATCH_FILTER_BLOCK

// Of the thread that is watched and the handler, which runs on it. The kernel reads the first.
volatile char selector = kLetPass;
volatile long first_call = CallWatch::kNone;

#if defined(__x86_64__)
/// To return from here is a system call, too: it must pass, and with it all up to the next watch().
[[maybe_unused]] void make_call(int /*signal*/, siginfo_t* info, void* context) {
    selector = kLetPass;
    first_call = info->si_syscall;
    const int error_before = errno;
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const long result =
        syscall(info->si_syscall, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                registers[REG_R10], registers[REG_R8], registers[REG_R9]);
    registers[REG_RAX] = result == -1 ? -errno : result;
    errno = error_before;
}
#endif

}  // namespace

CallWatch::CallWatch() {
#if defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
    skip("system calls of a thread cannot be told apart here");
#else
    struct sigaction action {};
    action.sa_sigaction = make_call;
    action.sa_flags = SA_SIGINFO;
    FAB_EQUAL(sigaction(SIGSYS, &action, nullptr), 0);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) != 0) {
        skip("system calls cannot be caught here: %s", strerrordesc_np(errno));
    }
#endif
}

CallWatch::~CallWatch() {
    prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0);
}

void CallWatch::watch() {
    first_call = kNone;
    selector = kCatch;
}

long CallWatch::take_first() {
    selector = kLetPass;
    return first_call;
}

}  // namespace fab
