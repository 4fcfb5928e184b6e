// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Data-path tables of endpoints that cannot transfer: not enabled yet, or opened without the
// capability.
#pragma once

#include "ofi/compat.h"

namespace rvt::ofi {

struct EpTables {
    fi_ops_msg msg;
    fi_ops_tagged tagged;
    fi_ops_rma rma;
    fi_ops_atomic atomic;
};

extern EpTables not_enabled_tables;  // -FI_EOPBADSTATE
extern EpTables absent_tables;       // -FI_ENOSYS
extern fi_ops_collective absent_collective_ops;

}  // namespace rvt::ofi
