// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Registration and deregistration of regions and windows.
#include "core/mr.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "core/device.h"
#include "util/fault_guard.h"
#include "util/log.h"

namespace rvt::core {
namespace {

constexpr Access kWindowAccess = Access::kRemoteRead | Access::kRemoteWrite | Access::kRemoteAtomic;
constexpr Access kNeedsLocalWrite = Access::kRemoteWrite | Access::kRemoteAtomic;

std::uint64_t address_of(const void* p) noexcept {
    return reinterpret_cast<std::uint64_t>(p);
}

bool is_valid(const MrAttr& attr) noexcept {
    const bool writes = has_any(attr.access, kNeedsLocalWrite);
    return !attr.segments.empty() && (!writes || has_any(attr.access, Access::kLocalWrite)) &&
           (attr.mapping == 0 || (attr.segments.size() == 1 && attr.device == nullptr));
}

/// Total length, or nothing when a segment or the sum passes the end of the address space.
std::optional<std::uint64_t> total_length(std::span<const iovec> segments) noexcept {
    std::uint64_t total = 0;
    for (const iovec& segment : segments) {
        const std::uint64_t base = address_of(segment.iov_base);
        const bool wraps = segment.iov_len != 0 && base + (segment.iov_len - 1) < base;
        if (wraps || total + segment.iov_len < total) {
            return std::nullopt;
        }
        total += segment.iov_len;
    }
    return total;
}

/// Peers that reach memory by themselves, by the backend's knowledge.
PeerMarks marks_of(Device& device) noexcept {
    return {.are_gone =
                [](void* context, std::uint32_t key) noexcept {
                    auto& on = *static_cast<Device*>(context);
                    return !on.ops().is_key_used(on, key);
                },
            .context = &device};
}

/// Keys of a verb-grade device are its own.
bool has_table(const Device& device) noexcept {
    return device.grade() != Grade::kVerb;
}

/// What the table holds of a region.
KeyAttr key_attr_of(const Mr::State& state) noexcept {
    const RegionMemory& memory = *state.memory;
    const bool indirect = memory.segments.size() > 1 || memory.device != nullptr;
    return {.addr = address_of(indirect ? &memory : memory.segments.front().iov_base),
            .length = state.length,
            .iova = state.iova,
            .access = state.access,
            .pd = state.pd->id(),
            .mapping = state.mapping,
            .mapping_offset = state.mapping_offset,
            .indirect = indirect};
}

Status add_key(Mr& mr, std::optional<std::uint64_t> user_key) {
    KeyTable& keys = mr.pd().keys();
    const KeyAttr entry = key_attr_of(mr.state());
    const auto key = user_key ? keys.add_user(entry, *user_key) : keys.add(entry);
    if (key.is_ok()) {
        mr.set_keys(key.value(), key.value());
    }
    return key.status();
}

Result<Mr::State> to_state(Pd& pd, const MrAttr& attr) {
    const std::optional<std::uint64_t> length = total_length(attr.segments);
    if (!is_valid(attr) || !length) {
        return EINVAL;
    }
    if (has_any(attr.access, Access::kFlushPersistent)) {
        return EOPNOTSUPP;
    }
    auto memory = std::make_unique<RegionMemory>(RegionMemory{
        .segments = {attr.segments.begin(), attr.segments.end()}, .device = attr.device});
    memory->index();
    return Mr::State{.pd = &pd,
                     .memory = std::move(memory),
                     .length = *length,
                     .iova = attr.iova.value_or(address_of(attr.segments.front().iov_base)),
                     .access = attr.access,
                     .mapping = attr.mapping,
                     .mapping_offset = attr.mapping_offset};
}

// ---- re-registration ----

/// What the region is, but for what is to change.
MrAttr merged(const Mr& mr, const MrRereg& to) noexcept {
    MrAttr attr = to.attr;
    if (!has_any(to.changes, MrChange::kTranslation)) {
        const Mr::State& state = mr.state();
        attr.segments = state.memory->segments;
        attr.iova = state.iova;
        attr.mapping = state.mapping;
        attr.mapping_offset = state.mapping_offset;
        attr.device = state.memory->device;
    }
    if (!has_any(to.changes, MrChange::kAccess)) {
        attr.access = mr.access();
    }
    return attr;
}

/// Of a region that is changed, or of which nobody will ask again.
void log_kept(const Mr& mr, Status why) noexcept {
    RVT_WARN(kMr, "NIC %s keeps %llu bytes registered that were to be no more: %s",
             mr.pd().device().name().c_str(), static_cast<unsigned long long>(mr.length()),
             strerrordesc_np(why.error()));
}

/// What the backend has of a region.
struct InBackend {
    void* priv;
    std::uint32_t lkey;
    std::uint32_t rkey;

