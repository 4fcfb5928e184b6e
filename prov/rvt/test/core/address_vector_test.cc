// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Numbers for addresses: order, reuse, duplicates, scale.
#include "core/address_vector.h"

#include "common/check.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <malloc.h>

using rvt::core::AddressObserver;
using rvt::core::AddressVector;
using rvt::util::SockAddr;

namespace {

SockAddr numbered(std::uint32_t n) {
    SockAddr address;
    address.family = AF_INET;
    address.ip = {10, static_cast<std::uint8_t>(n >> 24), static_cast<std::uint8_t>(n >> 16), 1};
    address.port = static_cast<std::uint16_t>(n);
    return address;
}

SockAddr of_link(std::uint32_t scope) {
    return {.family = AF_INET6, .port = 5, .ip = {0xfe, 0x80, 1}, .scope_id = scope};
}

struct Recorder : AddressObserver {
    std::vector<std::uint64_t> inserted;
    std::vector<std::uint64_t> removed;
    void address_inserted(std::uint64_t index, const SockAddr&) noexcept override {
        inserted.push_back(index);
    }
    void address_removed(std::uint64_t index, const SockAddr&) noexcept override {
        removed.push_back(index);
    }
};

}  // namespace

Test(address_vector, numbers_start_at_zero_and_are_dense) {
    AddressVector av;
    for (std::uint32_t n = 0; n < 5000; ++n) {
        RVT_EQ(av.insert(numbered(n)).value(), n);
    }
    RVT_EQ(av.size(), 5000);
}

Test(address_vector, a_number_leads_back_to_its_address) {
    AddressVector av;
    for (std::uint32_t n = 0; n < 3000; ++n) {
        RVT_ASSERT(av.insert(numbered(n)).is_ok());
    }
    RVT_ASSERT(av.at(2999)->port == numbered(2999).port);
    RVT_ASSERT(av.at(3000) == nullptr);
    RVT_ASSERT(av.at(~std::uint64_t{0}) == nullptr);
}

Test(address_vector, the_lowest_removed_number_is_given_out_first) {
    AddressVector av;
    for (std::uint32_t n = 0; n < 10; ++n) {
        RVT_ASSERT(av.insert(numbered(n)).is_ok());
    }
    RVT_ASSERT(av.remove(7).is_ok());
    RVT_ASSERT(av.remove(3).is_ok());
    RVT_EQ(av.insert(numbered(70)).value(), 3);
    RVT_EQ(av.insert(numbered(71)).value(), 7);
    RVT_EQ(av.insert(numbered(72)).value(), 10);
}

Test(address_vector, an_unused_number_cannot_be_removed) {
    AddressVector av;
    RVT_ASSERT(av.insert(numbered(1)).is_ok());
    RVT_ASSERT(av.remove(0).is_ok());
    RVT_EQ(av.remove(0).error(), ENOENT);
    RVT_EQ(av.remove(99).error(), ENOENT);
}

Test(address_vector, a_duplicate_gets_a_number_of_its_own_and_the_lowest_is_found) {
    AddressVector av;
    RVT_EQ(av.insert(numbered(1)).value(), 0);
    RVT_EQ(av.insert(numbered(1)).value(), 1);
    RVT_EQ(av.find(numbered(1)).value(), 0);
    RVT_ASSERT(av.remove(0).is_ok());
    RVT_EQ(av.find(numbered(1)).value(), 1);
    RVT_ASSERT(av.remove(1).is_ok());
    RVT_EQ(av.find(numbered(1)).error(), ENOENT);
}

Test(address_vector, an_address_of_a_link_is_found_by_who_does_not_know_its_scope) {
    AddressVector av;
    for (std::uint32_t scope = 2; scope <= 3; ++scope) {
        RVT_ASSERT(av.insert(of_link(scope)).is_ok());
    }
    RVT_ASSERT(av.find(of_link(0)).is_ok());
    RVT_EQ(av.find(of_link(0)).value(), 0);
    RVT_EQ(av.find(of_link(3)).value(), 1);
    RVT_EQ(av.find(of_link(4)).error(), ENOENT);
}

