// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A team of processes that test or measure something together. They are forked before any
// libfabric call, pinned to CPUs, and talk beside the fabric through sockets and a shared page.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace fab {

inline constexpr int kMaxRanks = 8;

/// One page that all ranks map: for flags that are polled beside the traffic, and for results.
struct SharedPage {
    class alignas(64) Flag {
      public:
        // release: pairs with the acquire in get(); who sees the flag sees what was done before.
        void set(std::uint32_t value = 1) { value_.store(value, std::memory_order_release); }
        // acquire: pairs with the release in set().
        std::uint32_t get() const { return value_.load(std::memory_order_acquire); }

      private:
        std::atomic<std::uint32_t> value_{0};
    };
    std::array<Flag, 16> flags;
    std::array<double, 16> results;
    std::array<pid_t, kMaxRanks> pids;
    std::array<std::array<char, 512>, kMaxRanks> last_words;
};

/// What one rank holds of its team. Only the rank's main thread uses the sockets.
class Rank {
  public:
    int rank = 0;
    int size = 0;
    SharedPage* page = nullptr;
    bool shares_page = true;  ///< False: the other rank is on another host.

    /// The only other rank of a team of two.
    int other() const { return 1 - rank; }

    void send(int to, const void* data, std::size_t length) const;
    /// Sleeps until the bytes are there; ends this rank if the other one is gone, or after 60 s.
    void receive(int from, void* data, std::size_t length) const;
    /// The same, with `progress` called until something comes, if it is not empty.
    void receive_polling(int from, void* data, std::size_t length,
                         const std::function<void()>& progress) const;
    std::string receive_string(int from) const;
    void send_string(int to, const std::string& text) const;
    /// All ranks enter before any leaves. Sleeps; makes no progress on any fabric.
    void barrier() const;
    /// The same, with `progress` called all the time: for providers whose progress is manual.
    void barrier_polling(const std::function<void()>& progress) const;

    template <class T>
    T trade(int with, const T& mine) const {
        send(with, &mine, sizeof mine);
        T theirs{};
        receive(with, &theirs, sizeof theirs);
        return theirs;
    }

    std::array<int, kMaxRanks> sockets{};
};

/// How a rank ended. `code` is meaningless when `signal` is not 0.
struct Outcome {
    int code = 0;
    int signal = 0;
    bool timed_out = false;
    std::string last_words;
};

struct TeamOptions {
    int size = 2;
    double limit_s = 20;
    std::vector<int> cpus;      ///< Rank r runs on cpus[r % cpus.size()]; empty: not pinned.
    std::uint32_t may_die = 0;  ///< Bit r: rank r is expected to be killed.
    /// Rank r runs in the network namespace hosts[r % hosts.size()]; empty: in ours.
    std::vector<std::string> hosts{};
    /// Not negative: of two ranks this one runs here, the other one by such a call on the host
    /// `peer`; only rank 0 needs to know where that is.
    int own_rank = -1;
    std::string peer{};
};

/// Forks the ranks, runs `body` in each, waits for all. A rank that fails, or the time limit, ends
/// the others. `results` of the shared page are copied out when asked for.
std::vector<Outcome> run_team(const TeamOptions& options, const std::function<void(Rank&)>& body,
                              std::array<double, 16>* results = nullptr);

/// The first `count` CPUs this process may run on.
std::vector<int> allowed_cpus(int count);

/// "0,1" as numbers; empty on bad input.
std::vector<int> parse_cpus(const char* text);

/// "a,b" as names.
std::vector<std::string> parse_names(const char* text);

void pin_to(int cpu);

/// The state of the process's main thread, as proc(5) has it: S sleeps, T is stopped.
char state_of(pid_t pid);

/// Moves the calling thread to a network namespace that ip-netns(8) has named.
void enter_namespace(const std::string& name);

}  // namespace fab
