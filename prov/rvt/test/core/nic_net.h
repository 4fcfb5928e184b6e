// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Two endpoints of this process that talk over the mock for NICs, for tests of what their NICs do
// with memory of the application's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "core/address_vector.h"
#include "core/counter.h"
#include "core/cq.h"
#include "core/flow_station.h"
#include "core/key_table.h"
#include "core/mock_roce_nic.h"
#include "core/nic_pages.h"
#include "core/rd_engine.h"
#include "core/segments.h"

namespace rvt::test {

/// Names an operation.
inline void* context_of(std::uint64_t number) {
    return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
}

/// The lock of an endpoint that one thread uses, which is its control thread as well.
class CountedLock : public util::SpinLock {
  public:
    bool try_lock_control() noexcept {
        ++claims;
        return SpinLock::try_lock_control();
    }

    unsigned claims = 0;  // by the control thread: each interrupts the application
};

/// What the endpoints of a test are opened with.
struct NicEndAttr {
    bool keeps = true;  // registrations
    bool has_user_keys = false;
    bool wants_rma_events = false;
    bool has_p2p = true;
};

/// An endpoint with a completion queue, regions and a counter of its own.
struct NicEnd {
    using Engine = core::RdEngine<CountedLock, FlowStationHost>;
    static constexpr std::uint32_t kPd = 7;
    static constexpr std::uint32_t kKeys = 64;

    NicEnd(const Address& address, const core::RdTuning& tuning, const NicEndAttr& attr)
        : cq(core::Cq::create(256).take()),
          table(0, core::KeyTable::block_bytes(kKeys)),
          keys(core::KeyTable::create(table.memory, table.bytes).take()),
          engine(lock, {.bind = {}, .wants_rma_events = attr.wants_rma_events}, tuning,
                 {.table = keys.get(),
                  .pd = kPd,
                  .has_user_keys = attr.has_user_keys,
                  .has_p2p = attr.has_p2p}),
          own(core::to_sock_addr(address)) {
        engine.bind({.tx_cq = cq.get(),
                     .rx_cq = cq.get(),
                     .remote_read = &remote_reads,
                     .remote_write = &remote_writes},
                    &av);
        RVT_OK(engine.bind_address(own));
        RVT_OK(engine.enable());
    }
    ~NicEnd() = default;
    NicEnd(const NicEnd&) = delete;
    NicEnd& operator=(const NicEnd&) = delete;

    void poll() {
        engine.progress(&engine);
        for (; const core::Cqe* entry = cq->front(); cq->pop()) {
            done.push_back(*entry);
        }
    }
    util::Status send(std::uint64_t number, const iovec& from,
                      core::RdFlags flags = core::RdFlags::kNone, std::size_t count = 1,
                      std::uint64_t dest = 0) {
        return engine.send({.iov = &from,
                            .iov_count = count,
                            .dest = dest,
                            .tag = number,
                            .context = context_of(number),
                            .flags = flags | core::RdFlags::kTagged | core::RdFlags::kCompletion});
    }
    /// Takes what has this number for its tag.
    util::Status recv(std::uint64_t number, const iovec& to,
                      core::RdFlags flags = core::RdFlags::kNone, std::size_t count = 1) {
        return engine.recv({.iov = &to,
                            .iov_count = count,
                            .tag = number,
                            .context = context_of(number),
                            .flags = flags | core::RdFlags::kTagged | core::RdFlags::kCompletion});
    }
    /// Opens memory to peers. Returns: its key; addresses are those of the memory.
    std::uint32_t open(const iovec& memory, Access rights) {
        const auto address = reinterpret_cast<std::uint64_t>(memory.iov_base);
        return keys
            ->add({.addr = address,
                   .length = memory.iov_len,
                   .iova = address,
                   .access = rights,
                   .pd = kPd})
            .value();
    }
    /// The same of memory of a device.
    std::uint32_t open(const core::RegionMemory& memory, Access rights) {
        const iovec& whole = memory.segments.front();
        return keys
            ->add({.addr = reinterpret_cast<std::uint64_t>(&memory),
                   .length = whole.iov_len,
                   .iova = reinterpret_cast<std::uint64_t>(whole.iov_base),
                   .access = rights,
                   .pd = kPd,
                   .indirect = true})
            .value();
    }
    /// As fi_close(3) of the region does.
    void close(std::uint32_t key) {
        RVT_OK(keys->remove(key, 0));
        engine.withdraw_key(key);
    }
    /// @param use  Of the memory of a device that `from` is in.
    util::Status write(std::uint64_t number, const iovec& from, std::uint64_t key, const void* to,
                       core::RdFlags flags = core::RdFlags::kNone, core::BufferUse* use = nullptr) {
        return access(true, number, from, key, to, flags, use);
    }
    util::Status read(std::uint64_t number, const iovec& to, std::uint64_t key, const void* from,
                      core::RdFlags flags = core::RdFlags::kNone, core::BufferUse* use = nullptr) {
        return access(false, number, to, key, from, flags, use);
    }
    util::Status access(bool is_write, std::uint64_t number, const iovec& local, std::uint64_t key,
                        const void* remote, core::RdFlags flags, core::BufferUse* use) {
        const core::RdRemote there{
            .addr = reinterpret_cast<std::uint64_t>(remote), .len = local.iov_len, .key = key};
        const core::RdFlags has_use =
            use != nullptr ? core::RdFlags::kHasUse : core::RdFlags::kNone;
        return engine.rma({.is_write = is_write,
                           .iov = &local,
                           .iov_count = 1,
                           .remote = &there,
                           .remote_count = 1,
                           .dest = 0,
                           .context = context_of(number),
                           .flags = flags | has_use | core::RdFlags::kCompletion,
                           .use = use});
    }
    [[nodiscard]] const core::Cqe* completion(std::uint64_t number) const {
        const auto found = std::ranges::find(done, context_of(number), &core::Cqe::op_context);
        return found != done.end() ? &*found : nullptr;
    }
    [[nodiscard]] bool is_done(std::uint64_t number) const { return completion(number) != nullptr; }
    [[nodiscard]] core::WcStatus status(std::uint64_t number) const {
        return completion(number)->status;
    }

