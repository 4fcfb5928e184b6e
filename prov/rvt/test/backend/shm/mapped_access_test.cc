// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided access to a peer's memory that is mapped here, between engines of two processes; and
// how long an engine looks for peers that it has to remind of an access.
#include <criterion/criterion.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "common/check.h"
#include "core/rd_engine.h"
#include "raw_peer.h"
#include "rdm_station.h"
#include "util/fault_guard.h"
#include "util/lock.h"
#include "util/params.h"

using namespace rvt;  // NOLINT(google-build-using-namespace)
using shm::test::Process;

namespace {

using Engine = core::RdEngine<util::SpinLock, RdmHost>;
constexpr std::size_t kBytes = 1 << 20;

/// What a target tells of itself and its memory.
struct Exposed {
    util::SockAddr address;
    std::uint64_t data = 0;
    std::uint32_t key = 0;
};

/// An endpoint with what a domain would give it.
struct Node {
    Node()
        : key_file(util::Mapping::create("test-keys", core::KeyTable::block_bytes(60),
                                         core::KeyTable::block_bytes(60))
                       .take()),
          keys(core::KeyTable::create(key_file.at<void>(0), key_file.length()).take()),
          cq(core::Cq::create(64).take()),
          engine(std::make_unique<Engine>(lock, core::RdAttr{.bind = shm::test::loopback()},
                                          core::RdTuning{},
                                          core::RdKeys{.table = keys.get(), .memory = &key_file})) {
        engine->bind({.tx_cq = cq.get(), .rx_cq = cq.get()}, &av);
        status = engine->enable();
    }
    std::uint32_t expose(void* data, std::size_t length) {
        const auto address = reinterpret_cast<std::uint64_t>(data);
        return keys
            ->add({.addr = address,
                   .length = length,
                   .iova = address,
                   .access = Access::kRemoteRead | Access::kRemoteWrite})
            .take();
    }
    /// Looks for arrived work, beside the control thread.
    void poll() {
        const util::Guard guard(lock);
        engine->progress(engine.get());
    }
    void remind() {
        const util::Guard guard(lock);
        engine->remind_peers_locked();
    }
    bool may_remind() {
        const util::Guard guard(lock);
        return engine->may_remind_locked();
    }
    /// Asks to be woken. Returns: whether there is nothing to do.
    bool arm() {
        const util::Guard guard(lock);
        return engine->arm_locked().is_ok();
    }
    /// Returns: whether there is nothing to do.
    bool may_sleep() {
        const util::Guard guard(lock);
        const bool is_armed = engine->arm_locked().is_ok();
        if (is_armed) {
            engine->disarm_locked();
        }
        return is_armed;
    }
    /// Sleeps if there is nothing to do, and then looks.
    void sleep_and_poll() {
        if (arm()) {
            pollfd entry{.fd = engine->wake_fd(), .events = POLLIN, .revents = 0};
            RVT_EQ(::poll(&entry, 1, 10000), 1);
        }
        poll();
    }
    /// Posts a write of all that the target exposes. `data` stays until it has completed.
    void post_write(const std::vector<char>& data, const Exposed& exposed,
                    core::RdFlags flags = core::RdFlags::kNone) {
        const iovec local{const_cast<char*>(data.data()), data.size()};
        const core::RdRemote remote{.addr = exposed.data, .len = data.size(), .key = exposed.key};
        RVT_OK(engine->rma({.is_write = true,
                            .iov = &local,
                            .iov_count = 1,
                            .remote = &remote,
                            .remote_count = 1,
                            .dest = peer,
                            .flags = core::RdFlags::kCompletion | flags}));
    }
    /// Posts an atomic on a byte, which the target has to execute.
    void post_atomic(const char* byte, std::uint32_t key) {
        char operand = 1;
        const iovec local{&operand, 1};
        const core::RdRemote remote{
            .addr = reinterpret_cast<std::uint64_t>(byte), .len = 1, .key = key};
        RVT_OK(engine->atomic({.operand = &local,
                               .operand_count = 1,
                               .remote = &remote,
                               .remote_count = 1,
                               .dest = peer,
                               .flags = core::RdFlags::kCompletion | core::RdFlags::kInject}));
    }
    bool take_completion() {
        const util::Guard guard(lock);
        const core::Cqe* const entry = cq->front();
        if (entry == nullptr) {
            return false;
        }
        RVT_EQ(entry->status, core::WcStatus::kSuccess);
        cq->pop();
        return true;
    }
    /// Writes or reads one range and waits. Returns: the status of its completion.
    core::WcStatus access(bool is_write, void* buffer, std::size_t length, std::uint64_t to,
                          std::uint32_t key) {
        const iovec local{buffer, length};
        const core::RdRemote remote{.addr = to, .len = length, .key = key};
        while (engine->rma({.is_write = is_write,
                            .iov = &local,
                            .iov_count = 1,
                            .remote = &remote,
                            .remote_count = 1,
                            .dest = peer,
                            .flags = core::RdFlags::kCompletion}) == util::Status(EAGAIN)) {
            poll();
        }
        for (;;) {
            poll();
            const util::Guard guard(lock);
            if (const core::Cqe* const entry = cq->front()) {
                const core::WcStatus outcome = entry->status;
                cq->pop();
                return outcome;
            }
        }
    }

