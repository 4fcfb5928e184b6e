// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers in other processes: how they die, fork and run out of resources, and what stays behind.
#include <criterion/criterion.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/check.h"
#include "raw_peer.h"

using namespace rvt::shm;  // NOLINT(google-build-using-namespace)
using rvt::shm::test::Kind;
using rvt::shm::test::Process;
using rvt::shm::test::RawPeer;
using rvt::shm::test::TestEndpoint;
using rvt::util::SockAddr;
using rvt::util::UniqueFd;

namespace {

struct Leftovers {
    long descriptors = 0;
    long mappings = 0;
    friend bool operator==(const Leftovers&, const Leftovers&) = default;
};

Leftovers count_leftovers() {
    Leftovers found;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
        ++found.descriptors;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        found.mappings += line.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return found;
}

/// What all epoll(7) sets of this process watch.
long count_watched() {
    long watched = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
        std::ifstream info(entry.path());
        for (std::string line; std::getline(info, line);) {
            watched += line.rfind("tfd:", 0) == 0 ? 1 : 0;
        }
    }
    return watched;
}

/// Copies of all sockets, as a process made by a bare clone(2) has them.
std::vector<UniqueFd> copy_sockets() {
    std::vector<UniqueFd> copies;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code ignored;
        if (std::filesystem::read_symlink(entry.path(), ignored).string().rfind("socket:", 0) ==
            0) {
            copies.push_back(rvt::util::duplicate(std::stoi(entry.path().filename())));
        }
    }
    return copies;
}

/// A process with an endpoint that connects to `target` and stays.
void run_peer(Process& parent, const SockAddr& target) {
    TestEndpoint peer;
    parent.put(peer.address());
    peer.connector().connect(target);
    const auto peering = peer.next_peering();
    parent.put(peering != nullptr);
    parent.get<bool>();
}

/// A process that dies, or rather waits to be killed, after so many steps of a handshake that it
/// dials.
void dial_up_to(int step, Process& parent, const SockAddr& target) {
    RawPeer raw;
    [[maybe_unused]] const bool done = (step < 1 || raw.dial(target)) &&
                                       (step < 2 || raw.say_hello()) &&
                                       (step < 3 || raw.hears(MessageType::kHello)) &&
                                       (step < 4 || raw.say({.type = MessageType::kReady}));
    parent.put(done);
    parent.get<bool>();
}

constexpr unsigned kPatienceMs = 2000;

/// A process with an endpoint that dials, and tells what came of it.
void run_dialer(Process& parent, const SockAddr& target) {
    TestEndpoint own({.connect_timeout_ms = kPatienceMs, .refused_timeout_ms = kPatienceMs});
    own.connector().connect(target);
    rvt::shm::test::await_control_thread();
    parent.put(true);
    parent.get<bool>();  // it has been stopped meanwhile
    // What was due then comes before the second of these.
    rvt::shm::test::await_control_thread();
    rvt::shm::test::await_control_thread();
    parent.put(true);
    parent.put(own.next()->kind);
    parent.get<bool>();
}

/// Has a dialer stopped for longer than its patience. Returns: whether it has looked at what was
/// due meanwhile, and was silent while it was stopped.
bool stop_for_longer_than_patience(Process& dialer) {
    kill(dialer.pid(), SIGSTOP);
    int status = 0;
    const bool is_stopped =
        waitpid(dialer.pid(), &status, WUNTRACED) == dialer.pid() && WIFSTOPPED(status);
    const bool is_silent = !dialer.has_word(std::chrono::milliseconds(kPatienceMs));
    kill(dialer.pid(), SIGCONT);
    dialer.put(true);
    return is_stopped && is_silent && dialer.get<bool>();
}

void set_limit(__rlimit_resource_t what, rlim_t value) {
    rlimit limit{};
    getrlimit(what, &limit);
    limit.rlim_cur = value;
    setrlimit(what, &limit);
}

}  // namespace