    CountedLock lock;
    std::unique_ptr<core::Cq> cq;
    core::AddressVector av;
    core::Counter remote_reads;
    core::Counter remote_writes;
    Pages table;
    std::unique_ptr<core::KeyTable> keys;
    Engine engine;
    const util::SockAddr own;
    std::vector<core::Cqe> done;
};

/// Two of them, connected: what the first sends the second receives.
struct NicNet : FlowNet {
    explicit NicNet(const core::RdTuning& tuned = {}, const NicEndAttr& second = {},
                    const NicEndAttr& first = {})
        : watch(watch_or_skip()), tuning(tuned) {
        FlowStation::net = this;
        opened = open_mock_nic(mock, registry);
        nic = {opened, &opened->device()};
        a = make(5001, first);
        b = make(5002, second);
        meet();
        talk();
    }
    ~NicNet() {
        a.reset();
        b.reset();
        nic.reset();
        opened.reset();
        RVT_EQ(mock.live, 0);
        RVT_EQ(mock.registered, 0);
    }
    NicNet(const NicNet&) = delete;
    NicNet& operator=(const NicNet&) = delete;

    std::unique_ptr<NicEnd> make(std::uint16_t port, const NicEndAttr& attr = {}) {
        registrations = {
            .watch = attr.keeps ? watch : nullptr, .max_bytes = 1 << 24, .max_regions = 128};
        Address address = nic->address();
        address.port = port;
        return std::make_unique<NicEnd>(address, tuning, attr);
    }
    void meet() const {
        RVT_EQ(a->av.insert(b->own).value(), 0);
        RVT_EQ(b->av.insert(a->own).value(), 0);
    }
    void poll() const {
        opened->take_events();
        for (const auto* end : {&a, &b}) {
            if (*end != nullptr) {
                (*end)->poll();
            }
        }
    }
    void poll_for_a_while() const {
        for (int i = 0; i < 200; ++i) {
            poll();
        }
    }
    /// Polls until it is so; fails the test when it does not come to that.
    template <class Is>
    void until(Is is) const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!is()) {
            RVT_ASSERT(std::chrono::steady_clock::now() < end);
            poll();
        }
    }
    /// A small message each way arrives.
    void talk() {
        char said[] = "there";
        char heard[sizeof said] = {};
        for (const auto& [from, to] : {std::pair{a.get(), b.get()}, std::pair{b.get(), a.get()}}) {
            ++last;
            RVT_OK(to->recv(last, {heard, sizeof heard}));
            RVT_OK(from->send(last, {said, sizeof said}));
            until([&, from = from, to = to] { return from->is_done(last) && to->is_done(last); });
            RVT_EQ(from->status(last), core::WcStatus::kSuccess);
            RVT_EQ(to->status(last), core::WcStatus::kSuccess);
        }
    }
    /// One large message, from send to both completions.
    void pass(const iovec& from, const iovec& to, core::RdFlags flags = core::RdFlags::kNone) {
        ++last;
        RVT_OK(b->recv(last, to));
        RVT_OK(a->send(last, from, flags));
        until([&] { return a->is_done(last) && b->is_done(last); });
        RVT_EQ(a->status(last), core::WcStatus::kSuccess);
        RVT_EQ(b->status(last), core::WcStatus::kSuccess);
    }

    verbs::MockNic mock;
    core::Registry registry;
    std::shared_ptr<util::MemoryWatch> watch;
    const core::RdTuning tuning;
    std::shared_ptr<verbs::Nic> opened;
    std::unique_ptr<NicEnd> a;
    std::unique_ptr<NicEnd> b;
    std::uint64_t last = 1000;  // number of an operation
};

}  // namespace rvt::test
