// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// FI_MULTI_RECV: what messages leave in a buffer that takes several, in queues and in counters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

namespace {

/// Two ends, the second with a buffer that is used up when less than `least` bytes are left of it.
struct Buffered : Pair {
    Buffered(std::size_t bytes, std::size_t least, const EndOptions& options = {},
             std::uint64_t flags = FI_COMPLETION)
        : Pair(options), in(bytes, '-') {
        RVT_OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
        post_buffer(in, flags);
    }
    void post_buffer(std::vector<char>& buffer, std::uint64_t flags = FI_COMPLETION) {
        const iovec part{buffer.data(), buffer.size()};
        const fi_msg msg{&part, nullptr, 1, FI_ADDR_UNSPEC, buffer.data(), 0};
        RVT_OK(fi_recvmsg(b.ep.get(), &msg, flags | FI_MULTI_RECV));
    }
    void send(const std::vector<char>& out) {
        post([&] { return fi_send(a.ep.get(), out.data(), out.size(), nullptr, a.peer, nullptr); });
        a.next();
    }
    void inject(const char* text) {
        post([&] { return fi_inject(a.ep.get(), text, std::strlen(text), a.peer); });
    }
    /// Where a message is, in bytes from the begin of the buffer.
    std::ptrdiff_t place_of(const fi_cq_tagged_entry& entry) const {
        return static_cast<char*>(entry.buf) - in.data();
    }

    std::vector<char> in;
};

}  // namespace

TestSuite(multi_recv, .timeout = 60);

/// In lines, in one run, and in several parts.
Test(multi_recv, messages_of_all_sizes_lie_one_behind_the_other) {
    constexpr std::size_t kSizes[] = {8, 0, 200, 3000, 1, 40000, 209, 16000, 100'000, 30};
    std::size_t all = 0;
    for (const std::size_t size : kSizes) {
        all += size;
    }
    Buffered pair(all, 1);
    std::vector<char> second(100, '-');
    pair.post_buffer(second);
    std::ptrdiff_t place = 0;
    char letter = 'a';
    for (const std::size_t size : kSizes) {
        const std::vector<char> out(size, letter++);
        pair.send(out);
        const fi_cq_tagged_entry entry = pair.b.next();
        RVT_EQ(pair.place_of(entry), place);
        RVT_EQ(entry.len, size);
        place += static_cast<std::ptrdiff_t>(size);
        const bool is_last = place == static_cast<std::ptrdiff_t>(all);
        RVT_EQ(entry.flags, FI_RECV | FI_MSG | (is_last ? FI_MULTI_RECV : 0));
        RVT_ASSERT(entry.op_context == pair.in.data());
        RVT_ASSERT(std::equal(out.begin(), out.end(), static_cast<char*>(entry.buf)));
    }
    pair.inject("next");
    const fi_cq_tagged_entry entry = pair.b.next();
    RVT_ASSERT(entry.buf == second.data() && entry.op_context == second.data());
}

Test(multi_recv, each_message_is_counted_and_has_its_source_and_data) {
    EndOptions options;
    options.caps = FI_MSG | FI_MULTI_RECV | FI_SOURCE;
    Buffered pair(100'000, 1, options);
    std::uint64_t count = 0;
    for (const std::size_t size : {8u, 100u, 3000u}) {
        const std::vector<char> out(size, 'x');
        pair.post([&] {
            return fi_senddata(pair.a.ep.get(), out.data(), size, nullptr, 7 + size, pair.a.peer,
                               nullptr);
        });
        fi_cq_tagged_entry entry{};
        fi_addr_t source = FI_ADDR_UNSPEC;
        ssize_t got = -FI_EAGAIN;
        pair.until([&] {
            got = got == -FI_EAGAIN ? fi_cq_readfrom(pair.b.cq.get(), &entry, 1, &source) : got;
            return got != -FI_EAGAIN;
        });
        RVT_EQ(got, 1);
        RVT_EQ(entry.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
        RVT_EQ(entry.data, 7 + size);
        RVT_EQ(source, pair.b.peer);
        RVT_EQ(fi_cntr_read(pair.b.cntrs[1].get()), ++count);
    }
}

Test(multi_recv, with_selective_completion_only_the_last_message_is_reported) {
    EndOptions options;
    options.is_selective = true;
    Buffered pair(64, 16, options, 0);
    for (int i = 0; i < 5; ++i) {
        RVT_ASSERT(pair.b.is_quiet());
        pair.inject("0123456789");
    }
    const fi_cq_tagged_entry entry = pair.b.next();
    RVT_EQ(pair.place_of(entry), 40);
    RVT_EQ(entry.flags, FI_RECV | FI_MSG | FI_MULTI_RECV);
    RVT_EQ(fi_cntr_read(pair.b.cntrs[1].get()), 5);
    RVT_ASSERT(pair.b.is_quiet());
}

Test(multi_recv, a_message_that_is_longer_than_what_is_left_is_cut_and_ends_the_buffer) {
    for (const std::size_t size : {100u, 3000u}) {
        Buffered pair(64, 16);
        pair.inject("0123456789");
        RVT_EQ(pair.b.next().len, 10);
        pair.send(std::vector<char>(size, 'x'));
        const fi_cq_err_entry error = pair.b.next_error();
        RVT_EQ(error.err, FI_ETRUNC);
        RVT_EQ(error.len, 54);
        RVT_EQ(error.olen, size - 54);
        RVT_EQ(error.flags & FI_MULTI_RECV, FI_MULTI_RECV);
        RVT_ASSERT(error.buf == pair.in.data() + 10);
        RVT_EQ(pair.in.back(), 'x');
    }
}

Test(multi_recv, a_sender_that_waits_for_delivery_hears_of_it) {
    EndOptions options;
    options.tx_op_flags = FI_DELIVERY_COMPLETE;
    Buffered pair(10'000, 1, options);
    std::ptrdiff_t place = 0;
    for (const std::size_t size : {8u, 3000u, 100u}) {
        pair.send(std::vector<char>(size, 'x'));
        RVT_EQ(pair.place_of(pair.b.next()), place);
        place += static_cast<std::ptrdiff_t>(size);
    }
}

/// As many as the application had sent by the time it posts the buffer.
Test(multi_recv, messages_that_waited_and_later_ones_share_a_buffer) {
    Buffered pair(1, 1);
    pair.inject("x");  // uses the first buffer up
    pair.b.next();
    for (const char* const text : {"one", "two"}) {
        pair.inject(text);
    }
    pair.drive();
    std::vector<char> second(100, '-');
    pair.post_buffer(second);
    pair.inject("three");
    for (const std::size_t place : {0u, 3u, 6u}) {
        RVT_ASSERT(pair.b.next().buf == second.data() + place);
    }
    RVT_EQ(std::memcmp(second.data(), "onetwothree-", 12), 0);
}
