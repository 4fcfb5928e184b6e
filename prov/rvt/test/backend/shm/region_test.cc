// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Registered memory in files: found, sent, mapped; and what is refused.
#include "backend/shm/region.h"

#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "common/check.h"
#include "raw_peer.h"

using namespace rvt::shm;  // NOLINT(google-build-using-namespace)
using rvt::shm::test::Kind;
using rvt::shm::test::Process;
using rvt::shm::test::RawPeer;
using rvt::shm::test::TestEndpoint;
using rvt::util::UniqueFd;

namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr std::size_t kSkip = 3 * 4096 + 100;
constexpr std::uint64_t kKey = 77;

/// A mapped memory file, as an application may have it.
class AppMemory {
  public:
    explicit AppMemory(int seals = F_SEAL_SHRINK, int sharing = MAP_SHARED)
        : fd(memfd_create("app", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
        [[maybe_unused]] const int done = ftruncate(fd.get(), kBytes);
        data =
            static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, sharing, fd.get(), 0));
        fcntl(fd.get(), F_ADD_SEALS, seals);
    }
    ~AppMemory() { munmap(data, kBytes); }
    AppMemory(const AppMemory&) = delete;
    AppMemory& operator=(const AppMemory&) = delete;

    UniqueFd fd;
    char* data = nullptr;
};

struct Pair {
    Pair() {
        asker.connector().connect(owner.address());
        at_asker = asker.next_peering();
        at_owner = owner.next_peering();
    }
    std::unique_ptr<ConnectionEvent> ask(std::uint64_t key) {
        asker.connector().request_region(at_asker->link, key);
        return asker.next();
    }
    int ask_error(iovec source) {
        owner.register_region(kKey, source);
        const auto answer = ask(kKey);
        return answer != nullptr && answer->kind == Kind::kRegion ? answer->error : -1;
    }
    TestEndpoint asker;
    TestEndpoint owner;
    std::unique_ptr<Peering> at_asker;
    std::unique_ptr<Peering> at_owner;
};

}  // namespace

Test(region, is_found_in_a_shared_file_mapping) {
    const AppMemory memory;
    const auto part = find_file(memory.data + kSkip, 5000);
    RVT_OK(part);
    RVT_EQ(part.value().offset, 3 * 4096);
    RVT_EQ(part.value().skip, 100);
    RVT_EQ(part.value().length, 2 * 4096);
}

Test(region, is_found_across_a_split_mapping) {
    const AppMemory memory;
    RVT_EQ(mprotect(memory.data + 4096, 4096, PROT_READ), 0);
    const auto part = find_file(memory.data, 4 * 4096);
    RVT_OK(part);
    RVT_EQ(part.value().length, 4 * 4096);
}

Test(region, is_not_found_in_ordinary_memory) {
    void* const heap = std::malloc(kBytes);
    int local = 0;
    RVT_EQ(find_file(heap, kBytes), ENXIO);
    RVT_EQ(find_file(&local, sizeof local), ENXIO);
    std::free(heap);
    const AppMemory copy_on_write(F_SEAL_SHRINK, MAP_PRIVATE);
    RVT_EQ(find_file(copy_on_write.data, 4096), ENXIO);
}

Test(region, is_not_found_beyond_its_mapping) {
    const AppMemory memory;
    RVT_EQ(munmap(memory.data + 4 * 4096, 4096), 0);
    RVT_EQ(find_file(memory.data, 5 * 4096), ENXIO);
    RVT_OK(find_file(memory.data, 4 * 4096));
    RVT_EQ(find_file(memory.data, SIZE_MAX), ENXIO);
    RVT_EQ(find_file(memory.data, 0), ENXIO);
}

Test(region, is_not_found_in_a_file_on_disk) {
    const UniqueFd fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    void* const data = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    RVT_EQ(find_file(data, 4096), EMEDIUMTYPE);
}

Test(region, needs_a_descriptor_or_the_right_to_open_one) {
    AppMemory memory;
    memory.fd.reset();
    const auto part = find_file(memory.data, 4096);
    RVT_ASSERT(part.is_ok() || part.error() == ENOENT);
}

Test(region, is_mapped_by_the_peer_and_written_there, .timeout = 30) {
    Pair pair;
    const AppMemory memory;
    pair.owner.register_region(kKey, {memory.data + kSkip, 5000});
    const auto answer = pair.ask(kKey);
    RVT_ASSERT(answer != nullptr);
    RVT_EQ(answer->kind, Kind::kRegion);
    RVT_EQ(answer->error, 0);
    RVT_EQ(answer->key, kKey);
    RVT_EQ(answer->link, pair.at_asker->link);
    RVT_EQ(answer->region->length, 5000);
    RVT_ASSERT(answer->region->is_writable);
    answer->region->data()[4999] = std::byte{42};
    RVT_EQ(memory.data[kSkip + 4999], 42);
}

Test(region, in_memory_of_a_device_is_answered_with_its_handle, .timeout = 30) {
    Pair pair;
    rvt::core::DeviceHandle handle{.kind = 2, .offset = 77};
    handle.bytes.fill(std::byte{5});
    handle.bytes.back() = std::byte{6};
    pair.owner.register_region(kKey, {nullptr, 5000});
    pair.owner.set_handle(handle);
    const auto answer = pair.ask(kKey);
    RVT_ASSERT(answer != nullptr);
    RVT_EQ(answer->error, 0);
    RVT_EQ(answer->key, kKey);
    RVT_EQ(answer->region->length, 5000);
    RVT_ASSERT(answer->region->handle.has_value());
    RVT_EQ(answer->region->handle->kind, 2);
    RVT_EQ(answer->region->handle->offset, 77);
    RVT_ASSERT(answer->region->handle->bytes == handle.bytes);
}

