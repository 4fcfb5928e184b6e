// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// What the conformance sentences are written against: two sides, each with its objects on a device,
// and a queue pair on each. Which devices, and how messages get from one to the other, is the
// backend policy's matter: a class with
//     Device& side(int i);   // the device of side 0 or 1; the same one where the backend is
//     loopback void settle();         // moves both sides once
// A backend joins the suite by adding its policy to RVT_CONFORM.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/seeds.h"
#include "conform/policies.h"
#include "core/ah.h"
#include "core/context.h"
#include "core/device.h"
#include "core/mr.h"
#include "core/qp.h"
#include "core/srq.h"
#include "core/verbs_cq.h"

namespace rvt::conform {

using namespace rvt::core;

inline constexpr int kA = 0;  // the side that mostly sends
inline constexpr int kB = 1;
inline constexpr std::size_t kMemoryBytes = 256 * 1024;
inline constexpr std::uint32_t kQkey = 0x1234;
inline constexpr Access kRemoteAll =
    Access::kRemoteRead | Access::kRemoteWrite | Access::kRemoteAtomic;
inline constexpr Access kAllAccess = Access::kLocalWrite | kRemoteAll;

struct Options {
    QpType type = QpType::kRc;
    QpCap cap{};
    std::uint32_t cq_depth = 512;
    bool signal_all = true;
    bool has_srq = false;
    SrqAttr srq{};
    Access qp_access = kRemoteAll;
    Access memory_access = kAllAccess;
    std::uint8_t rd_atomic = 4;
    std::uint8_t dest_rd_atomic = 4;
    std::uint8_t rnr_retry = kRnrRetryForEver;
    std::uint8_t timeout = 8;  // 1 ms: the suite's clock goes only as far as a test moves it
    bool connect = true;       // to RTS; otherwise the pairs stay in RESET
    bool extended_atomics = false;
    bool keeps_early = false;        // half of the lossy worlds have it in any case
    MessageSink* sink = nullptr;     // of both sides
    core::KeyTable* keys = nullptr;  // of both domains; nullptr: the devices'
};

/// What one side has to know of the other.
struct Card {
    Address address{};
    std::uint32_t qpn = 0;
    std::uint32_t rkey = 0;
    std::uint64_t base = 0;  // address of the memory's first byte
};

/// One side's objects. Destroyed in the order that the objects demand.
struct Side {
    Device* device = nullptr;
    Context* context = nullptr;
    Pd* pd = nullptr;
    CompChannel* channel = nullptr;
    VerbsCq* send_cq = nullptr;
    VerbsCq* recv_cq = nullptr;
    Srq* srq = nullptr;
    Qp* qp = nullptr;
    Ah* ah = nullptr;  // UD: to the other side
    Mr* mr = nullptr;
    std::vector<std::byte> memory = std::vector<std::byte>(kMemoryBytes);

    Side(Device& on, const Options& options);
    ~Side();
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    [[nodiscard]] std::uint64_t at(std::size_t offset) const noexcept {
        return reinterpret_cast<std::uint64_t>(memory.data() + offset);
    }
    [[nodiscard]] Sge sge(std::size_t offset, std::size_t bytes) const noexcept {
        return {
            .addr = at(offset), .length = static_cast<std::uint32_t>(bytes), .lkey = mr->lkey()};
    }
    void fill(std::size_t offset, std::size_t bytes, int seed);
    [[nodiscard]] bool holds(std::size_t offset, std::size_t bytes, int seed) const;
    [[nodiscard]] std::uint64_t word(std::size_t offset) const;
    void set_word(std::size_t offset, std::uint64_t value);

    [[nodiscard]] Card card() const;
    Status post_recv(std::uint64_t wr_id, std::size_t offset = 0, std::size_t bytes = 1024);
    std::optional<EventType> event() const;
};

/// A work request in the terms of the fixture: offsets into the two sides' memory.
struct Op {
    WrOpcode opcode = WrOpcode::kSend;
    std::uint64_t wr_id = 1;
    std::size_t offset = 0;
    std::size_t bytes = 64;
    std::size_t remote_offset = 0;
    SendFlags flags = SendFlags::kNone;
    std::uint32_t imm = 0;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    Flush flush{};            // FLUSH, which has no bytes of its own
    ExtendedAtomic atomic{};  // EXTENDED_ATOMIC, whose bytes are operands and results
    std::optional<std::uint32_t> lkey{};
    std::optional<std::uint32_t> rkey{};
    std::optional<std::uint32_t> qkey{};
};

QpAttr attr_for(QpState state, const Side& own, const Card& other, const Options& options);
inline QpAttr attr_for(QpState state, const Side& own, const Side& other, const Options& options) {
    return attr_for(state, own, other.card(), options);
}
QpMask mask_for(QpState state, QpType type);
Status post(Side& from, const Card& to, const Op& op);
inline Status post(Side& from, const Side& to, const Op& op) {
    return post(from, to.card(), op);
}

template <class Backend>
class Pair {
  public:
    explicit Pair(const Options& options = {})
        : options_(options),
          sides_{Side(backend_.side(kA), options), Side(backend_.side(kB), options)} {
        for (int i : {kA, kB}) {
            if (options.type == QpType::kUd) {
                const AhAttr to{.dest = backend_.side(1 - i).address()};
                sides_[i].ah = create_ah(*sides_[i].pd, to).value();
            }
        }
        if (options.connect) {
            for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
                for (int i : {kA, kB}) {
                    RVT_OK(go(i, state));
                }
            }
        }
    }

