// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Loading of rdma-core.
#include "backend/verbs/library.h"

#include <dlfcn.h>

#include "util/log.h"

namespace rvt::verbs {
namespace {

const Library* replacement = nullptr;

template <class Function>
bool find(void* handle, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) {
        RVT_INFO(kFabric, "no NICs: rdma-core lacks %s", name);
    }
    return function != nullptr;
}

void* open(const char* name) noexcept {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): of glibc it is, for each thread its own
        RVT_INFO(kFabric, "no NICs: %s", dlerror());
    }
    return handle;
}

/// The libraries stay: threads of theirs may outlive us.
const Library* load() noexcept {
    static Library loaded;
    void* const ibverbs = open("libibverbs.so.1");
    void* const rdmacm = ibverbs != nullptr ? open("librdmacm.so.1") : nullptr;
    if (rdmacm == nullptr) {
        return nullptr;
    }
#define RVT_FIND_IBVERBS(name) &&find(ibverbs, #name, loaded.name)
#define RVT_FIND_RDMACM(name) &&find(rdmacm, #name, loaded.name)
    const bool is_whole =
        true RVT_IBVERBS_FUNCTIONS(RVT_FIND_IBVERBS) RVT_RDMACM_FUNCTIONS(RVT_FIND_RDMACM);
#undef RVT_FIND_IBVERBS
#undef RVT_FIND_RDMACM
    return is_whole ? &loaded : nullptr;
}

}  // namespace

const Library* library() noexcept {
    static const Library* const kLoaded = load();
    return replacement != nullptr ? replacement : kLoaded;
}

const Library& lib() noexcept {
    return *library();
}

void use_library(const Library* functions) noexcept {
    replacement = functions;
}

}  // namespace rvt::verbs
