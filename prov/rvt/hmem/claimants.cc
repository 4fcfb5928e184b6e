// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "hmem/claimants.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <strings.h>

#include "util/log.h"
#include "util/params.h"

namespace rvt::hmem {
namespace {

struct Known {
    Claimant& (*claimant)() noexcept;
    util::ParamId param;
};

constexpr std::array<Known, 3> kKnown{{{cuda, util::ParamId::kHmemCuda},
                                       {rocr, util::ParamId::kHmemRocr},
                                       {ze, util::ParamId::kHmemZe}}};
static_assert(kKnown.size() == kKinds);

Claimant* first = nullptr;

/// Whose memory it is, if it is that one's.
Claim claim_by(const util::Result<Claimant*>& claimant, const void* address,
               std::uint64_t bytes) noexcept {
    if (!claimant.is_ok()) {
        return {};
    }
    const util::Result<Allocation> found = claimant.value()->find(address, bytes);
    return found.is_ok() ? Claim{.claimant = claimant.value(), .allocation = found.value()}
                         : Claim{};
}

}  // namespace

void ask_first(Claimant* claimant) noexcept {
    first = claimant;
}

Claimant& known_claimant(Kind kind) noexcept {
    return kKnown[static_cast<std::size_t>(kind)].claimant();
}

util::Result<Claimant*> claimant_of(Kind kind) noexcept {
    Claimant& claimant = known_claimant(kind);
    if (!util::param_is_set(kKnown[static_cast<std::size_t>(kind)].param)) {
        return ENOSYS;
    }
    const util::Status started = claimant.start();
    if (!started.is_ok()) {
        return started;
    }
    return &claimant;
}

bool is_any_there() noexcept {
    return std::ranges::any_of(kKnown, [](const Known& known) {
        return util::param_is_set(known.param) && known.claimant().is_there();
    });
}

bool has_no_p2p() noexcept {
    // The words that libfabric takes for a boolean parameter (fi_param_get(3)).
    constexpr std::array kYes{"1", "yes", "true", "on"};
    const char* const value = getenv("FI_HMEM_DISABLE_P2P");  // NOLINT(concurrency-mt-unsafe)
    return value != nullptr && std::ranges::any_of(kYes, [&](const char* word) {
               return strcasecmp(value, word) == 0;
           });
}

Claim claim(const void* address, std::uint64_t bytes) noexcept {
    Claim found;
    if (first != nullptr && first->start().is_ok()) {
        found = claim_by(first, address, bytes);
    }
    for (std::size_t i = 0; i < kKnown.size() && found.claimant == nullptr; ++i) {
        found = claim_by(claimant_of(static_cast<Kind>(i)), address, bytes);
    }
    return found;
}

}  // namespace rvt::hmem
