// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The levels of fi_domain(3), Threading: what each transfers, and endpoints that threads share.
#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ofi/pair.h"

using namespace rvt::test;

Test(threading, every_level_transfers) {
    for (const fi_threading level : {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN,
                                     FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT}) {
        EndOptions options;
        options.threading = level;
        Pair pair(options);
        char in[8] = "";
        RVT_OK(fi_recv(pair.b.ep.get(), in, 8, nullptr, FI_ADDR_UNSPEC, in));
        pair.post([&] { return fi_inject(pair.a.ep.get(), "abc", 4, pair.a.peer); });
        pair.b.next();
        RVT_ASSERT(std::string(in) == "abc");
    }
}

Test(threading, safe_endpoints_are_shared_by_threads, .timeout = 60) {
    constexpr int kThreads = 3;
    constexpr int kMessages = 200;
    EndOptions options;
    options.threading = FI_THREAD_SAFE;
    options.caps = FI_TAGGED;
    Pair pair(options);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < kMessages; ++i) {
                while (fi_tinject(pair.a.ep.get(), &i, sizeof i, pair.a.peer,
                                  static_cast<std::uint64_t>(t)) == -FI_EAGAIN) {
                    fi_cntr_read(pair.a.cntrs[0].get());
                }
            }
        });
    }
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            std::array<int, kMessages> in{};
            for (int& buffer : in) {
                const auto tag = static_cast<std::uint64_t>(t);
                pair.post([&] {
                    return fi_trecv(pair.b.ep.get(), &buffer, sizeof buffer, nullptr,
                                    FI_ADDR_UNSPEC, tag, 0, nullptr);
                });
            }
            pair.until([&] { return fi_cntr_read(pair.b.cntrs[1].get()) == kThreads * kMessages; });
            for (int i = 0; i < kMessages; ++i) {
                RVT_EQ(in[i], i);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}
