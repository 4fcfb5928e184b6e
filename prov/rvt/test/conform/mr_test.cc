// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: regions as work requests see them.
#include "conform/fixture.h"

#include <chrono>
#include <vector>

#include <sys/mman.h>

#include "core/reader_pins.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

template <class Backend>
void a_zero_based_region_is_addressed_from_zero() {
    Pair<Backend> pair;
    const iovec memory{.iov_base = pair.b().memory.data() + 100, .iov_len = 1000};
    Mr* mr =
        reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kAllAccess | Access::kZeroBased})
            .value();
    pair.a().fill(0, 64, 4);
    const Sge element = pair.a().sge(0, 64);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&element, 1},
                                   .remote_addr = 10,
                                   .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(110, 64, 4));
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_zero_based_region_is_addressed_from_zero)

template <class Backend>
void a_region_of_several_segments_is_addressed_as_one() {
    Pair<Backend> pair;
    std::byte* memory = pair.b().memory.data();
    const iovec segments[] = {{memory + 5000, 100}, {memory + 1000, 300}, {memory + 9000, 50}};
    Mr* mr = reg_mr(*pair.b().pd, {.segments = segments, .access = kAllAccess | Access::kZeroBased})
                 .value();
    RVT_EQ(mr->length(), 450);
    pair.a().fill(0, 450, 4);
    const Sge element = pair.a().sge(0, 450);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&element, 1},
                                   .remote_addr = 0,
                                   .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(5000, 100, 4));
    RVT_ASSERT(std::memcmp(memory + 1000, pair.a().memory.data() + 100, 300) == 0);
    RVT_ASSERT(std::memcmp(memory + 9000, pair.a().memory.data() + 400, 50) == 0);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_of_several_segments_is_addressed_as_one)

template <class Backend>
void remote_write_without_local_write_is_refused() {
    Pair<Backend> pair;
    const iovec memory{.iov_base = pair.b().memory.data(), .iov_len = 10};
    RVT_EQ(reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = Access::kRemoteWrite}),
           EINVAL);
    RVT_EQ(reg_mr(*pair.b().pd, {.segments = {}, .access = Access::kNone}), EINVAL);
}
RVT_CONFORM_RC(remote_write_without_local_write_is_refused)
RVT_CONFORM_NIC(remote_write_without_local_write_is_refused)

template <class Backend>
void an_applications_key_is_unique_and_free_again_after_deregistration() {
    Pair<Backend> pair;
    const iovec memory{.iov_base = pair.b().memory.data(), .iov_len = 10};
    const MrAttr attr{.segments = {&memory, 1}, .user_key = 5};
    Mr* mr = reg_mr(*pair.b().pd, attr).value();
    RVT_EQ(reg_mr(*pair.b().pd, attr), EEXIST);
    RVT_OK(dereg_mr(mr));
    mr = reg_mr(*pair.b().pd, attr).value();
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(an_applications_key_is_unique_and_free_again_after_deregistration)

template <class Backend>
void deregistration_is_ebusy_at_its_deadline_and_the_key_fails_from_the_call_on() {
    Pair<Backend> pair;
    PinSlot& reader = take_pin_slot();
    reader.enter();
    RVT_EQ(dereg_mr(pair.b().mr, 0), EBUSY);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
    reader.leave();
    free_pin_slot(reader);
    RVT_OK(dereg_mr(pair.b().mr, 0));
    pair.b().mr = nullptr;
}
RVT_CONFORM_RC(deregistration_is_ebusy_at_its_deadline_and_the_key_fails_from_the_call_on)

template <class Backend>
void memory_whose_region_is_gone_is_out_of_reach() {
    Pair<Backend> pair;
    const std::uint32_t key = pair.b().mr->rkey();
    RVT_OK(dereg_mr(pair.b().mr));
    pair.b().mr = nullptr;
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .rkey = key}));
    RVT_EQ(pair.sent().status, WcStatus::kRemAccessErr);
}
RVT_CONFORM_RC(memory_whose_region_is_gone_is_out_of_reach)
RVT_CONFORM_NIC(memory_whose_region_is_gone_is_out_of_reach)

// ---- re-registration ----

/// Side b's memory from `offset` on.
template <class Backend>
iovec part_of(Pair<Backend>& pair, std::size_t offset, std::size_t bytes) {
    return {.iov_base = pair.b().memory.data() + offset, .iov_len = bytes};
}

/// How a write of side a to side b's memory ends.
template <class Backend>
WcStatus write_to(Pair<Backend>& pair, std::size_t offset, std::uint32_t key) {
    RVT_OK(pair.post_send({.opcode = WrOpcode::kWrite, .remote_offset = offset, .rkey = key}));
    return pair.sent().status;
}

