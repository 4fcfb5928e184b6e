// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Datagrams through registered memory: whose they are, and that they are whole.
#include "core/ud_staging.h"

#include <array>
#include <cstring>
#include <memory>

#include "conform/fixture.h"

using namespace rvt;
using namespace rvt::conform;

namespace {

constexpr std::uint64_t kBit = std::uint64_t{1} << 63;
constexpr std::size_t kBytes = 512;

/// A datagram pair whose receives are staged; side A sends.
struct Staged {
    Pair<Packets> pair{Options{.type = QpType::kUd}};
    std::unique_ptr<UdStaging> staging =
        UdStaging::open(*pair.b().pd, {.sends = 2, .receives = 3, .bytes = kBytes}).take();
    std::array<std::array<std::byte, 64>, 3> buffers{};

    Status post(std::uint32_t receive) {
        std::array<std::byte, 64>& to = buffers[receive];
        const iovec halves[] = {{to.data(), 24}, {to.data() + 24, to.size() - 24}};
        return staging->post(*pair.b().qp, kBit, receive, halves);
    }
    /// Sends as many bytes of that pattern. Returns: for which receive they were taken.
    std::optional<std::uint32_t> bring(std::size_t bytes, int seed) {
        pair.a().fill(0, bytes, seed);
        RVT_OK(pair.post_send({.bytes = bytes}));
        const Wc wc = pair.received();
        RVT_ASSERT((wc.wr_id & kBit) != 0);
        const auto taken =
            staging->take(static_cast<std::uint32_t>(wc.wr_id), wc.byte_len - kGrhBytes);
        return taken ? std::optional(taken->receive) : std::nullopt;
    }
    bool has(std::uint32_t receive, std::size_t bytes, int seed) {
        pair.a().fill(0, bytes, seed);
        return std::memcmp(buffers[receive].data(), pair.a().memory.data(), bytes) == 0;
    }
};

}  // namespace

Test(ud_staging, a_datagram_is_for_the_oldest_receive) {
    Staged staged;
    for (const std::uint32_t receive : {2u, 0u, 1u}) {
        RVT_OK(staged.post(receive));
    }
    for (const std::uint32_t receive : {2u, 0u, 1u}) {
        RVT_EQ(staged.bring(40, static_cast<int>(receive)).value(), receive);
        RVT_ASSERT(staged.has(receive, 40, static_cast<int>(receive)));
    }
}

Test(ud_staging, what_is_longer_than_the_buffers_is_cut) {
    Staged staged;
    RVT_OK(staged.post(0));
    RVT_EQ(staged.bring(200, 7).value(), 0);
    RVT_ASSERT(staged.has(0, 64, 7));
}

Test(ud_staging, a_cancelled_receive_leaves_its_place_to_the_next) {
    Staged staged;
    RVT_OK(staged.post(0));
    RVT_OK(staged.post(1));
    RVT_ASSERT(staged.staging->cancel(0));
    RVT_ASSERT(not(staged.staging->cancel(0)));
    RVT_OK(staged.post(2));
    RVT_EQ(staged.bring(8, 1).value(), 1);
    RVT_EQ(staged.bring(8, 2).value(), 2);
    RVT_ASSERT(staged.has(1, 8, 1) && staged.has(2, 8, 2));
}

Test(ud_staging, nobody_gets_what_comes_after_the_last_cancel) {
    Staged staged;
    RVT_OK(staged.post(0));
    RVT_ASSERT(staged.staging->cancel(0));
    RVT_ASSERT(not(staged.bring(8, 1).has_value()));
    RVT_OK(staged.post(1));
    RVT_EQ(staged.bring(8, 2).value(), 1);
}

Test(ud_staging, places_are_used_again_and_again) {
    Staged staged;
    for (std::uint32_t i = 0; i < 20; ++i) {
        RVT_OK(staged.post(i % 3));
        RVT_EQ(staged.bring(16, static_cast<int>(i)).value(), i % 3);
        RVT_ASSERT(staged.has(i % 3, 16, static_cast<int>(i)));
    }
}

Test(ud_staging, a_send_is_gathered_into_memory_of_its_own) {
    Staged staged;
    std::array<std::byte, 48> data{};
    data.fill(std::byte{5});
    const iovec parts[] = {{data.data(), 16}, {data.data() + 16, 32}};
    const Sge first = staged.staging->put_send(0, parts);
    data.fill(std::byte{6});
    const Sge second = staged.staging->put_send(1, parts);
    RVT_EQ(first.length, 48);
    RVT_ASSERT(first.addr != second.addr);
    std::array<std::byte, 48> before{};
    before.fill(std::byte{5});
    // NOLINTNEXTLINE(performance-no-int-to-ptr): where the pair would read it
    RVT_ASSERT(std::memcmp(reinterpret_cast<void*>(first.addr), before.data(), 48) == 0);
}