    util::SpinLock lock;
    util::Mapping key_file;
    std::unique_ptr<core::KeyTable> keys;
    std::unique_ptr<core::Cq> cq;
    core::AddressVector av;
    std::unique_ptr<Engine> engine;
    std::uint64_t peer = 0;
    util::Status status;
};

/// A file of memory that both processes see, so that the test can look at what the target has.
int shared_file(int seals) {
    const int fd = memfd_create("app", MFD_ALLOW_SEALING);
    [[maybe_unused]] const int done = ftruncate(fd, kBytes);
    fcntl(fd, F_ADD_SEALS, seals);
    return fd;
}

char* memory_of(int fd) {
    void* const data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return static_cast<char*>(data);
}

char* shared_memory(int seals) {
    return memory_of(shared_file(seals));
}

/// A target that makes progress until it hears from its parent, and then no more.
void run_target(Process& parent, char* memory) {
    Node node;
    parent.put(Exposed{.address = node.engine->address(),
                       .data = reinterpret_cast<std::uint64_t>(memory),
                       .key = node.expose(memory, kBytes)});
    while (!parent.has_word()) {
        // Often enough to be seen to poll, between two system calls.
        for (int i = 0; i < 64; ++i) {
            node.poll();
        }
    }
    parent.get<bool>();
    parent.get<bool>();
}

/// A target that never makes progress itself: its control thread does, when it is woken.
void run_idle_target(Process& parent, char* memory) {
    Node node;
    parent.put(Exposed{.address = node.engine->address(),
                       .data = reinterpret_cast<std::uint64_t>(memory),
                       .key = node.expose(memory, kBytes)});
    parent.get<bool>();
}

/// A target that makes progress until the first byte changes, and then no more until it hears from
/// its parent: rounds of that.
void run_target_that_ceases(Process& parent, volatile char* memory) {
    Node node;
    parent.put(Exposed{.address = node.engine->address(),
                       .data = reinterpret_cast<std::uint64_t>(memory),
                       .key = node.expose(const_cast<char*>(memory), kBytes)});
    for (char last = memory[0]; parent.get<bool>(); last = memory[0]) {
        while (memory[0] == last) {
            node.poll();
        }
    }
}

/// Whether this process has the memory twice: as shared_memory() gave it, and as the peer's.
bool is_mapped() {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
        count += line.find("memfd:app") != std::string::npos ? 1 : 0;
    }
    return count == 2;
}

/// Waits until the control thread has left so many words for the engine, since the last time.
void await_words(const Node& node, std::uint64_t count) {
    const int fd = node.engine->wake_fd();
    for (eventfd_t more = 0, words = 0; words < count; words += more) {
        pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
        RVT_EQ(poll(&entry, 1, 20000), 1);
        RVT_EQ(eventfd_read(fd, &more), 0);
    }
}

