// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// The smallest segment-grade backend: devices of one process, a short queue of segments in each
// direction. It refuses when a queue is full, cuts messages into small segments, and breaks on
// demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rvt/backend.h"

namespace rvt::conform {

class TestNet;

/// What a device of this backend has as its private data.
struct TestPort {
    TestNet* net = nullptr;
    core::Device* device = nullptr;
    bool reaches_memory = false;  // reads and writes memory of its peers by itself
    int attempts = 0;             // how often it was asked to
    int one_sided = 0;            // how often it did
};

/// One direction-pair between two ports, seen from `owner`.
struct TestChannel : Channel {
    struct Segment {
        std::vector<std::byte> header;
        std::vector<std::byte> payload;
    };
    static constexpr std::size_t kQueueSegments = 4;

    TestPort* owner = nullptr;
    TestChannel* far = nullptr;
    std::deque<Segment> arrived;  // written by the far end
    int uses = 0;
    bool broken = false;
    bool told = false;  // the core knows that it is broken
};

/// The ports that can reach each other, and their channels.
class TestNet {
  public:
    void add(TestPort& port) { ports_.push_back(&port); }
    Result<Channel*> open(TestPort& from, const Address& dest);
    unsigned poll(TestPort& port);
    void break_all();

  private:
    TestPort* find(const Address& address) const;
    std::vector<TestPort*> ports_;
    std::vector<std::unique_ptr<TestChannel>> channels_;
};

/// Entries for a device whose private data is a TestPort.
const BackendOps& test_segment_ops();

}  // namespace rvt::conform
