// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is told of memory that is unmapped, moved or given back, and what must not be hindered.
#include "util/memory_watch.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"

using rvt::util::MemoryChange;
using rvt::util::MemoryWatch;
using rvt::util::PageRange;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 16 * kPage;

std::shared_ptr<MemoryWatch> watch_or_skip() {
    auto watch = MemoryWatch::acquire();
    if (!watch.is_ok()) {
        cr_skip_test("userfaultfd cannot be used here");
    }
    return watch.take();
}

std::byte* map(std::size_t bytes = kBytes, void* at = nullptr, int flags = MAP_PRIVATE) {
    void* const memory = mmap(at, bytes, PROT_READ | PROT_WRITE,
                              flags | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    const auto bytes_at = static_cast<std::byte*>(memory);
    std::fill_n(bytes_at, bytes, std::byte{1});
    return bytes_at;
}

void settle(MemoryWatch& watch) {
    while (!watch.is_settled()) {
        std::this_thread::yield();  // who reads the events has not had the processor
    }
}

/// Watched pages, and what has been told of them.
struct Watched {
    explicit Watched(std::byte* at, std::size_t bytes = kBytes) : memory(at), length(bytes) {
        RVT_OK(watch->add(range()));
        settle(*watch);
        position = watch->position();
    }
    PageRange range() const { return PageRange::of(memory, length); }
    unsigned told() {
        unsigned count = 0;
        settle(*watch);
        RVT_ASSERT(watch->changes_since(position, [&](const MemoryChange& change) {
            count += change.range.overlaps(range()) ? 1 : 0;
            last = change;
        }));
        return count;
    }

    std::shared_ptr<MemoryWatch> watch = watch_or_skip();
    std::byte* memory;
    std::size_t length;
    std::uint64_t position = 0;
    MemoryChange last{};
};

/// From now on the kernel refuses this call.
void forbid(long call) {
    const auto number = static_cast<std::uint32_t>(call);
    std::array<sock_filter, 4> filter{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
    const sock_fprog program{.len = filter.size(), .filter = filter.data()};
    RVT_ASSERT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    RVT_ASSERT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

}  // namespace

TestSuite(memory_watch, .timeout = 60);

Test(memory_watch, says_nothing_of_memory_that_stays) {
    Watched pages(map());
    std::fill_n(pages.memory, kBytes, std::byte{2});
    RVT_EQ(pages.told(), 0);
}

Test(memory_watch, tells_of_memory_that_is_unmapped) {
    Watched pages(map());
    munmap(pages.memory, kBytes);
    RVT_EQ(pages.told(), 1);
    RVT_ASSERT(pages.last.is_unmapped);
    RVT_EQ(pages.last.range.begin, pages.range().begin);
    RVT_EQ(pages.last.range.end, pages.range().end);
}

Test(memory_watch, tells_of_a_part_that_is_unmapped) {
    Watched pages(map());
    munmap(pages.memory + kPage, kPage);
    RVT_EQ(pages.told(), 1);
    RVT_EQ(pages.last.range.bytes(), kPage);
}

Test(memory_watch, tells_of_memory_that_another_mapping_takes_the_place_of) {
    Watched pages(map());
    map(kBytes, pages.memory);
    RVT_EQ(pages.told(), 1);
    RVT_ASSERT(pages.last.is_unmapped);
}

Test(memory_watch, tells_of_pages_that_are_given_back) {
    Watched pages(map());
    madvise(pages.memory, kBytes, MADV_DONTNEED);
    RVT_EQ(pages.told(), 1);
    RVT_ASSERT(!pages.last.is_unmapped);
}

Test(memory_watch, tells_of_pages_that_may_be_given_back) {
    Watched pages(map());
    madvise(pages.memory, kBytes, MADV_FREE);
    RVT_EQ(pages.told(), 1);
}

Test(memory_watch, tells_of_memory_that_is_moved) {
    Watched pages(map());
    const void* const moved = mremap(pages.memory, kBytes, 64 * kBytes, MREMAP_MAYMOVE);
    RVT_ASSERT(moved != MAP_FAILED);
    RVT_ASSERT(moved != pages.memory);
    RVT_ASSERT(pages.told() >= 1);
    RVT_ASSERT(pages.last.is_unmapped);
}

Test(memory_watch, tells_of_a_heap_that_shrinks) {
    const auto watch = watch_or_skip();
    auto* const end = static_cast<std::byte*>(sbrk(0));
    const std::size_t gap = (kPage - reinterpret_cast<std::uintptr_t>(end) % kPage) % kPage;
    RVT_ASSERT(sbrk(static_cast<std::intptr_t>(gap + kBytes)) == end);
    std::fill_n(end + gap, kBytes, std::byte{1});
    Watched pages(end + gap);
    RVT_ASSERT(sbrk(0) == end + gap + kBytes);  // nobody else has made it longer
    RVT_ASSERT(brk(end + gap) == 0);
    RVT_EQ(pages.told(), 1);
    RVT_ASSERT(pages.last.is_unmapped);
}

Test(memory_watch, tells_of_a_large_block_that_is_freed) {
    constexpr std::size_t kLarge = 4u << 20;
    void* const block = std::malloc(kLarge);
    RVT_ASSERT(block != nullptr);
    Watched pages(static_cast<std::byte*>(block), kLarge);
    std::free(block);
    // That of a sanitizer keeps it for a while.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RVT_EQ(pages.told(), 1);
#endif
}

Test(memory_watch, lets_the_kernel_fill_pages_that_have_been_given_back) {
    Watched pages(map());
    madvise(pages.memory, kBytes, MADV_DONTNEED);
    const rvt::util::UniqueFd word(eventfd(5, EFD_CLOEXEC));
    RVT_EQ(read(word.get(), pages.memory, 8), 8);
    RVT_EQ(pages.memory[0], std::byte{5});
}

Test(memory_watch, lets_the_program_fill_them_too) {
    Watched pages(map());
    madvise(pages.memory, kBytes, MADV_DONTNEED);
    pages.memory[7] = std::byte{3};
    RVT_EQ(pages.memory[8], std::byte{0});
}

Test(memory_watch, says_nothing_of_what_is_not_watched_any_more) {
    Watched pages(map());
    pages.watch->remove(pages.range());
    munmap(pages.memory, kBytes);
    RVT_EQ(pages.told(), 0);
}

Test(memory_watch, goes_on_where_two_ranges_met) {
    Watched pages(map());
    const PageRange part = PageRange::of(pages.memory + kPage, 2 * kPage);
    RVT_OK(pages.watch->add(part));
    pages.watch->remove(pages.range());
    munmap(pages.memory, kPage);
    RVT_EQ(pages.told(), 0);
    munmap(pages.memory + kPage, kPage);
    RVT_EQ(pages.told(), 1);
}

Test(memory_watch, leaves_alone_who_took_the_place_of_what_it_watched) {
    Watched pages(map());
    map(kBytes, pages.memory);
    Watched others(pages.memory);
    pages.watch->remove(pages.range(), true);
    munmap(others.memory, kBytes);
    RVT_EQ(others.told(), 1);
}

Test(memory_watch, says_when_changes_have_been_lost) {
    Watched pages(map());
    for (unsigned i = 0; i < 3000; ++i) {
        madvise(pages.memory, kPage, MADV_DONTNEED);
    }
    settle(*pages.watch);
    RVT_ASSERT(!pages.watch->changes_since(pages.position, [](const MemoryChange&) {}));
    madvise(pages.memory, kPage, MADV_DONTNEED);
    RVT_EQ(pages.told(), 1);
}

Test(memory_watch, misses_nothing_while_many_threads_unmap) {
    const auto watch = watch_or_skip();
    std::uint64_t position = watch->position();
    constexpr unsigned kThreads = 4;
    constexpr unsigned kRounds = 200;
    std::array<unsigned, kThreads> missed{};  // each of one thread
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            std::uint64_t own = position;
            for (unsigned i = 0; i < kRounds; ++i) {
                std::byte* const memory = map();
                const PageRange range = PageRange::of(memory, kBytes);
                bool has = !watch->add(range).is_ok();
                munmap(memory, kBytes);
                settle(*watch);
                const bool all = watch->changes_since(own, [&](const MemoryChange& change) {
                    has |= change.is_unmapped && change.range.contains(range);
                });
                missed[t] += !has && all ? 1 : 0;
                watch->remove(range, true);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const unsigned count : missed) {
        RVT_EQ(count, 0);
    }
}

Test(memory_watch, ends_while_others_unmap) {
    for (unsigned i = 0; i < 50; ++i) {
        std::byte* const memory = map();
        auto pages = std::make_unique<Watched>(memory);
        std::thread other([memory] { munmap(memory, kBytes); });
        pages.reset();
        other.join();
    }
}

Test(memory_watch, knows_what_is_private) {
    const auto watch = watch_or_skip();
    std::byte* const ours = map();
    RVT_ASSERT(watch->is_private(PageRange::of(ours, kBytes)));
    std::byte* const shared = map(kBytes, nullptr, MAP_SHARED);
    RVT_ASSERT(!watch->is_private(PageRange::of(shared, kBytes)));
    RVT_ASSERT(watch->has_shared(PageRange::of(shared, kBytes)));
    madvise(ours + kPage, kPage, MADV_DONTNEED);
    RVT_ASSERT(!watch->is_private(PageRange::of(ours, kBytes)));
    RVT_ASSERT(!watch->has_shared(PageRange::of(ours, kBytes)));
}

Test(memory_watch, is_nothing_in_a_forked_child) {
    Watched pages(map());
    const pid_t child = fork();
    if (child == 0) {
        const bool is_settled = pages.watch->is_settled();
        const bool adds = pages.watch->add(pages.range()).is_ok();
        pages.watch->remove(pages.range());
        munmap(pages.memory, kBytes);
        pages.watch.reset();
        _exit(is_settled || adds ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    RVT_EQ(status, 0);
    RVT_EQ(pages.told(), 0);
    munmap(pages.memory, kBytes);
    RVT_EQ(pages.told(), 1);
}

// ThreadSanitizer does not know the threads of a child whose parent had some.
#if !defined(__SANITIZE_THREAD__)
Test(memory_watch, is_one_of_its_own_in_a_forked_child_that_asks) {
    const auto inherited = watch_or_skip();
    const pid_t child = fork();
    if (child == 0) {
        auto own = MemoryWatch::acquire();
        if (own.is_ok()) {
            settle(*own.value());
        }
        _exit(own.is_ok() && own.value() != inherited ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    RVT_EQ(status, 0);
}
#endif

Test(memory_watch, is_refused_where_the_system_forbids_it) {
    forbid(SYS_userfaultfd);
    RVT_EQ(MemoryWatch::acquire(), EPERM);
}

Test(memory_watch, is_one_for_the_process) {
    const auto watch = watch_or_skip();
    RVT_ASSERT(MemoryWatch::acquire().value() == watch);
}
