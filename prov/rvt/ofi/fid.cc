// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Answers to calls that an object does not have.
#include "ofi/fid.h"

namespace rvt::ofi {

int no_bind(fid* /*self*/, fid* /*other*/, std::uint64_t /*flags*/) noexcept {
    return -FI_ENOSYS;
}

int no_control(fid* /*self*/, int /*command*/, void* /*argument*/) noexcept {
    return -FI_ENOSYS;
}

int no_ops_open(fid* /*self*/, const char* /*name*/, std::uint64_t /*flags*/, void** /*ops*/,
                void* /*context*/) noexcept {
    return -FI_ENOSYS;
}

int no_tostr(const fid* /*self*/, char* /*buffer*/, std::size_t /*bytes*/) noexcept {
    return -FI_ENOSYS;
}

int no_ops_set(fid* /*self*/, const char* /*name*/, std::uint64_t /*flags*/, void* /*ops*/,
               void* /*context*/) noexcept {
    return -FI_ENOSYS;
}

}  // namespace rvt::ofi
