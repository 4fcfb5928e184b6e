// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Many of something: posted receives, unexpected messages, quiet peers; and the memory they take.
#include <functional>
#include <memory>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "benchmarks/fab_bench.h"

namespace fab {
namespace {

constexpr std::size_t kSize = 8;
constexpr std::size_t kWindow = 10;
constexpr std::size_t kStride = 7919;  // prime: tags come in an order far from that of posting
constexpr std::size_t kLaps = 3;       // before what is measured
constexpr std::uint64_t kAckTag = std::uint64_t{1} << 40;
constexpr int kQuietProcesses = 3;

std::uint64_t nth_tag(std::size_t i, std::size_t count) {
    return i * kStride % count;
}

void inject(Bench& bench, const Buffer& out, std::uint64_t tag) {
    bench.post([&] { return fi_tinject(bench.ep.ep, out.as(), kSize, bench.peer(), tag); });
}

void receive(Bench& bench, const Buffer& in, std::uint64_t tag) {
    bench.post([&] {
        return fi_trecv(bench.ep.ep, in.as(), kSize, in.desc(), bench.peer(), tag, 0,
                        bench.context(0));
    });
}

/// What the queues need has been asked of the kernel by the time that all of `count` have been
/// taken some times: it is no part of what one match costs. Both ranks call it.
void run_laps(const std::function<void(std::size_t)>& body, std::size_t count) {
    body(kLaps * count / kWindow);
}

/// Nanoseconds of one match with `count` receives of different tags posted all the time, beside
/// those of a window.
double match_posted(Rank& self, std::size_t count) {
    count += kWindow;
    Bench bench(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS, .rx_size = 0});
    Buffer in(bench.ep, 64);
    Buffer out(bench.ep, 64);
    if (self.rank == 1) {
        for (std::size_t i = 0; i < count; ++i) receive(bench, in, i);
    } else {
        receive(bench, in, kAckTag);
    }
    std::size_t received = 0;
    std::size_t next = 0;
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) {
                for (std::size_t m = 0; m < kWindow; ++m) {
                    inject(bench, out, nth_tag(next++, count));
                }
                bench.wait_received(++received);
                receive(bench, in, kAckTag);
            } else {
                bench.wait_received(received += kWindow);
                for (std::size_t m = 0; m < kWindow; ++m) {
                    receive(bench, in, nth_tag(next++, count));
                }
                inject(bench, out, kAckTag);
            }
        }
    };
    run_laps(body, count);
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return seconds / static_cast<double>(kWindow) * 1e9;
}

/// Nanoseconds of one match with `count` unexpected messages of different tags waiting all the
/// time, beside those of a window: a receive always finds its message waiting.
double match_unexpected(Rank& self, std::size_t count) {
    count += kWindow;
    Bench bench(self, {.caps = FI_TAGGED, .msg_order = FI_ORDER_SAS});
    Buffer in(bench.ep, 64);
    Buffer out(bench.ep, 64);
    if (self.rank == 0) {
        for (std::size_t i = 0; i < count; ++i) {
            inject(bench, out, i);
            if (i % 64 == 0) bench.poll();
        }
        inject(bench, out, kAckTag);
        receive(bench, in, kAckTag);
    } else {
        receive(bench, in, kAckTag);
        bench.wait_received(1);  // in order: all others are here
        bench.received = 0;
    }
    std::size_t received = 0;
    std::size_t next = 0;
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t first = next;
            next += kWindow;
            if (self.rank == 0) {
                bench.wait_received(++received);
                for (std::size_t m = 0; m < kWindow; ++m) {
                    inject(bench, out, nth_tag(first + m, count));
                }
                receive(bench, in, kAckTag);
            } else {
                for (std::size_t m = 0; m < kWindow; ++m) {
                    receive(bench, in, nth_tag(first + m, count));
                }
                bench.wait_received(received += kWindow);
                inject(bench, out, kAckTag);
            }
        }
    };
    run_laps(body, count);
    const double seconds = time_batches(self, body, bench.idle());
    bench.finish();
    return seconds / static_cast<double>(kWindow) * 1e9;
}

