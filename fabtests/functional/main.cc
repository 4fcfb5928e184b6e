// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The runner: forks the ranks of each case, limits its time, prints a line for each and the counts.
// What a provider does not offer is skipped with the reason; `-m` states how many must pass.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "common/fail.h"
#include "functional/case.h"

namespace {

using fab::Case;
using fab::Outcome;

struct Options {
    std::vector<std::string> only;
    std::vector<std::string> exclude;
    std::vector<int> cpus;
    std::vector<std::string> hosts;
    int own_rank = -1;
    std::string peer;
    int least_passed = 0;
    int repeats = 1;
    bool list = false;
};

enum class Verdict { kPass, kSkip, kFail };

struct Counts {
    int passed = 0;
    int skipped = 0;
    std::vector<std::string> failed;
};

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (const auto& table :
         {fab::kMsgCases,       fab::kTaggedCases,  fab::kPeekCases,  fab::kFlagCases,
          fab::kRmaCases,       fab::kAtomicCases,  fab::kCntrCases,  fab::kCqCases,
          fab::kOrderCases,     fab::kAvCases,      fab::kMrCases,    fab::kFlowCases,
          fab::kMsgEpCases,     fab::kThreadCases,  fab::kFaultCases, fab::kLinkCases,
          fab::kLinkDgramCases, fab::kLinkMsgCases, fab::kKillCases,  fab::kKillPendingCases,
          fab::kEnvCases,       fab::kArgCases,     fab::kDgramCases, fab::kDeviceCases,
          fab::kGpuCases}) {
        cases.insert(cases.end(), table.begin(), table.end());
    }
    return cases;
}

bool matches(const std::vector<std::string>& patterns, const char* name) {
    return std::any_of(patterns.begin(), patterns.end(), [name](const std::string& pattern) {
        return std::strstr(name, pattern.c_str()) != nullptr;
    });
}

/// The rank whose end explains the case: a failure before a skip, a cause before its symptom.
/// @param first  Whose the first outcome is.
Verdict judge(const Case& one, const std::vector<Outcome>& outcomes, int first,
              std::string& reason) {
    Verdict verdict = Verdict::kPass;
    std::string symptom;
    int r = first - 1;
    for (const Outcome& outcome : outcomes) {
        ++r;
        if (((one.may_die >> r) & 1U) != 0 && outcome.signal != 0 && !outcome.timed_out) continue;
        const std::string who = "rank " + std::to_string(r) + ": ";
        if (outcome.timed_out) {
            symptom += who + "still running after the time limit; ";
        } else if (outcome.signal != 0) {
            reason += who + strsignal(outcome.signal) + "; ";
            verdict = Verdict::kFail;
        } else if (outcome.code == fab::kExitSkip) {
            if (verdict == Verdict::kPass) {
                verdict = Verdict::kSkip;
                reason = outcome.last_words;
            }
        } else if (outcome.code == fab::kExitPeerGone) {
            symptom += who + outcome.last_words + "; ";
        } else if (outcome.code != 0) {
            if (verdict != Verdict::kFail) reason.clear();
            reason += who + outcome.last_words + "; ";
            verdict = Verdict::kFail;
        }
    }
    if (verdict == Verdict::kPass && !symptom.empty()) {
        verdict = Verdict::kFail;
        reason = symptom;
    }
    return verdict;
}

Verdict run_ranks(const Case& one, const Options& options, std::string& reason) {
    if (options.own_rank >= 0 && (one.ranks != 2 || one.on_one_host)) {
        reason = "not for two ranks on two hosts";
        return Verdict::kSkip;
    }
    const fab::TeamOptions team{.size = one.ranks,
                                .limit_s = one.limit_s * (fab::kIsSanitized ? 3 : 1),
                                .cpus = options.cpus,
                                .may_die = one.may_die,
                                .hosts = options.hosts,
                                .own_rank = options.own_rank,
                                .peer = options.peer};
    return judge(one, fab::run_team(team, one.run), std::max(options.own_rank, 0), reason);
}

void run_case(const Case& one, const Options& options, Counts& counts) {
    const double start = fab::now_s();
    std::string reason;
    const Verdict verdict = run_ranks(one, options, reason);
    static constexpr const char* kWords[] = {"PASS", "SKIP", "FAIL"};
    std::printf("%s %-34s %6.2f s  %s\n", kWords[static_cast<int>(verdict)], one.name,
                fab::now_s() - start, reason.c_str());
    std::fflush(stdout);
    switch (verdict) {
        case Verdict::kPass: ++counts.passed; break;
        case Verdict::kSkip: ++counts.skipped; break;
        case Verdict::kFail: counts.failed.emplace_back(one.name); break;
    }
}

