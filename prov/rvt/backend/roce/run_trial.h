// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Whether runs of packets that leave in one call (UDP_SEGMENT), and may be handed over in one
// (UDP_GRO), arrive as they were sent. That a socket takes the options does not say so: sandboxes
// and older kernels take them, and then refuse, drop or change the runs.
#pragma once

namespace rvt::roce {

/// Whether the kernel may cut and join packets of a socket of this family. One run of them that
/// arrives as it was sent over the loopback interface says so for the rest of the process; three
/// that do not, one after the other, say that it may not. Where that interface passes nothing on,
/// they may for now.
///
/// @param family  AF_INET or AF_INET6.
/// Threads:  any.
/// Cost:     0.1 ms once for each family; up to 15 ms where something does not arrive.
bool may_join_packets(int family) noexcept;

}  // namespace rvt::roce
