// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// libfabric lets a program bring a log of its own (fi_import_log); the provider writes one line for
// each candidate that it refuses, at level info where another one is accepted:
//     rvt-host/shm FI_EP_RDM does not match: HINT: ASKED asked, OFFERED offered
// These are kept. Its other warnings, and what FI_LOG_LEVEL asks for, go to standard error.
#include "rvt_info/refusals.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

namespace rvt::info {
namespace {

constexpr const char* kMarker = " does not match: ";

std::vector<std::string>& lines() {
    static std::vector<std::string> kept;
    return kept;
}

bool is_ours(const fi_provider* provider) {
    return std::strcmp(provider->name, "rvt") == 0;
}

/// The level up to which FI_LOG_LEVEL (fabric(7)) wants lines; warnings in any case.
fi_log_level wanted_level() {
    constexpr std::array<std::pair<const char*, fi_log_level>, 3> kNames{
        {{"trace", FI_LOG_TRACE}, {"info", FI_LOG_INFO}, {"debug", FI_LOG_DEBUG}}};
    const char* const given = std::getenv("FI_LOG_LEVEL");
    for (const auto& [name, level] : kNames) {
        if (given != nullptr && strcasecmp(given, name) == 0) {
            return level;
        }
    }
    return FI_LOG_WARN;
}

int log_enabled(const fi_provider* provider, fi_log_level level, fi_log_subsys /*subsys*/,
                std::uint64_t /*flags*/) {
    return is_ours(provider) && level <= std::max(wanted_level(), FI_LOG_INFO) ? 1 : 0;
}

int log_ready(const fi_provider* provider, fi_log_level level, fi_log_subsys subsys,
              std::uint64_t flags, std::uint64_t* /*showtime*/) {
    return log_enabled(provider, level, subsys, flags);
}

void log_line(const fi_provider* /*provider*/, fi_log_level level, fi_log_subsys /*subsys*/,
              const char* /*function*/, int /*line*/, const char* message) {
    // What other providers are refused, who look for one to build on, has other words.
    if (std::strstr(message, kMarker) != nullptr) {
        lines().emplace_back(message);
        return;
    }
    if (level > wanted_level()) {
        return;
    }
    const auto length = static_cast<int>(std::strcspn(message, "\n"));
    std::fprintf(stderr, "rvt_info: %.*s\n", length, message);
}

fi_ops_log log_ops = {
    .size = sizeof(fi_ops_log),
    .enabled = log_enabled,
    .ready = log_ready,
    .log = log_line,
};

fid_logging logging = {.fid = {}, .ops = &log_ops};

Refused parse(const std::string& line, std::size_t marker) {
    Refused refused;
    refused.device = line.substr(0, marker);
    const std::string rest = line.substr(marker + std::strlen(kMarker));
    const std::size_t colon = rest.find(": ");
    const std::size_t asked = rest.rfind(" asked, ");
    const std::size_t offered = rest.rfind(" offered");
    if (colon == std::string::npos || asked == std::string::npos || offered == std::string::npos ||
        asked < colon + 2) {
        refused.hint = rest;
        return refused;
    }
    refused.hint = rest.substr(0, colon);
    refused.asked = rest.substr(colon + 2, asked - colon - 2);
    refused.offered = rest.substr(asked + 8, offered - asked - 8);
    return refused;
}

/// What a user can do about it.
std::string advice(const Refused& refused) {
    if (refused.asked.find("FI_REMOTE_COMM") != std::string::npos) {
        return "this device reaches this host only; if all processes run here, set "
               "FI_RVT_HOST_REMOTE=1";
    }
    if (refused.hint == "ep_attr->type") {
        return "ask for FI_EP_RDM, FI_EP_MSG or FI_EP_DGRAM, or leave the type open";
    }
    if (refused.hint == "node, service") {
        return "write it as 127.0.0.1:4711 or [::1]:4711";
    }
    if (refused.hint == "dest_addr" || refused.hint == "src_addr") {
        return "name an address of this host";
    }
    if (refused.hint.starts_with("FI_RVT_")) {
        return "set " + refused.hint + " to one of these, or do not set it";
    }
    if (refused.hint == "domain_attr->mr_mode") {
        return "give mr_mode the bits that are named";
    }
    if (refused.offered.starts_with("at most")) {
        return "ask for " + refused.offered + ", or leave the hint 0";
    }
    return "take " + refused.asked + " out of the hint, or leave the hint 0";
}

}  // namespace

std::string catch_log_lines() {
    const int error = fi_import_log(FI_VERSION(1, 13), 0, &logging);
    return error == 0 ? std::string() : fi_strerror(-error);
}

std::vector<Refused> take_refusals() {
    std::vector<Refused> refusals;
    for (const std::string& line : lines()) {
        refusals.push_back(parse(line, line.find(kMarker)));
    }
    lines().clear();
    return refusals;
}

void add_reason(Section& section, const Refused& refused) {
    section.add("hint", refused.hint);
    section.add("asked", refused.asked);
    section.add("offered", refused.offered);
    section.add("change", advice(refused));
}

}  // namespace rvt::info
