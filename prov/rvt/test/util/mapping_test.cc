// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Memory files: what their seals allow, and what happens when the system refuses.
#include "util/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"

using rvt::util::Mapping;
using rvt::util::UniqueFd;

namespace {

constexpr std::size_t kBytes = 1 << 20;

UniqueFd copy_of(const Mapping& mapping) {
    return UniqueFd(fcntl(mapping.fd(), F_DUPFD_CLOEXEC, 0));
}

void set_limit(__rlimit_resource_t what, rlim_t value) {
    rlimit limit{};
    getrlimit(what, &limit);
    limit.rlim_cur = value;
    setrlimit(what, &limit);
}

}  // namespace

Test(mapping, is_shared_with_its_view) {
    auto ours = Mapping::create("test", kBytes, 4096);
    RVT_OK(ours);
    auto theirs = Mapping::view(copy_of(ours.value()), kBytes);
    RVT_OK(theirs);
    *ours.value().at<int>(5000) = 42;
    RVT_EQ(*theirs.value().at<int>(5000), 42);
}

Test(mapping, cannot_be_resized_nor_unsealed) {
    auto ours = Mapping::create("test", kBytes, 0);
    RVT_EQ(ftruncate(ours.value().fd(), 0), -1);
    RVT_EQ(ftruncate(ours.value().fd(), 2 * kBytes), -1);
    RVT_EQ(fcntl(ours.value().fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

Test(mapping, cannot_be_written_by_who_receives_its_file) {
    auto ours = Mapping::create("test", kBytes, 0);
    void* address = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, ours.value().fd(), 0);
    RVT_ASSERT(address == MAP_FAILED);
    const char byte = 1;
    RVT_EQ(pwrite(ours.value().fd(), &byte, 1, 0), -1);
}

Test(mapping, of_a_file_that_may_shrink_is_refused) {
    UniqueFd file(memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    RVT_EQ(ftruncate(file.get(), kBytes), 0);
    RVT_EQ(Mapping::view(std::move(file), kBytes), EPROTO);
    RVT_EQ(Mapping::view(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4096), EPROTO);
    RVT_EQ(Mapping::view(UniqueFd(), 4096), EPROTO);
}

Test(mapping, of_a_file_that_is_too_short_is_refused) {
    auto ours = Mapping::create("test", kBytes, 0);
    RVT_EQ(Mapping::view(copy_of(ours.value()), kBytes + 1), EPROTO);
}

Test(mapping, allocates_what_was_reserved_and_no_more) {
    auto ours = Mapping::create("test", kBytes, 16384);
    struct stat file {};
    RVT_EQ(fstat(ours.value().fd(), &file), 0);
    RVT_EQ(file.st_blocks * 512, 16384);
    RVT_OK(ours.value().reserve(65536, 8192));
    RVT_EQ(fstat(ours.value().fd(), &file), 0);
    RVT_EQ(file.st_blocks * 512, 24576);
}

Test(mapping, reserves_without_its_descriptor_too) {
    auto ours = Mapping::create("test", kBytes, 0);
    const UniqueFd witness = copy_of(ours.value());
    ours.value().close_file();
    RVT_EQ(ours.value().fd(), -1);
    RVT_OK(ours.value().reserve(65536, 8192));
    struct stat file {};
    RVT_EQ(fstat(witness.get(), &file), 0);
    RVT_EQ(file.st_blocks * 512, 8192);
}

Test(mapping, reserves_all_pages_that_the_part_has_bytes_in) {
    auto ours = Mapping::create("test", kBytes, 0);
    const UniqueFd witness = copy_of(ours.value());
    ours.value().close_file();
    RVT_OK(ours.value().reserve(65536 + 100, 4096));
    struct stat file {};
    RVT_EQ(fstat(witness.get(), &file), 0);
    RVT_EQ(file.st_blocks * 512, 8192);
}

Test(mapping, larger_than_the_file_size_limit_is_an_error_and_no_signal) {
    set_limit(RLIMIT_FSIZE, kBytes - 1);
    RVT_EQ(Mapping::create("test", kBytes, 4096), EFBIG);
    set_limit(RLIMIT_FSIZE, kBytes);
    RVT_OK(Mapping::create("test", kBytes, 4096));
}

Test(mapping, without_descriptors_left_is_an_error) {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    set_limit(RLIMIT_NOFILE, 0);
    const int error = Mapping::create("test", kBytes, 4096).error();
    set_limit(RLIMIT_NOFILE, before.rlim_cur);  // the test runner wants some too
    RVT_EQ(error, EMFILE);
}

Test(mapping, keeps_no_descriptor_in_a_view) {
    auto ours = Mapping::create("test", kBytes, 0);
    auto theirs = Mapping::view(copy_of(ours.value()), kBytes);
    RVT_EQ(theirs.value().fd(), -1);
}

Test(mapping, moves_with_its_file) {
    auto ours = Mapping::create("test", kBytes, 0);
    const int fd = ours.value().fd();
    Mapping other = ours.take();
    RVT_EQ(other.fd(), fd);
    other = Mapping();
    RVT_ASSERT(not(other.is_mapped()));
    RVT_EQ(fcntl(fd, F_GETFD), -1);
}

Test(mapping, is_zero_and_private_in_a_forked_child) {
    auto ours = Mapping::create("test", kBytes, 0);
    *ours.value().at<int>(0) = 42;
    const pid_t child = fork();
    if (child == 0) {
        const bool was_wiped = *ours.value().at<int>(0) == 0;
        *ours.value().at<int>(0) = 7;
        const bool is_closed = fcntl(ours.value().fd(), F_GET_SEALS) < 0;
        ours.value().reset();
        _exit(was_wiped && is_closed ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    RVT_EQ(status, 0);
    RVT_EQ(*ours.value().at<int>(0), 42);
}
