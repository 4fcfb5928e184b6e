// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From memory of one process's GPU to that of another's: latency and bandwidth of messages, writes
// and reads, beside what the GPU's driver needs for plain copies. What arrives is compared.
//
//   gpu_bench [PROVIDER [cuda|cuda-standin]]
//
// Ends with 77 where there is no GPU. Memory is that of cuMemAlloc(), which the CPU cannot touch.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "common/endpoint.h"
#include "common/standin.h"
#include "common/team.h"

namespace {

using fab::settings;

constexpr std::size_t kSizes[] = {64 << 10, 1 << 20, 16 << 20, 64 << 20};
constexpr std::size_t kSmall[] = {8, 4 << 10, 8 << 10, 64 << 10};
constexpr std::size_t kMost = 64 << 20;
constexpr std::size_t kBytesEach = 256 << 20;  // that are moved for one figure
constexpr std::size_t kTurns = 500;            // of a latency

/// The driver, in this process, with a context.
class Gpu {
  public:
    Gpu() {
        if (settings.exporter == "cuda-standin") {
            fab::standin::use(fab::standin::How::kUnmappable);
        }
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) fab::skip("no GPU: %s", dlerror());
        int (*init)(unsigned) = nullptr;
        int (*retain)(void**, int) = nullptr;
        int (*set_current)(void*) = nullptr;
        find(library, "cuInit", init);
        find(library, "cuDevicePrimaryCtxRetain", retain);
        find(library, "cuCtxSetCurrent", set_current);
        find(library, "cuCtxSynchronize", synchronize_);
        find(library, "cuMemAlloc_v2", alloc_);
        find(library, "cuMemcpyHtoD_v2", to_device_);
        find(library, "cuMemcpyDtoH_v2", to_host_);
        find(library, "cuMemcpyDtoD_v2", on_device_);
        void* context = nullptr;
        const int refused = init(0);
        if (refused != 0) fab::skip("no GPU: cuInit gives error %d", refused);
        check(retain(&context, 0));
        check(set_current(context));
    }

    unsigned long long alloc(std::size_t bytes) const {
        unsigned long long address = 0;
        check(alloc_(&address, bytes));
        return address;
    }
    void to_device(unsigned long long to, const void* from, std::size_t bytes) const {
        check(to_device_(to, from, bytes));
        check(synchronize_());
    }
    void to_host(void* to, unsigned long long from, std::size_t bytes) const {
        check(to_host_(to, from, bytes));
    }
    void on_device(unsigned long long to, unsigned long long from, std::size_t bytes) const {
        check(on_device_(to, from, bytes));
        check(synchronize_());
    }

  private:
    template <class Function>
    static void find(void* library, const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(library, name));
        if (function == nullptr) FAB_FAIL("libcuda.so.1 lacks %s", name);
    }
    static void check(int result) {
        if (result != 0) FAB_FAIL("CUDA gives error %d", result);
    }

    int (*synchronize_)() = nullptr;
    int (*alloc_)(unsigned long long*, std::size_t) = nullptr;
    int (*to_device_)(unsigned long long, const void*, std::size_t) = nullptr;
    int (*to_host_)(void*, unsigned long long, std::size_t) = nullptr;
    int (*on_device_)(unsigned long long, unsigned long long, std::size_t) = nullptr;
};

/// GB/s of `call`, which moves `bytes`.
template <class Call>
double rate(std::size_t bytes, Call call) {
    const std::size_t turns = std::max<std::size_t>(kBytesEach / bytes, 4);
    call();
    const double start = fab::now_s();
    for (std::size_t i = 0; i < turns; ++i) call();
    return static_cast<double>(turns * bytes) / (fab::now_s() - start) / 1e9;
}

/// Microseconds of `call`, the median.
template <class Call>
double latency(Call call) {
    std::vector<double> taken(kTurns);
    for (double& each : taken) {
        const double start = fab::now_s();
        call();
        each = (fab::now_s() - start) * 1e6;
    }
    std::nth_element(taken.begin(), taken.begin() + kTurns / 2, taken.end());
    return taken[kTurns / 2];
}

