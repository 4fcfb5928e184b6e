// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of families, by the vendor that a device names.
#include "backend/verbs/quirks.h"

#include <cstdint>

namespace rvt::verbs {
namespace {

struct Family {
    std::uint32_t vendor;
    Quirks quirks;
};

// Vendors are those of PCI; rxe and siw have numbers of their own.
// clang-format off
constexpr Family kFamilies[] = {
    // vendor    family       software  rc     cm     next   misbuilt              demand tried
    {0xffffff, {"rxe",        true,     true,  false, true,  Misbuilt::kLists,     true,  true}},
    {0x626d74, {"siw",        true,     true,  true,  false, Misbuilt::kNone,      false, true}},
    {0x02c9,   {"mlx4, mlx5", false,    true,  false, false, Misbuilt::kNone,      false, false}},
    {0x15b3,   {"mlx4, mlx5", false,    true,  false, false, Misbuilt::kNone,      false, false}},
    {0x8086,   {"irdma",      false,    true,  false, false, Misbuilt::kNone,      false, false}},
    {0x14e4,   {"bnxt_re",    false,    true,  false, false, Misbuilt::kDatagrams, false, false}},
    {0x19e5,   {"hns",        false,    true,  false, false, Misbuilt::kNone,      false, false}},
    {0x1d0f,   {"efa",        false,    false, false, false, Misbuilt::kNone,      false, false}},
    {0x1175,   {"hfi1, qib",  false,    true,  false, false, Misbuilt::kNone,      false, false}},
};
// clang-format on
constexpr Quirks kPlain{"of no known family", false, true, false, false,
                        Misbuilt::kNone,      false, false};
constexpr Quirks kIwarp{"iWARP", false, true, true, false, Misbuilt::kNone, false, false};

}  // namespace

const Quirks& quirks_of(const ibv_device& device, const ibv_device_attr& attr) noexcept {
    const bool is_iwarp = device.transport_type == IBV_TRANSPORT_IWARP;
    for (const Family& family : kFamilies) {
        if (family.vendor == attr.vendor_id && family.quirks.cm_moves_pairs == is_iwarp) {
            return family.quirks;
        }
    }
    return is_iwarp ? kIwarp : kPlain;
}

}  // namespace rvt::verbs
