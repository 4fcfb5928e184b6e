// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ports of InfiniBand, under interfaces of IP over InfiniBand: what leads to them, and what pairs
// are told of it.
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "backend/verbs/mock_nic.h"
#include "backend/verbs/nic.h"
#include "backend/verbs/opened_nic.h"
#include "common/check.h"
#include "core/qp.h"
#include "util/log.h"

namespace rvt::verbs {
namespace {

constexpr std::array<std::uint8_t, 16> kIbGid = {0xfe, 0x80, 0,    0, 0, 0, 0, 0,
                                                 0,    2,    0xc9, 3, 0, 4, 5, 6};

NicAddress ib_address() {
    NicAddress address = mock_address();
    address.gid = kIbGid;
    address.pkey = 0x8005;
    return address;
}

/// A NIC with a port of InfiniBand, as it is with most.
struct IbNic : MockNic {
    IbNic() {
        port.link_layer = IBV_LINK_LAYER_INFINIBAND;
        port.state = IBV_PORT_ACTIVE;
        port.lid = 12;
        gids = {entry(1), entry(6)};
        pkeys = {0x7fff, 0x0005, 0x8005, 0xffff};
    }
    static ibv_gid_entry entry(std::uint8_t last_byte) {
        ibv_gid_entry made{};
        std::memcpy(made.gid.raw, kIbGid.data(), kIbGid.size());
        made.gid.raw[15] = last_byte;
        made.gid_type = IBV_GID_TYPE_IB;
        return made;
    }
};

struct OpenIb {
    explicit OpenIb(const NicAddress& address = ib_address())
        : nic(Nic::open(registry, address).take()) {}
    [[nodiscard]] Result<IbPort> port() const { return nic->device().ops().ib_port(nic->device()); }