Test(region, in_a_file_that_may_shrink_is_refused, .timeout = 30) {
    Pair pair;
    const AppMemory memory(0);
    RVT_EQ(pair.ask_error({memory.data, 5000}), EPERM);
}

Test(region, in_a_file_that_may_shrink_is_mapped_on_request) {
    AppMemory memory(0);
    const RegionPlace place{.offset = 0, .length = 4096, .skip = 0, .bytes = 10};
    RVT_OK(map_region(std::move(memory.fd), place, true));
}

Test(region, in_a_file_sealed_against_writing_is_read_only, .timeout = 30) {
    Pair pair;
    const AppMemory memory(F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
    pair.owner.register_region(kKey, {memory.data, 5000});
    const auto answer = pair.ask(kKey);
    RVT_EQ(answer->error, 0);
    RVT_ASSERT(not(answer->region->is_writable));
    memory.data[7] = 42;
    RVT_EQ(answer->region->data()[7], 42);
}

Test(region, in_ordinary_memory_is_refused, .timeout = 30) {
    Pair pair;
    int local = 0;
    RVT_EQ(pair.ask_error({&local, sizeof local}), ENXIO);
}

Test(region, is_refused_once_it_is_not_registered, .timeout = 30) {
    Pair pair;
    const AppMemory memory;
    RVT_EQ(pair.ask_error({memory.data, 5000}), 0);
    pair.owner.deregister_region(kKey);
    RVT_EQ(pair.ask(kKey)->error, EACCES);
}

Test(region, stays_mapped_when_its_owner_dies, .timeout = 30) {
    TestEndpoint asker;
    Process process([&](Process& parent) {
        TestEndpoint owner;
        const AppMemory memory;
        std::snprintf(memory.data, kBytes, "still here");
        owner.register_region(kKey, {memory.data, kBytes});
        owner.connector().connect(asker.address());
        parent.get<bool>();
    });
    const auto peering = asker.next_peering();
    RVT_ASSERT(peering != nullptr);
    asker.connector().request_region(peering->link, kKey);
    const auto answer = asker.next();
    RVT_ASSERT(answer != nullptr);
    RVT_EQ(answer->error, 0);
    process.kill();
    RVT_EQ(asker.next()->kind, Kind::kPeerGone);
    cr_assert(
        eq(str, reinterpret_cast<char*>(answer->region->data()), const_cast<char*>("still here")));
}

Test(region, that_is_described_wrongly_is_refused) {
    const RegionPlace places[] = {
        {.offset = 0, .length = 2 * kBytes, .skip = 0, .bytes = 10},            // beyond the file
        {.offset = kBytes, .length = 4096, .skip = 0, .bytes = 10},             //
        {.offset = UINT64_MAX - 4095, .length = 8192, .skip = 0, .bytes = 10},  // wraps
        {.offset = 0, .length = 4096, .skip = 4096, .bytes = 1},                // beyond the pages
        {.offset = 0, .length = 4096, .skip = 10, .bytes = UINT64_MAX},         // wraps
        {.offset = 0, .length = 0, .skip = 0, .bytes = 0},
        {.offset = 100, .length = 4096, .skip = 0, .bytes = 10},  // parts of pages
        {.offset = 0, .length = 100, .skip = 0, .bytes = 10},
    };
    for (const RegionPlace& place : places) {
        AppMemory memory;
        RVT_EQ(map_region(std::move(memory.fd), place, true), EPROTO);
    }
    RVT_EQ(map_region(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)),
                      {.offset = 0, .length = 4096, .skip = 0, .bytes = 10}, true),
           EPROTO);
    RVT_EQ(map_region(UniqueFd(), {.offset = 0, .length = 4096, .skip = 0, .bytes = 10}, true),
           EPROTO);
}

template <class Reply>
void send_unasked(const Reply& reply) {
    TestEndpoint endpoint;
    RawPeer raw;
    RVT_ASSERT(raw.dial(endpoint.address()));
    RVT_ASSERT(raw.say_hello() && raw.hears(MessageType::kHello) &&
               raw.say({.type = MessageType::kReady}));
    RVT_ASSERT(endpoint.next_peering() != nullptr);
    RVT_ASSERT(raw.say_bytes(&reply, sizeof reply));
    const auto gone = endpoint.next();
    RVT_ASSERT(gone != nullptr);
    RVT_EQ(gone->kind, Kind::kPeerGone);
    RVT_EQ(gone->error, EPROTO);
}

Test(region, that_nobody_asked_for_ends_the_link, .timeout = 30) {
    send_unasked(RegionReply{});
    send_unasked(RegionHandle{});
}

Test(region, of_ones_own_endpoint_is_not_mapped, .timeout = 30) {
    TestEndpoint endpoint;
    const AppMemory memory;
    endpoint.register_region(kKey, {memory.data, 100});
    endpoint.connector().connect(endpoint.address());
    const auto self = endpoint.next_peering();
    endpoint.connector().request_region(self->link, kKey);
    RVT_EQ(endpoint.next()->error, ENOTSUP);
}
