// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The signal handlers behind guarded accesses.
#include "util/fault_guard.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <mutex>

#include <pthread.h>
#include <unistd.h>

#include "util/log.h"
#include "util/params.h"

#ifdef __x86_64__
#include <ucontext.h>

// A fault between rvt_copy_quick and rvt_copy_quick_fault goes on at that: it has no frame.
asm(R"(
    .pushsection .text
    .p2align 5
    .globl rvt_copy_quick, rvt_copy_quick_fault
    .hidden rvt_copy_quick, rvt_copy_quick_fault
    .type rvt_copy_quick, @function
rvt_copy_quick:
    .cfi_startproc
    cmpq $16, %rdx
    jb 3f
    cmpq $64, %rdx
    ja 1f
    # Four blocks, two from each end, as in copy_small().
    leaq -16(%rdx), %rax
    movl $16, %ecx
    cmpq %rcx, %rax
    cmovbq %rax, %rcx
    movq %rax, %r8
    subq %rcx, %r8
    movups (%rsi), %xmm0
    movups (%rsi,%rcx), %xmm1
    movups (%rsi,%r8), %xmm2
    movups (%rsi,%rax), %xmm3
    movups %xmm0, (%rdi)
    movups %xmm1, (%rdi,%rcx)
    movups %xmm2, (%rdi,%r8)
    movups %xmm3, (%rdi,%rax)
    xorl %eax, %eax
    ret
1:  # Blocks of 64, the last one from the end.
    leaq -64(%rsi,%rdx), %r8
    leaq -64(%rdi,%rdx), %r9
2:  movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups 32(%rsi), %xmm2
    movups 48(%rsi), %xmm3
    movups %xmm0, (%rdi)
    movups %xmm1, 16(%rdi)
    movups %xmm2, 32(%rdi)
    movups %xmm3, 48(%rdi)
    addq $64, %rsi
    addq $64, %rdi
    cmpq %r8, %rsi
    jb 2b
    movups (%r8), %xmm0
    movups 16(%r8), %xmm1
    movups 32(%r8), %xmm2
    movups 48(%r8), %xmm3
    movups %xmm0, (%r9)
    movups %xmm1, 16(%r9)
    movups %xmm2, 32(%r9)
    movups %xmm3, 48(%r9)
    xorl %eax, %eax
    ret
    # One store for a word of 8, 4 or 2 bytes, which the target may look at and set back meanwhile.
3:  cmpl $8, %edx
    jb 4f
    movq (%rsi), %rax
    movq -8(%rsi,%rdx), %rcx
    movq %rax, (%rdi)
    je 7f
    movq %rcx, -8(%rdi,%rdx)
    xorl %eax, %eax
    ret
4:  cmpl $4, %edx
    jb 5f
    movl (%rsi), %eax
    movl -4(%rsi,%rdx), %ecx
    movl %eax, (%rdi)
    je 7f
    movl %ecx, -4(%rdi,%rdx)
    xorl %eax, %eax
    ret
5:  cmpl $2, %edx
    jb 6f
    movzwl (%rsi), %eax
    movzwl -2(%rsi,%rdx), %ecx
    movw %ax, (%rdi)
    je 7f
    movw %cx, -2(%rdi,%rdx)
    xorl %eax, %eax
    ret
6:  testl %edx, %edx
    je 7f
    movzbl (%rsi), %eax
    movb %al, (%rdi)
7:  xorl %eax, %eax
    ret
rvt_copy_quick_fault:
    movl $1, %eax
    ret
    .cfi_endproc
    .size rvt_copy_quick, . - rvt_copy_quick
    .popsection
)");
extern "C" [[gnu::visibility("hidden")]] void rvt_copy_quick_fault();
#else
int rvt_copy_quick(void*, const void*, std::size_t bytes) noexcept {
    return bytes == 0 ? 0 : 1;  // kMostQuick is 0
}
#endif

namespace rvt::util {

namespace detail {
thread_local constinit GuardedAccess* guarded_access = nullptr;
}  // namespace detail

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS};
constexpr std::size_t kPage = 4096;  // of the smallest kind

/// What was there before. Written once, before the handlers are.
struct sigaction before_us[std::size(kSignals)];

const struct sigaction& before(int signal) noexcept {
    return before_us[signal == kSignals[0] ? 0 : 1];
}

bool is_within(std::uintptr_t address, const FaultRange& range) noexcept {
    return address - range.begin < range.bytes;
}

