// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Large messages from and to memory of devices, between endpoints of this process over the mock for
// their NIC: read by the NIC where it imports the memory, in frames where it does not.
#include <algorithm>

#include "core/device_pages.h"
#include "core/flow_node.h"
#include "core/nic_net.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using test::context_of;
using test::CountedUse;
using test::DevicePages;
using test::Pages;
using Net = test::NicNet;
constexpr std::size_t kBytes = test::kPagesBytes;

/// Passes a message whose buffers are memory of devices where there is a use for them.
void pass_with(Net& net, const iovec& source, CountedUse* sends, const iovec& target,
               CountedUse* receives) {
    constexpr RdFlags kFlags = RdFlags::kTagged | RdFlags::kCompletion;
    const std::uint64_t number = ++net.last;
    const auto with = [](const CountedUse* use) {
        return use != nullptr ? kFlags | RdFlags::kHasUse : kFlags;
    };
    RVT_OK(net.b->engine.recv({.iov = &target,
                               .iov_count = 1,
                               .tag = number,
                               .context = context_of(number),
                               .flags = with(receives),
                               .use = receives}));
    RVT_OK(net.a->engine.send({.iov = &source,
                               .iov_count = 1,
                               .dest = 0,
                               .tag = number,
                               .context = context_of(number),
                               .flags = with(sends),
                               .use = sends}));
    net.until([&] { return net.a->is_done(number) && net.b->is_done(number); });
    RVT_EQ(net.a->status(number), WcStatus::kSuccess);
    RVT_EQ(net.b->status(number), WcStatus::kSuccess);
}

}  // namespace

TestSuite(rd_lend_device, .timeout = 60);

Test(rd_lend_device, memory_of_devices_goes_in_frames) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    CountedUse sends;
    CountedUse receives;
    for (const bool is_sender : {true, false}) {
        pass_with(net, from.all(), is_sender ? &sends : nullptr, to.all(),
                  is_sender ? nullptr : &receives);
        RVT_ASSERT(to.is('a'));
        std::fill_n(to.memory, kBytes, '-');
    }
    RVT_ASSERT(sends.refreshes != 0);
    RVT_EQ(receives.arrived_end, kBytes);
    RVT_EQ(sends.releases, 1);
    RVT_EQ(receives.releases, 1);
    RVT_ASSERT(receives.fills != 0);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend_device, memory_of_devices_that_the_nic_imports_is_read_and_written_there) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    DevicePages source(from, 11);
    DevicePages target(to, 12);
    for (const int which : {1, 2, 3, 3}) {
        CountedUse sends;
        CountedUse receives;
        sends.place = source.place;
        receives.place = target.place;
        const bool is_from = (which & 1) != 0;
        const bool is_to = (which & 2) != 0;
        const unsigned before = net.mock.reads;
        pass_with(net, from.all(), is_from ? &sends : nullptr, to.all(),
                  is_to ? &receives : nullptr);
        RVT_ASSERT(to.is('a'));
        std::fill_n(to.memory, kBytes, '-');
        RVT_EQ(net.mock.reads, before + 1);
        RVT_ASSERT(sends.is_untouched() && receives.is_untouched());
        RVT_EQ(sends.releases, is_from ? 1 : 0);
        RVT_EQ(receives.releases, is_to ? 1 : 0);
    }
    RVT_EQ(std::ranges::count_if(net.mock.regions, [](const auto& each) { return each.fd >= 0; }),
           2);
    net.a->engine.withdraw_key(11);
    RVT_ASSERT(!source.is_registered(net.mock) && target.is_registered(net.mock));
}

Test(rd_lend_device, a_part_of_a_devices_region_is_read_and_written_there) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    DevicePages source(from, 11);
    DevicePages target(to, 12);
    constexpr std::size_t kAt = 5000;
    constexpr std::size_t kPart = 100'000;
    CountedUse sends;
    CountedUse receives;
    sends.place = source.place;
    sends.place->address += kAt;
    receives.place = target.place;
    receives.place->address += 2 * kAt;
    pass_with(net, from.part(kAt, kPart), &sends, to.part(2 * kAt, kPart), &receives);
    RVT_ASSERT(to.is('-', 0, 2 * kAt) && to.is('a', 2 * kAt, 2 * kAt + kPart) &&
               to.is('-', 2 * kAt + kPart, kBytes));
    RVT_EQ(net.mock.reads, 1);
}

Test(rd_lend_device, memory_of_devices_that_the_nic_does_not_import_goes_in_frames) {
    Net net;
    net.mock.dmabuf_error = EOPNOTSUPP;
    const Pages from('a');
    const Pages to('-');
    DevicePages source(from, 11);
    CountedUse sends;
    sends.place = source.place;
    pass_with(net, from.all(), &sends, to.all(), nullptr);
    RVT_ASSERT(to.is('a') && sends.refreshes != 0);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend_device, memory_of_devices_that_is_its_owners_alone_goes_in_frames) {
    for (const bool is_senders : {true, false}) {
        Net net({}, {.has_p2p = is_senders}, {.has_p2p = !is_senders});
        const Pages from('a');
        const Pages to('-');
        DevicePages device(is_senders ? from : to, 11);
        CountedUse use;
        use.place = device.place;
        pass_with(net, from.all(), is_senders ? &use : nullptr, to.all(),
                  is_senders ? nullptr : &use);
        RVT_ASSERT(to.is('a') && !use.is_untouched());
        RVT_ASSERT(!device.is_registered(net.mock));
        RVT_EQ(net.mock.reads, 0);
    }
}

Test(rd_lend_device, what_is_no_devices_is_read_by_the_nic_all_the_same) {
    Net net({}, {.has_p2p = false}, {.has_p2p = false});
    const Pages from('a');
    const Pages to('-');
    pass_with(net, from.all(), nullptr, to.all(), nullptr);
    RVT_ASSERT(to.is('a'));
    RVT_EQ(net.mock.reads, 1);
}

/// The sender cannot lend it; the receiver is sent it, and has it copied.
Test(rd_lend_device, what_goes_to_a_device_of_a_receiver_without_registrations_comes_in_frames) {
    Net net({}, {.keeps = false});
    const Pages from('a');
    const Pages to('-');
    DevicePages target(to, 12);
    CountedUse receives;
    receives.place = target.place;
    pass_with(net, from.all(), nullptr, to.all(), &receives);
    RVT_ASSERT(to.is('a') && receives.fills != 0);
    RVT_EQ(net.mock.reads, 0);
}

Test(rd_lend_device, a_devices_region_that_is_closed_stays_registered_until_it_has_been_read) {
    Net net;
    const Pages from('a');
    const Pages to('-');
    DevicePages source(from, 11);
    CountedUse sends;
    sends.place = source.place;
    net.mock.is_rdma_stopped = true;
    const iovec buffer = from.all();
    RVT_OK(net.b->recv(1, to.all()));
    RVT_OK(net.a->engine.send({.iov = &buffer,
                               .iov_count = 1,
                               .dest = 0,
                               .tag = 1,
                               .context = context_of(1),
                               .flags = RdFlags::kTagged | RdFlags::kCompletion | RdFlags::kHasUse,
                               .use = &sends}));
    net.poll_for_a_while();
    net.a->engine.withdraw_key(11);
    RVT_ASSERT(source.is_registered(net.mock));
    net.mock.is_rdma_stopped = false;
    net.talk();
    net.until([&] { return net.a->is_done(1) && net.b->is_done(1); });
    RVT_ASSERT(to.is('a') && !source.is_registered(net.mock));
}
