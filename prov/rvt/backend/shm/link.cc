// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages of established connections, and the end of peers.
#include "backend/shm/link.h"

#include <cerrno>
#include <utility>

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/shm/handshake.h"
#include "backend/shm/region.h"
#include "util/log.h"
#include "util/params.h"

namespace rvt::shm {
namespace {

#ifdef SO_PEERPIDFD
constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kPeerPidfd = 77;  // Linux 6.5
#endif

/// The process on the other side, without the race of a reused number where the kernel can.
util::UniqueFd open_pidfd(int socket, int pid) noexcept {
    int fd = -1;
    socklen_t length = sizeof fd;
    if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &length) != 0) {
        fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    }
    return util::UniqueFd(fd);
}

/// Where a region of ours is, for a peer to map.
util::Result<FilePart> find_part(RegionSource& source) {
    if (source.handle) {
        return ENOTSUP;
    }
    if (source.file.is_open()) {
        return part_of_dma_buf(std::move(source.file), source.offset, source.length);
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return find_file(reinterpret_cast<const void*>(source.address), source.length);
}

/// Descriptors are given lowest number first, so the number tells how full the table is.
bool is_scarce(int fd) noexcept {
    rlimit limit{};
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
           static_cast<rlim_t>(fd) >= limit.rlim_cur / 4 * 3;
}

}  // namespace

util::Status Link::start(util::ProcessFd socket) {
    socket_ = std::move(socket);
    return socket_.is_open() ? watch(socket_.get(), EPOLLIN | EPOLLRDHUP) : util::kOk;
}

bool Link::is_hung_up() const noexcept {
    return socket_.is_open() && shm::is_hung_up(socket_.get());
}

void Link::on_ready([[maybe_unused]] std::uint32_t events) {
    const util::Status status = take_messages();
    if (std::exchange(is_woken_, false)) {
        owner_.link_woken();
    }
    if (status.error() != EAGAIN) {
        owner_.link_ended(*this, status);  // *this is gone
    }
}

util::Status Link::take_messages() {
    for (;;) {
        util::Result<Message> message = receive_message(socket_.get());
        const util::Status status = message.is_ok() ? take(message.value()) : message.status();
        if (!status.is_ok()) {
            return status;
        }
    }
}

util::Status Link::take(Message& message) {
    switch (message.header.type) {
        case MessageType::kWake: is_woken_ = true; return util::kOk;
        case MessageType::kRegionRequest:
            answer_region(message.as<RegionRequest>().key);
            return util::kOk;
        case MessageType::kRegionReply: return take_region(message);
        case MessageType::kRegionHandle: return take_handle(message);
        case MessageType::kHello:
        case MessageType::kReady:
        case MessageType::kRefuse: break;
    }
    return EPROTO;
}

// ---- regions ----

util::Status Link::ask_region(std::uint64_t key) noexcept {
    if (!socket_.is_open()) {
        return ENOTSUP;
    }
    const RegionRequest request{.key = key};
    const util::Status status = send_message(socket_.get(), &request, sizeof request, nullptr, 0);
    regions_asked_ += status.is_ok() ? 1 : 0;
    return status;
}

void Link::answer_region(std::uint64_t key) {
    util::Result<RegionSource> source = owner_.region_asked(key);
    if (source.is_ok() && source.value().handle &&
        answer_with_handle(key, source.value()).is_ok()) {
        return;
    }
    const util::Result<FilePart> part =
        source.is_ok() ? find_part(source.value()) : source.status();
    RegionReply reply{.key = key};
    util::Status status = part.status();
    if (part.is_ok()) {
        reply.offset = part.value().offset;
        reply.length = part.value().length;
        reply.skip = part.value().skip;
        reply.bytes = source.value().length;
        const int fd = part.value().fd.get();
        status = send_message(socket_.get(), &reply, sizeof reply, &fd, 1);
    }
    if (!status.is_ok()) {
        // A peer whose socket is full does without; it goes on with its other ways.
        reply.header.error = status.error();
        status = send_message(socket_.get(), &reply, sizeof reply, nullptr, 0);
    }
}

util::Status Link::answer_with_handle(std::uint64_t key, const RegionSource& source) {
    RegionHandle reply;
    reply.key = key;
    reply.bytes = source.length;
    reply.handle = *source.handle;
    return send_message(socket_.get(), &reply, sizeof reply, nullptr, 0);
}

util::Status Link::take_handle(const Message& message) {
    const auto reply = message.as<RegionHandle>();
    if (regions_asked_ == 0 || message.fd_count != 0) {
        return EPROTO;
    }
    --regions_asked_;
    MappedRegion region;
    region.handle = reply.handle;
    region.length = reply.bytes;
    owner_.region_answered(*this, reply.key, std::move(region));
    return util::kOk;
}

util::Status Link::take_region(Message& message) {
    const auto reply = message.as<RegionReply>();
    if (regions_asked_ == 0 || message.fd_count > 1) {
        return EPROTO;
    }
    --regions_asked_;
    if (message.fd_count == 0) {
        const int error = reply.header.error;
        owner_.region_answered(*this, reply.key, error > 0 && error <= kMaxErrno ? error : EPROTO);
        return util::kOk;
    }
    owner_.region_answered(*this, reply.key,
                           map_region(std::move(message.fds[0]),
                                      {.offset = reply.offset,
                                       .length = reply.length,
                                       .skip = reply.skip,
                                       .bytes = reply.bytes},
                                      util::param_is_set(util::ParamId::kMapUnsealed)));
    return util::kOk;
}

void ProcessWatch::add(Link& link) {
    if (link.pid() == 0 || link.pid() == getpid()) {
        return;
    }
    if (is_scarce(link.socket())) {
        for (auto& [pid, process] : processes_) {
            process->give_up();
        }
    }
    std::unique_ptr<Process>& process = processes_[link.pid()];
    if (process == nullptr) {
        process = std::make_unique<Process>(thread_, owner_);
        process->start(link.socket(), link.pid());
    }
    process->links.insert(&link);
}

void ProcessWatch::remove(Link& link) noexcept {
    const auto found = processes_.find(link.pid());
    if (found == processes_.end()) {
        return;
    }
    found->second->links.erase(&link);
    if (found->second->links.empty()) {
        processes_.erase(found);
    }
}

void ProcessWatch::Process::start(int socket, int pid) {
    util::UniqueFd fd = open_pidfd(socket, pid);
    if (!fd.is_open() || is_scarce(fd.get())) {
        return;  // the socket alone must do
    }
    pidfd_ = util::ProcessFd(std::move(fd));
    if (!watch(pidfd_.get(), EPOLLIN).is_ok()) {
        pidfd_.reset();
    }
}

void ProcessWatch::Process::give_up() noexcept {
    unwatch();
    pidfd_.reset();
}

void ProcessWatch::Process::on_ready([[maybe_unused]] std::uint32_t events) {
    // The owner removes each link from here, and with the last one this object.
    for (std::size_t left = links.size(); left != 0; --left) {
        owner_.link_ended(**links.begin(), ECONNRESET);
    }
}

}  // namespace rvt::shm