Test(lifetime, connects_processes, .timeout = 30) {
    TestEndpoint endpoint;
    Process peer([&](Process& parent) { run_peer(parent, endpoint.address()); });
    RVT_ASSERT(peer.get<SockAddr>().port != 0);
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr);
    RVT_EQ(peering->pid, peer.pid());
    RVT_ASSERT(not(peering->is_same_process));
    RVT_ASSERT(peering->may_read_memory);
    RVT_ASSERT(peering->peer_has_membarrier);
    RVT_ASSERT(peer.get<bool>());
}

Test(lifetime, of_a_killed_peer_ends_its_link, .timeout = 30) {
    TestEndpoint endpoint;
    Process peer([&](Process& parent) { run_peer(parent, endpoint.address()); });
    peer.get<SockAddr>();
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr);
    const auto killed = std::chrono::steady_clock::now();
    peer.kill();
    const auto gone = endpoint.next();
    RVT_ASSERT(gone != nullptr);
    RVT_ASSERT(gone->kind == Kind::kPeerGone);
    RVT_EQ(gone->link, peering->link);
    RVT_ASSERT(std::chrono::steady_clock::now() - killed < rvt::test::kNotice);
}

Test(lifetime, of_a_stopped_peer_goes_on, .timeout = 30) {
    TestEndpoint endpoint;
    Process peer([&](Process& parent) { run_peer(parent, endpoint.address()); });
    peer.get<SockAddr>();
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr && peer.get<bool>());
    kill(peer.pid(), SIGSTOP);
    RVT_ASSERT(endpoint.next(std::chrono::milliseconds(200)) == nullptr);
    // Wishes to a peer that does not read end in a full socket, not in a wait.
    for (int i = 0; i < 10000; ++i) {
        endpoint.connector().wake_peer(peering->link);
    }
    kill(peer.pid(), SIGCONT);
    RVT_ASSERT(endpoint.next(std::chrono::milliseconds(100)) == nullptr);
}

Test(lifetime, ends_at_any_step_of_a_handshake_that_the_peer_dials, .timeout = 60) {
    TestEndpoint endpoint;
    for (int step = 0; step <= 4; ++step) {
        Process peer([&](Process& parent) { dial_up_to(step, parent, endpoint.address()); });
        RVT_ASSERT(peer.get<bool>());
        peer.kill();
        if (step == 4) {
            RVT_ASSERT(endpoint.next_peering() != nullptr);
            RVT_ASSERT(endpoint.next()->kind == Kind::kPeerGone);
        }
    }
    RVT_EQ(endpoint.waiting_events(), 0);
    TestEndpoint honest;
    honest.connector().connect(endpoint.address());
    RVT_ASSERT(endpoint.next_peering() != nullptr);
}

Test(lifetime, ends_at_any_step_of_a_handshake_that_the_peer_answers, .timeout = 60) {
    TestEndpoint endpoint({.refused_timeout_ms = 200});
    for (int step = 0; step <= 3; ++step) {
        Process peer([&](Process& parent) {
            RawPeer raw;
            bool done = raw.listen();
            parent.put(raw.local.address);
            done = done && (step < 1 || raw.accept()) &&
                   (step < 2 || raw.hears(MessageType::kHello)) &&
                   (step < 3 || (raw.say_hello() && raw.hears(MessageType::kReady)));
            parent.put(done);
            parent.get<bool>();
        });
        const auto address = peer.get<SockAddr>();
        endpoint.connector().connect(address);
        RVT_ASSERT(peer.get<bool>());
        peer.kill();
        if (step == 3) {
            RVT_ASSERT(endpoint.next_peering() != nullptr);
            RVT_ASSERT(endpoint.next()->kind == Kind::kPeerGone);
        } else {
            const auto failed = endpoint.next();
            RVT_ASSERT(failed != nullptr);
            RVT_ASSERT(failed->kind == Kind::kFailed);
            RVT_EQ(failed->error, ECONNREFUSED);
        }
    }
}

