// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Domains, fi_domain(3): a device opened for one application, with the lock, the key table and the
// settings that everything opened in it shares.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/key_table.h"
#include "core/owned.h"
#include "core/rd_types.h"
#include "ofi/compat.h"
#include "ofi/device_events.h"
#include "ofi/domain_lock.h"
#include "ofi/fabric.h"
#include "ofi/fid.h"
#include "util/mapping.h"
#include "util/private_memory.h"
#include "util/watched.h"

namespace rvt::core {
class RdEndpoint;
}

namespace rvt::ofi {

class Eq;
class MsgDomain;
class MsgNic;
struct Cntr;
struct Home;

/// One of them is not a key but the table's header.
inline constexpr std::uint32_t kKeyTableEntries = std::uint32_t{1} << 18;

/// For so long a region or an endpoint that is to be closed waits for peers that copy to or from
/// its memory at that moment.
inline constexpr int kCloseTimeoutMs = 5000;

/// How memory is registered and named in this domain, fi_mr(3).
struct MrMode {
    bool has_virtual_addresses =
        false;                       // remote addresses are virtual ones, else they count from 0
    bool has_provider_keys = false;  // the provider chooses keys, else the application
};

/// The meaning of an mr_mode as an answer of fi_getinfo carries it.
MrMode to_mr_mode(std::uint32_t version, int mr_mode) noexcept;

struct Domain {
    static Domain& from(fid_domain* self) noexcept { return *reinterpret_cast<Domain*>(self); }
    static Domain& from(fid* self) noexcept { return *reinterpret_cast<Domain*>(self); }

    explicit Domain(LockPolicy policy) noexcept;
    ~Domain();
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;

    [[nodiscard]] std::uint32_t version() const noexcept { return fabric->handle.api_version; }

    /// What an endpoint of this domain needs to know of its keys.
    /// Precondition: not of a NIC's.
    [[nodiscard]] core::RdKeys rd_keys() noexcept;

    /// What it is called in infos.
    [[nodiscard]] const char* name() const noexcept;
    /// Where its endpoints are.
    [[nodiscard]] Home home() const noexcept;

    /// Makes `msg`, for the first endpoint or shared context that needs it. Returns: EMFILE,
    /// ENOSPC.
    util::Status open_msg();

    // Regions whose accesses are counted on their own, fi_mr_bind(3).
    // Who reads such a counter drives every endpoint, by which peers reach the region. Returns:
    // the error of adding an endpoint's descriptor to what the counter sleeps on. May throw
    // bad_alloc.
    util::Status watch_key(std::uint64_t key, Cntr& cntr);
    void unwatch_key(std::uint64_t key) noexcept;
    /// Threads: holder of `lock`.
    void count_key(std::uint64_t key) noexcept;

    /// Sends what waits in one of several endpoints, with each call another one: who waits for one
    /// endpoint need not poll those that it has posted to. Threads: holder of `lock`.
    RVT_ALWAYS_INLINE void send_for_others_locked() noexcept {
        if (has_several_endpoints) [[unlikely]] {
            send_for_next_locked();
        }
    }
    void send_for_next_locked() noexcept;
    /// Whether nothing waits in them that only polling sends. Threads: as before.
    [[nodiscard]] bool may_sleep_locked() const noexcept;

    // Enabled RDM endpoints. Returns: as watch_key(). May throw bad_alloc.
    util::Status add_endpoint(core::RdEndpoint& endpoint);
    void remove_endpoint(const core::RdEndpoint& endpoint) noexcept;

    fid_domain handle{};
    Fabric* fabric = nullptr;
    Eq* eq = nullptr;  // bound, for events of vectors, regions, and endpoints without one
    std::uint64_t eq_flags = 0;
    Users users;
    DomainLock lock;
    std::uint64_t caps = 0;
    std::uint32_t addr_format = FI_SOCKADDR_IN;
    std::string interface;  // whose name it has, and whose address endpoints get; empty: any
    fi_av_type av_type = FI_AV_UNSPEC;
    bool has_auto_progress = false;
    MrMode mr_mode;
    std::mutex endpoints_lock;                              // order: before `lock`
    std::unordered_map<std::uint64_t, Cntr*> watched_keys;  // changed under both
    std::vector<core::RdEndpoint*> endpoints;               // enabled ones; changed under both
    bool has_several_endpoints = false;                     // of these; under `lock`
    std::size_t next_sender = 0;                            // of these; under `lock`
    util::Mapping key_file;          // what the table lies in, for peers to map
    util::PrivateMemory key_memory;  // the same where there are no memory files
    std::unique_ptr<core::KeyTable> keys;
    // Of a NIC's domain, whose keys are the NIC's. In the order in which they are made.
    std::shared_ptr<MsgNic> nic;
    core::Owned<core::Context> nic_context;
    core::Owned<core::Pd> nic_pd;
    std::unique_ptr<util::Watched<DeviceEvents>> nic_events;  // where an event queue is bound
    bool has_msg_info = false;       // it was opened with the info of a connected endpoint
    std::mutex msg_lock;             // order: before `lock`; of making `msg`
    std::unique_ptr<MsgDomain> msg;  // what MSG endpoints share; from the first on
};

/// fi_ops_fabric.domain and .domain2. Returns: 0, -FI_EINVAL, -FI_ENODATA for another's info,
/// -FI_ENOMEM, -FI_EMFILE.
int domain_open(fid_fabric* fabric, fi_info* info, fid_domain** domain, std::uint64_t flags,
                void* context) noexcept;

}  // namespace rvt::ofi
