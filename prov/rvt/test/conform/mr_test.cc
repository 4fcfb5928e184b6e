// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: regions as work requests see them.
#include "conform/fixture.h"

#include <chrono>

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

}  // namespace
