// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A network that a test has to itself, whatever the machine's look like.
#pragma once

namespace rvt::test {

/// Moves this thread, and those that it starts, which have no socket yet, into a network namespace
/// with the loopback addresses and one further interface, which has 192.0.2.1 and fd99::1; nothing
/// sent there leaves the machine. Where the kernel does not allow that to this user, the machine's
/// own networks stay. Returns: whether it has a network of its own now.
bool enter_own_network();

}  // namespace rvt::test
