// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The stand-in for the HSA runtime of AMD's GPUs (standin.h): the functions that copy memory and
// tell about it.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/standin_memory.h"

namespace {

using fab::standin::Copied;
using fab::standin::find;
using fab::standin::open_range;
using fab::standin::world;

constexpr int kSuccess = 0;
constexpr int kError = 0x1000;
constexpr int kInvalidArgument = 0x1001;
// The handles of the agents.
constexpr std::uint64_t kGpu = 7;
constexpr std::uint64_t kCpu = 8;

struct Agent {
    std::uint64_t handle;
};

/// hsa_amd_pointer_info_t, as far as ROCm 4 had it.
struct PointerInfo {
    std::uint32_t size;
    int type;
    void* agent_base;
    void* host_base;
    std::size_t bytes;
    void* user_data;
    Agent owner;
};

/// A hsa_amd_ipc_memory_t, and what it says here.
struct Handle {
    fab::standin::Handle of;
    char unused[16];
};
static_assert(sizeof(Handle) == 32);

}  // namespace

#pragma GCC visibility push(default)  // for the libraries that the program loads
extern "C" {

// NOLINTBEGIN(readability-identifier-naming): the runtime's own names
int hsa_init() {
    return world().how == fab::standin::How::kBroken ? kError : kSuccess;
}

int hsa_status_string(int /*status*/, const char** text) {
    *text = "the stand-in says no";
    return kSuccess;
}

int hsa_agent_get_info(Agent agent, int attribute, void* value) {
    constexpr int kDevice = 17;
    const int is_gpu = agent.handle == kGpu ? 1 : 0;
    const bool is_known = agent.handle == kGpu || agent.handle == kCpu;
    if (!is_known || attribute != kDevice) return kInvalidArgument;
    std::memcpy(value, &is_gpu, sizeof is_gpu);
    return kSuccess;
}

/// As the runtime, it answers for any address.
int hsa_amd_pointer_info(const void* address, PointerInfo* info,
                         void* (* /*allocate*/)(std::size_t), std::uint32_t* /*agents*/,
                         Agent** /*accessible*/) {
    constexpr int kUnknown = 0;
    constexpr int kOfRuntime = 1;
    constexpr int kOpened = 4;
    const auto found = find(reinterpret_cast<std::uintptr_t>(address));
    PointerInfo known{};
    known.size = info->size;
    known.type = kUnknown;
    if (found) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        known.agent_base = reinterpret_cast<void*>(found->begin);
        known.type = found->memory.is_opened ? kOpened : kOfRuntime;
        known.bytes = found->memory.bytes;
        known.owner = {found->memory.is_host ? kCpu : kGpu};
    }
    std::memcpy(info, &known, std::min<std::size_t>(info->size, sizeof known));
    return kSuccess;
}

int hsa_memory_copy(void* to, const void* from, std::size_t bytes) {
    switch (fab::standin::copy_any(to, from, bytes)) {
        case Copied::kYes: return kSuccess;
        case Copied::kNo: return kError;
        default: return kInvalidArgument;
    }
}

int hsa_amd_portable_export_dmabuf(const void* address, std::size_t bytes, int* fd,
                                   std::uint64_t* offset) {
    const auto found = find(reinterpret_cast<std::uintptr_t>(address));
    if (!found || open_range(reinterpret_cast<std::uintptr_t>(address), bytes) == nullptr) {
        return kInvalidArgument;
    }
    *fd = fab::standin::share_file(found->memory);
    *offset = reinterpret_cast<std::uintptr_t>(address) - found->begin;
    return *fd >= 0 ? kSuccess : kError;
}

/// As the runtime: of a whole allocation.
int hsa_amd_ipc_memory_create(void* address, std::size_t bytes, Handle* handle) {
    const auto found = find(reinterpret_cast<std::uintptr_t>(address));
    const auto shared = found ? fab::standin::share(found->memory) : std::nullopt;
    const bool is_whole = shared && reinterpret_cast<std::uintptr_t>(address) == found->begin &&
                          bytes == found->memory.bytes;
    if (!is_whole) return kInvalidArgument;
    *handle = {.of = *shared, .unused = {}};
    return kSuccess;
}

int hsa_amd_ipc_memory_attach(const Handle* handle, std::size_t bytes, std::uint32_t agents,
                              const Agent* /*mapping*/, void** address) {
    if (bytes != handle->of.bytes || agents != 0) return kInvalidArgument;
    const std::uintptr_t opened = fab::standin::open_shared(handle->of);
    *address = reinterpret_cast<void*>(opened);  // NOLINT(performance-no-int-to-ptr)
    return opened != 0 ? kSuccess : kError;
}

int hsa_amd_ipc_memory_detach(void* address) {
    return fab::standin::release_at(reinterpret_cast<std::uintptr_t>(address)) ? kSuccess
                                                                               : kInvalidArgument;
}
// NOLINTEND(readability-identifier-naming)

}  // extern "C"
#pragma GCC visibility pop
