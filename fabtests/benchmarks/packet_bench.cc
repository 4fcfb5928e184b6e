// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What the transport protocol costs: RC pairs of two RoCEv2 devices in two processes, beside bare
// UDP sockets that move as many bytes in as many packets. Both on processors of their own, in
// turns; medians.
//
//   packet_bench [IP] [REPEATS] [ROW]      default: 127.0.0.1 5, all rows; ROW: how a name begins
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <netinet/udp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/roce/packet_device.h"
#include "backend/roce/udp_socket.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/registry.h"
#include "core/verbs_cq.h"
#include "util/cpu.h"

namespace rvt::core {
namespace {

constexpr std::size_t kMemoryBytes = 2u << 20;
constexpr std::size_t kHalf = 1u << 20;
constexpr std::uint32_t kWindow = 64;
constexpr std::uint32_t kReceives = 512;
constexpr int kPingPongs = 5000;
constexpr int kMessages = 100'000;
constexpr std::size_t kStreamBytes = 256u << 20;

// The bare stream: as an RC WRITE in the middle of a message.
constexpr std::size_t kHeaderBytes = 12;
constexpr std::size_t kTrailerBytes = 4;
constexpr std::size_t kPayloadBytes = 1024;
constexpr std::size_t kPacketBytes = kHeaderBytes + kPayloadBytes + kTrailerBytes;
constexpr std::size_t kRun = 62;  // packets a call: as many as fit in a datagram
constexpr std::uint64_t kMostUnderWay = 512;

struct Card {
    Address address;
    std::uint32_t qpn;
    std::uint32_t rkey;
    std::uint64_t addr;
    std::uint16_t bare_port;
};

/// What the two processes share.
struct Shared {
    std::array<Card, 2> cards;
    std::array<std::atomic<std::uint32_t>, 2> arrived;
    std::atomic<std::uint64_t> received;  // packets of the bare stream
};

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "packet_bench: %s\n", what);
    std::_Exit(1);
}

template <class T>
T need(Result<T> result, const char* what) {
    if (!result.is_ok()) {
        std::fprintf(stderr, "packet_bench: %s\n", strerrordesc_np(result.error()));
        fail(what);
    }
    return result.take();
}
void need(Status status, const char* what) {
    if (!status.is_ok()) {
        std::fprintf(stderr, "packet_bench: %s\n", strerrordesc_np(status.error()));
        fail(what);
    }
}

double now_us() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

/// One process: a device with a connected pair, and a bare socket.
class End {
  public:
    End(Shared& shared, int side, const util::SockAddr& address)
        : shared_(shared),
          side_(side),
          device_(need(
              roce::PacketDevice::open(
                  registry_, {.address = address, .payload_bytes = kPayloadBytes, .limits = {}}),
              "open the device")),
          context_(need(open_device(device_->device()), "open_device")),
          pd_(need(alloc_pd(*context_), "alloc_pd")),
          send_cq_(need(create_cq(*context_, 4096, nullptr), "create_cq")),
          recv_cq_(need(create_cq(*context_, 4096, nullptr), "create_cq")),
          memory_(kMemoryBytes),
          bare_(need(roce::open_udp_socket(address), "open a bare socket")) {
        const iovec all{.iov_base = memory_.data(), .iov_len = memory_.size()};
        mr_ = need(reg_mr(*pd_, {.segments = {&all, 1},
                                 .access = Access::kLocalWrite | Access::kRemoteWrite |
                                           Access::kRemoteRead}),
                   "reg_mr");
        qp_ = need(create_qp(*pd_, {.type = QpType::kRc,
                                    .send_cq = send_cq_,
                                    .recv_cq = recv_cq_,
                                    .cap = {.max_send_wr = 256, .max_recv_wr = kReceives},
                                    .signal_all = true}),
                   "create_qp");
        shared.cards[index()] = {.address = device_->device().address(),
                                 .qpn = qp_->qpn(),
                                 .rkey = mr_->rkey(),
                                 .addr = reinterpret_cast<std::uint64_t>(memory_.data()),
                                 .bare_port = bare_.port.address.port};
        meet();
        connect();
        for (std::uint32_t i = 0; i < kReceives; ++i) {
            post_recv();
        }
        meet();
    }

    [[nodiscard]] bool is_client() const { return side_ == 0; }

    // Each returns what the client measured.

