// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Messages: ping-pong, rate, bandwidth.
#include "benchmarks/fab_bench.h"

namespace fab {
namespace {

constexpr std::size_t kRateWindow = 64;
constexpr std::uint64_t kDataTag = 7;
constexpr std::uint64_t kAckTag = 8;

/// What carries the messages: an RDM endpoint, with tags or without, a connected one, or one of
/// datagrams, of which none may get lost.
enum class Kind { kTagged, kMsg, kConnected, kDatagram };

constexpr fi_ep_type type_of(Kind kind) {
    switch (kind) {
        case Kind::kConnected: return FI_EP_MSG;
        case Kind::kDatagram: return FI_EP_DGRAM;
        default: return FI_EP_RDM;
    }
}

template <Kind kKind>
EpSpec spec_of(std::uint64_t msg_order = 0) {
    return {.caps = kKind == Kind::kTagged ? FI_TAGGED : FI_MSG,
            .type = type_of(kKind),
            .msg_order = kKind == Kind::kDatagram ? 0 : msg_order};
}

// Inlined, as is post_send(): each further cache line that is stored to between two messages, be it
// the stack's, keeps some processors from having the lines of both messages under way at once (Zen
// 4: 3 ns of the 18 that a send takes).
template <Kind kKind>
[[gnu::always_inline]] inline void post_recv(Bench& bench, const Buffer& buffer, std::size_t offset,
                                             std::size_t size, std::uint64_t tag,
                                             std::size_t context) {
    fid_ep* ep = bench.ep.ep;
    char* at = buffer.as() + offset;
    bench.post([&] {
        return kKind == Kind::kTagged
                   ? fi_trecv(ep, at, size, buffer.desc(), bench.peer(), tag, 0,
                              bench.context(context))
                   : fi_recv(ep, at, size, buffer.desc(), bench.peer(), bench.context(context));
    });
}

/// Injects where the size allows, else sends. Returns: how many completions that brings.
template <Kind kKind>
[[gnu::always_inline]] inline std::size_t post_send(Bench& bench, const Buffer& buffer,
                                                    std::size_t size, std::uint64_t tag,
                                                    std::size_t context) {
    fid_ep* ep = bench.ep.ep;
    const fi_addr_t to = bench.peer();
    if (bench.can_inject(size)) {
        bench.post([&] {
            return kKind == Kind::kTagged ? fi_tinject(ep, buffer.as(), size, to, tag)
                                          : fi_inject(ep, buffer.as(), size, to);
        });
        return 0;
    }
    bench.post([&] {
        return kKind == Kind::kTagged
                   ? fi_tsend(ep, buffer.as(), size, buffer.desc(), to, tag, bench.context(context))
                   : fi_send(ep, buffer.as(), size, buffer.desc(), to, bench.context(context));
    });
    return 1;
}

/// Half of a round trip. The next receive is posted before the answer is sent.
template <Kind kKind>
double pingpong(Rank& self, std::size_t size) {
    Bench bench(self, spec_of<kKind>());
    Buffer out(bench.ep, size);
    Buffer in(bench.ep, size);
    std::size_t received = 0;
    std::size_t sent = 0;
    post_recv<kKind>(bench, in, 0, size, kDataTag, 0);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) sent += post_send<kKind>(bench, out, size, kDataTag, 1);
            bench.wait_received(++received);
            post_recv<kKind>(bench, in, 0, size, kDataTag, 0);
            if (self.rank == 1) sent += post_send<kKind>(bench, out, size, kDataTag, 1);
            bench.wait_sent(sent);
        }
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return seconds / 2 * 1e6;
}

/// Both send at once, and have done when each has what the other has sent.
double exchange(Rank& self, std::size_t size) {
    Bench bench(self, {.caps = FI_TAGGED});
    Buffer out(bench.ep, size);
    Buffer in(bench.ep, size);
    std::size_t received = 0;
    std::size_t sent = 0;
    post_recv<Kind::kTagged>(bench, in, 0, size, kDataTag, 0);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            sent += post_send<Kind::kTagged>(bench, out, size, kDataTag, 1);
            bench.wait_received(++received);
            post_recv<Kind::kTagged>(bench, in, 0, size, kDataTag, 0);
            bench.wait_sent(sent);
        }
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return seconds * 1e6;
}

