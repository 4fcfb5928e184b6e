// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Log lines from any layer, through libfabric's own log (FI_LOG_LEVEL, FI_LOG_SUBSYS) in the
// provider. A line is written once, by the function that decides; lower case, values after a blank:
//     cannot open cq: 70000 entries asked, at most 65536; lower fi_cq_attr.size
#pragma once

namespace rvt::util {

/// Levels and areas have the values of libfabric's fi_log_level and fi_log_subsys, which
/// ofi/log.cc asserts.
enum class LogLevel : int { kWarn, kTrace, kInfo, kDebug };
enum class LogArea : int { kCore, kFabric, kDomain, kEpCtrl, kEpData, kAv, kCq, kEq, kMr, kCntr };

/// Who takes the lines. Threads: both functions are called from any.
struct LogSink {
    bool (*is_enabled)(LogLevel level, LogArea area) noexcept;
    void (*write)(LogLevel level, LogArea area, const char* function, int line,
                  const char* text) noexcept;
};

/// `sink` stays for good. Before the first call nothing is written.
void set_log_sink(const LogSink* sink) noexcept;

bool is_log_enabled(LogLevel level, LogArea area) noexcept;

/// Writes one line; errno is the same afterwards.
[[gnu::cold, gnu::format(printf, 5, 6)]] void log(LogLevel level, LogArea area,
                                                  const char* function, int line,
                                                  const char* format, ...) noexcept;

}  // namespace rvt::util

// An expression, so that a line of log adds no nesting to the function that writes it.
#define RVT_LOG(level, area, ...)                                                                 \
    (::rvt::util::is_log_enabled((level), (area))                                                 \
         ? ::rvt::util::log((level), (area), __builtin_FUNCTION(), __builtin_LINE(), __VA_ARGS__) \
         : static_cast<void>(0))

/// What a user must know: a refusal and its reason, a fallback that costs.
#define RVT_WARN(area, ...) \
    RVT_LOG(::rvt::util::LogLevel::kWarn, ::rvt::util::LogArea::area, __VA_ARGS__)
/// What was decided at open or connect.
#define RVT_INFO(area, ...) \
    RVT_LOG(::rvt::util::LogLevel::kInfo, ::rvt::util::LogArea::area, __VA_ARGS__)
/// Single events, for people who work on the provider.
#define RVT_DEBUG(area, ...) \
    RVT_LOG(::rvt::util::LogLevel::kDebug, ::rvt::util::LogArea::area, __VA_ARGS__)
