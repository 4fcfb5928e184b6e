// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies into and out of regions: of one range, of several buffers, of a device.
#include <criterion/criterion.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "core/rd_region.h"

using namespace rvt::core;  // NOLINT(google-build-using-namespace)
using rvt::Status;

namespace {

std::uint64_t address_of(const void* p) {
    return reinterpret_cast<std::uint64_t>(p);
}

/// Notes whether somebody may touch its memory.
class FakeDevice final : public DeviceMemory {
  public:
    ~FakeDevice() = default;
    Status begin_cpu_access(CpuAccess access) noexcept override {
        if (refuses) {
            return EIO;
        }
        ++(access == CpuAccess::kRead ? reads : writes);
        ++open;
        return rvt::kOk;
    }
    void end_cpu_access(CpuAccess /*access*/) noexcept override { --open; }
    File file() const noexcept override { return {}; }

    bool refuses = false;
    int open = 0;
    int reads = 0;
    int writes = 0;
};

struct DeviceRegion {
    DeviceRegion() { memory.device = &device; }

    std::array<char, 64> bytes{};
    FakeDevice device;
    RegionMemory memory{.segments = {{bytes.data(), bytes.size()}}};
    KeyHit hit{.verdict = KeyVerdict::kOk, .indirect = true, .base = address_of(&memory)};
};

constexpr char kText[] = "sixteen letters.";

const std::byte* text() {
    return reinterpret_cast<const std::byte*>(kText);
}

}  // namespace

Test(rd_region, several_buffers_are_one_after_the_other) {
    std::array<char, 10> first{};
    std::array<char, 10> second{};
    const RegionMemory memory{.segments = {{first.data(), 10}, {second.data(), 10}}};
    const KeyHit hit{.verdict = KeyVerdict::kOk, .indirect = true, .base = address_of(&memory)};
    RVT_OK(copy_to_region(hit, 2, text(), 16));
    RVT_EQ(std::memcmp(first.data() + 2, kText, 8), 0);
    RVT_EQ(std::memcmp(second.data(), kText + 8, 8), 0);
    std::array<std::byte, 16> back{};
    RVT_OK(copy_from_region(hit, 2, back.data(), 16));
    RVT_EQ(std::memcmp(back.data(), kText, 16), 0);
}

Test(rd_region, a_range_in_several_buffers_has_whole_elements_in_each) {
    std::array<char, 10> first{};
    std::array<char, 10> second{};
    const RegionMemory memory{.segments = {{first.data(), 10}, {second.data(), 10}}};
    KeyHit hit{.verdict = KeyVerdict::kOk, .indirect = true, .base = address_of(&memory)};
    std::array<std::size_t, 2> found{};  // bytes in each
    const auto has_whole = [&](std::uint64_t offset, std::size_t element_bytes) {
        hit.offset = offset;
        found = {};
        return for_each_part(hit, 8, element_bytes,
                             [&](const std::byte* part, std::size_t begin, std::size_t count) {
                                 const bool is_first = begin == 0 && offset < 10;
                                 found[is_first ? 0 : 1] += count;
                                 return reinterpret_cast<const char*>(part) ==
                                        (is_first ? &first[offset] : &second[offset + begin - 10]);
                             });
    };
    RVT_ASSERT(has_whole(2, 8) && found[0] == 8);
    RVT_ASSERT(!has_whole(3, 8));  // the last byte is in the other
    RVT_ASSERT(!has_whole(3, 2));
    RVT_ASSERT(has_whole(4, 2) && found[0] == 6 && found[1] == 2);
    RVT_ASSERT(has_whole(10, 8) && found[1] == 8);
    RVT_ASSERT(has_whole(12, 8) && found[1] == 8);
}

Test(rd_region, a_device_is_told_of_each_access) {
    DeviceRegion region;
    region.hit.offset = 8;
    RVT_OK(copy_to_region(region.hit, 4, text(), 16));
    RVT_EQ(std::memcmp(region.bytes.data() + 12, kText, 16), 0);
    RVT_EQ(region.device.writes, 1);
    std::array<std::byte, 16> back{};
    RVT_OK(copy_from_region(region.hit, 4, back.data(), 16));
    RVT_EQ(std::memcmp(back.data(), kText, 16), 0);
    RVT_EQ(region.device.reads, 1);
    RVT_EQ(region.device.open, 0);
}

Test(rd_region, a_device_that_refuses_is_not_touched) {
    DeviceRegion region;
    region.device.refuses = true;
    RVT_EQ(copy_to_region(region.hit, 0, text(), 16), EIO);
    RVT_EQ(region.bytes[0], 0);
    std::array<std::byte, 16> back{};
    RVT_EQ(copy_from_region(region.hit, 0, back.data(), 16), EIO);
    RVT_EQ(region.device.open, 0);
}

Test(rd_region, nothing_is_copied_without_a_word_to_the_device) {
    DeviceRegion region;
    RVT_OK(copy_to_region(region.hit, 0, text(), 0));
    RVT_EQ(region.device.writes, 0);
}

Test(rd_region, one_range_of_a_device_is_found_with_its_device) {
    DeviceRegion region;
    region.hit.offset = 8;
    cr_assert(for_each_part(region.hit, 8, 8, [&](std::byte* part, std::size_t, std::size_t count) {
        return part == reinterpret_cast<std::byte*>(region.bytes.data()) + 8 && count == 8;
    }));
    cr_assert(device_of(region.hit) == &region.device);
}
