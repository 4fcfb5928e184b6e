// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A kernel that takes the options of runs of packets and does something else with the runs. The
// calls that send are caught (seccomp(2), user notification) and made by another thread.
#include "conform/fixture.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backend/roce/packet_device.h"
#include "backend/roce/udp_socket.h"
#include "common/own_network.h"
#include "core/addresses.h"
#include "protocol/headers.h"
#include "util/log.h"
#include "util/unique_fd.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::size_t kLongBytes = 64u << 10;
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(std::uint16_t));  // of a run

/// What becomes of a run of packets that the kernel is to cut.
enum class Fate {
    kAsAsked,
    kRefused,
    kInvalid,
    kTooLarge,
    kDropped,
    kUncut,
    kCutElsewhere,
    kChanged,
    kShort
};

/// The kernel as this thread finds it. What is no run it gets as it is. While it lives no more than
/// one exists, and this thread sends nothing when it has gone.
class Kernel {
  public:
    /// @param times  How many runs meet that fate; those behind them go as they are asked.
    explicit Kernel(Fate fate, unsigned times = ~0U) : fate_(fate), times_(times) {
        int ends[2] = {};
        RVT_EQ(::pipe(ends), 0);
        read_end_.reset(ends[0]);
        write_end_.reset(ends[1]);
        server_ = std::thread([this] { serve(); });
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        listener_ = install();
        if (!listener_.is_open()) {
            write_end_.reset();
            server_.join();
            cr_skip_test("this user may catch no system calls");
        }
        RVT_EQ(::write(write_end_.get(), "", 1), 1);
    }
    ~Kernel() {
        write_end_.reset();
        server_.join();
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    /// How many runs it was to cut so far.
    [[nodiscard]] unsigned runs() const {
        return runs_.load(std::memory_order_relaxed);  // relaxed: a count orders nothing
    }
    void change_to(Fate fate) { fate_.store(fate, std::memory_order_relaxed); }  // relaxed: alone

  private:
    /// Of this thread alone. Returns: who is told of its calls, if it is possible.
    static util::UniqueFd install() {
        sock_filter steps[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmmsg, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog filter{static_cast<unsigned short>(std::size(steps)), steps};
        return util::UniqueFd(static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                                       SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter)));
    }

