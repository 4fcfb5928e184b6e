// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table of run-time parameters, and their values.
#include "util/params.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <system_error>

#include "util/log.h"

namespace rvt::util {
namespace {

constexpr std::size_t kParams = static_cast<std::size_t>(ParamId::kCount);
constexpr std::int64_t kKiB = std::int64_t{1} << 10;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// clang-format off
constexpr std::array<Param, kParams> kTable{{
    {ParamId::kBusyPollUs, "busy_poll_us", ParamType::kNumber, 50, 0, 10 * 1000 * 1000, "us",
     "how long who waits in fi_cq_sread, fi_cntr_wait or fi_trywait polls before it sleeps, where that has paid lately; "
     "0: not at all"},
    {ParamId::kCatchFaults, "catch_faults", ParamType::kBool, 1, 0, 1, "",
     "catch SIGSEGV and SIGBUS of accesses of peers to registered memory that is no longer mapped, or not writable: "
     "they fail with an error; without, they end this process"},
    {ParamId::kConnectTimeoutMs, "connect_timeout_ms", ParamType::kNumber, 10000, 1, 3600 * 1000, "ms",
     "how long a handshake with a peer may take, all attempts together"},
    {ParamId::kDgramSharedMemory, "dgram_shared_memory", ParamType::kBool, 1, 0, 1, "",
     "let datagrams from the address of a network go through shared memory to endpoints of this host and user"},
    {ParamId::kHostRemote, "host_remote", ParamType::kBool, 0, 0, 1, "",
     "let the device that reaches this host only answer requests for FI_REMOTE_COMM as well, for applications "
     "that insist on it although all their processes run on one host"},
    {ParamId::kMapUnsealed, "map_unsealed", ParamType::kBool, 0, 0, 1, "",
     "map registered memory of peers although its file may shrink (/dev/shm, memory files without F_SEAL_SHRINK); "
     "a peer that shrinks such a file in use ends this process with SIGBUS where faults are not caught"},
    {ParamId::kMrCache, "mr_cache", ParamType::kBool, 1, 0, 1, "",
     "keep buffers registered with NICs for their next use, where userfaultfd can tell of memory that is unmapped; "
     "without, NICs' domains require FI_MR_LOCAL, and large messages of RDM endpoints are copied"},
    {ParamId::kMrCacheBytes, "mr_cache_bytes", ParamType::kNumber, kGiB, 64 * 1024, 1024 * kGiB, "bytes",
     "memory that stays registered with a NIC for a domain or an RDM endpoint, at most; what was used longest ago is "
     "dropped"},
    {ParamId::kMrCacheCount, "mr_cache_count", ParamType::kNumber, 1024, 1, 1 << 14, "",
     "how many buffers stay so, at most"},
    {ParamId::kRefusedTimeoutMs, "refused_timeout_ms", ParamType::kNumber, 3000, 1, 3600 * 1000, "ms",
     "how long an address that nobody listens at is tried, as its owner may be just starting; connect_timeout_ms at "
     "most"},
    {ParamId::kRoce, "roce", ParamType::kBool, 1, 0, 1, "",
     "let endpoints whose address is one of a network's reach other hosts, by RoCEv2 over UDP"},
    {ParamId::kRoceFlows, "roce_flows", ParamType::kNumber, 1 << 16, 1, 1 << 16, "",
     "peers on other hosts that an RDM endpoint keeps connections with; for more, those idle longest are closed"},
    {ParamId::kRoceInterface, "roce_interface", ParamType::kText, 0, 0, 0, "",
     "the network interface whose address endpoints get that do not ask for one, or that address itself"},
    {ParamId::kRoceMtu, "roce_mtu", ParamType::kNumber, 0, 0, 8960, "bytes",
     "payload of a packet: a multiple of 64 from 256 on; 0: the most that the interface and the route take", 256, 64},
    {ParamId::kRocePort, "roce_port", ParamType::kNumber, 0, 0, 65535, "",
     "the UDP port that all MSG and DGRAM endpoints of an address share, ports of addresses being service numbers of "
     "rdma_cm: 4791 for peers that are kernel rxe devices or RoCE NICs; 0: a UDP port for each"},
    {ParamId::kUnexpectedBytes, "unexpected_bytes", ParamType::kNumber, 64 * kMiB, 64 * 1024, 64 * kGiB, "bytes",
     "memory that an endpoint spends on messages which came before their receive; beyond it senders hold data back"},
    {ParamId::kEagerMax, "eager_max", ParamType::kNumber, 32 * kKiB, 256, 16 * kMiB, "bytes",
     "messages up to this size leave at once; larger ones stay with the sender until they are matched"},
    {ParamId::kWireEagerMax, "wire_eager_max", ParamType::kNumber, 256 * kKiB, 256, 16 * kMiB, "bytes",
     "the same between hosts, where asking costs more; what is larger than eager_max completes when the peer has it"},
    {ParamId::kRendezvousHeaders, "rendezvous_headers", ParamType::kNumber, 1024, 1, 1 << 20, "",
     "large messages announced to one peer and not yet matched, before further ones wait at the sender"},
    {ParamId::kDirectMin, "direct_min", ParamType::kNumber, 4 * kKiB, 0, kGiB, "bytes",
     "one-sided accesses from this size on may be copied by the initiator itself while the target polls"},
    {ParamId::kFault, "fault", ParamType::kText, 0, 0, 0, "",
     "what happens to packets that arrive, for tests: drop=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=1%:200us,seed=7 "
     "(default: nothing)"},
    {ParamId::kPcap, "pcap", ParamType::kText, 0, 0, 0, "",
     "file for a capture of all packets, pcapng; in its name %p stands for the process, %h for the host (default: none)"},
    {ParamId::kHmemCuda, "hmem_cuda", ParamType::kBool, 1, 0, 1, "",
     "let memory of NVIDIA's GPUs be registered (FI_HMEM_CUDA), where the driver's libcuda.so.1 is there"},
    {ParamId::kHmemKeptBytes, "hmem_kept_bytes", ParamType::kNumber, 256 * kMiB, 0, 1024 * kGiB, "bytes",
     "memory of this host that copies of devices' memory keep for their next use, all regions together; each keeps 8 MiB "
     "in any case"},
    {ParamId::kHmemRocr, "hmem_rocr", ParamType::kBool, 1, 0, 1, "",
     "let memory of AMD's GPUs be registered (FI_HMEM_ROCR), where libhsa-runtime64.so.1 is there"},
    {ParamId::kHmemZe, "hmem_ze", ParamType::kBool, 1, 0, 1, "",
     "let memory of Level Zero's devices be registered (FI_HMEM_ZE), where libze_loader.so.1 is there"},
    {ParamId::kVerbs, "verbs", ParamType::kBool, 1, 0, 1, "",
     "use NICs, through rdma-core: domains of FI_EP_MSG and FI_EP_DGRAM, and the connections of RDM endpoints between them"},
    {ParamId::kVerbsEmulated, "verbs_emulated", ParamType::kBool, 0, 0, 1, "",
     "let NICs that the kernel emulates (rxe) carry connections of RDM endpoints, too"},
    {ParamId::kVerbsOnDemand, "verbs_on_demand", ParamType::kBool, 1, 0, 1, "",
     "register with NICs that have on-demand paging what may not be pinned (limit of locked memory)"},
    {ParamId::kVerbsRelaxedOrdering, "verbs_relaxed_ordering", ParamType::kBool, 1, 0, 1, "",
     "let NICs write in any order, by PCIe's relaxed ordering, to registered memory that peers may not write"},
    {ParamId::kVerbsExtended, "verbs_extended", ParamType::kBool, 1, 0, 1, "",
     "build requests and read completions of NICs by the extended verbs, where their driver has them"},
}};
// clang-format on

constexpr bool is_in_order() {
    for (std::size_t i = 0; i < kTable.size(); ++i) {
        if (static_cast<std::size_t>(kTable[i].id) != i) {
            return false;
        }
    }
    return true;
}
static_assert(is_in_order());

struct Value {
    std::int64_t number = 0;
    const char* text = nullptr;
    bool is_given = false;
};
std::array<Value, kParams> values;

bool is_in_bytes(const Param& param) noexcept {
    return std::string_view(param.unit) == "bytes";
}

std::string range_of(const Param& param) {
    const bool has_steps = param.step != 1;
    return (has_steps ? "0 or from " + std::to_string(param.least)
                      : "from " + std::to_string(param.min)) +
           " to " + std::to_string(param.max) +
           (has_steps ? " in steps of " + std::to_string(param.step) : "");
}

bool is_possible(const Param& param, std::int64_t number) noexcept {
    return number >= param.min && number <= param.max &&
           (number == 0 || (number >= param.least && number % param.step == 0));
}

void refuse(const Param& param, const char* given) noexcept {
    RVT_WARN(kCore, "parameter %s: %s given, %s possible%s; %lld is used", param.name, given,
             range_of(param).c_str(),
             is_in_bytes(param) ? ", or with k, m or g behind the number" : "",
             static_cast<long long>(param.default_number));
}

bool is_one_of(std::span<const char* const> words, const char* given) noexcept {
    return std::ranges::any_of(words,
                               [&](const char* word) { return strcasecmp(word, given) == 0; });
}

/// How far the letter behind a number of bytes moves it to the left, k, m and g being powers of
/// 1024; -1: it is none of them.
int shift_of(char letter) noexcept {
    switch (letter) {
        case 'k':
        case 'K': return 10;
        case 'm':
        case 'M': return 20;
        case 'g':
        case 'G': return 30;
        default: return -1;
    }
}

/// Reads a number, decimal or hexadecimal behind 0x, of which nothing may be left over.
bool parse(std::string_view text, bool may_have_letter, std::int64_t& number) noexcept {
    const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
    text.remove_prefix(is_hex ? 2 : 0);
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number, is_hex ? 16 : 10);
    if (error != std::errc() || (is_hex && number < 0)) {
        return false;
    }
    if (rest + 1 == end && may_have_letter) {
        const int shift = shift_of(*rest);
        return shift >= 0 && !__builtin_mul_overflow(number, std::int64_t{1} << shift, &number);
    }
    return rest == end;
}

}  // namespace

