// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Address vectors, fi_av(3): of both types, because a number serves as either.
#pragma once

#include <cstdint>

#include "core/address_vector.h"
#include "ofi/compat.h"
#include "ofi/domain.h"
#include "ofi/fid.h"

namespace rvt::ofi {

struct Av {
    static Av& from(fid_av* self) noexcept { return *reinterpret_cast<Av*>(self); }
    static Av& from(fid* self) noexcept { return *reinterpret_cast<Av*>(self); }

    fid_av handle{};
    Domain* domain = nullptr;
    Eq* eq = nullptr;
    bool is_async = false;  // opened with FI_EVENT: outcomes of insertions go to `eq`
    Users users;
    core::AddressVector addresses;
};

/// fi_ops_domain.av_open.
int av_open(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept;

}  // namespace rvt::ofi
