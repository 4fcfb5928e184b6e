// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Takes memory of a stand-in for a device away from everybody (standin.h) for while a call of a
// provider lasts: one that touches it, instead of having it copied, dies of a SIGSEGV. For programs
// of which one thread at a time calls the provider and touches such memory.
//
// Calls that inject are left out: they name no region, so that their buffer is the host's to read.
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

namespace fab {

/// From now on, where the stand-in is in use; else these do nothing.
void guard_calls_of(fid_ep* ep);
void guard_calls_of(fid_cq* cq);
void guard_calls_of(fid_cntr* cntr);

}  // namespace fab
