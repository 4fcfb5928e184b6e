// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The only place that knows how our outcomes are called in libfabric.
#pragma once

#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "core/wc.h"
#include "ofi/compat.h"
#include "util/status.h"

namespace rvt::ofi {

/// The return value of a libfabric call: 0 or a negative FI_E*.
constexpr int to_fi(util::Status status) noexcept {
    if (status.is_ok()) [[likely]] {
        return 0;
    }
    // Errors of the system have the same number in both, but that libfabric has a name of its own
    // for ENOKEY, and none for EDQUOT.
    return status.error() == ENOKEY   ? -FI_ENOKEY
           : status.error() == EDQUOT ? -FI_ENOSPC
                                      : -status.error();
}

/// The err of a completion with this status: 0 or a positive FI_E*.
int to_fi_errno(core::WcStatus status) noexcept;

/// What to say about a prov_errno, which is a core::WcStatus.
const char* completion_text(int prov_errno) noexcept;

/// Puts a text into the caller's buffer as the strerror calls do, and returns it. The buffer may be
/// missing.
const char* copy_text(const char* text, char* buffer, std::size_t bytes) noexcept;

/// Runs the body of an entry point that may allocate. Nothing is thrown across the C interface.
template <class Body>
auto entry(Body&& body) noexcept -> decltype(body()) {
    try {
        return std::forward<Body>(body)();
    } catch (const std::bad_alloc&) {
        return -FI_ENOMEM;
    } catch (...) {
        return -FI_EOTHER;
    }
}

}  // namespace rvt::ofi