    void serve() {
        char start = 0;
        if (::read(read_end_.get(), &start, 1) != 1) {
            return;
        }
        const int listener = listener_.get();
        pollfd ready[] = {{.fd = listener, .events = POLLIN, .revents = 0},
                          {.fd = read_end_.get(), .events = POLLIN, .revents = 0}};
        while (::poll(ready, 2, -1) > 0 && ready[0].revents == POLLIN) {
            seccomp_notif call{};
            if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) {
                continue;
            }
            seccomp_notif_resp response{};
            response.id = call.id;
            // What is no run the kernel gets itself, and what a child of the test's sends.
            if (static_cast<pid_t>(call.pid) != caller_ || !has_runs(call.data)) {
                response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
            } else {
                const long result = answer(call.data);
                response.val = std::max(result, 0L);
                response.error = static_cast<int>(std::min(result, 0L));
            }
            ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
        }
    }

    static msghdr message_of(const seccomp_data& call, std::uint64_t i) {
        return read_at<msghdr>(call.args[1] + i * sizeof(mmsghdr));
    }
    static std::uint64_t messages_of(const seccomp_data& call) {
        return call.nr == SYS_sendmsg ? 1 : call.args[2];
    }
    static bool has_runs(const seccomp_data& call) {
        bool has_run = false;
        for (std::uint64_t i = 0; i < messages_of(call); ++i) {
            has_run = has_run || message_of(call, i).msg_controllen == kControlBytes;
        }
        return has_run;
    }

    /// The caller waits, and its memory is this thread's. The lengths that sendmmsg(2) tells nobody
    /// here reads.
    long answer(const seccomp_data& call) {
        const int fd = static_cast<int>(call.args[0]);
        const int flags = static_cast<int>(call.args[call.nr == SYS_sendmsg ? 2 : 3]);
        long result = 0;
        for (std::uint64_t i = 0; i < messages_of(call); ++i) {
            const long sent = send(fd, message_of(call, i), flags);
            if (sent < 0) {
                return i == 0 ? sent : static_cast<long>(i);
            }
            result = call.nr == SYS_sendmsg ? sent : static_cast<long>(i) + 1;
        }
        return result;
    }

    /// By a call, as ThreadSanitizer does not know that the other thread waits.
    static void read_bytes(std::uint64_t address, void* to, std::size_t bytes) {
        const iovec own{to, bytes};
        const iovec there{reinterpret_cast<void*>(address), bytes};
        RVT_EQ(process_vm_readv(getpid(), &own, 1, &there, 1, 0), static_cast<ssize_t>(bytes));
    }
    template <class Type>
    static Type read_at(std::uint64_t address) {
        Type value{};
        read_bytes(address, &value, sizeof value);
        return value;
    }
    static std::vector<std::byte> copy(const void* from, std::size_t bytes) {
        std::vector<std::byte> copied(bytes);
        if (bytes != 0) {
            read_bytes(reinterpret_cast<std::uint64_t>(from), copied.data(), bytes);
        }
        return copied;
    }

    /// Returns: what sendmsg(2) returns, or an error less than 0.
    long send(int fd, msghdr header, int flags) {
        const auto piece = read_at<iovec>(reinterpret_cast<std::uint64_t>(header.msg_iov));
        auto name = copy(header.msg_name, header.msg_namelen);
        auto control = copy(header.msg_control, header.msg_controllen);
        auto bytes = copy(piece.iov_base, piece.iov_len);
        RVT_EQ(header.msg_iovlen, 1u);
        header.msg_name = name.empty() ? nullptr : name.data();
        header.msg_control = control.empty() ? nullptr : control.data();
        if (!control.empty()) {
            // relaxed: as in runs().
            const bool is_met = runs_.fetch_add(1, std::memory_order_relaxed) < times_;
            const auto result = is_met ? meet_fate(header, bytes) : std::nullopt;
            if (result) {
                return *result;
            }
        }
        iovec own{bytes.data(), bytes.size()};
        header.msg_iov = &own;
        const ssize_t sent = sendmsg(fd, &header, flags);
        return sent < 0 ? -errno : static_cast<long>(piece.iov_len);
    }

    /// Returns: what the call returns, unless something is sent.
    std::optional<long> meet_fate(msghdr& header, std::vector<std::byte>& bytes) {
        cmsghdr* const control = CMSG_FIRSTHDR(&header);
        RVT_EQ(control->cmsg_type, UDP_SEGMENT);
        std::uint16_t each = 0;
        std::memcpy(&each, CMSG_DATA(control), sizeof each);
        switch (fate_.load(std::memory_order_relaxed)) {  // relaxed: alone
            case Fate::kAsAsked: break;
            case Fate::kRefused: return -EIO;
            case Fate::kInvalid: return -EINVAL;
            case Fate::kTooLarge: return -EMSGSIZE;
            case Fate::kDropped: return static_cast<long>(bytes.size());
            case Fate::kUncut: header.msg_control = nullptr; break;
            case Fate::kCutElsewhere: each = static_cast<std::uint16_t>(each + 4); break;
            case Fate::kChanged: bytes[bytes.size() - 1] ^= std::byte{1}; break;
            case Fate::kShort: bytes.resize(bytes.size() - each); break;
        }
        header.msg_controllen = header.msg_control == nullptr ? 0 : header.msg_controllen;
        std::memcpy(CMSG_DATA(control), &each, sizeof each);
        return std::nullopt;
    }

    const pid_t caller_ = gettid();
    std::atomic<Fate> fate_;
    const unsigned times_;
    util::UniqueFd listener_;
    util::UniqueFd read_end_;  // of what starts and ends the other thread
    util::UniqueFd write_end_;
    std::atomic<unsigned> runs_{0};
    std::thread server_;
};

unsigned told = 0;

constexpr util::LogSink kSink{
    .is_enabled = [](util::LogLevel level,
                     util::LogArea) noexcept { return level == util::LogLevel::kInfo; },
    .write =
        [](util::LogLevel, util::LogArea, const char*, int, const char* text) noexcept {
            told += std::strstr(text, "UDP_SEGMENT") != nullptr ? 1 : 0;
        }};

/// Whether a message of many packets arrives whole.
void move_a_long_message(Pair<Roce>& pair) {
    pair.a().fill(0, kLongBytes, 7);
    RVT_OK(pair.b().post_recv(1, 0, kLongBytes));
    RVT_OK(pair.post_send({.bytes = kLongBytes}));
    RVT_EQ(pair.received().wr_id, 1);
    RVT_ASSERT(pair.b().holds(0, kLongBytes, 7));
    pair.sent();
}

void leaves_packet_by_packet(Fate fate) {
    test::enter_own_network();
    util::set_log_sink(&kSink);
    Kernel kernel(fate);
    Pair<Roce> pair;
    const unsigned tried = kernel.runs();
    move_a_long_message(pair);
    RVT_EQ(kernel.runs(), tried);
    RVT_EQ(tried, 3u);
    RVT_EQ(told, 1u);
}

bool may_segment(const util::SockAddr& address) {
    return roce::open_udp_socket(address).value().can_segment;
}

constexpr util::SockAddr kLoopback{.family = AF_INET, .ip = {127, 0, 0, 1}};
constexpr util::SockAddr kWire{.family = AF_INET, .ip = {192, 0, 2, 1}};

}  // namespace

