// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How each kind of object ends.
#include "core/owned.h"

#include "core/ah.h"
#include "core/context.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"

#include <cassert>

namespace rvt::core {
namespace {

void expect([[maybe_unused]] Status ended) noexcept {
    assert(ended.is_ok());
}

}  // namespace

void EndObject::operator()(Ah* ah) const noexcept {
    expect(destroy_ah(ah));
}
void EndObject::operator()(CompChannel* channel) const noexcept {
    expect(destroy_comp_channel(channel));
}
void EndObject::operator()(Context* context) const noexcept {
    expect(close_device(context));
}
void EndObject::operator()(Mr* mr) const noexcept {
    end_mr(mr);
}
void EndObject::operator()(Pd* pd) const noexcept {
    expect(dealloc_pd(pd));
}
void EndObject::operator()(Qp* qp) const noexcept {
    expect(destroy_qp(qp));
}
void EndObject::operator()(Srq* srq) const noexcept {
    expect(destroy_srq(srq));
}
void EndObject::operator()(VerbsCq* cq) const noexcept {
    expect(destroy_cq(cq));
}

}  // namespace rvt::core