/// Windows of 64 messages; the receiver posts the next 64 receives, then answers once.
template <Kind kKind>
double rate(Rank& self, std::size_t size) {
    Bench bench(self, spec_of<kKind>(FI_ORDER_SAS));
    Buffer out(bench.ep, size);
    Buffer in(bench.ep, size * kRateWindow);
    const auto post_window = [&] {
        for (std::size_t m = 0; m < kRateWindow; ++m) {
            post_recv<kKind>(bench, in, m * size, size, kDataTag, m);
        }
    };
    std::size_t received = 0;
    std::size_t sent = 0;
    if (self.rank == 1) post_window();
    if (self.rank == 0) post_recv<kKind>(bench, in, 0, size, kAckTag, 0);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) {
                std::size_t reported = 0;
                for (std::size_t m = 0; m < kRateWindow; ++m) {
                    reported += post_send<kKind>(bench, out, size, kDataTag, 100 + m);
                }
                sent += reported;
                bench.wait_received(++received);
                bench.wait_sent(sent);
                post_recv<kKind>(bench, in, 0, size, kAckTag, 0);
            } else {
                bench.wait_received(received += kRateWindow);
                post_window();
                sent += post_send<kKind>(bench, out, size, kAckTag, 100);
                bench.wait_sent(sent);
            }
        }
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return static_cast<double>(kRateWindow) / seconds / 1e6;
}

/// Windows of sends from one buffer into one buffer, one answer for each window.
template <Kind kKind>
double bandwidth(Rank& self, std::size_t size) {
    Bench bench(self, spec_of<kKind>(FI_ORDER_SAS));
    Buffer data(bench.ep, size);
    Buffer ack(bench.ep, 64);
    const std::size_t window = window_of(size);
    const auto post_window = [&] {
        for (std::size_t m = 0; m < window; ++m) {
            post_recv<kKind>(bench, data, 0, size, kDataTag, m);
        }
    };
    std::size_t received = 0;
    std::size_t sent = 0;
    if (self.rank == 1) post_window();
    if (self.rank == 0) post_recv<kKind>(bench, ack, 0, 8, kAckTag, 0);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) {
                for (std::size_t m = 0; m < window; ++m) {
                    sent += post_send<kKind>(bench, data, size, kDataTag, 100 + m);
                }
                bench.wait_received(++received);
                bench.wait_sent(sent);
                post_recv<kKind>(bench, ack, 0, 8, kAckTag, 0);
            } else {
                bench.wait_received(received += window);
                post_window();
                sent += post_send<kKind>(bench, ack, 8, kAckTag, 100);
                bench.wait_sent(sent);
            }
        }
    };
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return static_cast<double>(size * window) / seconds / 1e9;
}

/// How long a send takes whose receiver computes as soon as it has the message, and calls nothing
/// for longer than a provider's own threads take to notice. It asks for the message beforehand.
double send_busy(Rank& self, std::size_t size) {
    constexpr int kTimes = 50;
    constexpr double kComputesS = 0.01;
    Bench bench(self, spec_of<Kind::kTagged>());
    Buffer data(bench.ep, size);
    Buffer request(bench.ep, 64);
    std::vector<double> times;
    std::size_t received = 0;
    std::size_t sent = 0;
    for (int i = 0; i < kTimes; ++i) {
        if (self.rank == 1) {
            post_recv<Kind::kTagged>(bench, data, 0, size, kDataTag, 0);
            sent += post_send<Kind::kTagged>(bench, request, 8, kAckTag, 1);
            bench.wait_received(++received);
            for (const double end = now_s() + kComputesS; now_s() < end;) {
            }
        } else {
            post_recv<Kind::kTagged>(bench, request, 0, 8, kAckTag, 0);
            bench.wait_received(++received);
            const double begin = now_s();
            sent += post_send<Kind::kTagged>(bench, data, size, kDataTag, 1);
            bench.wait_sent(sent);
            times.push_back(now_s() - begin);
        }
    }
    bench.finish();
    return self.rank == 0 ? median(times) * 1e6 : 0;
}

constexpr Measure kMeasures[] = {
    {"pingpong", "us", pingpong<Kind::kTagged>, 2, "bytes; tagged"},
    {"pingpong-msg", "us", pingpong<Kind::kMsg>, 2, "bytes"},
    {"pingpong-connected", "us", pingpong<Kind::kConnected>, 2, "bytes; FI_EP_MSG"},
    {"pingpong-datagram", "us", pingpong<Kind::kDatagram>, 2, "bytes; FI_EP_DGRAM"},
    {"exchange", "us", exchange, 2, "bytes; tagged, both at once"},
    {"send-busy", "us", send_busy, 2, "bytes; tagged, to a receiver that computes next"},
    {"rate", "M/s", rate<Kind::kTagged>, 2, "bytes; tagged, windows of 64"},
    {"rate-msg", "M/s", rate<Kind::kMsg>, 2, "bytes; windows of 64"},
    {"rate-connected", "M/s", rate<Kind::kConnected>, 2, "bytes; FI_EP_MSG, windows of 64"},
    {"rate-datagram", "M/s", rate<Kind::kDatagram>, 2, "bytes; FI_EP_DGRAM, windows of 64"},
    {"bandwidth", "GB/s", bandwidth<Kind::kTagged>, 2, "bytes; tagged"},
    {"bandwidth-connected", "GB/s", bandwidth<Kind::kConnected>, 2, "bytes; FI_EP_MSG"},
};

}  // namespace

const std::span<const Measure> kMessageMeasures = kMeasures;

}  // namespace fab