Test(roce_runs, of_a_kernel_that_cuts_them_are_used_and_tried_once, .timeout = 30) {
    test::enter_own_network();
    util::set_log_sink(&kSink);
    Kernel kernel(Fate::kAsAsked);
    Pair<Roce> pair;
    RVT_EQ(kernel.runs(), 1u);
    Pair<Roce> another;
    RVT_EQ(kernel.runs(), 1u);
    move_a_long_message(pair);
    RVT_ASSERT(kernel.runs() > 1);
    RVT_EQ(told, 0u);
}

Test(roce_runs, that_are_refused_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kRefused);
}

Test(roce_runs, that_are_too_large_for_one_packet_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kTooLarge);
}

Test(roce_runs, that_are_dropped_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kDropped);
}

Test(roce_runs, that_are_not_cut_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kUncut);
}

Test(roce_runs, that_are_cut_elsewhere_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kCutElsewhere);
}

Test(roce_runs, that_are_changed_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kChanged);
}

Test(roce_runs, that_arrive_in_part_leave_packet_by_packet, .timeout = 30) {
    leaves_packet_by_packet(Fate::kShort);
}

namespace {

/// Of a peer that the route takes less to than the interface, though more than these packets.
void are_refused_no_second_time(Fate fate) {
    if (!test::enter_own_network()) {
        cr_skip_test("this user may make no network of its own");
    }
    RVT_EQ(std::system("ip route replace 192.0.2.0/24 dev wire0 mtu 700 && "
                       "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev wire0"),
           0);
    Kernel kernel(Fate::kAsAsked);
    Registry registry;
    const auto from = roce::PacketDevice::open(registry, {.name = "from", .address = kWire}).take();
    kernel.change_to(fate);
    util::SockAddr peer = kWire;
    peer.ip[3] = 2;
    peer.port = 7;
    std::array<std::byte, protocol::kMaxHeaderBytes> header{};
    const OutPacket packet{
        .headers = {header.data(), protocol::encode({.dest_qpn = 1}, header.data())}};
    for (int i = 0; i < 3; ++i) {
        RVT_EQ(from->send({.dest = to_address(peer)}, std::array{packet, packet}), 2u);
        from->device().progress();
    }
    RVT_EQ(kernel.runs(), 3u);  // the one that was tried, and one that is offered twice
    RVT_EQ(from->transmit_queue().refused(), 2u);
    RVT_OK(from->close());
}

}  // namespace

Test(roce_runs, that_are_refused_later_are_refused_once, .timeout = 30) {
    are_refused_no_second_time(Fate::kRefused);
}

Test(roce_runs, that_are_invalid_later_are_refused_once, .timeout = 30) {
    are_refused_no_second_time(Fate::kInvalid);
}

Test(roce_runs, that_are_too_large_later_are_refused_once, .timeout = 30) {
    are_refused_no_second_time(Fate::kTooLarge);
}

/// As a lossy loopback interface has it.
Test(roce_runs, that_are_lost_once_or_twice_are_used_all_the_same, .timeout = 30) {
    Kernel kernel(Fate::kDropped, 2);
    util::set_log_sink(&kSink);
    RVT_ASSERT(may_segment(kLoopback));
    RVT_EQ(kernel.runs(), 3u);
    RVT_ASSERT(may_segment(kLoopback));
    RVT_EQ(kernel.runs(), 3u);
    RVT_EQ(told, 0u);
}

Test(roce_runs, of_each_address_family_are_tried, .timeout = 30) {
    if (!test::enter_own_network()) {
        cr_skip_test("this user may make no network of its own");
    }
    Kernel kernel(Fate::kAsAsked);
    RVT_ASSERT(may_segment(kLoopback));
    kernel.change_to(Fate::kChanged);
    RVT_ASSERT(!may_segment(util::SockAddr::from_string("[::1]:0").value()));
    RVT_ASSERT(may_segment(kLoopback));
}

Test(roce_runs, are_what_the_options_say_while_the_loopback_interface_is_down, .timeout = 30) {
    if (!test::enter_own_network()) {
        cr_skip_test("this user may make no network of its own");
    }
    Kernel kernel(Fate::kDropped);
    RVT_EQ(std::system("ip link set lo down"), 0);
    RVT_ASSERT(may_segment(kWire));
    RVT_EQ(std::system("ip link set lo up"), 0);
    RVT_ASSERT(!may_segment(kWire));
}

Test(roce_runs, leave_no_descriptors_behind_when_they_are_tried, .timeout = 30) {
    const auto descriptors = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    Kernel kernel(Fate::kDropped);
    util::set_log_sink(&kSink);
    const auto before = descriptors();
    RVT_ASSERT(!may_segment(kLoopback));
    RVT_EQ(descriptors(), before);
}
