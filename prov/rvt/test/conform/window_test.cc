// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Conformance: windows of type 2, and the regions that they open a part of. IBTA vol. 1, 10.6.
#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr Options kBindable{.memory_access = kAllAccess | Access::kMwBind};

std::uint32_t with_byte(std::uint32_t key, std::uint8_t byte) {
    return (key & ~0xffu) | byte;
}

/// Carries out a request of one side's own.
template <class Backend>
WcStatus carry_out_at_b(Pair<Backend>& pair, const SendWr& wr) {
    RVT_OK(pair.b().qp->post_send(wr));
    return pair.next(pair.b().send_cq).status;
}

/// Opens the first `bytes` of side B's memory.
template <class Backend>
WcStatus bind(Pair<Backend>& pair, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
    return carry_out_at_b(pair, {.opcode = WrOpcode::kBindMw,
                                 .bind = {.mw_key = from,
                                          .new_key = to,
                                          .lkey = pair.b().mr->lkey(),
                                          .addr = pair.b().at(0),
                                          .length = bytes,
                                          .access = Access::kRemoteRead}});
}

template <class Backend>
WcStatus read(Pair<Backend>& pair, std::uint32_t key) {
    RVT_OK(pair.post_send({.opcode = WrOpcode::kRead, .rkey = key}));
    return pair.sent().status;
}

template <class Backend>
void a_region_with_bound_windows_stays() {
    Pair<Backend> pair(kBindable);
    Mw* one = alloc_mw(*pair.b().pd).value();
    Mw* other = alloc_mw(*pair.b().pd).value();
    const std::uint32_t key = with_byte(one->key(), 1);
    RVT_EQ(bind(pair, one->key(), key, 4096), WcStatus::kSuccess);
    RVT_EQ(bind(pair, other->key(), other->key(), 4096), WcStatus::kSuccess);
    RVT_EQ(dereg_mr(pair.b().mr, 0), EBUSY);
    RVT_EQ(rereg_mr(*pair.b().mr,
                    {.changes = MrChange::kAccess, .attr = {.access = Access::kLocalWrite}}),
           EBUSY);
    // Nothing of it has changed.
    RVT_EQ(read(pair, key), WcStatus::kSuccess);
    RVT_EQ(read(pair, pair.b().mr->rkey()), WcStatus::kSuccess);
    RVT_OK(dealloc_mw(one, key));
    RVT_EQ(dereg_mr(pair.b().mr, 0), EBUSY);
    RVT_OK(dealloc_mw(other, other->key()));
    RVT_OK(dereg_mr(pair.b().mr, 0));
    pair.b().mr = nullptr;
}
RVT_CONFORM_RC(a_region_with_bound_windows_stays)

template <class Backend>
void a_region_goes_whose_windows_are_bound_elsewhere_or_closed() {
    Pair<Backend> pair(kBindable);
    const iovec memory{.iov_base = pair.b().memory.data(), .iov_len = 4096};
    Mr* other =
        reg_mr(*pair.b().pd, {.segments = {&memory, 1}, .access = kBindable.memory_access}).value();
    Mw* window = alloc_mw(*pair.b().pd).value();
    const std::uint32_t key = window->key();
    RVT_EQ(bind(pair, key, with_byte(key, 1), 64), WcStatus::kSuccess);
    std::swap(pair.b().mr, other);
    RVT_EQ(bind(pair, with_byte(key, 1), with_byte(key, 2), 64), WcStatus::kSuccess);
    RVT_OK(dereg_mr(other, 0));
    RVT_EQ(dereg_mr(pair.b().mr, 0), EBUSY);
    RVT_EQ(bind(pair, with_byte(key, 2), with_byte(key, 3), 0), WcStatus::kSuccess);
    RVT_OK(dereg_mr(pair.b().mr, 0));
    pair.b().mr = nullptr;
    RVT_OK(dealloc_mw(window, with_byte(key, 3)));
}
RVT_CONFORM_RC(a_region_goes_whose_windows_are_bound_elsewhere_or_closed)

