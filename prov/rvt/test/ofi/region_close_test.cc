// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions and endpoints that are closed while another process copies by itself into memory that it
// was told of.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/process.h"
#include "core/key_table.h"
#include "ofi/pair.h"

using namespace rvt::test;
using rvt::core::KeyEntry;

namespace {

constexpr std::size_t kPart = std::size_t{4} << 20;  // the most that is copied at a time
constexpr std::size_t kParts = 16;
constexpr std::size_t kBytes = kParts * kPart;

constexpr std::uint64_t kKey = 5;  // where the application chooses it

// The writer knows the key at once, and no control thread makes progress beside the test.
const EndOptions kManual{.mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY,
                         .threading = FI_THREAD_DOMAIN,
                         .data_progress = FI_PROGRESS_MANUAL};

const EndOptions kOwnKeys{
    .mr_mode = FI_MR_VIRT_ADDR, .threading = FI_THREAD_DOMAIN, .data_progress = FI_PROGRESS_MANUAL};

struct Place {
    std::array<char, 64> name{};
    std::uint64_t address = 0;
    std::uint64_t key = 0;
};

/// A region for a writer.
struct Target {
    explicit Target(const EndOptions& options = kManual) : end(options) {
        std::size_t bytes = place.name.size();
        RVT_OK(fi_getname(&end.ep->fid, place.name.data(), &bytes));
        place.address = reinterpret_cast<std::uintptr_t>(memory);
        place.key = fi_mr_key(mr.get());
    }
    ~Target() { munmap(memory, kBytes); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    /// Waits until the writer is in the middle of its third part.
    template <class Meanwhile>
    void await_third_part(Meanwhile meanwhile) const {
        const volatile char* const inside = memory + 2 * kPart + kPart / 8;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (*inside == 0 && std::chrono::steady_clock::now() < deadline) {
            meanwhile();
        }
        RVT_ASSERT(*inside != 0);
    }

    /// Waits until the writer has stopped.
    void await_stop(const Process& writer) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        int status = 0;
        while (waitpid(writer.pid(), &status, WUNTRACED | WNOHANG) == 0 &&
               std::chrono::steady_clock::now() < deadline) {
            end.is_quiet();
        }
        RVT_ASSERT(WIFSTOPPED(status));
    }

    Owned<fid_cntr> count_writes(const Owned<fid_mr>& region) const {
        Owned<fid_cntr> cntr = end.open.cntr();
        RVT_OK(fi_mr_bind(region.get(), &cntr->fid, FI_REMOTE_WRITE));
        return cntr;
    }

    End end;
    char* memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    Owned<fid_mr> mr = end.reg(memory, kBytes, FI_REMOTE_WRITE, kKey);
    Place place;
};

/// Fills each place that it is told of, until it may not any more, and says so.
void write_where_told(Process& parent) {
    End end(kManual);
    const std::vector<char> ones(kBytes, 1);
    for (Place place = parent.get<Place>(); place.key != 0; place = parent.get<Place>()) {
        fi_addr_t to = FI_ADDR_UNSPEC;
        RVT_EQ(fi_av_insert(end.av.get(), place.name.data(), 1, &to, 0, nullptr), 1);
        fi_cq_tagged_entry entry{};
        ssize_t got = 1;
        while (got == 1 || got == -FI_EAGAIN) {
            if (got == 1) {
                RVT_OK(fi_write(end.ep.get(), ones.data(), kBytes, nullptr, to, place.address,
                                place.key, nullptr));
            }
            got = fi_cq_read(end.cq.get(), &entry, 1);
        }
        parent.put(end.next_error().err);
    }
}

constexpr std::size_t kMessage = std::size_t{1} << 20;

/// Sends messages, the first one without bytes, until one fails. Each waits where it is until the
/// parent has a word.
void send_until_refused(Process& parent) {
    End end(kManual);
    const Place place = parent.get<Place>();
    RVT_EQ(fi_av_insert(end.av.get(), place.name.data(), 1, &end.peer, 0, nullptr), 1);
    const std::vector<char> out(kMessage, 'x');
    std::size_t bytes = 0;
    ssize_t got = 0;
    do {
        RVT_OK(fi_send(end.ep.get(), out.data(), bytes, nullptr, end.peer, nullptr));
        parent.put(true);
        parent.get<bool>();
        fi_cq_tagged_entry entry{};
        do {
            got = fi_cq_read(end.cq.get(), &entry, 1);
        } while (got == -FI_EAGAIN);
        bytes = kMessage;
    } while (got == 1);
    parent.put(true);
}

bool is_to_stop = false;  // a writer, in its first copy

void write_and_stop(Process& parent) {
    is_to_stop = true;
    write_where_told(parent);
}

// relaxed: only the test's own thread opens and closes regions while it looks at the table.
constexpr auto kOrder = std::memory_order_relaxed;

/// The place of the region with this key, in the table of whichever domain of this process.
KeyEntry& place_of(std::uint64_t user_key) {
    constexpr std::size_t kFirstPlaces = 16;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        const bool is_table = line.find("rw-s") != std::string::npos &&
                              line.find("rvt-keys") != std::string::npos &&
                              std::sscanf(line.c_str(), "%zx", &begin) == 1;
        for (std::size_t i = 1; is_table && i < kFirstPlaces; ++i) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr)
            KeyEntry& entry = reinterpret_cast<KeyEntry*>(begin)[i];
            if (entry.user_key.load(kOrder) == user_key &&
                (entry.access.load(kOrder) & KeyEntry::kLive) != 0) {
                return entry;
            }
        }
    }
    std::abort();
}

