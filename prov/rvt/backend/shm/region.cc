// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From addresses to files (proc(5), maps and map_files), and back to addresses in another process.
#include "backend/shm/region.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/dma_buf.h"
#include "util/fault_guard.h"

namespace rvt::shm {
namespace {

/// A larger file than any machine has memory for; sums of two such numbers do not wrap.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

/// One line of /proc/self/maps.
struct MapEntry {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
    dev_t device = 0;
    ino_t inode = 0;
    bool is_shared = false;
};

struct FileCloser {
    void operator()(FILE* file) const noexcept { std::fclose(file); }
    void operator()(DIR* directory) const noexcept { closedir(directory); }
};
using File = std::unique_ptr<FILE, FileCloser>;
using Directory = std::unique_ptr<DIR, FileCloser>;

bool parse(const char* line, MapEntry& entry) noexcept {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long offset = 0;
    unsigned long inode = 0;
    unsigned major_number = 0;
    unsigned minor_number = 0;
    char permissions[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s %lx %x:%x %lu", &begin, &end, permissions, &offset,
                    &major_number, &minor_number, &inode) != 7) {
        return false;
    }
    entry = {.begin = begin,
             .end = end,
             .offset = offset,
             .device = makedev(major_number, minor_number),
             .inode = inode,
             .is_shared = permissions[3] == 's'};
    return true;
}

bool continues(const MapEntry& entry, const MapEntry& next) noexcept {
    return next.begin == entry.end && next.device == entry.device && next.inode == entry.inode &&
           next.is_shared && next.offset == entry.offset + (entry.end - entry.begin);
}

/// The mapping that holds [begin, end), neighbours that continue it taken together.
util::Result<MapEntry> find_mapping(std::uint64_t begin, std::uint64_t end) {
    const File maps(std::fopen("/proc/self/maps", "re"));
    if (maps == nullptr) {
        return errno == EMFILE ? EMFILE : ENXIO;
    }
    char* text = nullptr;
    std::size_t capacity = 0;
    MapEntry found;
    bool is_inside = false;
    MapEntry entry;
    while (getline(&text, &capacity, maps.get()) >= 0 && found.end < end) {
        if (!parse(text, entry) || entry.end <= begin) {
            continue;
        }
        if (is_inside ? !continues(found, entry) : entry.begin > begin || !entry.is_shared) {
            break;
        }
        if (!is_inside) {
            found = entry;
            is_inside = true;
        }
        found.end = entry.end;
    }
    std::free(text);
    return is_inside && found.end >= end && found.inode != 0 ? util::Result<MapEntry>(found)
                                                             : ENXIO;
}

bool is_file(int fd, const MapEntry& entry) noexcept {
    struct stat file {};
    return fstat(fd, &file) == 0 && file.st_dev == entry.device && file.st_ino == entry.inode;
}

/// Kept in memory: a memfd, /dev/shm, huge pages. Others would be read from a disk that may fail.
bool is_in_memory(int fd) noexcept {
    struct statfs system {};
    return fstatfs(fd, &system) == 0 &&
           (system.f_type == TMPFS_MAGIC || system.f_type == HUGETLBFS_MAGIC);
}

bool is_read_only(int fd) noexcept {
    return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

/// A copy of a descriptor of ours, if it is of that file.
util::UniqueFd copy_if_file(const char* number, const MapEntry& entry) noexcept {
    int fd = -1;
    const auto parsed = std::from_chars(number, number + std::strlen(number), fd);
    if (parsed.ec != std::errc{} || !is_file(fd, entry)) {
        return {};
    }
    util::UniqueFd copy = util::duplicate(fd);
    // Its owner may have closed it in between, and the number may be another file by now.
    return copy.is_open() && is_file(copy.get(), entry) ? std::move(copy) : util::UniqueFd{};
}

/// A copy of an open descriptor of that file, one that may write where there is one.
util::UniqueFd find_descriptor(const MapEntry& entry) {
    const Directory directory(opendir("/proc/self/fd"));
    util::UniqueFd found;
    while (directory != nullptr && (!found.is_open() || is_read_only(found.get()))) {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread has this directory
        const dirent* const item = readdir(directory.get());
        if (item == nullptr) {
            break;
        }
        util::UniqueFd copy = copy_if_file(item->d_name, entry);
        if (copy.is_open()) {
            found = std::move(copy);
        }
    }
    return found;
}

/// Where no descriptor is left, the mapping itself can be opened by those who may
/// (CAP_CHECKPOINT_RESTORE).
util::UniqueFd open_mapping(const MapEntry& entry) noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx",
                  static_cast<unsigned long>(entry.begin), static_cast<unsigned long>(entry.end));
    util::UniqueFd fd(open(path, O_RDWR | O_CLOEXEC));
    if (!fd.is_open()) {
        fd.reset(open(path, O_RDONLY | O_CLOEXEC));
    }
    return fd.is_open() && is_file(fd.get(), entry) ? std::move(fd) : util::UniqueFd{};
}