    /// Half round trip, in microseconds.
    double ping_pong(std::size_t bytes) {
        meet();
        const double start = now_us();
        for (int i = 0; i < kPingPongs; ++i) {
            if (is_client()) {
                post({.opcode = WrOpcode::kSend}, bytes);
            }
            await(*recv_cq_, 1);
            post_recv();
            if (!is_client()) {
                post({.opcode = WrOpcode::kSend}, bytes);
            }
            drain_sends();
        }
        const double us = (now_us() - start) / (2.0 * kPingPongs);
        return finish(us);
    }

    /// Millions of messages of 8 bytes a second.
    double rate() {
        meet();
        const double start = now_us();
        if (is_client()) {
            int posted = 0;
            for (int completed = 0; completed < kMessages;) {
                for (; posted < kMessages && posted - completed < static_cast<int>(kWindow);
                     ++posted) {
                    post({.opcode = WrOpcode::kSend}, 8);
                }
                completed += poll(*send_cq_);
            }
        } else {
            for (int received = 0; received < kMessages;) {
                const int some = poll(*recv_cq_);
                for (int i = 0; i < some; ++i) {
                    post_recv();
                }
                received += some;
            }
        }
        return finish(kMessages / (now_us() - start));
    }

    /// GB/s of WRITEs or READs, two under way.
    double bandwidth(WrOpcode opcode, std::size_t bytes) {
        meet();
        const double start = now_us();
        const int count = static_cast<int>(kStreamBytes / bytes);
        if (is_client()) {
            int posted = 0;
            for (int completed = 0; completed < count;) {
                for (; posted < count && posted - completed < 4; ++posted) {
                    post({.opcode = opcode}, bytes);
                }
                completed += poll(*send_cq_);
            }
        }
        return finish(static_cast<double>(kStreamBytes) / 1e3 / (now_us() - start));
    }

    double bare_ping_pong(std::size_t bytes) {
        meet();
        const double start = now_us();
        for (int i = 0; i < kPingPongs; ++i) {
            if (is_client()) {
                bare_send(bytes);
            }
            while (recv(bare_.fd(), memory_.data(), 65536, MSG_DONTWAIT) < 0) {
            }
            if (!is_client()) {
                bare_send(bytes);
            }
        }
        return finish((now_us() - start) / (2.0 * kPingPongs));
    }

    /// GB/s of a stream of packets as those of a WRITE.
    double bare_stream() {
        // relaxed: meet() orders it.
        shared_.received.store(0, std::memory_order_relaxed);
        meet();
        const double start = now_us();
        constexpr std::uint64_t kPackets = kStreamBytes / kPayloadBytes;
        if (is_client()) {
            for (std::uint64_t sent = 0; sent < kPackets;) {
                if (sent + kRun <= bare_received() + kMostUnderWay) {
                    sent += bare_run(sent);
                }
            }
            while (bare_received() < kPackets) {
            }
        } else {
            for (std::uint64_t received = 0; received < kPackets;) {
                received += take_run(received);
                // relaxed: a count that orders nothing.
                shared_.received.store(received, std::memory_order_relaxed);
            }
        }
        return finish(static_cast<double>(kStreamBytes) / 1e3 / (now_us() - start));
    }

  private:
    [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(side_); }

    /// Waits for the other process, and moves the device meanwhile.
    void meet() {
        // release: pairs with the acquire below.
        const std::uint32_t mine =
            shared_.arrived[index()].fetch_add(1, std::memory_order_release) + 1;
        // acquire: pairs with the release above: who comes after sees what the other did before.
        while (shared_.arrived[1 - index()].load(std::memory_order_acquire) < mine) {
            device_->device().progress();
        }
    }
    [[nodiscard]] std::uint64_t bare_received() const noexcept {
        // relaxed: a count that orders nothing.
        return shared_.received.load(std::memory_order_relaxed);
    }
    /// The server answers until the client is done.
    double finish(double result) {
        if (is_client()) {
            drain_sends();
        }
        meet();
        return result;
    }

