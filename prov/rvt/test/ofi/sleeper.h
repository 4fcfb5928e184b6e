// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Threads of which a test knows when they sleep.
#pragma once

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <unistd.h>

namespace rvt::test {

/// What /proc says of a thread of this process.
inline std::string text_of_thread(const std::string& thread, const char* name) {
    std::ifstream file("/proc/self/task/" + thread + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// How often it has fallen asleep in the kernel.
inline unsigned long sleeps_of(const std::string& thread) {
    const std::string status = text_of_thread(thread, "status");
    const std::string name = "\nvoluntary_ctxt_switches:";
    return std::stoul(status.substr(status.find(name) + name.size()));
}

/// A thread of the test's own.
class Sleeper {
  public:
    template <class Body>
    explicit Sleeper(Body body)
        : thread_([this, body] {
              id_.store(gettid(), std::memory_order_relaxed);  // relaxed: a number and no more
              body();
          }) {}
    void await_sleep() const {
        while (state() != 'S') {
            std::this_thread::yield();
        }
    }
    /// How often it has fallen asleep, this time included: it is called asleep just before that
    /// counts, and shows the call in which it sleeps when it has left its processor.
    [[nodiscard]] unsigned long sleeps_so_far() const {
        do {
            await_sleep();
        } while (text_of_thread(id(), "syscall").starts_with("running"));
        return sleeps_of(id());
    }
    void join() { thread_.join(); }
    [[nodiscard]] std::string id() const {
        return std::to_string(id_.load(std::memory_order_relaxed));  // relaxed: as above
    }

  private:
    [[nodiscard]] char state() const {
        const std::string stat = text_of_thread(id(), "stat");
        const std::size_t name_end = stat.rfind(')');
        return name_end != std::string::npos ? stat[name_end + 2] : '?';
    }

    std::atomic<pid_t> id_{-1};
    std::thread thread_;
};

}  // namespace rvt::test
