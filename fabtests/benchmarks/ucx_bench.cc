// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The same measures over UCX (its ucp interface), in the same frame, as a peer to compare with.
#include <ucp/api/ucp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <poll.h>

#include "benchmarks/bench.h"
#include "common/fail.h"
#include "common/timing.h"

namespace fab {
namespace {

constexpr std::size_t kRateWindow = 64;
constexpr ucp_tag_t kDataTag = 7;
constexpr ucp_tag_t kAckTag = 8;
constexpr ucp_tag_t kFullMask = ~ucp_tag_t{0};

void check(ucs_status_t status, const char* what) {
    if (status != UCS_OK) FAB_FAIL("%s: %s", what, ucs_status_string(status));
}

/// Context, worker and an endpoint to the other rank.
class Ucx {
  public:
    Ucx(Rank& rank, std::uint64_t features) : self(rank) {
        ucp_config_t* config = nullptr;
        check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features = features;
        check(ucp_init(&params, config, &context), "ucp_init");
        ucp_config_release(config);
        ucp_worker_params_t worker_params{};
        worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
        check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
        connect();
    }
    ~Ucx() {
        finish();
        ucp_request_param_t param{};
        wait(ucp_ep_close_nbx(ep, &param));
        self.barrier_polling(idle());
        ucp_worker_destroy(worker);
        ucp_cleanup(context);
    }
    Ucx(const Ucx&) = delete;
    Ucx& operator=(const Ucx&) = delete;

    void poll() const { ucp_worker_progress(worker); }
    /// Waits for one request; immediate completion (null) is fine.
    void wait(ucs_status_ptr_t request) const {
        if (request == nullptr) return;
        if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "a request");
        while (ucp_request_check_status(request) == UCS_INPROGRESS) poll();
        ucp_request_free(request);
    }
    ucs_status_ptr_t send(const void* data, std::size_t size, ucp_tag_t tag) const {
        ucp_request_param_t param{};
        return ucp_tag_send_nbx(ep, data, size, tag, &param);
    }
    ucs_status_ptr_t receive(void* data, std::size_t size, ucp_tag_t tag) const {
        ucp_request_param_t param{};
        return ucp_tag_recv_nbx(worker, data, size, tag, kFullMask, &param);
    }
    std::function<void()> idle() const {
        return [this] { poll(); };
    }
    /// All that this rank put is in the other one's memory, and the other one has done the same.
    void finish() const {
        ucp_request_param_t param{};
        wait(ucp_ep_flush_nbx(ep, &param));
        self.barrier_polling(idle());
    }

    Rank& self;
    ucp_context_h context = nullptr;
    ucp_worker_h worker = nullptr;
    ucp_ep_h ep = nullptr;

  private:
    void connect() {
        ucp_address_t* mine = nullptr;
        std::size_t length = 0;
        check(ucp_worker_get_address(worker, &mine, &length), "ucp_worker_get_address");
        self.send_string(self.other(), std::string(reinterpret_cast<char*>(mine), length));
        const std::string theirs = self.receive_string(self.other());
        ucp_worker_release_address(worker, mine);
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
        params.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
        check(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
    }
};

double pingpong(Rank& self, std::size_t size) {
    Ucx ucx(self, UCP_FEATURE_TAG);
    std::vector<char> in(size + 1);
    std::vector<char> out(size + 1);
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            ucs_status_ptr_t receive = ucx.receive(in.data(), size, kDataTag);
            if (self.rank == 0) ucx.wait(ucx.send(out.data(), size, kDataTag));
            ucx.wait(receive);
            if (self.rank == 1) ucx.wait(ucx.send(out.data(), size, kDataTag));
        }
    };
    return time_batches(self, body, ucx.idle()) / 2 * 1e6;
}

