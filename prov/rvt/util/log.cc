// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Hands log lines to libfabric.
#include "util/log.h"

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace rvt::util {
namespace {

static_assert(static_cast<int>(LogLevel::kWarn) == FI_LOG_WARN &&
              static_cast<int>(LogLevel::kDebug) == FI_LOG_DEBUG);
static_assert(static_cast<int>(LogArea::kCore) == FI_LOG_CORE &&
              static_cast<int>(LogArea::kCntr) == FI_LOG_CNTR);

constexpr std::size_t kMaxLineBytes = 1024;

std::atomic<const fi_provider*> log_provider{nullptr};

}  // namespace

void set_log_provider(const fi_provider* provider) noexcept {
    // release: pairs with the acquire in is_log_enabled() and log().
    log_provider.store(provider, std::memory_order_release);
}

bool is_log_enabled(LogLevel level, LogArea area) noexcept {
    // acquire: pairs with the release in set_log_provider().
    const fi_provider* provider = log_provider.load(std::memory_order_acquire);
    return provider != nullptr && fi_log_enabled(provider, static_cast<fi_log_level>(level),
                                                 static_cast<fi_log_subsys>(area)) != 0;
}

void log(LogLevel level, LogArea area, const char* function, int line, const char* format,
         ...) noexcept {
    const int saved_errno = errno;
    std::array<char, kMaxLineBytes> text{};
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text.data(), text.size(), format, values);
    va_end(values);
    // acquire: pairs with the release in set_log_provider().
    fi_log(log_provider.load(std::memory_order_acquire), static_cast<fi_log_level>(level),
           static_cast<fi_log_subsys>(area), function, line, "%s\n", text.data());
    errno = saved_errno;
}

}  // namespace rvt::util
