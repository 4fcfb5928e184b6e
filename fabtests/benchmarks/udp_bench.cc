// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Bare UDP sockets between two ranks: what the kernel allows to packets of the size and form that
// RoCEv2 has, with no protocol above them. Nothing is checked, resent or acknowledged: that the
// receiver keeps up, the sender reads from a shared page.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchmarks/bench.h"
#include "common/fail.h"
#include "common/timing.h"

namespace {

using fab::Measure;
using fab::Rank;

// As an RC WRITE has them in the middle of a message.
constexpr std::size_t kHeader = 12;
constexpr std::size_t kTrailer = 4;
constexpr std::size_t kMostPayload = 8960;
constexpr std::size_t kMostDatagram = 65000;
constexpr std::size_t kMemory = 1 << 20;
constexpr std::size_t kTurn = 1 << 20;  // payload of one iteration of a stream
constexpr std::uint32_t kMostUnderWay = 512 << 10;
constexpr std::size_t kReceivedFlag = 8;
constexpr int kBufferBytes = 4 << 20;

std::size_t payload = 1408;  // as rvt's over an interface with an MTU of 1500
std::vector<in_addr> addresses;

std::size_t packet_bytes() {
    return kHeader + payload + kTrailer;
}

/// An unconnected socket, as one for many peers is, with the other rank's address.
class Socket {
  public:
    explicit Socket(const Rank& self) : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in mine{};
        mine.sin_family = AF_INET;
        mine.sin_addr = addresses[static_cast<std::size_t>(self.rank) % addresses.size()];
        socklen_t length = sizeof mine;
        if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&mine), sizeof mine) != 0 ||
            getsockname(fd_, reinterpret_cast<sockaddr*>(&mine), &length) != 0) {
            FAB_FAIL("a socket at %s: %s", inet_ntoa(mine.sin_addr), std::strerror(errno));
        }
        set(SOL_SOCKET, SO_RCVBUFFORCE, kBufferBytes);
        set(SOL_SOCKET, SO_SNDBUFFORCE, kBufferBytes);
        set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
        if (!set(IPPROTO_UDP, UDP_GRO, 1)) fab::skip("this kernel has no UDP_GRO");
        peer_ = self.trade(self.other(), mine);
    }
    ~Socket() { close(fd_); }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    /// One call; the kernel cuts what `pieces` hold into packets of `segment` bytes.
    void send(iovec* pieces, std::size_t count, std::size_t segment) {
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
        msghdr message{};
        message.msg_name = &peer_;
        message.msg_namelen = sizeof peer_;
        message.msg_iov = pieces;
        message.msg_iovlen = count;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* option = CMSG_FIRSTHDR(&message);
        option->cmsg_level = IPPROTO_UDP;
        option->cmsg_type = UDP_SEGMENT;
        option->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto bytes = static_cast<std::uint16_t>(segment);
        std::memcpy(CMSG_DATA(option), &bytes, sizeof bytes);
        if (sendmsg(fd_, &message, 0) < 0) FAB_FAIL("sendmsg: %s", std::strerror(errno));
    }
    void send_one(const void* data, std::size_t length) {
        if (sendto(fd_, data, length, 0, reinterpret_cast<const sockaddr*>(&peer_), sizeof peer_) <
            0) {
            FAB_FAIL("sendto: %s", std::strerror(errno));
        }
    }
    /// Returns: bytes of one or more packets; 0 if there is none.
    std::size_t take(void* room, std::size_t length) {
        const ssize_t got = recv(fd_, room, length, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN) FAB_FAIL("recv: %s", std::strerror(errno));
        return got < 0 ? 0 : static_cast<std::size_t>(got);
    }

  private:
    bool set(int level, int option, int value) const {
        return setsockopt(fd_, level, option, &value, sizeof value) == 0;
    }

    int fd_;
    sockaddr_in peer_{};
};

/// One message of a ping-pong or an exchange: `size` bytes in as many packets as RoCEv2 needs, from
/// one buffer into one buffer.
class Message {
  public:
    Message(Rank& self, std::size_t size)
        : socket_(self),
          packets_(std::max<std::size_t>((size + payload - 1) / payload, 1)),
          out_(size + packets_ * (kHeader + kTrailer)),
          in_(kMostDatagram) {}

    void send() {
        iovec whole{out_.data(), out_.size()};
        if (packets_ == 1) return socket_.send_one(out_.data(), out_.size());
        socket_.send(&whole, 1, packet_bytes());
    }
    void take() {
        for (std::size_t got = 0; got < out_.size();) got += socket_.take(in_.data(), in_.size());
    }

  private:
    Socket socket_;
    std::size_t packets_;
    std::vector<char> out_;
    std::vector<char> in_;
};

/// Half of a round trip.
double pingpong(Rank& self, std::size_t size) {
    Message message(self, size);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) message.send();
            message.take();
            if (self.rank == 1) message.send();
        }
    };
    return fab::time_batches(self, body, nullptr) / 2 * 1e6;
}

/// Both send at once.
double exchange(Rank& self, std::size_t size) {
    Message message(self, size);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            message.send();
            message.take();
        }
    };
    return fab::time_batches(self, body, nullptr) * 1e6;
}

/// A stream of packets of full size, as many in one call as a datagram takes.
class Stream {
  public:
    explicit Stream(Rank& self)
        : self_(self), socket_(self), memory_(kMemory + kMostPayload), room_(kMostDatagram) {}