int report(const Counts& counts, const Options& options) {
    std::printf("%s: %d passed, %d skipped, %zu failed\n", fab::settings.provider.c_str(),
                counts.passed, counts.skipped, counts.failed.size());
    for (const std::string& name : counts.failed) std::printf("failed: %s\n", name.c_str());
    if (counts.passed < options.least_passed) {
        std::printf("only %d passed, at least %d must\n", counts.passed, options.least_passed);
        return 1;
    }
    return counts.failed.empty() ? 0 : 1;
}

[[noreturn]] void usage(int code) {
    std::fprintf(
        code == 0 ? stdout : stderr,
        "usage: functional [-p PROVIDER] [-s ADDRESS] [-o NAME]... [-x NAME]... [-c CPU,...]\n"
        "                  [-m COUNT] [-n NAMESPACE,...] [-r REPEATS] [-d EXPORTER] [-D DOMAIN]\n"
        "                  [-6] [-R RANK [-a PEER]] [-f] [-l]\n"
        "  -p  the provider to test (rvt)\n"
        "  -s  the address to listen on, for providers that need it\n"
        "  -o  run only cases whose name contains NAME; -x: leave them out\n"
        "  -c  pin rank n to the nth of these CPUs\n"
        "  -m  fail unless at least COUNT cases pass\n"
        "  -n  rank n runs in the nth of these network namespaces\n"
        "  -r  run all of it REPEATS times\n"
        "  -6  endpoints have IPv6 addresses\n"
        "  -R  only rank 0 or 1 runs here, the other one by such a command on another host,\n"
        "      whose IPv4 address rank 0 needs, by -a\n"
        "  -d  buffers of endpoints are dma-bufs: udmabuf, heap or vgem, and in\n"
        "      functional_device standin; or memory of cuda, and there of stand-ins for cuda, "
        "rocr\n"
        "      and ze, with -standin behind it (which the CPU cannot touch), -openable (nor that, "
        "but\n"
        "      other processes' devices can) or -mapped (which it can, as a dma-buf)\n"
        "  -D  endpoints of types MSG and DGRAM are of this domain: of the NIC of that name\n"
        "  -f  in full: 1,000 kill cycles, a peer stopped or computing for a minute\n"
        "  -l  list the cases\n");
    std::exit(code);
}

Options parse(int argc, char** argv) {
    Options options;
    for (int option = 0; (option = getopt(argc, argv, "p:s:o:x:c:m:n:r:R:a:d:D:6flh")) != -1;) {
        switch (option) {
            case 'p': fab::settings.provider = optarg; break;
            case 's': fab::settings.node = optarg; break;
            case 'o': options.only.emplace_back(optarg); break;
            case 'x': options.exclude.emplace_back(optarg); break;
            case 'c':
                options.cpus = fab::parse_cpus(optarg);
                if (options.cpus.empty()) usage(2);
                break;
            case 'm': options.least_passed = std::atoi(optarg); break;
            case 'n':
                options.hosts = fab::parse_names(optarg);
                fab::settings.has_hosts = true;
                break;
            case 'r': options.repeats = std::atoi(optarg); break;
            case 'R':
                options.own_rank = std::atoi(optarg);
                if (options.own_rank != 0 && options.own_rank != 1) usage(2);
                break;
            case 'a': options.peer = optarg; break;
            case 'd': fab::settings.exporter = optarg; break;
            case 'D': fab::settings.nic = optarg; break;
            case '6': fab::settings.addr_format = FI_SOCKADDR_IN6; break;
            case 'f': fab::settings.is_long = true; break;
            case 'l': options.list = true; break;
            case 'h': usage(0);
            default: usage(2);
        }
    }
    if (optind != argc || (options.own_rank == 0) == options.peer.empty()) usage(2);
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    Counts counts;
    for (int turn = 0; turn < options.repeats; ++turn) {
        for (const Case& one : all_cases()) {
            if (!options.only.empty() && !matches(options.only, one.name)) continue;
            if (matches(options.exclude, one.name)) continue;
            if (options.list) {
                std::printf("%s\n", one.name);
            } else {
                run_case(one, options, counts);
            }
        }
    }
    return options.list ? 0 : report(counts, options);
}
