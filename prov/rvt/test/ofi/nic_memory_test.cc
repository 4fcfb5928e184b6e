// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What becomes of buffers without a descriptor, over the NIC that exists only here.
#include "ofi/nic_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "common/check.h"
#include "core/context.h"
#include "core/device.h"

using namespace rvt;
using ofi::MsgOp;
using ofi::NicMemory;

namespace {

constexpr std::size_t kBytes = 64u << 10;

std::byte* map() {
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RVT_ASSERT(memory != MAP_FAILED);
    std::fill_n(static_cast<std::byte*>(memory), kBytes, std::byte{1});
    return static_cast<std::byte*>(memory);
}

Sge lacking(const std::byte* at, std::size_t length) {
    return {.addr = reinterpret_cast<std::uintptr_t>(at),
            .length = static_cast<std::uint32_t>(length),
            .lkey = NicMemory::kNone};
}

struct Lender {
    explicit Lender(ibv_transport_type transport = IBV_TRANSPORT_IB)
        : is_chosen((mock.device.transport_type = transport, true)),
          nic(verbs::Nic::open(registry, {.device = "mock0",
                                          .port = 2,
                                          .address = {.family = AF_INET, .ip = {10, 1, 2, 3}}})
                  .take()) {
        RVT_OK(keep(context, open_device(nic->device())));
        RVT_OK(keep(pd, alloc_pd(*context)));
        memory = std::make_unique<NicMemory>(*pd);
    }

    verbs::MockNic mock;
    const bool is_chosen;
    core::Registry registry;
    std::shared_ptr<verbs::Nic> nic;
    core::Owned<core::Context> context;
    core::Owned<core::Pd> pd;
    std::unique_ptr<NicMemory> memory;
    MsgOp op;
};

}  // namespace

Test(nic_memory, small_sends_are_copied_into_one_piece) {
    Lender on;
    std::byte* const memory = map();
    memory[100] = std::byte{7};
    std::array<Sge, 2> elements{lacking(memory, 100), lacking(memory + 100, 50)};
    std::size_t count = 2;
    RVT_OK(on.memory->lend_to_send(on.op, elements, count));
    RVT_EQ(count, 1);
    RVT_EQ(elements[0].length, 150);
    RVT_EQ(on.mock.regions.size(), 1);
    RVT_NE(elements[0].lkey, NicMemory::kNone);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const copy = reinterpret_cast<const std::byte*>(elements[0].addr);
    RVT_EQ(std::memcmp(copy, memory, 150), 0);
    RVT_ASSERT(on.op.lent.is_any());
    on.memory->give_back(on.op);
    RVT_ASSERT(!on.op.lent.is_any());
}

Test(nic_memory, large_sends_are_registered) {
    Lender on;
    std::byte* const memory = map();
    std::array<Sge, 1> element{lacking(memory, kBytes)};
    std::size_t count = 1;
    RVT_OK(on.memory->lend_to_send(on.op, element, count));
    RVT_EQ(element[0].addr, reinterpret_cast<std::uintptr_t>(memory));
    RVT_EQ(on.mock.regions.back().length, kBytes);
    RVT_NE(element[0].lkey, NicMemory::kNone);
    on.memory->give_back(on.op);
}

Test(nic_memory, receives_are_registered_whatever_their_size) {
    Lender on;
    std::byte* const memory = map();
    std::array<Sge, 2> elements{lacking(memory, 8), lacking(memory + 40000, 8)};
    RVT_OK(on.memory->lend_to_receive(on.op, elements));
    RVT_EQ(on.mock.regions.size(), 2);
    RVT_EQ(on.op.lent.count, 2);
    on.memory->give_back(on.op);
}

/// RFC 5040, 5.2: what a READ brings is written by the peer.
Test(nic_memory, what_reads_fill_may_be_written_by_the_peer_over_iwarp_alone) {
    for (const ibv_transport_type transport : {IBV_TRANSPORT_IWARP, IBV_TRANSPORT_IB}) {
        Lender on(transport);
        std::byte* const memory = map();
        std::array<Sge, 1> element{lacking(memory, kBytes)};
        RVT_OK(on.memory->lend_to_receive(on.op, element));
        RVT_EQ((on.mock.regions.back().access & IBV_ACCESS_REMOTE_WRITE) != 0,
               transport == IBV_TRANSPORT_IWARP);
        on.memory->give_back(on.op);
    }
}

Test(nic_memory, keys_of_the_application_are_left_alone) {
    Lender on;
    std::byte* const memory = map();
    std::array<Sge, 2> elements{lacking(memory, kBytes / 2), lacking(memory + kBytes / 2, 100)};
    elements[1].lkey = 77;
    RVT_OK(on.memory->lend_to_receive(on.op, elements));
    RVT_EQ(elements[1].lkey, 77);
    RVT_EQ(on.op.lent.count, 1);
    on.memory->give_back(on.op);
}

Test(nic_memory, more_small_sends_than_copies_are_registered) {
    Lender on;
    std::byte* const memory = map();
    std::vector<MsgOp> ops(100);
    for (MsgOp& op : ops) {
        std::array<Sge, 1> element{lacking(memory, 100)};
        std::size_t count = 1;
        RVT_OK(on.memory->lend_to_send(op, element, count));
        RVT_NE(element[0].lkey, NicMemory::kNone);
    }
    RVT_EQ(std::ranges::count_if(ops, [](const MsgOp& op) { return op.lent.copy != nullptr; }), 64);
    for (MsgOp& op : ops) {
        on.memory->give_back(op);
    }
}

Test(nic_memory, without_room_for_copies_small_sends_are_registered) {
    Lender on;
    on.mock.reg_mr_error = ENOMEM;
    std::byte* const memory = map();
    std::array<Sge, 1> element{lacking(memory, 100)};
    std::size_t count = 1;
    RVT_EQ(on.memory->lend_to_send(on.op, element, count), ENOMEM);
    RVT_ASSERT(!on.op.lent.is_any());
    on.mock.reg_mr_error = 0;
    RVT_OK(on.memory->lend_to_send(on.op, element, count));
    RVT_EQ(on.op.lent.count, 1);
    on.memory->give_back(on.op);
}

Test(nic_memory, what_cannot_be_registered_leaves_nothing_lent) {
    Lender on;
    std::byte* const memory = map();
    const int before = on.mock.live;
    std::array<Sge, 2> elements{lacking(memory, kBytes / 2), lacking(nullptr, kBytes)};
    on.mock.reg_mr_error = EFAULT;
    RVT_EQ(on.memory->lend_to_receive(on.op, elements), EFAULT);
    RVT_ASSERT(!on.op.lent.is_any());
    RVT_EQ(on.mock.live, before);
}

Test(nic_memory, leaves_nothing_registered) {
    Lender on;
    const int before = on.mock.live;
    std::byte* const memory = map();
    for (const std::size_t length : {std::size_t{100}, kBytes}) {
        std::array<Sge, 1> element{lacking(memory, length)};
        std::size_t count = 1;
        RVT_OK(on.memory->lend_to_send(on.op, element, count));
        on.memory->give_back(on.op);
    }
    on.memory.reset();
    RVT_EQ(on.mock.live, before);
}