/// As if a region that is somewhere else had come to lie in this place, and its key were `key`.
void take_over(KeyEntry& place, const KeyEntry& region, std::uint32_t key) {
    const auto set = [](auto& field, auto value) {
        field.store(value, std::memory_order_relaxed);  // relaxed: as above
    };
    set(place.key, key);
    set(place.addr, region.addr.load(kOrder));
    set(place.user_key, region.user_key.load(kOrder));
    set(place.access, region.access.load(kOrder));
}

}  // namespace

// The provider calls this one.
extern "C" [[gnu::visibility("default")]] ssize_t process_vm_writev(pid_t pid, const iovec* local,
                                                                    unsigned long locals,
                                                                    const iovec* remote,
                                                                    unsigned long remotes,
                                                                    unsigned long flags) noexcept {
    if (is_to_stop) {
        raise(SIGSTOP);
    }
    return syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
}

Test(region_close, who_was_killed_while_it_copied_holds_no_region) {
    Process writer(write_where_told);
    Target target;
    writer.put(target.place);
    target.await_third_part([&] { target.end.is_quiet(); });
    writer.kill();
    RVT_OK(fi_close(&target.mr.release()->fid));
}

Test(region_close, nobody_copies_into_a_closed_one_who_connected_unnoticed) {
    Process writer(write_where_told);
    for (int turn = 0; turn < 10; ++turn) {
        Target target;
        writer.put(target.place);
        target.await_third_part([] {});
        RVT_OK(fi_close(&target.mr.release()->fid));
        char& last = target.memory[3 * kPart - 1];
        last = 2;
        RVT_EQ(writer.get<int>(), FI_EACCES);
        RVT_EQ(last, 2);
    }
}

Test(region_close, nobody_writes_into_the_receives_of_a_closed_endpoint, .timeout = 60) {
    Process sender(send_until_refused);
    End end(kManual);
    Place place;
    std::size_t bytes = place.name.size();
    RVT_OK(fi_getname(&end.ep->fid, place.name.data(), &bytes));
    sender.put(place);
    std::vector<char> in(kMessage);
    fi_cq_tagged_entry entry{};
    for (int i = 0;; ++i) {
        RVT_ASSERT(i < 1000);
        RVT_ASSERT(sender.get<bool>());
        std::fill(in.begin(), in.end(), 0);
        RVT_OK(fi_recv(end.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, nullptr));
        const bool is_whole = fi_cq_read(end.cq.get(), &entry, 1) == 1;
        if (!is_whole && in[kMessage / 2 - 1] == 'x') {
            break;  // the other half is the sender's to write
        }
        sender.put(true);
        if (!is_whole) {
            end.next();
        }
    }
    RVT_OK(fi_close(&end.ep.release()->fid));
    std::fill(in.begin(), in.end(), 'z');
    sender.put(true);
    RVT_ASSERT(sender.get<bool>());
    RVT_EQ(std::count(in.begin(), in.end(), 'z'), in.size());
}

