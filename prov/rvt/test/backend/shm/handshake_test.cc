// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Peers that break the handshake: each is told why, and none disturbs an honest one.
#include "backend/shm/handshake.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <sys/mman.h>

#include "raw_peer.h"

using namespace rvt::shm;  // NOLINT(google-build-using-namespace)
using rvt::shm::test::Kind;
using rvt::shm::test::RawPeer;
using rvt::shm::test::TestEndpoint;
using rvt::util::UniqueFd;

namespace {

/// An endpoint that an honest peer can still reach.
void check_alive(TestEndpoint& endpoint) {
    TestEndpoint honest;
    honest.connector().connect(endpoint.address());
    cr_assert(honest.next_peering() != nullptr);
    cr_assert(endpoint.next_peering() != nullptr);
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
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(raw.say_hello());
    cr_assert(raw.hears(MessageType::kHello));
    cr_assert(raw.say({.type = MessageType::kReady}));
    const auto peering = endpoint.next_peering();
    cr_assert(peering != nullptr);
    cr_assert(peering->address == raw.local.address);
    // probe_address was 0: its memory cannot be read, which is no reason to refuse it.
    cr_assert(not(peering->may_read_memory));
    cr_assert(eq(int, peering->read_error, EFAULT));
    cr_assert(not(peering->keys.is_mapped()));
    cr_assert(not(peering->peer_has_membarrier));
}

Test(handshake, refuses_garbage, .timeout = 30) {
    TestEndpoint endpoint;
    const char garbage[100] = "GET / HTTP/1.1";
    for (const std::size_t count : {std::size_t{1}, std::size_t{16}, sizeof garbage}) {
        RawPeer raw;
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_bytes(garbage, count));
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
        cr_assert(eq(int, raw.hear().error(), ECONNRESET));
    }
    check_alive(endpoint);
}

Test(handshake, refuses_another_version_and_another_magic, .timeout = 30) {
    TestEndpoint endpoint;
    for (int i = 0; i < 2; ++i) {
        RawPeer raw;
        (i == 0 ? raw.hello.header.magic : raw.hello.page_bytes) += 1;
        raw.hello.header.version = static_cast<std::uint16_t>(raw.hello.header.version + i);
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_hello());
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
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
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_hello());
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
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
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_hello(4));
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
    }
}

Test(handshake, refuses_memory_that_can_shrink, .timeout = 30) {
    TestEndpoint endpoint;
    for (const std::size_t place : {std::size_t{0}, std::size_t{1}}) {
        RawPeer raw;
        const UniqueFd file = unsealed_file(kOutboxBytes);
        raw.fds[place] = file.get();
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_hello());
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
    }
    check_alive(endpoint);
}

Test(handshake, refuses_memory_that_is_too_short, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    const UniqueFd file = unsealed_file(kPageBytes);
    cr_assert(
        eq(int, fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0));
    raw.fds[1] = file.get();
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(raw.say_hello());
    cr_assert(eq(int, raw.hears_refusal(), EPROTO));
}