/// Windows of messages into one buffer or one each, one answer for each window.
double windows(Rank& self, std::size_t size, std::size_t window, bool one_buffer) {
    Ucx ucx(self, UCP_FEATURE_TAG);
    std::vector<char> data(one_buffer ? size : size * window);
    std::vector<ucs_status_ptr_t> receives(window);
    std::vector<ucs_status_ptr_t> sends(window);
    char ack[8] = {};
    const auto post_window = [&] {
        for (std::size_t m = 0; m < window; ++m) {
            receives[m] = ucx.receive(data.data() + (one_buffer ? 0 : m * size), size, kDataTag);
        }
    };
    if (self.rank == 1) post_window();
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (self.rank == 0) {
                ucs_status_ptr_t answer = ucx.receive(ack, 8, kAckTag);
                for (std::size_t m = 0; m < window; ++m) {
                    sends[m] = ucx.send(data.data(), size, kDataTag);
                }
                for (ucs_status_ptr_t one : sends) ucx.wait(one);
                ucx.wait(answer);
            } else {
                for (ucs_status_ptr_t one : receives) ucx.wait(one);
                post_window();
                ucx.wait(ucx.send(ack, 8, kAckTag));
            }
        }
    };
    const double seconds = time_batches(self, body, ucx.idle());
    if (self.rank == 1) {
        for (ucs_status_ptr_t one : receives) {
            ucp_request_cancel(ucx.worker, one);
            ucp_request_free(one);
        }
    }
    return seconds / static_cast<double>(window);
}

double rate(Rank& self, std::size_t size) {
    return 1 / windows(self, size, kRateWindow, false) / 1e6;
}

double bandwidth(Rank& self, std::size_t size) {
    return static_cast<double>(size) / windows(self, size, window_of(size), true) / 1e9;
}

/// Memory of this rank that the other one reaches. Allocated by UCX (shared), or ordinary.
class Target {
  public:
    Target(Ucx& ucx, std::size_t size, bool shared) : ucx_(ucx), own_(shared ? 0 : size + 64) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                            UCP_MEM_MAP_PARAM_FIELD_FLAGS;
        params.length = size;
        params.address = shared ? nullptr : own_.data();
        params.flags = shared ? UCP_MEM_MAP_ALLOCATE : 0;
        check(ucp_mem_map(ucx.context, &params, &memory_), "ucp_mem_map");
        ucp_mem_attr_t attr{};
        attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
        check(ucp_mem_query(memory_, &attr), "ucp_mem_query");
        address = static_cast<char*>(attr.address);
        void* packed = nullptr;
        std::size_t length = 0;
        check(ucp_rkey_pack(ucx.context, memory_, &packed, &length), "ucp_rkey_pack");
        ucx.self.send_string(ucx.self.other(), std::string(static_cast<char*>(packed), length));
        ucp_rkey_buffer_release(packed);
        const std::string theirs = ucx.self.receive_string(ucx.self.other());
        check(ucp_ep_rkey_unpack(ucx.ep, theirs.data(), &key), "ucp_ep_rkey_unpack");
        remote = reinterpret_cast<std::uint64_t>(ucx.self.trade(ucx.self.other(), address));
    }
    ~Target() {
        ucx_.finish();
        ucp_rkey_destroy(key);
        ucp_mem_unmap(ucx_.context, memory_);
    }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    char* address = nullptr;
    std::uint64_t remote = 0;
    ucp_rkey_h key = nullptr;

  private:
    Ucx& ucx_;
    std::vector<char> own_;
    ucp_mem_h memory_ = nullptr;
};

double put_latency(Rank& self, std::size_t size) {
    Ucx ucx(self, UCP_FEATURE_RMA);
    Target target(ucx, size, false);
    std::vector<char> local(size);
    volatile char* last = target.address + size - 1;
    char turn = 0;
    ucp_request_param_t param{};
    const auto put = [&] {
        local[size - 1] = turn;
        ucx.wait(ucp_put_nbx(ucx.ep, local.data(), size, target.remote, target.key, &param));
    };
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            turn = static_cast<char>(turn + 1);
            if (self.rank == 0) put();
            while (*last != turn) ucx.poll();
            if (self.rank == 1) put();
        }
    };
    return time_batches(self, body, ucx.idle()) / 2 * 1e6;
}

/// Seconds of one `op` of rank 0 while rank 1 polls.
template <class Op>
double one_sided(Ucx& ucx, Op op) {
    const auto body = [&](std::size_t n) {
        if (ucx.self.rank == 1) {
            while (!is_ended(ucx.self)) ucx.poll();
            return;
        }
        for (std::size_t i = 0; i < n; ++i) op();
        announce_end(ucx.self);
    };
    return time_batches(ucx.self, body, ucx.idle());
}

double get_latency(Rank& self, std::size_t size) {
    Ucx ucx(self, UCP_FEATURE_RMA);
    Target target(ucx, size, false);
    std::vector<char> local(size);
    ucp_request_param_t param{};
    return one_sided(ucx,
                     [&] {
                         ucx.wait(ucp_get_nbx(ucx.ep, local.data(), size, target.remote, target.key,
                                              &param));
                     }) *
           1e6;
}

