// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Faults of guarded accesses fail; all others are whose they were.
#include "util/fault_guard.h"

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"

using namespace rvt::util;

namespace {

constexpr std::size_t kPage = 4096;

/// Three pages; the one in the middle is what a test makes of it.
struct Pages {
    Pages() {
        catch_faults();
        std::memset(memory, 7, 3 * kPage);
    }
    ~Pages() = default;  // what is left goes with the process
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    [[nodiscard]] std::byte* middle() const { return memory + kPage; }
    void protect(int rights) const { RVT_OK(mprotect(middle(), kPage, rights)); }

    std::byte* const memory = static_cast<std::byte*>(
        mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

// What the handler below opens again, and how often it did.
std::byte* closed_page = nullptr;
int volatile opened_pages = 0;

void open_page(int, siginfo_t*, void*) {
    mprotect(closed_page, kPage, PROT_READ | PROT_WRITE);
    opened_pages = opened_pages + 1;
}

void install_open_page() {
    struct sigaction action {};
    action.sa_sigaction = open_page;
    action.sa_flags = SA_SIGINFO;
    RVT_OK(sigaction(SIGSEGV, &action, nullptr));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Does what no process may.
void fault() {
    volatile std::uintptr_t nowhere = 16;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nowhere
    *reinterpret_cast<volatile int*>(nowhere) = 1;
}

int volatile reports = 0;

// As those write that print where a process ends: the system is to end it then.
void report(int /*signal*/, siginfo_t* /*what*/, void* /*context*/) {
    reports = reports + 1;
    if (reports == 2) {
        _exit(1);
    }
}

void report_and_raise(int signal, siginfo_t* what, void* context) {
    report(signal, what, context);
    raise(signal);
}
#endif

}  // namespace

Test(fault_guard, copies_what_is_there) {
    const Pages pages;
    std::byte to[100]{};
    RVT_ASSERT(copy_guarded(to, pages.memory, sizeof to));
    RVT_ASSERT(std::memcmp(to, pages.memory, sizeof to) == 0);
}

Test(fault_guard, a_copy_from_or_to_memory_that_is_gone_fails_each_time) {
    const Pages pages;
    std::byte here[2 * kPage]{};
    munmap(pages.middle(), kPage);
    for (int i = 0; i < 3; ++i) {
        RVT_ASSERT(!copy_guarded(here, pages.memory + 8, sizeof here));
        RVT_ASSERT(!copy_guarded(pages.memory + 8, here, sizeof here));
        RVT_ASSERT(!copy_guarded(here, pages.middle(), 1));
        RVT_ASSERT(copy_guarded(here, pages.memory, kPage));
    }
}

Test(fault_guard, a_copy_beside_guarded_memory_is_of_all_bytes_and_no_more) {
    const Pages pages;
    for (std::size_t i = 0; i < kPage; ++i) {
        pages.memory[i] = static_cast<std::byte>(i * 7 / 3);
    }
    for (std::size_t bytes = 0; bytes <= 2 * kMostQuick + 2; ++bytes) {
        std::array<std::byte, 2 * kMostQuick + 4> to{};
        RVT_ASSERT(copy_beside_guarded(&to[1], pages.memory + bytes, bytes, pages.memory + bytes));
        RVT_ASSERT(std::memcmp(&to[1], pages.memory + bytes, bytes) == 0);
        RVT_ASSERT(to[0] == std::byte{0} && to[bytes + 1] == std::byte{0});
    }
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A target that takes a word back as soon as it has come, between any two instructions.
std::uint64_t watched_word = 0;
std::uint64_t awaited_word = 0;
int arrivals = 0;
bool is_torn = false;

void take_back(int) {
    arrivals += watched_word == awaited_word ? 1 : 0;
    is_torn |= watched_word != 0 && watched_word != awaited_word;
    watched_word = 0;
}

Test(fault_guard, a_word_is_written_whole_and_once) {
    constexpr unsigned long long kTrap = 1u << 8;
    struct sigaction action {};
    action.sa_handler = take_back;
    RVT_OK(sigaction(SIGTRAP, &action, nullptr));
    const std::uint64_t ones = ~std::uint64_t{0};
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{4}, std::size_t{2}}) {
        awaited_word = 0;
        std::memcpy(&awaited_word, &ones, bytes);
        arrivals = 0;
        __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | kTrap);
        const bool is_done = copy_beside_guarded(&watched_word, &ones, bytes, &watched_word);
        __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~kTrap);
        RVT_ASSERT(is_done && !is_torn);
        RVT_EQ(arrivals, 1);
    }
}
#endif