std::span<const Param> all_params() noexcept {
    return kTable;
}

void set_param_number(ParamId id, std::int64_t given) noexcept {
    const auto place = static_cast<std::size_t>(id);
    const Param& param = kTable[place];
    if (!is_possible(param, given)) {
        refuse(param, std::to_string(given).c_str());
        return;
    }
    values[place] = {.number = given, .text = nullptr, .is_given = true};
}

void parse_param_bool(ParamId id, const char* given) noexcept {
    constexpr std::array kYes{"yes", "1", "true", "on"};
    constexpr std::array kNo{"no", "0", "false", "off"};
    const Param& param = kTable[static_cast<std::size_t>(id)];
    const bool is_yes = is_one_of(kYes, given);
    if (!is_yes && !is_one_of(kNo, given)) {
        RVT_WARN(kCore,
                 "parameter %s: %s given, yes or no possible (or 1 and 0, true and false, on and "
                 "off); %s is used",
                 param.name, given, param.default_number != 0 ? "yes" : "no");
        return;
    }
    set_param_number(id, is_yes ? 1 : 0);
}

void parse_param_number(ParamId id, const char* given) noexcept {
    const Param& param = kTable[static_cast<std::size_t>(id)];
    std::int64_t number = 0;
    if (parse(given, is_in_bytes(param), number)) {
        set_param_number(id, number);
    } else {
        refuse(param, given);
    }
}

void set_param_text(ParamId id, const char* given) noexcept {
    values[static_cast<std::size_t>(id)] = {.number = 0, .text = given, .is_given = true};
}

std::int64_t param_number(ParamId id) noexcept {
    const auto place = static_cast<std::size_t>(id);
    return values[place].is_given ? values[place].number : kTable[place].default_number;
}

std::string_view param_text(ParamId id) noexcept {
    const Value& value = values[static_cast<std::size_t>(id)];
    return value.text != nullptr ? std::string_view(value.text) : std::string_view();
}

}  // namespace rvt::util