/// Whether the seals say that this file cannot be written by a new mapping.
bool may_write(int fd, int seals) noexcept {
    const bool is_sealed = seals >= 0 && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0;
    return !is_sealed && !is_read_only(fd);
}

/// The unit in which a file is mapped; huge pages come whole.
std::uint64_t page_of(int fd) noexcept {
    struct statfs system {};
    struct stat file {};
    const bool is_huge =
        fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC && fstat(fd, &file) == 0;
    return is_huge ? static_cast<std::uint64_t>(file.st_blksize)
                   : static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

bool is_device_memory(int fd) noexcept {
    const util::Result<bool> is_one = util::is_dma_buf(fd);
    return is_one.is_ok() && is_one.value();
}

/// The size of a file that may be mapped here. Returns: EPROTO for one that may not.
util::Result<std::uint64_t> bytes_of(int fd) noexcept {
    if (is_device_memory(fd)) {
        return util::dma_buf_bytes(fd);
    }
    struct stat file {};
    if (!is_in_memory(fd) || fstat(fd, &file) != 0) {
        return EPROTO;
    }
    return static_cast<std::uint64_t>(file.st_size);
}

util::Status check_place(int fd, const RegionPlace& place) noexcept {
    const bool is_sane = place.offset <= kMaxBytes && place.length <= kMaxBytes &&
                         place.skip <= place.length && place.bytes <= place.length - place.skip &&
                         place.bytes != 0;
    const util::Result<std::uint64_t> bytes = bytes_of(fd);
    if (!is_sane || !bytes.is_ok()) {
        return EPROTO;
    }
    // The last page of a file may be used in part only; beyond it lies SIGBUS.
    const std::uint64_t page = page_of(fd);
    const std::uint64_t file_bytes = (bytes.value() + page - 1) / page * page;
    const bool is_whole = place.offset % page == 0 && place.length % page == 0;
    return is_whole && place.offset + place.length <= file_bytes ? util::kOk : util::Status(EPROTO);
}

/// Sets the pages that hold the bytes [at, at + length) of the file.
void cover(FilePart& part, std::uint64_t at, std::uint64_t length) noexcept {
    const std::uint64_t page = page_of(part.fd.get());
    part.offset = at / page * page;
    part.skip = at - part.offset;
    part.length = (part.skip + length + page - 1) / page * page;
}

}  // namespace

FilePart part_of_dma_buf(util::UniqueFd fd, std::uint64_t offset, std::uint64_t length) noexcept {
    FilePart part;
    part.fd = std::move(fd);
    cover(part, 0, offset + length);
    part.skip = offset;
    return part;
}

util::Result<FilePart> find_file(const void* address, std::size_t length) {
    const auto begin = reinterpret_cast<std::uint64_t>(address);
    if (length == 0 || length > kMaxBytes || begin > UINT64_MAX - length) {
        return ENXIO;
    }
    const util::Result<MapEntry> mapping = find_mapping(begin, begin + length);
    if (!mapping.is_ok()) {
        return mapping.status();
    }
    FilePart part;
    part.fd = find_descriptor(mapping.value());
    if (!part.fd.is_open()) {
        part.fd = open_mapping(mapping.value());
    }
    if (!part.fd.is_open()) {
        return ENOENT;
    }
    if (!is_in_memory(part.fd.get())) {
        return EMEDIUMTYPE;
    }
    cover(part, mapping.value().offset + (begin - mapping.value().begin), length);
    return part;
}

util::Result<MappedRegion> map_region(util::UniqueFd fd, const RegionPlace& place,
                                      bool accepts_unsealed) {
    const util::Status status = check_place(fd.get(), place);
    if (!status.is_ok()) {
        return status;
    }
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    const bool is_dma_buf = is_device_memory(fd.get());
    const bool may_shrink = !is_dma_buf && (seals < 0 || (seals & F_SEAL_SHRINK) == 0);
    if (!accepts_unsealed && may_shrink) {
        return EPERM;
    }
    const bool is_writable = may_write(fd.get(), seals);
    MappedRegion region;
    if (is_dma_buf) {
        region.dma_buf = util::ProcessFd(util::duplicate(fd.get()));
        if (!region.dma_buf.is_open()) {
            return EMFILE;
        }
    }
    util::catch_faults();
    util::Result<util::Mapping> memory =
        util::Mapping::attach(std::move(fd), place.offset, place.length, is_writable);
    if (!memory.is_ok()) {
        return memory.status();
    }
    region.memory = memory.take();
    region.skip = place.skip;
    region.length = place.bytes;
    region.is_writable = is_writable;
    return region;
}

}  // namespace rvt::shm
