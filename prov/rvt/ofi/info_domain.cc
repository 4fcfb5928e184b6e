// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Open domains in fi_getinfo(3): an answer is for one where endpoints can be opened as it says.
// What is read here of a domain never changes, and needs no lock but the one that keeps it open.
#include "ofi/domain.h"
#include "ofi/info.h"
#include "ofi/registry.h"

namespace rvt::ofi {
namespace {

/// Capabilities that endpoints have only where their domain has them.
constexpr std::uint64_t kCapsOfDomain = FI_ATOMIC | FI_HMEM;

std::uint64_t bits_of(const MrMode& mode) noexcept {
    return (mode.has_virtual_addresses ? FI_MR_VIRT_ADDR : 0) |
           (mode.has_provider_keys ? FI_MR_PROV_KEY : 0);
}

fi_threading threading_of(const Domain& domain) noexcept {
    return domain.lock.policy() == LockPolicy::kOwner ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
}

Refusal refusal_of(const char* hint, std::uint64_t asked, std::uint64_t has, fi_type type) {
    return {hint, to_text(asked, type), "the open domain's " + to_text(has, type)};
}

/// The open fabric that hints restrict the answer to; nullptr: any.
const fid* fabric_in(const fi_info* hints) {
    const fid_fabric* const asked =
        hints != nullptr && hints->fabric_attr != nullptr ? hints->fabric_attr->fabric : nullptr;
    return asked != nullptr ? registry::find(&asked->fid, FI_CLASS_FABRIC, kFabricName) : nullptr;
}

/// What is said and not so in the domain. Nothing: it fits.
/// @param fabric  Whose it has to be, see fabric_in().
std::optional<Refusal> judge_for(const Domain& domain, const fi_info& made, const fid* fabric) {
    const fi_domain_attr& attr = *made.domain_attr;
    if (fabric != nullptr && fabric != &domain.fabric->handle.fid) {
        return Refusal{"fabric_attr->fabric", "another fabric", "the open domain's"};
    }
    const std::uint64_t missing = made.caps & kCapsOfDomain & ~domain.caps;
    if (missing != 0) {
        return refusal_of("caps", missing, domain.caps, FI_TYPE_CAPS);
    }
    const std::uint64_t memory = bits_of(to_mr_mode(made.fabric_attr->api_version, attr.mr_mode));
    if (memory != bits_of(domain.mr_mode)) {
        return refusal_of("domain_attr->mr_mode", memory, bits_of(domain.mr_mode), FI_TYPE_MR_MODE);
    }
    if (domain.lock.policy() == LockPolicy::kOwner && attr.threading != FI_THREAD_DOMAIN) {
        return refusal_of("domain_attr->threading", attr.threading, FI_THREAD_DOMAIN,
                          FI_TYPE_THREADING);
    }
    if (attr.data_progress == FI_PROGRESS_AUTO && !domain.has_auto_progress) {
        return refusal_of("domain_attr->data_progress", FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL,
                          FI_TYPE_PROGRESS);
    }
    // Addresses of connected endpoints are of the format of their own infos.
    if (made.ep_attr->type != FI_EP_MSG && made.addr_format != domain.addr_format) {
        return refusal_of("addr_format", made.addr_format, domain.addr_format, FI_TYPE_ADDR_FORMAT);
    }
    return std::nullopt;
}

const char* registered_name(const Offer& offer) noexcept {
    return offer.opened_as != nullptr ? offer.opened_as : offer.domain.name;
}

fid_domain* named_in(const fi_info* hints) noexcept {
    return hints != nullptr && hints->domain_attr != nullptr ? hints->domain_attr->domain : nullptr;
}

}  // namespace

void narrow_to_domain(Offer& offer, const fi_info& hints) {
    const fid_domain* const asked = named_in(&hints);
    if (asked == nullptr) {
        return;
    }
    registry::find(&asked->fid, FI_CLASS_DOMAIN, registered_name(offer), [&](fid& object) {
        const Domain& domain = Domain::from(&object);
        offer.domain.threading = threading_of(domain);
        offer.domain.data_progress =
            domain.has_auto_progress ? FI_PROGRESS_AUTO : offer.domain.data_progress;
        if (hints.caps == 0) {
            offer.info.caps &= domain.caps | ~kCapsOfDomain;
            offer.tx.caps &= domain.caps | ~kCapsOfDomain;
            offer.rx.caps &= domain.caps | ~kCapsOfDomain;
        }
        return true;
    });
}

void name_domain(fi_info& made, const Offer& offer, const fi_info* hints) {
    const char* const name = registered_name(offer);
    const fid* const fabric = fabric_in(hints);
    fid_fabric* found_in = nullptr;
    const auto fits = [&](fid& object) {
        Domain& domain = Domain::from(&object);
        const bool is_fit = !judge_for(domain, made, fabric);
        found_in = is_fit ? &domain.fabric->handle : found_in;
        return is_fit;
    };
    fid_domain* const preferred = named_in(hints);
    const bool is_preferred =
        preferred != nullptr &&
        registry::find(&preferred->fid, FI_CLASS_DOMAIN, name, fits) != nullptr;
    made.domain_attr->domain =
        is_preferred ? preferred
                     : reinterpret_cast<fid_domain*>(registry::first(FI_CLASS_DOMAIN, name, fits));
    if (fabric == nullptr && found_in != nullptr) {
        made.fabric_attr->fabric = found_in;
    }
}

std::optional<Refusal> judge_domain(const fi_info& made, const Offer& offer, const fi_info& hints) {
    const fid_domain* const asked = named_in(&hints);
    if (asked == nullptr) {
        return std::nullopt;
    }
    const char* const name = registered_name(offer);
    const fid* const fabric = fabric_in(&hints);
    std::optional<Refusal> refusal =
        Refusal{"domain_attr->domain", "an object that is not open here", made.domain_attr->name};
    registry::find(&asked->fid, FI_CLASS_DOMAIN, name, [&](fid& object) {
        refusal = judge_for(Domain::from(&object), made, fabric);
        return true;
    });
    return refusal;
}

}  // namespace rvt::ofi
