#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Measures rvt beside libfabric's shm, UCX and the limits of the machine, in one run.

The contestants of a row take turns (A B C A B C ...), so that a disturbance hits all of them; each
turn is a pair of processes of its own, pinned to two CPUs. Medians are compared, bests shown.

A virtual machine's processors are moved between the cores of its host while it runs, and what two
processes do with each other takes two to five times as long where these share no cache. So the time
that a cache line takes between the two is found first, and what counts is only what was measured
while it took about that long (--line).
"""
import argparse
import collections
import csv
import os
import statistics
import subprocess
import sys

import bench_plot

LOW, HIGH = "low", "high"
SHM = ("shm", "shm-nocma")
PEERS = SHM + ("ucx",)
UCX_NAMES = {"pingpong-msg": "pingpong", "rate-msg": "rate", "wake-fd": "wake",
             "wake-sread": "wake", "wake-asleep-fd": "wake", "wake-asleep-sread": "wake"}
LIMIT_S = 70
LINE_VARIABLE = "FAB_LINE_NS"  # see fabtests/benchmarks/bench.h


class Bound:
    """What rvt must reach: a value computed from what the others reached in the same run."""

    def __init__(self, text, value):
        self.text, self.value = text, value

    def of(self, medians):
        return self.value(medians)


def times(factor, names, better):
    """factor x the best of those named that gave a value."""
    names = (names,) if isinstance(names, str) else names
    best = min if better == LOW else max

    def value(medians):
        found = [medians[n] for n in names if n in medians]
        return factor * best(found) if found else None
    label = "best peer" if len(names) > 1 else names[0]
    return Bound(f"{factor:g} x {label}", value)


def both(better, *bounds):
    """The harder one of several."""
    def value(medians):
        found = [b.of(medians) for b in bounds if b.of(medians) is not None]
        return (min if better == LOW else max)(found) if found else None
    return Bound(" and ".join(b.text for b in bounds), value)


def either(better, *bounds):
    """The easier one of several."""
    def value(medians):
        found = [b.of(medians) for b in bounds if b.of(medians) is not None]
        return (max if better == LOW else min)(found) if found else None
    return Bound(" or ".join(b.text for b in bounds), value)


def fixed(limit):
    return Bound(f"{limit:g}", lambda medians: limit)


class Row:
    """One line of the table. `limits` maps a name to a measure of limit_bench, or to another measure
    of rvt itself when it begins with "rvt "."""

    def __init__(self, name, measure, unit, better, bound=None, peers=(), limits=None):
        self.name, self.measure, self.unit, self.better = name, measure.split(), unit, better
        self.bound, self.peers, self.limits = bound, peers, limits or {}


def latency_row(size, bound_of_peers, measure="pingpong"):
    bound = times(bound_of_peers, PEERS, LOW)
    limits = {"line": "cacheline"}
    if size <= 64:
        bound = both(LOW, bound, times(1.7, "ring", LOW))
        limits["ring"] = "ring-pingpong"
    return Row(f"{measure}-{size}", f"{measure} {size}", "us", LOW, bound, PEERS, limits)


def bandwidth_row(size, factor):
    bound = either(HIGH, times(factor, PEERS, HIGH), times(0.85, "2copy", HIGH))
    return Row(f"bandwidth-{size}", f"bandwidth {size}", "GB/s", HIGH, bound, PEERS,
               {"2copy": f"two-copies {size}", "memcpy": f"memcpy {size}",
                "cma": f"cma-read {size}"})


def rma_rows(kind, size):
    cma = {"cma": f"cma-{kind} {size}"}
    yield Row(f"{kind}-{size}", f"{kind} {size}", "GB/s", HIGH, times(1.5, SHM, HIGH), PEERS, cma)
    yield Row(f"{kind}-asleep-{size}", f"{kind}-asleep {size}", "GB/s", HIGH,
              times(0.95, "cma", HIGH), (), cma)
    yield Row(f"{kind}-mapped-{size}", f"{kind}-mapped {size}", "GB/s", HIGH,
              times(0.8, "ucx", HIGH), ("ucx",), {"memcpy": f"memcpy {size}"})


def rows():
    for measure in ("pingpong", "pingpong-msg"):
        yield latency_row(8, 0.65, measure)
        yield latency_row(64, 0.65, measure)
        yield latency_row(4096, 0.8, measure)
        yield latency_row(65536, 0.75, measure)
    for measure in ("rate", "rate-msg"):
        yield Row(f"{measure}-8", f"{measure} 8", "M/s", HIGH,
                  both(HIGH, times(3, ("shm", "ucx"), HIGH), times(0.4, "ring", HIGH)),
                  ("shm", "ucx"), {"ring": "ring-rate"})
    yield bandwidth_row(65536, 1.2)
    yield bandwidth_row(1 << 20, 1.3)
    yield bandwidth_row(4 << 20, 1.3)
    yield bandwidth_row(64 << 20, 1.2)
    for kind in ("write", "read"):
        yield Row(f"{kind}-latency-8", f"{kind}-latency 8", "us", LOW, times(0.7, SHM, LOW), PEERS,
                  {"cma": "cma-latency 8"})
        yield from rma_rows(kind, 65536)
        yield from rma_rows(kind, 4 << 20)
    for size in (16384, 65536):
        yield Row(f"write-fresh-{size}", f"write-fresh {size}", "GB/s", HIGH, times(1, SHM, HIGH),
                  SHM)
    for operation in ("fetch-add", "compare-swap"):
        yield Row(operation, operation, "us", LOW, times(0.7, "shm", LOW), ("shm", "ucx"),
                  {"line": "cacheline"})
    for wait in ("wake-fd", "wake-sread", "wake-asleep-fd", "wake-asleep-sread"):
        yield Row(wait, wait, "us", LOW, times(1.3, "eventfd", LOW), ("ucx",),
                  {"eventfd": "eventfd"})
    for kind in ("match-posted", "match-unexpected"):
        yield Row(f"{kind}-100000", f"{kind} 100000", "ns", LOW, times(2, "rvt at 10", LOW), (),
                  {"rvt at 10": f"rvt {kind} 10"})
    yield Row("quiet-peers-127", "quiet-peers 127", "us", LOW, times(1.25, "rvt alone", LOW), (),
              {"rvt alone": "rvt quiet-peers 0"})
    yield Row("memory-endpoint", "memory-endpoint 32", "B", LOW, fixed(1 << 20))
    yield Row("memory-av-entry", "memory-av 100000", "B", LOW, fixed(48))
    yield Row("memory-peer", "memory-peer 32", "B", LOW, fixed(64 << 10))


class Contestants:
    """How each contestant's programs are started."""

    def __init__(self, options):
        self.programs, self.cpus = options.programs, options.cpus

    def has(self, name):
        return name != "ucx" or os.access(os.path.join(self.programs, "ucx_bench"), os.X_OK)

    def command(self, name, row):
        """Returns: (arguments, additions to the environment)."""
        fab = [os.path.join(self.programs, "fab_bench"), "-c", self.cpus]
        if name in row.limits:
            words = row.limits[name].split()
            if words[0] == "rvt":
                return fab + ["-p", "rvt"] + words[1:], {}
            return limit_command(self.programs, self.cpus, *words), {}
        if name == "ucx":
            measure = UCX_NAMES.get(row.measure[0], row.measure[0])
            return ([os.path.join(self.programs, "ucx_bench"), self.cpus, measure]
                    + row.measure[1:], {"UCX_TLS": "sm,self", "UCX_WARN_UNUSED_ENV_VARS": "n"})
        provider = "shm" if name.startswith("shm") else name
        extra = {"FI_SHM_DISABLE_CMA": "1"} if name == "shm-nocma" else {}
        return fab + ["-p", provider] + row.measure, extra


