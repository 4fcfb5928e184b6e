// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Makes the start of a test of libfabric's objects cheap: Criterion starts a program for each test.
// What stands in here for the C library's is called from libraries that Debian's libfabric brings.
#include <ctime>

#include <unistd.h>

namespace {

constexpr useconds_t kLookUs = 100'000;  // how long libinfinipath looks
constexpr long kUsPerS = 1'000'000;
constexpr long kNsPerUs = 1'000;

bool has_started = false;  // written once, before the first thread

// The program's own are initialised after the libraries it needs.
[[gnu::constructor]] void start() {
    has_started = true;
}

}  // namespace

/// Before the program starts, libinfinipath looks twice how two clocks run, and wakes every 125 us.
/// Here it wakes when it has seen enough.
extern "C" [[gnu::visibility("default")]] int usleep(useconds_t us) {
    const long asked = has_started ? us : kLookUs;
    const timespec time{asked / kUsPerS, asked % kUsPerS * kNsPerUs};
    return nanosleep(&time, nullptr);
}