Test(address_vector, every_address_is_found_after_half_of_them_went) {
    AddressVector av;
    for (std::uint32_t n = 0; n < 20000; ++n) {
        RVT_ASSERT(av.insert(numbered(n)).is_ok());
    }
    for (std::uint32_t n = 0; n < 20000; n += 2) {
        RVT_ASSERT(av.remove(n).is_ok());
    }
    for (std::uint32_t n = 0; n < 20000; ++n) {
        const auto found = av.find(numbered(n));
        RVT_ASSERT(n % 2 == 0 ? found.error() == ENOENT : found.value() == n);
    }
}

Test(address_vector, observers_hear_of_insertions_and_removals) {
    AddressVector av;
    Recorder recorder;
    av.add_observer(&recorder);
    RVT_ASSERT(av.insert(numbered(1)).is_ok());
    RVT_ASSERT(av.remove(0).is_ok());
    av.remove_observer(&recorder);
    RVT_ASSERT(av.insert(numbered(2)).is_ok());
    RVT_EQ(recorder.inserted.size(), 1);
    RVT_EQ(recorder.removed.size(), 1);
}

Test(address_vector, who_has_left_is_told_of_nothing, .timeout = 60) {
    AddressVector av;
    std::atomic<bool> is_over{false};
    // relaxed: says only that it is time to leave.
    std::thread changing([&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            RVT_ASSERT(av.insert(numbered(1)).is_ok());
            RVT_ASSERT(av.remove(0).is_ok());
        }
    });
    struct Here final : AddressObserver {
        void address_inserted(std::uint64_t, const SockAddr&) noexcept override { look(); }
        void address_removed(std::uint64_t, const SockAddr&) noexcept override { look(); }
        // relaxed: that nothing comes later is what the vector promises.
        void look() noexcept {
            late.fetch_add(has_left.load(std::memory_order_relaxed) ? 1 : 0,
                           std::memory_order_relaxed);
        }
        std::atomic<bool> has_left{false};
        std::atomic<int> late{0};
    };
    std::vector<std::unique_ptr<Here>> all;
    for (int i = 0; i < 20'000; ++i) {
        Here& here = *all.emplace_back(std::make_unique<Here>());
        av.add_observer(&here);
        av.remove_observer(&here);
        here.has_left.store(true, std::memory_order_relaxed);  // relaxed: as above.
    }
    is_over.store(true, std::memory_order_relaxed);  // relaxed: as above.
    changing.join();
    for (const auto& here : all) {
        RVT_EQ(here->late.load(std::memory_order_relaxed), 0);  // relaxed: the thread is joined.
    }
}

Test(address_vector, many_addresses_are_removed_in_time, .timeout = 30) {
    constexpr std::uint32_t kEntries = 300'000;
    AddressVector av;
    for (std::uint32_t n = 0; n < kEntries; ++n) {
        RVT_ASSERT(av.insert(numbered(n)).is_ok());
    }
    for (std::uint32_t n = 0; n < kEntries; ++n) {
        RVT_ASSERT(av.remove(n).is_ok());
    }
    RVT_EQ(av.size(), 0);
}

Test(address_vector, a_hundred_thousand_addresses_cost_at_most_48_bytes_each) {
    constexpr std::size_t kEntries = 100000;
    const struct mallinfo2 before = mallinfo2();
    AddressVector av;
    for (std::uint32_t n = 0; n < kEntries; ++n) {
        RVT_ASSERT(av.insert(numbered(n)).is_ok());
    }
    const struct mallinfo2 after = mallinfo2();
    // Of the last chunk only the pages that were reached are resident; count it in full
    // nevertheless.
    const std::size_t bytes = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    cr_assert(bytes < kEntries * 48, "%zu bytes for an entry", bytes / kEntries);
}
