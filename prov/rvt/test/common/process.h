// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Processes to run peers in.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <csignal>

#include "util/unique_fd.h"

namespace rvt::test {

/// The death of a process is reported within this time, which begins before its memory has been
/// cleared away: of sanitizers' there is far more.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::seconds kNotice{5};
#else
inline constexpr std::chrono::seconds kNotice{1};
#endif

/// A forked process with a pair of sockets to it. It is killed, if it still runs, with this object.
class Process {
  public:
    template <class Body>
    explicit Process(Body body) {
        int pair[2] = {-1, -1};
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
            return;
        }
        pid_ = fork();
        channel_.reset(pair[pid_ == 0 ? 1 : 0]);
        ::close(pair[pid_ == 0 ? 0 : 1]);
        if (pid_ == 0) {
            body(*this);
            _exit(0);
        }
    }
    ~Process() { kill(); }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    int pid() const { return pid_; }
    template <class T>
    void put(const T& value) {
        [[maybe_unused]] const ssize_t sent =
            send(channel_.get(), &value, sizeof value, MSG_NOSIGNAL);
    }
    /// Waits for what the other side puts; a zero value when it has gone.
    template <class T>
    T get() {
        T value{};
        [[maybe_unused]] const ssize_t received = recv(channel_.get(), &value, sizeof value, 0);
        return value;
    }
    /// Whether get() would not wait, or not for longer.
    bool has_word(std::chrono::milliseconds patience = {}) const {
        pollfd entry{.fd = channel_.get(), .events = POLLIN, .revents = 0};
        return poll(&entry, 1, static_cast<int>(patience.count())) == 1;
    }
    void kill(int signal = SIGKILL) {
        if (pid_ > 0) {
            ::kill(pid_, signal);
            waitpid(pid_, nullptr, 0);
            pid_ = 0;
        }
    }
    /// Waits for its end. Returns: the exit status, or -1 after a signal.
    int wait() {
        int status = 0;
        waitpid(pid_, &status, 0);
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

  private:
    pid_t pid_ = -1;
    util::UniqueFd channel_;
};

}  // namespace rvt::test
