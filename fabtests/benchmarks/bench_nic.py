#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Measures rvt over a NIC beside perftest and libfabric's verbs;ofi_rxm on the same NIC.

The hosts are two guests of fabtests/vm/rdma-vm, the NIC is the kernel's emulation: times are good for ratios
only. A guest has one processor, which the emulation shares with the programs; as a NIC would not, it goes first: all
programs, those of the others too, run at the lowest priority. Instructions are counted by valgrind, under which all
is slower still: what rvt holds back for a time to share a frame leaves earlier there, in more frames. Guest 0
measures; guest 1 runs the other end of each contestant in its turn.
Ends with 77 where this machine cannot boot a guest.
"""
import collections
import os
import shlex
import subprocess
import sys
import time

from bench import (HIGH, LOW, Row, both, chosen, go_first, measure_row, parser_of, print_list, print_row,
                   times)

INSIDE = "--inside"
HERE = os.path.dirname(os.path.abspath(__file__))
RDMA_VM = os.path.join(HERE, "..", "vm", "rdma-vm")
RXM = "verbs;ofi_rxm"
MEMORY_PEERS = 16
# Its queues would otherwise be longer than those of the emulation may be.
RXM_ENVIRONMENT = {"FI_UNIVERSE_SIZE": str(MEMORY_PEERS + 4)}
BESIDE_THE_NIC = ["nice", "-n", "19"]
PACKETS = "packets"  # of rvt's own, in place of the NIC
MIB_IN_GB = (1 << 20) / 1e9
JOB_LIMIT_S = 60
COUNT = "count-"  # how the measures begin that are for callgrind
COUNT_TURNS = 32  # twice as many as receives are posted at once
END = "end"


class Program:
    """A program that is its own server and, with the server's address behind it, client. `value` is what awk
    makes of the client's line for messages of `size`."""

    def __init__(self, words, size, value, extra=None):
        self.words, self.size, self.value, self.extra = words, size, value, extra or {}


def perftest(name, size, count, value):
    return Program([name, "-d", "rxe0", "-x", "1", "-F", "-s", str(size), "-n", str(count)], size, value)


def pingpong(provider, size):
    words = ["fi_pingpong", "-p", provider, "-d", "rxe0", "-e", "msg", "-I", "3000", "-S", str(size)]
    return Program(words, size, "$7")


def bandwidth_row(measure, name, size, count):
    """Each beside the program of perftest that does the same: the target of one-sided operations has no part in
    them, and takes no processor from the NIC's emulation."""
    return Row(f"{measure}-{size}", f"{measure} {size}", "GB/s", HIGH, times(0.95, name, HIGH), (RXM,),
               {name: perftest(name, size, count, f"$4 * {MIB_IN_GB}")})


def rows():
    """Half of a round trip, the mean of many; millions of messages in a second; instructions of both ends for a
    message, in windows of one and of more, without those of an empty poll and of the kernel; memory that becomes
    resident with each peer."""
    yield Row("tagged-pingpong-8", "pingpong 8", "us", LOW,
              both(LOW, times(1.1, "ib_send_lat", LOW), times(0.9, RXM, LOW)), (RXM,),
              {"ib_send_lat": perftest("ib_send_lat", 8, 3000, "$6"),
               "FI_EP_MSG": pingpong("rvt", 8), PACKETS: None})
    yield Row("rate-8", "rate 8", "M/s", HIGH, times(0.9, "ib_send_bw", HIGH), (RXM,),
              {"ib_send_bw": perftest("ib_send_bw", 8, 4000, "$5"), PACKETS: None})
    for size, count in ((64 << 10, 1000), (1 << 20, 100)):
        yield bandwidth_row("bandwidth", "ib_send_bw", size, count)
        yield bandwidth_row("write-asleep", "ib_write_bw", size, count)
        yield bandwidth_row("read-asleep", "ib_read_bw", size, count)
    for window in (1, 16):
        yield Row(f"instructions-{window}", f"{COUNT}eager-{window} {COUNT_TURNS}", "instr", LOW,
                  times(0.6, RXM, LOW), (RXM,))
    yield Row("memory-peer", f"memory-many {MEMORY_PEERS}", "B", LOW, times(0.5, RXM, LOW), (RXM,))


