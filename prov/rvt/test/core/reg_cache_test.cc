// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which registrations are found again, and which must not be: over the NIC that exists only here,
// with memory of this process.
#include "core/reg_cache.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/device.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using Want = RegCache::Want;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 16 * kPage;

std::byte* map(std::size_t bytes = kBytes, void* at = nullptr, int flags = MAP_PRIVATE) {
    void* const memory = mmap(at, bytes, PROT_READ | PROT_WRITE,
                              flags | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    auto* const begin = static_cast<std::byte*>(memory);
    std::fill_n(begin, bytes, std::byte{1});
    return begin;
}

std::shared_ptr<util::MemoryWatch> watch_or_skip() {
    auto watch = util::MemoryWatch::acquire();
    if (!watch.is_ok()) {
        cr_skip_test("userfaultfd cannot be used here");
    }
    return watch.take();
}

struct Cached {
    explicit Cached(std::shared_ptr<util::MemoryWatch> with, std::size_t most = 8,
                    std::uint64_t most_bytes = 1 << 20)
        : nic(verbs::Nic::open(registry, {.device = "mock0",
                                          .port = 2,
                                          .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}})
                  .take()),
          watch(std::move(with)) {
        RVT_OK(keep(context, open_device(nic->device())));
        RVT_OK(keep(pd, alloc_pd(*context)));
        cache = std::make_unique<RegCache>(RegCacheAttr{
            .pd = pd.get(), .watch = watch, .max_bytes = most_bytes, .max_regions = most});
    }
    /// What is asked for while a change is under way need not be kept.
    void settle() const {
        while (watch != nullptr && !watch->is_settled()) {
            sched_yield();
        }
    }
    /// Uses the memory once. Returns: by which key.
    std::uint32_t use(const void* memory, std::size_t length = kBytes, Want want = Want::kKept) {
        if (want == Want::kKept) {
            settle();
        }
        const auto region = cache->take(memory, length, RegCache::Nic::kReads, want);
        RVT_OK(region);
        const std::uint32_t key = region.value()->lkey();
        cache->give_back(*region.value());
        return key;
    }
    std::uint64_t sum(Stat stat) { return nic->device().stats().sum(stat); }

    verbs::MockNic mock;
    Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    Owned<Context> context;
    Owned<Pd> pd;
    const std::shared_ptr<util::MemoryWatch> watch;
    std::unique_ptr<RegCache> cache;
};

}  // namespace

TestSuite(reg_cache, .timeout = 60);

Test(reg_cache, finds_what_was_used_before) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    RVT_EQ(on.use(memory), on.use(memory));
    RVT_EQ(on.mock.regions.size(), 1);
    RVT_EQ(on.sum(Stat::kRegionsFound), 1);
    RVT_EQ(on.sum(Stat::kRegionsKept), 1);
}

Test(reg_cache, registers_whole_pages_that_the_nic_may_write_and_peers_read) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory + 100, kPage);
    RVT_EQ(on.mock.regions[0].addr, reinterpret_cast<std::uintptr_t>(memory));
    RVT_EQ(on.mock.regions[0].length, 2 * kPage);
    RVT_EQ(on.mock.regions[0].access,
           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
}

Test(reg_cache, finds_a_part_of_what_was_used) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    const std::uint32_t whole = on.use(memory);
    on.use(memory + 2 * kPage, kPage);
    RVT_EQ(on.use(memory + kPage + 5, 3 * kPage), whole);
    RVT_EQ(on.mock.regions.size(), 1);
}

Test(reg_cache, registers_more_than_a_region_holds_anew) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    const std::uint32_t part = on.use(memory, kPage);
    const std::uint32_t whole = on.use(memory);
    RVT_NE(part, whole);
    RVT_EQ(on.use(memory, kPage), whole);
}

Test(reg_cache, does_not_find_what_was_unmapped_and_mapped_again) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory);
    munmap(memory, kBytes);
    map(kBytes, memory);
    on.use(memory);
    RVT_EQ(on.mock.regions.size(), 2);
    RVT_EQ(on.sum(Stat::kRegionsStale), 1);
    RVT_EQ(on.cache->regions(), 1);
}

Test(reg_cache, does_not_find_pages_that_were_given_back) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory);
    madvise(memory + kPage, kPage, MADV_DONTNEED);
    std::fill_n(memory, kBytes, std::byte{2});
    on.use(memory);
    RVT_EQ(on.mock.regions.size(), 2);
}

