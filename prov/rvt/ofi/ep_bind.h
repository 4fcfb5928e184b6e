// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_ep_bind(3): what endpoints of every type do alike with queues and counters. An endpoint that
// is bound counts as a user of each.
#pragma once

#include <cstdint>
#include <span>

#include "ofi/cntr.h"
#include "ofi/compat.h"
#include "ofi/cq.h"
#include "ofi/eq.h"

namespace rvt::ofi {

/// The endpoint uses it no more; it may be none.
template <class Object>
void drop(Object* object) noexcept {
    if (object != nullptr) {
        object->users.drop();
    }
}

/// Takes the source from each of them once, as it has joined them; they may be none.
template <class Object>
void leave_each(const core::ProgressSource& source, std::span<Object* const> objects) noexcept {
    for (Object* const object : objects) {
        if (object != nullptr) {
            object->remove_source(source);
        }
    }
}

/// Has the source driven by who reads them, each once for each time that it is named; they may be
/// none. Returns: EMFILE, ENOMEM, ENOSPC; none has it then that had not before.
template <class Object>
util::Status join_each(core::ProgressSource& source, std::span<Object* const> objects) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
        const util::Status joined =
            objects[i] != nullptr ? objects[i]->add_source(source) : util::Status();
        if (!joined.is_ok()) {
            leave_each(source, objects.first(i));
            return joined;
        }
    }
    return util::kOk;
}

/// The same with all that an endpoint completes into.
inline void leave_queues(const core::ProgressSource& source, std::span<Cq* const> queues,
                         std::span<Cntr* const> counters) noexcept {
    leave_each(source, queues);
    leave_each(source, counters);
}
inline util::Status join_queues(core::ProgressSource& source, std::span<Cq* const> queues,
                                std::span<Cntr* const> counters) {
    util::Status joined = join_each(source, queues);
    if (joined.is_ok()) {
        joined = join_each(source, counters);
        if (!joined.is_ok()) {
            leave_each(source, queues);
        }
    }
    return joined;
}

/// Returns: 0, -FI_EBADFLAGS, -FI_EDOMAIN, -FI_EINVAL where a queue is bound already.
template <class Ep>
int bind_cq(Ep& ep, Cq& cq, std::uint64_t flags) noexcept {
    constexpr std::uint64_t kAll = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
    const bool is_tx = (flags & FI_TRANSMIT) != 0;
    const bool is_rx = (flags & FI_RECV) != 0;
    const bool is_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
    if ((flags & ~kAll) != 0 || (!is_tx && !is_rx)) {
        return -FI_EBADFLAGS;
    }
    if (cq.domain != ep.domain) {
        return -FI_EDOMAIN;
    }
    if ((is_tx && ep.tx_cq != nullptr) || (is_rx && ep.rx_cq != nullptr)) {
        return -FI_EINVAL;
    }
    if (is_tx) {
        ep.tx_cq = &cq;
        ep.is_tx_selective = is_selective;
        cq.users.add();
    }
    if (is_rx) {
        ep.rx_cq = &cq;
        ep.is_rx_selective = is_selective;
        cq.users.add();
    }
    return 0;
}

/// Where an endpoint keeps the counter of an event.
struct CntrPlace {
    std::uint64_t event;
    Cntr*& cntr;
};

/// @param allowed  Events that may be asked for; those without a place do not happen.
/// Returns: as bind_cq().
template <class Ep>
int bind_cntr(Ep& ep, Cntr& cntr, std::uint64_t flags, std::uint64_t allowed,
              std::span<const CntrPlace> places) noexcept {
    if ((flags & ~allowed) != 0 || flags == 0) {
        return -FI_EBADFLAGS;
    }
    if (cntr.domain != ep.domain) {
        return -FI_EDOMAIN;
    }
    for (const CntrPlace& place : places) {
        if ((flags & place.event) != 0 && place.cntr != nullptr) {
            return -FI_EINVAL;
        }
    }
    for (const CntrPlace& place : places) {
        if ((flags & place.event) != 0) {
            place.cntr = &cntr;
            cntr.users.add();
        }
    }
    return 0;
}

/// Takes back what bind_cntr() has done with these flags.
inline void unbind_cntr(Cntr& cntr, std::uint64_t flags,
                        std::span<const CntrPlace> places) noexcept {
    for (const CntrPlace& place : places) {
        if ((flags & place.event) != 0) {
            place.cntr = nullptr;
            cntr.users.drop();
        }
    }
}

/// Returns: 0, -FI_EBADFLAGS, -FI_EINVAL where one is bound already.
template <class Ep>
int bind_eq(Ep& ep, Eq& eq, std::uint64_t flags) noexcept {
    if (flags != 0) {
        return -FI_EBADFLAGS;
    }
    if (ep.eq != nullptr) {
        return -FI_EINVAL;
    }
    ep.eq = &eq;
    eq.users.add();
    return 0;
}

}  // namespace rvt::ofi
