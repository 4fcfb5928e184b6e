// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The thread that reads the events, and the trial at the start: what is needed of the kernel is not
// told by its version, and some systems forbid it.
#include "util/memory_watch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "util/log.h"

namespace rvt::util {
namespace {

constexpr const char* kThreadName = "rvt-memory";
constexpr std::uint64_t kFeatures =
    UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP;
constexpr unsigned kLooks = 256;       // while the thread is between an event and the ring; then
constexpr unsigned kYields = 16;       // it may want the processor
constexpr int kTrialMs = 5000;         // for what takes microseconds
constexpr std::size_t kEntries = 512;  // of the page map, at once
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;  // or shared
constexpr std::uintptr_t kUnmapped = 1;

const std::uintptr_t kPageBytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));

Mutex current_lock;  // order: after ForkHold, so that no child finds it taken

/// Outlives static destruction: the first user may come late.
std::weak_ptr<MemoryWatch>& current() noexcept RVT_REQUIRES(current_lock) {
    static auto* const kCurrent = new std::weak_ptr<MemoryWatch>;
    return *kCurrent;
}

std::uintptr_t address_of(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
}

uffdio_range to_kernel(const PageRange& range) noexcept {
    return {.start = range.begin, .len = range.bytes()};
}

/// Signals of the application are not for this thread.
int start_deaf(pthread_t& thread, void* (*entry)(void*), void* context) noexcept {
    sigset_t all{};
    sigset_t before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, nullptr, entry, context);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

/// Written pages to try things with.
class TrialPages {
  public:
    explicit TrialPages(std::size_t pages) noexcept
        : bytes_(pages * kPageBytes),
          memory_(
              mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        if (is_there()) {
            std::memset(memory_, 1, bytes_);
        }
    }
    ~TrialPages() { unmap(); }
    TrialPages(const TrialPages&) = delete;
    TrialPages& operator=(const TrialPages&) = delete;

    [[nodiscard]] bool is_there() const noexcept { return memory_ != MAP_FAILED; }
    [[nodiscard]] void* memory() const noexcept { return memory_; }
    [[nodiscard]] PageRange range() const noexcept { return PageRange::of(memory_, bytes_); }
    void unmap() noexcept {
        if (is_there()) {
            munmap(memory_, bytes_);
            memory_ = MAP_FAILED;
        }
    }
    /// Returns: whether they have moved.
    bool move() noexcept {
        void* const place = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void* const moved = mremap(memory_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        memory_ = moved != MAP_FAILED ? moved : memory_;
        return moved != MAP_FAILED;
    }

  private:
    std::size_t bytes_;
    void* memory_;
};

}  // namespace

PageRange PageRange::of(const void* address, std::size_t length) noexcept {
    const std::uintptr_t begin = address_of(address);
    return {.begin = begin & ~(kPageBytes - 1),
            .end = (begin + length + kPageBytes - 1) & ~(kPageBytes - 1)};
}

// ---- life ----

Result<std::shared_ptr<MemoryWatch>> MemoryWatch::acquire() {
    const ForkHold hold;
    const Guard guard(current_lock);
    std::shared_ptr<MemoryWatch> watch = current().lock();
    if (watch != nullptr && !watch->is_inherited()) {
        return watch;
    }
    watch.reset(new MemoryWatch);
    const Status started = watch->start();
    if (!started.is_ok()) {
        RVT_INFO(kMr,
                 "memory that is unmapped cannot be noticed (userfaultfd: %s): the application's "
                 "stays registered only while it is in use",
                 strerrordesc_np(started.error()));
        return started;
    }
    current() = watch;
    return watch;
}

Status MemoryWatch::start() {
    events_ = ProcessFd(UniqueFd(
        static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY))));
    if (!events_.is_open()) {
        return errno;
    }
    stop_ = ProcessFd(UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    page_map_ = UniqueFd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    if (!stop_.is_open() || !page_map_.is_open()) {
        return errno;
    }
    uffdio_api api{.api = UFFD_API, .features = kFeatures, .ioctls = 0};
    if (ioctl(events_.get(), UFFDIO_API, &api) != 0) {
        return errno;
    }
    return try_out();
}

Status MemoryWatch::start_thread() {
    events_fd_ = events_.get();
    const int error = start_deaf(thread_, entry, this);
    is_started_ = error == 0;
    return error;
}

/// Ends the thread last: until the descriptor is closed, somebody may wait for it to read.
MemoryWatch::~MemoryWatch() {
    if (!is_started_ || is_inherited()) {
        return;
    }
    const ForkHold hold;
    for (const auto& [begin, end] : ranges_) {
        unregister_pages({.begin = begin, .end = end});
    }
    // The number is the thread's to close, and no child's to inherit meanwhile.
    static_cast<void>(events_.release().release());
    [[maybe_unused]] const int told = eventfd_write(stop_.get(), 1);
    pthread_join(thread_, nullptr);
}

