// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// fi_getinfo(3): what is offered, how hints are judged, how an answer is made. The steps, in the
// order in which info.cc takes them:
//   info_offer.cc    what an endpoint type of a device can do at most
//   info_rules.cc    is each attribute of the hints within the offer? the first that is not ends
//   the candidate info_address.cc  node, service, flags and the hints' addresses become a source
//   and a destination info_build.cc    the answer, in memory that the application's fi_freeinfo
//   releases
//   info_domain.cc   which open domain is it for?
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ofi/compat.h"
#include "ofi/msg_nic.h"
#include "util/sock_addr.h"
#include "util/status.h"

namespace rvt::ofi {

/// fi_provider.getinfo. Returns: 0, -FI_ENODATA (each candidate's reason is logged), -FI_EBADFLAGS,
/// -FI_ENOMEM. Beside an answer, reasons are logged at level info.
int getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept;

inline constexpr const char* kProvName = "rvt";
inline constexpr const char* kFabricName = "rvt-host";  // reaches this host
inline constexpr const char* kDomainName = "shm";  // whose endpoints have what address they like
inline constexpr std::uint32_t kProtocol =
    0x80000001u;  // provider specific: two versions of rvt interoperate
inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint64_t kTagFormat =
    0xaaaaaaaaaaaaaaaau;  // every bit of a tag is the application's

/// What a candidate can do at most: endpoints of one type. Its attributes are read by the same
/// accessors as those of hints.
struct Offer {
    fi_info info{};
    fi_tx_attr tx{};
    fi_rx_attr rx{};
    fi_ep_attr ep{};
    fi_domain_attr domain{};
    fi_fabric_attr fabric{};
    int memory_mr_mode = 0;  // bits of mr_mode without which there is no remote memory
    int needed_mr_mode = 0;  // and without which there is nothing at all
    // Bits of msg_order that slow those down for whom they are kept: for those alone who ask.
    std::uint64_t order_for_who_asks = 0;
    std::size_t default_queue = 1024;
    const char* opened_as = nullptr;  // under which its domains are registered; else their name
    bool is_for_devices = false;      // FI_HMEM is given to those who ask for nothing, too

    Offer() = default;
    ~Offer() = default;
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;
};

/// The types of endpoint, in the order in which they are answered.
struct Candidate {
    fi_ep_type type;
    /// Fills in what it offers.
    /// @param source  The address that endpoints would have.
    void (*fill)(Offer& offer, const util::SockAddr& source) noexcept;
};
std::span<const Candidate> candidates() noexcept;
/// What FI_EP_MSG is without a NIC: a reliable connection's pair. @param source  As for candidates.
void fill_msg_offer(Offer& offer, const util::SockAddr& source) noexcept;
/// What FI_EP_MSG is over a NIC. @param nic  Outlives the offer, which names it.
void fill_nic_offer(Offer& offer, const MsgNicOffer& nic) noexcept;
/// The same for FI_EP_DGRAM.
void fill_nic_dgram_offer(Offer& offer, const MsgNicOffer& nic) noexcept;

/// Bits of capabilities that belong to one side of an endpoint, or to the domain.
extern const std::uint64_t kTxCaps;
extern const std::uint64_t kRxCaps;
extern const std::uint64_t kDomainCaps;

/// Bits of msg_order that reads, and atomics that fetch, are in order among each other.
extern const std::uint64_t kOrderOfReads;

/// Flags that may be an endpoint's default.
extern const std::uint64_t kTxOpFlags;
extern const std::uint64_t kRxOpFlags;

/// Why a candidate is refused: the first hint that does not fit.
struct Refusal {
    const char* hint = "";
    std::string asked;
    std::string offered;
};

/// Judges every attribute of the hints but the addresses and the domain. Nothing: all of them fit.
std::optional<Refusal> judge(const Offer& offer, std::uint32_t version, const fi_info& hints);
/// A value of an attribute as a refusal names it.
std::string to_text(std::uint64_t value, fi_type type);

/// The addresses of an answer.
struct InfoAddresses {
    std::uint32_t format = FI_SOCKADDR_IN;
    util::SockAddr source;
    std::optional<util::SockAddr> dest;
};

/// Works out source and destination. A refusal says which of node, service or the hints' addresses
/// is not ours.
struct AddressAnswer {
    InfoAddresses addresses;
    std::string interface;  // whose name was asked for as the domain's; else empty
    std::optional<Refusal> refusal;
};
AddressAnswer resolve_addresses(const char* node, const char* service, std::uint64_t flags,
                                const fi_info* hints);
/// Whether a domain can be called so because an interface that reaches others is.
bool is_interface(const char* domain);

/// Where endpoints are whose application leaves their address open.
struct Home {
    const std::string& interface;  // whose name their domain has; empty: any
    bool is_nics = false;          // the wildcard is left to the NIC
};
/// The address that is wanted; in place of the wildcard the one that fi_getinfo would choose.
/// Returns: EADDRNOTAVAIL where the interface has none of that family, which is logged.
util::Result<util::SockAddr> at_home(const util::SockAddr& wanted, const Home& home);
/// The same for the source of an info, of a format (FI_SOCKADDR and the like), or in place of none.
/// Returns: EINVAL for what is no address of the format; as at_home(). Either is logged.
util::Result<util::SockAddr> source_of(const fi_info& info, std::uint32_t format, const Home& home);

/// Makes the answer. Returns: nullptr without memory.
fi_info* build_info(const Offer& offer, std::uint32_t version, const fi_info* hints,
                    const InfoAddresses& addresses);

/// Where hints name an open domain, the defaults of an offer become what it has.
void narrow_to_domain(Offer& offer, const fi_info& hints);
/// Has an answer name an open domain, if there is one for it: that of the hints, if endpoints can
/// be opened there as the answer says, else the first of its name where they can, in the fabric of
/// the hints if they name one. Where they do not, the fabric is that of the domain.
void name_domain(fi_info& made, const Offer& offer, const fi_info* hints);
/// Why an answer is none for the domain that hints name. Nothing: it is one, or they name none.
std::optional<Refusal> judge_domain(const fi_info& made, const Offer& offer, const fi_info& hints);

/// Releases what build_info() made, as the application's fi_freeinfo does.
void free_info(fi_info* info) noexcept;
struct InfoDeleter {
    void operator()(fi_info* info) const noexcept { free_info(info); }
};

/// The mr_mode bits that an answer demands of the application (0 and legacy values included).
int answer_mr_mode(const Offer& offer, std::uint32_t version, const fi_info* hints) noexcept;

/// Whether the application's mr_mode is enough for remote memory.
bool allows_memory(const Offer& offer, std::uint32_t version, const fi_info* hints) noexcept;

/// Capabilities that concern memory of peers.
inline constexpr std::uint64_t kMemoryCaps = FI_RMA | FI_ATOMIC;
inline constexpr std::uint64_t kMemoryModifiers =
    FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

}  // namespace rvt::ofi
