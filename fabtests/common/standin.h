// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Devices for tests where there are none: the libraries of CUDA, ROCr and Level Zero, as far as
// providers use them, over one kind of memory (standin_memory.h). A program that links
// standin.cc and the three beside it finds them at dlopen() in place of real ones, if it is told
// to, and has to export the symbols that fabtests/Makefile.inc names for it.
//
// Nobody can touch the memory, but for what is managed: that can be touched, but for while it is
// closed: a test closes it when it calls who must not. A stray access is a SIGSEGV, and EFAULT in a
// system call. Memory is only copied by whole ranges of an allocation, and that of CUDA by threads
// whose current context is the one that it is of.
#pragma once

#include <cstddef>

namespace fab::standin {

enum class How {
    kAbsent,        // dlopen() finds no library at all
    kBroken,        // it does not start: there is no device
    kWithoutShare,  // no memory has a dma-buf
    kUnmappable,    // it has one that the CPU cannot map; where functional/device_standin.cc is
    kMappable,      // and one that it can; there, too
    kOpenable,      // as kUnmappable; and what the application can touch, other processes can open,
                    // which no driver has
};
enum class Library { kCuda, kRocr, kZe };

/// From now on; the other libraries are absent. What a provider has loaded and initialised stays.
void use(How how, Library library = Library::kCuda);

enum class Where {
    kDevice,
    kManaged,  // the device's, and the application can touch it
    kHost,     // the host's, which the library has allocated
};
/// Memory as an application allocates it. Ends the program when there is none left.
void* allocate(std::size_t bytes, Where where = Where::kDevice);
void release(void* memory);
/// The application's own copies.
void write(void* to, const void* from, std::size_t bytes);
void read(void* to, const void* from, std::size_t bytes);
/// One that returns before it is made, as those of CUDA from host memory that is not pinned: it is
/// made when the stream of such copies is waited for, unless the library was told that all of them
/// are to be made at once.
void write_late(void* to, const void* from, std::size_t bytes);

/// Has memory of CUDA begin with a page of so many bytes, and be exported by whole ones: as on a
/// host whose pages are of 16 or 64 KiB.
void use_pages(std::size_t bytes);

/// Has copies fail from the nth on, counted from 0; -1: none.
void fail_copies(int after);
/// Has no more host memory pinned.
void refuse_pins();
/// Has no copies made at once that are late (write_late), as with CUDA's virtual memory management.
void refuse_sync();

/// What has been done in this process.
struct Counts {
    unsigned long long copied;   // bytes, in either direction
    unsigned long long between;  // of them those from one allocation to another
    unsigned long long opened;   // allocations of other processes that are open in this one
    unsigned long long pinned;   // ranges of host memory
};
Counts counts();

}  // namespace fab::standin
