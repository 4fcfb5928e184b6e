// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One-sided access and atomics, the target's side: what peers do by messages to regions of this
// process, and what they are answered. Included by rd_engine.h.
#pragma once

#include "core/rd_engine.h"

namespace rvt::core {

/// What stands behind a peer's request. The caller holds the pin.
template <class Lock, class Host>
KeyHit RdEngine<Lock, Host>::lookup(const RdAccess& access, Access rights) noexcept {
    KeyQuery query{.key = static_cast<std::uint32_t>(access.key),
                   .pd = keys_.pd,
                   .addr = access.address,
                   .length = access.length,
                   .access = rights};
    if (keys_.table == nullptr) {
        return {};
    }
    if (keys_.has_user_keys) {
        const util::Result<std::uint32_t> own = keys_.table->find_by_user_key(access.key);
        if (!own.is_ok()) {
            return {};
        }
        query.key = own.value();
    } else if (access.key > 0xffffffffu) {
        return {};
    }
    return keys_.table->view().lookup(query);
}

inline WcStatus to_wc_status(KeyVerdict verdict) noexcept {
    return verdict == KeyVerdict::kOk ? WcStatus::kSuccess : WcStatus::kRemAccessErr;
}
/// Of a copy to or from the region.
inline WcStatus to_wc_status(util::Status copied) noexcept {
    if (copied == Status(EFAULT)) {
        return WcStatus::kRemAccessErr;
    }
    return copied.is_ok() ? WcStatus::kSuccess : WcStatus::kRemOpErr;
}

/// Before the bytes of a write: a thread that looks at memory alone sees those of earlier ones
/// first (FI_ORDER_RMA_WAW). Costs nothing on x86; elsewhere nothing else orders plain stores.
inline void order_writes() noexcept {
    // release: pairs with the acquire by which the application reads what it waits for.
    std::atomic_thread_fence(std::memory_order_release);
}

/// A segment of a peer's access has come. Those of an operation come in a row, but are not over in
/// one: the data of a read waits for room. Returns: the flags by which it is reported; the last one
/// of an operation of which one has been refused counts for its region alone.
template <class Lock, class Host>
std::uint8_t RdEngine<Lock, Host>::note_segment(Peer& peer, std::uint64_t operation,
                                                std::uint8_t flags) noexcept {
    const bool is_last = (flags & wire::kLast) != 0;
    const bool is_refused = operation == peer.open_access && peer.has_refused_segment;
    peer.open_access = is_last ? 0 : operation;
    peer.has_refused_segment = is_refused && !is_last;
    return is_refused && is_last ? wire::kEvent : flags;
}

/// The last segment is not to be reported, whether it is still to come or waits with its data.
template <class Lock, class Host>
void RdEngine<Lock, Host>::note_refused(Peer& peer, std::uint64_t operation) noexcept {
    if (operation == peer.open_access) {
        peer.has_refused_segment = true;
    }
    for (RdResponse& response : peer.responses) {
        if (response.operation != operation) {
            break;  // only one whose data was the next to leave is refused behind its last segment
        }
        if ((response.flags & wire::kLast) != 0) {
            response.flags = wire::kEvent;
        }
    }
}

/// Tells the initiator how its access ended, and the key to use when it copies by itself.
template <class Lock, class Host>
void RdEngine<Lock, Host>::answer(Peer& peer, std::uint64_t operation, WcStatus status,
                                  std::uint64_t key) noexcept {
    std::uint32_t own = 0;
    if (keys_.has_user_keys && status == WcStatus::kSuccess) {
        const util::Result<std::uint32_t> found = keys_.table->find_by_user_key(key);
        own = found.is_ok() ? found.value() : 0;
    }
    if (status != WcStatus::kSuccess && operation != 0) {
        note_refused(peer, operation);
    }
    const RdOutcome outcome{.status = static_cast<std::uint32_t>(status), .key = own};
    reply(peer, RdOp::kAccessDone, 0, operation, &outcome, sizeof outcome);
}

/// Counts a finished segment of a peer's access for its region, and with the last one the access,
/// which is reported if it carried data. What both reads and writes counts as a read here, and as a
/// write of the region.
template <class Lock, class Host>
void RdEngine<Lock, Host>::report_access(const Peer& peer, const RdAccess& access,
                                         std::uint8_t flags, std::uint64_t data,
                                         std::uint64_t wc_flags) noexcept {
    if (keys_.accessed != nullptr && (flags & (wire::kLast | wire::kEvent)) != 0) {
        keys_.accessed(keys_.accessed_context, access.key, wc_flags);
    }
    if ((flags & wire::kLast) == 0) {
        return;
    }
    Counter* const counter =
        (wc_flags & kWcRemoteRead) != 0 ? completion_.remote_read : completion_.remote_write;
    if (counter != nullptr) {
        counter->add(1);
    }
    if ((flags & wire::kHasData) != 0 && rx_cq_ != nullptr) {
        rx_cq_->push(Cqe{.flags = wc_flags | kWcRemoteCqData,
                         .len = access.length,
                         .data = data,
                         .source = peer.fi_addr});
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_write_line(Peer& peer, const Arrival& arrival) noexcept {
    std::byte message[Path::kMaxLinePayload];
    RdAccess access;
    if (arrival.length() < sizeof access) {
        return false;
    }
    arrival.copy_payload(message, arrival.length());
    std::memcpy(&access, message, sizeof access);
    if (access.length != arrival.length() - sizeof access) {
        return false;
    }
    const std::uint8_t flags = note_segment(peer, access.operation, arrival.flags());
    const ReadPin pin(pin_);
    const KeyHit hit = lookup(access, Access::kRemoteWrite);
    WcStatus status = to_wc_status(hit.verdict);
    if (hit.is_ok()) {
        order_writes();
        status = to_wc_status(copy_to_region(hit, 0, message + sizeof access, access.length));
    }
    if (status == WcStatus::kSuccess) {
        report_access(peer, access, flags, arrival.data(), kWcRma | kWcRemoteWrite);
        if (access.operation == 0) {
            return true;  // nobody waits
        }
    }
    answer(peer, access.operation, status, access.key);
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_write(Peer& peer, const Arrival& arrival) noexcept {
    RdIncomingWrite& write = peer.write;
    if (write.is_active) {
        return false;
    }
    std::memcpy(&write.access, arrival.payload(), sizeof write.access);
    write.data = arrival.data();
    write.flags = note_segment(peer, write.access.operation, arrival.flags());
    write.done = 0;
    write.status = WcStatus::kSuccess;
    write.is_active = true;
    return write_part(peer, arrival);
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_write_more(Peer& peer, const Arrival& arrival) noexcept {
    return peer.write.is_active && write_part(peer, arrival);
}

/// Executes the part of a write that has arrived. The key is looked up for each part: the region
/// may be closed meanwhile.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::write_part(Peer& peer, const Arrival& arrival) noexcept {
    RdIncomingWrite& write = peer.write;
    if (arrival.length() > write.access.length - write.done) {
        return false;
    }
    const ReadPin pin(pin_);
    if (write.status == WcStatus::kSuccess) {
        const KeyHit hit = lookup(write.access, Access::kRemoteWrite);
        write.status = to_wc_status(hit.verdict);
        if (hit.is_ok()) {
            order_writes();
            write.status =
                to_wc_status(copy_to_region(hit, write.done, arrival.run(), arrival.length()));
        }
    }
    write.done += arrival.length();
    if (write.done == write.access.length) {
        write.is_active = false;
        if (write.status == WcStatus::kSuccess) {
            report_access(peer, write.access, write.flags, write.data, kWcRma | kWcRemoteWrite);
        }
        answer(peer, write.access.operation, write.status, write.access.key);
    }
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_read(Peer& peer, const Arrival& arrival) noexcept {
    RdAccess access;
    if (arrival.length() != sizeof access) {
        return false;
    }
    arrival.copy_payload(&access, sizeof access);
    const auto asked = static_cast<std::uint8_t>(arrival.flags() & ~wire::kHasData);
    const std::uint8_t flags = note_segment(peer, access.operation, asked);
    const ReadPin pin(pin_);
    const KeyHit hit = lookup(access, Access::kRemoteRead);
    if (!hit.is_ok()) {
        answer(peer, access.operation, to_wc_status(hit.verdict), access.key);
        return true;
    }
    if (access.length <= Path::kMaxLinePayload && peer.responses.empty()) {
        std::byte line[Path::kMaxLinePayload];
        const Status copied = copy_from_region(hit, 0, line, access.length);
        if (!copied.is_ok()) {
            answer(peer, access.operation, to_wc_status(copied), access.key);
            return true;
        }
        if (peer.path.put(RdOp::kReadLine, wire::kLast, 0, access.operation, line, access.length)) {
            report_access(peer, access, flags, 0, kWcRma | kWcRemoteRead);
            return true;
        }
    }
    if (access.length > kBulk) {
        peer.path.prepare_bulk();
    }
    RdResponse response{.op = RdOp::kReadData,
                        .operation = access.operation,
                        .access = access,
                        .total = access.length,
                        .snapshot = nullptr,
                        .flags = flags};
    if (access.length <= kMaxOrderedRmaSize) {
        response.snapshot.reset(new (std::nothrow) std::byte[access.length + 1]);
        if (!response.snapshot) {
            answer(peer, access.operation, WcStatus::kNoMemory, access.key);
            return true;
        }
        const Status copied = copy_from_region(hit, 0, response.snapshot.get(), access.length);
        if (!copied.is_ok()) {
            answer(peer, access.operation, to_wc_status(copied), access.key);
            return true;
        }
    }
    respond(peer, std::move(response));
    return true;
}

/// Queues data for a peer behind what it already waits for, and sends what fits now.
template <class Lock, class Host>
void RdEngine<Lock, Host>::respond(Peer& peer, RdResponse response) noexcept {
    peer.responses.push_back(std::move(response));
    // Replies that wait are older; of one operation's results the initiator only knows the order.
    while (peer.replies.empty() && !peer.responses.empty() &&
           run_response(peer, peer.responses.front())) {
        peer.responses.pop_front();
    }
    if (!peer.responses.empty()) {
        make_busy(peer);
    }
}

/// Sends the next parts of a response. Returns: whether it is done.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::run_response(Peer& peer, RdResponse& response) noexcept {
    const ReadPin pin(pin_);
    KeyHit hit;
    if (!response.snapshot) {
        hit = lookup(response.access, Access::kRemoteRead);
        if (!hit.is_ok()) {
            answer(peer, response.operation, to_wc_status(hit.verdict), response.access.key);
            return true;
        }
    }
    do {
        const bool has_others = peer.responses.size() > 1;
        const std::size_t piece = bulk_piece(peer.path, response.done, response.total, has_others);
        std::byte* const run = peer.path.reserve_run(piece, 0);
        if (run == nullptr) {
            return false;
        }
        if (response.snapshot) {
            util::copy_bytes(run, response.snapshot.get() + response.done, piece);
        } else if (const Status copied = copy_from_region(hit, response.done, run, piece);
                   !copied.is_ok()) {
            answer(peer, response.operation, to_wc_status(copied), response.access.key);
            return true;
        }
        response.done += piece;
        const bool is_last = response.done == response.total;
        peer.path.put_run(response.op, is_last ? wire::kLast : 0, 0, response.operation, nullptr, 0,
                          piece);
    } while (response.done < response.total);
    report_access(peer, response.access, response.flags, 0, kWcRma | kWcRemoteRead);
    return true;
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_atomic(Peer& peer, const Arrival& arrival, bool is_inline) noexcept {
    RdAtomicHeader header;
    std::memcpy(&header, arrival.payload(), sizeof header);
    const RdAtomicKind what = RdAtomicKind::unpack(arrival.tag());
    const auto kind = static_cast<RdAtomic::Kind>(what.kind);
    if (!atomic_is_valid(kind, what.datatype, what.op) || what.count == 0 ||
        what.count > kMaxAtomicSize) {
        return false;
    }
    const bool is_read = kind == RdAtomic::Kind::kFetch && what.op == kAtomicOpRead;
    const std::size_t bytes = what.count * atomic_size(what.datatype);
    const std::size_t operands = (is_read ? 0u : 1u) + (kind == RdAtomic::Kind::kCompare ? 1u : 0u);
    const bool is_sized = is_inline
                              ? bytes <= sizeof header.operand && arrival.length() == sizeof header
                              : bytes <= kMaxAtomicSize && arrival.length() == bytes * operands;
    if (!is_sized) {
        return false;
    }
    const auto* const operand =
        is_inline ? reinterpret_cast<const std::byte*>(&header.operand) : arrival.run();
    const auto* const compare = is_inline ? reinterpret_cast<const std::byte*>(&header.compare)
                                          : arrival.run() + (is_read ? 0 : bytes);
    return execute_atomic(peer, header, what, bytes, operand, compare, arrival);
}

/// Of some of its elements, which lie behind one another.
inline void apply_atomic(const RdAtomicKind& what, std::byte* target, const std::byte* operand,
                         const std::byte* compare, std::byte* result, std::size_t count) noexcept {
    switch (static_cast<RdAtomic::Kind>(what.kind)) {
        case RdAtomic::Kind::kBase:
            atomic_apply(what.datatype, what.op, target, operand, count);
            break;
        case RdAtomic::Kind::kFetch:
            atomic_fetch(what.datatype, what.op, target, operand, result, count);
            break;
        case RdAtomic::Kind::kCompare:
            atomic_compare(what.datatype, what.op, target, operand, compare, result, count);
            break;
    }
}

template <class Lock, class Host>
bool RdEngine<Lock, Host>::execute_atomic(Peer& peer, const RdAtomicHeader& header,
                                          const RdAtomicKind& what, std::size_t bytes,
                                          const std::byte* operand, const std::byte* compare,
                                          const Arrival& arrival) noexcept {
    const auto kind = static_cast<RdAtomic::Kind>(what.kind);
    const bool is_base = kind == RdAtomic::Kind::kBase;
    const bool is_read = kind == RdAtomic::Kind::kFetch && what.op == kAtomicOpRead;
    const Access rights = is_read   ? Access::kRemoteRead
                          : is_base ? Access::kRemoteWrite
                                    : Access::kRemoteRead | Access::kRemoteWrite;
    const RdAccess access{.key = header.key,
                          .address = header.address,
                          .length = bytes,
                          .operation = header.operation};
    const std::uint8_t flags = note_segment(peer, header.operation, arrival.flags());
    const ReadPin pin(pin_);
    const KeyHit hit = lookup(access, rights);
    if (!hit.is_ok()) {
        answer(peer, header.operation, to_wc_status(hit.verdict), header.key);
        return true;
    }
    DeviceMemory* const device = device_of(hit);
    const CpuAccessScope scope(device, is_read ? CpuAccess::kRead : CpuAccess::kWrite);
    const util::Status loaded = device != nullptr && scope.status().is_ok()
                                    ? device->refresh(hit.offset, bytes)
                                    : scope.status();
    if (!loaded.is_ok()) {
        answer(peer, header.operation, to_wc_status(loaded), header.key);
        return true;
    }
    const std::size_t size = atomic_size(what.datatype);
    const auto is_there = [is_read](std::byte* part, std::size_t, std::size_t count) {
        return is_read ? util::can_read(part, count) : util::can_write(part, count);
    };
    if (!for_each_part(hit, bytes, size, is_there)) {
        answer(peer, header.operation, to_wc_status(Status(EFAULT)), header.key);
        return true;
    }
    std::byte result[kMaxAtomicSize];
    for_each_part(hit, bytes, size, [&](std::byte* part, std::size_t at, std::size_t count) {
        apply_atomic(what, part, operand + at, compare + at, result + at, count / size);
        return true;
    });
    const util::Status stored =
        device != nullptr && !is_read ? device->write_back(hit.offset, bytes) : util::kOk;
    if (!stored.is_ok()) {
        answer(peer, header.operation, to_wc_status(stored), header.key);
        return true;
    }
    // Whatever brings something back is a read, fi_endpoint(3); most of it writes as well.
    const std::uint64_t wc_flags =
        kWcAtomic | (is_base ? 0 : kWcRemoteRead) | (is_read ? 0 : kWcRemoteWrite);
    report_access(peer, access, flags, arrival.data(), wc_flags);
    if (is_base) {
        answer(peer, header.operation, WcStatus::kSuccess, header.key);
    } else {
        answer_atomic(peer, access, result, bytes);
    }
    return true;
}

template <class Lock, class Host>
void RdEngine<Lock, Host>::answer_atomic(Peer& peer, const RdAccess& access,
                                         const std::byte* result, std::size_t bytes) noexcept {
    if (bytes <= Path::kLinePayload && peer.responses.empty()) {
        reply(peer, RdOp::kAtomicAnswer, 0, access.operation, result, bytes);
        return;
    }
    RdResponse response{.op = RdOp::kAtomicResult,
                        .operation = access.operation,
                        .access = access,
                        .total = bytes,
                        .snapshot = nullptr};
    response.snapshot.reset(new (std::nothrow) std::byte[bytes]);
    if (!response.snapshot) {
        answer(peer, access.operation, WcStatus::kNoMemory, access.key);
        return;
    }
    util::copy_bytes(response.snapshot.get(), result, bytes);
    respond(peer, std::move(response));
}

/// The initiator has written or read by itself.
template <class Lock, class Host>
bool RdEngine<Lock, Host>::on_rma_event(Peer& peer, const Arrival& arrival) noexcept {
    RdAccess access;
    if (arrival.length() != sizeof access) {
        return false;
    }
    arrival.copy_payload(&access, sizeof access);
    const bool is_write = (arrival.flags() & wire::kEvent) != 0;
    const ReadPin pin(pin_);
    if (peer.path.is_remote() &&
        !lookup(access, is_write ? Access::kRemoteWrite : Access::kRemoteRead).is_ok()) {
        return true;  // closed meanwhile: nobody counts
    }
    const auto data_flag = static_cast<std::uint8_t>(arrival.flags() & wire::kHasData);
    const bool has_more = (arrival.flags() & wire::kMore) != 0;
    report_access(peer, access, has_more ? wire::kEvent : wire::kLast | data_flag, arrival.data(),
                  kWcRma | (is_write ? kWcRemoteWrite : kWcRemoteRead));
    return true;
}

}  // namespace rvt::core
