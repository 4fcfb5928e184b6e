// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): judges each candidate and says why one is refused.
#include "ofi/info.h"

#include "ofi/errors.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kKnownFlags =
    FI_NUMERICHOST | FI_SOURCE | FI_PROV_ATTR_ONLY | kRescan | kCoreGetinfoFlags;

/// Said loudly to applications. Utility providers that look for something to be layered over are no
/// users.
void log_refusal(const Refusal& refusal, std::uint64_t flags) noexcept {
    const bool is_application = (flags & kCoreGetinfoFlags) == 0;
    RVT_LOG(is_application ? util::LogLevel::kWarn : util::LogLevel::kInfo, util::LogArea::kFabric,
            "%s/%s RDM does not match: %s: %s asked, %s offered", kFabricName, kDomainName,
            refusal.hint, refusal.asked.c_str(), refusal.offered.c_str());
}

/// fi_getinfo(3), FI_PROV_ATTR_ONLY: one answer that says no more than who we are.
int attributes_only(const Offer& offer, std::uint32_t version, fi_info** info) {
    *info = build_info(offer, version, nullptr, {});
    return *info != nullptr ? 0 : -FI_ENOMEM;
}

int answer(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
           const fi_info* hints, fi_info** info) {
    if ((flags & ~kKnownFlags) != 0) {
        RVT_WARN(kFabric, "fi_getinfo: unknown flags 0x%llx",
                 static_cast<unsigned long long>(flags & ~kKnownFlags));
        return -FI_EBADFLAGS;
    }
    const AddressAnswer addresses = resolve_addresses(node, service, flags, hints);
    Offer offer;
    fill_rdm_offer(offer, !addresses.addresses.source.is_loopback());
    if ((flags & FI_PROV_ATTR_ONLY) != 0) {
        return attributes_only(offer, version, info);
    }
    if (hints != nullptr) {
        if (const std::optional<Refusal> refusal = judge(offer, version, *hints)) {
            log_refusal(*refusal, flags);
            return -FI_ENODATA;
        }
    }
    if (addresses.refusal) {
        log_refusal(*addresses.refusal, flags);
        return -FI_ENODATA;
    }
    *info = build_info(offer, version, hints, addresses.addresses);
    return *info != nullptr ? 0 : -FI_ENOMEM;
}

}  // namespace

int getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept {
    *info = nullptr;
    return entry([&] { return answer(version, node, service, flags, hints, info); });
}

}  // namespace rvt::ofi
