// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// An endpoint of any type with everything it needs, opened from a description; completions in one
// form; registered buffers. Used by one thread, unless the description asks for another threading
// level.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/device_memory.h"
#include "common/fail.h"
#include "common/team.h"
#include "common/timing.h"

namespace fab {

/// Set once by main, before any rank is forked.
struct Settings {
    std::string provider = "rvt";
    std::string node;  ///< Address to listen on, where the provider needs to be told; else empty.
    bool has_hosts = false;  ///< Ranks run in network namespaces of their own.
    bool is_long = false;    ///< Cases that have a long form run it.
    std::string nic;         ///< The domain of MSG and DGRAM endpoints; else empty.
    std::uint32_t addr_format = FI_FORMAT_UNSPEC;  ///< Of endpoints that ask for none themselves.
    std::string exporter;  ///< Of whose memory buffers are made (device_memory.h); else empty.
};
inline Settings settings;

/// Built with a sanitizer, under which all takes several times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

/// Of so many turns how many a case takes: a tenth where each takes far longer, which is under
/// ThreadSanitizer and with buffers of a device, whose every copy is system calls.
inline std::size_t turns_here(std::size_t turns) {
#if defined(__SANITIZE_THREAD__)
    return turns / 10;
#else
    return settings.exporter.empty() ? turns : turns / 10;
#endif
}

inline constexpr double kOpLimitS = 10;  ///< No single operation of a test may take longer.
inline constexpr int kAnyMrMode =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

/// An option that nobody sets.
inline constexpr int kNotSet = -1;

/// What to ask of fi_getinfo and how to open the objects. Zero: not asked for.
struct EpSpec {
    std::uint64_t caps = FI_MSG;
    fi_ep_type type = FI_EP_RDM;
    std::uint32_t addr_format = FI_FORMAT_UNSPEC;
    std::uint64_t mode = FI_CONTEXT | FI_CONTEXT2;
    std::uint64_t tx_op_flags = 0;
    std::uint64_t rx_op_flags = 0;
    std::uint64_t msg_order = 0;
    fi_cq_format cq_format = FI_CQ_FORMAT_TAGGED;
    fi_wait_obj cq_wait = FI_WAIT_NONE;
    std::size_t cq_size = 0;
    std::size_t cq_data_size = 0;
    std::size_t rx_size = 0;
    std::vector<char> source{};  ///< The address to have; empty: any.
    fi_av_type av_type = FI_AV_UNSPEC;
    std::size_t av_count = 64;
    int mr_mode = kAnyMrMode;
    int hmem_p2p = kNotSet;  ///< FI_OPT_FI_HMEM_P2P.
    fi_threading threading = FI_THREAD_DOMAIN;
    fi_progress progress = FI_PROGRESS_MANUAL;
    std::uint64_t tx_cq_flags =
        FI_TRANSMIT;  ///< As for fi_ep_bind; may add FI_SELECTIVE_COMPLETION.
    std::uint64_t rx_cq_flags = FI_RECV;
    bool one_cq = false;           ///< tx_cq and rx_cq are the same queue.
    std::uint64_t cntr_flags = 0;  ///< One counter for each bit of FI_SEND, FI_RECV, FI_READ, ...
    fi_wait_obj cntr_wait = FI_WAIT_NONE;
    bool has_eq = false;  ///< The endpoint is bound to an event queue.
};

/// One completion, whatever the format it was read in; fields that a format lacks are zero.
struct Completion {
    void* context = nullptr;
    std::uint64_t flags = 0;
    std::size_t len = 0;
    void* buf = nullptr;
    std::uint64_t data = 0;
    std::uint64_t tag = 0;
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    int err = 0;
    std::size_t olen = 0;
};

/// Returns: what fi_getinfo offers first, or null (and its error in `error`, if given).
fi_info* find_info(const EpSpec& spec, int* error = nullptr);

/// What an endpoint beside the one opened with `first` is opened with: another port.
fi_info* dup_without_port(const fi_info& first);

class Endpoint {
  public:
    /// Skips the calling rank's test where the provider offers nothing for `spec`.
    explicit Endpoint(const EpSpec& spec);
    /// A further endpoint in the fabric and domain of `first`, which must outlive it.
    Endpoint(const EpSpec& spec, const Endpoint& first);
    ~Endpoint();
    Endpoint(const Endpoint&) = delete;
    Endpoint& operator=(const Endpoint&) = delete;

    /// Exchanges addresses with all ranks and inserts them: peers[rank]. One of FI_EP_MSG is opened
    /// only now, and connected to that of the other rank.
    void connect(const Rank& self);
    std::vector<char> name() const;
    fi_addr_t insert(const std::vector<char>& address);