Test(reg_cache, does_not_find_memory_that_moved) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory);
    void* const moved = mremap(memory, kBytes, 64 * kBytes, MREMAP_MAYMOVE);
    RVT_ASSERT(moved != memory);
    map(kBytes, memory);
    on.use(memory);
    RVT_EQ(on.mock.regions.size(), 2);
}

Test(reg_cache, ends_what_is_in_use_while_it_is_unmapped_with_its_last_use) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    const int before = on.mock.live;
    const auto region = on.cache->take(memory, kBytes, RegCache::Nic::kWrites, Want::kKept);
    munmap(memory, kBytes);
    map(kBytes, memory);
    on.use(memory);
    RVT_EQ(on.mock.live, before + 2);
    on.cache->give_back(*region.value());
    RVT_EQ(on.mock.live, before + 1);
}

Test(reg_cache, keeps_as_many_as_it_may_and_drops_the_oldest) {
    Cached on(watch_or_skip(), 2);
    std::byte* const memory = map();
    const std::uint32_t first = on.use(memory, kPage);
    on.use(memory + 4 * kPage, kPage);
    RVT_EQ(on.use(memory, kPage), first);
    on.use(memory + 8 * kPage, kPage);
    RVT_EQ(on.cache->regions(), 2);
    RVT_EQ(on.use(memory, kPage), first);
    RVT_EQ(on.sum(Stat::kRegionsDropped), 1);
}

Test(reg_cache, keeps_as_many_bytes_as_it_may) {
    Cached on(watch_or_skip(), 8, 4 * kPage);
    std::byte* const memory = map();
    on.use(memory, 3 * kPage);
    on.use(memory + 8 * kPage, 3 * kPage);
    RVT_EQ(on.cache->bytes(), 3 * kPage);
    RVT_EQ(on.cache->take(memory, 5 * kPage, RegCache::Nic::kReads, Want::kKept), EOPNOTSUPP);
}

Test(reg_cache, registers_for_one_use_what_it_has_no_room_for) {
    Cached on(watch_or_skip(), 1);
    std::byte* const memory = map();
    const int before = on.mock.live;
    const auto kept = on.cache->take(memory, kPage, RegCache::Nic::kReads, Want::kKept);
    RVT_EQ(on.cache->take(memory + kBytes / 2, kPage, RegCache::Nic::kReads, Want::kKept),
           EOPNOTSUPP);
    on.use(memory + kBytes / 2, kPage, Want::kAny);
    RVT_EQ(on.mock.live, before + 1);
    RVT_EQ(on.sum(Stat::kRegionsOnce), 1);
    on.cache->give_back(*kept.value());
}

Test(reg_cache, keeps_no_shared_memory) {
    Cached on(watch_or_skip());
    std::byte* const memory = map(kBytes, nullptr, MAP_SHARED);
    RVT_EQ(on.cache->take(memory, kBytes, RegCache::Nic::kReads, Want::kKept), EOPNOTSUPP);
    on.use(memory, kBytes, Want::kAny);
    RVT_EQ(on.cache->regions(), 0);
}

Test(reg_cache, keeps_no_memory_of_a_file) {
    Cached on(watch_or_skip());
    const util::UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    void* const memory = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file.get(), 0);
    RVT_ASSERT(memory != MAP_FAILED);
    RVT_ASSERT(*static_cast<volatile char*>(memory) != 0);
    RVT_EQ(on.cache->take(memory, kPage, RegCache::Nic::kReads, Want::kKept), EOPNOTSUPP);
}

Test(reg_cache, keeps_nothing_without_a_watch) {
    Cached on(nullptr);
    std::byte* const memory = map();
    RVT_ASSERT(!on.cache->keeps());
    RVT_EQ(on.cache->take(memory, kBytes, RegCache::Nic::kReads, Want::kKept), EOPNOTSUPP);
    const int before = on.mock.live;
    on.use(memory, kBytes, Want::kAny);
    RVT_EQ(on.mock.live, before);
}

