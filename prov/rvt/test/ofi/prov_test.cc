// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What libfabric reads from the provider structure when it loads the library.
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>
#include "common/check.h"

extern "C" fi_provider* fi_prov_ini();

Test(prov, is_named_rvt) {
    cr_assert(eq(str, const_cast<char*>(fi_prov_ini()->name), const_cast<char*>("rvt")));
}

Test(prov, speaks_the_version_of_the_library_that_loads_it) {
    RVT_EQ(fi_prov_ini()->fi_version, fi_version());
}
