// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices for the conformance suite.
#include "conform/policies.h"

namespace rvt::conform {
namespace {

Address address_of(int i) {
    return {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1},
            .port = static_cast<std::uint16_t>(7000 + i)};
}

core::Device* add_device(core::Registry& registry, TestPort& port, int i) {
    static constexpr const char* kNames[] = {"conform0", "conform1"};
    const DeviceInfo info{.name = kNames[i],
                          .grade = Grade::kSegment,
                          .address = address_of(i),
                          .limits = {.max_qp = 64, .max_mr = 255, .max_segment_bytes = 1000},
                          .now_us = fake_now};
    port.device = registry.add_device(info, test_segment_ops(), &port).value();
    return port.device;
}

}  // namespace

std::uint64_t fake_now() noexcept {
    // relaxed: a clock orders nothing.
    return fake_now_us.load(std::memory_order_relaxed);
}

Loopback::Loopback() : device_(add_device(registry_, port_, 0)) {}

Segments::Segments() {
    for (int i : {0, 1}) {
        ports_[i].net = &net_;
        devices_[i] = add_device(registry_, ports_[i], i);
        net_.add(ports_[i]);
    }
}

void Segments::break_channels() {
    net_.break_all();
}

}  // namespace rvt::conform