/// Writes 1 to the first word until the engine knows that it is mapped.
void use_until_mapped(Node& node, const Exposed& exposed) {
    std::uint64_t word = 1;
    bool was_mapped = false;
    do {
        was_mapped = is_mapped();
        RVT_EQ(node.access(true, &word, sizeof word, exposed.data, exposed.key),
               core::WcStatus::kSuccess);
        node.poll();  // takes the news in
    } while (!was_mapped);
    await_words(node, 2);  // that it is connected, and what is mapped
    node.poll();
}

/// Makes progress for both until the first one has a completion.
void await_completion(Node& first, Node& second) {
    while (!first.take_completion()) {
        first.poll();
        second.poll();
    }
}

/// From now on all memory of peers is for this thread such as only its own process can copy.
void copies_of_thread_fault() {
    std::array program{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EFAULT),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{program.size(), program.data()};
    RVT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    RVT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

}  // namespace

Test(mapped_access, needs_no_help_of_the_target, .timeout = 60) {
    char* const memory = shared_memory(F_SEAL_SHRINK);
    Process target([&](Process& parent) { run_target(parent, memory); });
    const auto exposed = target.get<Exposed>();
    Node node;
    RVT_OK(node.status);
    node.peer = node.av.insert(exposed.address).take();
    std::uint64_t word = 1;
    use_until_mapped(node, exposed);
    kill(target.pid(), SIGSTOP);
    std::vector<char> large(kBytes - 100, 'x');
    RVT_EQ(node.access(true, large.data(), large.size(), exposed.data + 100, exposed.key),
           core::WcStatus::kSuccess);
    RVT_EQ(memory[99], 0);
    RVT_EQ(memory[100], 'x');
    RVT_EQ(memory[kBytes - 1], 'x');
    memory[5000] = 'y';
    char byte = 0;
    RVT_EQ(node.access(false, &byte, 1, exposed.data + 5000, exposed.key),
           core::WcStatus::kSuccess);
    RVT_EQ(byte, 'y');
    // The bounds are those of the region, not of the file.
    RVT_EQ(node.access(true, &word, sizeof word, exposed.data + kBytes - 4, exposed.key),
           core::WcStatus::kRemAccessErr);
    kill(target.pid(), SIGCONT);
}

Test(mapped_access, of_memory_that_may_shrink_goes_other_ways, .timeout = 60) {
    char* const memory = shared_memory(0);
    Process target([&](Process& parent) { run_target(parent, memory); });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::uint64_t word = 1;
    for (int i = 0; i < 20; ++i) {
        RVT_EQ(node.access(true, &word, sizeof word, exposed.data + 8, exposed.key),
               core::WcStatus::kSuccess);
    }
    RVT_ASSERT(not(is_mapped()));
    RVT_EQ(memory[8], 1);
}

// As where a limit of the initiator's own leaves it no page for a part that nobody has touched yet.
Test(mapped_access, to_a_page_that_cannot_be_had_is_an_error, .timeout = 60) {
    util::set_param_number(util::ParamId::kMapUnsealed, 1);
    const int file = shared_file(0);
    char* const memory = memory_of(file);
    Process target([&](Process& parent) {
        util::catch_faults();
        run_target(parent, memory);
    });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    use_until_mapped(node, exposed);
    RVT_EQ(ftruncate(file, kBytes / 2), 0);
    std::vector<char> large(kBytes / 2);
    for (const bool is_write : {true, false}) {
        for (const std::size_t bytes : {std::size_t{8}, large.size()}) {
            RVT_EQ(
                node.access(is_write, large.data(), bytes, exposed.data + kBytes / 2, exposed.key),
                core::WcStatus::kRemAccessErr);
        }
    }
    std::uint64_t word = 3;
    RVT_EQ(node.access(true, &word, sizeof word, exposed.data, exposed.key),
           core::WcStatus::kSuccess);
    RVT_EQ(memory[0], 3);
}

