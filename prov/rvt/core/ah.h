// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Address handles: where a UD message goes, resolved once. IBTA vol. 1, 10.2.2.2; ibv_create_ah(3).
#pragma once

#include "core/context.h"
#include "core/mcast.h"
#include "core/object.h"
#include "rvt/backend.h"

namespace rvt::core {

class Ah : public Object {
  public:
    Ah(Pd& pd, const AhAttr& attr, Channel* channel) noexcept
        : pd_(pd), use_(pd), attr_(attr), channel_(channel) {}

    [[nodiscard]] Pd& pd() const noexcept { return pd_; }
    [[nodiscard]] const AhAttr& attr() const noexcept { return attr_; }
    [[nodiscard]] bool is_group() const noexcept { return is_multicast(attr_.dest.gid); }
    /// nullptr: the destination is this device or a group, or no channel of the device leads there.
    [[nodiscard]] Channel* channel() const noexcept { return channel_; }

  private:
    Pd& pd_;
    Use use_;
    const AhAttr attr_;
    Channel* const channel_;
};

/// Returns: EHOSTUNREACH and other errors of the backend's open_channel().
Result<Ah*> create_ah(Pd& pd, const AhAttr& attr);
/// Returns: EBUSY while a posted work request names it.
Status destroy_ah(Ah* ah);

}  // namespace rvt::core
