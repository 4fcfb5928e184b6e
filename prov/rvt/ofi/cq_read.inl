// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Reading a completion queue, instantiated for each lock policy and entry format. fi_cq_read on an
// empty queue is the spin loop of every application: one lock, one look at the ring, one progress
// call, another look.
#pragma once

#include "ofi/cq.h"
#include "util/lock.h"

namespace rvt::ofi {

// One conversion for each format; a field that the format lacks is not touched.
RVT_ALWAYS_INLINE void convert(const core::Cqe& from, fi_cq_entry& to) noexcept {
    to.op_context = from.op_context;
}
RVT_ALWAYS_INLINE void convert(const core::Cqe& from, fi_cq_msg_entry& to) noexcept {
    to.op_context = from.op_context;
    to.flags = from.flags;
    to.len = from.len;
}
RVT_ALWAYS_INLINE void convert(const core::Cqe& from, fi_cq_data_entry& to) noexcept {
    to.op_context = from.op_context;
    to.flags = from.flags;
    to.len = from.len;
    to.buf = from.buf;
    to.data = from.data;
}
RVT_ALWAYS_INLINE void convert(const core::Cqe& from, fi_cq_tagged_entry& to) noexcept {
    to.op_context = from.op_context;
    to.flags = from.flags;
    to.len = from.len;
    to.buf = from.buf;
    to.data = from.data;
    to.tag = from.tag;
}

/// How often a read looks again that has moved something, but has got no entry. An application that
/// gets none may give up its core: what had arrived then would wait for its next turn. A limit, as
/// messages that nobody expects may come without end.
constexpr unsigned kMoreLooks = 8;

/// Moves up to `count` good entries out, in one pass. Returns: how many, or -FI_EAVAIL when an
/// error comes first. Precondition: there is an entry, and count is not 0.
template <class Entry, bool kWithSource>
RVT_ALWAYS_INLINE ssize_t drain(core::Cq& queue, void* buffer, std::size_t count,
                                fi_addr_t* sources) noexcept {
    auto* entry = static_cast<Entry*>(buffer);
    bool is_error = false;
    const std::size_t taken = queue.pop_while(count, [&](const core::Cqe& from) {
        if (from.status != core::WcStatus::kSuccess) [[unlikely]] {
            is_error = true;
            return false;
        }
        convert(from, *entry++);
        if constexpr (kWithSource) {
            *sources++ = from.source;
        }
        return true;
    });
    return taken == 0 && is_error ? -FI_EAVAIL : static_cast<ssize_t>(taken);
}

/// Returns: entries read, -FI_EAVAIL, -FI_EAGAIN; `is_yield_due` tells that it has been so for
/// long.
template <class Lock, class Entry, bool kWithSource>
RVT_ALWAYS_INLINE ssize_t try_read_entries(Cq& cq, void* buffer, std::size_t count,
                                           fi_addr_t* sources, bool& is_yield_due) noexcept {
    const util::Guard<Lock> guard(cq.domain->lock.as<Lock>());
    core::Cq& queue = *cq.queue;
    if (queue.is_empty() || count == 0) {
        unsigned moved = cq.progressors.run_locked();
        if (moved == 0) {
            cq.domain->send_for_others_locked();
            is_yield_due = cq.courtesy.is_due(false);
            if (is_yield_due) [[unlikely]] {
                cq.progressors.remind_peers_locked();
            }
        } else {
            cq.courtesy.is_due(true);  // it is not, but learns of it
            for (unsigned more = kMoreLooks; queue.is_empty() && more != 0 && moved != 0; --more) {
                moved = cq.progressors.run_locked();
            }
        }
        if (queue.is_empty() || count == 0) {
            return -FI_EAGAIN;
        }
    }
    return drain<Entry, kWithSource>(queue, buffer, count, sources);
}

template <class Lock, class Entry, bool kWithSource>
RVT_ALWAYS_INLINE ssize_t read_entries(Cq& cq, void* buffer, std::size_t count,
                                       fi_addr_t* sources) noexcept {
    bool is_yield_due = false;
    const ssize_t got =
        try_read_entries<Lock, Entry, kWithSource>(cq, buffer, count, sources, is_yield_due);
    if (got == -FI_EAGAIN && is_yield_due) [[unlikely]] {
        cq.courtesy.yield();
    }
    return got;
}

template <class Lock, class Entry>
ssize_t cq_read(fid_cq* self, void* buffer, std::size_t count) noexcept {
    return read_entries<Lock, Entry, false>(Cq::from(self), buffer, count, nullptr);
}

template <class Lock, class Entry>
ssize_t cq_readfrom(fid_cq* self, void* buffer, std::size_t count, fi_addr_t* sources) noexcept {
    if (sources == nullptr) {
        return cq_read<Lock, Entry>(self, buffer, count);
    }
    return read_entries<Lock, Entry, true>(Cq::from(self), buffer, count, sources);
}

}  // namespace rvt::ofi
