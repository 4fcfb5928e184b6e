// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the event queues of an RDM endpoint and of its domain hear of the interface.
#include <cstdint>
#include <cstdlib>

#include "common/own_network.h"
#include "ofi/pair.h"

using namespace rvt::test;

namespace {

Owned<fid_ep> endpoint(const Opened& open) {
    return opened<fid_ep>(
        [&](fid_ep** ep) { return fi_endpoint(open.domain.get(), open.info.get(), ep, nullptr); });
}

/// The next event of the queue is an error of the object.
void expect_error(fid_eq& eq, const fid& object, int error) {
    std::uint32_t event = 0;
    fi_eq_entry entry{};
    RVT_EQ(fi_eq_sread(&eq, &event, &entry, sizeof entry, 10'000, 0), -FI_EAVAIL);
    fi_eq_err_entry failed{};
    RVT_EQ(fi_eq_readerr(&eq, &failed, 0), static_cast<ssize_t>(sizeof failed));
    RVT_EQ(failed.err, error);
    RVT_ASSERT(failed.fid == &object);
}

}  // namespace

Test(ep_rdm_events, queues_are_told_of_its_interface_though_nothing_is_sent, .timeout = 30) {
    cr_assert(enter_own_network(), "this user cannot have a network of its own");
    Opened open;
    const auto waits = with<fi_eq_attr>([](auto& attr) { attr.wait_obj = FI_WAIT_UNSPEC; });
    auto domain_eq = open.eq(waits);
    const auto eq = open.eq(waits);
    RVT_OK(fi_domain_bind(open.domain.get(), &domain_eq->fid, 0));
    {
        const auto cq = open.cq();
        const auto av = open.av();
        const auto ep = endpoint(open);
        RVT_OK(fi_ep_bind(ep.get(), &eq->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &av->fid, 0));
        RVT_OK(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
        RVT_OK(fi_enable(ep.get()));
        const auto expect = [&](int error) {
            expect_error(*eq, ep->fid, error);
            expect_error(*domain_eq, open.domain->fid, error);
        };
        RVT_EQ(std::system("ip link set wire0 mtu 700"), 0);
        expect(FI_EMSGSIZE);
        RVT_EQ(std::system("ip link delete wire0"), 0);
        expect(FI_ENETDOWN);
    }
    open.domain.reset();  // before the queue that it uses
}
