// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The headers of the standard library that most files include, and that take the compiler longest.
// They are read once, and the outcome is included first in each file (configure --disable-pch: it
// is not). Files name what they use all the same; clang-tidy is not given this one.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>
