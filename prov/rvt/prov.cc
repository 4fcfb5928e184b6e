// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one symbol that libfabric looks up in the provider: who rvt is and where its entries are.
// fi_provider(7).
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include "dgram_host.h"
#include "msg_station.h"
#include "nic_station.h"
#include "ofi/fabric.h"
#include "ofi/info.h"
#include "ofi/log.h"
#include "ofi/params.h"
#include "rdm_ops.h"
#include "roce_tuning.h"

namespace rvt {
namespace {

void prov_cleanup() noexcept {}

fi_provider provider = {
    .version = FI_VERSION(RVT_VERSION_MAJOR, RVT_VERSION_MINOR),
    .fi_version = FI_VERSION(1, 3),
    .context = {},
    .name = ofi::kProvName,
    .getinfo = ofi::getinfo,
    .fabric = ofi::fabric_open,
    .cleanup = prov_cleanup,
};

}  // namespace
}  // namespace rvt

/// Called once, when libfabric has loaded the library.
///
/// Returns:   The provider. It speaks the version of the libfabric that loaded it, so that no
///            application's request is passed over because of the headers rvt was built with.
extern "C" FI_EXT_INI {
    rvt::provider.fi_version = fi_version();
    rvt::ofi::log_to_libfabric(&rvt::provider);
    rvt::ofi::define_params(&rvt::provider);
    rvt::packet_faults();  // warns as of other parameters
    rvt::use_rdm_ops();
    rvt::use_dgram_hosts();
    rvt::use_msg_stations();
    rvt::use_nics();
    return &rvt::provider;
}