Test(lifetime, of_a_thousand_killed_peers_leaves_nothing, .timeout = 300) {
    TestEndpoint endpoint;
    Leftovers before;
    for (int i = 0; i < 1000; ++i) {
        if (i == 1) {
            before = count_leftovers();
        }
        Process peer([&](Process& parent) { dial_up_to(4, parent, endpoint.address()); });
        RVT_ASSERT(endpoint.next_peering() != nullptr);
        peer.kill();
        RVT_ASSERT(endpoint.next()->kind == Kind::kPeerGone);
    }
    const Leftovers after = count_leftovers();
    RVT_EQ(after.descriptors, before.descriptors);
    RVT_EQ(after.mappings, before.mappings);
}

Test(lifetime, of_a_connector_leaves_nothing, .timeout = 60) {
    const Leftovers before = count_leftovers();
    {
        TestEndpoint a;
        TestEndpoint b;
        a.connector().connect(b.address());
        a.connector().connect(a.address());
        RVT_ASSERT(a.next_peering() != nullptr && a.next_peering() != nullptr &&
                   b.next_peering() != nullptr);
    }
    RVT_ASSERT(count_leftovers() == before);
}

// What is watched and hung up for ever would keep the control thread awake for ever.
Test(lifetime, of_sockets_that_others_hold_copies_of_is_watched_no_longer, .timeout = 30) {
    const TestEndpoint keeper;  // of the control thread
    const long before = count_watched();
    TestEndpoint endpoint;
    std::vector<UniqueFd> copies;
    {
        TestEndpoint peer;
        peer.connector().connect(endpoint.address());
        RVT_ASSERT(peer.next_peering() != nullptr && endpoint.next_peering() != nullptr);
        copies = copy_sockets();
        endpoint.close();
    }
    RVT_EQ(count_watched(), before);
}

Test(lifetime, of_a_refused_peers_socket_is_watched_no_longer, .timeout = 30) {
    const TestEndpoint keeper;  // of the control thread
    const long before = count_watched();
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()) && raw.say_hello());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    const std::vector<UniqueFd> copies = copy_sockets();
    RVT_ASSERT(raw.say({.type = MessageType::kHello}));
    RVT_EQ(raw.hears_refusal(), EPROTO);
    endpoint.close();
    RVT_EQ(count_watched(), before);
}

Test(lifetime, needs_two_descriptors_for_a_peer_of_a_known_process, .timeout = 60) {
    TestEndpoint endpoint;
    TestEndpoint a;
    TestEndpoint b;
    endpoint.connector().connect(a.address());
    const auto first = endpoint.next_peering();
    const auto first_at_a = a.next_peering();
    const Leftovers before = count_leftovers();
    endpoint.connector().connect(b.address());
    const auto second = endpoint.next_peering();
    const auto second_at_b = b.next_peering();
    RVT_ASSERT(second != nullptr && second_at_b != nullptr);
    // Both ends are in this process.
    RVT_EQ(count_leftovers().descriptors - before.descriptors, 4);
}

Test(lifetime, is_not_prolonged_by_a_forked_child, .timeout = 60) {
    enum How { kFork, kForkAndExec, kBareClone };
    for (const How how : {kFork, kForkAndExec, kBareClone}) {
        TestEndpoint endpoint;
        int alive[2] = {-1, -1};  // the grandchild ends when we close our end
        RVT_EQ(pipe(alive), 0);
        Process peer([&](Process& parent) {
            close(alive[1]);
            TestEndpoint own;
            own.connector().connect(endpoint.address());
            const auto peering = own.next_peering();
            const pid_t child = how == kBareClone
                                    ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
                                    : fork();
            if (child == 0) {
                dup2(alive[0], STDIN_FILENO);
                if (how == kForkAndExec) {
                    execl("/bin/cat", "cat", nullptr);
                }
                char end = 0;
                [[maybe_unused]] const ssize_t ignored = read(alive[0], &end, 1);
                _exit(0);
            }
            parent.put(child);
            parent.get<bool>();
        });
        close(alive[0]);
        const auto child = peer.get<pid_t>();
        RVT_ASSERT(endpoint.next_peering() != nullptr);
        peer.kill();
        const auto gone = endpoint.next();
        RVT_ASSERT(gone != nullptr);
        RVT_ASSERT(gone->kind == Kind::kPeerGone);
        RVT_EQ(kill(child, 0), 0);
        close(alive[1]);
    }
}

