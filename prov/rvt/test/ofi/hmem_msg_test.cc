// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Connected endpoints, and shared receives, with memory of devices that the CPU cannot touch.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "ofi/msg_pair.h"
#include "ofi/on_device.h"

using namespace rvt::test;
using fab::standin::How;
using fab::standin::Library;

/// What AddressSanitizer keeps of freed memory, to see who uses it still, counts below as memory of
/// the process: far less of it. In other builds nobody calls this.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options();
const char* __asan_default_options() {
    return "quarantine_size_mb=2";
}

namespace {

MsgOptions with_devices(bool has_shared_receives) {
    MsgOptions options;
    options.caps = FI_MSG | FI_RMA | FI_ATOMIC | FI_HMEM;
    options.mr_mode = FI_MR_HMEM | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    options.has_shared_receives = has_shared_receives;
    return options;
}

/// Connected, each side with memory of the device.
struct Devices {
    explicit Devices(bool has_shared_receives = false, How how = How::kWithoutShare,
                     Library library = Library::kCuda, fi_hmem_iface iface = FI_HMEM_CUDA,
                     std::size_t size = kDeviceBytes)
        : bytes(size) {
        fab::standin::use(how, library);
        pair.emplace(with_devices(has_shared_receives));
        client_mr = reg(pair->client.end, client, iface);
        server_mr = reg(pair->server, server, iface);
    }
    Owned<fid_mr> reg(const MsgEnd& end, const OnDevice& memory, fi_hmem_iface iface) const {
        return opened<fid_mr>(
            [&](fid_mr** mr) { return try_reg(end.domain.get(), memory.at(), bytes, iface, mr); });
    }
    void recv(std::size_t offset, std::size_t bytes) {
        fid_ep* const queue =
            pair->server.srx != nullptr ? pair->server.srx.get() : pair->server.ep.get();
        RVT_OK(fi_recv(queue, server.at(offset), bytes, fi_mr_desc(server_mr.get()), 0, nullptr));
    }
    void send(std::size_t offset, std::size_t bytes) {
        RVT_OK(fi_send(pair->client.end.ep.get(), client.at(offset), bytes,
                       fi_mr_desc(client_mr.get()), 0, nullptr));
    }
    void write(std::size_t bytes) {
        RVT_OK(fi_write(pair->client.end.ep.get(), client.at(), bytes, fi_mr_desc(client_mr.get()),
                        0, reinterpret_cast<std::uintptr_t>(server.at(9)),
                        fi_mr_key(server_mr.get()), nullptr));
    }

    const std::size_t bytes;
    OnDevice client{bytes};
    OnDevice server{bytes};
    std::optional<MsgPair> pair;
    Owned<fid_mr> client_mr;
    Owned<fid_mr> server_mr;
};

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kLong = 48 * kMiB;

/// With memory for long messages.
struct LongDevices : Devices {
    explicit LongDevices(bool has_shared_receives = false)
        : Devices(has_shared_receives, How::kWithoutShare, Library::kCuda, FI_HMEM_CUDA,
                  kLong + 4096) {
        client.write(0, numbered(bytes, 5));
    }
    /// What the client has from there on.
    [[nodiscard]] std::vector<char> sent(std::size_t offset, std::size_t size) const {
        return client.read(offset, size);
    }
    [[nodiscard]] std::size_t completions() const {
        return read(pair->client.end) + read(pair->server);
    }

