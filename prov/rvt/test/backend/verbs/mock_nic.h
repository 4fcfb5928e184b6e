// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A NIC that exists only here: the functions of libibverbs that the backend calls, and what they
// were called with. One at a time; while it exists, the backend finds it in place of rdma-core.
//
// Pairs that are connected with each other carry SENDs into receives of shared queues, at once, and
// READs and WRITEs. As
// with a NIC, what fails ends the pair, and no completion of a pair outlives it.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/verbs/library.h"

namespace rvt::verbs {

class MockNic {
  public:
    MockNic();
    ~MockNic();
    MockNic(const MockNic&) = delete;
    MockNic& operator=(const MockNic&) = delete;

    // What it is; to be changed before it is opened.
    ibv_device device{};
    ibv_device_attr attr{};
    ibv_port_attr port{};
    // Beside it, and listed before it; they cannot be opened.
    struct Other {
        ibv_device device{};
        std::uint64_t guid = 0;  // in the order of the network, as attr.node_guid
    };
    std::deque<Other> others;
    std::uint32_t max_inline = 128;
    std::vector<ibv_gid_entry> gids;           // by index
    std::vector<std::uint16_t> pkeys{0xffff};  // by index, as the host has them

    // What it answers: an errno, or 0.
    std::string_view failing;  // the call that fails; "modify_qp to RTS" is one, too
    int error = EMFILE;        // with this
    static constexpr std::string_view kEveryEnd = "every end";  // but those of regions
    std::size_t taken_before_failure = 0;                       // of a list, by "post_srq_recv"
    int reg_mr_error = 0;
    int rereg_mr_result = 0;  // as ibv_rereg_mr(3)
    int rereg_mr_error = 0;   // and the errno with it
    ibv_odp_caps on_demand{};
    int refused_access = 0;                     // EOPNOTSUPP
    std::size_t most_pinned = ~std::size_t{0};  // of a region; beyond it ENOMEM
    int dmabuf_error = 0;
    int create_qp_error = 0;
    std::size_t most_pairs = 1000;                  // further ones are ENOMEM
    std::size_t most_registered = ~std::size_t{0};  // bytes; beyond it ENOMEM
    std::size_t most_regions = ~std::size_t{0};     // likewise
    std::atomic<bool> is_gone{false};               // every call is EIO, nothing completes
    bool tells_last_receive = true;                 // by IBV_EVENT_QP_LAST_WQE_REACHED
    bool takes_receives = false;                    // posted to pairs; else ENOMEM
    bool flushes = true;  // those, and sends without a peer, when their pair ends
    bool extends = true;  // it has the extended verbs, for these operations of pairs:
    std::uint64_t rc_operations =
        IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
        IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    std::uint64_t ud_operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    bool refuses_operations = true;  // that it lacks; else it makes pairs without those calls
    // After so many looks into queues comes what a pair that ends has taken of a shared queue, and
    // the word that this was the last; 0: at once.
    unsigned looks_before_flush = 0;
    std::chrono::microseconds send_takes{0};  // to post it, at least
    // To a pair without a peer; beyond it ENOMEM or, as rxe has it, ENOSPC by the extended verbs.
    std::size_t most_sends = ~std::size_t{0};

    // What it was asked.
    struct Region {
        std::uint64_t addr, length, iova, offset;
        int fd;  // -1: no dma-buf
        int access;
        bool is_there = true;
    };
    std::vector<Region> regions;  // all that there have been
    struct Change {
        int flags;
        std::uint64_t addr, length;
        int access;
    };
    std::vector<Change> changes;
    std::vector<std::pair<ibv_advise_mr_advice, ibv_sge>> advised;
    std::vector<ibv_qp_attr> modified;
    std::vector<int> masks;
    std::vector<ibv_send_wr> sends;           // of pairs without a peer
    std::vector<std::vector<ibv_sge>> lists;  // theirs
    std::vector<std::pair<std::uint64_t, std::vector<ibv_sge>>> receives;  // posted to pairs
    std::atomic<unsigned> built{0};  // requests, by the extended verbs
    unsigned extended_queues = 0;
    std::vector<std::vector<std::uint64_t>> shared_receives;  // ids, by call

    // What happens next.
    std::deque<ibv_wc> completions;
    std::deque<ibv_async_event> events;
    bool has_no_more_events = false;  // than those: the kernel has ended it
    unsigned acknowledged = 0;

    // What happens to it.
    ibv_wc_status next_request = IBV_WC_SUCCESS;  // else that is how the next one to a peer ends
    /// The oldest send without a peer, or receive, of a pair completes. A failure ends the pair.
    void finish(std::uint32_t qpn, bool is_receive, ibv_wc_status status = IBV_WC_SUCCESS);
    /// The oldest send without a peer has been acknowledged, which nobody is told.
    void pass(std::uint32_t qpn);
    /// As finish(), of a shared receive.
    void fail_shared_receive(std::uint32_t qpn, ibv_wc_status status);
    std::function<void()> when_pair_is_gone;   // once, when its number is free
    bool is_cut = false;                       // nobody answers
    bool is_rdma_stopped = false;              // it waits, and what comes behind it
    std::atomic<unsigned> reads{0};            // carried out
    std::atomic<unsigned> writes{0};           // the same
    bool is_rdma_unfinished = false;           // that of pairs that end is not flushed
    void finish_rdma();                        // now it is
    void fail_queue();                         // that of the latest pair, with IBV_EVENT_CQ_ERR
    void gone();                               // with IBV_EVENT_DEVICE_FATAL
    void fail_pair(std::uint32_t qpn);         // with IBV_EVENT_QP_FATAL
    void begin_message_to(std::uint32_t qpn);  // its first packet takes a receive
    void send_to(std::uint32_t qpn, std::span<const char> frame);  // from nowhere
    [[nodiscard]] std::size_t receives_left();                     // in all shared queues
    [[nodiscard]] std::size_t pairs_left();
    [[nodiscard]] std::vector<std::uint32_t> connected_pairs();

    int groups = 0;              // to which pairs belong
    std::atomic<int> live{0};    // objects that have not been destroyed
    std::size_t registered = 0;  // bytes
    ibv_qp* last_pair = nullptr;

  private:
    Library functions_{};
    verbs_context context_{};
};

}  // namespace rvt::verbs