    /// A header, payload out of the buffer and a trailer for each packet.
    void send_framed() {
        std::vector<iovec> pieces(3 * run());
        for (std::size_t i = 0; i < run(); ++i) {
            pieces[3 * i] = {.iov_base = frame_.data(), .iov_len = kHeader};
            pieces[3 * i + 1] = {.iov_base = at(sent_ + i), .iov_len = payload};
            pieces[3 * i + 2] = {.iov_base = frame_.data() + kHeader, .iov_len = kTrailer};
        }
        send(pieces);
    }
    /// As many bytes of packets, out of one piece.
    void send_contiguous() {
        std::vector<iovec> pieces{{.iov_base = memory_.data(), .iov_len = run() * packet_bytes()}};
        send(pieces);
    }
    /// Takes what one call brings, copies payload to its place.
    void take() {
        const std::size_t got = socket_.take(room_.data(), room_.size());
        for (std::size_t i = 0; i + packet_bytes() <= got; i += packet_bytes()) {
            std::memcpy(at(taken_++), room_.data() + i + kHeader, payload);
        }
        if (got != 0) flag().set(taken_);
    }
    /// The same without a copy.
    void take_contiguous() {
        const std::size_t got = socket_.take(room_.data(), room_.size());
        taken_ += static_cast<std::uint32_t>(got / packet_bytes());
        if (got != 0) flag().set(taken_);
    }
    /// Whether all that rank 0 has sent, or rank 1 awaits, arrived.
    bool is_taken(std::uint32_t packets) const { return flag().get() == packets; }
    bool has_room() const {
        const auto most = kMostUnderWay / static_cast<std::uint32_t>(payload);
        return sent_ + static_cast<std::uint32_t>(run()) - flag().get() <= most;
    }
    std::uint32_t sent() const { return sent_; }
    std::uint32_t taken() const { return taken_; }

  private:
    std::size_t run() const { return std::min<std::size_t>(kMostDatagram / packet_bytes(), 64); }
    char* at(std::size_t packet) { return memory_.data() + packet * payload % kMemory; }
    fab::SharedPage::Flag& flag() const { return self_.page->flags[kReceivedFlag]; }
    void send(std::vector<iovec>& pieces) {
        socket_.send(pieces.data(), pieces.size(), packet_bytes());
        sent_ += static_cast<std::uint32_t>(run());
    }

    Rank& self_;
    Socket socket_;
    std::vector<char> memory_;
    std::vector<char> room_;
    std::array<char, kHeader + kTrailer> frame_{};
    std::uint32_t sent_ = 0;   // both counts wrap
    std::uint32_t taken_ = 0;  // and only their difference matters
};

template <bool kFramed>
double stream(Rank& self, std::size_t) {
    Stream one(self);
    const auto turn = static_cast<std::uint32_t>(kTurn / payload);
    std::uint32_t goal = 0;
    std::uint32_t start = 0;
    const auto body = [&](std::size_t n) {
        start = self.rank == 0 ? one.sent() : one.taken();
        goal = static_cast<std::uint32_t>(n) * turn;
        if (self.rank == 0) {
            while (one.sent() - start < goal) {
                if (!one.has_room()) continue;
                if (kFramed) one.send_framed();
                if (!kFramed) one.send_contiguous();
            }
            while (!one.is_taken(one.sent())) fab::relax();
            return fab::announce_end(self);
        }
        while (!fab::is_ended(self)) {
            if (kFramed) one.take();
            if (!kFramed) one.take_contiguous();
        }
    };
    const double seconds = fab::time_batches(self, body, nullptr);
    return static_cast<double>(turn * payload) / seconds / 1e9;
}

constexpr Measure kMeasures[] = {
    {"pingpong", "us", pingpong, 2, "bytes"},
    {"exchange", "us", exchange, 2, "bytes"},
    {"stream", "GB/s", stream<true>, 2, nullptr},
    {"contiguous", "GB/s", stream<false>, 2, nullptr},
};

[[noreturn]] void usage(int code) {
    std::fprintf(code == 0 ? stdout : stderr,
                 "usage: udp_bench -s ADDRESS,... [-n NAMESPACE,...] [-c CPU,...] [-m PAYLOAD] "
                 "pingpong BYTES | exchange BYTES | stream | contiguous\n");
    std::exit(code);
}

std::vector<in_addr> parse_addresses(const char* text) {
    std::vector<in_addr> found;
    for (const std::string& name : fab::parse_names(text)) {
        in_addr address{};
        if (inet_pton(AF_INET, name.c_str(), &address) != 1) usage(2);
        found.push_back(address);
    }
    return found;
}

}  // namespace

int main(int argc, char** argv) {
    fab::TeamOptions team{.cpus = fab::allowed_cpus(2)};
    for (int option = 0; (option = getopt(argc, argv, "s:n:c:m:h")) != -1;) {
        switch (option) {
            case 's': addresses = parse_addresses(optarg); break;
            case 'n': team.hosts = fab::parse_names(optarg); break;
            case 'c': team.cpus = fab::parse_cpus(optarg); break;
            case 'm': payload = std::strtoull(optarg, nullptr, 0); break;
            case 'h': usage(0);
            default: usage(2);
        }
    }
    const int rest = argc - optind;
    const bool can_run = !addresses.empty() && !team.cpus.empty() && payload >= 64 &&
                         payload <= kMostPayload && (rest == 1 || rest == 2);
    if (!can_run) usage(2);
    return fab::run_measure(kMeasures, "udp_bench", argv[optind],
                            rest == 2 ? argv[optind + 1] : nullptr, team);
}