/// The ranks above 1: each opens some endpoints that exchange one message with rank 0 and are
/// quiet.
void be_quiet(Rank& self, std::size_t count) {
    const EpSpec spec{.caps = FI_TAGGED, .one_cq = true};
    const std::string zero = self.receive_string(0);
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (std::size_t i = 0; i < count; ++i) {
        endpoints.push_back(i == 0 ? std::make_unique<Endpoint>(spec)
                                   : std::make_unique<Endpoint>(spec, *endpoints[0]));
        Endpoint& ep = *endpoints.back();
        const fi_addr_t to = ep.insert({zero.begin(), zero.end()});
        const std::vector<char> name = ep.name();
        self.send_string(0, std::string(name.begin(), name.end()));
        Context contexts[2];
        char in[8] = {};
        char out[8] = {};
        ep.post(
            [&] { return fi_trecv(ep.ep, in, 8, nullptr, FI_ADDR_UNSPEC, 1, 0, &contexts[0]); });
        ep.post([&] { return fi_tsend(ep.ep, out, 8, nullptr, to, 2, &contexts[1]); });
        ep.wait_any(ep.rx_cq);
        ep.wait_any(ep.rx_cq);
    }
    self.barrier();
    self.barrier();                                   // sleeps while ranks 0 and 1 measure
    while (!endpoints.empty()) endpoints.pop_back();  // the first one, with the domain, last
}

/// Rank 0's side: greets one endpoint after the other.
void greet_quiet(Bench& bench, const Buffer& buffer, int rank, std::size_t count) {
    const std::vector<char> name = bench.ep.name();
    bench.self.send_string(rank, std::string(name.begin(), name.end()));
    for (std::size_t i = 0; i < count; ++i) {
        const std::string theirs = bench.self.receive_string(rank);
        const fi_addr_t to = bench.ep.insert({theirs.begin(), theirs.end()});
        bench.received = 0;
        bench.post([&] {
            return fi_trecv(bench.ep.ep, buffer.as(), 8, buffer.desc(), FI_ADDR_UNSPEC, 2, 0,
                            bench.context(0));
        });
        bench.wait_received(1);
        bench.post([&] { return fi_tinject(bench.ep.ep, buffer.as(), 8, to, 1); });
    }
    bench.received = 0;
}

std::size_t share_of(std::size_t count, int process) {
    const auto processes = static_cast<std::size_t>(kQuietProcesses);
    return count / processes + (static_cast<std::size_t>(process) < count % processes ? 1 : 0);
}

/// Ping-pong of ranks 0 and 1 while `count` other peers of rank 0 are connected and quiet.
double quiet_peers(Rank& self, std::size_t count) {
    if (self.rank >= 2) {
        const std::size_t mine = share_of(count, self.rank - 2);
        be_quiet(self, mine);
        return 0;
    }
    Rank pair = self;
    pair.size = 2;
    Bench bench(pair, {.caps = FI_TAGGED, .av_count = count + 2});
    Buffer in(bench.ep, 64);
    Buffer out(bench.ep, 64);
    if (self.rank == 0) {
        for (int r = 2; r < self.size; ++r) greet_quiet(bench, in, r, share_of(count, r - 2));
    }
    self.barrier_polling(bench.idle());
    receive(bench, in, 7);
    std::size_t received = 0;
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) inject(bench, out, 7);
            bench.wait_received(++received);
            receive(bench, in, 7);
            if (self.rank == 1) inject(bench, out, 7);
        }
    };
    const double seconds = time_batches(pair, body, bench.idle());
    self.barrier_polling(bench.idle());
    return seconds / 2 * 1e6;
}

/// Bytes of one more idle endpoint with its queue and address vector.
double memory_endpoint(Rank& self, std::size_t count) {
    if (self.rank != 0) return 0;
    const EpSpec spec{.caps = FI_TAGGED | FI_RMA, .one_cq = true};
    Endpoint first(spec);
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    const double before = resident_bytes();
    for (std::size_t i = 0; i < count; ++i) {
        endpoints.push_back(std::make_unique<Endpoint>(spec, first));
    }
    return (resident_bytes() - before) / static_cast<double>(count);
}