template <class Backend>
void a_region_is_moved_and_keeps_its_key() {
    Pair<Backend> pair;
    const iovec first = part_of(pair, 0, 1000);
    const iovec second = part_of(pair, 5000, 100);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&first, 1}, .access = kAllAccess}).value();
    const std::uint32_t key = mr->rkey();
    RVT_EQ(write_to(pair, 0, key), WcStatus::kSuccess);
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kTranslation, .attr = {.segments = {&second, 1}}}));
    RVT_EQ(mr->rkey(), key);
    RVT_EQ(mr->length(), 100);
    pair.a().fill(0, 64, 4);
    RVT_EQ(write_to(pair, 5036, key), WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(5036, 64, 4));
    RVT_EQ(write_to(pair, 0, key), WcStatus::kRemAccessErr);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_is_moved_and_keeps_its_key)

/// Its key may be another one, which is what a NIC makes of it.
template <class Backend>
void a_region_that_is_moved_leaves_its_former_memory() {
    Pair<Backend> pair;
    const iovec first = part_of(pair, 0, 1000);
    const iovec second = part_of(pair, 5000, 100);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&first, 1}, .access = kAllAccess}).value();
    const std::uint32_t former = mr->rkey();
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kTranslation, .attr = {.segments = {&second, 1}}}));
    RVT_EQ(mr->length(), 100);
    pair.a().fill(0, 64, 4);
    RVT_EQ(write_to(pair, 5036, mr->rkey()), WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(5036, 64, 4));
    RVT_EQ(write_to(pair, 0, former), WcStatus::kRemAccessErr);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_that_is_moved_leaves_its_former_memory)
RVT_CONFORM_NIC(a_region_that_is_moved_leaves_its_former_memory)

template <class Backend>
void a_region_moves_and_loses_a_right_at_once() {
    Pair<Backend> pair;
    const iovec first = part_of(pair, 0, 1000);
    const iovec second = part_of(pair, 5000, 100);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&first, 1}, .access = kAllAccess}).value();
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kTranslation | MrChange::kAccess,
                          .attr = {.segments = {&second, 1}, .access = Access::kRemoteRead}}));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .remote_offset = 5036, .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(write_to(pair, 5036, mr->rkey()), WcStatus::kRemAccessErr);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_moves_and_loses_a_right_at_once)
RVT_CONFORM_NIC(a_region_moves_and_loses_a_right_at_once)

template <class Backend>
void a_region_becomes_one_of_several_segments_and_is_one_again() {
    Pair<Backend> pair;
    const iovec whole = part_of(pair, 0, 1000);
    const iovec several[] = {part_of(pair, 9000, 40), part_of(pair, 7000, 40)};
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&whole, 1}, .access = kAllAccess}).value();
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kTranslation,
                          .attr = {.segments = several, .iova = pair.b().at(0)}}));
    pair.a().fill(0, 64, 4);
    RVT_EQ(write_to(pair, 0, mr->rkey()), WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(9000, 40, 4));
    RVT_ASSERT(std::memcmp(pair.b().memory.data() + 7000, pair.a().memory.data() + 40, 24) == 0);
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kTranslation, .attr = {.segments = {&whole, 1}}}));
    RVT_EQ(write_to(pair, 100, mr->rkey()), WcStatus::kSuccess);
    RVT_ASSERT(pair.b().holds(100, 64, 4));
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_becomes_one_of_several_segments_and_is_one_again)

template <class Backend>
void a_region_loses_a_right_alone() {
    Pair<Backend> pair;
    const iovec memory = part_of(pair, 0, 1000);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kAllAccess}).value();
    RVT_EQ(write_to(pair, 0, mr->rkey()), WcStatus::kSuccess);
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kAccess, .attr = {.access = Access::kRemoteRead}}));
    RVT_EQ(mr->length(), 1000);
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_EQ(write_to(pair, 0, mr->rkey()), WcStatus::kRemAccessErr);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_loses_a_right_alone)
RVT_CONFORM_NIC(a_region_loses_a_right_alone)

