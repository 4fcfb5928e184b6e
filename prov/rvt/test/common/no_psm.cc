// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Makes the start of a test that loads libfabric cheap. Debian's asks for the libraries of two
// kinds of NICs, PSM and PSM2, each of which sleeps for a tenth of a second to learn how fast the
// processor's clock is, whenever a program starts. This is a library by either name, in which
// nothing can be done: no such NIC is found. RVT_PSM_NAMES is a file that has RVT_NO_PSM(name) for
// each function that libfabric asks for.

#define RVT_EXPORT extern "C" [[gnu::visibility("default")]]

/// As of PSM: says what an error means.
RVT_EXPORT const char* psm_error_get_string(int /*error*/) {
    return "not initialized";
}

/// As of PSM2: the same.
RVT_EXPORT const char* psm2_error_get_string(int /*error*/) {
    return "not initialized";
}

/// As of PSM and PSM2, which have not been initialized.
#define RVT_NO_PSM(name)       \
    RVT_EXPORT int name(...) { \
        return 5;              \
    }
#include RVT_PSM_NAMES