    void connect() {
        using enum QpMask;
        const Card& peer = shared_.cards[1 - index()];
        QpAttr attr{.state = QpState::kInit,
                    .access = Access::kRemoteWrite | Access::kRemoteRead,
                    .ah = {.dest = peer.address},
                    .dest_qpn = peer.qpn,
                    .max_rd_atomic = 16,
                    .max_dest_rd_atomic = 16,
                    .min_rnr_timer = 1,
                    .timeout = 14,
                    .retry_cnt = 7,
                    .rnr_retry = kRnrRetryForEver};
        need(qp_->modify(attr, kState | kPkeyIndex | kPort | kAccess), "to INIT");
        attr.state = QpState::kRtr;
        need(qp_->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic |
                                   kMinRnrTimer),
             "to RTR");
        attr.state = QpState::kRts;
        need(qp_->modify(attr, kState | kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxRdAtomic),
             "to RTS");
    }

    void post_recv() {
        const Sge room{.addr = reinterpret_cast<std::uint64_t>(memory_.data() + kHalf),
                       .length = 65536,
                       .lkey = mr_->lkey()};
        need(qp_->post_recv({.sg_list = {&room, 1}}), "post_recv");
    }
    void post(SendWr wr, std::size_t bytes) {
        const Card& peer = shared_.cards[1 - index()];
        const Sge list{.addr = reinterpret_cast<std::uint64_t>(memory_.data()),
                       .length = static_cast<std::uint32_t>(bytes),
                       .lkey = mr_->lkey()};
        wr.sg_list = {&list, 1};
        wr.remote_addr = peer.addr + kHalf;
        wr.rkey = peer.rkey;
        need(qp_->post_send(wr), "post_send");
        ++sends_;
    }
    /// Returns: completions taken.
    int poll(VerbsCq& cq) {
        std::array<Wc, 32> wc;
        device_->device().progress();
        const unsigned count = cq.poll(wc);
        for (unsigned i = 0; i < count; ++i) {
            need(wc[i].status == WcStatus::kSuccess ? kOk : Status(EIO), to_string(wc[i].status));
        }
        if (&cq == send_cq_) {
            sends_ -= count;
        }
        return static_cast<int>(count);
    }
    void await(VerbsCq& cq, int count) {
        while (count > 0) {
            count -= poll(cq);
        }
    }
    void drain_sends() {
        while (sends_ != 0) {
            poll(*send_cq_);
        }
    }

    [[nodiscard]] sockaddr_storage bare_peer(socklen_t& length) const {
        util::SockAddr peer = bare_.port.address;
        peer.port = shared_.cards[1 - index()].bare_port;
        sockaddr_storage name{};
        length = static_cast<socklen_t>(peer.to(&name));
        return name;
    }
    void bare_send(std::size_t bytes) {
        socklen_t length = 0;
        const sockaddr_storage name = bare_peer(length);
        if (sendto(bare_.fd(), memory_.data(), kHeaderBytes + bytes + kTrailerBytes, 0,
                   reinterpret_cast<const sockaddr*>(&name), length) < 0) {
            fail("sendto");
        }
    }
    /// One call, kRun packets: header, payload and trailer of each. Returns: packets.
    std::uint64_t bare_run(std::uint64_t at) {
        socklen_t length = 0;
        sockaddr_storage name = bare_peer(length);
        std::array<std::byte, kHeaderBytes + kTrailerBytes> frame{};
        std::array<iovec, 3 * kRun> pieces;
        for (std::size_t i = 0; i < kRun; ++i) {
            const std::size_t offset = (at + i) * kPayloadBytes % kHalf;
            pieces[3 * i] = {.iov_base = frame.data(), .iov_len = kHeaderBytes};
            pieces[3 * i + 1] = {.iov_base = memory_.data() + offset, .iov_len = kPayloadBytes};
            pieces[3 * i + 2] = {.iov_base = frame.data() + kHeaderBytes, .iov_len = kTrailerBytes};
        }
        alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
        msghdr message{};
        message.msg_name = &name;
        message.msg_namelen = length;
        message.msg_iov = pieces.data();
        message.msg_iovlen = pieces.size();
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr* segment = CMSG_FIRSTHDR(&message);
        segment->cmsg_level = IPPROTO_UDP;
        segment->cmsg_type = UDP_SEGMENT;
        segment->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const std::uint16_t bytes = kPacketBytes;
        std::memcpy(CMSG_DATA(segment), &bytes, sizeof bytes);
        if (sendmsg(bare_.fd(), &message, 0) < 0) {
            fail("sendmsg");
        }
        return kRun;
    }
    /// Returns: packets of what one call brought, their payload copied to where it belongs.
    std::uint64_t take_run(std::uint64_t at) {
        static std::array<std::byte, 65536> bytes;
        const ssize_t got = recv(bare_.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        std::uint64_t packets = 0;
        for (ssize_t i = 0; i + static_cast<ssize_t>(kPacketBytes) <= got;
             i += static_cast<ssize_t>(kPacketBytes), ++packets) {
            const std::size_t offset = (at + packets) * kPayloadBytes % kHalf;
            std::memcpy(memory_.data() + kHalf + offset, bytes.data() + i + kHeaderBytes,
                        kPayloadBytes);
        }
        return packets;
    }

    Shared& shared_;
    const int side_;
    Registry registry_;
    std::unique_ptr<roce::PacketDevice> device_;
    Context* context_;
    Pd* pd_;
    VerbsCq* send_cq_;
    VerbsCq* recv_cq_;
    std::vector<std::byte> memory_;
    roce::UdpSocket bare_;
    Mr* mr_ = nullptr;
    Qp* qp_ = nullptr;
    std::uint64_t sends_ = 0;
};

