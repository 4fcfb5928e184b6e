// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Makes lines and hands them to the sink.
#include "util/log.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace rvt::util {
namespace {

constexpr std::size_t kMaxLineBytes = 1024;

std::atomic<const LogSink*> log_sink{nullptr};

}  // namespace

void set_log_sink(const LogSink* sink) noexcept {
    // release: pairs with the acquire in is_log_enabled() and log().
    log_sink.store(sink, std::memory_order_release);
}

bool is_log_enabled(LogLevel level, LogArea area) noexcept {
    // acquire: pairs with the release in set_log_sink().
    const LogSink* sink = log_sink.load(std::memory_order_acquire);
    return sink != nullptr && sink->is_enabled(level, area);
}

void log(LogLevel level, LogArea area, const char* function, int line, const char* format,
         ...) noexcept {
    const int saved_errno = errno;
    std::array<char, kMaxLineBytes> text{};
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text.data(), text.size(), format, values);
    va_end(values);
    // acquire: pairs with the release in set_log_sink().
    log_sink.load(std::memory_order_acquire)->write(level, area, function, line, text.data());
    errno = saved_errno;
}

}  // namespace rvt::util
