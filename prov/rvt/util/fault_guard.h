// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Accesses to memory that its owner may have unmapped or protected: one that faults fails, where it
// would end the process. For registered memory that peers name: what they may reach was decided
// when it was registered, and what is there when they come is the application's doing.
//
// The handlers of SIGSEGV and SIGBUS take part in faults of guarded accesses alone. All others go
// on to whom they went before. A thread that blocks these signals has no guard.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__SANITIZE_THREAD__) || (defined(__clang__) && !defined(__x86_64__))
#include <setjmp.h>
#endif

#include "util/long_copy.h"

/// Copies up to kMostQuick bytes, in assembly. Returns: 0; 1 when it met a fault.
extern "C" [[gnu::visibility("hidden")]] int rvt_copy_quick(void* to, const void* from,
                                                            std::size_t bytes) noexcept;

namespace rvt::util {

/// Where memory is that a fault may be in.
struct FaultRange {
    std::uintptr_t begin = 0;
    std::uintptr_t bytes = 0;
};

namespace detail {

// The thread sanitizer has to see the jump, and blocks signals in handlers.
#if defined(__SANITIZE_THREAD__) || (defined(__clang__) && !defined(__x86_64__))
using JumpBuffer = sigjmp_buf;
#define RVT_SET_JUMP(buffer) sigsetjmp(buffer, 1)
#define RVT_JUMP(buffer) siglongjmp(buffer, 1)
#else
using JumpBuffer = void* [5];
#define RVT_SET_JUMP(buffer) __builtin_setjmp(buffer)
#define RVT_JUMP(buffer) __builtin_longjmp(buffer, 1)
#endif

/// One guarded access of a thread, which is the only one that touches it.
struct GuardedAccess {
    JumpBuffer jump;
    FaultRange first;
    FaultRange second;
    GuardedAccess* outer;
};

/// The calling thread's innermost.
extern thread_local constinit GuardedAccess* guarded_access
    __attribute__((tls_model("initial-exec")));

/// A call: only over one does the compiler expect to come back to where the jump was set.
template <class Access>
[[gnu::noinline]] void call_access(const Access& access) noexcept {
    access();
    asm volatile("" ::: "memory");
}

}  // namespace detail

/// Has faults of guarded accesses caught from now on, unless FI_RVT_CATCH_FAULTS forbids it.
/// Threads: any. Cost: some system calls the first time.
void catch_faults() noexcept;

/// Runs `access`, which is left in its middle when it faults in one of the two ranges: it must hold
/// no lock and own nothing.
/// Returns: false when it was left.
/// Cost:    some twenty instructions.
template <class Access>
[[nodiscard, gnu::noinline]] bool guard_access(FaultRange first, FaultRange second,
                                               const Access& access) noexcept {
    detail::GuardedAccess here;
    here.first = first;
    here.second = second;
    here.outer = detail::guarded_access;
    // NOLINTNEXTLINE(cert-err52-cpp): what is jumped over has no destructors
    if (RVT_SET_JUMP(here.jump) != 0) {
        return false;  // the handler has taken it off
    }
    detail::guarded_access = &here;
    // The handler of this thread sees what comes before a fault, and nothing of what comes after.
    asm volatile("" ::: "memory");
    detail::call_access(access);
    asm volatile("" ::: "memory");
    detail::guarded_access = here.outer;
    return true;
}

inline FaultRange fault_range(const void* memory, std::size_t bytes) noexcept {
    return {.begin = reinterpret_cast<std::uintptr_t>(memory), .bytes = bytes};
}

/// As std::memmove(). Returns: false when a part of either was not there; any part may have been
/// copied.
[[nodiscard]] inline bool copy_guarded(void* to, const void* from, std::size_t bytes) noexcept {
    return guard_access(fault_range(to, bytes), fault_range(from, bytes),
                        [=] { move_bytes(to, from, bytes); });
}

// A sanitizer does not see what assembly accesses.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/// What copy_beside_guarded() copies without a place to jump to, which takes longer than the copy.
inline constexpr std::size_t kMostQuick = 512;
#else
inline constexpr std::size_t kMostQuick = 0;
#endif

/// As std::memcpy(), of which one side, `guarded`, may not be there. A fault in the other one is as
/// any other fault when there are many bytes, and ends the copy, too, when there are few.
/// Returns: false when it was left; any part may have been copied.
/// Cost:    up to kMostQuick bytes none.
[[nodiscard]] inline bool copy_beside_guarded(void* to, const void* from, std::size_t bytes,
                                              const void* guarded) noexcept {
    if (bytes <= kMostQuick) {
        return rvt_copy_quick(to, from, bytes) == 0;
    }
    return guard_access(fault_range(guarded, bytes), {}, [=] { copy_bytes(to, from, bytes); });
}

/// Whether each page of the memory is there to be read. Another thread may take it away at once.
[[nodiscard]] bool can_read(const void* memory, std::size_t bytes) noexcept;
/// The same for reading and writing. Changes nothing, also where others write meanwhile.
[[nodiscard]] bool can_write(void* memory, std::size_t bytes) noexcept;

}  // namespace rvt::util
