// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fork handlers (pthread_atfork(3)) and what they know.
#include "util/fork_guard.h"

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <set>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/signalfd.h>

namespace rvt::util {
namespace {

class Registry {
  public:
    static Registry& instance() {
        static Registry& registry = *new Registry;  // never destroyed: handlers may run during exit
        return registry;
    }

    std::mutex turn;  // ForkHold; order: before every lock of the provider that its holder takes
    std::atomic<unsigned> generation{0};

    void add_memory(void* address, std::size_t length) {
        const std::lock_guard guard(lock_);
        memory_[address] = length;
    }
    void remove_memory(void* address) noexcept {
        const std::lock_guard guard(lock_);
        memory_.erase(address);
    }
    void add_file(int fd) {
        const std::lock_guard guard(lock_);
        files_.insert(fd);
    }
    void remove_file(int fd) noexcept {
        const std::lock_guard guard(lock_);
        files_.erase(fd);
    }

  private:
    Registry() noexcept {
        pthread_atfork([] { instance().prepare(); }, [] { instance().resume(); },
                       [] {
                           instance().let_go();
                           instance().resume();
                       });
    }

    void prepare() noexcept;
    void resume() noexcept;

    /// In the child. Numbers and addresses stay taken, as their owners will release them.
    void let_go() noexcept {
        // relaxed: the child has one thread.
        generation.fetch_add(1, std::memory_order_relaxed);
        // Of no signals: there is never anything to read, and it takes no writes, which libraries
        // would read elsewhere for what somebody has told them.
        sigset_t none{};
        sigemptyset(&none);
        const UniqueFd filler(signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK));
        for (const int fd : files_) {
            if (dup3(filler.get(), fd, O_CLOEXEC) < 0) {
                // No number was left for the filler. A closed number that is closed again later is
                // the lesser evil.
                ::close(fd);
            }
        }
        for (const auto& [address, length] : memory_) {
            [[maybe_unused]] const void* const same =
                ::mmap(address, length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        }
    }

    std::mutex lock_;  // order: after every other lock
    std::map<void*, std::size_t> memory_;
    std::set<int> files_;
};

thread_local unsigned hold_depth = 0;

void Registry::prepare() noexcept {
    if (hold_depth == 0) {
        turn.lock();
    }
    lock_.lock();
}

void Registry::resume() noexcept {
    lock_.unlock();
    if (hold_depth == 0) {
        turn.unlock();
    }
}

}  // namespace

unsigned fork_generation() noexcept {
    // relaxed: it changes in a child that has one thread, before that thread goes on.
    return Registry::instance().generation.load(std::memory_order_relaxed);
}

ForkHold::ForkHold() noexcept {
    if (hold_depth++ == 0) {
        Registry::instance().turn.lock();
    }
}

ForkHold::~ForkHold() {
    if (--hold_depth == 0) {
        Registry::instance().turn.unlock();
    }
}

ForkRelease::ForkRelease() noexcept {
    hold_depth = 0;
    Registry::instance().turn.unlock();
}

ForkRelease::~ForkRelease() {
    Registry::instance().turn.lock();
    hold_depth = 1;
}

void fork_forgets_memory(void* address, std::size_t length) {
    Registry::instance().add_memory(address, length);
}

void fork_keeps_memory(void* address) noexcept {
    Registry::instance().remove_memory(address);
}

ProcessFd::ProcessFd(UniqueFd fd) : fd_(std::move(fd)) {
    if (fd_.is_open()) {
        Registry::instance().add_file(fd_.get());
    }
}

void ProcessFd::reset() noexcept {
    release();
}

UniqueFd ProcessFd::release() noexcept {
    if (fd_.is_open()) {
        Registry::instance().remove_file(fd_.get());
    }
    return std::move(fd_);
}

}  // namespace rvt::util
