// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory of the stand-ins for devices, as their libraries see it (standin.h).
//
// An allocation is a memory file, mapped twice: where the application knows it, without access, and
// where copies go. Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <sys/types.h>

#include "common/standin.h"

namespace fab::standin {

inline constexpr std::size_t kPage = 4096;

struct Memory {
    char* copies = nullptr;  // where they go
    std::size_t bytes = 0;
    int fd = -1;
    bool is_managed = false;
    bool is_host = false;    // the library's, of the host
    bool is_opened = false;  // another process's
    bool is_sync = false;    // the application's copies are made at once
};

/// By what another process opens an allocation.
struct Handle {
    pid_t process = 0;
    int fd = -1;
    std::size_t bytes = 0;
};

/// One of the application's that is still to be made, with its bytes.
struct Late {
    char* to;
    std::vector<char> bytes;
};

struct World {
    std::mutex lock;
    How how = How::kAbsent;
    Library library = Library::kCuda;
    bool is_used = false;
    std::size_t export_page = kPage;
    std::map<std::uintptr_t, Memory> memories;
    std::map<std::uintptr_t, std::size_t> pinned;  // of the host
    bool pins_nothing = false;
    bool makes_nothing_sync = false;
    std::vector<Late> late;
    std::atomic<int> copies_left{-1};
    bool is_next_to_fail = false;  // told by the thread that copies
    std::atomic<unsigned long long> copied{0};
    std::atomic<unsigned long long> between{0};
};
World& world();

struct Found {
    std::uintptr_t begin;
    Memory memory;
};
/// The allocation that has this byte.
std::optional<Found> find(std::uintptr_t address);

/// Where a range is copied to or from; nullptr when it is not all of one allocation.
char* open_range(std::uintptr_t address, std::size_t bytes);
/// Has the application's copies made from now on when it makes them. Returns: false when there is
/// no such memory, or refuse_sync() was called.
bool make_sync(std::uintptr_t address);
/// Makes what the application has copied late.
void make_late_copies();
/// Counts a copy. Returns: false when it has to fail.
bool begin_copy(std::size_t bytes);

/// Between any two addresses, of the device or of the host, as libraries copy that are not told
/// which.
enum class Copied { kYes, kNo, kNoSuchRange };
Copied copy_any(void* to, const void* from, std::size_t bytes);

/// A descriptor of the caller's, of the allocation's file; -1: it has none.
int share_file(const Memory& memory);
/// Returns: nothing for what other processes cannot open, as with the libraries: managed memory but
/// with kOpenable, and what is another process's itself.
std::optional<Handle> share(const Memory& memory);
/// Returns: 0 when this process cannot, as the one that the memory is of.
std::uintptr_t open_shared(const Handle& handle);
/// Returns: whether there was one, beginning there.
bool release_at(std::uintptr_t address);

}  // namespace fab::standin