struct Row {
    const char* name;
    const char* unit;
    double (*protocol)(End&);
    double (*bare)(End&);  // nullptr: none
};

const Row kRows[] = {
    {"ping-pong 8 B", "us", [](End& e) { return e.ping_pong(8); },
     [](End& e) { return e.bare_ping_pong(8); }},
    {"ping-pong 4 KiB", "us", [](End& e) { return e.ping_pong(4096); },
     [](End& e) { return e.bare_ping_pong(4096); }},
    {"rate 8 B", "M/s", [](End& e) { return e.rate(); }, nullptr},
    {"WRITE 64 KiB", "GB/s", [](End& e) { return e.bandwidth(WrOpcode::kWrite, 65536); },
     [](End& e) { return e.bare_stream(); }},
    {"WRITE 1 MiB", "GB/s", [](End& e) { return e.bandwidth(WrOpcode::kWrite, 1u << 20); },
     [](End& e) { return e.bare_stream(); }},
    {"READ 1 MiB", "GB/s", [](End& e) { return e.bandwidth(WrOpcode::kRead, 1u << 20); },
     [](End& e) { return e.bare_stream(); }},
};

/// Ticks of the processors' counter in a nanosecond.
double ticks_per_ns() {
    constexpr double kLookUs = 50'000;
    const double start = now_us();
    const std::uint64_t ticks = util::cpu_ticks();
    double took = 0;
    while ((took = now_us() - start) < kLookUs) {
    }
    return static_cast<double>(util::cpu_ticks() - ticks) / (took * 1e3);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// What a packet of a stream takes, of which both ends have a processor to themselves.
void print_cycles(double protocol_gbps, double bare_gbps) {
    static const double kTicks = ticks_per_ns();
    const auto cycles = [](double gbps) { return kPayloadBytes / gbps * kTicks; };
    std::printf("  cycles a packet %.0f, bare %.0f", cycles(protocol_gbps), cycles(bare_gbps));
}

void run(End& end, int repeats, const std::string& chosen) {
    for (const Row& row : kRows) {
        if (!std::string(row.name).starts_with(chosen)) {
            continue;
        }
        std::vector<double> protocol;
        std::vector<double> bare;
        for (int i = 0; i < repeats; ++i) {
            protocol.push_back(row.protocol(end));
            bare.push_back(row.bare != nullptr ? row.bare(end) : 0);
        }
        if (!end.is_client()) {
            continue;
        }
        std::printf("%-16s %8.3g %-5s", row.name, median(protocol), row.unit);
        if (row.bare != nullptr) {
            std::printf(" bare %8.3g  x%.3g", median(bare), median(protocol) / median(bare));
        }
        if (row.unit == std::string("GB/s")) {
            print_cycles(median(protocol), median(bare));
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    // Without permission the measurement is noisier, not wrong.
    sched_setaffinity(0, sizeof set, &set);
}

int bench(const char* ip, int repeats, const char* row) {
    const util::SockAddr address =
        need(util::SockAddr::from_string((std::string(ip) + ":0").c_str()), ip);
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& shared = *static_cast<Shared*>(memory);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // it would poll for ever
    }
    run_on(child == 0 ? 1 : 0);
    End end(shared, child == 0 ? 1 : 0, address);
    run(end, repeats, row);
    if (child == 0) {
        std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::_Exit(status == 0 ? 0 : 1);
}

}  // namespace
}  // namespace rvt::core

int main(int argc, char** argv) {
    return rvt::core::bench(argc > 1 ? argv[1] : "127.0.0.1", argc > 2 ? std::atoi(argv[2]) : 5,
                            argc > 3 ? argv[3] : "");
}