Test(fault_guard, a_copy_beside_guarded_memory_fails_where_a_byte_is_not_there) {
    const Pages pages;
    munmap(pages.middle(), kPage);
    for (std::size_t bytes = 1; bytes <= 2 * kMostQuick + 2; ++bytes) {
        std::array<std::byte, 2 * kMostQuick + 2> here{};
        for (std::byte* const there :
             {pages.middle() - bytes + 1, pages.middle() + kPage - 1, pages.middle()}) {
            RVT_ASSERT(!copy_beside_guarded(here.data(), there, bytes, there));
            RVT_ASSERT(!copy_beside_guarded(there, here.data(), bytes, there));
        }
        std::byte* const last = pages.middle() - bytes;
        RVT_ASSERT(copy_beside_guarded(here.data(), last, bytes, last));
    }
}

Test(fault_guard, memory_for_reading_only_is_not_written) {
    const Pages pages;
    pages.protect(PROT_READ);
    std::byte here[16]{};
    RVT_ASSERT(copy_guarded(here, pages.middle(), sizeof here));
    RVT_ASSERT(!copy_guarded(pages.middle(), here, sizeof here));
    RVT_ASSERT(can_read(pages.memory, 3 * kPage));
    RVT_ASSERT(!can_write(pages.memory, 3 * kPage));
    RVT_ASSERT(can_write(pages.memory, kPage));
}

Test(fault_guard, a_file_that_has_become_shorter_is_no_memory) {
    catch_faults();
    const int file = memfd_create("short", MFD_CLOEXEC);
    RVT_OK(ftruncate(file, 2 * kPage));
    void* const memory = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    RVT_OK(ftruncate(file, kPage));
    std::byte here[2 * kPage];
    RVT_ASSERT(copy_guarded(here, memory, kPage));
    RVT_ASSERT(!copy_guarded(here, memory, 2 * kPage));
    RVT_ASSERT(!can_read(memory, 2 * kPage));
}

Test(fault_guard, an_address_that_no_process_has_fails) {
    catch_faults();
    std::byte here[8];
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nowhere
    RVT_ASSERT(!copy_guarded(here, reinterpret_cast<void*>(std::uintptr_t{1} << 60), sizeof here));
}

Test(fault_guard, looking_at_memory_changes_nothing) {
    const Pages pages;
    RVT_ASSERT(can_write(pages.memory + 1, 3 * kPage - 1));
    for (std::size_t i = 0; i < 3 * kPage; ++i) {
        RVT_EQ(pages.memory[i], 7);
    }
    pages.protect(PROT_NONE);
    RVT_ASSERT(!can_read(pages.memory + kPage - 1, 2));
    RVT_ASSERT(can_read(pages.memory + kPage - 1, 1));
    RVT_ASSERT(can_read(pages.middle(), 0));
}

Test(fault_guard, a_fault_elsewhere_is_for_the_handler_that_was_there) {
    install_open_page();
    const Pages pages;
    closed_page = pages.middle();
    pages.protect(PROT_NONE);
    *const_cast<volatile std::byte*>(pages.middle()) = std::byte{1};
    RVT_EQ(opened_pages, 1);
    // Also while something else is guarded.
    pages.protect(PROT_NONE);
    RVT_ASSERT(guard_access(fault_range(pages.memory, kPage), {}, [&] {
        *const_cast<volatile std::byte*>(pages.middle()) = std::byte{2};
    }));
    RVT_EQ(opened_pages, 2);
    RVT_EQ(pages.middle()[0], 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(fault_guard, a_fault_of_the_application_ends_it_as_ever) {
    for (const int signal : {SIGSEGV, SIGBUS}) {
        const pid_t child = fork();
        if (child == 0) {
            ::signal(SIGSEGV, SIG_DFL);
            ::signal(SIGBUS, SIG_DFL);
            catch_faults();
            if (signal == SIGSEGV) {
                fault();
            }
            raise(signal);
            _exit(0);
        }
        int status = 0;
        RVT_EQ(waitpid(child, &status, 0), child);
        RVT_ASSERT(WIFSIGNALED(status));
        RVT_EQ(WTERMSIG(status), signal);
    }
}

Test(fault_guard, a_handler_for_one_fault_is_called_once) {
    for (auto* const handler : {report, report_and_raise}) {
        const pid_t child = fork();
        if (child == 0) {
            struct sigaction action {};
            action.sa_sigaction = handler;
            action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
            sigaction(SIGSEGV, &action, nullptr);
            catch_faults();
            fault();
            _exit(0);
        }
        int status = 0;
        RVT_EQ(waitpid(child, &status, 0), child);
        RVT_ASSERT(WIFSIGNALED(status));
        RVT_EQ(WTERMSIG(status), SIGSEGV);
    }
}
#endif

Test(fault_guard, is_taken_off_when_its_access_is_over) {
    install_open_page();
    const Pages pages;
    closed_page = pages.middle();
    std::byte here[16];
    RVT_ASSERT(copy_guarded(here, pages.middle(), sizeof here));
    pages.protect(PROT_NONE);
    RVT_ASSERT(!copy_guarded(here, pages.middle(), sizeof here));
    RVT_EQ(opened_pages, 0);
    *const_cast<volatile std::byte*>(pages.middle()) = std::byte{1};
    RVT_EQ(opened_pages, 1);
}
