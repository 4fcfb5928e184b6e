// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Accepting, crossing, establishing and ending of connections.
#include "backend/shm/switchboard.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "backend/shm/presence.h"
#include "util/log.h"

namespace rvt::shm {
namespace {

using std::chrono::milliseconds;

constexpr int kBacklog = 4096;
constexpr int kMaxAcceptsAtOnce = 64;
constexpr milliseconds kAcceptPause{100};  // when there are no descriptors at all

/// The order that decides which of two crossing connects survives; the same on both sides.
bool is_lower(const util::SockAddr& left, const util::SockAddr& right) noexcept {
    return std::tie(left.family, left.ip, left.port, left.scope_id) <
           std::tie(right.family, right.ip, right.port, right.scope_id);
}

util::UniqueFd copy_fd(int fd) noexcept {
    return util::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

util::Status refuse_to_listen(const util::SockAddr& address, int error) {
    RVT_WARN(kEpCtrl, "cannot listen at %s: %s%s", socket_name_text(address).c_str(),
             strerrordesc_np(error),
             error == EADDRINUSE ? "; another process of this network namespace has that name"
             : error == EMFILE   ? "; raise RLIMIT_NOFILE (ulimit -n)"
                                 : "");
    return error;
}

}  // namespace

// ---- life ----

util::Result<std::unique_ptr<Switchboard>> Switchboard::open(util::ControlThread& thread,
                                                             const ListenAttr& attr) {
    const util::ForkHold hold;
    std::unique_ptr<Switchboard> board(new Switchboard(thread, attr));
    const util::Status status = board->listen();
    if (!status.is_ok()) {
        return refuse_to_listen(attr.address, status.error());
    }
    return board;
}

Switchboard::Switchboard(util::ControlThread& thread, const ListenAttr& attr)
    : Handler(thread),
      attr_(attr),
      wake_fd_(copy_fd(attr.wake_fd)),
      random_(
          static_cast<std::minstd_rand::result_type>(attr.page->at<EndpointPage>(0)->incarnation)),
      ticker_(thread, *attr.user, attr.has_auto_progress),
      processes_(thread, *this) {
    local_ = {.address = attr.address,
              .page = attr.page,
              .keys = attr.keys,
              .wake_fd = wake_fd_.get(),
              .cpu = sched_getcpu()};
}

Switchboard::~Switchboard() {
    unwatch();
}

util::Status Switchboard::listen() {
    spare_ = copy_fd(attr_.wake_fd);
    listener_ = util::ProcessFd(
        util::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    if (!wake_fd_.is_open() || !spare_.is_open() || !listener_.is_open()) {
        return errno;
    }
    const SocketName name = socket_name(attr_.address);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
        ::listen(listener_.get(), kBacklog) != 0) {
        return errno;
    }
    return util::kOk;
}

util::Status Switchboard::start() {
    ticker_.start(wake_fd_.get());
    return watch(listener_.get(), EPOLLIN);
}

// ---- what the endpoint asks ----

void Switchboard::connect(const util::SockAddr& address) {
    Peer& peer = peers_[address];
    if (peer.link != nullptr && peer.link->is_hung_up()) {
        drop_link(peer, ECONNRESET);
    }
    if (peer.link != nullptr) {
        ticker_.note_connected();  // of which the application has not read yet
        return;
    }
    if (peer.dial != nullptr) {
        return;
    }
    if (address == attr_.address) {
        return connect_self(peer);
    }
    peer.dial = std::make_unique<Dial>(thread(), *this, address);
    if (peer.answer == nullptr) {
        peer.dial->attempt();
    }
}

void Switchboard::look_for(const util::SockAddr& address) {
    if (peers_.contains(address) || is_served(address)) {
        connect(address);
    } else {
        dial_failed(address, ECONNREFUSED);
    }
}

void Switchboard::connect_self(Peer& peer) {
    util::Result<std::unique_ptr<Peering>> peering = map_self(local_);
    if (!peering.is_ok()) {
        return dial_failed(attr_.address, peering.status());
    }
    establish(peer, peering.take(), util::ProcessFd{});
}

Link* Switchboard::find_link(std::uint64_t id) {
    const util::Guard guard(sockets_lock_);
    const auto found = sockets_.find(id);
    return found != sockets_.end() ? peers_[found->second.peer].link.get() : nullptr;
}

void Switchboard::close(std::uint64_t link) {
    if (const Link* const found = find_link(link); found != nullptr) {
        const util::SockAddr address = found->peer();
        end_link(peers_[address]);
        forget_if_idle(address);
    }
}

void Switchboard::request_region(std::uint64_t link, std::uint64_t key) {
    Link* const found = find_link(link);
    if (found == nullptr) {
        return;  // its end has been told
    }
    const util::Status status = found->ask_region(key);
    if (!status.is_ok()) {
        region_answered(*found, key, status);
    }
}

void Switchboard::wake_peer(std::uint64_t link) noexcept {
    const util::Guard guard(sockets_lock_);
    const auto found = sockets_.find(link);
    if (found != sockets_.end() && found->second.fd >= 0) {
        // EAGAIN: earlier wishes wait there unread, so nothing is lost.
        [[maybe_unused]] const util::Status ignored =
            send_message(found->second.fd, MessageHeader{.type = MessageType::kWake});
    }
}

bool Switchboard::is_in_use(std::uint64_t mark) const noexcept {
    const auto is_answer = [mark](const auto& each) { return each.second->is_in_use(mark); };
    const auto is_dialled = [mark](const auto& each) {
        const Dial* const dial = each.second.dial.get();
        return dial != nullptr && dial->is_under_way() && dial->handshake()->is_in_use(mark);
    };
    return std::any_of(answers_.begin(), answers_.end(), is_answer) ||
           std::any_of(peers_.begin(), peers_.end(), is_dialled);
}

/// A wish that the page has not invited would be in vain for ever.
void Switchboard::link_woken() {
    const EndpointPage& page = *attr_.page->at<EndpointPage>(0);
    if (page.control_may_enter != 0) {
        ticker_.kick(is_polling(page));
    }
}

// ---- the listening socket ----

void Switchboard::on_ready([[maybe_unused]] std::uint32_t events) {
    for (int left = kMaxAcceptsAtOnce; left > 0 && accept_one(); --left) {
    }
}

void Switchboard::on_timer() {
    if (const util::Status status = watch(listener_.get(), EPOLLIN); !status.is_ok()) {
        set_timer(Clock::now() + kAcceptPause);
    }
}

bool Switchboard::accept_one() {
    util::ProcessFd socket(
        util::UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!socket.is_open()) {
        switch (errno) {
            case EAGAIN: return false;
            case EINTR:
            case ECONNABORTED: return true;
            default: turn_away(errno); return false;
        }
    }
    auto handshake = std::make_unique<Handshake>(thread(), local_, *this);
    const util::Status status =
        handshake->answer(std::move(socket), Clock::now() + milliseconds(attr_.connect_timeout_ms));
    if (status.is_ok()) {
        Handshake* const key = handshake.get();
        answers_[key] = std::move(handshake);
    }
    return true;
}

/// No descriptor is left for a peer: the spare one serves to tell it so.
void Switchboard::turn_away(int error) {
    RVT_WARN(kEpCtrl, "cannot accept a connection: %s%s", strerrordesc_np(error),
             error == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "");
    spare_.reset();
    {
        const util::UniqueFd socket(
            accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.is_open()) {
            [[maybe_unused]] const util::Status ignored = send_message(
                socket.get(), MessageHeader{.type = MessageType::kRefuse, .error = error});
        } else if (errno != EAGAIN) {
            unwatch();
            set_timer(Clock::now() + kAcceptPause);
        }
    }
    spare_ = copy_fd(wake_fd_.get());
}

// ---- handshakes ----

util::Status Switchboard::admit(Handshake& handshake) {
    if (handshake.peer() == attr_.address) {
        return EPROTO;
    }
    Peer& peer = peers_[handshake.peer()];
    if (peer.link != nullptr) {
        if (peer.link->incarnation() == handshake.incarnation() && !peer.link->is_hung_up()) {
            return EALREADY;
        }
        drop_link(peer, ECONNRESET);  // it has restarted, or closed and comes back
    }
    if (!attr_.user->has_room()) {
        forget_if_idle(handshake.peer());
        return EUSERS;
    }
    if (peer.dial != nullptr && peer.dial->is_under_way() &&
        is_lower(attr_.address, handshake.peer())) {
        return EALREADY;  // ours survives
    }
    if (peer.dial != nullptr) {
        peer.dial->yield();
    }
    if (peer.answer != nullptr) {
        answers_.erase(peer.answer);  // it has given that one up
    }
    peer.answer = &handshake;
    return util::kOk;
}

void Switchboard::finished(Handshake& handshake) {
    const auto answer = answers_.find(&handshake);
    if (answer != answers_.end()) {
        const std::unique_ptr<Handshake> keep = std::move(answer->second);
        answers_.erase(answer);
        return answer_ended(handshake);
    }
    Peer& peer = peers_[handshake.peer()];
    if (!handshake.status().is_ok()) {
        return peer.dial->retry_after(handshake.status());
    }
    establish(peer, handshake.take_peering(), handshake.take_socket());
}

void Switchboard::answer_ended(Handshake& handshake) {
    const util::SockAddr address = handshake.peer();
    const auto found = peers_.find(address);
    if (found == peers_.end() || found->second.answer != &handshake) {
        return;  // it never got so far as to be admitted
    }
    Peer& peer = found->second;
    peer.answer = nullptr;
    if (handshake.status().is_ok()) {
        return establish(peer, handshake.take_peering(), handshake.take_socket());
    }
    RVT_INFO(kEpCtrl, "handshake with %s ended: %s", address.to_string().c_str(),
             strerrordesc_np(handshake.status().error()));
    if (peer.dial != nullptr) {
        return peer.dial->retry_after(handshake.status());
    }
    forget_if_idle(address);
}

void Switchboard::dial_failed(util::SockAddr address, util::Status why) {
    peers_[address].dial.reset();
    forget_if_idle(address);
    auto event = std::make_unique<ConnectionEvent>();
    event->kind = ConnectionEvent::Kind::kFailed;
    event->address = address;
    event->error = why.error();
    deliver(std::move(event));
}

// ---- links ----

void Switchboard::establish(Peer& peer, std::unique_ptr<Peering> peering, util::ProcessFd socket) {
    const std::uint64_t id = next_link_++;
    peering->link = id;
    const std::unique_ptr<Dial> ended = std::move(peer.dial);  // until the event is delivered
    peer.link = std::make_unique<Link>(thread(), *this, id, peering->address, peering->incarnation,
                                       peering->pid);
    const int fd = socket.get();
    const util::Status status = peer.link->start(std::move(socket));
    if (!status.is_ok()) {
        peer.link.reset();
        return dial_failed(peering->address, status);
    }
    {
        const util::Guard guard(sockets_lock_);
        sockets_[id] = {.fd = fd, .peer = peering->address};
    }
    processes_.add(*peer.link);
    RVT_INFO(kEpCtrl, "connected to %s: process %d%s, its memory %s",
             peering->address.to_string().c_str(), peering->pid,
             peering->is_same_process ? " (this one)" : "",
             peering->may_read_memory ? "can be accessed" : strerrordesc_np(peering->read_error));
    auto event = std::make_unique<ConnectionEvent>();
    event->kind = ConnectionEvent::Kind::kConnected;
    event->address = peering->address;
    event->link = id;
    event->peering = std::move(peering);
    deliver(std::move(event));
    ticker_.note_connected();
}

void Switchboard::link_ended(Link& link, util::Status why) {
    const util::SockAddr address = link.peer();
    if (why.error() == EPROTO) {
        RVT_WARN(kEpCtrl,
                 "connection to %s ended: the peer sent what no peer of this version sends",
                 address.to_string().c_str());
    }
    drop_link(peers_[address], why);
    forget_if_idle(address);
}

util::Result<RegionSource> Switchboard::region_asked(std::uint64_t key) {
    return attr_.user->find_region(key);
}

void Switchboard::region_answered(Link& link, std::uint64_t key,
                                  util::Result<MappedRegion> region) {
    auto event = std::make_unique<ConnectionEvent>();
    event->kind = ConnectionEvent::Kind::kRegion;
    event->address = link.peer();
    event->link = link.id();
    event->key = key;
    event->error = region.error();
    if (region.is_ok()) {
        event->region = std::make_unique<MappedRegion>(region.take());
    }
    deliver(std::move(event));
}

void Switchboard::drop_link(Peer& peer, util::Status why) {
    auto event = std::make_unique<ConnectionEvent>();
    event->kind = ConnectionEvent::Kind::kPeerGone;
    event->address = peer.link->peer();
    event->link = peer.link->id();
    event->error = why.error();
    end_link(peer);
    deliver(std::move(event));
}

void Switchboard::end_link(Peer& peer) {
    {
        const util::Guard guard(sockets_lock_);
        sockets_.erase(peer.link->id());
    }
    processes_.remove(*peer.link);
    peer.link.reset();
}

void Switchboard::forget_if_idle(const util::SockAddr& address) {
    const auto found = peers_.find(address);
    if (found != peers_.end() && found->second.dial == nullptr && found->second.answer == nullptr &&
        found->second.link == nullptr) {
        peers_.erase(found);
    }
}

void Switchboard::deliver(std::unique_ptr<ConnectionEvent> event) {
    attr_.user->deliver(std::move(event));
    // The event is in the mailbox before we look whether somebody sleeps: pairs with the
    // membarrier(2), or the fence, between arming and the sleeper's last look into the mailbox.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // relaxed: ordered by the fence.
    if (episode_of(attr_.page->at<EndpointPage>(0)->armed.load(std::memory_order_relaxed)) != 0) {
        // EAGAIN: the counter is full, so the sleeper will wake anyway.
        [[maybe_unused]] const int ignored = eventfd_write(wake_fd_.get(), 1);
    }
}

}  // namespace rvt::shm