/// Bytes of one address that nobody has sent to.
double memory_av(Rank& self, std::size_t count) {
    if (self.rank != 0) return 0;
    Endpoint ep({.caps = FI_TAGGED, .av_type = FI_AV_TABLE, .one_cq = true});
    if (ep.info->addr_format != FI_SOCKADDR_IN) skip("addresses are not FI_SOCKADDR_IN");
    std::vector<sockaddr_in> addresses(count);
    for (std::size_t i = 0; i < count; ++i) {
        addresses[i].sin_family = AF_INET;
        addresses[i].sin_addr.s_addr = htonl(static_cast<std::uint32_t>(0x7f000001 + i / 60000));
        addresses[i].sin_port = htons(static_cast<std::uint16_t>(1024 + i % 60000));
    }
    std::vector<fi_addr_t> places(count, 1);
    const double before = resident_bytes();
    FAB_EQUAL(fi_av_insert(ep.av, addresses.data(), count, places.data(), 0, nullptr), count);
    return (resident_bytes() - before) / static_cast<double>(count);
}

/// Bytes of one active peer: hundreds of messages of several sizes each way.
double memory_peer(Rank& self, std::size_t count) {
    constexpr std::size_t kSizes[] = {8, 200, 4000, 60000};
    const EpSpec spec{.caps = FI_TAGGED, .av_count = count + 2, .one_cq = true};
    Endpoint first(spec);
    first.connect(self);
    std::vector<std::unique_ptr<Endpoint>> others;  // rank 1's: the peers of rank 0's only one
    Buffer buffer(first, 60000);
    Context contexts[2];
    const auto exchange = [&](Endpoint& ep, fi_addr_t to) {
        for (int turn = 0; turn < 200; ++turn) {
            const std::size_t size = kSizes[turn % 4];
            ep.post([&] {
                return fi_trecv(ep.ep, buffer.as(), size, buffer.desc(), FI_ADDR_UNSPEC, 1, 0,
                                &contexts[0]);
            });
            ep.post([&] {
                return fi_tsend(ep.ep, buffer.as(), size, buffer.desc(), to, 1, &contexts[1]);
            });
            ep.wait(ep.rx_cq);
            ep.wait(ep.rx_cq);
        }
    };
    exchange(first, first.peers[static_cast<std::size_t>(self.other())]);
    const double before = resident_bytes();
    for (std::size_t i = 0; i < count; ++i) {
        if (self.rank == 1) {
            others.push_back(std::make_unique<Endpoint>(spec, first));
            const std::vector<char> name = others.back()->name();
            self.send_string(0, std::string(name.begin(), name.end()));
            const std::string zero = self.receive_string(0);
            exchange(*others.back(), others.back()->insert({zero.begin(), zero.end()}));
        } else {
            const std::vector<char> name = first.name();
            const std::string theirs = self.receive_string(1);
            self.send_string(1, std::string(name.begin(), name.end()));
            exchange(first, first.insert({theirs.begin(), theirs.end()}));
        }
    }
    const double bytes = (resident_bytes() - before) / static_cast<double>(count);
    self.barrier_polling([&] { first.progress(); });
    return bytes;
}

/// As many endpoints as the system lets one process have.
void raise_file_limit() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/// Endpoints of this rank that all send one message to each of the other rank's, at once.
class Crowd {
  public:
    Crowd(Rank& self, std::size_t mine, std::size_t theirs)
        : theirs_(theirs), left_(2 * mine * theirs), contexts_(left_) {
        raise_file_limit();
        const EpSpec spec{.caps = FI_TAGGED, .av_count = theirs, .one_cq = true};
        for (std::size_t i = 0; i < mine; ++i) {
            endpoints_.push_back(i == 0 ? std::make_unique<Endpoint>(spec)
                                        : std::make_unique<Endpoint>(spec, *endpoints_[0]));
            const std::vector<char> name = endpoints_.back()->name();
            self.send_string(self.other(), std::string(name.begin(), name.end()));
        }
        for (std::size_t i = 0; i < theirs; ++i)
            names_.push_back(self.receive_string(self.other()));
        for (const auto& one : endpoints_) {
            for (const std::string& name : names_) {
                addresses_.push_back(one->insert({name.begin(), name.end()}));
            }
        }
    }
    ~Crowd() {
        while (!endpoints_.empty()) endpoints_.pop_back();  // the first one, with the domain, last
    }
    Crowd(const Crowd&) = delete;
    Crowd& operator=(const Crowd&) = delete;