template <class Backend>
void a_region_goes_whose_windows_were_invalidated() {
    Pair<Backend> pair(kBindable);
    Mw* one = alloc_mw(*pair.b().pd).value();
    Mw* other = alloc_mw(*pair.b().pd).value();
    RVT_EQ(bind(pair, one->key(), one->key(), 64), WcStatus::kSuccess);
    RVT_EQ(bind(pair, other->key(), other->key(), 64), WcStatus::kSuccess);
    RVT_EQ(carry_out_at_b(pair, {.opcode = WrOpcode::kLocalInv, .rkey = one->key()}),
           WcStatus::kSuccess);
    RVT_OK(pair.b().post_recv(1));
    RVT_OK(pair.post_send({.opcode = WrOpcode::kSendInv, .imm = other->key()}));
    RVT_EQ(pair.received().status, WcStatus::kSuccess);
    RVT_OK(dereg_mr(pair.b().mr, 0));
    pair.b().mr = nullptr;
    RVT_OK(dealloc_mw(one, one->key()));
    RVT_OK(dealloc_mw(other, other->key()));
}
RVT_CONFORM_RC(a_region_goes_whose_windows_were_invalidated)

template <class Backend>
void a_window_that_was_invalidated_is_bound_again() {
    Pair<Backend> pair(kBindable);
    Mw* window = alloc_mw(*pair.b().pd).value();
    const std::uint32_t first = window->key();
    const std::uint32_t second = with_byte(first, 2);
    RVT_EQ(bind(pair, first, first, 4096), WcStatus::kSuccess);
    RVT_EQ(carry_out_at_b(pair, {.opcode = WrOpcode::kLocalInv, .rkey = first}),
           WcStatus::kSuccess);
    RVT_EQ(bind(pair, first, second, 4096), WcStatus::kSuccess);
    RVT_EQ(read(pair, second), WcStatus::kSuccess);
    RVT_EQ(read(pair, first), WcStatus::kRemAccessErr);
    RVT_OK(dealloc_mw(window, second));
}
RVT_CONFORM_RC(a_window_that_was_invalidated_is_bound_again)

template <class Backend>
void a_region_with_bound_windows_is_not_invalidated() {
    Pair<Backend> pair(kBindable);
    Mw* window = alloc_mw(*pair.b().pd).value();
    RVT_EQ(bind(pair, window->key(), window->key(), 64), WcStatus::kSuccess);
    RVT_EQ(carry_out_at_b(pair, {.opcode = WrOpcode::kLocalInv, .rkey = pair.b().mr->lkey()}),
           WcStatus::kLocQpOpErr);
    RVT_OK(pair.b().device->key_view().access_of(pair.b().mr->lkey(), pair.b().pd->id()).status());
    RVT_OK(dealloc_mw(window, window->key()));
}
RVT_CONFORM_RC(a_region_with_bound_windows_is_not_invalidated)

template <class Backend>
void the_key_of_a_region_is_no_window_to_bind() {
    Pair<Backend> pair(kBindable);
    const std::uint32_t key = pair.b().mr->rkey();
    RVT_EQ(bind(pair, key, with_byte(key, 0x77), 64), WcStatus::kMwBindErr);
    RVT_EQ(pair.b().device->key_view().access_of(key, pair.b().pd->id()).value(),
           kBindable.memory_access);
}
RVT_CONFORM_RC(the_key_of_a_region_is_no_window_to_bind)

template <class Backend>
void a_window_of_another_domain_is_not_bound() {
    Pair<Backend> pair(kBindable);
    Pd* pd = alloc_pd(*pair.b().context).value();
    Mw* window = alloc_mw(*pd).value();
    RVT_EQ(bind(pair, window->key(), with_byte(window->key(), 1), 64), WcStatus::kMwBindErr);
    RVT_OK(dealloc_mw(window, window->key()));
    RVT_OK(dealloc_pd(pd));
}
RVT_CONFORM_RC(a_window_of_another_domain_is_not_bound)

}  // namespace
