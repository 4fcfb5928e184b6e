// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What stands behind the queues and pairs of the mock, for the files that make up its functions.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "backend/verbs/library.h"
#include "backend/verbs/mock_nic.h"

namespace rvt::verbs {

/// The one that there is, or nullptr.
extern MockNic* mock;

/// Whether the test wants this call to fail; with the errno that is set then.
bool fails(std::string_view call);

template <class T>
T* make(T filled = {}) {
    ++mock->live;
    return new T(filled);
}
template <class T>
int destroy(T* object) {
    --mock->live;
    delete object;
    return 0;
}

struct Receive {
    std::uint64_t wr_id = 0;
    ibv_sge room{};
};
/// As libibverbs has it, one of the extended form begins like any other; so do pairs.
struct MockCq : ibv_cq_ex {
    std::deque<ibv_wc> entries;
    bool is_armed = false;
    ibv_wc now{};  // of which members are read

    static MockCq& of(ibv_cq* queue) {
        return *static_cast<MockCq*>(reinterpret_cast<ibv_cq_ex*>(queue));
    }
    static MockCq& of(ibv_cq_ex* queue) { return *static_cast<MockCq*>(queue); }
    ibv_cq* base() { return ibv_cq_ex_to_cq(this); }
};
struct Frame {
    std::uint64_t wr_id = 0;
    bool is_signaled = false;
    std::vector<char> bytes;
    bool is_read = false;  // then this, in their place:
    ibv_sge to{};
    std::uint64_t address = 0;  // of the peer's memory, also for a WRITE
    std::uint32_t key = 0;
    bool is_write = false;

    [[nodiscard]] bool is_rdma() const { return is_read || is_write; }
};
struct MockPair : ibv_qp_ex {
    static MockPair& of(ibv_qp* pair) {
        return *static_cast<MockPair*>(reinterpret_cast<ibv_qp_ex*>(pair));
    }
    static MockPair& of(ibv_qp_ex* pair) { return *static_cast<MockPair*>(pair); }
    [[nodiscard]] std::uint32_t number() const { return qp_base.qp_num; }

    /// What it has been given that completes by MockNic::finish().
    std::vector<std::uint64_t>& posted(bool is_receive) { return is_receive ? receives : sends; }

    bool is_extended = false;
    ibv_send_wr built{};  // between wr_start and wr_complete, with this:
    std::vector<ibv_sge> places;
    // How often it was told what to do, with which memory, and who is to get it.
    struct Steps {
        unsigned operations = 0;
        unsigned places = 0;
        unsigned addresses = 0;

        bool operator==(const Steps&) const = default;
    } steps;
    ibv_qp_state now = IBV_QPS_RESET;
    std::uint32_t peer = 0;
    bool signals_all = false;
    std::deque<Frame> waiting;              // for a receive of the peer's
    std::deque<Receive> held;               // for messages of which a part has come
    std::vector<std::uint64_t> receives;    // of its own
    std::vector<std::uint64_t> sends;       // without a peer, which stay
    std::vector<std::uint64_t> unfinished;  // READs and WRITEs that have not let go of their memory
};

/// In mock_extended.cc: the calls that lead to extended pairs and queues, and what they have.
void add_extended_verbs(verbs_context& context, Library& functions);
/// In mock_memory.cc: those of regions.
void add_memory(verbs_context& context, Library& functions);
/// In mock_device.cc: those of the device.
void add_device(verbs_context& context, Library& functions);
/// In mock_ends.cc: those that end an object, or poll, behind all others.
void add_ends(verbs_context& context, Library& functions);
/// Frees what has not been let end.
void forget_kept();

}  // namespace rvt::verbs
