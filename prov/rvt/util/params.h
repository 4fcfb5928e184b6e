// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Run-time parameters. One table describes each: it feeds libfabric (so that `fi_info -e` lists
// them; ofi/params.cc), the man page and rvt_info. Objects copy the values they need when they
// open; nothing reads a parameter per operation.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace rvt::util {

/// The order is that of the table in params.cc.
enum class ParamId : unsigned {
    kBusyPollUs,
    kCatchFaults,
    kConnectTimeoutMs,
    kDgramSharedMemory,
    kHostRemote,
    kMapUnsealed,
    kMrCache,
    kMrCacheBytes,
    kMrCacheCount,
    kRefusedTimeoutMs,
    kRoce,
    kRoceFlows,
    kRoceInterface,
    kRoceMtu,
    kRocePort,
    kUnexpectedBytes,
    kEagerMax,
    kWireEagerMax,
    kRendezvousHeaders,
    kDirectMin,
    kFault,
    kPcap,
    kHmemCuda,
    kHmemKeptBytes,
    kHmemRocr,
    kHmemZe,
    kVerbs,
    kVerbsEmulated,
    kVerbsOnDemand,
    kVerbsRelaxedOrdering,
    kVerbsExtended,
    kCount,
};

enum class ParamType : std::uint8_t { kBool, kNumber, kText };

/// One parameter. The environment variable is FI_RVT_ followed by the name in capitals.
struct Param {
    ParamId id;
    const char* name;
    ParamType type;
    std::int64_t default_number;  // kBool: 0 or 1
    std::int64_t min;
    std::int64_t max;
    const char* unit;  // "" when it has none
    const char* help;
    std::int64_t least = 0;  // what is not 0 is this at least,
    std::int64_t step = 1;   // and a multiple of this
};

std::span<const Param> all_params() noexcept;

/// Takes what the user gave for a kBool or kNumber parameter. A value that is not possible is
/// refused with a warning, and the default holds. Threads: these four only while the provider is
/// loaded.
void set_param_number(ParamId id, std::int64_t given) noexcept;
/// The same for the text of a kBool parameter: yes or no, or what else libfabric has for that.
void parse_param_bool(ParamId id, const char* given) noexcept;
/// The same for text: a number, decimal or hexadecimal behind 0x; one of bytes may have k, m or g
/// (powers of 1024) behind it. What is no number is refused like one out of range.
void parse_param_number(ParamId id, const char* given) noexcept;
/// The same for a kText parameter; `given` stays for good.
void set_param_text(ParamId id, const char* given) noexcept;

/// The value of a kBool or kNumber parameter; its default when the user gave none.
std::int64_t param_number(ParamId id) noexcept;
inline bool param_is_set(ParamId id) noexcept {
    return param_number(id) != 0;
}
/// The value of a kText parameter; empty when the user gave none.
std::string_view param_text(ParamId id) noexcept;

}  // namespace rvt::util
