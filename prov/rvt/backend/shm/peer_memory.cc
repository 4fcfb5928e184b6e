// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory files of a handshake. Every claim of a peer is checked here before it is used.
#include "backend/shm/peer_memory.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <linux/membarrier.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "util/fork_guard.h"
#include "util/log.h"

namespace rvt::shm {
namespace {

/// Pages that an outbox has from the start: the header and the small rings.
constexpr std::size_t kOutboxReserve = kLargeLinesOffset;
/// Larger key tables do not exist; a claim of more is a mistake or worse.
constexpr std::uint64_t kMaxKeysBytes = 1ULL << 36;

enum HelloFd : std::size_t { kPageFd, kOutboxFd, kWakeFd, kKeysFd };

/// Random and the same for the whole life of this process. Threads: control thread.
std::uint64_t process_token() noexcept {
    static std::uint64_t token = 0;
    static unsigned generation = 0;
    if (token == 0 || generation != util::fork_generation()) {
        generation = util::fork_generation();
        if (getrandom(&token, sizeof token, GRND_NONBLOCK) != sizeof token) {
            token = static_cast<std::uint64_t>(getpid()) << 32 | generation;
        }
    }
    return token;
}

/// Why the memory of a process cannot be read, or 0. process_vm_writev(2) asks for the same
/// permission.
int probe(pid_t pid, std::uint64_t address, std::uint64_t expected) noexcept {
    if (pid == 0) {
        return ESRCH;
    }
    std::uint64_t value = 0;
    const iovec here{&value, sizeof value};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process
    const iovec there{reinterpret_cast<void*>(address), sizeof value};
    const ssize_t count = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (count < 0) {
        return errno;
    }
    // Another value: this number is another process, whose pid namespace we do not share.
    return value == expected ? 0 : ESRCH;
}

/// An eventfd that never blocks us: nothing else may be written to when the peer is to be woken.
bool is_wake_fd(int fd) noexcept {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) == 0) {
        return false;
    }
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    std::array<char, 32> target{};
    const ssize_t length = readlink(path.c_str(), target.data(), target.size());
    if (length >= 0) {
        return std::string_view(target.data(), static_cast<std::size_t>(length)) ==
               "anon_inode:[eventfd]";
    }
    // No /proc in this sandbox: anonymous inodes are the only files without a type, and those take
    // no 8 bytes by chance.
    struct stat file {};
    return fstat(fd, &file) == 0 && (file.st_mode & S_IFMT) == 0;
}

util::Status check_claims(const Hello& hello, const Message& message) noexcept {
    const bool has_keys = (hello.flags & kHasKeys) != 0;
    if (message.fd_count != (has_keys ? kKeysFd + 1 : kKeysFd) || hello.page_bytes != kPageBytes ||
        hello.outbox_bytes != kOutboxBytes) {
        return EPROTO;
    }
    return has_keys && (hello.keys_bytes == 0 || hello.keys_bytes > kMaxKeysBytes)
               ? util::Status(EPROTO)
               : util::kOk;
}

util::Status map_files(Peering& peering, const Hello& hello, Message& message) {
    util::Result<util::Mapping> page =
        util::Mapping::view(std::move(message.fds[kPageFd]), hello.page_bytes);
    if (!page.is_ok()) {
        return page.status();
    }
    util::Result<util::Mapping> inbox =
        util::Mapping::view(std::move(message.fds[kOutboxFd]), hello.outbox_bytes);
    if (!inbox.is_ok()) {
        return inbox.status();
    }
    peering.page = page.take();
    peering.inbox = inbox.take();
    if ((hello.flags & kHasKeys) == 0) {
        return util::kOk;
    }
    util::Result<util::Mapping> keys =
        util::Mapping::view(std::move(message.fds[kKeysFd]), hello.keys_bytes);
    if (!keys.is_ok()) {
        return keys.status();
    }
    peering.keys = keys.take();
    return util::kOk;
}

util::Status check_content(const Peering& peering, const Hello& hello) noexcept {
    const auto* page = peering.page.at<EndpointPage>(0);
    const auto* inbox = peering.inbox.at<OutboxHeader>(0);
    const bool is_right = page->magic == kMagic && page->version == kLayoutVersion &&
                          page->incarnation == hello.incarnation && inbox->magic == kMagic &&
                          inbox->version == kLayoutVersion &&
                          inbox->total_bytes == hello.outbox_bytes;
    return is_right ? util::kOk : util::Status(EPROTO);
}

