// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Blocking: both ranks wait between messages, as the provider does by default, or asleep, where rvt
// is told not to poll before; half of a round trip.
#include <cstdlib>

#include <poll.h>

#include "benchmarks/fab_bench.h"

namespace fab {
namespace {

constexpr std::size_t kSize = 8;

/// One completion by fi_cq_sread.
void sleep_sread(Bench& bench) {
    fi_cq_tagged_entry entry;
    const ssize_t n = fi_cq_sread(bench.ep.rx_cq, &entry, 1, nullptr, -1);
    if (n == -FI_EAGAIN || n == -FI_EINTR) return;
    FAB_OK(n);
    if ((entry.flags & FI_RECV) != 0) ++bench.received;
}

/// One look at the queue, or a sleep in poll where fi_trywait allows it.
void sleep_fd(Bench& bench, int fd) {
    const std::size_t before = bench.received;
    bench.poll();
    if (bench.received != before) return;
    fid* fids[] = {&bench.ep.rx_cq->fid};
    const int safe = fi_trywait(bench.ep.fabric, fids, 1);
    if (safe == -FI_EAGAIN) return;
    FAB_OK(safe);
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, 1000);
}

enum class Wait { kByDefault, kAsleep };

template <bool kByDescriptor, Wait kWait>
double wake(Rank& self, std::size_t) {
    if (kWait == Wait::kAsleep) setenv("FI_RVT_BUSY_POLL_US", "0", 1);
    const fi_wait_obj object = kByDescriptor ? FI_WAIT_FD : FI_WAIT_UNSPEC;
    Bench bench(self, {.caps = FI_TAGGED, .cq_wait = object});
    if (!bench.can_inject(kSize)) skip("inject_size is below 8");
    Buffer in(bench.ep, kSize);
    Buffer out(bench.ep, kSize);
    int fd = -1;
    if (kByDescriptor) FAB_OK(fi_control(&bench.ep.rx_cq->fid, FI_GETWAIT, &fd));
    std::size_t received = 0;
    const auto send = [&] {
        bench.post([&] { return fi_tinject(bench.ep.ep, out.as(), kSize, bench.peer(), 7); });
    };
    const auto post = [&] {
        bench.post([&] {
            return fi_trecv(bench.ep.ep, in.as(), kSize, in.desc(), bench.peer(), 7, 0,
                            bench.context(0));
        });
    };
    post();
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) send();
            for (++received; bench.received < received;) {
                if (kByDescriptor) {
                    sleep_fd(bench, fd);
                } else {
                    sleep_sread(bench);
                }
            }
            post();
            if (self.rank == 1) send();
        }
    };
    const double seconds = time_batches(self, body, bench.idle(), 0.04);
    bench.finish();
    return seconds / 2 * 1e6;
}

constexpr Measure kMeasures[] = {
    {"wake-fd", "us", wake<true, Wait::kByDefault>, 2, nullptr},
    {"wake-sread", "us", wake<false, Wait::kByDefault>, 2, nullptr},
    {"wake-asleep-fd", "us", wake<true, Wait::kAsleep>, 2, nullptr},
    {"wake-asleep-sread", "us", wake<false, Wait::kAsleep>, 2, nullptr},
};

}  // namespace

const std::span<const Measure> kWaitMeasures = kMeasures;

}  // namespace fab