def run_one(arguments, extra):
    """Returns: (value, None) or (None, reason)."""
    try:
        done = subprocess.run(arguments, env={**os.environ, **extra}, capture_output=True,
                              text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no result within {LIMIT_S} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return None, lines[0] if lines else f"exit code {done.returncode}"
    return float(done.stdout.split()[0]), None


def measure_row(row, contestants, repeats):
    """Returns: values by contestant, and the reasons of those that gave none."""
    names = ["rvt"] + [p for p in row.peers if contestants.has(p)]
    names += list(row.limits)
    values, reasons, failures = collections.defaultdict(list), {}, collections.Counter()
    for _ in range(repeats):
        for name in names:
            if failures[name] == 2 and not values[name]:
                continue  # it never worked; a failure among successes is only reported
            value, reason = run_one(*contestants.command(name, row))
            if value is None:
                reasons[name] = reason
                failures[name] += 1
            else:
                values[name].append(value)
    return values, reasons


def number(value):
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def verdict(row, medians):
    """Returns: (bound, word)."""
    bound = row.bound.of(medians) if row.bound else None
    if "rvt" not in medians:
        return bound, "FAIL"
    if bound is None:
        return bound, "-"
    good = medians["rvt"] <= bound if row.better == LOW else medians["rvt"] >= bound
    return bound, "PASS" if good else "MISS"


def print_row(row, values, reasons):
    """Returns: the verdict's word."""
    medians = {n: statistics.median(v) for n, v in values.items() if v}
    best = (min if row.better == LOW else max)
    bound, word = verdict(row, medians)
    rvt = medians.get("rvt")
    peers = [medians[p] for p in row.peers if p in medians]
    ratio = rvt / best(peers) if rvt is not None and peers else None
    text = f"{number(rvt)} ({number(best(values['rvt']))})" if values.get("rvt") else "-"
    others = "  ".join(f"{n} {number(m)}" for n, m in medians.items() if n != "rvt")
    need = f"{'<=' if row.better == LOW else '>='} {number(bound)}" if row.bound else ""
    print(f"{word:4} {row.name:22} {text:>18} {row.unit:4} {need:>12}  "
          f"x{number(ratio):6} {others}", flush=True)
    for name, reason in reasons.items():
        print(f"     {row.name}: {name}: {reason}", flush=True)
    return word


def write_csv(path, results):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "unit", "contestant", "turn", "value"])
        for row, values in results:
            for name, many in values.items():
                for turn, value in enumerate(many):
                    writer.writerow([row.name, row.unit, name, turn, value])