template <class Backend>
void a_region_moves_to_another_domain_and_is_its_own_there() {
    Pair<Backend> pair;
    Pd* const other = alloc_pd(*pair.b().context).value();
    const iovec memory = part_of(pair, 0, 1000);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kAllAccess}).value();
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kPd, .pd = other}));
    RVT_EQ(dealloc_pd(other), EBUSY);
    RVT_ASSERT(&mr->pd() == other);
    RVT_EQ(write_to(pair, 0, mr->rkey()), WcStatus::kRemAccessErr);
    RVT_OK(rereg_mr(*mr, {.changes = MrChange::kPd, .pd = pair.b().pd}));
    RVT_OK(dealloc_pd(other));
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_moves_to_another_domain_and_is_its_own_there)
RVT_CONFORM_NIC(a_region_moves_to_another_domain_and_is_its_own_there)

template <class Backend>
void a_change_that_cannot_be_leaves_the_region_as_it_was() {
    Pair<Backend> pair;
    const iovec memory = part_of(pair, 0, 1000);
    Mr* mr = reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kAllAccess}).value();
    RVT_EQ(rereg_mr(*mr, {}), EINVAL);
    RVT_EQ(rereg_mr(*mr, {.changes = MrChange::kTranslation}), EINVAL);
    RVT_EQ(rereg_mr(*mr, {.changes = MrChange::kPd}), EINVAL);
    RVT_EQ(rereg_mr(*mr, {.changes = MrChange::kAccess, .attr = {.access = Access::kRemoteWrite}}),
           EINVAL);
    PinSlot& reader = take_pin_slot();
    reader.enter();
    const MrRereg smaller{.changes = MrChange::kTranslation, .attr = {.segments = {&memory, 1}}};
    RVT_EQ(rereg_mr(*mr, smaller, 0), EBUSY);
    reader.leave();
    free_pin_slot(reader);
    RVT_EQ(write_to(pair, 900, mr->rkey()), WcStatus::kSuccess);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_change_that_cannot_be_leaves_the_region_as_it_was)

// ---- many segments ----

