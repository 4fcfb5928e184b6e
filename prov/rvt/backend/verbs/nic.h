// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// A port of a NIC with one of its addresses, opened: a device of the core of verb grade. The
// entries of the contract are in verb_ops.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/verbs/extended.h"
#include "backend/verbs/library.h"
#include "backend/verbs/library_fd.h"
#include "backend/verbs/nics.h"
#include "backend/verbs/owned_raw.h"
#include "backend/verbs/quirks.h"
#include "core/device.h"
#include "core/registry.h"
#include "util/annotations.h"
#include "util/fork_guard.h"
#include "util/mutex.h"

namespace rvt::verbs {

/// What a NIC can do, of what others have to know.
struct NicLimits {
    DeviceLimits verbs{};
    std::uint8_t max_reads_in = 0;   // READs and atomics that a pair answers at a time
    std::uint8_t max_reads_out = 0;  // and may have under way
    std::uint32_t mtu_bytes = 1024;
    bool has_atomics = false;
    bool has_srq = false;
    bool is_iwarp = false;
    bool has_rocev2 = false;        // a GID that is the address, so that a peer's is its address
    bool has_ib_path = false;       // the GID and P_Key of an interface of IP over InfiniBand
    bool has_ud = false;            // datagrams, to such addresses
    bool has_on_demand = false;     // regions whose pages are not pinned, for all that RC pairs do
    bool relaxes_ordering = false;  // of what it writes where no peer may
    bool extends_queues = false;    // completion queues have the extended verbs
    std::array<Builds, kQpTypes> builds{};  // by type: of pairs, what these have them for

    [[nodiscard]] const Builds& builds_of(QpType type) const noexcept {
        return builds[static_cast<std::size_t>(type)];
    }
};

class Nic {
  public:
    /// Opens the device and registers it with the core.
    /// Returns: ENODEV when there is no such device, or it has no RC; errors of libibverbs.
    static Result<std::shared_ptr<Nic>> open(core::Registry& registry, const NicAddress& address);
    /// Precondition: no context of the device is left.
    ~Nic();
    Nic(const Nic&) = delete;
    Nic& operator=(const Nic&) = delete;

    [[nodiscard]] core::Device& device() const noexcept { return *device_; }
    [[nodiscard]] const NicAddress& address() const noexcept { return address_; }
    [[nodiscard]] const NicLimits& limits() const noexcept { return limits_; }
    [[nodiscard]] const Quirks& quirks() const noexcept { return *quirks_; }
    [[nodiscard]] ibv_context* context() const noexcept { return context_.get(); }
    [[nodiscard]] ibv_comp_channel* channel() const noexcept { return channel_.get(); }
    /// Where the address is in the port's table of GIDs; of InfiniBand, the port's own GID.
    [[nodiscard]] std::uint8_t gid_index() const noexcept { return gid_index_; }
    /// See BackendOps. Threads: any.
    [[nodiscard]] Result<IbPort> ib_port() const noexcept;

    /// As ibv_create_qp(3), with the extended verbs if the limits say so.
    /// @param init  Whose type is set here.
    ibv_qp* create_pair(QpType type, ibv_pd& pd, ibv_qp_init_attr& init) const noexcept;
    /// As ibv_create_cq(3), the same way.
    ibv_cq* create_queue(int depth, void* user, ibv_comp_channel* channel) const noexcept;

    /// What there is of the device in this process: by it the device's own limits are told from
    /// others. Threads: any.
    struct Counts {
        std::atomic<std::uint32_t> pairs{0};
        std::atomic<std::uint32_t> regions{0};
    };
    [[nodiscard]] Counts& counts() noexcept { return counts_; }

    /// Passes on what has happened to the device; without waiting. Returns: whether more can come:
    /// event_fd() stays ready for ever when the kernel has ended the device. Threads: one at a
    /// time.
    bool take_events() noexcept;
    /// Tells the channel of a queue of the core that it has something. Returns: whether there was
    /// one. Threads: any.
    bool take_notice() noexcept;

    /// What the call says that ends an object. A device that has been taken away answers EIO: the
    /// kernel has ended all that it had. A forked child has nothing to end by what it inherits.
    [[nodiscard]] Status ended(int answer) const noexcept;
    /// Whether it has; what is kept is logged. @param what  The object, with its article.
    bool has_ended(const char* what, int answer) const noexcept;
    /// What the NIC has not ended leads to no object of the core any more: nobody is told what
    /// happens to it. The pair forgets what it was given, where that can be had. Threads: any.
    void disown(ibv_qp& pair) noexcept;
    void disown(ibv_cq& queue) noexcept;
    /// Readable when there is something for take_events().
    [[nodiscard]] int event_fd() const noexcept { return context_->async_fd; }

    static Nic& of(const core::Device& device) noexcept {
        return *static_cast<Nic*>(device.priv());
    }

  private:
    bool is_inherited() const noexcept { return generation_ != util::fork_generation(); }
    explicit Nic(const NicAddress& address) : address_(address) {}
    Status open_context();
    Status open_channel();
    [[nodiscard]] Result<ibv_port_attr> read_port() const noexcept;
    Status read_limits();
    Status probe_pairs();
    void probe_builds(QpType type, ibv_pd& pd, ibv_cq& queue) noexcept;
    void probe_inline(ibv_pd& pd, ibv_cq& queue) noexcept;
    void find_gid() noexcept;
    [[nodiscard]] std::optional<ibv_gid_type> own_gid_at(std::uint32_t index) const noexcept;
    struct Pkey {
        std::uint16_t index;
        std::uint16_t value;
    };
    [[nodiscard]] std::optional<Pkey> pkey_at(std::uint16_t index) const noexcept;
    [[nodiscard]] std::optional<Pkey> find_pkey(std::uint16_t count) const noexcept;
    void log_port() const noexcept;
    void log_ib_port() const noexcept;
    [[nodiscard]] std::string why_no_rocev2() const;
    void take_pair_event(const ibv_async_event& event) noexcept;
    void take_queue_event(const ibv_async_event& event) noexcept;
    [[nodiscard]] std::string free_name(const core::Registry& registry) const;
    Status add_to(core::Registry& registry);

    const NicAddress address_;
    OwnedRaw<ibv_context> context_;
    OwnedRaw<ibv_comp_channel> channel_;
    std::array<LibraryFd, 3> fds_;  // of both
    NicLimits limits_;
    Counts counts_;
    const Quirks* quirks_ = nullptr;
    std::uint8_t gid_index_ = 0;
    bool is_ethernet_ = false;  // and no iWARP: it should have RoCE
    bool is_infiniband_ = false;
    bool has_gid_ = false;     // at gid_index_
    bool has_rocev1_ = false;  // for the address
    core::Registry* registry_ = nullptr;
    core::Device* device_ = nullptr;
    const unsigned generation_ = util::fork_generation();  // of the process that opened it
    // Held while an event of a pair or a queue is passed on: until then who disowns one waits, and
    // the core's object is there. Order: before those of event queues and channels.
    util::Mutex owners_lock_;
};

/// The entries that the NIC carries out itself.
const BackendOps& verb_ops() noexcept;

}  // namespace rvt::verbs