    /// Drives manual progress; leaves completions where they are.
    void progress() const;
    /// Returns: whether there was one; an error completion is one, with err set.
    bool poll(fid_cq* cq, Completion& out) const;
    /// Waits for one completion, of either kind; fails after kOpLimitS.
    Completion wait_any(fid_cq* cq) const;
    /// Waits for one that is not an error.
    Completion wait(fid_cq* cq) const;
    Completion wait_tx() const { return wait(tx_cq); }
    Completion wait_rx() const { return wait(rx_cq); }
    /// Waits until the counter's value is at least `value`.
    void wait_cntr(fid_cntr* counter, std::uint64_t value) const;

    /// Calls `op` until it is accepted, making progress while it answers -FI_EAGAIN.
    template <class Op>
    void post(Op op) const {
        const double deadline = now_s() + kOpLimitS;
        long rc = 0;
        while ((rc = static_cast<long>(op())) == -FI_EAGAIN) {
            progress();
            if (now_s() > deadline) FAB_FAIL("an operation was refused for %.0f s", kOpLimitS);
        }
        if (rc < 0) fail_fi(__FILE__, __LINE__, "an operation", rc);
    }

    bool has(std::uint64_t caps) const { return (info->caps & caps) == caps; }
    void* desc(fid_mr* mr) const { return mr == nullptr ? nullptr : fi_mr_desc(mr); }

    fi_info* info = nullptr;
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_av* av = nullptr;
    fid_eq* eq = nullptr;
    fid_cq* tx_cq = nullptr;
    fid_cq* rx_cq = nullptr;
    fid_ep* ep = nullptr;
    fid_cntr* send_cntr = nullptr;
    fid_cntr* recv_cntr = nullptr;
    fid_cntr* read_cntr = nullptr;
    fid_cntr* write_cntr = nullptr;
    fid_cntr* remote_read_cntr = nullptr;
    fid_cntr* remote_write_cntr = nullptr;
    std::array<fi_addr_t, kMaxRanks> peers{};

  private:
    void open_objects();
    void open_ep(fi_info* with);
    void open_counters();
    void connect_pair(const Rank& self);
    fid_cq* open_cq() const;
    bool take_error(fid_cq* cq, Completion& out) const;

    EpSpec spec_;
    bool owns_domain_ = true;
};

/// Where a peer's memory is.
struct RemoteRegion {
    std::uint64_t base = 0;
    std::uint64_t key = 0;
};

/// Registers memory of a device. Its bytes are named by the addresses that the application has.
fid_mr* register_device(fid_domain* domain, const DeviceBuffer& buffer, std::size_t length,
                        std::uint64_t access, std::uint64_t key);

/// A registration of memory that somebody else owns.
class Region {
  public:
    Region(Endpoint& ep, void* memory, std::size_t length, std::uint64_t access);
    /// Of memory of a device, which stays the caller's.
    Region(Endpoint& ep, const DeviceBuffer& buffer, std::size_t length, std::uint64_t access);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    RemoteRegion remote() const;
    /// nullptr where buffers need none.
    void* desc() const { return needs_desc_ ? fi_mr_desc(mr) : nullptr; }
    void close();

    fid_mr* mr = nullptr;

  private:
    void bind(Endpoint& ep);

    void* memory_;
    bool virtual_addresses_;
    bool needs_desc_;
};

/// Page-aligned zeroed memory, registered for all that the endpoint can do; of a device where the
/// settings name an exporter.
class Buffer {
  public:
    Buffer(Endpoint& ep, std::size_t length);
    /// As above, on memory the caller maps and unmaps.
    Buffer(Endpoint& ep, void* memory, std::size_t length);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    template <class T = char>
    T* as() const {
        return static_cast<T*>(memory_);
    }
    void* desc() const { return region_->desc(); }
    RemoteRegion remote() const { return region_->remote(); }
    std::size_t size() const { return length_; }
    /// Deregisters; the memory stays.
    void close_region() { region_->close(); }
    /// Fills with bytes that depend on their place and on `seed`.
    void fill(unsigned seed) const { fill(seed, length_); }
    void fill(unsigned seed, std::size_t length) const;
    /// Fails unless the first `length` bytes are those of fill(seed).
    void expect(unsigned seed, std::size_t length) const;

  private:
    void* memory_;
    std::size_t length_;
    bool owned_;
    DeviceBuffer device_;
    Region* region_;
};

/// A context for one operation: room for FI_CONTEXT2.
struct Context {
    fi_context2 room{};
};

}  // namespace fab
