// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Names for clang's thread-safety analysis; empty under g++. See CONTRIBUTING.md, "Locks".
#pragma once

#if defined(__clang__)
#define RVT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define RVT_THREAD_ATTRIBUTE(x)
#endif

#define RVT_CAPABILITY(name) RVT_THREAD_ATTRIBUTE(capability(name))
#define RVT_SCOPED_CAPABILITY RVT_THREAD_ATTRIBUTE(scoped_lockable)
#define RVT_GUARDED_BY(lock) RVT_THREAD_ATTRIBUTE(guarded_by(lock))
#define RVT_REQUIRES(...) RVT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define RVT_ACQUIRE(...) RVT_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RVT_TRY_ACQUIRE(...) RVT_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define RVT_RELEASE(...) RVT_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define RVT_NO_ANALYSIS RVT_THREAD_ATTRIBUTE(no_thread_safety_analysis)
