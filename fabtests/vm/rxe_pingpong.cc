// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The other end of ibv_rc_pingpong(1), a program of rdma-core's, on rvt's RoCEv2 device at port
// 4791: QPNs, first PSNs and GIDs go over TCP as text, then messages go to and fro, of which that
// program sends back what it got. The passive end is the server.
//
//   rxe_pingpong DIR active|passive OWN-IP PEER-IP
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

#include "core/ah.h"
#include "core/context.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/registry.h"
#include "core/verbs_cq.h"
#include "rxe_device.h"

namespace rvt::core {
namespace {

using traffic::fail;

// As the command line of ibv_rc_pingpong has to say.
constexpr int kMessages = 100;
constexpr std::size_t kMessageBytes = 4096;
constexpr std::uint16_t kPort = 18515;    // its default
constexpr std::byte kFirstByte{0x7b};     // of all that it sends before it has got anything
constexpr std::uint32_t kPsn = 0xffffe0;  // wraps at the 33rd packet
constexpr std::size_t kReceives = 4;      // posted; it has one message under way at most

/// The text of one end: LID, QPN, PSN and GID, in hexadecimal digits, and a 0.
constexpr std::size_t kCardBytes = sizeof "0000:000000:000000:00000000000000000000000000000000";
struct Card {
    std::uint32_t qpn = 0;
    std::uint32_t psn = 0;
    Address gid{};
};

std::array<char, kCardBytes> to_text(const Card& card) {
    std::array<char, kCardBytes> text{};
    int used = std::snprintf(text.data(), text.size(), "0000:%06x:%06x:", card.qpn, card.psn);
    for (const std::uint8_t byte : card.gid.gid) {
        used += std::snprintf(text.data() + used, text.size() - static_cast<std::size_t>(used),
                              "%02x", byte);
    }
    return text;
}
Card to_card(const std::array<char, kCardBytes>& text) {
    Card card;
    unsigned lid = 0;
    int used = 0;
    if (std::sscanf(text.data(), "%x:%x:%x:%n", &lid, &card.qpn, &card.psn, &used) != 3 ||
        std::size_t(used) + 2 * card.gid.gid.size() + 1 != text.size()) {
        fail("no card of ibv_rc_pingpong: " + std::string(text.data(), text.size()));
    }
    for (std::uint8_t& byte : card.gid.gid) {
        unsigned value = 0;
        std::sscanf(text.data() + used, "%2x", &value);
        byte = static_cast<std::uint8_t>(value);
        used += 2;
    }
    return card;
}

// ---- the connection by which both say who they are ----

class Telephone {
  public:
    explicit Telephone(int fd) : fd_(fd) {
        const timeval patience{.tv_sec = traffic::kPatience.count(), .tv_usec = 0};
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
    Telephone(const Telephone&) = delete;
    Telephone& operator=(const Telephone&) = delete;
    ~Telephone() { close(fd_); }

    void say(const void* words, std::size_t bytes) const {
        if (send(fd_, words, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
            fail("the peer does not listen: " + std::string(std::strerror(errno)));
        }
    }
    void hear(void* words, std::size_t bytes) const {
        if (recv(fd_, words, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
            fail("the peer says less than it should: " + std::string(std::strerror(errno)));
        }
    }

  private:
    int fd_;
};

/// @param call  bind(2) or connect(2).
int apply(int (*call)(int, const sockaddr*, socklen_t), int fd, const util::SockAddr& address) {
    sockaddr_storage storage{};
    const auto length = static_cast<socklen_t>(address.to(&storage));
    return call(fd, reinterpret_cast<const sockaddr*>(&storage), length);
}

int tcp_socket(const util::SockAddr& address) {
    const int fd = socket(address.family, SOCK_STREAM, 0);
    if (fd < 0) {
        fail("socket: " + std::string(std::strerror(errno)));
    }
    return fd;
}

/// Waits for the caller.
int answer_at(const util::SockAddr& address, const traffic::Folder& folder) {
    const int listener = tcp_socket(address);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (apply(bind, listener, address) != 0 || ::listen(listener, 1) != 0) {
        fail("listen: " + std::string(std::strerror(errno)));
    }
    const timeval patience{.tv_sec = traffic::kPatience.count(), .tv_usec = 0};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    folder.put("listening", "");
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) {
        fail("accept: " + std::string(std::strerror(errno)));
    }
    close(listener);
    return fd;
}

/// The server may be just starting, and tells nobody on another machine when it listens: it is
/// called again and again.
int call(const util::SockAddr& address) {
    const auto until = std::chrono::steady_clock::now() + traffic::kPatience;
    while (true) {
        const int fd = tcp_socket(address);
        if (apply(connect, fd, address) == 0) {
            return fd;
        }
        if (errno != ECONNREFUSED || std::chrono::steady_clock::now() > until) {
            fail("connect: " + std::string(std::strerror(errno)));
        }
        close(fd);
        std::this_thread::sleep_for(traffic::kLook);
    }
}

/// The called one gets ready before it says so, as it is sent to first.
void exchange(const traffic::Options& options, const Card& own, auto get_ready) {
    const traffic::Folder folder(options.dir);
    const Telephone telephone(options.is_active
                                  ? call(socket_address(options.peer_ip, kPort))
                                  : answer_at(socket_address(options.own_ip, kPort), folder));
    const auto text = to_text(own);
    std::array<char, kCardBytes> heard{};
    constexpr char kDone[] = "done";
    std::array<char, sizeof kDone> done{};
    if (options.is_active) {
        telephone.say(text.data(), text.size());
        telephone.hear(heard.data(), heard.size());
        get_ready(to_card(heard));
        telephone.say(kDone, sizeof kDone);
        return;
    }
    telephone.hear(heard.data(), heard.size());
    get_ready(to_card(heard));
    telephone.say(text.data(), text.size());
    telephone.hear(done.data(), done.size());
}

// ---- the pair ----

class PingPong {
  public:
    explicit PingPong(const traffic::Options& options)
        : device_(open_rxe_device(registry_, options.own_ip)),
          context_(need(open_device(device_->device()), "open_device")),
          pd_(need(alloc_pd(*context_), "alloc_pd")),
          cq_(need(create_cq(*context_, 2 * kReceives), "create_cq")) {
        const iovec all{.iov_base = &memory_, .iov_len = sizeof memory_};
        mr_ = need(reg_mr(*pd_, {.segments = {&all, 1}, .access = Access::kLocalWrite}), "reg_mr");
        qp_ = need(create_qp(*pd_, {.type = QpType::kRc,
                                    .send_cq = cq_,
                                    .recv_cq = cq_,
                                    .cap = {.max_send_wr = 1,
                                            .max_recv_wr = kReceives,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1},
                                    .signal_all = true}),
                   "create_qp");
        using enum QpMask;
        need(qp_->modify({.state = QpState::kInit}, kState | kPkeyIndex | kPort | kAccess),
             "modify_qp to INIT");
        for (std::size_t i = 0; i < kReceives; ++i) {
            post_receive();
        }
        own_ = {.qpn = qp_->qpn(), .psn = kPsn, .gid = to_address(rxe_address(options.own_ip))};
    }

    const Card& own() const { return own_; }

    void connect(const Card& peer) {
        using enum QpMask;
        QpAttr attr{.state = QpState::kRtr,
                    .ah = {.dest = peer.gid},
                    .dest_qpn = peer.qpn,
                    .rq_psn = peer.psn,
                    .sq_psn = kPsn,
                    .path_mtu_bytes = traffic::kMtuBytes,
                    .max_rd_atomic = 1,
                    .max_dest_rd_atomic = 1,
                    .min_rnr_timer = traffic::kMinRnrTimer,
                    .timeout = traffic::kTimeout,
                    .retry_cnt = traffic::kRetries,
                    .rnr_retry = traffic::kRnrRetries};
        attr.ah.dest.port = kRxePort;
        need(qp_->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic |
                                   kMinRnrTimer),
             "modify_qp to RTR");
        attr.state = QpState::kRts;
        need(qp_->modify(attr, kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxRdAtomic),
             "modify_qp to RTS");
    }

    void send(std::byte content) {
        memory_.out.fill(content);
        const Sge sge = sge_of(memory_.out);
        need(qp_->post_send({.wr_id = kSendId, .opcode = WrOpcode::kSend, .sg_list = {&sge, 1}}),
             "post_send");
    }
    /// The next message, when what was sent has arrived as well. Returns: whether it is all of
    /// this.
    bool receive(std::byte content) {
        while (!has_received_) {
            poll();
        }
        has_received_ = false;
        const bool is_right = std::all_of(memory_.in.begin(), memory_.in.end(),
                                          [=](std::byte byte) { return byte == content; });
        memory_.in.fill(std::byte{0});
        post_receive();
        return is_right;
    }
    void await_sent() {
        while (sent_ == 0) {
            poll();
        }
        --sent_;
    }
    /// Answers the peer's last packets again, should it ask.
    void linger(std::chrono::milliseconds time) {
        const auto until = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < until) {
            device_->device().progress();
        }
    }

