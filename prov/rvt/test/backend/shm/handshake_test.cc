// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that break the handshake: each is told why, and none disturbs an honest one.
#include "backend/shm/handshake.h"

#include <criterion/criterion.h>

#include <array>
#include <cstddef>
#include <string>

#include "common/check.h"
#include "common/own_network.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "raw_peer.h"
#include "util/log.h"

using namespace rvt::shm;  // NOLINT(google-build-using-namespace)
using rvt::shm::test::Kind;
using rvt::shm::test::RawPeer;
using rvt::shm::test::TestEndpoint;
using rvt::util::UniqueFd;

namespace {

std::string last_warning;

constexpr rvt::util::LogSink kSink{
    .is_enabled = [](rvt::util::LogLevel level,
                     rvt::util::LogArea) noexcept { return level == rvt::util::LogLevel::kWarn; },
    .write = [](rvt::util::LogLevel, rvt::util::LogArea, const char*, int,
                const char* text) noexcept { last_warning = text; }};

/// From now on connect(2) is EACCES there.
void control_thread_cannot_connect() {
    std::array program{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{program.size(), program.data()};
    rvt::util::ControlThread::acquire().take()->run([&] {
        RVT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        RVT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    });
}

/// An endpoint that an honest peer can still reach.
void check_alive(TestEndpoint& endpoint) {
    TestEndpoint honest;
    honest.connector().connect(endpoint.address());
    RVT_ASSERT(honest.next_peering() != nullptr);
    RVT_ASSERT(endpoint.next_peering() != nullptr);
}

UniqueFd unsealed_file(std::size_t length) {
    UniqueFd fd(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    [[maybe_unused]] const int done = ftruncate(fd.get(), static_cast<off_t>(length));
    return fd;
}

}  // namespace

Test(handshake, of_an_honest_raw_peer_succeeds, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    RVT_ASSERT(raw.say({.type = MessageType::kReady}));
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr);
    RVT_ASSERT(peering->address == raw.local.address);
    // probe_address was 0: its memory cannot be read, which is no reason to refuse it.
    RVT_ASSERT(not(peering->may_read_memory));
    RVT_EQ(peering->read_error, EFAULT);
    RVT_ASSERT(not(peering->keys.is_mapped()));
    RVT_ASSERT(not(peering->peer_has_membarrier));
}

Test(handshake, shows_what_a_peer_uses_that_is_connected_before_we_are, .timeout = 30) {
    constexpr std::uint64_t kMark = use_mark(17, 4);
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    RVT_ASSERT(!endpoint.connector().is_in_use(kMark));
    // relaxed: the endpoint's look is a message away, or a call.
    raw.page().using_key.store(kMark, std::memory_order_relaxed);
    RVT_ASSERT(endpoint.connector().is_in_use(kMark));
    RVT_ASSERT(!endpoint.connector().is_in_use(kMark + 1));
    RVT_ASSERT(endpoint.connector().is_in_use(use_mark(17, rvt::core::kNoKey)));
    RVT_ASSERT(!endpoint.connector().is_in_use(use_mark(18, rvt::core::kNoKey)));
}

Test(handshake, leaves_what_a_dialled_peer_uses_to_the_event, .timeout = 30) {
    constexpr std::uint64_t kMark = use_mark(17, 4);
    TestEndpoint endpoint;
    RawPeer raw;
    raw.page().using_key.store(kMark, std::memory_order_relaxed);  // relaxed: before it is shown
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    RVT_ASSERT(raw.accept());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    RVT_ASSERT(!endpoint.connector().is_in_use(kMark));
    RVT_ASSERT(raw.say_hello());
    RVT_ASSERT(raw.hears(MessageType::kReady));
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr);
    RVT_ASSERT(!endpoint.connector().is_in_use(kMark));  // the event has its page
}

Test(handshake, refuses_garbage, .timeout = 30) {
    TestEndpoint endpoint;
    const char garbage[100] = "GET / HTTP/1.1";
    for (const std::size_t count : {std::size_t{1}, std::size_t{16}, sizeof garbage}) {
        RawPeer raw;
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_bytes(garbage, count));
        RVT_EQ(raw.hears_refusal(), EPROTO);
        RVT_EQ(raw.hear().error(), ECONNRESET);
    }
    check_alive(endpoint);
}