    static InBackend of(const Mr& mr) noexcept { return {mr.priv(), mr.lkey(), mr.rkey()}; }
    void give_to(Mr& mr) const noexcept {
        mr.set_priv(priv);
        mr.set_keys(lkey, rkey);
    }
};

/// Ends the one of two registrations that the region is not to be any more.
/// @param is_lost  What it was can be nothing else but ended.
/// Returns: errors of the backend: peers could still reach what it was, so that it stays that.
Status end_former(Mr& mr, const InBackend& former, bool is_lost) {
    const BackendOps& ops = mr.pd().device().ops();
    const InBackend made = InBackend::of(mr);
    former.give_to(mr);
    const Status ended = ops.dereg_mr(mr);
    if (ended.is_ok() || is_lost) {
        made.give_to(mr);
        if (!ended.is_ok()) {
            log_kept(mr, ended);
        }
        return kOk;
    }
    made.give_to(mr);
    if (const Status undone = ops.dereg_mr(mr); !undone.is_ok()) {
        log_kept(mr, undone);
    }
    former.give_to(mr);
    return ended;
}

/// Has the backend do it, or registers once more. The region is what it is to be.
/// Returns: ENOTRECOVERABLE when the backend has lost what it was.
Status change_in_backend(Mr& mr, MrChange changes) {
    const BackendOps& ops = mr.pd().device().ops();
    const Status changed = ops.rereg_mr(mr, changes);
    if (changed != Status(EOPNOTSUPP) && changed != Status(ENOTRECOVERABLE)) {
        return changed;
    }
    const bool is_lost = changed == Status(ENOTRECOVERABLE);
    const InBackend former = InBackend::of(mr);
    if (Status made = ops.reg_mr(mr); !made.is_ok()) {
        return is_lost ? changed : made;
    }
    return end_former(mr, former, is_lost);
}

}  // namespace

Result<Mr*> reg_mr(Pd& pd, const MrAttr& attr) {
    util::catch_faults();
    auto state = to_state(pd, attr);
    if (!state.is_ok()) {
        return state.status();
    }
    auto mr = std::make_unique<Mr>(state.take());
    Device& device = pd.device();
    if (Status status = has_table(device) ? add_key(*mr, attr.user_key) : kOk; !status.is_ok()) {
        return status;
    }
    if (Status status = device.ops().reg_mr(*mr); !status.is_ok()) {
        if (has_table(device)) {
            // Nobody has been told the key: nobody uses it.
            [[maybe_unused]] const Status removed = pd.keys().remove(mr->lkey(), -1);
        }
        return status;
    }
    return mr.release();
}

Status rereg_mr(Mr& mr, const MrRereg& to, int timeout_ms) {
    const bool moves = has_any(to.changes, MrChange::kPd);
    if (to.changes == MrChange::kNone ||
        (moves && (to.pd == nullptr || &to.pd->context() != &mr.pd().context()))) {
        return EINVAL;
    }
    auto state = to_state(moves ? *to.pd : mr.pd(), merged(mr, to));
    if (!state.is_ok()) {
        return state.status();
    }
    if (Status status = mr.is_unused(); !status.is_ok()) {
        return status;
    }
    Device& device = mr.pd().device();
    KeyTable& keys = mr.pd().keys();
    const auto put = [&](const Mr::State& as, int wait_ms) {
        return has_table(device)
                   ? keys.replace(mr.lkey(), key_attr_of(as), wait_ms, marks_of(device))
                   : kOk;
    };
    Mr::State wanted = state.take();
    if (Status status = put(wanted, timeout_ms); !status.is_ok()) {
        return status;
    }
    Mr::State before = mr.become(std::move(wanted));
    const Status changed = change_in_backend(mr, to.changes);
    if (!changed.is_ok()) {
        // What it would have become stays until nobody uses that, for as long as it takes.
        [[maybe_unused]] const Status undone = put(before, -1);
        [[maybe_unused]] const Mr::State given_up = mr.become(std::move(before));
    }
    return changed;
}

Status advise_mr(Mr& mr, MrAdvice advice, std::uint64_t offset, std::uint64_t bytes) {
    if (offset > mr.length() || bytes > mr.length() - offset) {
        return EINVAL;
    }
    return bytes != 0 ? mr.pd().device().ops().advise_mr(mr, advice, offset, bytes) : kOk;
}

/// Has the kernel bring in the pages, which is all that the CPU needs. One that cannot (before
/// Linux 5.14) does so when they are touched.
Status prefetch(const RegionMemory& memory, MrAdvice advice, std::uint64_t offset,
                std::uint64_t bytes) noexcept {
    if (advice == MrAdvice::kPrefetchNoFault || memory.device != nullptr) {
        return kOk;
    }
    const int how = advice == MrAdvice::kPrefetchWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (const iovec& segment : memory.from(offset)) {
        if (offset >= segment.iov_len) {
            offset -= segment.iov_len;
            continue;
        }
        const std::uint64_t part = std::min(bytes, segment.iov_len - offset);
        const auto begin = reinterpret_cast<std::uintptr_t>(segment.iov_base) + offset;
        const std::uintptr_t first = begin & -page;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): an address within the segment
        if (madvise(reinterpret_cast<void*>(first), begin + part - first, how) != 0 &&
            errno != EINVAL) {
            return EFAULT;
        }
        offset = 0;
        bytes -= part;
        if (bytes == 0) {
            break;
        }
    }
    return kOk;
}