Test(mapped_access, ends_with_the_key, .timeout = 60) {
    char* const memory = shared_memory(F_SEAL_SHRINK);
    Process target([&](Process& parent) {
        Node node;
        const std::uint32_t key = node.expose(memory, kBytes);
        parent.put(Exposed{.address = node.engine->address(),
                           .data = reinterpret_cast<std::uint64_t>(memory),
                           .key = key});
        while (!parent.has_word()) {
            node.poll();
        }
        parent.get<bool>();
        parent.put(node.keys->invalidate(key).error());
        parent.get<bool>();
    });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::uint64_t word = 1;
    use_until_mapped(node, exposed);
    target.put(true);
    RVT_EQ(target.get<int>(), 0);
    word = 2;
    RVT_EQ(node.access(true, &word, sizeof word, exposed.data, exposed.key),
           core::WcStatus::kRemAccessErr);
    RVT_EQ(memory[0], 1);
    RVT_ASSERT(not(is_mapped()));
}

/// Where the region was, the target has another file now.
Test(mapped_access, reaches_what_a_renewed_key_stands_for, .timeout = 60) {
    char* const memory = shared_memory(F_SEAL_SHRINK);
    const int other_file = memfd_create("other", MFD_ALLOW_SEALING);
    RVT_EQ(ftruncate(other_file, kBytes), 0);
    RVT_EQ(fcntl(other_file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    Process target([&](Process& parent) {
        Node node;
        const std::uint32_t key = node.expose(memory, kBytes);
        parent.put(Exposed{.address = node.engine->address(),
                           .data = reinterpret_cast<std::uint64_t>(memory),
                           .key = key});
        while (!parent.has_word()) {
            node.poll();
        }
        parent.get<bool>();
        RVT_ASSERT(mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, other_file,
                        0) == memory);
        parent.put(node.keys->renew(key).error());
        while (!parent.has_word()) {
            node.poll();
        }
        parent.get<bool>();
    });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::uint64_t word = 1;
    use_until_mapped(node, exposed);
    target.put(true);
    RVT_EQ(target.get<int>(), 0);
    word = 2;
    RVT_EQ(node.access(true, &word, sizeof word, exposed.data, exposed.key),
           core::WcStatus::kSuccess);
    RVT_EQ(memory[0], 1);
    RVT_EQ(pread(other_file, &word, sizeof word, 0), sizeof word);
    RVT_EQ(word, 2);
    target.put(true);
}

Test(mapped_access, of_a_peer_that_is_known_to_be_dead_does_not_happen, .timeout = 60) {
    char* const memory = shared_memory(F_SEAL_SHRINK);
    Process target([&](Process& parent) { run_target(parent, memory); });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    use_until_mapped(node, exposed);
    target.kill();
    await_words(node, 1);
    std::uint64_t word = 2;
    RVT_EQ(node.access(true, &word, sizeof word, exposed.data, exposed.key),
           core::WcStatus::kPeerDead);
    RVT_EQ(memory[0], 1);
}

// As memory of a device, which its process has mapped: the kernel does not copy it for another one.
Test(copied_access, of_memory_that_one_process_alone_can_copy_goes_through_the_rings,
     .timeout = 60) {
    std::vector<char> memory(kBytes);
    Process target([&](Process& parent) { run_target(parent, memory.data()); });
    const auto exposed = target.get<Exposed>();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::vector<char> large(64 * 1024, 'x');
    const auto write_once = [&] {
        return node.access(true, large.data(), large.size(), exposed.data, exposed.key);
    };
    // By turns while the ways are tried, of which one begins with the help of the target.
    for (int i = 0; i < 200; ++i) {
        RVT_EQ(write_once(), core::WcStatus::kSuccess);
        core::WcStatus status{};
        std::thread([&] {
            copies_of_thread_fault();
            status = write_once();
        }).join();
        RVT_EQ(status, core::WcStatus::kSuccess);
    }
}

Test(reminder, is_not_due_any_more_when_all_targets_have_done_their_part, .timeout = 60) {
    Node node;
    Node target;
    node.peer = node.av.insert(target.engine->address()).take();
    char byte = 7;
    const std::uint32_t key = target.expose(&byte, 1);
    for (int i = 0; i < 3; ++i) {
        node.post_atomic(&byte, key);
        await_completion(node, target);
        RVT_ASSERT(node.may_remind());
        node.remind();
        RVT_ASSERT(not(node.may_remind()));
    }
}

Test(reminder, is_due_of_an_access_that_has_waited_for_its_target_to_be_met, .timeout = 60) {
    Node node;
    Node target;
    node.peer = node.av.insert(target.engine->address()).take();
    char byte = 7;
    {
        const util::Guard guard(target.lock);  // nobody makes progress for it
        node.post_atomic(&byte, target.expose(&byte, 1));
        node.remind();
        // Of nothing yet, unless the target has been met meanwhile.
        const bool may_remind = node.may_remind();
        RVT_ASSERT(not(may_remind) || node.engine->describe_peer(node.peer) != "connecting");
        while (node.engine->describe_peer(node.peer) == "connecting") {
            node.poll();
        }
        node.poll();
        for (int i = 0; i < 3; ++i) {
            node.remind();
            RVT_ASSERT(node.may_remind());
        }
    }
    await_completion(node, target);
    node.remind();
    RVT_ASSERT(not(node.may_remind()));
}

// It goes by the rings, into which less fits.
Test(reminder, is_due_of_a_fenced_access_that_has_begun_to_leave, .timeout = 60) {
    std::vector<char> memory(kBytes);
    Process target([&](Process& parent) { run_idle_target(parent, memory.data()); });
    const auto exposed = target.get<Exposed>();
    copies_of_thread_fault();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::vector<char> data(kBytes, 'x');
    RVT_EQ(node.access(true, data.data(), 8, exposed.data, exposed.key), core::WcStatus::kSuccess);
    node.post_write(data, exposed, core::RdFlags::kFence);
    for (bool is_done = false; !is_done;) {
        node.poll();
        node.remind();
        const bool may_remind = node.may_remind();
        node.poll();
        is_done = node.take_completion();
        RVT_ASSERT(is_done || may_remind);
    }
}

// Most of it is on its way then, and finds no room before the target takes what has come.
Test(reminder, reaches_a_target_that_ceases_to_poll_in_the_middle_of_an_access, .timeout = 60) {
    std::vector<char> memory(kBytes);
    Process target([&](Process& parent) { run_target_that_ceases(parent, memory.data()); });
    const auto exposed = target.get<Exposed>();
    copies_of_thread_fault();
    Node node;
    node.peer = node.av.insert(exposed.address).take();
    std::vector<char> data(kBytes);
    for (char round = 1; round <= 100; ++round) {
        target.put(true);
        data[0] = round;
        node.post_write(data, exposed);
        while (!node.take_completion()) {
            node.sleep_and_poll();
        }
    }
    target.put(false);
}

Test(sleep, does_not_begin_before_what_any_peer_has_sent_is_taken, .timeout = 60) {
    Node node;
    std::array<Node, 2> peers;
    char byte = 'x';
    const iovec buffer{&byte, 1};
    const auto send_from = [&](Node& peer) {
        RVT_OK(node.engine->recv(
            {.iov = &buffer, .iov_count = 1, .flags = core::RdFlags::kCompletion}));
        RVT_OK(peer.engine->send(
            {.iov = &buffer, .iov_count = 1, .dest = peer.peer, .flags = core::RdFlags::kInject}));
    };
    std::size_t met = 0;
    for (Node& peer : peers) {
        peer.peer = peer.av.insert(node.engine->address()).take();
        send_from(peer);
        await_completion(node, peer);
        ++met;
        for (std::size_t i = 0; i < 4; ++i) {
            while (!node.may_sleep()) {
                node.poll();
            }
            send_from(peers[i % met]);
            RVT_ASSERT(not(node.may_sleep()));
            await_completion(node, peers[i % met]);
        }
    }
}
