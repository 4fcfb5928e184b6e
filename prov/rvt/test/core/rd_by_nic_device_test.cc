// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large accesses from, into and of memory of devices, between endpoints of this process over the
// mock for their NIC: by the NIC where it imports the memory, in frames where it does not.
#include <algorithm>

#include "core/device_pages.h"
#include "core/flow_node.h"
#include "core/nic_net.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using test::CountedUse;
using test::DevicePages;
using test::Pages;
constexpr std::size_t kBytes = test::kPagesBytes;
constexpr Access kBoth = Access::kLocalWrite | Access::kRemoteRead | Access::kRemoteWrite;

/// What the first accesses is the second's `there`: of a device, or the application's.
struct Net : test::NicNet {
    explicit Net(bool is_device, const test::NicEndAttr& second = {},
                 const test::NicEndAttr& first = {})
        : test::NicNet({}, second, first),
          region(there, 21),
          key(is_device ? b->open(region.region, kBoth) : b->open(there.all(), kBoth)) {}

    WcStatus write(const iovec& from, std::size_t to, CountedUse* use = nullptr) {
        return end_of(a->write(++last, from, key, there.memory + to, RdFlags::kNone, use));
    }
    WcStatus read(const iovec& to, std::size_t from, CountedUse* use = nullptr) {
        return end_of(a->read(++last, to, key, there.memory + from, RdFlags::kNone, use));
    }
    /// Asked for with the second access, which goes in frames, the NIC's key has come.
    void learn_key() {
        const Pages one('1');
        RVT_EQ(write(one.all(), 0), WcStatus::kSuccess);
        RVT_EQ(write(one.all(), 0), WcStatus::kSuccess);
        RVT_ASSERT(there.is('1'));
        poll_for_a_while();
        std::fill_n(there.memory, kBytes, '-');
    }

    Pages there{'-'};
    DevicePages region;
    std::uint32_t key;

  private:
    WcStatus end_of(util::Status begun) {
        RVT_OK(begun);
        until([&] { return a->is_done(last); });
        return a->status(last);
    }
};

}  // namespace

TestSuite(rd_by_nic_device, .timeout = 60);

Test(rd_by_nic_device, the_nic_writes_from_a_device_and_reads_into_one) {
    Net net(false);
    net.learn_key();
    const Pages here('a');
    DevicePages device(here, 11);
    CountedUse writes;
    writes.place = device.place;
    RVT_EQ(net.write(here.all(), 0, &writes), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 1);
    std::fill_n(net.there.memory, kBytes, 'b');
    CountedUse reads;
    reads.place = device.place;
    RVT_EQ(net.read(here.all(), 0, &reads), WcStatus::kSuccess);
    RVT_ASSERT(here.is('b'));
    RVT_EQ(net.mock.reads, 1);
    RVT_ASSERT(writes.is_untouched() && reads.is_untouched());
    RVT_EQ(writes.releases, 1);
    RVT_EQ(reads.releases, 1);
    RVT_EQ(std::ranges::count_if(net.mock.regions, [](const auto& each) { return each.fd >= 0; }),
           1);
}

Test(rd_by_nic_device, the_nic_reaches_a_part_of_a_devices_region_that_a_peer_opens) {
    Net net(true);
    net.learn_key();
    const int touched = net.region.cpu_accesses;
    RVT_ASSERT(touched != 0);
    constexpr std::size_t kAt = 5001;
    constexpr std::size_t kPart = 100'001;
    const Pages here('a');
    RVT_EQ(net.write(here.part(0, kPart), kAt), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('-', 0, kAt) && net.there.is('a', kAt, kAt + kPart) &&
               net.there.is('-', kAt + kPart, kBytes));
    RVT_EQ(net.read(here.part(kPart, kPart), kAt + kPart), WcStatus::kSuccess);
    RVT_ASSERT(here.is('a', 0, kPart) && here.is('-', kPart, 2 * kPart) &&
               here.is('a', 2 * kPart, kBytes));
    RVT_EQ(net.mock.writes, 1);
    RVT_EQ(net.mock.reads, 1);
    RVT_EQ(net.region.cpu_accesses, touched);
}

