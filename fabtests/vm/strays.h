// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Numbered datagrams, to the peer and to a group, over a network that loses some, brings others
// twice and lets some overtake others. The passive end makes sure that what arrives is whole and
// where its completion says, and that every receive completes once. Run by traffic::run() for both
// ends.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ends.h"
#include "traffic.h"

namespace strays {

/// The memory that an end needs.
std::vector<std::byte> first_memory(bool is_active);

/// As traffic::run().
int run(traffic::End& end, std::span<std::byte> memory, const traffic::Options& options);

}  // namespace strays
