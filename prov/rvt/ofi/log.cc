// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// libfabric as the sink of log lines.
#include "ofi/log.h"

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>

#include "util/log.h"

namespace rvt::ofi {
namespace {

using util::LogArea;
using util::LogLevel;

static_assert(static_cast<int>(LogLevel::kWarn) == FI_LOG_WARN &&
              static_cast<int>(LogLevel::kDebug) == FI_LOG_DEBUG);
static_assert(static_cast<int>(LogArea::kCore) == FI_LOG_CORE &&
              static_cast<int>(LogArea::kCntr) == FI_LOG_CNTR);

// Written once, before the sink is set.
const fi_provider* log_provider = nullptr;

bool is_enabled(LogLevel level, LogArea area) noexcept {
    return fi_log_enabled(log_provider, static_cast<fi_log_level>(level),
                          static_cast<fi_log_subsys>(area)) != 0;
}

void write(LogLevel level, LogArea area, const char* function, int line,
           const char* text) noexcept {
    fi_log(log_provider, static_cast<fi_log_level>(level), static_cast<fi_log_subsys>(area),
           function, line, "%s\n", text);
}

constexpr util::LogSink kSink{.is_enabled = &is_enabled, .write = &write};

}  // namespace

void log_to_libfabric(const fi_provider* provider) noexcept {
    log_provider = provider;
    util::set_log_sink(&kSink);
}

}  // namespace rvt::ofi
