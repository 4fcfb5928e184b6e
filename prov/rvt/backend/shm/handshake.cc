// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The states of a handshake. Each returns the next one, or itself while the peer has not spoken.
#include "backend/shm/handshake.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/log.h"

namespace rvt::shm {
namespace {

constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

bool is_hung_up(int socket) noexcept {
    pollfd entry{.fd = socket, .events = POLLRDHUP, .revents = 0};
    return poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

bool Handshake::is_hung_up() const noexcept {
    return shm::is_hung_up(socket_.get());
}

bool Handshake::is_in_use(std::uint64_t mark) const noexcept {
    // acquire: pairs with the release in Station::unmark_use().
    return peering_ != nullptr &&
           is_marked(peering_->page.at<EndpointPage>(0)->using_key.load(std::memory_order_acquire),
                     mark);
}

util::ProcessFd Handshake::take_socket() noexcept {
    unwatch();
    return std::move(socket_);
}

// ---- beginnings ----

util::Status Handshake::dial(const util::SockAddr& address, Clock::time_point deadline) {
    peer_ = address;
    socket_ = util::ProcessFd(
        util::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    if (!socket_.is_open()) {
        return errno;
    }
    const SocketName name = socket_name(address);
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) !=
        0) {
        // EACCES, by which security modules refuse, is that of another user elsewhere.
        return errno == EACCES ? EPERM : errno;
    }
    util::Status status = check_user();
    if (status.is_ok()) {
        status = introduce();
    }
    return status.is_ok() ? begin(State::kAwaitReply, deadline) : status;
}

util::Status Handshake::answer(util::ProcessFd socket, Clock::time_point deadline) {
    socket_ = std::move(socket);
    const util::Status status = check_user();
    if (!status.is_ok()) {
        refuse(status);
        return status;
    }
    return begin(State::kAwaitHello, deadline);
}

util::Status Handshake::begin(State first, Clock::time_point deadline) {
    state_ = first;
    deadline_ = deadline;
    set_next_look();
    return watch(socket_.get(), EPOLLIN | EPOLLRDHUP);
}

util::Status Handshake::check_user() noexcept {
    const util::Result<PeerCredentials> credentials = peer_credentials(socket_.get());
    if (!credentials.is_ok()) {
        return credentials.status();
    }
    credentials_ = credentials.value();
    if (credentials_.uid == geteuid()) {
        return util::kOk;
    }
    RVT_WARN(kEpCtrl, "cannot connect with process %d: it belongs to user %u, this one to user %u",
             credentials_.pid, credentials_.uid, geteuid());
    return EACCES;
}

// ---- the driver ----

void Handshake::on_ready([[maybe_unused]] std::uint32_t events) {
    for (State next = step(state_); next != state_; next = step(state_)) {
        state_ = next;
    }
    if (state_ == State::kDone || state_ == State::kFailed) {
        cancel_timer();
        owner_.finished(*this);  // *this is gone
    }
}

void Handshake::on_timer() {
    const Clock::duration stopped = stopped_for();
    stopped_ += stopped;
    deadline_ += stopped;
    // Once, so that who runs for moments alone gives up at some time, too.
    if (stopped != Clock::duration{} && !std::exchange(had_moment_, true)) {
        deadline_ = std::max(deadline_, Clock::now() + kLookEvery);
    }
    if (Clock::now() >= deadline_) {
        state_ = refuse(ETIMEDOUT);
        owner_.finished(*this);  // *this is gone
        return;
    }
    set_next_look();
}

/// Looks often enough to see for how long this process was stopped: the peer may have been stopped
/// with it, and is not to pay for that.
void Handshake::set_next_look() {
    set_timer(std::min(deadline_, Clock::now() + kLookEvery));
}

Handshake::State Handshake::step(State state) {
    switch (state) {
        case State::kAwaitHello: return await_hello();
        case State::kAwaitReply: return await_reply();
        case State::kAwaitReady: return await_ready();
        case State::kDone: return State::kDone;
        case State::kFailed: return State::kFailed;
    }
    return State::kFailed;
}

// ---- states ----

Handshake::State Handshake::await_hello() {
    util::Result<Message> message = receive(MessageType::kHello);
    if (!message.is_ok()) {
        return message.error() == EAGAIN ? State::kAwaitHello : refuse(message.status());
    }
    const auto hello = message.value().as<Hello>();
    const util::Result<util::SockAddr> address = from_wire(hello.address);
    if (!address.is_ok()) {
        return refuse(address.status());
    }
    peer_ = address.value();
    incarnation_ = hello.incarnation;
    util::Status status = owner_.admit(*this);
    if (status.is_ok()) {
        status = map(message.value());
    }
    if (status.is_ok()) {
        status = introduce();
    }
    return status.is_ok() ? State::kAwaitReady : refuse(status);
}

Handshake::State Handshake::await_reply() {
    util::Result<Message> message = receive(MessageType::kHello);
    if (!message.is_ok()) {
        return message.error() == EAGAIN ? State::kAwaitReply : refuse(message.status());
    }
    const auto hello = message.value().as<Hello>();
    const util::Result<util::SockAddr> address = from_wire(hello.address);
    if (!address.is_ok() || address.value() != peer_) {
        return refuse(EPROTO);
    }
    incarnation_ = hello.incarnation;
    util::Status status = map(message.value());
    if (status.is_ok()) {
        status = send_message(socket_.get(), MessageHeader{.type = MessageType::kReady});
    }
    return status.is_ok() ? State::kDone : refuse(status);
}

Handshake::State Handshake::await_ready() {
    const util::Result<Message> message = receive(MessageType::kReady);
    if (message.is_ok()) {
        return State::kDone;
    }
    return message.error() == EAGAIN ? State::kAwaitReady : refuse(message.status());
}

Handshake::State Handshake::refuse(util::Status why) noexcept {
    if (!was_refused_by_peer_ && why.error() != ECONNRESET) {
        // A peer that cannot be told sees the socket close.
        [[maybe_unused]] const util::Status ignored = send_message(
            socket_.get(), MessageHeader{.type = MessageType::kRefuse, .error = why.error()});
    }
    return fail(why);
}

Handshake::State Handshake::fail(util::Status why) noexcept {
    status_ = why;
    return State::kFailed;
}

// ---- parts ----

util::Result<Message> Handshake::receive(MessageType wanted) {
    util::Result<Message> message = receive_message(socket_.get());
    if (!message.is_ok() || message.value().header.type == wanted) {
        return message;
    }
    if (message.value().header.type != MessageType::kRefuse) {
        return EPROTO;
    }
    was_refused_by_peer_ = true;
    const int error = message.value().header.error;
    return error > 0 && error <= kMaxErrno && error != EAGAIN ? error : EPROTO;
}

/// Says who we are, with a new outbox.
util::Status Handshake::introduce() {
    util::Result<util::Mapping> outbox = make_outbox();
    if (!outbox.is_ok()) {
        return outbox.status();
    }
    const util::Status status = send_hello(socket_.get(), local_, outbox.value());
    if (!status.is_ok()) {
        return status;
    }
    outbox.value().close_file();
    outbox_ = outbox.take();
    if (peering_ != nullptr) {
        peering_->outbox = std::move(outbox_);
    }
    return status;
}

util::Status Handshake::map(Message& message) {
    util::Result<std::unique_ptr<Peering>> peering = map_peer(message, credentials_);
    if (!peering.is_ok()) {
        return peering.status();
    }
    peering_ = peering.take();
    peering_->outbox = std::move(outbox_);
    return util::kOk;
}

}  // namespace rvt::shm