template <class Backend>
void a_region_of_thousands_of_blocks_is_addressed_as_one() {
    constexpr std::size_t kBlock = 64;
    constexpr std::size_t kBlocks = 3000;
    Pair<Backend> pair;
    std::vector<iovec> blocks;
    for (std::size_t i = kBlocks; i-- > 0;) {
        blocks.push_back(part_of(pair, i * (kBlock + 16), kBlock));
    }
    Mr* mr = reg_mr(*pair.b().pd, {.segments = blocks, .access = kAllAccess | Access::kZeroBased})
                 .value();
    RVT_EQ(mr->length(), kBlock * kBlocks);
    const std::size_t at = 2000 * kBlock + 5;
    constexpr std::size_t kBytes = 60 * 1024;  // over far more blocks than an operation has pieces
    pair.a().fill(0, kBytes, 4);
    const Sge element = pair.a().sge(0, kBytes);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kWrite,
                                   .sg_list = {&element, 1},
                                   .remote_addr = at,
                                   .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    for (std::size_t i = 0; i < kBytes; ++i) {
        const iovec& block = blocks[(at + i) / kBlock];
        const auto* const byte = static_cast<const std::byte*>(block.iov_base) + (at + i) % kBlock;
        RVT_ASSERT(*byte == pair.a().memory[i]);
    }
    const Sge back = pair.a().sge(100000, 1000);
    RVT_OK(pair.a().qp->post_send({.opcode = WrOpcode::kRead,
                                   .sg_list = {&back, 1},
                                   .remote_addr = at + 30000,
                                   .rkey = mr->rkey()}));
    RVT_EQ(pair.sent().status, WcStatus::kSuccess);
    RVT_ASSERT(std::memcmp(&pair.a().memory[100000], &pair.a().memory[30000], 1000) == 0);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(a_region_of_thousands_of_blocks_is_addressed_as_one)

// ---- advice ----

template <class Backend>
void pages_are_brought_in_when_that_is_advised() {
    constexpr std::size_t kBytes = 16 * 4096;
    Pair<Backend> pair;
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RVT_OK(madvise(memory, kBytes, MADV_NOHUGEPAGE));
    const iovec all{.iov_base = memory, .iov_len = kBytes};
    Mr* mr =
        reg_mr(*pair.b().pd, {.segments = {&all, 1},
                              .access = kAllAccess | Access::kOnDemand | Access::kRelaxedOrdering})
            .value();
    unsigned char in_memory[16] = {};
    RVT_OK(advise_mr(*mr, MrAdvice::kPrefetchWrite, 4096, 2 * 4096));
    RVT_OK(mincore(memory, kBytes, in_memory));
    RVT_EQ(in_memory[0] & 1, 0);
    RVT_EQ(in_memory[1] & in_memory[2] & 1, 1);
    RVT_OK(advise_mr(*mr, MrAdvice::kPrefetchNoFault, 0, kBytes));
    RVT_EQ(advise_mr(*mr, MrAdvice::kPrefetch, 1, kBytes), EINVAL);
    munmap(memory, kBytes);
    RVT_EQ(advise_mr(*mr, MrAdvice::kPrefetch, 0, kBytes), EFAULT);
    RVT_OK(dereg_mr(mr));
}
RVT_CONFORM_RC(pages_are_brought_in_when_that_is_advised)

// ---- memory that is not what it was when it was registered ----

/// Pages of their own that side b has registered.
class Pages {
  public:
    static constexpr std::size_t kBytes = 4 * 4096;

    explicit Pages(Side& side) {
        const iovec all{.iov_base = memory_, .iov_len = kBytes};
        mr_ = reg_mr(*side.pd, {.segments = {&all, 1}, .access = kAllAccess}).value();
    }
    ~Pages() {
        RVT_OK(dereg_mr(mr_));
        munmap(memory_, kBytes);
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    /// As if unmapped, but nothing else comes to lie there.
    void remove() {
        RVT_ASSERT(mmap(memory_, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                        0) == memory_);
    }
    void forbid_writing() { RVT_OK(mprotect(memory_, kBytes, PROT_READ)); }
    [[nodiscard]] std::uint32_t key() const { return mr_->rkey(); }
    [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory_); }

    /// How an operation of side a on them ends.
    template <class Backend>
    WcStatus after(Pair<Backend>& pair, SendWr wr, std::size_t bytes) const {
        const Sge element = pair.a().sge(0, bytes);
        wr.sg_list = {&element, 1};
        wr.remote_addr = address();
        wr.rkey = key();
        RVT_OK(pair.a().qp->post_send(wr));
        return pair.sent().status;
    }

  private:
    void* const memory_ =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Mr* mr_ = nullptr;
};

/// After an error a pair is of no use: each operation has one of its own.
template <class Backend>
void expect_no_access(WrOpcode opcode, std::size_t bytes, void (Pages::*change)()) {
    Pair<Backend> pair;
    Pages pages(pair.b());
    (pages.*change)();
    RVT_EQ(pages.after(pair, {.opcode = opcode}, bytes), WcStatus::kRemAccessErr);
}

template <class Backend>
void memory_that_is_gone_is_out_of_reach_and_nobody_dies() {
    for (const std::size_t bytes : {std::size_t{8}, Pages::kBytes}) {
        expect_no_access<Backend>(WrOpcode::kWrite, bytes, &Pages::remove);
        expect_no_access<Backend>(WrOpcode::kRead, bytes, &Pages::remove);
    }
    expect_no_access<Backend>(WrOpcode::kFetchAdd, 8, &Pages::remove);
    expect_no_access<Backend>(WrOpcode::kCas, 8, &Pages::remove);
    expect_no_access<Backend>(WrOpcode::kAtomicWrite, 8, &Pages::remove);
}
RVT_CONFORM_RC(memory_that_is_gone_is_out_of_reach_and_nobody_dies)

template <class Backend>
void memory_that_may_not_be_written_is_read_alone() {
    expect_no_access<Backend>(WrOpcode::kWrite, 8, &Pages::forbid_writing);
    expect_no_access<Backend>(WrOpcode::kWrite, Pages::kBytes, &Pages::forbid_writing);
    expect_no_access<Backend>(WrOpcode::kFetchAdd, 8, &Pages::forbid_writing);
    Pair<Backend> pair;
    Pages pages(pair.b());
    pages.forbid_writing();
    RVT_EQ(pages.after(pair, {.opcode = WrOpcode::kRead}, Pages::kBytes), WcStatus::kSuccess);
    RVT_EQ(pages.after(pair, {.opcode = WrOpcode::kRead}, 8), WcStatus::kSuccess);
}
RVT_CONFORM_RC(memory_that_may_not_be_written_is_read_alone)

template <class Backend>
void a_receive_into_memory_that_is_gone_is_the_receivers_error() {
    Pair<Backend> pair;
    Pages pages(pair.b());
    const Sge room{.addr = pages.address(), .length = 64, .lkey = pages.key()};
    RVT_OK(pair.b().qp->post_recv({.wr_id = 9, .sg_list = {&room, 1}}));
    pages.remove();
    RVT_OK(pair.post_send());
    RVT_EQ(pair.sent().status, WcStatus::kRemOpErr);
    RVT_EQ(pair.received().status, WcStatus::kLocProtErr);
}
RVT_CONFORM_RC(a_receive_into_memory_that_is_gone_is_the_receivers_error)

}  // namespace
