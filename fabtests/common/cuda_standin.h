// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A libcuda.so.1 for tests where there is no GPU: the functions of the driver that copy memory and
// tell about it. A program that links it finds it at dlopen() in place of a real one, if it is told
// to, and has to export the symbols `dlopen` and `cu*`.
//
// Memory of cuMemAlloc() nobody can touch. That of cuMemAllocManaged() can be touched, but for
// while it is closed: a test closes it when it calls who must not. A stray access is a SIGSEGV, and
// EFAULT in a system call. As on the real thing, memory can be copied by threads whose current
// context is the one that it is of, and only by whole ranges of an allocation.
#pragma once

namespace fab {

enum class CudaStandIn {
    kAbsent,        // dlopen() finds no library at all
    kBroken,        // cuInit() fails: there is no device
    kWithoutShare,  // no memory has a dma-buf
    kUnmappable,    // it has one that the CPU cannot map; where functional/device_standin.cc is
    kMappable,      // and one that it can; there, too
    kOpenable,      // as kUnmappable; and what the application can touch, other processes can open,
                    // which no driver has
};

/// From now on. What a provider has loaded and initialised stays.
void use_cuda_standin(CudaStandIn kind);

/// Has copies fail from the nth on, counted from 0; -1: none.
void fail_cuda_copies(int after);
/// Has no more host memory pinned.
void refuse_cuda_pins();
/// Bytes that have been copied in either direction.
unsigned long long cuda_bytes_copied();

struct CudaCounts {
    unsigned long long copied;   // bytes, in either direction
    unsigned long long between;  // of them those from one allocation to another
    unsigned long long opened;   // allocations of other processes that are open in this one
    unsigned long long pinned;   // ranges of host memory
};
CudaCounts cuda_counts();

}  // namespace fab
