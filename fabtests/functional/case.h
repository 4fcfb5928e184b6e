// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A case: one user-visible behaviour, checked by two or more ranks. And what most cases need: a
// connected endpoint with short forms of the common calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/endpoint.h"
#include "common/team.h"

namespace fab {

/// A death is reported within this time, which begins before the victim has been cleared away.
inline constexpr double kNoticeS = kIsSanitized ? 5 : 1;

struct Case {
    const char* name;
    void (*run)(Rank& self);
    int ranks = 2;
    double limit_s = 60;        // ends what hangs
    std::uint32_t may_die = 0;  ///< Bit r: the case kills rank r.
    bool on_one_host = false;   ///< Ranks stop or await each other beside the fabric.
};

// One table for each file of cases.
extern const std::span<const Case> kMsgCases;
extern const std::span<const Case> kMsgEpCases;
extern const std::span<const Case> kTaggedCases;
extern const std::span<const Case> kPeekCases;
extern const std::span<const Case> kFlagCases;
extern const std::span<const Case> kRmaCases;
extern const std::span<const Case> kAtomicCases;
extern const std::span<const Case> kCntrCases;
extern const std::span<const Case> kCqCases;
extern const std::span<const Case> kOrderCases;
extern const std::span<const Case> kAvCases;
extern const std::span<const Case> kMrCases;
extern const std::span<const Case> kFlowCases;
extern const std::span<const Case> kFaultCases;
extern const std::span<const Case> kLinkCases;
extern const std::span<const Case> kLinkDgramCases;
extern const std::span<const Case> kLinkMsgCases;
extern const std::span<const Case> kKillCases;
extern const std::span<const Case> kKillPendingCases;
extern const std::span<const Case> kEnvCases;
extern const std::span<const Case> kThreadCases;
extern const std::span<const Case> kArgCases;
extern const std::span<const Case> kDgramCases;
extern const std::span<const Case> kDeviceCases;
extern const std::span<const Case> kGpuCases;

/// Sizes on both sides of every boundary that a provider is likely to have.
inline constexpr std::size_t kSizes[] = {
    0,    1,    7,    8,    24,   63,    64,    65,    191,   192,    193,     256,
    1000, 4095, 4096, 4097, 8192, 16384, 65535, 65536, 65537, 200000, 1 << 20, (4 << 20) + 3};

/// An endpoint connected to all ranks. Leaves only together with the others, making progress.
class Party {
  public:
    Party(Rank& rank, const EpSpec& spec) : self(rank), ep(spec) { ep.connect(self); }
    ~Party() {
        if (together_) barrier();
    }
    Party(const Party&) = delete;
    Party& operator=(const Party&) = delete;

    /// This rank leaves on its own: for cases in which another one dies.
    void leave_alone() { together_ = false; }
    /// Waits for the others while driving progress.
    void barrier() const {
        // A thread of the provider may execute what a peer writes. That this comes after what was
        // done here before the barrier, and before what is done after it, only the processes know;
        // ThreadSanitizer sees it in who makes progress after whom.
        ep.progress();
        self.barrier_polling([this] { ep.progress(); });
        ep.progress();
    }
    /// Exchanges a value with another rank; ordered as barrier() is.
    template <class T>
    T trade(int with, const T& mine) const {
        ep.progress();
        const T theirs = self.trade(with, mine);
        ep.progress();
        return theirs;
    }
    fi_addr_t at(int rank) const { return ep.peers[static_cast<std::size_t>(rank)]; }
    fi_addr_t peer() const { return at(self.other()); }

    // Each posts, waiting for room where the provider asks for it.
    void send(const Buffer& buffer, std::size_t length, void* context = nullptr) const {
        ep.post(
            [&] { return fi_send(ep.ep, buffer.as(), length, buffer.desc(), peer(), context); });
    }
    void recv(const Buffer& buffer, std::size_t length, void* context = nullptr) const {
        ep.post([&] {
            return fi_recv(ep.ep, buffer.as(), length, buffer.desc(), FI_ADDR_UNSPEC, context);
        });
    }
    void tsend(const Buffer& buffer, std::size_t length, std::uint64_t tag,
               void* context = nullptr) const {
        ep.post([&] {
            return fi_tsend(ep.ep, buffer.as(), length, buffer.desc(), peer(), tag, context);
        });
    }
    void trecv(const Buffer& buffer, std::size_t length, std::uint64_t tag,
               std::uint64_t ignore = 0, void* context = nullptr) const {
        ep.post([&] {
            return fi_trecv(ep.ep, buffer.as(), length, buffer.desc(), FI_ADDR_UNSPEC, tag, ignore,
                            context);
        });
    }

    Rank& self;
    Endpoint ep;

  private:
    bool together_ = true;
};

/// Contexts that live as long as the case: for operations whose completion comes later.
class Contexts {
  public:
    explicit Contexts(std::size_t count) : all_(count) {}
    void* at(std::size_t index) { return &all_[index]; }
    std::size_t index_of(const void* context) const {
        const auto index =
            static_cast<std::size_t>(static_cast<const Context*>(context) - all_.data());
        if (index >= all_.size()) FAB_FAIL("a completion carries a context nobody gave");
        return index;
    }

  private:
    std::vector<Context> all_;
};

/// One message each way between this rank and `with`, so that a connection exists.
inline void greet(Party& party, const Buffer& buffer, int with) {
    Contexts contexts(2);
    party.trecv(buffer, 64, 1, 0, contexts.at(0));
    party.ep.post([&] {
        return fi_tsend(party.ep.ep, buffer.as(), 8, buffer.desc(), party.at(with), 1,
                        contexts.at(1));
    });
    party.ep.wait_rx();
    party.ep.wait_tx();
}

/// Before a failure of what rvt promises and others need not: skips the test of any other provider.
inline void skip_elsewhere(const char* promise) {
    if (settings.provider != "rvt") skip("only rvt promises that %s", promise);
}

/// Waits, sleeping on nothing but making progress, until a flag of the page is set.
inline void progress_until(const Party& party, std::size_t flag) {
    while (party.self.page->flags[flag].get() == 0) party.ep.progress();
}

}  // namespace fab