/// Whether the kernel says that one of the two ranges is what could not be reached.
bool is_of(const siginfo_t& what, const detail::GuardedAccess& access) noexcept {
    if (what.si_code <= 0) {
        return false;  // sent by a process
    }
    // An address that no process can have is not told.
    const auto at = reinterpret_cast<std::uintptr_t>(what.si_addr);
    return what.si_code == SI_KERNEL || is_within(at, access.first) || is_within(at, access.second);
}

void set_default(int signal) noexcept {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
}

/// As if we were not there.
void go_on_to_others(int signal, siginfo_t* what, void* context) noexcept {
    const struct sigaction& theirs = before(signal);
    const bool is_sent = what->si_code <= 0;
    if ((theirs.sa_flags & SA_SIGINFO) == 0 && theirs.sa_handler == SIG_IGN && is_sent) {
        return;
    }
    if ((theirs.sa_flags & SA_SIGINFO) == 0 &&
        (theirs.sa_handler == SIG_DFL || theirs.sa_handler == SIG_IGN)) {
        set_default(signal);
        if (is_sent) {
            raise(signal);
        }
        return;  // a fault happens again
    }
    if ((theirs.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
        set_default(signal);  // it counts on the next one to end the process
    }
    sigset_t blocked = theirs.sa_mask;
    sigset_t now;
    if ((theirs.sa_flags & SA_NODEFER) == 0) {
        sigaddset(&blocked, signal);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &now);
    if ((theirs.sa_flags & SA_SIGINFO) != 0) {
        theirs.sa_sigaction(signal, what, context);
    } else {
        theirs.sa_handler(signal);
    }
    pthread_sigmask(SIG_SETMASK, &now, nullptr);
}

/// Ends the copy of a few bytes that met the fault, if one did. Returns: whether one did.
bool leave_quick_copy([[maybe_unused]] const siginfo_t& what,
                      [[maybe_unused]] void* context) noexcept {
#ifdef __x86_64__
    greg_t& at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
    const auto begin = reinterpret_cast<greg_t>(&rvt_copy_quick);
    const auto end = reinterpret_cast<greg_t>(&rvt_copy_quick_fault);
    if (what.si_code > 0 && at >= begin && at < end) {
        at = end;
        return true;
    }
#endif
    return false;
}

void on_fault(int signal, siginfo_t* what, void* context) noexcept {
    if (leave_quick_copy(*what, context)) {
        return;
    }
    detail::GuardedAccess* const access = detail::guarded_access;
    if (access != nullptr && is_of(*what, *access)) {
        detail::guarded_access = access->outer;
        // NOLINTNEXTLINE(cert-err52-cpp): what is jumped over has no destructors
        RVT_JUMP(access->jump);
    }
    go_on_to_others(signal, what, context);
}

void install() noexcept {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        sigaction(kSignals[i], nullptr, &before_us[i]);
        struct sigaction ours {};
        ours.sa_sigaction = on_fault;
        // No signal becomes blocked: it would stay so when the handler is left by a jump.
        ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | (before_us[i].sa_flags & SA_RESTART);
        sigemptyset(&ours.sa_mask);
        if (sigaction(kSignals[i], &ours, nullptr) != 0) {
            RVT_WARN(kMr, "cannot catch signal %d: %s", kSignals[i], strerrordesc_np(errno));
        }
    }
}

/// Touches a byte of each page.
template <class Touch>
bool touch_pages(const void* memory, std::size_t bytes, const Touch& touch) noexcept {
    if (bytes == 0) {
        return true;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t last = begin + (bytes - 1);
    return guard_access({.begin = begin, .bytes = bytes}, {}, [=] {
        for (std::uintptr_t at = begin; at / kPage < last / kPage; at = (at / kPage + 1) * kPage) {
            touch(at);
        }
        touch(last);
    });
}

}  // namespace

void catch_faults() noexcept {
    static std::once_flag once;
    if (param_is_set(ParamId::kCatchFaults)) {
        std::call_once(once, install);
    }
}

bool can_read(const void* memory, std::size_t bytes) noexcept {
    return touch_pages(memory, bytes, [](std::uintptr_t at) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an address within the memory
        static_cast<void>(*reinterpret_cast<const volatile std::byte*>(at));
    });
}

bool can_write(void* memory, std::size_t bytes) noexcept {
    return touch_pages(memory, bytes, [](std::uintptr_t at) {
        std::uint8_t nothing = 0;
        asm volatile("" : "+r"(nothing));  // clang would make a load of what writes a known 0
        // relaxed: nothing changes that anybody could see.
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an address within the memory
        __atomic_fetch_or(reinterpret_cast<std::uint8_t*>(at), nothing, __ATOMIC_RELAXED);
    });
}

}  // namespace rvt::util