Test(lifetime, of_a_connector_ends_quietly_in_a_forked_child, .timeout = 60) {
    TestEndpoint endpoint;
    TestEndpoint other;
    endpoint.connector().connect(other.address());
    auto peering = endpoint.next_peering();
    const auto at_other = other.next_peering();
    Process child([&](Process&) {
        endpoint.connector().connect(other.address());
        endpoint.connector().wake_peer(peering->link);
        endpoint.connector().note_polling(false);
        endpoint.connector().close(peering->link);
        // Memory is there, and is not the parent's.
        *peering->outbox.at<std::uint64_t>(kSmallLinesOffset) = 1;
        const bool was_wiped = peering->inbox.at<OutboxHeader>(0)->magic == 0;
        endpoint.close();
        peering.reset();
        // And the child can have endpoints of its own.
        TestEndpoint own;
        own.connector().connect(other.address());
        const auto found = own.next_peering();
        _exit(was_wiped && found != nullptr && !found->is_same_process ? 0 : 1);
    });
    const auto from_child = other.next_peering();
    RVT_ASSERT(from_child != nullptr);
    RVT_EQ(child.wait(), 0);
    RVT_EQ(*at_other->inbox.at<std::uint64_t>(kSmallLinesOffset), 0);
    RVT_ASSERT(other.next()->link == from_child->link);
    endpoint.connector().wake_peer(peering->link);
    RVT_ASSERT(other.wait_until([&] { return other.progress_calls == 1; }));
    RVT_EQ(endpoint.waiting_events(), 0);
}

Test(lifetime, with_few_descriptors_fails_for_the_last_peers_only, .timeout = 60) {
    TestEndpoint endpoint;
    Process peers([&](Process& parent) {
        std::vector<std::unique_ptr<TestEndpoint>> dialers;
        int connected = 0;
        int refused = 0;
        parent.get<bool>();
        for (int i = 0; i < 40; ++i) {
            dialers.push_back(
                std::make_unique<TestEndpoint>(TestEndpoint::Options{.refused_timeout_ms = 100}));
            dialers.back()->connector().connect(endpoint.address());
            const auto event = dialers.back()->next();
            connected += event->kind == Kind::kConnected ? 1 : 0;
            refused += event->kind == Kind::kFailed && event->error == EMFILE ? 1 : 0;
        }
        parent.put(connected);
        parent.put(refused);
        dialers.erase(dialers.begin(), dialers.begin() + 10);
        TestEndpoint late;
        late.connector().connect(endpoint.address());
        parent.put(late.next_peering() != nullptr);
        parent.get<bool>();
    });
    set_limit(RLIMIT_NOFILE, 64);
    peers.put(true);
    std::vector<std::unique_ptr<Peering>> peerings;
    int connected = peers.get<int>();
    const int refused = peers.get<int>();
    RVT_ASSERT(connected > 15);
    RVT_EQ(connected + refused, 40);
    for (int i = 0; i < connected; ++i) {
        peerings.push_back(endpoint.next_peering());
        RVT_ASSERT(peerings.back() != nullptr);
    }
    peerings.clear();
    RVT_ASSERT(peers.get<bool>());
}