Test(region_close, an_endpoint_is_not_closed_while_a_peer_copies_by_it, .timeout = 60) {
    Process writer(write_and_stop);
    Target target;
    writer.put(target.place);
    target.await_stop(writer);
    const int closed = fi_close(&target.end.ep->fid);
    writer.kill();
    RVT_EQ(closed, -FI_EBUSY);
    RVT_OK(fi_close(&target.end.ep.release()->fid));
    RVT_OK(fi_close(&target.mr.release()->fid));
}

Test(region_close, one_that_is_held_leaves_the_count_of_another_with_its_key, .timeout = 60) {
    Process writer(write_and_stop);
    Target target(kOwnKeys);
    const auto first_count = target.count_writes(target.mr);
    writer.put(target.place);
    target.await_stop(writer);
    RVT_EQ(fi_close(&target.mr->fid), -FI_EBUSY);
    const std::uint64_t counted = fi_cntr_read(first_count.get());

    std::array<char, 8> word{};
    Owned<fid_mr> second = target.end.reg(word.data(), word.size(), FI_REMOTE_WRITE, kKey);
    const auto second_count = target.count_writes(second);
    writer.kill();
    RVT_OK(fi_close(&target.mr.release()->fid));

    End other(kManual);
    other.other = &target.end;
    other.peer = Pair::introduce(other, target.end);
    RVT_OK(fi_write(other.ep.get(), "written", word.size(), nullptr, other.peer,
                    reinterpret_cast<std::uintptr_t>(word.data()), kKey, nullptr));
    other.next();
    RVT_OK(fi_cntr_wait(second_count.get(), 1, 10'000));
    RVT_EQ(fi_cntr_read(first_count.get()), counted);
    RVT_OK(fi_close(&second.release()->fid));
}

/// Connects to the target, and writes a byte.
void write_one(End& end, Target& target) {
    end.other = &target.end;
    end.peer = Pair::introduce(end, target.end);
    RVT_OK(fi_write(end.ep.get(), "x", 1, nullptr, end.peer, target.place.address + kBytes - 1,
                    target.place.key, nullptr));
    end.next();
}

Test(region_close, who_copies_is_seen_among_those_who_come_and_go, .timeout = 60) {
    Process writer(write_and_stop);
    Target target;
    auto before = std::make_unique<End>(kManual);
    write_one(*before, target);
    writer.put(target.place);
    target.await_stop(writer);
    End behind(kManual);
    write_one(behind, target);
    before.reset();
    RVT_EQ(fi_close(&target.mr->fid), -FI_EBUSY);
    writer.kill();
    RVT_OK(fi_close(&target.mr.release()->fid));
}

/// After some millions of regions a key of the table, which the writer remembers, is another's.
Test(region_close,
     a_key_of_the_application_leads_to_its_own_region_when_that_of_another_is_reused) {
    constexpr std::size_t kLength = 64 * 1024;
    Pair pair;
    std::vector<char> out(kLength, 'x');
    std::vector<char> closed(kLength);
    std::vector<char> other(kLength);
    std::vector<char> now(kLength);
    const auto write = [&] {
        pair.post([&] {
            return fi_write(pair.a.ep.get(), out.data(), kLength, nullptr, pair.a.peer, 0, kKey,
                            nullptr);
        });
        pair.a.next();
    };
    Owned<fid_mr> first = pair.b.reg(closed.data(), kLength, FI_REMOTE_WRITE, kKey);
    KeyEntry& place = place_of(kKey);
    const std::uint32_t own_key = place.key.load(kOrder);
    write();
    write();
    RVT_OK(fi_close(&first.release()->fid));
    const auto second = pair.b.reg(other.data(), kLength, FI_REMOTE_WRITE, kKey + 1);
    take_over(place, place_of(kKey + 1), own_key);
    const auto third = pair.b.reg(now.data(), kLength, FI_REMOTE_WRITE, kKey);
    write();
    RVT_ASSERT(now == out);
    RVT_ASSERT(other != out);
}
