// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The records and the ways to find them.
#include "core/cm_records.h"

#include <algorithm>
#include <cstring>

namespace rvt::core {

CmRecords::CmRecords(std::uint32_t limit, CmSecret& secret) noexcept
    : secret_(secret), pool_(limit), remote_numbers_(0, KeyHash{&secret}) {}

// ---- life ----

std::uint32_t CmRecords::unused_id() noexcept {
    for (;;) {
        const auto id = static_cast<std::uint32_t>(secret_.next());
        if (id != 0 && !local_ids_.contains(id)) {
            return id;
        }
    }
}

CmRecord* CmRecords::create(CmState state) {
    CmRecord* record = pool_.take();
    if (record == nullptr) {
        return nullptr;
    }
    // What the pool keeps in it stays.
    const util::Pooled pooled = *record;
    *record = CmRecord();
    static_cast<util::Pooled&>(*record) = pooled;
    record->state = state;
    record->is_open = true;
    record->local_id = unused_id();
    local_ids_.emplace(record->local_id, record);
    ++count_;
    ++open_count_;
    ++counts_[static_cast<std::size_t>(state)];
    return record;
}

void CmRecords::destroy(CmRecord& record) noexcept {
    close(record);
    disarm(record);
    for (const CmNumber kind : {CmNumber::kCommId, CmNumber::kQpn, CmNumber::kSidrId}) {
        remove_remote(record, kind);
    }
    local_ids_.erase(record.local_id);
    --counts_[static_cast<std::size_t>(record.state)];
    --count_;
    pool_.give_back(&record);
}

void CmRecords::set_state(CmRecord& record, CmState state) noexcept {
    --counts_[static_cast<std::size_t>(record.state)];
    ++counts_[static_cast<std::size_t>(state)];
    record.state = state;
}

void CmRecords::close(CmRecord& record) noexcept {
    open_count_ -= record.is_open ? 1 : 0;
    record.is_open = false;
}

// ---- finding ----

CmRecord* CmRecords::find(CmHandle handle) noexcept {
    CmRecord* record = pool_.find(static_cast<std::uint64_t>(handle));
    return record != nullptr && record->is_open ? record : nullptr;
}

CmRecord* CmRecords::find_local(std::uint32_t local_id, const Address& peer) noexcept {
    const auto at = local_ids_.find(local_id);
    return at != local_ids_.end() && at->second->peer.dest == peer ? at->second : nullptr;
}

CmRecord* CmRecords::find_remote(CmNumber kind, std::uint32_t number,
                                 const Address& peer) noexcept {
    const auto at = remote_numbers_.find({.kind = kind, .number = number, .peer = peer});
    return at != remote_numbers_.end() ? at->second : nullptr;
}

CmRecord* CmRecords::find_in(CmState state, const Address& peer) noexcept {
    const auto at = std::ranges::find_if(local_ids_, [&](const auto& known) {
        return known.second->state == state && known.second->peer.dest == peer;
    });
    return at != local_ids_.end() ? at->second : nullptr;
}

CmRecords::Key CmRecords::key_of(const CmRecord& record, CmNumber kind) noexcept {
    return {.kind = kind,
            .number = kind == CmNumber::kQpn ? record.remote_qpn : record.remote_id,
            .peer = record.peer.dest};
}

void CmRecords::add_remote(CmRecord& record, CmNumber kind) {
    remote_numbers_.insert_or_assign(key_of(record, kind), &record);
}

void CmRecords::remove_remote(CmRecord& record, CmNumber kind) noexcept {
    const auto at = remote_numbers_.find(key_of(record, kind));
    if (at != remote_numbers_.end() && at->second == &record) {
        remote_numbers_.erase(at);
    }
}

/// Peers choose what is hashed here, but do not know the secret: they cannot make all of it land in
/// one place.
std::size_t CmRecords::KeyHash::operator()(const Key& key) const noexcept {
    std::uint64_t gid[2];
    static_assert(sizeof gid == sizeof key.peer.gid);
    std::memcpy(gid, key.peer.gid.data(), sizeof gid);
    const std::uint64_t rest = std::uint64_t{key.number} << 32 | std::uint64_t{key.peer.port} << 8 |
                               static_cast<std::uint64_t>(key.kind);
    return secret->hash({gid[0], gid[1], rest});
}

// ---- time ----

void CmRecords::arm(CmRecord& record, std::uint64_t due_us) {
    disarm(record);
    record.due_us = due_us;
    timers_.insert(&record);
}

void CmRecords::disarm(CmRecord& record) noexcept {
    if (record.due_us != 0) {
        timers_.erase(&record);
        record.due_us = 0;
    }
}

CmRecord* CmRecords::take_due(std::uint64_t now_us) noexcept {
    if (timers_.empty() || (*timers_.begin())->due_us > now_us) {
        return nullptr;
    }
    CmRecord* record = *timers_.begin();
    disarm(*record);
    return record;
}

std::optional<std::uint64_t> CmRecords::next_due_us() const noexcept {
    if (timers_.empty()) {
        return std::nullopt;
    }
    return (*timers_.begin())->due_us;
}

}  // namespace rvt::core