Test(handshake, refuses_memory_of_huge_pages, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    const UniqueFd file(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
    cr_assert(eq(int, ftruncate(file.get(), 32 << 20), 0));  // a whole number of any size
    cr_assert(eq(int, fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0));
    raw.fds[0] = file.get();
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(raw.say_hello());
    cr_assert(eq(int, raw.hears_refusal(), EPROTO));
    check_alive(endpoint);
}

Test(handshake, refuses_a_wake_descriptor_that_is_no_eventfd_or_may_block, .timeout = 30) {
    TestEndpoint endpoint;
    const UniqueFd blocking(eventfd(0, EFD_CLOEXEC));
    const UniqueFd null(open("/dev/null", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    for (const int fd : {blocking.get(), null.get(), STDIN_FILENO}) {
        RawPeer raw;
        raw.fds[2] = fd;
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say_hello());
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
    }
}

Test(handshake, refuses_messages_out_of_turn, .timeout = 30) {
    TestEndpoint endpoint;
    for (const MessageType type : {MessageType::kReady, MessageType::kWake}) {
        RawPeer raw;
        cr_assert(raw.dial(endpoint.address()));
        cr_assert(raw.say({.type = type}));
        cr_assert(eq(int, raw.hears_refusal(), EPROTO));
    }
}

Test(handshake, drops_a_peer_that_connects_and_says_nothing, .timeout = 30) {
    TestEndpoint endpoint({.connect_timeout_ms = 50});
    RawPeer raw;
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(eq(int, raw.hears_refusal(), ETIMEDOUT));
    cr_assert(eq(int, raw.hear().error(), ECONNRESET));
}

Test(handshake, with_a_listener_that_never_answers_times_out, .timeout = 30) {
    TestEndpoint endpoint({.connect_timeout_ms = 50});
    RawPeer raw;
    cr_assert(raw.listen());
    endpoint.connector().connect(raw.local.address);
    const auto event = endpoint.next();
    cr_assert(event != nullptr);
    cr_assert(event->kind == Kind::kFailed);
    cr_assert(eq(int, event->error, ETIMEDOUT));
}

Test(handshake, reports_what_the_peer_refuses_with, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.listen());
    endpoint.connector().connect(raw.local.address);
    cr_assert(raw.accept());
    cr_assert(raw.hears(MessageType::kHello));
    cr_assert(raw.say({.type = MessageType::kRefuse, .error = ENOMEM}));
    const auto event = endpoint.next();
    cr_assert(event != nullptr);
    cr_assert(eq(int, event->error, ENOMEM));
}

Test(handshake, takes_an_impossible_reason_for_a_breach_of_format, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.listen());
    endpoint.connector().connect(raw.local.address);
    cr_assert(raw.accept());
    cr_assert(raw.say({.type = MessageType::kRefuse, .error = -5}));
    cr_assert(eq(int, endpoint.next()->error, EPROTO));
}

Test(handshake, refuses_a_listener_that_claims_to_be_another, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.listen());
    endpoint.connector().connect(raw.local.address);
    cr_assert(raw.accept());
    raw.hello.address.port = static_cast<std::uint16_t>(raw.hello.address.port ^ 1);
    cr_assert(raw.say_hello());
    cr_assert(eq(int, endpoint.next()->error, EPROTO));
}

Test(handshake, goes_on_after_the_listener_dropped_the_first_attempt, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.listen());
    endpoint.connector().connect(raw.local.address);
    cr_assert(raw.accept());
    raw.hang_up();
    cr_assert(raw.accept());
    cr_assert(raw.hears(MessageType::kHello));
    cr_assert(raw.say_hello());
    cr_assert(raw.hears(MessageType::kReady));
    cr_assert(endpoint.next_peering() != nullptr);
}

Test(handshake, of_a_restarted_peer_ends_the_old_link_first, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(raw.say_hello() && raw.hears(MessageType::kHello) &&
              raw.say({.type = MessageType::kReady}));
    cr_assert(endpoint.next_peering() != nullptr);
    raw.give_up_port();
    TestEndpoint successor({.port = raw.local.address.port});
    successor.connector().connect(endpoint.address());
    const auto gone = endpoint.next();
    cr_assert(gone != nullptr);
    cr_assert(gone->kind == Kind::kPeerGone);
    const auto peering = endpoint.next_peering();
    cr_assert(peering != nullptr);
    cr_assert(eq(u64, peering->incarnation, successor.page().incarnation));
}

Test(handshake, ends_a_link_that_breaks_the_format, .timeout = 30) {
    TestEndpoint endpoint;
    RawPeer raw;
    cr_assert(raw.dial(endpoint.address()));
    cr_assert(raw.say_hello() && raw.hears(MessageType::kHello) &&
              raw.say({.type = MessageType::kReady}));
    cr_assert(endpoint.next_peering() != nullptr);
    cr_assert(raw.say({.type = MessageType::kReady}));
    const auto gone = endpoint.next();
    cr_assert(gone != nullptr);
    cr_assert(gone->kind == Kind::kPeerGone);
    cr_assert(eq(int, gone->error, EPROTO));
}