Test(handshake, refuses_another_version_and_another_magic, .timeout = 30) {
    TestEndpoint endpoint;
    for (int i = 0; i < 2; ++i) {
        RawPeer raw;
        (i == 0 ? raw.hello.header.magic : raw.hello.page_bytes) += 1;
        raw.hello.header.version = static_cast<std::uint16_t>(raw.hello.header.version + i);
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_hello());
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
    check_alive(endpoint);
}

Test(handshake, refuses_wrong_sizes_and_addresses, .timeout = 30) {
    TestEndpoint endpoint;
    const std::function<void(Hello&)> changes[] = {
        [](Hello& hello) { hello.page_bytes *= 2; },
        [](Hello& hello) { hello.outbox_bytes = 64; },
        [](Hello& hello) { hello.incarnation += 1; },
        [](Hello& hello) { hello.address.port = 0; },
        [](Hello& hello) { hello.address.family = AF_UNIX; },
        [](Hello& hello) { hello.flags = kHasKeys; },
    };
    for (const auto& change : changes) {
        RawPeer raw;
        change(raw.hello);
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_hello());
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
    check_alive(endpoint);
}

Test(handshake, refuses_a_key_table_of_an_impossible_size, .timeout = 30) {
    TestEndpoint endpoint;
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{1} << 50, std::uint64_t{kPageBytes} * 2}) {
        RawPeer raw;
        raw.hello.flags = kHasKeys;
        raw.hello.keys_bytes = bytes;
        raw.fds[3] = raw.fds[0];
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_hello(4));
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
}

Test(handshake, refuses_memory_that_can_shrink, .timeout = 30) {
    TestEndpoint endpoint;
    for (const std::size_t place : {std::size_t{0}, std::size_t{1}}) {
        RawPeer raw;
        const UniqueFd file = unsealed_file(kOutboxBytes);
        raw.fds[place] = file.get();
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_hello());
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
    check_alive(endpoint);
}

Test(handshake, refuses_memory_that_is_too_short, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    const UniqueFd file = unsealed_file(kPageBytes);
    RVT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    raw.fds[1] = file.get();
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello());
    RVT_EQ(raw.hears_refusal(), EPROTO);
}

Test(handshake, refuses_memory_of_huge_pages, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    const UniqueFd file(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
    RVT_EQ(ftruncate(file.get(), 32 << 20), 0);  // a whole number of any size
    RVT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    raw.fds[0] = file.get();
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello());
    RVT_EQ(raw.hears_refusal(), EPROTO);
    check_alive(endpoint);
}

