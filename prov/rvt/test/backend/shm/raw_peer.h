// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A peer made by hand: it speaks the wire-up messages step by step, or breaks them.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/shm/peer_memory.h"
#include "backend/shm/wire_up.h"
#include "common/process.h"
#include "test_endpoint.h"

namespace rvt::shm::test {

using rvt::test::Process;

class RawPeer {
  public:
    RawPeer()
        : port_(quiet_port()),
          page_(util::Mapping::create("raw-page", kPageBytes, kPageBytes).take()),
          outbox_(make_outbox().take()),
          wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        EndpointPage& page = *page_.at<EndpointPage>(0);
        page.magic = kMagic;
        page.version = kLayoutVersion;
        page.incarnation = 4711;
        local = {.address = port_.address,
                 .page = &page_,
                 .keys = nullptr,
                 .wake_fd = wake_fd_.get(),
                 .cpu = -1};
        hello.address = to_wire(port_.address);
        hello.incarnation = page.incarnation;
        hello.page_bytes = kPageBytes;
        hello.outbox_bytes = kOutboxBytes;
        fds = {page_.fd(), outbox_.fd(), wake_fd_.get(), -1};
    }

    bool dial(const util::SockAddr& to) {
        socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        const SocketName name = socket_name(to);
        return connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address),
                       name.length) == 0;
    }
    bool listen() {
        listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        const SocketName name = socket_name(local.address);
        return bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address),
                    name.length) == 0 &&
               ::listen(listener_.get(), 16) == 0;
    }
    bool accept() {
        socket_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        return socket_.is_open();
    }
    bool say(const MessageHeader& header) { return send_message(socket_.get(), header).is_ok(); }
    bool say_bytes(const void* bytes, std::size_t count) {
        return send_message(socket_.get(), bytes, count, nullptr, 0).is_ok();
    }
    /// Sends `hello` and the first `fd_count` of `fds`, as they have been changed.
    bool say_hello(std::size_t fd_count = 3) {
        return send_message(socket_.get(), &hello, sizeof hello, fds.data(), fd_count).is_ok();
    }
    /// The next message; its error is ECONNRESET once the other side has closed.
    util::Result<Message> hear() {
        pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
        poll(&entry, 1, 20000);
        return receive_message(socket_.get());
    }
    bool hears(MessageType type) {
        const util::Result<Message> message = hear();
        return message.is_ok() && message.value().header.type == type;
    }
    /// The error of the refusal that comes next, 0 when something else comes.
    int hears_refusal() {
        const util::Result<Message> message = hear();
        return message.is_ok() && message.value().header.type == MessageType::kRefuse
                   ? message.value().header.error
                   : 0;
    }
    void hang_up() { socket_.reset(); }
    int socket() const { return socket_.get(); }
    const util::Mapping& outbox() const { return outbox_; }
    EndpointPage& page() { return *page_.at<EndpointPage>(0); }

    LocalEnd local;
    Hello hello;
    std::array<int, kMaxMessageFds> fds{};

    /// Leaves its port to another endpoint.
    void give_up_port() { port_.socket.reset(); }

  private:
    util::UdpPort port_;
    util::Mapping page_;
    util::Mapping outbox_;
    util::UniqueFd wake_fd_;
    util::UniqueFd listener_;
    util::UniqueFd socket_;
};

}  // namespace rvt::shm::test
