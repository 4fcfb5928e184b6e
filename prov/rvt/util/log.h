// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Log lines, through libfabric's own log (FI_LOG_LEVEL, FI_LOG_SUBSYS), from any layer. A line is
// written once, by the function that decides; lower case, values after a blank:
//     cannot open cq: 70000 entries asked, at most 65536; lower fi_cq_attr.size
#pragma once

struct fi_provider;

namespace rvt::util {

/// Levels and areas have the values of libfabric's fi_log_level and fi_log_subsys, which log.cc
/// asserts.
enum class LogLevel : int { kWarn, kTrace, kInfo, kDebug };
enum class LogArea : int { kCore, kFabric, kDomain, kEpCtrl, kEpData, kAv, kCq, kEq, kMr, kCntr };

/// Whose lines these are. Before the first call nothing is written.
void set_log_provider(const fi_provider* provider) noexcept;

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