    void post_all() {
        std::size_t next = 0;
        for (std::size_t i = 0; i < endpoints_.size(); ++i) {
            Endpoint& ep = *endpoints_[i];
            for (std::size_t p = 0; p < theirs_; ++p) {
                ep.post([&] {
                    return fi_trecv(ep.ep, in_, kSize, nullptr, FI_ADDR_UNSPEC, 1, 0,
                                    &contexts_[next]);
                });
                ++next;
                ep.post([&] {
                    return fi_tsend(ep.ep, out_, kSize, nullptr, addresses_[i * theirs_ + p], 1,
                                    &contexts_[next]);
                });
                ++next;
            }
        }
    }
    void poll() {
        for (const auto& one : endpoints_) {
            Completion done;
            while (one->poll(one->tx_cq, done)) {
                if (done.err != 0) FAB_FAIL("an operation ended: %s", fi_strerror(done.err));
                --left_;
            }
        }
    }
    void wait() {
        const double deadline = now_s() + kConnectLimitS;
        while (left_ > 0) {
            poll();
            if (now_s() > deadline) FAB_FAIL("%zu messages are missing", left_);
        }
    }

  private:
    static constexpr double kConnectLimitS = 50;

    std::size_t theirs_;
    std::size_t left_;
    std::vector<Context> contexts_;
    std::vector<std::unique_ptr<Endpoint>> endpoints_;
    std::vector<std::string> names_;
    std::vector<fi_addr_t> addresses_;
    char in_[kSize] = {};
    char out_[kSize] = {};
};

struct Connected {
    double seconds;         // until all have heard from all
    double bytes_per_peer;  // of rank 0
};

Connected connect_crowds(Rank& self, std::size_t of_first, std::size_t of_second) {
    const bool is_first = self.rank == 0;
    Crowd crowd(self, is_first ? of_first : of_second, is_first ? of_second : of_first);
    self.barrier_polling([&] { crowd.poll(); });
    const double before = resident_bytes();
    const double start = now_s();
    crowd.post_all();
    crowd.wait();
    self.barrier_polling([&] { crowd.poll(); });
    const double seconds = now_s() - start;
    const double grown = resident_bytes() - before;
    self.barrier_polling([&] { crowd.poll(); });
    return {seconds, grown / static_cast<double>(of_first * of_second)};
}

/// `count` endpoints of one process to one endpoint of another.
double connect_to_one(Rank& self, std::size_t count) {
    return connect_crowds(self, 1, count).seconds * 1e3;
}
double memory_of_many(Rank& self, std::size_t count) {
    return connect_crowds(self, 1, count).bytes_per_peer;
}
/// `count` endpoints of each process, each to each.
double connect_all_to_all(Rank& self, std::size_t count) {
    return connect_crowds(self, count, count).seconds * 1e3;
}

constexpr Measure kMeasures[] = {
    {"match-posted", "ns", match_posted, 2, "receives posted"},
    {"match-unexpected", "ns", match_unexpected, 2, "messages waiting"},
    {"quiet-peers", "us", quiet_peers, 2 + kQuietProcesses, "peers"},
    {"memory-endpoint", "B", memory_endpoint, 2, "endpoints"},
    {"memory-av", "B", memory_av, 2, "addresses"},
    {"memory-peer", "B", memory_peer, 2, "peers"},
    {"memory-many", "B", memory_of_many, 2, "peers that send one message each, all at once"},
    {"connect-one", "ms", connect_to_one, 2, "endpoints, to one"},
    {"connect-all", "ms", connect_all_to_all, 2, "endpoints, to as many"},
};

}  // namespace

const std::span<const Measure> kScaleMeasures = kMeasures;

}  // namespace fab