Test(rd_by_nic_device, the_nic_takes_data_from_device_to_device) {
    Net net(true);
    net.learn_key();
    const Pages here('a');
    DevicePages device(here, 11);
    CountedUse writes;
    writes.place = device.place;
    writes.place->address += 100;
    RVT_EQ(net.write(here.part(100, 50'000), 7, &writes), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('-', 0, 7) && net.there.is('a', 7, 50'007) &&
               net.there.is('-', 50'007, kBytes));
    RVT_EQ(net.mock.writes, 1);
    RVT_ASSERT(writes.is_untouched());
}

Test(rd_by_nic_device, a_device_that_the_initiators_nic_does_not_import_goes_in_frames) {
    Net net(false);
    net.learn_key();
    net.mock.dmabuf_error = EOPNOTSUPP;
    const Pages here('a');
    DevicePages device(here, 11);
    CountedUse writes;
    writes.place = device.place;
    RVT_EQ(net.write(here.all(), 0, &writes), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a') && writes.refreshes != 0);
    std::fill_n(net.there.memory, kBytes, 'b');
    CountedUse reads;
    reads.place = device.place;
    RVT_EQ(net.read(here.all(), 0, &reads), WcStatus::kSuccess);
    RVT_ASSERT(here.is('b') && reads.fills != 0);
    RVT_EQ(net.mock.writes, 0);
    RVT_EQ(net.mock.reads, 0);
    RVT_EQ(writes.releases, 1);
    RVT_EQ(reads.releases, 1);
}

Test(rd_by_nic_device, a_device_that_the_targets_nic_does_not_import_is_reached_by_frames) {
    Net net(true);
    net.mock.dmabuf_error = EOPNOTSUPP;
    net.learn_key();
    const Pages here('a');
    RVT_EQ(net.write(here.all(), 0), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic_device, a_device_that_is_the_initiators_alone_goes_in_frames) {
    Net net(false, {}, {.has_p2p = false});
    net.learn_key();
    const Pages here('a');
    DevicePages device(here, 11);
    CountedUse writes;
    writes.place = device.place;
    RVT_EQ(net.write(here.all(), 0, &writes), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a') && writes.refreshes != 0);
    std::fill_n(net.there.memory, kBytes, 'b');
    CountedUse reads;
    reads.place = device.place;
    RVT_EQ(net.read(here.all(), 0, &reads), WcStatus::kSuccess);
    RVT_ASSERT(here.is('b') && reads.fills != 0);
    RVT_EQ(net.mock.writes, 0);
    RVT_EQ(net.mock.reads, 0);
    RVT_ASSERT(!device.is_registered(net.mock));
}

Test(rd_by_nic_device, a_device_that_is_the_targets_alone_is_reached_by_frames) {
    Net net(true, {.has_p2p = false});
    net.learn_key();
    const Pages here('a');
    RVT_EQ(net.write(here.all(), 0), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a'));
    std::fill_n(net.there.memory, kBytes, 'b');
    RVT_EQ(net.read(here.all(), 0), WcStatus::kSuccess);
    RVT_ASSERT(here.is('b'));
    RVT_EQ(net.mock.writes, 0);
    RVT_EQ(net.mock.reads, 0);
    RVT_ASSERT(!net.region.is_registered(net.mock));
}

Test(rd_by_nic_device, buffers_of_a_device_without_a_place_for_nics_go_in_frames) {
    Net net(true);
    net.learn_key();
    const Pages here('a');
    CountedUse writes;
    RVT_EQ(net.write(here.all(), 0, &writes), WcStatus::kSuccess);
    RVT_ASSERT(net.there.is('a') && writes.refreshes != 0);
    RVT_EQ(net.mock.writes, 0);
}

Test(rd_by_nic_device, a_devices_region_that_is_closed_is_out_of_reach) {
    Net net(true);
    net.learn_key();
    RVT_ASSERT(net.region.is_registered(net.mock));
    net.b->close(net.key);
    RVT_ASSERT(!net.region.is_registered(net.mock));
    net.poll_for_a_while();
    const Pages here('a');
    RVT_EQ(net.write(here.all(), 0), WcStatus::kRemAccessErr);
    RVT_ASSERT(net.there.is('-'));
    net.talk();
}