Test(reg_cache, makes_room_where_the_limit_of_locked_memory_is_reached) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory, kPage);
    on.mock.reg_mr_error = ENOMEM;
    RVT_EQ(on.cache->take(memory + 4 * kPage, kPage, RegCache::Nic::kReads, Want::kAny), ENOMEM);
    RVT_EQ(on.cache->regions(), 0);
}

Test(reg_cache, drops_nothing_for_memory_that_is_not_there) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory, kPage);
    on.mock.reg_mr_error = EFAULT;
    RVT_EQ(on.cache->take(memory + 4 * kPage, kPage, RegCache::Nic::kWrites, Want::kAny), EFAULT);
    RVT_EQ(on.cache->regions(), 1);
}

Test(reg_cache, leaves_nothing_registered) {
    auto watch = watch_or_skip();
    Cached on(watch);
    std::byte* const memory = map();
    const int before = on.mock.live;
    on.use(memory);
    on.cache.reset();
    RVT_EQ(on.mock.live, before);
    const std::uint64_t position = watch->position();
    munmap(memory, kBytes);
    RVT_EQ(watch->position(), position);
}

Test(reg_cache, keeps_two_that_share_a_page) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    const std::uint32_t first = on.use(memory, kPage + 100);
    const std::uint32_t second = on.use(memory + kPage + 100, kPage);
    RVT_EQ(on.use(memory, kPage + 100), first);
    RVT_EQ(on.use(memory + kPage + 100, kPage), second);
    RVT_EQ(on.mock.regions.size(), 2);
}

Test(reg_cache, is_the_models_whatever_becomes_of_the_memory) {
    Cached on(watch_or_skip(), 4);
    constexpr std::size_t kPlaces = 8;
    std::byte* const memory = map(kPlaces * kBytes);
    std::vector<unsigned> lives(kPlaces);  // of each place: how often it has been mapped
    std::vector<std::pair<std::uint32_t, unsigned>> keys;  // and in which life it was registered
    unsigned random = 1;
    for (unsigned i = 0; i < 4000; ++i) {
        random = random * 1103515245 + 12345;
        const std::size_t place = random >> 16 & (kPlaces - 1);
        std::byte* const at = memory + place * kBytes;
        if ((random >> 24 & 3) == 0) {
            map(kBytes, at);
            ++lives[place];
            continue;
        }
        const std::size_t before = on.mock.regions.size();
        const std::uint32_t key = on.use(at);
        const auto known = std::ranges::find(keys, key, &std::pair<std::uint32_t, unsigned>::first);
        if (on.mock.regions.size() != before) {
            if (known != keys.end()) {
                keys.erase(known);
            }
            keys.emplace_back(key, lives[place] * kPlaces + place);
        } else {
            RVT_ASSERT(known != keys.end());
            RVT_EQ(known->second, lives[place] * kPlaces + place);
        }
    }
}

Test(reg_cache, misses_nothing_while_other_threads_map_and_unmap) {
    Cached on(watch_or_skip(), 64);
    std::atomic<bool> is_over{false};
    std::vector<std::thread> others;
    for (unsigned t = 0; t < 3; ++t) {
        others.emplace_back([&] {
            // relaxed: nothing else is told by it.
            while (!is_over.load(std::memory_order_relaxed)) {
                munmap(map(), kBytes);
            }
        });
    }
    for (unsigned i = 0; i < 500; ++i) {
        std::byte* const memory = map();
        const std::size_t before = on.mock.regions.size();
        on.use(memory, kBytes, Want::kAny);
        RVT_EQ(on.mock.regions.size(), before + 1);  // whoever had this address before
        munmap(memory, kBytes);
    }
    // relaxed: as above.
    is_over.store(true, std::memory_order_relaxed);
    for (std::thread& other : others) {
        other.join();
    }
}

Test(reg_cache, keeps_nothing_in_a_forked_child) {
    Cached on(watch_or_skip());
    std::byte* const memory = map();
    on.use(memory);
    const pid_t child = fork();
    if (child == 0) {
        const bool keeps =
            on.cache->take(memory, kBytes, RegCache::Nic::kReads, Want::kKept).is_ok();
        const bool registers =
            on.cache->take(memory, kBytes, RegCache::Nic::kReads, Want::kAny).is_ok();
        _exit(!keeps && registers ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    RVT_EQ(status, 0);
    const std::size_t before = on.mock.regions.size();
    on.use(memory);
    RVT_EQ(on.mock.regions.size(), before);
}
