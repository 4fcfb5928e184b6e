// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Runs that a socket sends to itself.
#include "backend/roce/run_trial.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include "util/fork_guard.h"
#include "util/log.h"
#include "util/sock_addr.h"
#include "util/unique_fd.h"

namespace rvt::roce {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPackets = 64;  // as many as a run ever has
constexpr std::size_t kPacketBytes = 200;
constexpr std::size_t kLastBytes = 120;
constexpr std::size_t kRunBytes = (kPackets - 1) * kPacketBytes + kLastBytes;
// The loopback interface has delivered before a call returns, or a thread of the kernel does soon.
constexpr std::chrono::milliseconds kPatience{5};
// One run may be lost, doubled or late by chance. As many one after the other are not.
constexpr int kTrials = 3;

enum class Verdict : std::uint8_t { kUnknown, kWhole, kBroken };

bool set_option(int fd, int level, int option, int value) noexcept {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/// Whether the kernel means the run by it, rather than the way, or its own lack of room.
bool is_of_run(int error) noexcept {
    return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP;
}

class RunTrial {
  public:
    explicit RunTrial(int family) noexcept : family_(family) {
        for (std::size_t i = 0; i < run_.size(); ++i) {
            // Of two packets no byte in the same place is the same.
            run_[i] = static_cast<std::byte>(i % kPacketBytes + i / kPacketBytes);
        }
    }

    Verdict verdict() noexcept {
        if (!open() || !can_segment()) {
            return Verdict::kUnknown;
        }
        if (!send_run()) {
            return is_of_run(errno) ? broken(strerrordesc_np(errno)) : Verdict::kUnknown;
        }
        // What follows the run arrives behind it: then it is lost, or else nothing arrives here.
        return send(fence_.data(), fence_.size(), nullptr, 0) ? receive() : Verdict::kUnknown;
    }

    /// What became of a run that is broken, for people.
    [[nodiscard]] const char* reason() const noexcept { return reason_; }

  private:
    /// Nobody else can send to a socket that is connected to itself.
    bool open() noexcept {
        const util::SockAddr address = loopback();
        sockaddr_storage name{};
        auto bytes = static_cast<socklen_t>(address.to(&name));
        auto* const own = reinterpret_cast<sockaddr*>(&name);
        socket_.reset(::socket(family_, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
        return socket_.is_open() && bind(socket_.get(), own, bytes) == 0 &&
               getsockname(socket_.get(), own, &bytes) == 0 &&
               connect(socket_.get(), own, bytes) == 0;
    }

    [[nodiscard]] util::SockAddr loopback() const noexcept {
        util::SockAddr address{.family = static_cast<std::uint16_t>(family_)};
        if (family_ == AF_INET) {
            address.ip = {127, 0, 0, 1};
        } else {
            address.ip.back() = 1;
        }
        return address;
    }

    /// The options as the sockets of devices have them. One that is not there is not used there.
    bool can_segment() noexcept {
        set_option(socket_.get(), IPPROTO_UDP, UDP_GRO, 1);
        return set_option(socket_.get(), IPPROTO_UDP, UDP_SEGMENT, 0);
    }

    bool send(std::byte* begin, std::size_t bytes, void* control,
              std::size_t control_bytes) noexcept {
        iovec piece{begin, bytes};
        msghdr header{};
        header.msg_iov = &piece;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = control_bytes;
        return sendmsg(socket_.get(), &header, MSG_DONTWAIT) >= 0;
    }

    bool send_run() noexcept {
        constexpr std::uint16_t kEach = kPacketBytes;
        alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof kEach)] = {};
        auto* const first = reinterpret_cast<cmsghdr*>(control);
        first->cmsg_level = IPPROTO_UDP;
        first->cmsg_type = UDP_SEGMENT;
        first->cmsg_len = CMSG_LEN(sizeof kEach);
        std::memcpy(CMSG_DATA(first), &kEach, sizeof kEach);
        return send(run_.data(), run_.size(), control, sizeof control);
    }

    Verdict receive() noexcept {
        const Clock::time_point end = Clock::now() + kPatience;
        while (arrived_ < run_.size()) {
            if (take_message()) {
                continue;
            }
            if (is_changed_) {
                return broken("it arrives otherwise");
            }
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
            pollfd told{.fd = socket_.get(), .events = POLLIN, .revents = 0};
            if (left.count() <= 0 || poll(&told, 1, static_cast<int>(left.count())) <= 0) {
                return has_fence_ ? broken("it does not arrive") : Verdict::kUnknown;
            }
        }
        return Verdict::kWhole;
    }

    /// Returns: false when there is none, or it is not as it was sent.
    bool take_message() noexcept {
        std::array<std::byte, kRunBytes + 1> bytes;
        alignas(cmsghdr) std::byte control[128];
        iovec piece{bytes.data(), bytes.size()};
        msghdr header{};
        header.msg_iov = &piece;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        const ssize_t got = recvmsg(socket_.get(), &header, MSG_DONTWAIT);
        if (got < 0) {
            return false;
        }
        is_changed_ = !is_next({bytes.data(), static_cast<std::size_t>(got)},
                               packet_bytes(header, static_cast<std::size_t>(got)));
        return !is_changed_;
    }

    /// Of how many bytes each packet of a message is, as the kernel says that joined it.
    static std::size_t packet_bytes(msghdr& header, std::size_t bytes) noexcept {
        const cmsghdr* const first = CMSG_FIRSTHDR(&header);
        if (first == nullptr || first->cmsg_level != IPPROTO_UDP || first->cmsg_type != UDP_GRO) {
            return bytes;
        }
        int each = 0;
        std::memcpy(&each, CMSG_DATA(first), sizeof each);
        return each > 0 ? static_cast<std::size_t>(each) : bytes;
    }

    /// Whether these packets, of `each` bytes but for the last, are those that come next.
    bool is_next(std::span<const std::byte> bytes, std::size_t each) noexcept {
        if (bytes.size() == fence_.size()) {
            has_fence_ = true;
            return bytes[0] == fence_[0];
        }
        const std::size_t left = run_.size() - arrived_;
        const bool is_run =
            bytes.size() <= left && std::memcmp(bytes.data(), &run_[arrived_], bytes.size()) == 0;
        arrived_ += bytes.size();
        const bool is_whole = arrived_ % kPacketBytes == 0 || arrived_ == run_.size();
        return is_run && is_whole && (each == kPacketBytes || each == bytes.size()) &&
               each <= kPacketBytes;
    }

    Verdict broken(const char* reason) noexcept {
        reason_ = reason;
        return Verdict::kBroken;
    }

    const int family_;
    util::UniqueFd socket_;
    std::array<std::byte, kRunBytes> run_;
    std::array<std::byte, 1> fence_{std::byte{0xf0}};
    std::size_t arrived_ = 0;  // bytes of the run
    bool has_fence_ = false;
    bool is_changed_ = false;
    const char* reason_ = "";
};

Verdict try_runs(int family) noexcept {
    for (int i = 1;; ++i) {
        RunTrial trial(family);
        const Verdict verdict = trial.verdict();
        if (verdict != Verdict::kBroken) {
            return verdict;
        }
        if (i == kTrials) {
            RVT_INFO(kEpCtrl,
                     "packets leave one by one: the kernel takes UDP_SEGMENT, but not a run of %zu "
                     "that it is to cut, sent over the loopback interface by IPv%d: %s",
                     kPackets, family == AF_INET ? 4 : 6, trial.reason());
            return verdict;
        }
    }
}

}  // namespace

bool may_join_packets(int family) noexcept {
    static Verdict known[2] = {};  // guarded by the hold, which one thread has at a time
    const util::ForkHold hold;
    Verdict& verdict = known[family == AF_INET ? 0 : 1];
    if (verdict == Verdict::kUnknown) {
        verdict = try_runs(family);
    }
    return verdict != Verdict::kBroken;
}

}  // namespace rvt::roce
