// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "common/team.h"

#include "common/fail.h"
#include "common/timing.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fab {
namespace {

constexpr int kSilenceMs = 60'000;
constexpr in_port_t kMeetingPort = 47'595;  // of ranks on two hosts
constexpr double kGraceS = 3;               // for the others, after one rank failed

using Mesh = std::array<std::array<int, kMaxRanks>, kMaxRanks>;

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(2);
}

Mesh open_mesh(int size) {
    Mesh mesh{};
    for (int a = 0; a < size; ++a) {
        for (int b = a + 1; b < size; ++b) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("socketpair");
            mesh[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = ends[0];
            mesh[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)] = ends[1];
        }
    }
    return mesh;
}

/// Closes every descriptor of the mesh but the row of `keep`; keep < 0: all.
void close_mesh(const Mesh& mesh, int size, int keep) {
    for (int a = 0; a < size; ++a) {
        for (int b = 0; b < size; ++b) {
            if (a != b && a != keep) {
                close(mesh[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]);
            }
        }
    }
}

SharedPage* map_page() {
    void* at = mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return new (at) SharedPage{};
}

[[noreturn]] void run_rank(Rank& self, const TeamOptions& options,
                           const std::function<void(Rank&)>& body, const sigset_t& old_mask) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &old_mask, nullptr);
    auto& words = self.page->last_words[static_cast<std::size_t>(self.rank)];
    set_last_words(words.data(), words.size());
    if (!options.cpus.empty()) {
        pin_to(options.cpus[static_cast<std::size_t>(self.rank) % options.cpus.size()]);
    }
    if (!options.hosts.empty()) {
        enter_namespace(options.hosts[static_cast<std::size_t>(self.rank) % options.hosts.size()]);
    }
    body(self);
    std::exit(0);
}

int listen_for_peer() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(kMeetingPort);
    if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
        listen(listener, 1) != 0) {
        die("the port where ranks meet");
    }
    pollfd entry{.fd = listener, .events = POLLIN, .revents = 0};
    const int met = poll(&entry, 1, kSilenceMs) == 1 ? accept4(listener, nullptr, nullptr, 0) : -1;
    if (met < 0) die("no rank 0");
    close(listener);
    return met;
}

/// The peer may be just starting.
int call_peer(const std::string& name) {
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(kMeetingPort);
    if (inet_pton(AF_INET, name.c_str(), &peer.sin_addr) != 1) die(name.c_str());
    const double deadline = now_s() + kSilenceMs / 1e3;
    for (;;) {
        const int met = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (::connect(met, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0) return met;
        if (now_s() > deadline) die("no rank 1");
        close(met);
        usleep(50'000);
    }
}

/// The end of the mesh that is this host's: a connection to another one.
Mesh meet(const TeamOptions& options) {
    if (options.size != 2 || options.own_rank > 1) die("ranks on two hosts are two");
    const int met = options.own_rank == 0 ? call_peer(options.peer) : listen_for_peer();
    const int one = 1;
    setsockopt(met, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Mesh mesh;
    for (auto& row : mesh) row.fill(-1);
    const auto own = static_cast<std::size_t>(options.own_rank);
    mesh[own][1 - own] = met;
    return mesh;
}

/// The parent's view of the running ranks.
class Watch {
  public:
    Watch(const TeamOptions& options, std::vector<pid_t> pids)
        : options_(options), pids_(std::move(pids)), outcomes_(pids_.size()) {}

    std::vector<Outcome> until_all_ended() {
        double deadline = now_s() + options_.limit_s;
        while (left() > 0) {
            if (reap()) deadline = std::min(deadline, now_s() + kGraceS);
            if (left() == 0) break;
            const double rest = deadline - now_s();
            if (rest <= 0) {
                kill_rest();
                continue;
            }
            wait_for_child(std::min(rest, 1.0));
        }
        return std::move(outcomes_);
    }

  private:
    long left() const {
        return std::count_if(pids_.begin(), pids_.end(), [](pid_t pid) { return pid != 0; });
    }

    /// Returns: whether a rank ended that makes the others pointless.
    bool reap() {
        bool bad = false;
        for (std::size_t i = 0; i < pids_.size(); ++i) {
            int status = 0;
            if (pids_[i] == 0 || waitpid(pids_[i], &status, WNOHANG) != pids_[i]) continue;
            pids_[i] = 0;
            if (WIFSIGNALED(status)) outcomes_[i].signal = WTERMSIG(status);
            if (WIFEXITED(status)) outcomes_[i].code = WEXITSTATUS(status);
            const bool may_die = ((options_.may_die >> i) & 1U) != 0;
            if (!may_die && (outcomes_[i].signal != 0 || outcomes_[i].code != 0)) bad = true;
        }
        return bad;
    }

    void kill_rest() {
        for (std::size_t i = 0; i < pids_.size(); ++i) {
            if (pids_[i] == 0) continue;
            outcomes_[i].timed_out = true;
            kill(pids_[i], SIGKILL);
        }
        for (std::size_t i = 0; i < pids_.size(); ++i) {
            if (pids_[i] == 0) continue;
            waitpid(pids_[i], nullptr, 0);
            outcomes_[i].signal = SIGKILL;
            pids_[i] = 0;
        }
    }

    static void wait_for_child(double seconds) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGCHLD);
        const auto ns = static_cast<long>(seconds * 1e9);
        const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
        sigtimedwait(&set, nullptr, &limit);
    }

    const TeamOptions& options_;
    std::vector<pid_t> pids_;
    std::vector<Outcome> outcomes_;
};

}  // namespace