    Backend& backend() { return backend_; }
    Side& operator[](int i) { return sides_[i]; }
    Side& a() { return sides_[kA]; }
    Side& b() { return sides_[kB]; }

    /// Modifies with the attributes that the state needs, and no others.
    Status go(int i, QpState state) {
        return sides_[i].qp->modify(attr_for(state, sides_[i], sides_[1 - i], options_),
                                    mask_for(state, options_.type));
    }
    Status post_send(const Op& op = {}) { return post(a(), b(), op); }
    Status post_send_from_b(const Op& op = {}) { return post(b(), a(), op); }

    /// The next completion; fails the test when none comes.
    Wc next(VerbsCq* cq) {
        Wc wc;
        for (int i = 0; i < kPatience; ++i) {
            if (cq->poll({&wc, 1}) == 1) {
                return wc;
            }
            pass_us(5);
        }
        test::fail_at(__FILE__, __LINE__, "no completion came");
    }
    Wc sent() { return next(a().send_cq); }
    Wc received() { return next(b().recv_cq); }
    /// Whether nothing comes although everything has been moved.
    bool is_silent(VerbsCq* cq) {
        Wc wc;
        for (int i = 0; i < 50; ++i) {
            backend_.settle();
        }
        return cq->poll({&wc, 1}) == 0;
    }
    /// The next asynchronous event of a side; fails the test when none comes.
    EventType event(int i) {
        for (int n = 0; n < kPatience; ++n) {
            if (const auto event = sides_[i].event()) {
                return *event;
            }
            pass_us(5);
        }
        test::fail_at(__FILE__, __LINE__, "no event came");
    }
    bool has_no_event(int i) {
        for (int n = 0; n < 50; ++n) {
            backend_.settle();
        }
        return !sides_[i].event().has_value();
    }
    /// Moves until the state is reached; fails the test when it is not.
    void await_state(int i, QpState state) {
        for (int n = 0; n < kPatience && sides_[i].qp->state() != state; ++n) {
            backend_.settle();
        }
        RVT_EQ(sides_[i].qp->state(), state);
    }
    void pass_us(std::uint64_t us) {
        fake_now_us += us;
        backend_.settle();
    }

  private:
    static constexpr int kPatience = 20000;
    Options options_;
    Backend backend_;
    std::array<Side, 2> sides_;
};

}  // namespace rvt::conform

// clang-format off
/// Makes a test of a sentence for each backend. A sentence is compiled once, for AnyBackend.
#define RVT_CONFORM_ON(suite, Policy, sentence)                                              \
    Test(suite, sentence, .timeout = 30) {                                                   \
        rvt::conform::AnyBackend::use<rvt::conform::Policy>();                               \
        sentence<rvt::conform::AnyBackend>();                                                \
    }
#define RVT_CONFORM(sentence)                                                                \
    RVT_CONFORM_ON(conform_loop, Loopback, sentence)                                         \
    RVT_CONFORM_ON(conform_segment, Segments, sentence)                                      \
    RVT_CONFORM_ON(conform_packet, Packets, sentence)                                        \
    RVT_CONFORM_ON(conform_roce, Roce, sentence)                                             \
    RVT_CONFORM_ON(conform_shm, Shm, sentence)

/// The same for a sentence of reliable pairs alone, which also hold where packets get lost: there
/// with many seeds, as many as given where the sentence moves hundreds of packets each time.
#define RVT_CONFORM_RC_SEEDS(sentence, seeds)                                                \
    RVT_CONFORM(sentence)                                                                    \
    Test(conform_lossy, sentence, .timeout = 60) {                                           \
        rvt::conform::AnyBackend::use<rvt::conform::LossyPackets>();                         \
        rvt::test::for_each_seed(seeds, [](std::uint64_t /*seed*/) {                         \
            sentence<rvt::conform::AnyBackend>();                                            \
        });                                                                                  \
    }
#define RVT_CONFORM_RC(sentence) RVT_CONFORM_RC_SEEDS(sentence, 200)

/// The same for a sentence that a NIC keeps, too: one without what is the core's alone (tags, windows
/// and counters among it), of which the specification leaves nothing to the device, and that does
/// not end with something that must not happen: how long a NIC might take for it, nobody knows.
#ifdef RVT_HAVE_RDMACM
#define RVT_CONFORM_NIC(sentence) RVT_CONFORM_ON(conform_nic, Nic, sentence)
#else
#define RVT_CONFORM_NIC(sentence)
#endif
// clang-format on