def plot_rows():
    """Rows that only the plot needs."""
    for size in (512, 1024, 2048, 8192, 16384, 32768):
        yield Row(f"pingpong-{size}", f"pingpong {size}", "us", LOW, None, PEERS)
    for size in (1024, 4096, 16384, 262144, 16 << 20):
        yield Row(f"bandwidth-{size}", f"bandwidth {size}", "GB/s", HIGH, None, PEERS,
                  {"2copy": f"two-copies {size}"})


def plot(path, results):
    curves = {"pingpong": collections.defaultdict(dict), "bandwidth": collections.defaultdict(dict)}
    for row, values in results:
        if row.measure[0] not in curves:
            continue
        for name, many in values.items():
            if many and name in ("rvt", "2copy") + PEERS:
                curves[row.measure[0]][name][int(row.measure[1])] = statistics.median(many)
    if any(curves.values()):
        bench_plot.write_svg(path, [("ping-pong, half round trip", "us", curves["pingpong"]),
                                    ("bandwidth", "GB/s", curves["bandwidth"])])


def parser_of(description):
    """The options that all tables have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--programs", default=".", help="folder of the programs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="rows of this name or beginning (pingpong, pingpong-8); may be repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpus", default=None, help="two CPUs, as 0,1")
    parser.add_argument("--first", action="store_true",
                        help="run before all other programs, where the machine is busy (root)")
    parser.add_argument("--list", action="store_true")
    return parser


def go_first():
    """Takes precedence, for this process and those that it starts."""
    try:
        os.setsid()  # the scheduler weighs sessions first, then processes
    except PermissionError:
        pass  # it leads one already
    try:
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("-20")
    except OSError:
        pass  # this kernel does not
    os.setpriority(os.PRIO_PROCESS, 0, -20)


def parse(parser):
    options = parser.parse_args()
    if options.first and not options.list:
        go_first()
    if options.cpus is None:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            parser.error("two CPUs are needed")
        options.cpus = f"{cpus[0]},{cpus[1]}"
    return options


def chosen(all_rows, only):
    """Returns: the rows that --only names."""
    return [r for r in all_rows
            if not only or any((r.name + "-").startswith(o + "-") for o in only)]


def print_list(wanted):
    for row in wanted:
        print(f"{row.name:24} {row.unit:5} {row.bound.text if row.bound else ''}")


def print_counts(words, path):
    print(f"{words['PASS']} reached, {words['MISS']} missed, {words['FAIL']} without a result; "
          f"values in {path}")


def limit_command(programs, cpus, *words):
    """Returns: the arguments of a measure of the machine."""
    return [os.path.join(programs, "limit_bench"), cpus, *words]


def add_line_option(parser):
    parser.add_argument("--line", type=float, metavar="NS",
                        help="count only what was measured while a cache line took about NS from one "
                             "CPU to the other; 0: count all; default: the least that it takes often")


def choose_line(look, line):
    """Has the programs count only batches during which the CPUs are as near as that.

    `look()` returns what run_one() does."""
    if line is None:
        line, reason = look()
        if reason is not None:
            sys.exit(f"the time of a cache line: {reason}")
        print(f"counted: what is measured while a cache line takes about {number(line)} ns between "
              "the CPUs", flush=True)
    if line:
        os.environ[LINE_VARIABLE] = f"{line:g}"


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--no-plot", action="store_true", help="leave out sizes only plotted")
    parser.add_argument("--out", default="bench", help="beginning of the names of what is written")
    add_line_option(parser)
    options = parse(parser)
    wanted = chosen(list(rows()) + ([] if options.no_plot else list(plot_rows())), options.only)
    if options.list:
        print_list(wanted)
        return 0
    contestants = Contestants(options)
    if not contestants.has("ucx"):
        print("ucx_bench was not built: no comparison with UCX")
    placed = limit_command(options.programs, options.cpus, "placed-line")
    choose_line(lambda: run_one(placed, {}), options.line)
    results, words = [], collections.Counter()
    for row in wanted:
        values, reasons = measure_row(row, contestants, options.repeats)
        words[print_row(row, values, reasons)] += 1
        results.append((row, values))
        write_csv(options.out + ".csv", results)
    plot(options.out + ".svg", results)
    print_counts(words, options.out + ".csv")
    return 1 if words["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
