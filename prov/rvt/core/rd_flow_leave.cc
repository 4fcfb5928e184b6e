// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How the two ends of a flow agree to close it. docs/roce.md, section 5, has the rules.
//
// Only who asked closes. Until then it may take the question back, so that nobody waits who asked
// in vain; who has agreed waits for one or the other.
#include "core/rd_flow.h"
#include "core/rd_flows.h"

namespace rvt::core {

bool RdFlow::is_leaving() noexcept {
    const util::Guard guard(lock_);
    return leave_ != Leave::kNo;
}

/// Asks for the end of an idle flow. Returns: whether it is one. Threads: the owner.
bool RdFlow::ask_to_leave() noexcept {
    const util::Guard guard(lock_);
    reclaim_locked();
    ask_for_completion_locked();
    if (leave_ != Leave::kNo || !frame_.is_empty() || ring_.frames() != 0 || owes_stay_) {
        return false;
    }
    reserved_ = nullptr;
    if (!put_locked({.op = RdOp::kLeave, .data = questions_ + 1}, Room::kReply)) {
        return false;
    }
    ++questions_;
    leave_ = Leave::kAsked;
    return true;
}

/// The flow has ended. Returns: whether it was being left, so that nothing can be sent any more.
bool RdFlow::end_leaving() noexcept {
    const util::Guard guard(lock_);
    if (leave_ == Leave::kNo) {
        return false;
    }
    leave_ = Leave::kAgreed;
    agreed_ = 0;
    return true;
}

/// There is something to send after all. Returns: whether it may be sent.
bool RdFlow::take_back_locked() noexcept {
    if (leave_ == Leave::kAgreed) {
        flows_.expect_life();  // who has asked may be gone, and nothing under way would tell
        flows_.note_traffic();
        return false;
    }
    if (!put_locked({.op = RdOp::kStay, .data = questions_}, Room::kReply)) {
        return false;
    }
    leave_ = Leave::kNo;
    return true;
}

/// What makes a peer go on that has agreed to a question must reach it.
void RdFlow::tell_stay_locked() noexcept {
    if (owes_stay_ && reserved_ == nullptr) {
        owes_stay_ = !put_locked({.op = RdOp::kStay, .data = staying_}, Room::kReply);
    }
    if (owes_stay_) {
        note_open_locked();
    }
}

void RdFlow::take_word(const RdMessage& message) noexcept {
    switch (message.op) {
        case RdOp::kLeave: on_leave(message.data); break;
        case RdOp::kMayLeave: on_may_leave(message.data); break;
        default: on_stay(message.data, (message.flags & wire::kLast) != 0); break;
    }
}

void RdFlow::on_leave(std::uint64_t question) noexcept {
    const bool is_idle = flows_.taker().is_idle(user_peer_);
    const util::Guard guard(lock_);
    if (leave_ == Leave::kAgreed || (leave_ == Leave::kAsked && flows_.is_before(address_))) {
        return;  // the second: questions that cross, of which the peer answers ours
    }
    reclaim_locked();
    const bool agrees = is_idle && frame_.is_empty() && ring_.frames() == 0 && !owes_stay_;
    leave_ = Leave::kNo;
    // Without an answer, for want of room, the peer keeps asking; it may send all the same.
    const bool is_answered = put_locked({.op = agrees ? RdOp::kMayLeave : RdOp::kStay,
                                         .flags = agrees ? std::uint8_t{0} : wire::kLast,
                                         .data = question},
                                        Room::kReply);
    if (agrees && is_answered) {
        leave_ = Leave::kAgreed;
        agreed_ = question;
    } else if (nic_ != nullptr) {
        // Behind the answer: it has to complete, too, before this end can agree to the next one.
        reserved_ = nullptr;
        if (!frame_.is_empty()) {
            post_locked();
        }
        ask_for_completion_locked();
    }
}

void RdFlow::on_may_leave(std::uint64_t question) noexcept {
    const bool is_idle = flows_.taker().is_idle(user_peer_);
    bool closes = false;
    {
        const util::Guard guard(lock_);
        const bool is_asked = leave_ == Leave::kAsked && question == questions_;
        closes = is_asked && is_idle;
        leave_ = closes ? Leave::kAgreed : is_asked ? Leave::kNo : leave_;
        if (closes) {
            agreed_ = 0;
        } else {
            owes_stay_ = true;
            staying_ = question;
            tell_stay_locked();
        }
    }
    if (closes) {
        flows_.note_left(*this);
    }
}

void RdFlow::on_stay(std::uint64_t question, bool is_answer) noexcept {
    const util::Guard guard(lock_);
    const bool is_meant = is_answer ? leave_ == Leave::kAsked && question == questions_
                                    : leave_ == Leave::kAgreed && question == agreed_;
    leave_ = is_meant ? Leave::kNo : leave_;
}

}  // namespace rvt::core
