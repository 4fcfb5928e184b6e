// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The measures over a libfabric provider, by file, and the endpoint they share.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "benchmarks/bench.h"
#include "common/endpoint.h"

namespace fab {

extern const std::span<const Measure> kMessageMeasures;
extern const std::span<const Measure> kRmaMeasures;
extern const std::span<const Measure> kWaitMeasures;
extern const std::span<const Measure> kScaleMeasures;
extern const std::span<const Measure> kCountMeasures;

/// An endpoint with one queue for both directions, as MPI libraries open it.
class Bench {
  public:
    Bench(Rank& rank, EpSpec spec) : self(rank), ep(with_one_cq(spec)), contexts_(kContexts) {
        ep.connect(self);
        injects_ = ep.info->tx_attr->inject_size;
    }

    fi_addr_t peer() const { return ep.peers[static_cast<std::size_t>(self.other())]; }
    void* context(std::size_t index) { return &contexts_[index % kContexts]; }
    bool can_inject(std::size_t size) const { return size <= injects_; }

    /// Reads what is there: how many receives and how many others completed so far.
    void poll() {
        fi_cq_tagged_entry entries[16];
        const ssize_t n = fi_cq_read(ep.rx_cq, entries, 16);
        if (n == -FI_EAGAIN) return;
        if (n < 0) report_error();
        for (ssize_t i = 0; i < n; ++i) {
            if ((entries[i].flags & FI_RECV) != 0) {
                ++received;
            } else {
                ++sent;
            }
        }
    }
    void wait_received(std::size_t count) {
        while (received < count) poll();
    }
    void wait_sent(std::size_t count) {
        while (sent < count) poll();
    }
    /// Calls `op` until it is accepted.
    template <class Op>
    void post(Op op) {
        long rc = 0;
        while ((rc = static_cast<long>(op())) == -FI_EAGAIN) poll();
        if (rc < 0) fail_fi(__FILE__, __LINE__, "an operation", rc);
    }
    /// For time_batches: progress between batches.
    std::function<void()> idle() {
        return [this] { poll(); };
    }
    /// Both ranks have done all: waits for the other while making progress. Who is the first to
    /// leave ends the receives that the other one of a connection has still posted.
    void finish() {
        self.barrier_polling([this] {
            Completion ended;
            ep.poll(ep.rx_cq, ended);
        });
    }

    Rank& self;
    Endpoint ep;
    std::size_t received = 0;
    std::size_t sent = 0;

  private:
    static constexpr std::size_t kContexts = 256;
    static EpSpec with_one_cq(EpSpec spec) {
        spec.one_cq = true;
        return spec;
    }
    [[noreturn]] void report_error() const {
        Completion error;
        ep.poll(ep.rx_cq, error);
        FAB_FAIL("an operation ended with error %d (%s)", error.err, fi_strerror(error.err));
    }

    std::size_t injects_ = 0;
    std::vector<Context> contexts_;
};

}  // namespace fab