class Contestants:
    """How both ends of each contestant are started. Guest 1 finds what to run in numbered files."""

    def __init__(self, options):
        self.fab_bench = os.path.join(options.programs, "fab_bench")
        self.jobs = 0

    def has(self, _name):
        return True

    def send_job(self, line):
        """Has guest 1 run it."""
        path = job_path(self.jobs)
        self.jobs += 1
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(line)
        os.rename(path + ".new", path)

    def command(self, name, row):
        """Has the other end started. Returns: (arguments, additions to the environment) of this one."""
        peer = os.environ["RVT_VM_PEER_IP"]
        program = row.limits.get(name)
        if program is not None:
            self.send_job(shlex.join(BESIDE_THE_NIC + program.words))
            # Its other end may be just starting.
            script = (f"for i in $(seq 100); do out=$({shlex.join(program.words + [peer])} 2> /dev/null) && break; "
                      f"sleep 0.1; done; awk '$1 == {program.size} {{ print {program.value} }}' <<< \"$out\" | grep .")
            return BESIDE_THE_NIC + ["bash", "-c", script], {"FI_RVT_VERBS_EMULATED": "1"}
        fab = [self.fab_bench, "-p", name if name == RXM else "rvt"]
        first, second = fab + ["-r", "0", "-a", peer] + row.measure, fab + ["-r", "1"] + row.measure
        extra = RXM_ENVIRONMENT if name == RXM else {"FI_RVT_VERBS_EMULATED": "0" if name == PACKETS else "1"}
        if row.measure[0].startswith(COUNT):
            first, second = self.counted(first, second)
        self.send_job(shlex.join(BESIDE_THE_NIC + ["env"] + [f"{n}={v}" for n, v in extra.items()] + second))
        return BESIDE_THE_NIC + first, extra

    def counted(self, first, second):
        """Returns: the same commands under callgrind; the first one prints how many instructions both ends took
        for each of what it has counted. Callgrind writes a file for each part of the count."""
        files = [f"{job_path(self.jobs)}.calls.{rank}" for rank in (0, 1)]
        first, second = (
            f"valgrind --tool=callgrind --collect-atstart=no --callgrind-out-file={file}.%p {shlex.join(words)}"
            for words, file in zip((first, second), files))
        total = ("awk -v messages=\"$messages\" '$1 == \"totals:\" { sum += $2 } END { print sum / messages }' "
                 f"{files[0]}.* {files[1]}.[0-9]*")
        wait = f"until [ -e {files[1]}.end ]; do sleep 0.1; done"
        return (["bash", "-c", f"messages=$({first}) && messages=${{messages%% *}} && {wait} && {total}"],
                ["sh", "-c", f"{second}; : > {files[1]}.end"])


def job_path(number):
    return os.path.join(os.environ["RVT_VM_DIR"], f"job.{number}")


def run_jobs():
    """Guest 1: runs what guest 0 wants, until that is the end."""
    number = 0
    while True:
        # Between machines that share nothing but a folder, looking is the only way to wait.
        while not os.path.exists(job_path(number)):
            time.sleep(0.02)
        with open(job_path(number), encoding="utf-8") as file:
            line = file.read()
        if line == END:
            return 0
        subprocess.run(["timeout", "-k", "1", str(JOB_LIMIT_S), "sh", "-c", "exec " + line], check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        number += 1


def measure(options):
    """Guest 0. Returns: exit code."""
    contestants = Contestants(options)
    words = collections.Counter()
    for row in chosen(rows(), options.only):
        values, reasons = measure_row(row, contestants, options.repeats)
        words[print_row(row, values, reasons)] += 1
    contestants.send_job(END)
    print(f"{words['PASS']} reached, {words['MISS']} missed, {words['FAIL']} without a result")
    return 1 if words["FAIL"] else 0


def go_inside():
    """Replaces this process by one that boots the guests and runs this program in each."""
    provider_path = os.environ.get("FI_PROVIDER_PATH", "")
    prepare = ("mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm && ulimit -l unlimited && "
               f"export PYTHONDONTWRITEBYTECODE=1 FI_PROVIDER_PATH={shlex.quote(provider_path)} && exec ")
    words = [sys.executable, os.path.abspath(__file__)] + sys.argv[1:] + [INSIDE]
    os.execv(RDMA_VM, [RDMA_VM, "--nodes", "2", "--timeout", "1800", "--", "bash", "-c",
                       prepare + shlex.join(words)])


def main():
    parser = parser_of(__doc__)
    parser.add_argument(INSIDE, action="store_true", help="in a guest already")
    options = parser.parse_args()
    if options.list:
        print_list(chosen(list(rows()), options.only))
        return 0
    if not options.inside:
        if options.first:
            go_first()
        go_inside()
    os.environ.pop("FI_PROVIDER", None)  # it would hide the others
    return measure(options) if os.environ["RVT_VM_NODE"] == "0" else run_jobs()


if __name__ == "__main__":
    sys.exit(main())
