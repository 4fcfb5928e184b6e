// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Posting, taking back and matching tags.
#include "core/tag_matcher.h"

#include <algorithm>

namespace rvt::core {
namespace {

constexpr WcOpcode wc_opcode(TmOpcode opcode) noexcept {
    switch (opcode) {
        case TmOpcode::kAdd: return WcOpcode::kTmAdd;
        case TmOpcode::kDel: return WcOpcode::kTmDel;
        case TmOpcode::kSync: return WcOpcode::kTmSync;
    }
    return WcOpcode::kTmSync;
}

/// Whether the operation says how many messages have been handled.
constexpr bool reports(const TmOp& op) noexcept {
    return op.opcode == TmOpcode::kSync || has_any(op.flags, TmFlags::kSync);
}

}  // namespace

TagMatcher::TagMatcher(VerbsCq& cq, std::uint32_t max_tags, std::uint32_t max_sge)
    : cq_(cq), max_sge_(max_sge), tags_(max_tags), sges_(std::size_t{max_tags} * max_sge) {
    free_.reserve(max_tags);
    waiting_.reserve(max_tags);
    for (std::uint32_t i = max_tags; i-- > 0;) {
        free_.push_back(i);
    }
}

Status TagMatcher::check(const TmOp& op) const noexcept {
    const bool is_known =
        op.opcode != TmOpcode::kDel || (op.handle & ((1u << kIndexBits) - 1)) < tags_.size();
    const bool is_ahead =
        reports(op) && static_cast<std::int32_t>(op.unexpected_count - unexpected_) > 0;
    if (op.opcode > TmOpcode::kSync || !is_known || is_ahead ||
        (op.opcode == TmOpcode::kAdd && op.sg_list.size() > max_sge_)) {
        return EINVAL;
    }
    return op.opcode == TmOpcode::kAdd && free_.empty() ? Status(ENOMEM) : kOk;
}

Status TagMatcher::execute(TmOp& op) noexcept {
    const util::Guard guard(lock_);
    if (Status status = check(op); !status.is_ok()) {
        return status;
    }
    if (reports(op)) {
        handled_ = op.unexpected_count;
        post_waiting();
    }
    WcStatus outcome = WcStatus::kSuccess;
    if (op.opcode == TmOpcode::kAdd) {
        if (Status status = add(op); !status.is_ok()) {
            return status;
        }
    } else if (op.opcode == TmOpcode::kDel) {
        outcome = remove(op.handle);
    }
    if (outcome != WcStatus::kSuccess || has_any(op.flags, TmFlags::kSignaled)) {
        // One that finds no room fails the queue, which says so itself.
        [[maybe_unused]] const bool has_room =
            cq_.push({.wr_id = op.wr_id,
                      .status = outcome,
                      .opcode = wc_opcode(op.opcode),
                      .flags = is_in_step() ? WcFlags::kNone : WcFlags::kTmSyncReq});
    }
    return kOk;
}

Status TagMatcher::add(TmOp& op) noexcept {
    const std::uint32_t index = free_.back();
    Tag& tag = tags_[index];
    tag.wr_id = op.recv_wr_id;
    tag.tag = op.tag;
    tag.ignore = ~op.mask;
    tag.sge_count = static_cast<std::uint32_t>(op.sg_list.size());
    // Behind those that wait already.
    const bool waits = !is_in_step() || !waiting_.empty();
    if (!waits) {
        if (Status status = posted_.push(tag.tag, tag.ignore, kAnySourceId, &tag);
            !status.is_ok()) {
            return status;
        }
    }
    free_.pop_back();
    std::copy(op.sg_list.begin(), op.sg_list.end(),
              sges_.begin() + static_cast<std::ptrdiff_t>(std::size_t{index} * max_sge_));
    tag.state = waits ? Tag::State::kWaiting : Tag::State::kPosted;
    if (waits) {
        waiting_.push_back(index);
    }
    op.handle = index | (std::uint32_t{tag.generation} << kIndexBits);
    return kOk;
}

/// The counts agree: tags that waited take messages from now on.
void TagMatcher::post_waiting() noexcept {
    std::size_t posted = 0;
    while (is_in_step() && posted < waiting_.size()) {
        Tag& tag = tags_[waiting_[posted]];
        if (!posted_.push(tag.tag, tag.ignore, kAnySourceId, &tag).is_ok()) {
            break;  // no memory for a longer index: they wait for the next report
        }
        tag.state = Tag::State::kPosted;
        ++posted;
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(posted));
}

/// Returns: kTmErr when a message has taken the tag before.
WcStatus TagMatcher::remove(std::uint32_t handle) noexcept {
    const std::uint32_t index = handle & ((1u << kIndexBits) - 1);
    Tag& tag = tags_[index];
    if (tag.state == Tag::State::kFree || tag.generation != handle >> kIndexBits) {
        return WcStatus::kTmErr;
    }
    if (tag.state == Tag::State::kPosted) {
        posted_.remove(&tag);
    } else {
        std::erase(waiting_, index);
    }
    release(tag);
    return WcStatus::kSuccess;
}

void TagMatcher::release(Tag& tag) noexcept {
    tag.state = Tag::State::kFree;
    ++tag.generation;
    free_.push_back(index_of(tag));
}

bool TagMatcher::match(std::uint64_t tag, Receive& to) noexcept {
    const util::Guard guard(lock_);
    Tag* const found = posted_.match(tag, 0);
    if (found == nullptr) {
        return false;
    }
    to.wr_id = found->wr_id;
    to.use = nullptr;
    to.sge_count = found->sge_count;
    to.bytes = 0;
    for (std::uint32_t i = 0; i < found->sge_count; ++i) {
        to.sge[i] = sges_[std::size_t{index_of(*found)} * max_sge_ + i];
        to.bytes += to.sge[i].length;
    }
    release(*found);
    return true;
}

void TagMatcher::count_unexpected() noexcept {
    const util::Guard guard(lock_);
    ++unexpected_;
}

void TagMatcher::discount_unexpected() noexcept {
    const util::Guard guard(lock_);
    --unexpected_;
}

}  // namespace rvt::core