template <bool kPut, bool kShared>
double rma_bandwidth(Rank& self, std::size_t size) {
    Ucx ucx(self, UCP_FEATURE_RMA);
    Target target(ucx, size, kShared);
    std::vector<char> local(size);
    const std::size_t fit = (std::size_t{16} << 20) / size;
    const std::size_t window = fit < 2 ? 2 : fit > 16 ? 16 : fit;
    std::vector<ucs_status_ptr_t> requests(window);
    ucp_request_param_t param{};
    const double seconds = one_sided(ucx, [&] {
        for (ucs_status_ptr_t& one : requests) {
            one = kPut ? ucp_put_nbx(ucx.ep, local.data(), size, target.remote, target.key, &param)
                       : ucp_get_nbx(ucx.ep, local.data(), size, target.remote, target.key, &param);
        }
        for (ucs_status_ptr_t one : requests) ucx.wait(one);
    });
    return static_cast<double>(size * window) / seconds / 1e9;
}

template <bool kSwap>
double atomic(Rank& self, std::size_t) {
    Ucx ucx(self, UCP_FEATURE_AMO64);
    Target target(ucx, 4096, true);
    std::uint64_t operand = 1;
    std::uint64_t reply = 0;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    param.datatype = ucp_dt_make_contig(8);
    param.reply_buffer = &reply;
    const ucp_atomic_op_t op = kSwap ? UCP_ATOMIC_OP_CSWAP : UCP_ATOMIC_OP_ADD;
    return one_sided(ucx,
                     [&] {
                         ucx.wait(ucp_atomic_op_nbx(ucx.ep, op, &operand, 1, target.remote,
                                                    target.key, &param));
                     }) *
           1e6;
}

/// Both ranks sleep in poll on their worker's descriptor.
double wake(Rank& self, std::size_t) {
    Ucx ucx(self, UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP);
    int fd = -1;
    check(ucp_worker_get_efd(ucx.worker, &fd), "ucp_worker_get_efd");
    char in[8];
    char out[8] = {};
    const auto sleep_until_done = [&](ucs_status_ptr_t request) {
        if (request == nullptr) return;
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            if (ucp_worker_progress(ucx.worker) != 0) continue;
            if (ucp_worker_arm(ucx.worker) != UCS_OK) continue;
            pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
            ::poll(&entry, 1, 1000);
        }
        ucp_request_free(request);
    };
    const auto body = [&](std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            ucs_status_ptr_t receive = ucx.receive(in, 8, kDataTag);
            if (self.rank == 0) ucx.wait(ucx.send(out, 8, kDataTag));
            sleep_until_done(receive);
            if (self.rank == 1) ucx.wait(ucx.send(out, 8, kDataTag));
        }
    };
    return time_batches(self, body, ucx.idle(), 0.04) / 2 * 1e6;
}

constexpr Measure kMeasures[] = {
    {"pingpong", "us", pingpong, 2, "bytes"},
    {"rate", "M/s", rate, 2, "bytes"},
    {"bandwidth", "GB/s", bandwidth, 2, "bytes"},
    {"write-latency", "us", put_latency, 2, "bytes"},
    {"read-latency", "us", get_latency, 2, "bytes"},
    {"write", "GB/s", rma_bandwidth<true, false>, 2, "bytes"},
    {"read", "GB/s", rma_bandwidth<false, false>, 2, "bytes"},
    {"write-mapped", "GB/s", rma_bandwidth<true, true>, 2, "bytes"},
    {"read-mapped", "GB/s", rma_bandwidth<false, true>, 2, "bytes"},
    {"fetch-add", "us", atomic<false>, 2, nullptr},
    {"compare-swap", "us", atomic<true>, 2, nullptr},
    {"wake", "us", wake, 2, nullptr},
};

}  // namespace
}  // namespace fab

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "-l") == 0) {
        for (const fab::Measure& one : fab::kMeasures) std::printf("%s\n", one.name);
        return 0;
    }
    if (argc != 3 && argc != 4) {
        std::fprintf(stderr, "usage: ucx_bench CPU,CPU MEASURE [BYTES] | -l\n");
        return 2;
    }
    return fab::run_measure(fab::kMeasures, "ucx_bench", argv[2], argc == 4 ? argv[3] : nullptr,
                            {.cpus = fab::parse_cpus(argv[1])});
}
