#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Measures Open MPI over rvt beside its own shared memory (ob1/vader) and its UCX, in turns.

With two ranks what counts is only what was measured while their CPUs were near each other, as in
bench.py (--line). More ranks than CPUs are moved about by the kernel.
"""
import argparse
import collections
import os
import subprocess
import sys

from bench import (HIGH, LINE_VARIABLE, LOW, Row, add_line_option, choose_line, print_counts,
                   print_row, times, write_csv)

OPEN_MPI = {
    "rvt": ["--mca", "pml", "cm", "--mca", "mtl", "ofi"],
    "vader": ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"],
    "ucx": ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "pml_ucx_tls", "any",
            "--mca", "pml_ucx_devices", "any"],
}
PEERS = ("vader", "ucx")
RANKS = (2, 16)
LIMIT_S = 180


def has_network():
    """Whether this host has an IPv4 address that is neither loopback nor link-local; Open MPI's mtl asks
    every provider to reach other hosts, which rvt claims without one only when told to."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout
    return any("." in word and not word.startswith("169.254.") for word in found.split())


def job(contestant, ranks, program):
    """Returns: the words of one mpirun."""
    words = ["mpirun", "-n", str(ranks)]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if ranks == 2:
        words += ["--bind-to", "core"]
        words += ["-x", LINE_VARIABLE] if LINE_VARIABLE in os.environ else []
    else:
        words += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    if contestant == "rvt":
        words += ["-x", "FI_PROVIDER", "-x", "FI_PROVIDER_PATH"]
        if not has_network():
            words += ["-x", "FI_RVT_HOST_REMOTE=1"]
    return words + OPEN_MPI[contestant] + [program]


def run_job(words, extra):
    """Returns: ({measure: (value, unit)}, None), or ({}, reason)."""
    try:
        done = subprocess.run(words, env={**os.environ, **extra}, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"no result within {LIMIT_S} s"
    found = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 3:
            found[words[0]] = (float(words[1]), words[2])
    if done.returncode != 0:
        lines = [x for x in done.stderr.splitlines() if x.strip(" -")]
        return {}, lines[0] if lines else f"exit code {done.returncode}"
    return found, None


def look_at_line(program):
    """Returns: as bench.run_one(), the time of a cache line between the two CPUs."""
    found, reason = run_job(job("vader", 2, program) + ["line"], {})
    return found["line"][0] if found else None, reason


def row_of(name, unit, ranks):
    """What must be reached."""
    better = LOW if unit == "us" else HIGH
    factor = 1.3 if name.startswith("bandwidth") else 1
    peers = PEERS if ranks == 2 else ("vader",)
    return Row(f"{ranks}-{name}", name, unit, better, times(factor, peers, better), PEERS)


def take_turns(jobs, repeats):
    """`jobs` maps a contestant to (words, additions to the environment).

    Returns: ({measure: {contestant: values}}, {measure: unit}, {contestant: reason of failure})."""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    units, reasons = {}, {}
    for _ in range(repeats):
        for contestant, (words, extra) in jobs.items():
            if contestant in reasons:
                continue
            found, reason = run_job(words, extra)
            if reason is not None:
                reasons[contestant] = reason
            for name, (value, unit) in found.items():
                values[name][contestant].append(value)
                units[name] = unit
    return values, units, reasons


def compare(ranks, program, repeats):
    """Returns: rows with their values; prints them."""
    own = {"FI_PROVIDER": "rvt"}
    jobs = {c: (job(c, ranks, program), own if c == "rvt" else {}) for c in OPEN_MPI}
    values, units, reasons = take_turns(jobs, repeats)
    for contestant, reason in reasons.items():
        print(f"     {ranks} ranks: {contestant}: {reason}")
    results, words = [], collections.Counter()
    for name, of_contestants in values.items():
        row = row_of(name, units[name], ranks)
        words[print_row(row, of_contestants, {})] += 1
        results.append((row, of_contestants))
    if "rvt" in reasons:
        words["FAIL"] += 1
    return results, words


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="fabtests/benchmarks/mpi_bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, action="append", default=[])
    parser.add_argument("--out", default="mpi_bench")
    add_line_option(parser)
    options = parser.parse_args()
    if 2 in (options.ranks or RANKS):
        choose_line(lambda: look_at_line(os.path.abspath(options.program)), options.line)
    results, words = [], collections.Counter()
    for ranks in options.ranks or RANKS:
        found, counted = compare(ranks, os.path.abspath(options.program), options.repeats)
        results += found
        words += counted
    write_csv(options.out + ".csv", results)
    print_counts(words, options.out + ".csv")
    return 1 if words["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
