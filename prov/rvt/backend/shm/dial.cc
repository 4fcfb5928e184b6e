// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Attempts to reach a peer: when the next one comes, and when to give up.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/shm/switchboard.h"
#include "util/log.h"

namespace rvt::shm {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kFirstPause{1000};
constexpr microseconds kMaxPause{100000};

/// What the error of the last attempt amounts to when there is no more time for others.
util::Status final_error(util::Status why) noexcept {
    return why.error() == ECONNREFUSED || why.error() == ECONNRESET ? why : util::Status(ETIMEDOUT);
}

const char* explain(util::Status why, bool was_refused_by_peer) noexcept {
    switch (why.error()) {
        case ECONNREFUSED: return "nobody listens there";
        case ECONNRESET: return "the peer went away";
        case ETIMEDOUT: return "the peer does not answer";
        case EPROTO: return "the peer does not keep to the format of this version";
        case EACCES: return "the peer belongs to another user";
        case EPERM:
            return "the system does not permit it: maybe a security module keeps the two apart "
                   "(labels of SELinux, profiles of AppArmor)";
        case EMFILE:
            return was_refused_by_peer
                       ? "the peer has no descriptors left; raise its RLIMIT_NOFILE (ulimit -n)"
                       : "no descriptors left; raise RLIMIT_NOFILE (ulimit -n)";
        default: return strerrordesc_np(why.error());
    }
}

}  // namespace

Dial::Dial(util::ControlThread& thread, Switchboard& board, const util::SockAddr& peer)
    : Handler(thread), board_(board), peer_(peer), started_(Clock::now()), pause_(kFirstPause) {}

void Dial::attempt() {
    ++attempts_;
    handshake_ = std::make_unique<Handshake>(thread(), board_.local(), board_);
    const util::Status status =
        handshake_->dial(peer_, started_ + milliseconds(board_.attr().connect_timeout_ms));
    if (!status.is_ok()) {
        retry_after(status);  // *this may be gone
    }
}

void Dial::yield() {
    end_handshake();
    cancel_timer();
}

/// Time for which this process was stopped is none in which the peer could have been there.
void Dial::end_handshake() {
    started_ += handshake_ != nullptr ? handshake_->stopped() : Clock::duration{};
    handshake_.reset();
}

void Dial::on_timer() {
    started_ += stopped_for();
    attempt();
}

bool Dial::is_transient(util::Status why) const noexcept {
    switch (why.error()) {
        case ECONNREFUSED:  // it may be just starting
        case ECONNRESET:    // it went away, or gave up its side of a crossing
        case EALREADY:      // crossing: its own dial survives, and is on its way here
        case EAGAIN:        // its queue is full
        case ETOOMANYREFS: return true;
        default: return false;
    }
}

void Dial::retry_after(util::Status why) {
    const bool was_refused = handshake_ != nullptr && handshake_->was_refused_by_peer();
    end_handshake();
    if (!is_transient(why)) {
        return give_up(why, was_refused);
    }
    const milliseconds limit(
        why.error() == ECONNREFUSED
            ? std::min(board_.attr().refused_timeout_ms, board_.attr().connect_timeout_ms)
            : board_.attr().connect_timeout_ms);
    const Clock::time_point now = Clock::now();
    if (now >= started_ + limit) {
        return give_up(final_error(why), was_refused);
    }
    // Between half a pause and one and a half, so that many who wait for one peer do not come
    // together.
    std::uniform_int_distribution<microseconds::rep> jitter(pause_.count() / 2,
                                                            pause_.count() * 3 / 2);
    set_timer(
        std::min<Clock::time_point>(now + microseconds(jitter(board_.random())), started_ + limit));
    pause_ = std::min(pause_ * 2, kMaxPause);
}

void Dial::give_up(util::Status why, bool was_refused_by_peer) {
    if (why.error() == EUSERS) {
        RVT_INFO(kEpCtrl, "%s has as many connections as it may, and is reached another way",
                 peer_.to_string().c_str());
        return board_.dial_failed(peer_, why);  // *this is gone
    }
    RVT_WARN(kEpCtrl, "cannot connect to %s (unix socket %s): %s; tried %u times in %lld ms",
             peer_.to_string().c_str(), socket_name_text(peer_).c_str(),
             explain(why, was_refused_by_peer), attempts_,
             static_cast<long long>(duration_cast<milliseconds>(Clock::now() - started_).count()));
    board_.dial_failed(peer_, why);  // *this is gone
}

}  // namespace rvt::shm
