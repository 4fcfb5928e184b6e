// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Objects of the core whose end is that of their owner. Members are declared in the order in which
// they are made: what depends on others then ends before them.
#pragma once

#include <memory>

#include "rvt/status.h"

namespace rvt::core {

class Ah;
class CompChannel;
class Context;
class Mr;
class Pd;
class Qp;
class Srq;
class VerbsCq;

/// Ends an object that nothing depends on any more, so that it cannot be refused. (A region that a
/// NIC keeps is gone for the core.)
struct EndObject {
    void operator()(Ah* ah) const noexcept;
    void operator()(CompChannel* channel) const noexcept;
    void operator()(Context* context) const noexcept;
    void operator()(Mr* mr) const noexcept;
    void operator()(Pd* pd) const noexcept;
    void operator()(Qp* qp) const noexcept;
    void operator()(Srq* srq) const noexcept;
    void operator()(VerbsCq* cq) const noexcept;
};

template <class T>
using Owned = std::unique_ptr<T, EndObject>;

/// Puts what was made into its place. Returns: why nothing was.
template <class T>
Status keep(Owned<T>& place, Result<T*> made) noexcept {
    if (made.is_ok()) {
        place.reset(made.value());
    }
    return made.status();
}

}  // namespace rvt::core
