// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One measure over one libfabric provider: prints a number and its unit.
#include "benchmarks/fab_bench.h"

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

namespace {

std::vector<fab::Measure> all_measures() {
    std::vector<fab::Measure> all;
    for (const auto& part : {fab::kMessageMeasures, fab::kRmaMeasures, fab::kWaitMeasures,
                             fab::kScaleMeasures, fab::kCountMeasures}) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

[[noreturn]] void usage(int code) {
    std::fprintf(
        code == 0 ? stdout : stderr,
        "usage: fab_bench [-p PROVIDER] [-s ADDRESS] [-c CPU,...] [-n NAMESPACE,...] "
        "[-r RANK [-a PEER]] MEASURE [ARGUMENT]\n"
        "       fab_bench -l   lists the measures\n"
        "Rank n runs on the nth CPU, in the nth network namespace. With -r only rank 0 or 1 runs "
        "here,\nthe other one on another host, whose IPv4 address rank 0 needs.\n");
    std::exit(code);
}

int list() {
    for (const fab::Measure& one : all_measures()) {
        std::printf("%-24s %-6s %s\n", one.name, one.unit,
                    one.argument == nullptr ? "" : one.argument);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    fab::TeamOptions team{.cpus = fab::allowed_cpus(2)};
    for (int option = 0; (option = getopt(argc, argv, "p:s:c:n:r:a:lh")) != -1;) {
        switch (option) {
            case 'p': fab::settings.provider = optarg; break;
            case 's': fab::settings.node = optarg; break;
            case 'c':
                team.cpus = fab::parse_cpus(optarg);
                if (team.cpus.empty()) usage(2);
                break;
            case 'n': team.hosts = fab::parse_names(optarg); break;
            case 'r':
                team.own_rank = std::atoi(optarg);
                if (team.own_rank != 0 && team.own_rank != 1) usage(2);
                break;
            case 'a': team.peer = optarg; break;
            case 'l': return list();
            case 'h': usage(0);
            default: usage(2);
        }
    }
    const int rest = argc - optind;
    if ((rest != 1 && rest != 2) || (team.own_rank == 0 && team.peer.empty())) usage(2);
    return fab::run_measure(all_measures(), "fab_bench", argv[optind],
                            rest == 2 ? argv[optind + 1] : nullptr, team);
}
