// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// libfabric objects as values: what a test opens is closed when it ends. Everything goes through
// the public interface; the provider is the one of the build tree (FI_PROVIDER_PATH).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "common/check.h"

namespace rvt::test {

/// An attribute structure, zero but for what `set` says: with<fi_av_attr>([](auto& a) { a.count =
/// 5; }).
template <class Attr, class Set>
Attr with(Set set) {
    Attr attr{};
    set(attr);
    return attr;
}

inline constexpr std::uint32_t kVersion = FI_VERSION(1, 17);

/// Waits sleep at once, where a test does not say otherwise: it is waking that can go wrong.
[[maybe_unused]] inline const int sleeps_at_once = setenv("FI_RVT_BUSY_POLL_US", "0", 0);

struct FreeInfo {
    void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// Hints that select this provider and leave the rest open.
inline Info new_hints() {
    Info hints(fi_allocinfo());
    hints->fabric_attr->prov_name = strdup("rvt");
    return hints;
}

/// fi_getinfo with everything named; `error` is what it returned.
struct Answer {
    Info info;
    int error = 0;
};
inline Answer ask(const Info& hints, const char* node = nullptr, const char* service = nullptr,
                  std::uint64_t flags = 0, std::uint32_t version = kVersion) {
    fi_info* info = nullptr;
    const int error = fi_getinfo(version, node, service, flags, hints.get(), &info);
    return {Info(info), error};
}

/// What the provider has logged since keep_log().
inline std::string logged_warnings;
inline std::string logged_infos;
/// Call before anything else of libfabric.
inline void keep_log() {
    static fi_ops_log ops = {
        .size = sizeof(fi_ops_log),
        .enabled = [](const fi_provider*, fi_log_level level, fi_log_subsys,
                      std::uint64_t) { return level <= FI_LOG_INFO ? 1 : 0; },
        .ready = [](const fi_provider*, fi_log_level level, fi_log_subsys, std::uint64_t,
                    std::uint64_t*) { return level <= FI_LOG_INFO ? 1 : 0; },
        .log =
            [](const fi_provider* provider, fi_log_level level, fi_log_subsys, const char*, int,
               const char* text) {
                if (std::strcmp(provider->name, "rvt") == 0) {
                    (level == FI_LOG_WARN ? logged_warnings : logged_infos) += text;
                }
            }};
    static fid_logging logging = {.fid = {}, .ops = &ops};
    RVT_OK(fi_import_log(FI_VERSION(1, 13), 0, &logging));
}

/// Closes a libfabric object. Fid is a fid_xxx whose first member is its fid.
template <class Fid>
struct Close {
    void operator()(Fid* object) const noexcept { fi_close(&object->fid); }
};
template <class Fid>
using Owned = std::unique_ptr<Fid, Close<Fid>>;

/// Calls `open(Fid**)`, which must succeed.
template <class Fid, class Open>
Owned<Fid> opened(Open open) {
    Fid* object = nullptr;
    RVT_OK(open(&object));
    return Owned<Fid>(object);
}

/// A fabric and a domain of an info.
struct Opened {
    Info info;
    Owned<fid_fabric> fabric;
    Owned<fid_domain> domain;

    explicit Opened(Info with) : info(std::move(with)) {
        fabric = opened<fid_fabric>(
            [this](fid_fabric** f) { return fi_fabric(info->fabric_attr, f, nullptr); });
        domain = opened<fid_domain>(
            [this](fid_domain** d) { return fi_domain(fabric.get(), info.get(), d, nullptr); });
    }
    Opened() : Opened(ask(new_hints()).info) {}

    Owned<fid_cq> cq(fi_cq_attr attr = {}) const {
        return opened<fid_cq>(
            [&](fid_cq** cq) { return fi_cq_open(domain.get(), &attr, cq, nullptr); });
    }
    Owned<fid_av> av(fi_av_attr attr = {}) const {
        return opened<fid_av>(
            [&](fid_av** av) { return fi_av_open(domain.get(), &attr, av, nullptr); });
    }
    Owned<fid_cntr> cntr(fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP,
                                              .wait_obj = FI_WAIT_UNSPEC,
                                              .wait_set = nullptr,
                                              .flags = 0}) const {
        return opened<fid_cntr>(
            [&](fid_cntr** c) { return fi_cntr_open(domain.get(), &attr, c, nullptr); });
    }
    Owned<fid_eq> eq(fi_eq_attr attr = {}) const {
        return opened<fid_eq>(
            [&](fid_eq** eq) { return fi_eq_open(fabric.get(), &attr, eq, nullptr); });
    }
};

}  // namespace rvt::test