    core::Registry registry;
    std::shared_ptr<Nic> nic;
};

std::string ib_log;
int ib_warnings = 0;

constexpr util::LogSink kIbSink{
    .is_enabled =
        [](util::LogLevel level, util::LogArea /*area*/) noexcept {
            return level == util::LogLevel::kWarn || level == util::LogLevel::kInfo;
        },
    .write =
        [](util::LogLevel level, util::LogArea /*area*/, const char* /*function*/, int /*line*/,
           const char* text) noexcept {
            ib_warnings += level == util::LogLevel::kWarn ? 1 : 0;
            ib_log += text;
            ib_log += '\n';
        },
};

bool has_said(const char* what) {
    return ib_log.find(what) != std::string::npos;
}

/// One line of warning says why RDM endpoints do not use it, and packets do.
void is_warned_of(const char* why) {
    ib_log.clear();
    ib_warnings = 0;
    util::set_log_sink(&kIbSink);
    const OpenIb open;
    RVT_EQ(ib_warnings, 1);
    cr_assert(has_said("port 2 of InfiniBand, P_Key 0x8005, for 10.1.2.3") && has_said(why) &&
                  has_said("packets by UDP will do"),
              "%s", ib_log.c_str());
}

}  // namespace

Test(nic_ib, what_leads_to_a_port_is_read_from_its_tables) {
    IbNic mock;
    mock.port.active_mtu = IBV_MTU_2048;
    const OpenIb open;
    RVT_ASSERT(open.nic->limits().has_ib_path && !open.nic->limits().has_rocev2);
    RVT_ASSERT(!open.nic->limits().has_ud);
    const auto port = open.port();
    RVT_OK(port.status());
    RVT_ASSERT(port.value().gid == kIbGid);
    RVT_EQ(port.value().lid, 12);
    RVT_EQ(port.value().pkey, 0x8005);
    RVT_EQ(port.value().pkey_index, 2);  // of a full member, which the entry before is not
    RVT_EQ(port.value().mtu_bytes, 2048);
    RVT_ASSERT(!port.value().needs_grh);
    RVT_EQ(open.nic->gid_index(), 1);
}

Test(nic_ib, a_limited_member_of_the_partition_says_so) {
    IbNic mock;
    mock.pkeys = {0xffff, 0x0005};
    const OpenIb open;
    RVT_EQ(open.port().value().pkey, 0x0005);
    RVT_EQ(open.port().value().pkey_index, 1);
}

Test(nic_ib, what_a_subnet_manager_changes_is_seen_at_the_next_look) {
    IbNic mock;
    const OpenIb open;
    mock.port.lid = 99;
    mock.pkeys = {0x8005};
    mock.port.active_mtu = IBV_MTU_1024;
    RVT_EQ(open.port().value().lid, 99);
    RVT_EQ(open.port().value().pkey_index, 0);
    RVT_EQ(open.port().value().mtu_bytes, 1024);
    mock.pkeys = {0xffff};
    RVT_EQ(open.port().status(), EADDRNOTAVAIL);
    mock.pkeys = {0x8005};
    mock.gids[1].gid.raw[0] = 0x20;  // its subnet has another prefix
    RVT_EQ(open.port().status(), EADDRNOTAVAIL);
    mock.gids[1] = IbNic::entry(6);
    for (const std::uint16_t none : {0, 0xc000}) {  // the second is of a group
        mock.port.lid = none;
        RVT_EQ(open.port().status(), ENETDOWN);
    }
    mock.port.lid = 99;
    for (const ibv_port_state other : {IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED}) {
        mock.port.state = other;
        RVT_EQ(open.port().status(), ENETDOWN);
    }
    mock.failing = "query_port";
    RVT_EQ(open.port().status(), EMFILE);
}

Test(nic_ib, a_port_that_asks_for_gids_in_packets_says_so) {
    IbNic mock;
    mock.port.flags = IBV_QPF_GRH_REQUIRED;
    const OpenIb open;
    RVT_ASSERT(open.port().value().needs_grh);
}

Test(nic_ib, one_of_roce_is_reached_by_its_address) {
    MockNic mock;
    mock.port.link_layer = IBV_LINK_LAYER_ETHERNET;
    mock.port.lid = 12;
    const OpenIb open(mock_address());
    RVT_OK(open.port().status());
    RVT_EQ(open.port().value().lid, 0);
    RVT_ASSERT(!open.nic->limits().has_ib_path);
}

Test(nic_ib, what_pairs_of_a_port_use_is_logged) {
    IbNic mock;
    ib_log.clear();
    ib_warnings = 0;
    util::set_log_sink(&kIbSink);
    const OpenIb open;
    cr_assert(has_said("port 2 of InfiniBand, LID 12, GID index 1, P_Key index 2 (0x8005), for "
                       "10.1.2.3"),
              "%s", ib_log.c_str());
    RVT_EQ(ib_warnings, 0);
}

Test(nic_ib, a_port_that_flows_cannot_use_says_once_why) {
    IbNic mock;
    mock.port.lid = 0;
    is_warned_of("it is not active, or has no LID of 16 bits");
    mock.pkeys = {0xffff};
    is_warned_of("its table lacks the P_Key of that interface");
    mock.gids.pop_back();
    is_warned_of("its table lacks the GID of that interface");
}

Test(nic_ib, without_its_gid_or_p_key_there_is_no_path) {
    IbNic mock;
    mock.pkeys = {0xffff};
    RVT_ASSERT(!OpenIb().nic->limits().has_ib_path);
    mock.pkeys = {0x8000, 0};
    NicAddress of_none = ib_address();
    of_none.pkey = 0;  // as where rdma_cm does not say
    RVT_ASSERT(!OpenIb(of_none).nic->limits().has_ib_path);
    mock.pkeys = {0x8005};
    mock.failing = "query_gid";
    RVT_ASSERT(!OpenIb().nic->limits().has_ib_path);
    mock.failing = {};
    RVT_ASSERT(OpenIb().nic->limits().has_ib_path);
}

// A LID may come while an endpoint is there.
Test(nic_ib, without_a_lid_there_is_a_path_to_be) {
    IbNic mock;
    mock.port.lid = 0;
    const OpenIb open;
    RVT_ASSERT(open.nic->limits().has_ib_path);
    RVT_EQ(open.port().status(), ENETDOWN);
    mock.port.lid = 12;
    RVT_OK(open.port().status());
}

Test(nic_ib, a_pair_is_led_by_the_lid_and_by_gids_only_where_they_are_needed) {
    IbNic mock;
    const Opened opened(mock);
    core::Owned<core::Qp> qp;
    RVT_OK(core::keep(qp, core::create_qp(*opened.pd, opened.pair())));
    RVT_OK(qp->modify({.state = QpState::kInit, .pkey_index = 2},
                      QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess));
    RVT_EQ(mock.modified.back().pkey_index, 2);
    constexpr QpMask kRtr = QpMask::kState | QpMask::kAv | QpMask::kPathMtu | QpMask::kDestQpn |
                            QpMask::kRqPsn | QpMask::kMaxDestRdAtomic | QpMask::kMinRnrTimer;
    const AhAttr with_both{.dest = {.gid = kIbGid}, .dlid = 13, .needs_grh = true};
    for (const AhAttr& way : {AhAttr{.dest = {.gid = kIbGid}}, with_both,
                              AhAttr{.dest = {.gid = kIbGid}, .dlid = 13}}) {
        RVT_OK(qp->modify({.state = QpState::kReset}, QpMask::kState));
        RVT_OK(qp->modify({.state = QpState::kInit},
                          QpMask::kState | QpMask::kPkeyIndex | QpMask::kPort | QpMask::kAccess));
        RVT_OK(qp->modify({.state = QpState::kRtr, .ah = way}, kRtr));
        const ibv_ah_attr& told = mock.modified.back().ah_attr;
        RVT_EQ(told.dlid, way.dlid);
        RVT_EQ(told.is_global, way.dlid == 0 || way.needs_grh);
        RVT_EQ(told.sl, 0);
        RVT_ASSERT(std::memcmp(told.grh.dgid.raw, kIbGid.data(), kIbGid.size()) == 0);
    }
}

}  // namespace rvt::verbs
