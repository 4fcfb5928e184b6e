// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Buffers that take several messages, as the engine fills them: endpoints of this process, and the
// mock for their NIC, which can be kept from reading what is large.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include <malloc.h>

#include "core/nic_net.h"

using namespace rvt;
using namespace rvt::core;

namespace {

using test::context_of;
using test::Pages;
constexpr std::uint64_t kBuffer = 9;  // names the one for several

struct Net : test::NicNet {
    Net() { b->engine.set_min_multi_recv(kLeast); }

    void post(const iovec& buffer) const {
        RVT_OK(b->engine.recv({.iov = &buffer,
                               .iov_count = 1,
                               .context = context_of(kBuffer),
                               .flags = RdFlags::kMultiRecv | RdFlags::kCompletion}));
    }
    void send(const iovec& from) const {
        while (!a->engine.send({.iov = &from, .iov_count = 1}).is_ok()) {
            poll();
        }
    }
    /// What has been written into the buffer, in the order of completion.
    [[nodiscard]] std::vector<Cqe> parts() const {
        std::vector<Cqe> parts;
        std::ranges::copy_if(b->done, std::back_inserter(parts), [](const Cqe& each) {
            return each.op_context == context_of(kBuffer);
        });
        return parts;
    }
    void until_parts(std::size_t count) const {
        until([&] { return parts().size() == count; });
    }

    static constexpr std::size_t kLeast = 16;
    static constexpr std::size_t kEach = 10;
    char digits[kEach + 1] = "0123456789";
    const iovec word{digits, kEach};
};

bool is_last(const Cqe& part) {
    return (part.flags & kWcMultiRecv) != 0;
}

}  // namespace

TestSuite(rd_multi_recv, .timeout = 60);

Test(rd_multi_recv, messages_lie_one_behind_the_other_and_the_last_one_says_so) {
    Net net;
    std::array<char, 64> buffer{};
    net.post({buffer.data(), buffer.size()});
    for (std::size_t i = 0; i < 5; ++i) {
        net.send(net.word);
        net.until_parts(i + 1);
        const Cqe part = net.parts().back();
        RVT_ASSERT(part.buf == buffer.data() + i * Net::kEach);
        RVT_EQ(part.len, Net::kEach);
        RVT_EQ(part.source, 0);
        RVT_EQ(part.flags, kWcRecv | kWcMsg | (i == 4 ? kWcMultiRecv : 0));
        RVT_EQ(std::memcmp(part.buf, net.digits, Net::kEach), 0);
    }
}

Test(rd_multi_recv, a_message_that_comes_whole_takes_no_record) {
    Net net;
    std::vector<char> from(1000, 'x');
    std::vector<char> to(100'000);
    for (auto* const end : {net.a.get(), net.b.get()}) {
        end->done.reserve(1000);
    }
    constexpr std::array<std::size_t, 4> kSizes = {0, 8, 200, 1000};
    for (const std::size_t bytes : kSizes) {
        for (std::uint64_t number = 0; number < 10; ++number) {
            RVT_OK(net.b->recv(number, {to.data(), to.size()}));
            RVT_OK(net.a->send(number, {from.data(), bytes}));
            net.until([&] { return net.a->is_done(number) && net.b->is_done(number); });
            net.a->done.clear();
            net.b->done.clear();
        }
    }
    net.post({to.data(), to.size()});
    const std::size_t before = mallinfo2().uordblks;
    std::size_t received = 0;
    for (const std::size_t bytes : kSizes) {
        for (int i = 0; i < 10; ++i) {
            net.send({from.data(), bytes});
            ++received;
            net.until([&] { return net.b->done.size() == received; });
        }
    }
    RVT_ASSERT(mallinfo2().uordblks < before + 16 * sizeof(RdInbound));  // 32 come at a time
    const std::size_t all = 10 * std::accumulate(kSizes.begin(), kSizes.end(), std::size_t{0});
    RVT_ASSERT(net.b->done.back().buf == to.data() + all - kSizes.back());
}

Test(rd_multi_recv, a_message_behind_one_that_is_still_read_does_not_end_the_buffer) {
    Net net;
    const Pages from('a');
    std::vector<char> buffer(from.bytes + 30, '-');
    net.post({buffer.data(), buffer.size()});
    net.mock.is_rdma_stopped = true;
    net.send(from.all());
    net.send(net.word);
    net.send(net.word);  // uses the buffer up
    net.until_parts(2);
    net.poll_for_a_while();
    RVT_EQ(net.parts().size(), 2);
    net.mock.is_rdma_stopped = false;
    net.talk();  // which takes the NIC to what waits
    net.until_parts(3);
    const std::vector<Cqe> parts = net.parts();
    char* const behind = buffer.data() + from.bytes;
    RVT_ASSERT(parts[0].buf == behind && !is_last(parts[0]));
    RVT_ASSERT(parts[1].buf == behind + Net::kEach && !is_last(parts[1]));
    RVT_ASSERT(parts[2].buf == buffer.data() && is_last(parts[2]));
    RVT_EQ(parts[2].len, from.bytes);
    RVT_EQ(std::memcmp(behind, "01234567890123456789----------", 30), 0);
}

Test(rd_multi_recv, messages_after_one_that_has_been_read_follow_those_before) {
    Net net;
    const Pages from('a');
    std::vector<char> buffer(from.bytes + 30);
    net.post({buffer.data(), buffer.size()});
    net.mock.is_rdma_stopped = true;
    net.send(from.all());
    net.send(net.word);
    net.until_parts(1);
    net.mock.is_rdma_stopped = false;
    net.talk();
    net.until_parts(2);
    net.send(net.word);
    net.until_parts(3);
    const std::vector<Cqe> parts = net.parts();
    char* const behind = buffer.data() + from.bytes;
    RVT_ASSERT(parts[0].buf == behind && parts[1].buf == buffer.data() &&
               parts[2].buf == behind + Net::kEach);
    RVT_ASSERT(!is_last(parts[0]) && !is_last(parts[1]) && is_last(parts[2]));
}
