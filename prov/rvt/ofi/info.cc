// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): judges each candidate and says why one is refused.
#include "ofi/info.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "hmem/claimants.h"
#include "ofi/errors.h"
#include "ofi/pep.h"
#include "util/log.h"

namespace rvt::ofi {
namespace {

constexpr std::uint64_t kKnownFlags =
    FI_NUMERICHOST | FI_SOURCE | FI_PROV_ATTR_ONLY | kRescan | kCoreGetinfoFlags;

/// Who does not answer, and why.
struct Refused {
    fi_ep_type type;
    std::string domain;
    Refusal why;
};

/// Said loudly to applications that get no answer at all. Utility providers that look for something
/// to be layered over are no users: rvt_info knows their lines by the words.
void log_refusal(const Refused& refused, std::uint64_t flags, bool is_answered) noexcept {
    const auto& [type, domain, refusal] = refused;
    const bool is_application = (flags & kCoreGetinfoFlags) == 0;
    std::array<char, 64> name{};
    fi_tostr_r(name.data(), name.size(), &type, FI_TYPE_EP_TYPE);
    RVT_LOG(is_application && !is_answered ? util::LogLevel::kWarn : util::LogLevel::kInfo,
            util::LogArea::kFabric, "%s/%s %s %s: %s: %s asked, %s offered", kFabricName,
            domain.c_str(), name.data(),
            is_application ? "does not match" : "is nothing for a utility provider", refusal.hint,
            refusal.asked.c_str(), refusal.offered.c_str());
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

/// libfabric's ofi_mrail is made of received messages that the provider keeps, and would not learn
/// before it enables an endpoint that there are none. Applications only say by this mode that they
/// could take them.
bool is_for_buffered_receives(const fi_info* hints, std::uint64_t flags) noexcept {
    return (flags & kCoreGetinfoFlags) != 0 && hints != nullptr &&
           (hints->mode & kModeBufferedRecv) != 0;
}

/// fi_getinfo(3), FI_PROV_ATTR_ONLY: one answer that says no more than who we are.
int attributes_only(std::uint32_t version, const util::SockAddr& source, fi_info** info) {
    Offer offer;
    candidates().front().fill(offer, source);
    *info = build_info(offer, version, nullptr, {});
    return *info != nullptr ? 0 : -FI_ENOMEM;
}

/// One offer's answer; a refusal says why there is none. Returns: ENOMEM.
util::Result<std::optional<Refusal>> answer_one(const Offer& offer, std::uint32_t version,
                                                const fi_info* hints, const AddressAnswer& answer,
                                                fi_info** made) {
    if (hints != nullptr) {
        if (std::optional<Refusal> refusal = judge(offer, version, *hints)) {
            return refusal;
        }
    }
    if (answer.refusal) {
        return answer.refusal;
    }
    InfoAddresses addresses = answer.addresses;
    if (hints != nullptr && hints->handle != nullptr) {
        addresses.source = pep_address(hints->handle, offer.domain.name).value_or(addresses.source);
    }
    std::unique_ptr<fi_info, InfoDeleter> built(build_info(offer, version, hints, addresses));
    if (built == nullptr) {
        return ENOMEM;
    }
    if (hints != nullptr) {
        if (std::optional<Refusal> refusal = judge_domain(*built, offer, *hints)) {
            return refusal;
        }
    }
    *made = built.release();
    return std::optional<Refusal>();
}

/// NICs at the address that was asked for; where none was, all.
std::vector<MsgNicOffer> nics_for(const char* node, const char* service, const fi_info* hints,
                                  const AddressAnswer& answer) {
    const bool is_address_asked =
        node != nullptr || service != nullptr ||
        (hints != nullptr && (hints->src_addr != nullptr || hints->dest_addr != nullptr));
    std::vector<MsgNicOffer> nics = msg_nics();
    const util::SockAddr& source = answer.addresses.source;
    std::erase_if(nics, [&](const MsgNicOffer& nic) {
        return nic.address.family != source.family ||
               (is_address_asked && nic.address.ip != source.ip);
    });
    return nics;
}

/// The infos that answer, one behind the other.
class Answers {
  public:
    Answers(std::uint32_t version, const fi_info* hints, const AddressAnswer& addresses)
        : version_(version), hints_(hints), addresses_(addresses) {}

    void add_all(const char* node, const char* service, std::uint64_t flags) {
        for (const Candidate& candidate : candidates_for(hints_, flags)) {
            const std::vector<MsgNicOffer> nics = candidate.type != FI_EP_RDM
                                                      ? nics_for(node, service, hints_, addresses_)
                                                      : std::vector<MsgNicOffer>();
            if (candidate.type == FI_EP_MSG) {
                add_nics(nics, true);
            }
            add(candidate);
            if (candidate.type == FI_EP_MSG) {
                add_nics(nics, false);
            } else {
                // Datagrams of a NIC reach who has one too, and those of sockets everybody.
                add_nic_datagrams(nics);
            }
        }
    }
    /// From now on those that take memory of devices, for who asks for nothing: behind the others.
    void turn_to_devices() noexcept { are_for_devices_ = true; }
    /// Hands them out, and says who gives none and why. Returns: as getinfo().
    int take(std::uint64_t flags, fi_info** info) {
        if (is_out_of_memory_) {
            return -FI_ENOMEM;
        }
        for (const Refused& refused : refused_) {
            log_refusal(refused, flags, first_ != nullptr);
        }
        if (first_ == nullptr) {
            return -FI_ENODATA;
        }
        *info = first_.release();
        return 0;
    }

  private:
    void add(const Candidate& candidate) {
        Offer offer;
        candidate.fill(offer, addresses_.addresses.source);
        if (!addresses_.interface.empty()) {
            offer.domain.name = const_cast<char*>(addresses_.interface.c_str());
        }
        add(offer, addresses_);
    }
    /// Real NICs come before what reaches their address without them, emulated ones behind it.
    void add_nics(const std::vector<MsgNicOffer>& nics, bool are_preferred) {
        for (const MsgNicOffer& nic : nics) {
            if (nic.is_preferred == are_preferred) {
                add_nic(nic, fill_nic_offer);
            }
        }
    }
    void add_nic_datagrams(const std::vector<MsgNicOffer>& nics) {
        for (const MsgNicOffer& nic : nics) {
            if (nic.datagram_bytes != 0) {
                add_nic(nic, fill_nic_dgram_offer);
            }
        }
    }
    void add_nic(const MsgNicOffer& nic, void (*fill)(Offer&, const MsgNicOffer&) noexcept) {
        Offer offer;
        fill(offer, nic);
        if (is_asked(nic.stable_name)) {
            offer.domain.name = const_cast<char*>(nic.stable_name.c_str());
        }
        AddressAnswer at = addresses_;
        at.addresses.source.ip = nic.address.ip;
        add(offer, at);
    }
    /// What is asked for by the name that stays is opened by it.
    [[nodiscard]] bool is_asked(const std::string& name) const {
        return hints_ != nullptr && hints_->domain_attr != nullptr &&
               hints_->domain_attr->name != nullptr && hints_->domain_attr->name == name;
    }
    void add(Offer& offer, const AddressAnswer& addresses) {
        if (hints_ != nullptr) {
            narrow_to_domain(offer, *hints_);
        }
        if (are_for_devices_ && (offer.info.caps & FI_HMEM) == 0) {
            return;
        }
        offer.is_for_devices = are_for_devices_;
        fi_info* made = nullptr;
        auto refusal = answer_one(offer, version_, hints_, addresses, &made);
        if (!refusal.is_ok()) {
            is_out_of_memory_ = true;
            return;
        }
        if (refusal.value()) {
            refused_.push_back({offer.ep.type, offer.domain.name, *refusal.take()});
            return;
        }
        last_ == nullptr ? first_.reset(made) : void(last_->next = made);
        last_ = made;
    }

    const std::uint32_t version_;
    const fi_info* const hints_;
    const AddressAnswer& addresses_;
    std::unique_ptr<fi_info, InfoDeleter> first_;
    fi_info* last_ = nullptr;
    std::vector<Refused> refused_;
    bool is_out_of_memory_ = false;
    bool are_for_devices_ = false;
};

/// Everything waits in the same queues. Benchmarks ask for classes out of habit, so that no answer
/// is refused for it: it says FI_TC_UNSPEC, as those of libfabric's own providers without classes.
void log_traffic_class(const char* hint, std::uint32_t asked) noexcept {
    if (asked != FI_TC_UNSPEC) {
        RVT_INFO(kFabric, "%s is not kept: 0x%x asked, FI_TC_UNSPEC answered", hint, asked);
    }
}
void log_traffic_classes(const fi_info* hints) noexcept {
    if (hints != nullptr && hints->tx_attr != nullptr) {
        log_traffic_class("tx_attr->tclass", hints->tx_attr->tclass);
    }
    if (hints != nullptr && hints->domain_attr != nullptr) {
        log_traffic_class("domain_attr->tclass", hints->domain_attr->tclass);
    }
}

/// Whether memory of devices may be among what is asked for, though it is not named.
bool asks_for_all(const fi_info* hints) noexcept {
    return hints == nullptr || (hints->caps == 0 && hints->domain_attr != nullptr &&
                                (hints->domain_attr->mr_mode & FI_MR_HMEM) != 0);
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
    if (is_for_buffered_receives(hints, flags)) {
        log_refusal({FI_EP_RDM, kDomainName, {"mode", "FI_BUFFERED_RECV", "none"}}, flags, false);
        return -FI_ENODATA;
    }
    log_traffic_classes(hints);
    Answers answers(version, hints, addresses);
    answers.add_all(node, service, flags);
    if (asks_for_all(hints) && (flags & kCoreGetinfoFlags) == 0 && hmem::is_any_there()) {
        answers.turn_to_devices();
        answers.add_all(node, service, flags);
    }
    return answers.take(flags, info);
}

}  // namespace

int getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept {
    *info = nullptr;
    return entry([&] { return answer(version, node, service, flags, hints, info); });
}

}  // namespace rvt::ofi
