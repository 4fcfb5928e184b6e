// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Threads of an application, and progress that the provider makes by itself.
#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>

#include "functional/case.h"

namespace fab {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kRoundTrips = 500;
constexpr std::size_t kPortByte =
    offsetof(sockaddr_in, sin_port);  // sockaddr_in6 has it there, too
constexpr std::size_t kThreadSizes[] = {8, 3000, 64, 50000};

/// What one thread waits for; whichever thread reads the completion counts it here.
struct alignas(64) Operation {
    Context context;  // first, so that a completion's context leads back here
    std::atomic<std::uint32_t> done{0};

    // release: pairs with the acquire in wait(); who sees it done sees the received bytes.
    void complete() { done.fetch_add(1, std::memory_order_release); }
};

/// Reads one completion, of any thread.
void poll_for_all(const Party& party) {
    Completion entry;
    for (fid_cq* cq : {party.ep.tx_cq, party.ep.rx_cq}) {
        if (!party.ep.poll(cq, entry)) continue;
        if (entry.err != 0) FAB_FAIL("an operation ended with error %d", entry.err);
        static_cast<Operation*>(entry.context)->complete();
    }
}

void wait(const Party& party, const Operation& operation, std::uint32_t count) {
    const double deadline = now_s() + 2 * kOpLimitS;
    // acquire: pairs with the release in complete().
    while (operation.done.load(std::memory_order_acquire) < count) {
        poll_for_all(party);
        if (now_s() > deadline) FAB_FAIL("an operation of a thread never completes");
    }
}

/// With FI_THREAD_SAFE threads share endpoint and queues, each with a tag and a buffer of its own.
void share_an_endpoint(Rank& self) {
    Party party(self, {.caps = FI_TAGGED, .threading = FI_THREAD_SAFE});
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (std::size_t i = 0; i < 2 * kThreads; ++i) {
        buffers.push_back(std::make_unique<Buffer>(party.ep, 50000));
    }
    const auto work = [&](std::size_t id) {
        Buffer& in = *buffers[2 * id];
        Buffer& out = *buffers[2 * id + 1];
        Operation receive;
        Operation send;
        for (std::uint32_t turn = 0; turn < kRoundTrips; ++turn) {
            const std::size_t size = kThreadSizes[turn % 4];
            party.trecv(in, size, id, 0, &receive);
            *out.as<std::uint32_t>() = turn;
            if (self.rank == 0) party.tsend(out, size, id, &send);
            wait(party, receive, turn + 1);
            FAB_EQUAL(*in.as<std::uint32_t>(), turn);
            if (self.rank == 1) party.tsend(out, size, id, &send);
            wait(party, send, turn + 1);
        }
    };
    std::vector<std::thread> threads;
    for (std::size_t id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
    for (std::thread& one : threads) one.join();
}

/// Each thread has a domain of its own, without locks.
void own_domains(Rank& self) {
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (std::size_t id = 0; id < kThreads; ++id) {
        endpoints.push_back(std::make_unique<Endpoint>(EpSpec{.caps = FI_TAGGED}));
        endpoints.back()->connect(self);
    }
    const auto work = [&](std::size_t id) {
        Endpoint& ep = *endpoints[id];
        Buffer buffer(ep, 100000);
        Context contexts[2];
        const fi_addr_t to = ep.peers[static_cast<std::size_t>(self.other())];
        for (std::size_t turn = 0; turn < kRoundTrips; ++turn) {
            const std::size_t size = kThreadSizes[turn % 4];
            FAB_OK(fi_trecv(ep.ep, buffer.as(), size, buffer.desc(), to, turn, 0, &contexts[0]));
            ep.post([&] {
                return fi_tsend(ep.ep, buffer.as() + 50000, size, buffer.desc(), to, turn,
                                &contexts[1]);
            });
            ep.wait_rx();
            ep.wait_tx();
        }
    };
    std::vector<std::thread> threads;
    for (std::size_t id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
    for (std::thread& one : threads) one.join();
    self.barrier_polling([&] {
        for (const auto& one : endpoints) one->progress();
    });
}

/// With FI_PROGRESS_AUTO a posted receive is filled while its owner sleeps in the kernel.
void automatic_progress(Rank& self) {
    Party party(self,
                {.caps = FI_TAGGED, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_AUTO});
    Buffer buffer(party.ep, 1 << 20);
    Contexts contexts(1);
    for (const std::size_t size : {8UL, 5000UL, 1UL << 20}) {
        buffer.fill(static_cast<unsigned>(size));
        if (self.rank == 0) {
            party.barrier();
            party.tsend(buffer, size, 1, contexts.at(0));
            party.ep.wait_tx();
            self.send(1, "d", 1);
            continue;
        }
        std::memset(buffer.as(), 0, size);
        party.trecv(buffer, size, 1, 0, contexts.at(0));
        party.barrier();
        char token = 0;
        self.receive(0, &token, 1);  // sleeps until the sender's completion
        FAB_EQUAL(party.ep.wait_rx().len, size);
        buffer.expect(static_cast<unsigned>(size), size);
    }
}

/// Threads read queues, with and without sleeping, while another one opens and closes endpoints
/// that report to the same queues, with operations under way.
void close_beside_polls(Rank& self) {
    const EpSpec spec{.caps = FI_TAGGED, .cq_wait = FI_WAIT_UNSPEC, .threading = FI_THREAD_SAFE};
    Party party(self, spec);
    Buffer buffer(party.ep, 100'000);
    std::atomic<bool> is_over{false};
    // relaxed: only that it ends counts.
    const auto goes_on = [&] { return !is_over.load(std::memory_order_relaxed); };
    std::vector<std::thread> pollers;
    pollers.emplace_back([&] {
        while (goes_on()) fi_cq_read(party.ep.tx_cq, nullptr, 0);
    });
    pollers.emplace_back([&] {
        fi_cq_tagged_entry entry{};
        while (goes_on()) fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 5);
    });
    Contexts contexts(4);
    for (int turn = 0; turn < 100; ++turn) {
        fi_info* info = dup_without_port(*party.ep.info);
        fid_ep* ep = nullptr;
        FAB_OK(fi_endpoint(party.ep.domain, info, &ep, nullptr));
        FAB_OK(fi_ep_bind(ep, &party.ep.av->fid, 0));
        FAB_OK(fi_ep_bind(ep, &party.ep.tx_cq->fid, FI_TRANSMIT));
        FAB_OK(fi_ep_bind(ep, &party.ep.rx_cq->fid, FI_RECV));
        FAB_OK(fi_enable(ep));
        for (std::size_t i = 0; i < 2; ++i) {
            fi_trecv(ep, buffer.as(), 64, buffer.desc(), FI_ADDR_UNSPEC, 1, 0, contexts.at(i));
            fi_tsend(ep, buffer.as(), i == 0 ? 8 : 100'000, buffer.desc(), party.peer(), 2,
                     contexts.at(2 + i));
        }
        if (turn % 4 == 0) std::this_thread::yield();
        FAB_EQUAL(fi_close(&ep->fid), 0);
        fi_freeinfo(info);
    }
    // relaxed: as above.
    is_over.store(true, std::memory_order_relaxed);
    for (std::thread& poller : pollers) poller.join();
}

/// Threads post receives for messages that wait already, while another one sleeps until their
/// completions come.
void post_beside_a_sleeper(Rank& self) {
    constexpr std::size_t kWaiting = 600;
    constexpr std::size_t kPosters = 2;
    Party party(self, {.caps = FI_TAGGED,
                       .msg_order = FI_ORDER_SAS,
                       .cq_wait = FI_WAIT_UNSPEC,
                       .threading = FI_THREAD_SAFE});
    Buffer buffer(party.ep, (kWaiting + 1) * sizeof(std::uint64_t));
    const auto values = buffer.as<std::uint64_t>();
    Contexts contexts(kWaiting + 1);
    if (self.rank == 0) {
        for (std::uint64_t tag = 0; tag <= kWaiting; ++tag) {
            party.ep.post(
                [&] { return fi_tinject(party.ep.ep, &tag, sizeof tag, party.peer(), tag); });
        }
        return party.barrier();
    }
    const auto receive = [&](std::size_t tag) {
        party.ep.post([&] {
            return fi_trecv(party.ep.ep, values + tag, sizeof values[0], buffer.desc(),
                            FI_ADDR_UNSPEC, tag, 0, contexts.at(tag));
        });
    };
    receive(kWaiting);
    party.ep.wait_rx();  // in order: all others are here
    std::vector<std::thread> posters;
    for (std::size_t id = 0; id < kPosters; ++id) {
        posters.emplace_back([&, id] {
            // The last to arrive first, and with breaks in which the sleeper falls asleep.
            for (std::size_t tag = kWaiting - kPosters + id; tag < kWaiting; tag -= kPosters) {
                receive(tag);
                if (tag % 16 == 0) std::this_thread::yield();
            }
        });
    }
    std::vector<bool> seen(kWaiting);
    for (std::size_t i = 0; i < kWaiting; ++i) {
        fi_cq_tagged_entry entry{};
        FAB_EQUAL(fi_cq_sread(party.ep.rx_cq, &entry, 1, nullptr, 10'000), 1);
        const std::size_t tag = contexts.index_of(entry.op_context);
        FAB_CHECK(!seen[tag]);
        seen[tag] = true;
        FAB_EQUAL(values[tag], tag);
    }
    for (std::thread& poster : posters) poster.join();
    party.barrier();
}

/// With FI_THREAD_COMPLETION a thread that uses no endpoint inserts and removes addresses and
/// registers and closes regions, which belong to none, while another one sends to ever new numbers.
void manage_beside_traffic(Rank& self) {
    Party party(self, {.caps = FI_TAGGED | FI_RMA, .threading = FI_THREAD_COMPLETION});
    Buffer buffer(party.ep, sizeof(std::uint64_t));
    const std::vector<char> name = party.ep.name();
    std::atomic<bool> is_over{false};
    std::thread manager([&] {
        std::vector<char> stranger = name;
        std::vector<char> memory(4096);
        std::vector<fi_addr_t> inserted(100);
        // relaxed: only that it ends counts.
        while (!is_over.load(std::memory_order_relaxed)) {
            for (std::size_t i = 0; i < inserted.size(); ++i) {
                stranger[kPortByte] = static_cast<char>(1 + i);  // no port is 0
                FAB_EQUAL(fi_av_insert(party.ep.av, stranger.data(), 1, &inserted[i], 0, nullptr),
                          1);
            }
            Region region(party.ep, memory.data(), memory.size(), FI_REMOTE_READ);
            FAB_OK(fi_av_remove(party.ep.av, inserted.data(), inserted.size(), 0));
        }
    });
    Contexts contexts(1);
    for (std::uint64_t turn = 0; turn < turns_here(20'000); ++turn) {
        fi_addr_t to = FI_ADDR_UNSPEC;
        FAB_EQUAL(fi_av_insert(party.ep.av, name.data(), 1, &to, 0, nullptr), 1);
        party.trecv(buffer, sizeof turn, turn, 0, contexts.at(0));
        party.ep.post([&] { return fi_tinject(party.ep.ep, &turn, sizeof turn, to, turn); });
        party.ep.wait_rx();
        FAB_EQUAL(*buffer.as<std::uint64_t>(), turn);
    }
    // relaxed: as above.
    is_over.store(true, std::memory_order_relaxed);
    manager.join();
}

constexpr Case kThreadTable[] = {
    {"thread_share_an_endpoint", share_an_endpoint, 2, 60},
    {"thread_own_domains", own_domains, 2, 60},
    {"thread_close_beside_polls", close_beside_polls, 2, 60},
    {"thread_manage_beside_traffic", manage_beside_traffic, 2, 60},
    {"thread_post_beside_a_sleeper", post_beside_a_sleeper, 2, 40},
    {"thread_automatic_progress", automatic_progress, 2, 40},
};

}  // namespace

const std::span<const Case> kThreadCases = kThreadTable;

}  // namespace fab