std::vector<char> numbered(unsigned seed) {
    std::vector<char> bytes(kMost);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(seed + i * 7 + i / 4099);
    }
    return bytes;
}

/// Two endpoints, and all that is measured between them.
class Measured {
  public:
    explicit Measured(fab::Rank& self)
        : self_(self),
          ep_({.caps = FI_TAGGED | FI_RMA,
               .tx_op_flags = FI_DELIVERY_COMPLETE,
               .mr_mode = fab::kAnyMrMode | FI_MR_HMEM}),
          address_(gpu_.alloc(kMost)),
          other_(gpu_.alloc(kMost)) {
        ep_.connect(self);
        const fab::DeviceBuffer buffer{.memory = memory()};
        mr_ = fab::register_device(
            ep_.domain, buffer, kMost,
            FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 7);
        const bool is_virtual = (ep_.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
        remote_ = self.trade(self.other(), fab::RemoteRegion{.base = is_virtual ? address_ : 0,
                                                             .key = fi_mr_key(mr_)});
    }
    ~Measured() { FAB_OK(fi_close(&mr_->fid)); }
    Measured(const Measured&) = delete;
    Measured& operator=(const Measured&) = delete;

    void run() {
        std::vector<char> host(kMost);
        head("us", {"8", "4 KiB", "8 KiB", "64 KiB"});
        latencies("device to device, plain",
                  [&](std::size_t bytes) { gpu_.on_device(other_, address_, bytes); });
        latencies("device to host, plain",
                  [&](std::size_t bytes) { gpu_.to_host(host.data(), address_, bytes); });
        latencies("host to device, plain",
                  [&](std::size_t bytes) { gpu_.to_device(address_, host.data(), bytes); });
        latencies(
            "message, delivered", [&](std::size_t bytes) { message(bytes); }, true);
        ping_pongs("message, one way", memory(), fi_mr_desc(mr_));
        ping_pongs("the same, host memory", host.data(), nullptr);
        head("GB/s", {"64 KiB", "1 MiB", "16 MiB", "64 MiB"});
        row(
            "device to device, plain",
            [&](std::size_t bytes) { gpu_.on_device(other_, address_, bytes); }, true);
        row(
            "device to host, plain",
            [&](std::size_t bytes) { gpu_.to_host(host.data(), address_, bytes); }, true);
        row(
            "host to device, plain",
            [&](std::size_t bytes) { gpu_.to_device(address_, host.data(), bytes); }, true);
        verified(
            "message", 1, [&](std::size_t bytes) { message(bytes); }, false);
        verified(
            "write", 1, [&](std::size_t bytes) { access(bytes, true); }, true);
        verified(
            "read", 0, [&](std::size_t bytes) { access(bytes, false); }, true);
    }

  private:
    void* memory() const {
        return reinterpret_cast<void*>(address_);  // NOLINT(performance-no-int-to-ptr)
    }

    void head(const char* unit, std::array<const char*, 4> sizes) const {
        if (self_.rank != 0) return;
        std::printf("%-26s %10s %10s %10s %10s\n", unit, sizes[0], sizes[1], sizes[2], sizes[3]);
    }
    void print(const char* name, const std::array<double, 4>& figures) const {
        if (self_.rank != 0) return;
        std::printf("%-26s %10.2f %10.2f %10.2f %10.2f\n", name, figures[0], figures[1], figures[2],
                    figures[3]);
        std::fflush(stdout);
    }
    /// @param is_mutual  Else rank 0 does it alone, while the other makes progress.
    template <class Call>
    void latencies(const char* name, Call call, bool is_mutual = false) {
        std::array<double, 4> taken{};
        for (std::size_t i = 0; (self_.rank == 0 || is_mutual) && i < taken.size(); ++i) {
            taken[i] = latency([&] { call(kSmall[i]); });
        }
        self_.barrier_polling([&] { ep_.progress(); });
        print(name, taken);
    }
    void ping_pongs(const char* name, void* buffer, void* desc) {
        std::array<double, 4> taken{};
        for (std::size_t i = 0; i < taken.size(); ++i) {
            taken[i] = latency([&] {
                           transfer(self_.rank == 0, buffer, desc, kSmall[i]);
                           transfer(self_.rank != 0, buffer, desc, kSmall[i]);
                       }) /
                       2;
        }
        print(name, taken);
    }

    /// @param is_mine  Rank 0 does it alone, while the other makes progress.
    template <class Call>
    void row(const char* name, Call call, bool is_mine) {
        std::array<double, 4> rates{};
        for (std::size_t i = 0; i < std::size(kSizes); ++i) {
            if (self_.rank == 0 || !is_mine) {
                rates[i] = rate(kSizes[i], [&] { call(kSizes[i]); });
            }
            self_.barrier_polling([&] { ep_.progress(); });
        }
        print(name, rates);
    }
    /// Also compares what came to rank `target`.
    template <class Call>
    void verified(const char* name, int target, Call call, bool is_mine) {
        const std::vector<char> mine = numbered(static_cast<unsigned>(self_.rank));
        gpu_.to_device(address_, mine.data(), kMost);
        self_.barrier_polling([&] { ep_.progress(); });
        row(name, call, is_mine);
        if (self_.rank != target) return;
        std::vector<char> got(kMost);
        gpu_.to_host(got.data(), address_, kMost);
        if (got != numbered(static_cast<unsigned>(self_.other())))
            FAB_FAIL("%s: wrong bytes", name);
    }
    void message(std::size_t bytes) { transfer(self_.rank == 0, memory(), fi_mr_desc(mr_), bytes); }
    void transfer(bool sends, void* buffer, void* desc, std::size_t bytes) {
        if (sends) {
            ep_.post([&] { return fi_tsend(ep_.ep, buffer, bytes, desc, peer(), 1, nullptr); });
            ep_.wait_tx();
            return;
        }
        ep_.post(
            [&] { return fi_trecv(ep_.ep, buffer, bytes, desc, FI_ADDR_UNSPEC, 1, 0, nullptr); });
        ep_.wait_rx();
    }
    void access(std::size_t bytes, bool is_write) {
        ep_.post([&] {
            return is_write ? fi_write(ep_.ep, memory(), bytes, fi_mr_desc(mr_), peer(),
                                       remote_.base, remote_.key, nullptr)
                            : fi_read(ep_.ep, memory(), bytes, fi_mr_desc(mr_), peer(),
                                      remote_.base, remote_.key, nullptr);
        });
        ep_.wait_tx();
    }
    fi_addr_t peer() const { return ep_.peers[static_cast<std::size_t>(self_.other())]; }

    fab::Rank& self_;
    Gpu gpu_;
    fab::Endpoint ep_;
    unsigned long long address_;
    unsigned long long other_;
    fid_mr* mr_ = nullptr;
    fab::RemoteRegion remote_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) settings.provider = argv[1];
    settings.exporter = argc > 2 ? argv[2] : "cuda";
    const fab::TeamOptions team{.size = 2, .limit_s = 120, .cpus = {}};
    const auto outcomes = fab::run_team(team, [](fab::Rank& self) { Measured(self).run(); });
    int code = 0;
    for (const fab::Outcome& each : outcomes) {
        if (each.code == fab::kExitSkip && code == 0) {
            std::printf("%s\n", each.last_words.c_str());
            code = fab::kExitSkip;
        } else if (each.signal != 0 || each.timed_out ||
                   (each.code != 0 && each.code != fab::kExitSkip &&
                    each.code != fab::kExitPeerGone)) {
            std::printf("failed: %s\n", each.last_words.c_str());
            code = 1;
        }
    }
    return code;
}
