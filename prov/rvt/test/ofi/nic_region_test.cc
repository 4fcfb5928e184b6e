// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Regions of an application in the domain of a NIC, and what becomes of them.
#include "ofi/nic_world.h"

using namespace rvt;
using namespace rvt::test;

namespace {

constexpr std::uint64_t kAccess = FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// An application with one region more.
struct With {
    int reg(std::uint64_t flags) {
        return fi_mr_reg(app.domain, memory.data(), memory.size(), kAccess, 0, 0, flags, &mr,
                         nullptr);
    }
    ~With() { RVT_EQ(mr != nullptr ? fi_close(&mr->fid) : 0, 0); }

    Endpoints app;
    std::vector<char> memory = std::vector<char>(4096);
    fid_mr* mr = nullptr;
};

}  // namespace

Test(nic_region, that_is_pinned_is_registered_anew_when_its_pages_have_changed) {
    World on;
    With with;
    RVT_EQ(with.reg(0), 0);
    const iovec part{with.memory.data() + 100, 100};
    RVT_EQ(fi_mr_refresh(with.mr, &part, 1, 0), 0);
    RVT_EQ(on.mock.changes.size(), 1);
    RVT_EQ(on.mock.changes[0].flags, IBV_REREG_MR_CHANGE_TRANSLATION);
    RVT_EQ(on.mock.changes[0].addr, reinterpret_cast<std::uintptr_t>(with.memory.data()));
    RVT_EQ(on.mock.changes[0].length, with.memory.size());
    RVT_EQ(fi_mr_key(with.mr) % 1000, 5);
}