Hello describe(const LocalEnd& local) noexcept {
    const auto* page = local.page->at<EndpointPage>(0);
    Hello hello;
    hello.address = to_wire(local.address);
    hello.incarnation = page->incarnation;
    hello.probe_address = reinterpret_cast<std::uint64_t>(&page->probe);
    hello.process_token = process_token();
    hello.keys_bytes = local.keys != nullptr ? local.keys->length() : 0;
    hello.page_bytes = kPageBytes;
    hello.outbox_bytes = kOutboxBytes;
    hello.flags =
        (local.keys != nullptr ? kHasKeys : 0U) | (register_membarrier() ? kHasMembarrier : 0U);
    hello.cpu = local.cpu;
    return hello;
}

/// A copy of a descriptor for map_self(), which takes the same way as a peer's.
util::UniqueFd copy_fd(int fd) noexcept {
    return util::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

}  // namespace

util::Result<util::Mapping> make_outbox() {
    util::Result<util::Mapping> outbox =
        util::Mapping::create("rvt-outbox", kOutboxBytes, kOutboxReserve);
    if (outbox.is_ok()) {
        auto* header = outbox.value().at<OutboxHeader>(0);
        header->magic = kMagic;
        header->version = kLayoutVersion;
        header->total_bytes = kOutboxBytes;
    }
    return outbox;
}

util::Status send_hello(int socket, const LocalEnd& local, const util::Mapping& outbox) noexcept {
    const Hello hello = describe(local);
    const std::array<int, kMaxMessageFds> fds{local.page->fd(), outbox.fd(), local.wake_fd,
                                              local.keys != nullptr ? local.keys->fd() : -1};
    return send_message(socket, &hello, sizeof hello, fds.data(),
                        local.keys != nullptr ? kKeysFd + 1 : kKeysFd);
}

util::Result<std::unique_ptr<Peering>> map_peer(Message& message,
                                                const PeerCredentials& credentials) {
    const auto hello = message.as<Hello>();
    const util::Result<util::SockAddr> address = from_wire(hello.address);
    util::Status status = address.is_ok() ? check_claims(hello, message) : address.status();
    if (!status.is_ok()) {
        return status;
    }
    auto peering = std::make_unique<Peering>();
    peering->wake_fd = std::move(message.fds[kWakeFd]);
    status = is_wake_fd(peering->wake_fd.get()) ? map_files(*peering, hello, message)
                                                : util::Status(EPROTO);
    if (status.is_ok()) {
        status = check_content(*peering, hello);
    }
    if (!status.is_ok()) {
        return status;
    }
    peering->address = address.value();
    peering->incarnation = hello.incarnation;
    peering->pid = credentials.pid;
    peering->is_same_process =
        credentials.pid == getpid() && hello.process_token == process_token();
    peering->read_error =
        probe(credentials.pid, hello.probe_address, peering->page.at<EndpointPage>(0)->probe);
    peering->may_read_memory = peering->read_error == 0;
    peering->peer_has_membarrier = (hello.flags & kHasMembarrier) != 0 && register_membarrier();
    peering->cpu = hello.cpu;
    return peering;
}

util::Result<std::unique_ptr<Peering>> map_self(const LocalEnd& local) {
    util::Result<util::Mapping> outbox = make_outbox();
    if (!outbox.is_ok()) {
        return outbox.status();
    }
    const Hello hello = describe(local);
    Message message;
    std::memcpy(message.bytes.data(), &hello, sizeof hello);
    message.fds[kPageFd] = copy_fd(local.page->fd());
    message.fds[kOutboxFd] = copy_fd(outbox.value().fd());
    message.fds[kWakeFd] = copy_fd(local.wake_fd);
    message.fd_count = kKeysFd;
    if (local.keys != nullptr) {
        message.fds[message.fd_count++] = copy_fd(local.keys->fd());
    }
    for (std::size_t i = 0; i < message.fd_count; ++i) {
        if (!message.fds[i].is_open()) {
            return EMFILE;
        }
    }
    util::Result<std::unique_ptr<Peering>> peering =
        map_peer(message, {.pid = getpid(), .uid = geteuid()});
    if (peering.is_ok()) {
        outbox.value().close_file();
        peering.value()->outbox = outbox.take();
    }
    return peering;
}

bool register_membarrier() noexcept {
    static const bool kIsRegistered =
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
    return kIsRegistered;
}

}  // namespace rvt::shm