void Rank::send(int to, const void* data, std::size_t length) const {
    const auto* at = static_cast<const char*>(data);
    while (length > 0) {
        const ssize_t n = ::send(sockets[static_cast<std::size_t>(to)], at, length, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) peer_gone();
        at += n;
        length -= static_cast<std::size_t>(n);
    }
}

void Rank::receive(int from, void* data, std::size_t length) const {
    auto* at = static_cast<char*>(data);
    pollfd entry{.fd = sockets[static_cast<std::size_t>(from)], .events = POLLIN, .revents = 0};
    while (length > 0) {
        const int ready = poll(&entry, 1, kSilenceMs);
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) FAB_FAIL("rank %d said nothing for %d s", from, kSilenceMs / 1000);
        const ssize_t n = ::recv(entry.fd, at, length, 0);
        if (n <= 0) peer_gone();
        at += n;
        length -= static_cast<std::size_t>(n);
    }
}

void Rank::receive_polling(int from, void* data, std::size_t length,
                           const std::function<void()>& progress) const {
    pollfd entry{.fd = sockets[static_cast<std::size_t>(from)], .events = POLLIN, .revents = 0};
    while (progress && poll(&entry, 1, 0) == 0) progress();
    receive(from, data, length);
}

std::string Rank::receive_string(int from) const {
    std::size_t length = 0;
    receive(from, &length, sizeof length);
    std::string text(length, '\0');
    receive(from, text.data(), length);
    return text;
}

void Rank::send_string(int to, const std::string& text) const {
    const std::size_t length = text.size();
    send(to, &length, sizeof length);
    send(to, text.data(), length);
}

void Rank::barrier() const {
    barrier_polling(nullptr);
}

void Rank::barrier_polling(const std::function<void()>& progress) const {
    const char token = 'b';
    for (int r = 0; r < size; ++r) {
        if (r != rank) send(r, &token, 1);
    }
    for (int r = 0; r < size; ++r) {
        if (r == rank) continue;
        char got = 0;
        receive_polling(r, &got, 1, progress);
        if (got != token) FAB_FAIL("ranks %d and %d are not in the same barrier", rank, r);
    }
}

std::vector<Outcome> run_team(const TeamOptions& options, const std::function<void(Rank&)>& body,
                              std::array<double, 16>* results) {
    sigset_t child_set;
    sigset_t old_mask;
    sigemptyset(&child_set);
    sigaddset(&child_set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_set, &old_mask);
    std::fflush(nullptr);

    const bool is_alone = options.own_rank >= 0;
    const Mesh mesh = is_alone ? meet(options) : open_mesh(options.size);
    const int first = is_alone ? options.own_rank : 0;
    const int end = is_alone ? first + 1 : options.size;
    SharedPage* page = map_page();
    std::vector<pid_t> pids;
    for (int r = first; r < end; ++r) {
        const pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) {
            close_mesh(mesh, options.size, r);
            Rank self{.rank = r,
                      .size = options.size,
                      .page = page,
                      .shares_page = !is_alone,
                      .sockets = mesh[static_cast<std::size_t>(r)]};
            page->pids[static_cast<std::size_t>(r)] = getpid();
            run_rank(self, options, body, old_mask);
        }
        pids.push_back(pid);
    }
    close_mesh(mesh, options.size, -1);
    TeamOptions watched = options;
    watched.may_die >>= first;
    std::vector<Outcome> outcomes = Watch(watched, pids).until_all_ended();
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        outcomes[i].last_words = page->last_words[static_cast<std::size_t>(first) + i].data();
    }
    if (results != nullptr) *results = page->results;
    munmap(page, sizeof *page);
    sigprocmask(SIG_SETMASK, &old_mask, nullptr);
    return outcomes;
}

std::vector<int> allowed_cpus(int count) {
    std::vector<int> cpus;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE && static_cast<int>(cpus.size()) < count; ++cpu) {
        if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) cpus.push_back(cpu);
    }
    return cpus;
}

std::vector<int> parse_cpus(const char* text) {
    std::vector<int> cpus;
    while (*text != '\0') {
        char* end = nullptr;
        const long cpu = std::strtol(text, &end, 10);
        if (end == text || cpu < 0 || cpu >= CPU_SETSIZE) return {};
        cpus.push_back(static_cast<int>(cpu));
        if (*end != '\0' && *end != ',') return {};
        text = *end == ',' ? end + 1 : end;
    }
    return cpus;
}

std::vector<std::string> parse_names(const char* text) {
    std::vector<std::string> names;
    std::string rest = text;
    for (std::size_t comma = 0; comma != std::string::npos;) {
        comma = rest.find(',');
        names.push_back(rest.substr(0, comma));
        rest.erase(0, comma == std::string::npos ? comma : comma + 1);
    }
    return names;
}

void enter_namespace(const std::string& name) {
    const int fd = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) die(("network namespace " + name).c_str());
    close(fd);
}

void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        FAB_FAIL("cannot pin to cpu %d: %s", cpu, std::strerror(errno));
    }
}

char state_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');
    FAB_CHECK(name_end != std::string::npos && line.size() > name_end + 2);
    return line[name_end + 2];
}

}  // namespace fab
