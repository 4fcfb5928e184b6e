// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// For programs that start for each test or case. In each process that asks libfabric for anything,
// its provider for verbs searches all symbols of the kernel for what copies from GPUs, which takes
// longer than most tests do. None of them uses that with that provider: the list is not there.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <dlfcn.h>

extern "C" [[gnu::visibility("default")]] FILE* fopen(const char* path, const char* mode) {
    if (strcmp(path, "/proc/kallsyms") == 0) {
        errno = ENOENT;
        return nullptr;
    }
    static const auto kNext = reinterpret_cast<decltype(&fopen)>(dlsym(RTLD_NEXT, "fopen"));
    return kNext(path, mode);
}