Test(handshake, refuses_a_wake_descriptor_that_is_no_eventfd_or_may_block, .timeout = 30) {
    TestEndpoint endpoint;
    const UniqueFd blocking(eventfd(0, EFD_CLOEXEC));
    const UniqueFd null(open("/dev/null", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    for (const int fd : {blocking.get(), null.get(), STDIN_FILENO}) {
        RawPeer raw;
        raw.fds[2] = fd;
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say_hello());
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
}

Test(handshake, refuses_messages_out_of_turn, .timeout = 30) {
    TestEndpoint endpoint;
    for (const MessageType type : {MessageType::kReady, MessageType::kWake}) {
        RawPeer raw;
        RVT_ASSERT(raw.dial(endpoint.address()));
        RVT_ASSERT(raw.say({.type = type}));
        RVT_EQ(raw.hears_refusal(), EPROTO);
    }
}

Test(handshake, drops_a_peer_that_connects_and_says_nothing, .timeout = 30) {
    TestEndpoint endpoint({.connect_timeout_ms = 50});
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_EQ(raw.hears_refusal(), ETIMEDOUT);
    RVT_EQ(raw.hear().error(), ECONNRESET);
}

// As by the labels that SELinux gives two containers, or by a profile of AppArmor's.
Test(handshake, that_the_system_refuses_is_not_one_with_another_users_process, .timeout = 30) {
    rvt::util::set_log_sink(&kSink);
    TestEndpoint endpoint;
    TestEndpoint other;
    control_thread_cannot_connect();
    endpoint.connector().connect(other.address());
    const auto event = endpoint.next();
    RVT_ASSERT(event != nullptr && event->kind == Kind::kFailed);
    RVT_EQ(event->error, EPERM);
    cr_assert(last_warning.find("another user") == std::string::npos &&
                  last_warning.find("security module") != std::string::npos,
              "%s", last_warning.c_str());
}

// The kernel tells of those that a process may not have as of those for which it has no room.
Test(handshake, descriptors_that_are_held_back_are_not_a_lack_of_them) {
    int ends[2] = {-1, -1};
    RVT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const int on = 1;  // what it brings takes the room of what was sent
    RVT_EQ(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    const MessageHeader header{.type = MessageType::kReady};
    RVT_OK(send_message(ends[1], &header, sizeof header, ends, 1));
    RVT_EQ(receive_message(ends[0]).error(), EPERM);
    RVT_OK(send_message(ends[1], &header, sizeof header, ends, 1));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const int error = receive_message(ends[0]).error();
    setrlimit(RLIMIT_NOFILE, &limit);  // the test runner wants some too
    RVT_EQ(error, EMFILE);
}

Test(handshake, with_a_listener_that_never_answers_times_out, .timeout = 30) {
    TestEndpoint endpoint({.connect_timeout_ms = 50});
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    const auto event = endpoint.next();
    RVT_ASSERT(event != nullptr);
    RVT_ASSERT(event->kind == Kind::kFailed);
    RVT_EQ(event->error, ETIMEDOUT);
}

Test(handshake, reports_what_the_peer_refuses_with, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    RVT_ASSERT(raw.accept());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    RVT_ASSERT(raw.say({.type = MessageType::kRefuse, .error = ENOMEM}));
    const auto event = endpoint.next();
    RVT_ASSERT(event != nullptr);
    RVT_EQ(event->error, ENOMEM);
}

Test(handshake, takes_an_impossible_reason_for_a_breach_of_format, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    RVT_ASSERT(raw.accept());
    RVT_ASSERT(raw.say({.type = MessageType::kRefuse, .error = -5}));
    RVT_EQ(endpoint.next()->error, EPROTO);
}

Test(handshake, refuses_a_listener_that_claims_to_be_another, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    RVT_ASSERT(raw.accept());
    raw.hello.address.port = static_cast<std::uint16_t>(raw.hello.address.port ^ 1);
    RVT_ASSERT(raw.say_hello());
    RVT_EQ(endpoint.next()->error, EPROTO);
}

Test(handshake, goes_on_after_the_listener_dropped_the_first_attempt, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.listen());
    endpoint.connector().connect(raw.local.address);
    RVT_ASSERT(raw.accept());
    raw.hang_up();
    RVT_ASSERT(raw.accept());
    RVT_ASSERT(raw.hears(MessageType::kHello));
    RVT_ASSERT(raw.say_hello());
    RVT_ASSERT(raw.hears(MessageType::kReady));
    RVT_ASSERT(endpoint.next_peering() != nullptr);
}

Test(handshake, of_a_restarted_peer_ends_the_old_link_first, .timeout = 30) {
    rvt::test::enter_own_network();  // where nobody else takes the port meanwhile
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello() && raw.hears(MessageType::kHello) &&
               raw.say({.type = MessageType::kReady}));
    RVT_ASSERT(endpoint.next_peering() != nullptr);
    raw.give_up_port();
    TestEndpoint successor({.port = raw.local.address.port});
    successor.connector().connect(endpoint.address());
    const auto gone = endpoint.next();
    RVT_ASSERT(gone != nullptr);
    RVT_ASSERT(gone->kind == Kind::kPeerGone);
    const auto peering = endpoint.next_peering();
    RVT_ASSERT(peering != nullptr);
    RVT_EQ(peering->incarnation, successor.page().incarnation);
}

Test(handshake, ends_a_link_that_breaks_the_format, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello() && raw.hears(MessageType::kHello) &&
               raw.say({.type = MessageType::kReady}));
    RVT_ASSERT(endpoint.next_peering() != nullptr);
    RVT_ASSERT(raw.say({.type = MessageType::kReady}));
    const auto gone = endpoint.next();
    RVT_ASSERT(gone != nullptr);
    RVT_ASSERT(gone->kind == Kind::kPeerGone);
    RVT_EQ(gone->error, EPROTO);
}
