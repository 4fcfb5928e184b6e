// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whether memory of this process is still what it was when somebody registered it: tells of what is
// unmapped, moved or given back, without patching any code. By userfaultfd(2), of which only the
// events of the address space are used: ranges are registered for write protection and nothing is
// ever protected, so that no page fault comes here, and a read(2) into a hole of a watched range
// goes on as ever.
//
// A thread that unmaps watched memory waits in the kernel until the event has been read. Who reads
// is therefore a thread of its own that takes no lock, allocates nothing and touches no memory but
// this object's: it writes changes into a ring of fixed size, in which their takers look.
//
// That the ring holds every change which has been made is not seen from the ring: between the end
// of a mapping and its event other threads run, and may get the same addresses anew. But from
// before the change until its event has been read the kernel answers requests of this descriptor
// with EAGAIN, and is_settled() makes one.
//
// What changes through a file (truncation, holes) or in another process is not seen: only private
// memory without a file can be told of, see is_private().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include <pthread.h>

#include "util/annotations.h"
#include "util/cpu.h"
#include "util/fork_guard.h"
#include "util/mutex.h"
#include "util/status.h"
#include "util/unique_fd.h"

namespace rvt::util {

/// Whole pages of this process.
struct PageRange {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;

    /// Those that hold some of these bytes.
    static PageRange of(const void* address, std::size_t length) noexcept;
    [[nodiscard]] std::size_t bytes() const noexcept { return end - begin; }
    [[nodiscard]] bool overlaps(const PageRange& other) const noexcept {
        return begin < other.end && other.begin < end;
    }
    [[nodiscard]] bool contains(const PageRange& other) const noexcept {
        return begin <= other.begin && other.end <= end;
    }
};

struct MemoryChange {
    PageRange range;
    bool is_unmapped = false;  // or moved; else its pages have been given back
};

/// field       | written by         | read by        | order
/// slots_      | the watching thread | changes_since() | release, acquire
/// reserved_   | the same           | the same       | relaxed, before the slots
/// head_       | the same           | the same       | release, acquire
/// is_reading_ | the same           | is_settled()   | sequentially consistent
///
/// Threads: any, where a member does not say otherwise. A forked child has no watch: what it
/// inherits says that nothing is settled.
class MemoryWatch {
  public:
    /// The process's, which begins with the first who asks and ends with the last who lets go.
    /// Returns: why there is none, which has been logged: ENOSYS, EPERM or EINVAL as userfaultfd(2)
    ///          says, EOPNOTSUPP where the kernel was tried and does not do all of this.
    static Result<std::shared_ptr<MemoryWatch>> acquire();
    ~MemoryWatch();
    MemoryWatch(const MemoryWatch&) = delete;
    MemoryWatch& operator=(const MemoryWatch&) = delete;

    /// Begins to tell of changes of this memory, which are told of until remove() has been called
    /// as often. Returns: errors of the kernel; EBUSY where another userfaultfd has it.
    Status add(const PageRange& range);
    /// @param is_unmapped  As a change has said of a part of it: somebody else may be there now.
    void remove(const PageRange& range, bool is_unmapped = false) noexcept;
    /// Whether all these pages are present, private, and of no file. Cost: eight bytes read a page.
    [[nodiscard]] bool is_private(const PageRange& range) const noexcept;
    /// Whether one of those that are present is shared, or of a file. Cost: as above.
    [[nodiscard]] bool has_shared(const PageRange& range) const noexcept;

    /// Where changes_since() begins for who has just come.
    [[nodiscard]] std::uint64_t position() const noexcept {
        // acquire: pairs with the release in tell().
        return head_.load(std::memory_order_acquire);
    }
    /// Whether no change is under way, so that changes_since() has all there were. After false ask
    /// again, or do without. Cost: a system call that does nothing.
    [[nodiscard]] bool is_settled() noexcept;
    /// Calls take(const MemoryChange&) for each change from `position` on. Returns: false when
    /// there were more than are kept; `position` is the newest then, too.
    template <class Take>
    bool changes_since(std::uint64_t& position, Take take) noexcept {
        const std::uint64_t head = this->position();
        for (; position != head; ++position) {
            const MemoryChange change = read(position);
            // relaxed: whoever sees a slot that has been written again sees that it was reserved.
            if (reserved_.load(std::memory_order_relaxed) - position > kSlots) {
                position = head;
                return false;
            }
            take(change);
        }
        return true;
    }

  private:
    struct Slot {
        std::atomic<std::uintptr_t> begin{0};
        std::atomic<std::uintptr_t> end{0};  // its lowest bit: unmapped
    };
    static constexpr std::size_t kSlots = 1024;

    MemoryWatch() = default;
    Status start();
    Status start_thread();
    Status try_out();
    [[nodiscard]] bool try_unsettled() noexcept;
    [[nodiscard]] bool try_changes() noexcept;
    template <class IsGood>
    bool all_pages(const PageRange& range, IsGood is_good) const noexcept;
    Status register_pages(const PageRange& range) noexcept;
    void unregister_pages(const PageRange& range) noexcept;
    [[nodiscard]] bool is_quiet() const noexcept;
    [[nodiscard]] bool has_told(std::uint64_t position, const PageRange& range,
                                bool is_unmapped) noexcept;
    [[nodiscard]] bool is_inherited() const noexcept { return generation_ != fork_generation(); }

    // ---- the watching thread
    static void* entry(void* self) noexcept;
    void run() noexcept;
    void read_events() noexcept;
    void tell(std::uintptr_t begin, std::uintptr_t end, bool is_unmapped) noexcept;
    [[nodiscard]] MemoryChange read(std::uint64_t position) const noexcept;

    const unsigned generation_ = fork_generation();
    ProcessFd events_;
    ProcessFd stop_;
    UniqueFd page_map_;
    int events_fd_ = -1;  // of the thread, which closes it in the end
    pthread_t thread_{};
    bool is_started_ = false;

    alignas(kCacheLine) std::atomic<std::uint64_t> head_{0};
    std::atomic<std::uint64_t> reserved_{0};
    std::atomic<bool> is_reading_{false};
    std::array<Slot, kSlots> slots_{};

    Mutex lock_;  // order: after those of who watches
    std::multimap<std::uintptr_t, std::uintptr_t> ranges_ RVT_GUARDED_BY(lock_);  // end by begin
};

}  // namespace rvt::util