Test(lifetime, with_few_descriptors_needs_none_for_the_processes_of_peers, .timeout = 60) {
    constexpr long kOfHandshake = 8;  // at most, besides those that stay
    TestEndpoint endpoint;
    Process peers([&](Process& parent) {
        std::vector<std::unique_ptr<Process>> all;
        for (auto left = parent.get<long>(); left > 0; --left) {
            all.push_back(std::make_unique<Process>(
                [&](Process& starter) { run_peer(starter, endpoint.address()); }));
            all.back()->get<SockAddr>();
            parent.put(all.back()->get<bool>());
        }
        parent.get<bool>();
    });
    // Three quarters of the limit are three for each of some peers, before they are scarce.
    const long used = count_leftovers().descriptors;
    const long count = (3 * used - kOfHandshake) / 2;
    set_limit(RLIMIT_NOFILE, static_cast<rlim_t>(4 * used));
    peers.put(count);
    for (long i = 0; i < count; ++i) {
        RVT_ASSERT(peers.get<bool>());
    }
}

// A peer may have been stopped with this process, or starts when it goes on.
Test(lifetime, of_who_dials_and_is_stopped_begins_when_it_goes_on, .timeout = 60) {
    RawPeer raw;  // which listens when it is told to
    Process dialer([&](Process& parent) { run_dialer(parent, raw.local.address); });
    dialer.get<bool>();
    RVT_ASSERT(stop_for_longer_than_patience(dialer));
    RVT_ASSERT(raw.listen() && raw.accept() && raw.hears(MessageType::kHello));
    RVT_ASSERT(raw.say_hello() && raw.hears(MessageType::kReady));
    RVT_EQ(dialer.get<Kind>(), Kind::kConnected);
}

Test(lifetime, of_who_is_stopped_amid_a_handshake_begins_when_it_goes_on, .timeout = 60) {
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    Process dialer([&](Process& parent) { run_dialer(parent, raw.local.address); });
    dialer.get<bool>();
    RVT_ASSERT(raw.accept() && raw.hears(MessageType::kHello));
    RVT_ASSERT(stop_for_longer_than_patience(dialer));
    RVT_ASSERT(raw.say_hello() && raw.hears(MessageType::kReady));
    RVT_EQ(dialer.get<Kind>(), Kind::kConnected);
}

Test(lifetime, without_room_for_files_fails_with_a_clear_error, .timeout = 30) {
    TestEndpoint endpoint;
    TestEndpoint other;
    set_limit(RLIMIT_FSIZE, kOutboxBytes - 1);
    endpoint.connector().connect(other.address());
    const auto failed = endpoint.next();
    RVT_ASSERT(failed != nullptr);
    RVT_ASSERT(failed->kind == Kind::kFailed);
    RVT_EQ(failed->error, EFBIG);
    set_limit(RLIMIT_FSIZE, RLIM_INFINITY);
    endpoint.connector().connect(other.address());
    RVT_ASSERT(endpoint.next_peering() != nullptr);
}

Test(lifetime, does_not_begin_with_another_users_process, .timeout = 30) {
    if (geteuid() != 0) {
        cr_skip("only root can become another user");
    }
    TestEndpoint endpoint;
    Process other([&](Process& parent) {
        if (setuid(65534) != 0) {
            return;
        }
        RawPeer raw;
        parent.put(raw.dial(endpoint.address()) ? raw.hears_refusal() : -1);
        TestEndpoint own;
        parent.put(own.address());
        own.connector().connect(endpoint.address());
        parent.put(own.next()->error);
        parent.get<bool>();
    });
    RVT_EQ(other.get<int>(), EACCES);
    const auto address = other.get<SockAddr>();
    RVT_EQ(other.get<int>(), EACCES);
    endpoint.connector().connect(address);
    const auto failed = endpoint.next();
    RVT_ASSERT(failed != nullptr);
    RVT_EQ(failed->error, EACCES);
}
