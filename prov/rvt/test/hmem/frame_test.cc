// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The frame for further kinds of devices, asked before the others: it is in nobody's way.
#include <array>
#include <cerrno>
#include <cstddef>

#include "common/check.h"
#include "common/standin.h"
#include "hmem/claimants.h"

namespace rvt::hmem {
namespace {

constexpr std::size_t kBytes = 4096;

/// A process that has memory of CUDA, and the frame.
struct WithFrame {
    WithFrame() {
        fab::standin::use(fab::standin::How::kWithoutShare);
        memory = fab::standin::allocate(kBytes);
        ask_first(&frame());
    }
    ~WithFrame() {
        ask_first(nullptr);
        fab::standin::release(memory);
    }
    WithFrame(const WithFrame&) = delete;
    WithFrame& operator=(const WithFrame&) = delete;
    void* memory = nullptr;
};

}  // namespace

Test(hmem_frame, starts_and_owns_nothing) {
    const WithFrame process;
    std::array<std::byte, 64> host{};
    RVT_OK(frame().start());
    RVT_EQ(frame().find(process.memory, kBytes).status().error(), EFAULT);
    RVT_EQ(frame().find(host.data(), host.size()).status().error(), EFAULT);
    RVT_ASSERT(!frame().is_of_host(host.data()));
}

Test(hmem_frame, leaves_memory_of_the_host_ordinary) {
    const WithFrame process;
    std::array<std::byte, 64> host{};
    RVT_ASSERT(claim(host.data(), host.size()).claimant == nullptr);
}

Test(hmem_frame, leaves_memory_of_others_theirs) {
    const WithFrame process;
    const Claim found = claim(process.memory, kBytes);
    RVT_ASSERT(found.claimant == &cuda());
    RVT_EQ(found.allocation.bytes, kBytes);
    RVT_ASSERT(claimant_of(Kind::kCuda).is_ok());
}

}  // namespace rvt::hmem
