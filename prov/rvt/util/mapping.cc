// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory files: memfd_create(2), seals (fcntl(2), "File Sealing").
#include "util/mapping.h"

#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/log.h"
#include "util/memory_room.h"

namespace rvt::util {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned kNoExecSeal = 0x0008U;  // Linux 6.3
#else
constexpr unsigned kNoExecSeal = MFD_NOEXEC_SEAL;
#endif
constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

Result<UniqueFd> make_file(const char* name) noexcept {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        const int error = errno;
        RVT_WARN(kEpCtrl, "cannot make shared memory '%s': memfd_create: %s%s", name,
                 strerrordesc_np(error),
                 error == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "");
        return error;
    }
    return UniqueFd(fd);
}

/// The kernel answers a file larger than the limit with a signal that ends the process.
Status check_file_size_limit(const char* name, std::size_t length) noexcept {
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= length) {
        return kOk;
    }
    RVT_WARN(kEpCtrl,
             "cannot make shared memory '%s': %zu bytes needed, RLIMIT_FSIZE allows %llu; raise it "
             "(ulimit -f)",
             name, length, static_cast<unsigned long long>(limit.rlim_cur));
    return EFBIG;
}

Status allocate(int fd, std::size_t offset, std::size_t length) noexcept {
    int result = 0;
    do {
        result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length));
    } while (result != 0 && errno == EINTR);
    return result == 0 ? kOk : Status(errno);
}

/// What this process needs besides, when it makes shared memory.
constexpr std::size_t kSpareRoom = 64 * 1024;

Status check_memory_limit(const char* name, std::size_t bytes) noexcept {
    const std::uint64_t room = bytes == 0 ? kUnlimitedMemory : memory_room();
    if (room >= bytes + kSpareRoom) {
        return kOk;
    }
    RVT_WARN(kEpCtrl,
             "cannot make shared memory '%s': %zu bytes of memory needed, the memory cgroup leaves "
             "%llu; raise its memory.max",
             name, bytes, static_cast<unsigned long long>(room));
    return ENOMEM;
}

Status populate(char* address, std::size_t length) noexcept {
    // The kernel wants the beginning of a page, and has pages of up to 64 KiB.
    const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::size_t before = reinterpret_cast<std::uintptr_t>(address) % page_bytes;
    if (::madvise(address - before, before + length, MADV_POPULATE_WRITE) == 0) {
        return kOk;
    }
    switch (errno) {
        case EINVAL: return ENOSYS;
        case EFAULT: return ENOMEM;  // a page could not be had: the touch would have been a SIGBUS
        default: return errno;
    }
}

Status resize(const char* name, int fd, std::size_t length, std::size_t reserve) noexcept {
    if (ftruncate(fd, static_cast<off_t>(length)) != 0) {
        const int error = errno;
        RVT_WARN(kEpCtrl, "cannot make shared memory '%s': %zu bytes: %s", name, length,
                 strerrordesc_np(error));
        return error;
    }
    const Status status = reserve == 0 ? kOk : allocate(fd, 0, reserve);
    if (!status.is_ok()) {
        RVT_WARN(kEpCtrl,
                 "cannot make shared memory '%s': %zu bytes of memory needed: %s; raise the memory "
                 "limit",
                 name, reserve, strerrordesc_np(status.error()));
    }
    return status;
}

/// Called once our own writable mapping exists: FUTURE_WRITE spares it and refuses all others.
Status seal(const char* name, int fd) noexcept {
    if (fcntl(fd, F_ADD_SEALS, kFixedSize | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE) == 0 ||
        fcntl(fd, F_ADD_SEALS, kFixedSize | F_SEAL_SEAL) == 0) {  // before Linux 5.1
        return kOk;
    }
    const int error = errno;
    RVT_WARN(kEpCtrl, "cannot make shared memory '%s': sealing: %s", name, strerrordesc_np(error));
    return error;
}

/// Huge pages are none: who touches one that is not there, or punched out, gets a SIGBUS when there
/// is no other; and they are mapped in larger units.
bool has_small_pages(int fd) noexcept {
    struct statfs system {};
    return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

Status check_sealed(int fd, std::size_t length) noexcept {
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat file {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !has_small_pages(fd) ||
        fstat(fd, &file) != 0) {
        return EPROTO;
    }
    return static_cast<std::size_t>(file.st_size) >= length ? kOk : Status(EPROTO);
}

}  // namespace

Result<Mapping> Mapping::create(const char* name, std::size_t length, std::size_t reserve) {
    const ForkHold hold;
    Status status = check_file_size_limit(name, length);
    if (status.is_ok()) {
        status = check_memory_limit(name, reserve);
    }
    if (!status.is_ok()) {
        return status;
    }
    Result<UniqueFd> file = make_file(name);
    if (!file.is_ok()) {
        return file.status();
    }
    status = resize(name, file.value().get(), length, reserve);
    if (!status.is_ok()) {
        return status;
    }
    Result<Mapping> mapping = map(file.take(), 0, length, PROT_READ | PROT_WRITE);
    if (!mapping.is_ok()) {
        RVT_WARN(kEpCtrl,
                 "cannot map shared memory '%s': %zu bytes: %s; raise RLIMIT_AS (ulimit -v)", name,
                 length, strerrordesc_np(mapping.error()));
        return mapping.status();
    }
    status = seal(name, mapping.value().fd());
    if (!status.is_ok()) {
        return status;
    }
    return mapping;
}

Result<Mapping> Mapping::view(UniqueFd fd, std::size_t length) {
    const Status status = check_sealed(fd.get(), length);
    return status.is_ok() ? attach(std::move(fd), 0, length, false) : Result<Mapping>(status);
}

Result<Mapping> Mapping::attach(UniqueFd fd, std::size_t offset, std::size_t length,
                                bool is_writable) {
    Result<Mapping> mapping =
        map(std::move(fd), offset, length, is_writable ? PROT_READ | PROT_WRITE : PROT_READ);
    if (mapping.is_ok()) {
        mapping.value().close_file();
    }
    return mapping;
}

Result<Mapping> Mapping::map(UniqueFd fd, std::size_t offset, std::size_t length, int protection) {
    void* const address =
        ::mmap(nullptr, length, protection, MAP_SHARED, fd.get(), static_cast<off_t>(offset));
    if (address == MAP_FAILED) {
        return errno;
    }
    fork_forgets_memory(address, length);
    Mapping mapping;
    mapping.address_ = address;
    mapping.length_ = length;
    mapping.fd_ = ProcessFd(std::move(fd));
    return mapping;
}

Status Mapping::reserve(std::size_t offset, std::size_t length) noexcept {
    return fd_.is_open() ? allocate(fd_.get(), offset, length) : populate(at<char>(offset), length);
}

void Mapping::close_file() noexcept {
    fd_.reset();
}

void Mapping::reset() noexcept {
    if (address_ != nullptr) {
        fork_keeps_memory(address_);
        ::munmap(address_, length_);
    }
    address_ = nullptr;
    length_ = 0;
    fd_.reset();
}

}  // namespace rvt::util