  private:
    static std::size_t read(const MsgEnd& end) {
        fi_cq_data_entry entry{};
        const ssize_t got = fi_cq_read(end.cq.get(), &entry, 1);
        RVT_ASSERT(got == 1 || got == -FI_EAGAIN);
        return got == 1 ? 1 : 0;
    }
};

/// Memory of this process that is nothing but its own. Looking takes none: that would count, too.
std::size_t anonymous_bytes() {
    char text[256] = {};
    const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    RVT_ASSERT(read(file, text, sizeof text - 1) > 0);
    close(file);
    std::size_t resident = 0;
    std::size_t shared = 0;
    RVT_EQ(std::sscanf(text, "%*u %zu %zu", &resident, &shared), 2);
    return (resident - shared) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Has what `post` posts complete, and its memory be far less than the two copies of what it moves.
template <class Post>
void moves_with_little_memory(const LongDevices& at, std::size_t completions, Post post) {
    const std::size_t before = anonymous_bytes();
    std::size_t most = before;
    post();
    const auto end = std::chrono::steady_clock::now() + kMsgPatience;
    while (completions != 0 && std::chrono::steady_clock::now() < end) {
        most = std::max(most, anonymous_bytes());
        completions -= at.completions();
    }
    RVT_EQ(completions, 0);
    cr_assert(most - before < kLong, "%zu bytes of memory", most - before);
}

/// Polls until a part of what has been posted has been copied.
void begin_to_move(const LongDevices& at) {
    const auto before = fab::standin::counts().copied;
    const auto end = std::chrono::steady_clock::now() + kMsgPatience;
    while (fab::standin::counts().copied - before < kMiB &&
           std::chrono::steady_clock::now() < end) {
        RVT_EQ(at.completions(), 0);
    }
    RVT_ASSERT(fab::standin::counts().copied - before >= kMiB);
}

void messages_arrive(bool has_shared_receives) {
    Devices at(has_shared_receives);
    for (const std::size_t size : {0, 1, 300, 70'000, 2'000'000}) {
        const auto bytes = numbered(size, 5);
        at.client.write(3, bytes);
        at.server.write(0, std::vector<char>(kDeviceBytes, 'x'));
        at.recv(5, size + 100);
        at.send(3, size);
        RVT_EQ(at.pair->server.next().len, size);
        at.pair->client.end.next();
        cr_assert(at.server.read(5, size) == bytes, "%zu bytes", size);
        cr_assert(at.server.read(5 + size, 100) == std::vector<char>(100, 'x'), "%zu bytes", size);
    }
}

void injected_atomics_bring_results(Devices& at) {
    fid_ep* const ep = at.pair->client.end.ep.get();
    void* desc = fi_mr_desc(at.client_mr.get());
    const fi_rma_ioc there{reinterpret_cast<std::uintptr_t>(at.server.at(8)), 1,
                           fi_mr_key(at.server_mr.get())};
    for (const fi_datatype type : {FI_UINT64, FI_UINT32}) {
        at.server.write(0, std::vector<char>(64, 1));
        at.client.write(0, std::vector<char>(64, 2));
        const fi_ioc operand{at.client.at(), 1};
        fi_ioc result{at.client.at(32), 1};
        const fi_msg_atomic msg{&operand, &desc, 1, 0, &there, 1, type, FI_SUM, nullptr, 0};
        RVT_OK(fi_fetch_atomicmsg(ep, &msg, &result, &desc, 1, FI_INJECT | FI_COMPLETION));
        at.pair->client.end.next();
        const std::size_t size = type == FI_UINT64 ? 8 : 4;
        cr_assert(at.client.read(32, size) == std::vector<char>(size, 1));
        cr_assert(at.server.read(8, size) == std::vector<char>(size, 3));
    }
}

}  // namespace

/// Has each region keep as little of its copy as it ever does. Before anything is asked.
static void keep_little() {
    setenv("FI_RVT_HMEM_KEPT_BYTES", "0", 1);
}

/// A test of a long message over the ways on which that takes more than one call: at one port for
/// all it does not leave it.
#define LONG_TEST_IN_BETWEEN(name)                                                           \
    static void hmem_msg_##name##_body();                                                    \
    RVT_TEST_AFTER(keep_little(), hmem_msg, long, name)                                      \
    RVT_TEST_AFTER((keep_little(), rvt::test::enable_first_by_wire()), hmem_msg, wire, name) \
    RVT_TEST_AFTER((keep_little(), rvt::test::use_network()), hmem_msg, host, name)          \
    static void hmem_msg_##name##_body()
/// Over all ways.
#define LONG_TEST(name)                                                                      \
    static void hmem_msg_##name##_body();                                                    \
    RVT_TEST_AFTER((keep_little(), rvt::test::share_roce_port()), hmem_msg, roce_port, name) \
    LONG_TEST_IN_BETWEEN(name)

RVT_MSG_TEST(hmem_msg, messages_of_any_size_go_from_device_to_device) {
    messages_arrive(false);
}

RVT_MSG_TEST(hmem_msg, shared_receives_take_them_too) {
    messages_arrive(true);
}

RVT_MSG_TEST(hmem_msg, peers_write_read_and_change_memory_of_a_device) {
    Devices at;
    fid_ep* const ep = at.pair->client.end.ep.get();
    const std::uint64_t to = reinterpret_cast<std::uintptr_t>(at.server.at(9));
    const std::uint64_t key = fi_mr_key(at.server_mr.get());
    void* const desc = fi_mr_desc(at.client_mr.get());
    for (const std::size_t size : {1, 300, 70'000, 2'000'000}) {
        const auto bytes = numbered(size, 6);
        at.client.write(0, bytes);
        at.write(size);
        at.pair->client.end.next();
        cr_assert(at.server.read(9, size) == bytes, "write of %zu bytes", size);
        RVT_OK(fi_read(ep, at.client.at(77), size, desc, 0, to, key, nullptr));
        at.pair->client.end.next();
        cr_assert(at.client.read(77, size) == bytes, "read of %zu bytes", size);
    }
    at.server.write(0, std::vector<char>(64, 1));
    at.client.write(0, std::vector<char>(64, 2));
    const std::uint64_t word = reinterpret_cast<std::uintptr_t>(at.server.at(8));
    RVT_OK(fi_fetch_atomic(ep, at.client.at(), 1, desc, at.client.at(32), desc, 0, word, key,
                           FI_UINT64, FI_SUM, nullptr));
    at.pair->client.end.next();
    std::vector<char> expected(24, 1);
    std::fill_n(expected.begin() + 8, 8, 3);
    cr_assert(at.server.read(0, 24) == expected);
    cr_assert(at.client.read(32, 8) == std::vector<char>(8, 1));
}

RVT_MSG_TEST(hmem_msg, what_an_injected_atomic_brings_is_on_the_device) {
    Devices at;
    injected_atomics_bring_results(at);
}

RVT_MSG_TEST(hmem_msg, an_injected_atomic_takes_its_operands_from_where_the_device_is_mapped) {
    Devices at(false, How::kMappable, Library::kZe, FI_HMEM_ZE);
    injected_atomics_bring_results(at);
}

RVT_MSG_TEST(hmem_msg, empty_elements_behind_a_compared_value_count_for_nothing) {
    Devices at;
    at.server.write(0, std::vector<char>(64, 1));
    at.client.write(0, std::vector<char>(64, 1));
    at.client.write(8, std::vector<char>(4, 5));
    void* descs[8];
    std::fill(std::begin(descs), std::end(descs), fi_mr_desc(at.client_mr.get()));
    const fi_ioc operand{at.client.at(8), 1};
    fi_ioc compares[8];
    std::fill(std::begin(compares), std::end(compares), fi_ioc{at.client.at(16), 0});
    fi_ioc results[8];
    std::fill(std::begin(results), std::end(results), fi_ioc{at.client.at(32), 0});
    compares[0].count = results[0].count = 1;
    RVT_OK(fi_compare_atomicv(at.pair->client.end.ep.get(), &operand, descs, 1, compares, descs, 8,
                              results, descs, 8, 0,
                              reinterpret_cast<std::uintptr_t>(at.server.at(8)),
                              fi_mr_key(at.server_mr.get()), FI_UINT32, FI_CSWAP, nullptr));
    at.pair->client.end.next();
    cr_assert(at.client.read(32, 8) == std::vector<char>(8, 1));
    cr_assert(at.server.read(8, 4) == std::vector<char>(4, 5));
}

/// Both are there before the server looks at its queue.
RVT_MSG_TEST(hmem_msg, a_read_behind_a_message_does_not_undo_it) {
    Devices at;
    const auto bytes = numbered(64, 7);
    at.client.write(0, bytes);
    at.server.write(0, std::vector<char>(64, 'x'));
    at.recv(0, 64);
    at.send(0, 64);
    RVT_OK(fi_read(
        at.pair->client.end.ep.get(), at.client.at(4096), 64, fi_mr_desc(at.client_mr.get()), 0,
        reinterpret_cast<std::uintptr_t>(at.server.at()), fi_mr_key(at.server_mr.get()), nullptr));
    RVT_EQ(at.pair->server.next().len, 64);
    at.pair->client.end.next();
    at.pair->client.end.next();
    cr_assert(at.server.read(0, 64) == bytes);
}

RVT_MSG_TEST(hmem_msg, a_call_that_is_refused_copies_nothing) {
    Devices at;
    fid_ep* const ep = at.pair->client.end.ep.get();
    void* const desc = fi_mr_desc(at.client_mr.get());
    const auto refused = [before = fab::standin::counts().copied](ssize_t result,
                                                                  ssize_t expected) {
        RVT_EQ(result, expected);
        RVT_EQ(fab::standin::counts().copied - before, 0);
    };
    refused(fi_write(ep, at.client.at(), 1 << 20, desc, 0, 0, std::uint64_t{1} << 32, nullptr),
            -FI_EINVAL);
    const std::array<iovec, 2> list{iovec{at.client.at(), 1 << 20},
                                    iovec{at.client.at(kDeviceBytes - 8), 9}};
    std::array<void*, 2> descs{desc, desc};
    refused(fi_sendv(ep, list.data(), descs.data(), list.size(), 0, nullptr), -FI_EINVAL);
    const fi_msg injected{list.data(), descs.data(), 1, 0, nullptr, 0};
    refused(fi_sendmsg(ep, &injected, FI_INJECT), -FI_EMSGSIZE);
}

RVT_MSG_TEST(hmem_msg, a_send_that_finds_the_queue_full_copies_nothing) {
    Devices at;
    const auto copied = [] { return fab::standin::counts().copied; };
    std::size_t posted = 0;
    auto before = copied();
    const auto send = [&] {  // without a receive it stays where it is
        before = copied();
        return fi_send(at.pair->client.end.ep.get(), at.client.at(), 4000,
                       fi_mr_desc(at.client_mr.get()), 0, nullptr);
    };
    ssize_t result = send();
    for (; result == 0; result = send()) {
        ++posted;
        RVT_EQ(copied() - before, 4000);
    }
    RVT_EQ(result, -FI_EAGAIN);
    RVT_EQ(copied() - before, 0);
    RVT_ASSERT(posted != 0);
}

RVT_MSG_TEST(hmem_msg, a_copy_that_fails_ends_the_receive_with_an_error) {
    Devices at;
    at.recv(0, 4096);
    at.send(0, 4096);
    fab::standin::fail_copies(0);
    RVT_EQ(at.pair->server.next_error().err, FI_EIO);
    at.pair->client.end.next();  // the peer's host has it
    RVT_EQ(fi_send(at.pair->client.end.ep.get(), at.client.at(), 64, fi_mr_desc(at.client_mr.get()),
                   0, nullptr),
           -FI_EIO);
}

RVT_MSG_TEST(hmem_msg, a_copy_that_fails_at_the_target_ends_the_access_with_an_error) {
    Devices at;
    at.write(64);
    at.pair->client.end.next();
    std::vector<char> host(64);
    fab::standin::fail_copies(0);
    RVT_OK(fi_write(at.pair->client.end.ep.get(), host.data(), host.size(), nullptr, 0,
                    reinterpret_cast<std::uintptr_t>(at.server.at(9)),
                    fi_mr_key(at.server_mr.get()), nullptr));
    RVT_EQ(at.pair->client.end.next_error().err, FI_EACCES);
}

LONG_TEST(a_long_message_needs_little_memory_of_the_host) {
    LongDevices at;
    moves_with_little_memory(at, 2, [&] {
        at.recv(5, kLong);
        at.send(3, kLong);
    });
    cr_assert(at.server.read(5, kLong) == at.sent(3, kLong));
}

LONG_TEST(a_long_message_to_a_shared_receive_needs_little_memory) {
    LongDevices at(true);
    moves_with_little_memory(at, 2, [&] {
        at.recv(5, kLong);
        at.send(3, kLong);
    });
    cr_assert(at.server.read(5, kLong) == at.sent(3, kLong));
}

LONG_TEST(long_accesses_need_little_memory_of_the_host) {
    LongDevices at;
    moves_with_little_memory(at, 1, [&] { at.write(kLong); });
    cr_assert(at.server.read(9, kLong) == at.sent(0, kLong));
    moves_with_little_memory(at, 1, [&] {
        RVT_OK(fi_read(at.pair->client.end.ep.get(), at.client.at(77), kLong,
                       fi_mr_desc(at.client_mr.get()), 0,
                       reinterpret_cast<std::uintptr_t>(at.server.at(9)),
                       fi_mr_key(at.server_mr.get()), nullptr));
    });
    cr_assert(at.server.read(9, kLong) == at.client.read(77, kLong));
}

/// They wait for receives, and begin again; and while one is sent, what another has of the same
/// memory is done with.
LONG_TEST(long_messages_of_the_same_memory_arrive_in_their_order) {
    LongDevices at;
    constexpr std::size_t kSize = 12 * kMiB;
    const std::array<std::size_t, 3> from{0, 4 * kMiB + 17, 9 * kMiB};
    for (const std::size_t offset : from) {
        at.send(offset, kSize);
    }
    for (int i = 0; i < 100; ++i) {
        RVT_EQ(at.completions(), 0);
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
        at.recv(i * (kSize + 5), kSize);
    }
    moves_with_little_memory(at, 2 * from.size(), [] {});
    for (std::size_t i = 0; i < from.size(); ++i) {
        cr_assert(at.server.read(i * (kSize + 5), kSize) == at.sent(from[i], kSize), "%zu", i);
    }
}

LONG_TEST(a_long_message_that_does_not_fit_is_truncated_and_leaves_the_rest) {
    LongDevices at;
    at.server.write(0, std::vector<char>(at.bytes, 'x'));
    at.recv(5, kMiB);
    at.send(0, 12 * kMiB);
    RVT_EQ(at.pair->server.next_error().err, FI_ETRUNC);
    RVT_ASSERT(at.pair->client.end.next_error().err != 0);
    cr_assert(at.server.read(5 + kMiB, 4 * kMiB) == std::vector<char>(4 * kMiB, 'x'));
    cr_assert(at.server.read(0, 5) == std::vector<char>(5, 'x'));
}

LONG_TEST(a_copy_that_fails_within_a_long_message_ends_it_with_an_error) {
    LongDevices at;
    at.recv(0, kLong);
    fab::standin::fail_copies(8);
    at.send(0, kLong);
    RVT_EQ(at.pair->client.end.next_error().err, FI_EIO);
    RVT_ASSERT(at.pair->server.next_error().err != 0);
}

LONG_TEST_IN_BETWEEN(who_closes_within_a_long_message_gives_its_memory_back) {
    LongDevices at;
    const std::size_t before = anonymous_bytes();
    at.recv(0, kLong);
    at.send(0, kLong);
    begin_to_move(at);
    at.pair->client.end.ep.reset();
    RVT_OK(fi_close(&at.client_mr.release()->fid));
    RVT_ASSERT(at.pair->server.next_error().err != 0);
    RVT_OK(fi_close(&at.server_mr.release()->fid));
    RVT_ASSERT(anonymous_bytes() < before + 8 * kMiB);
}

LONG_TEST_IN_BETWEEN(whose_peer_goes_within_a_long_message_gets_an_error) {
    LongDevices at;
    const std::size_t before = anonymous_bytes();
    at.recv(0, kLong);
    at.send(0, kLong);
    begin_to_move(at);
    at.pair->server.ep.reset();
    RVT_ASSERT(at.pair->client.end.next_error().err != 0);
    RVT_OK(fi_close(&at.client_mr.release()->fid));
    RVT_OK(fi_close(&at.server_mr.release()->fid));
    RVT_ASSERT(anonymous_bytes() < before + 8 * kMiB);
}