// ---- the watching thread ----

void* MemoryWatch::entry(void* self) noexcept {
    pthread_setname_np(pthread_self(), kThreadName);
    static_cast<MemoryWatch*>(self)->run();
    return nullptr;
}

void MemoryWatch::run() noexcept {
    std::array<pollfd, 2> ready{{{.fd = events_fd_, .events = POLLIN, .revents = 0},
                                 {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
    while (ready[1].revents == 0) {
        if (poll(ready.data(), ready.size(), -1) > 0 && ready[0].revents != 0) {
            read_events();
        }
    }
    ::close(events_fd_);
}

void MemoryWatch::read_events() noexcept {
    std::array<uffd_msg, 8> messages;
    // Sequentially consistent, pairs with the load in is_settled(): who finds the kernel settled
    // after an event has been read finds this set until the ring has the event.
    is_reading_.store(true, std::memory_order_seq_cst);
    const ssize_t bytes = ::read(events_fd_, messages.data(), sizeof messages);
    const std::size_t count = bytes > 0 ? static_cast<std::size_t>(bytes) / sizeof(uffd_msg) : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto& what = messages[i].arg;
        switch (messages[i].event) {
            case UFFD_EVENT_REMOVE: tell(what.remove.start, what.remove.end, false); break;
            case UFFD_EVENT_UNMAP: tell(what.remove.start, what.remove.end, true); break;
            case UFFD_EVENT_REMAP:
                tell(what.remap.from, what.remap.from + what.remap.len, true);
                break;
            default: break;
        }
    }
    // Sequentially consistent: pairs with the same.
    is_reading_.store(false, std::memory_order_seq_cst);
}

void MemoryWatch::tell(std::uintptr_t begin, std::uintptr_t end, bool is_unmapped) noexcept {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);  // relaxed: our own
    reserved_.store(head + 1, std::memory_order_relaxed);  // relaxed: the slot is released
    Slot& slot = slots_[head % kSlots];
    // release: pairs with the acquire in read(): who sees it sees that the slot was reserved.
    slot.begin.store(begin, std::memory_order_release);
    // release: as above; pairs with the acquire in read().
    slot.end.store(end | (is_unmapped ? kUnmapped : 0), std::memory_order_release);
    // release: pairs with the acquire in position(): who sees the position sees the slot.
    head_.store(head + 1, std::memory_order_release);
}

MemoryChange MemoryWatch::read(std::uint64_t position) const noexcept {
    const Slot& slot = slots_[position % kSlots];
    // acquire: pairs with the release in tell().
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    // acquire: pairs with the release in tell().
    const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
    return {.range = {.begin = begin, .end = end & ~kUnmapped},
            .is_unmapped = (end & kUnmapped) != 0};
}

// ---- who asks ----

/// The kernel looks for changes under way before it looks at the range, which is none.
bool MemoryWatch::is_quiet() const noexcept {
    uffdio_zeropage nothing{};
    return ioctl(events_.get(), UFFDIO_ZEROPAGE, &nothing) != 0 && errno == EINVAL;
}

bool MemoryWatch::is_settled() noexcept {
    if (is_inherited() || !is_quiet()) {
        return false;
    }
    for (unsigned i = 0; i < kLooks + kYields; ++i) {
        // Sequentially consistent: pairs with the stores in read_events().
        if (!is_reading_.load(std::memory_order_seq_cst)) {
            return true;
        }
        i < kLooks ? cpu_pause() : static_cast<void>(sched_yield());
    }
    return false;
}

Status MemoryWatch::register_pages(const PageRange& range) noexcept {
    uffdio_register request{
        .range = to_kernel(range), .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
    return ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0 ? kOk : Status(errno);
}

/// What is not there any more cannot be, and need not be.
void MemoryWatch::unregister_pages(const PageRange& range) noexcept {
    uffdio_range request = to_kernel(range);
    ioctl(events_.get(), UFFDIO_UNREGISTER, &request);
}

Status MemoryWatch::add(const PageRange& range) {
    if (is_inherited()) {
        return EOPNOTSUPP;
    }
    const Guard guard(lock_);
    const Status registered = register_pages(range);
    if (registered.is_ok()) {
        ranges_.emplace(range.begin, range.end);
    }
    return registered;
}

/// Others may watch parts of it.
void MemoryWatch::remove(const PageRange& range, bool is_unmapped) noexcept {
    if (is_inherited()) {
        return;
    }
    const Guard guard(lock_);
    const auto [first, last] = ranges_.equal_range(range.begin);
    const auto own =
        std::find_if(first, last, [&](const auto& r) { return r.second == range.end; });
    if (own != last) {
        ranges_.erase(own);
    }
    if (is_unmapped) {
        return;
    }
    std::uintptr_t at = range.begin;
    for (const auto& [begin, end] : ranges_) {
        if (begin >= range.end) {
            break;
        }
        if (end <= at) {
            continue;
        }
        if (begin > at) {
            unregister_pages({.begin = at, .end = begin});
        }
        at = end;
    }
    if (at < range.end) {
        unregister_pages({.begin = at, .end = range.end});
    }
}

template <class IsGood>
bool MemoryWatch::all_pages(const PageRange& range, IsGood is_good) const noexcept {
    std::array<std::uint64_t, kEntries> entries;
    const std::size_t last = range.end / kPageBytes;
    for (std::size_t page = range.begin / kPageBytes; page < last;) {
        const std::size_t count = std::min(kEntries, last - page);
        const std::size_t bytes = count * sizeof entries[0];
        const auto at = static_cast<off_t>(page * sizeof entries[0]);
        if (pread(page_map_.get(), entries.data(), bytes, at) != static_cast<ssize_t>(bytes) ||
            !std::all_of(entries.begin(), entries.begin() + count, is_good)) {
            return false;
        }
        page += count;
    }
    return !is_inherited();
}

bool MemoryWatch::is_private(const PageRange& range) const noexcept {
    return all_pages(
        range, [](std::uint64_t entry) { return (entry & (kPresent | kOfFile)) == kPresent; });
}

bool MemoryWatch::has_shared(const PageRange& range) const noexcept {
    return !all_pages(range, [](std::uint64_t entry) { return (entry & kOfFile) == 0; });
}

// ---- the trial ----

Status MemoryWatch::try_out() {
    if (!try_unsettled()) {
        return EOPNOTSUPP;
    }
    return is_started_ && try_changes() ? kOk : Status(EOPNOTSUPP);
}

/// Whether a change that nobody has read is noticed: what another thread unmaps stays in doubt
/// until the watching thread begins.
bool MemoryWatch::try_unsettled() noexcept {
    TrialPages pages(1);
    if (!pages.is_there() || !register_pages(pages.range()).is_ok() || !is_quiet()) {
        return false;
    }
    pthread_t other{};
    const auto unmap = [](void* context) noexcept -> void* {
        static_cast<TrialPages*>(context)->unmap();
        return nullptr;
    };
    if (start_deaf(other, unmap, &pages) != 0) {
        return false;
    }
    pollfd ready{.fd = events_.get(), .events = POLLIN, .revents = 0};
    const bool is_noticed = poll(&ready, 1, kTrialMs) == 1 && !is_quiet();
    const bool is_watched = start_thread().is_ok();
    if (!is_watched) {
        events_.reset();  // so that the other does not wait for good
    }
    pthread_join(other, nullptr);
    return is_noticed && is_watched;
}

bool MemoryWatch::has_told(std::uint64_t position, const PageRange& range,
                           bool is_unmapped) noexcept {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTrialMs);
    bool is_over = is_settled();
    while (!is_over && std::chrono::steady_clock::now() < until) {
        sched_yield();
        is_over = is_settled();
    }
    bool has = false;
    const bool all = is_over && changes_since(position, [&](const MemoryChange& change) {
                         has |= change.is_unmapped == is_unmapped && change.range.contains(range);
                     });
    return all && has;
}

/// Whether each kind is told of, before who makes it goes on; and whether the kernel itself may
/// still fill a page that has been given back.
bool MemoryWatch::try_changes() noexcept {
    TrialPages pages(2);
    if (!pages.is_there() || !register_pages(pages.range()).is_ok() || !is_private(pages.range())) {
        return false;
    }
    std::uint64_t before = position();
    madvise(pages.memory(), pages.range().bytes(), MADV_DONTNEED);
    if (!has_told(before, pages.range(), false)) {
        return false;
    }
    const UniqueFd one(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    if (::read(one.get(), pages.memory(), sizeof(std::uint64_t)) != sizeof(std::uint64_t)) {
        return false;
    }
    PageRange range = pages.range();
    before = position();
    if (!pages.move() || !has_told(before, range, true)) {
        return false;
    }
    range = pages.range();
    before = position();
    if (!register_pages(range).is_ok()) {
        return false;
    }
    pages.unmap();
    return has_told(before, range, true);
}

}  // namespace rvt::util