  private:
    static constexpr std::uint64_t kSendId = 1;
    struct Memory {
        std::array<std::byte, kMessageBytes> in;
        std::array<std::byte, kMessageBytes> out;
    };

    Sge sge_of(std::array<std::byte, kMessageBytes>& bytes) const {
        return {.addr = reinterpret_cast<std::uint64_t>(bytes.data()),
                .length = kMessageBytes,
                .lkey = mr_->lkey()};
    }
    void post_receive() {
        const Sge sge = sge_of(memory_.in);
        need(qp_->post_recv({.sg_list = {&sge, 1}}), "post_recv");
    }
    void poll() {
        device_->device().progress();
        Wc wc;
        if (cq_->poll({&wc, 1}) == 0) {
            if (std::chrono::steady_clock::now() > end_) {
                fail("no completion");
            }
            return;
        }
        if (wc.status != WcStatus::kSuccess) {
            fail(std::string("a completion: ") + to_string(wc.status));
        }
        if (wc.wr_id == kSendId) {
            ++sent_;
        } else if (wc.byte_len != kMessageBytes) {
            fail("a message of " + std::to_string(wc.byte_len) + " bytes");
        } else {
            has_received_ = true;
        }
    }

    const std::chrono::steady_clock::time_point end_ =
        std::chrono::steady_clock::now() + 2 * traffic::kPatience;
    Registry registry_;
    std::unique_ptr<roce::PacketDevice> device_;
    Context* context_;
    Pd* pd_;
    VerbsCq* cq_;
    Mr* mr_ = nullptr;
    Qp* qp_ = nullptr;
    Card own_;
    Memory memory_{};
    bool has_received_ = false;
    unsigned sent_ = 0;
};

std::byte content_of(int message) {
    return std::byte(static_cast<unsigned char>(message + 1));
}

/// Returns: what is wrong with what came, or nothing.
std::string play(PingPong& pair, bool is_active) {
    std::byte last = kFirstByte;
    for (int i = 0; i < kMessages; ++i) {
        if (is_active) {
            last = content_of(i);
            pair.send(last);
        }
        if (!pair.receive(last)) {
            return "message " + std::to_string(i) + " is another one";
        }
        if (!is_active) {
            last = content_of(i);
            pair.send(last);
        }
        pair.await_sent();
    }
    return "";
}

[[noreturn]] void run(const traffic::Options& options) {
    PingPong pair(options);
    exchange(options, pair.own(), [&](const Card& peer) { pair.connect(peer); });
    traffic::Report report;
    report.line("each message of ibv_rc_pingpong is what was sent last",
                play(pair, options.is_active));
    pair.linger(std::chrono::milliseconds(500));
    // Objects that the peer may still ask for end with the process.
    std::_Exit(report.status());
}

}  // namespace
}  // namespace rvt::core

int main(int argc, char** argv) {
    rvt::core::run(traffic::read_options(argc, argv));
}
