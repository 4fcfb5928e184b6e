// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): judges each candidate and says why one is refused.
#include "ofi/info.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ofi/errors.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kKnownFlags =
    FI_NUMERICHOST | FI_SOURCE | FI_PROV_ATTR_ONLY | kRescan | kCoreGetinfoFlags;

/// Said loudly to applications. Utility providers that look for something to be layered over are no
/// users.
void log_refusal(fi_ep_type type, const Refusal& refusal, std::uint64_t flags) noexcept {
    const bool is_application = (flags & kCoreGetinfoFlags) == 0;
    std::array<char, 64> name{};
    fi_tostr_r(name.data(), name.size(), &type, FI_TYPE_EP_TYPE);
    RVT_LOG(is_application ? util::LogLevel::kWarn : util::LogLevel::kInfo, util::LogArea::kFabric,
            "%s/%s %s does not match: %s: %s asked, %s offered", kFabricName, kDomainName,
            name.data(), refusal.hint, refusal.asked.c_str(), refusal.offered.c_str());
}

/// What hints leave to be judged: the candidates of the type that they name, else all. Utility
/// providers get none that they could put an RDM endpoint of their own on: ours would only come
/// behind theirs.
std::vector<Candidate> candidates_for(const fi_info* hints, std::uint64_t flags) {
    const std::span<const Candidate> all = candidates();
    std::vector<Candidate> chosen(all.begin(), all.end());
    if ((flags & kCoreGetinfoFlags) != 0) {
        chosen = {all.front()};
    }
    if (hints == nullptr || hints->ep_attr == nullptr) {
        return chosen;
    }
    const auto is_asked = [&](const Candidate& one) { return one.type == hints->ep_attr->type; };
    if (std::ranges::any_of(chosen, is_asked)) {
        std::erase_if(chosen, [&](const Candidate& one) { return !is_asked(one); });
    }
    return chosen;
}

/// fi_getinfo(3), FI_PROV_ATTR_ONLY: one answer that says no more than who we are.
int attributes_only(std::uint32_t version, const util::SockAddr& source, fi_info** info) {
    Offer offer;
    candidates().front().fill(offer, source);
    *info = build_info(offer, version, nullptr, {});
    return *info != nullptr ? 0 : -FI_ENOMEM;
}

/// One candidate's answer; a refusal says why there is none. Returns: ENOMEM.
util::Result<std::optional<Refusal>> answer_one(const Candidate& candidate, std::uint32_t version,
                                                const fi_info* hints, const AddressAnswer& answer,
                                                fi_info** made) {
    Offer offer;
    candidate.fill(offer, answer.addresses.source);
    if (hints != nullptr) {
        if (std::optional<Refusal> refusal = judge(offer, version, *hints)) {
            return refusal;
        }
    }
    if (answer.refusal) {
        return answer.refusal;
    }
    *made = build_info(offer, version, hints, answer.addresses);
    return *made != nullptr ? util::Result<std::optional<Refusal>>(std::optional<Refusal>())
                            : util::Result<std::optional<Refusal>>(ENOMEM);
}

int answer(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
           const fi_info* hints, fi_info** info) {
    if ((flags & ~kKnownFlags) != 0) {
        RVT_WARN(kFabric, "fi_getinfo: unknown flags 0x%llx",
                 static_cast<unsigned long long>(flags & ~kKnownFlags));
        return -FI_EBADFLAGS;
    }
    const AddressAnswer addresses = resolve_addresses(node, service, flags, hints);
    if ((flags & FI_PROV_ATTR_ONLY) != 0) {
        return attributes_only(version, addresses.addresses.source, info);
    }
    std::unique_ptr<fi_info, InfoDeleter> first;
    fi_info* last = nullptr;
    std::vector<std::pair<fi_ep_type, Refusal>> refusals;
    for (const Candidate& candidate : candidates_for(hints, flags)) {
        fi_info* made = nullptr;
        auto refusal = answer_one(candidate, version, hints, addresses, &made);
        if (!refusal.is_ok()) {
            return -FI_ENOMEM;
        }
        if (refusal.value()) {
            refusals.emplace_back(candidate.type, *refusal.take());
            continue;
        }
        last == nullptr ? first.reset(made) : void(last->next = made);
        last = made;
    }
    if (first == nullptr) {
        for (const auto& [type, refusal] : refusals) {
            log_refusal(type, refusal, flags);
        }
        return -FI_ENODATA;
    }
    *info = first.release();
    return 0;
}

}  // namespace

int getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept {
    *info = nullptr;
    return entry([&] { return answer(version, node, service, flags, hints, info); });
}

}  // namespace rvt::ofi