Status dereg_mr(Mr* mr, int timeout_ms) {
    if (Status status = mr->is_unused(); !status.is_ok()) {
        return status;
    }
    Device& device = mr->pd().device();
    const Status status =
        has_table(device) ? mr->pd().keys().remove(mr->lkey(), timeout_ms, marks_of(device)) : kOk;
    // An invalidated key is still this region's; only windows, and users that have not let go, hold
    // it back.
    if (status.error() == EBUSY) {
        return status;
    }
    if (Status ended = device.ops().dereg_mr(*mr); !ended.is_ok()) {
        return ended;
    }
    delete mr;
    return kOk;
}

void end_mr(Mr* mr) noexcept {
    const Status ended = dereg_mr(mr);
    if (ended.is_ok()) {
        return;
    }
    assert(!has_table(mr->pd().device()));
    log_kept(*mr, ended);
    delete mr;  // which no NIC knows
}

// ---- windows ----

Result<Mw*> alloc_mw(Pd& pd) {
    if (!has_table(pd.device())) {
        return EOPNOTSUPP;
    }
    const auto key = pd.keys().add({.pd = pd.id(), .is_window = true});
    if (!key.is_ok()) {
        return key.status();
    }
    return new Mw(pd, key.value());
}

Status dealloc_mw(Mw* mw, std::uint32_t key) {
    if (((key ^ mw->key_) & ~0xffu) != 0) {
        return EINVAL;
    }
    Device& device = mw->pd().device();
    const Status status = mw->pd().keys().remove(key, kDeregTimeoutMs, marks_of(device));
    if (!status.is_ok()) {
        return status.error() == ENOENT ? Status(EINVAL) : status;
    }
    delete mw;
    return kOk;
}

WcStatus bind_mw(KeyTable& keys, std::uint32_t pd, const BindMw& bind) noexcept {
    const bool same_window = ((bind.mw_key ^ bind.new_key) & ~0xffu) == 0;
    if (!same_window || without(bind.access, kWindowAccess | Access::kZeroBased) != Access::kNone) {
        return WcStatus::kMwBindErr;
    }
    const bool writes = has_any(bind.access, kNeedsLocalWrite);
    const KeyHit hit = keys.view().lookup(
        {.key = bind.lkey,
         .pd = pd,
         .addr = bind.addr,
         .length = bind.length,
         .access = Access::kMwBind | (writes ? Access::kLocalWrite : Access::kNone)});
    if (!hit.is_ok() || hit.indirect) {
        return WcStatus::kMwBindErr;
    }
    const KeyAttr window{.addr = bind.length == 0 ? 0 : hit.base + hit.offset,
                         .length = bind.length,
                         .iova = bind.addr,
                         .access = bind.access,
                         .pd = pd,
                         .mapping = hit.mapping,
                         .mapping_offset = hit.mapping_offset,
                         .is_window = true,
                         .consumer = static_cast<std::uint8_t>(bind.new_key)};
    return keys.bind_window(bind.mw_key, window, bind.lkey).is_ok() ? WcStatus::kSuccess
                                                                    : WcStatus::kMwBindErr;
}

}  // namespace rvt::core
