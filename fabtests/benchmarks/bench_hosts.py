#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Measures rvt between two hosts beside libfabric's tcp, sockets and udp, and bare UDP sockets.

The hosts are network namespaces that a veth pair joins; they are gone with this program. The rows
of loopback have no bound: rvt's endpoints use shared memory there, the others do not. Of the rows
within one host counts only what was measured while the CPUs were near each other, as in bench.py
(--line).
Needs root or user namespaces; ends with 77 where neither makes network namespaces.
"""
import collections
import os
import subprocess
import sys
import time

import mpi_bench
from bench import (HIGH, LINE_VARIABLE, LOW, Row, add_line_option, both, choose_line, chosen, fixed,
                   limit_command, measure_row, parse, parser_of, print_counts, print_list, print_row,
                   run_one, times, write_csv)

INSIDE = "--inside"
HERE = os.path.dirname(os.path.abspath(__file__))
AGENT = os.path.join(HERE, "..", "hosts", "host-agent")
HOSTS = ("h1", "h2")
ADDRESSES = ("10.99.0.1", "10.99.0.2")
LOOPBACK = "127.0.0.1"
TCP = ("tcp",)
PEERS = ("tcp", "sockets", "udp;ofi_rxd")
MPI_JOBS = {
    "rvt": ["-x", "FI_PROVIDER", "-x", "FI_PROVIDER_PATH", "--mca", "pml", "cm", "--mca", "mtl",
            "ofi", "--mca", "opal_common_ofi_provider_include", "rvt"],
    "tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
            "eth0"],
}


class HostRow(Row):
    """Where it runs and what it tells rvt: `hosts` of the two ranks, `address` if not that of the
    hosts, `extra` environment. In `others` are further forms of rvt: (hosts, extra environment)
    by name. A limit that begins with "udp " is a measure of udp_bench."""

    def __init__(self, name, measure, unit, better, bound, peers=(), limits=None, hosts=HOSTS,
                 address=None, extra=None, others=None):
        super().__init__(name, measure, unit, better, bound, peers, limits)
        self.hosts, self.address = hosts, address
        self.extra, self.others = extra or {}, others or {}
        self.limits.update({n: f"rvt {measure}" for n in self.others})

    def is_within_host(self):
        """Whether it compares ways within one host."""
        return self.address is None and self.hosts[0] == self.hosts[1]


def pingpong_row(size):
    return HostRow(f"tagged-pingpong-{size}", f"pingpong {size}", "us", LOW,
                   both(LOW, times(0.85, "tcp", LOW), times(1.2, "bare", LOW)), PEERS,
                   {"bare": f"udp pingpong {size}"})


def bandwidth_row(size):
    return HostRow(f"bandwidth-{size}", f"bandwidth {size}", "GB/s", HIGH,
                   both(HIGH, times(1, "tcp", HIGH), times(0.85, "bare", HIGH)), PEERS,
                   {"bare": "udp stream", "contiguous": "udp contiguous"})


def loss_row(percent, least, kind=""):
    """Bandwidth when this many percent of the packets are lost, on both ways: at least so many times
    that without loss. `kind`: of endpoints, as a suffix of the measure."""
    return HostRow(f"loss-{percent}-bandwidth{kind}-1048576", f"bandwidth{kind} 1048576", "GB/s", HIGH,
                   times(least, "no loss", HIGH), extra={"FI_RVT_FAULT": f"drop={percent}%"},
                   others={"no loss": (HOSTS, {})})


def same_node_row(measure, unit, better):
    """An endpoint that has the wire open beside one that has not, both on one host."""
    host = HOSTS[:1] * 2
    return HostRow("same-node-" + measure.replace(" ", "-"), measure, unit, better,
                   times(1.05 if better == LOW else 0.95, "alone", better), hosts=host,
                   others={"alone": (host, {"FI_RVT_ROCE": "no"})})


def loopback_row(measure, unit, better, bare):
    return HostRow("loopback-" + measure.replace(" ", "-"), measure, unit, better, None, PEERS,
                   {"bare": "udp " + bare}, hosts=HOSTS[:1] * 2, address=LOOPBACK)


def rows():
    yield pingpong_row(8)
    yield pingpong_row(4096)
    # A packet, and as little more as can be.
    yield HostRow("tagged-pingpong-1400", "pingpong 1400", "us", LOW, None, PEERS,
                  {"bare": "udp pingpong 1400"})
    # What collectives do.
    for size in (8, 4096):
        yield HostRow(f"exchange-{size}", f"exchange {size}", "us", LOW, None, PEERS,
                      {"bare": f"udp exchange {size}"})
    # A program that sends, to one that gets it and goes on with its work.
    yield HostRow("send-busy-40000", "send-busy 40000", "us", LOW, None, PEERS)
    # Who waits, and who is asleep while he does.
    for kind in ("fd", "sread"):
        yield HostRow(f"wake-{kind}", f"wake-{kind}", "us", LOW, times(0.5, "tcp", LOW), TCP)
        yield HostRow(f"wake-asleep-{kind}", f"wake-asleep-{kind}", "us", LOW, times(1, "tcp", LOW), TCP)
    # FI_EP_MSG.
    for size in (8, 4096, 65536):
        yield HostRow(f"connected-pingpong-{size}", f"pingpong-connected {size}", "us", LOW, None, TCP)
    yield HostRow("connected-rate-8", "rate-connected 8", "M/s", HIGH, None, TCP)
    yield HostRow("connected-rate-4096", "rate-connected 4096", "M/s", HIGH, None, TCP)
    for size in (65536, 1 << 20):
        yield HostRow(f"connected-bandwidth-{size}", f"bandwidth-connected {size}", "GB/s", HIGH, None,
                      TCP)
    yield HostRow("rate-8", "rate 8", "M/s", HIGH, times(8, "tcp", HIGH), PEERS)
    # Messages of a packet, of several, and what is fetched in a few windows.
    yield HostRow("rate-512", "rate 512", "M/s", HIGH, None, PEERS)
    yield HostRow("rate-4096", "rate 4096", "M/s", HIGH, None, PEERS)
    yield HostRow("bandwidth-262144", "bandwidth 262144", "GB/s", HIGH, None, PEERS)
    for size in (64 << 10, 1 << 20, 16 << 20):
        yield bandwidth_row(size)
    for kind in ("write", "read"):
        for size in (4096, 65536):
            yield HostRow(f"{kind}-{size}", f"{kind} {size}", "GB/s", HIGH, None, PEERS)
        yield HostRow(f"{kind}-1048576", f"{kind} 1048576", "GB/s", HIGH, times(1.5, "tcp", HIGH),
                      PEERS)
    for kind, of_one_percent in (("", 0.5), ("-connected", 0.4)):
        yield loss_row("0.1", 0.7, kind)
        yield loss_row("1", of_one_percent, kind)
        yield loss_row("5", 0.2, kind)
    yield same_node_row("pingpong 8", "us", LOW)
    yield same_node_row("rate 8", "M/s", HIGH)
    yield same_node_row("bandwidth 1048576", "GB/s", HIGH)
    yield HostRow("connect-1000-to-one", "connect-one 1000", "ms", LOW, None)
    yield HostRow("connect-32-to-32", "connect-all 32", "ms", LOW, None)
    yield HostRow("memory-peer-of-1000", "memory-many 1000", "B", LOW, fixed(64 << 10))
    yield HostRow("memory-peer", "memory-peer 32", "B", LOW, fixed(64 << 10))
    yield loopback_row("pingpong 8", "us", LOW, "pingpong 8")
    yield loopback_row("bandwidth 1048576", "GB/s", HIGH, "stream")


def mpi_rows():
    """What the measures of mpi_bench must reach, by their names."""
    for name, unit, bound in (("latency-8", "us", times(0.7, "tcp", LOW)),
                              ("latency-4096", "us", times(0.7, "tcp", LOW)),
                              ("allreduce-8", "us", None),
                              ("allreduce-65536", "us", None),
                              ("rate-8", "M/s", None),
                              ("bandwidth-65536", "GB/s", times(1.1, "tcp", HIGH)),
                              ("bandwidth-1048576", "GB/s", times(1.1, "tcp", HIGH)),
                              ("bandwidth-4194304", "GB/s", times(1.1, "tcp", HIGH))):
        yield Row("mpi-" + name, name, unit, LOW if unit == "us" else HIGH, bound, TCP)


class Contestants:
    """How each contestant's programs are started."""

    def __init__(self, options):
        self.options = options

    def has(self, _name):
        return True

    def program(self, name, hosts):
        return [os.path.join(self.options.programs, name), "-c", self.options.cpus, "-n",
                ",".join(hosts)]

    def command(self, name, row):
        """Returns: (arguments, additions to the environment)."""
        words = row.limits.get(name, "").split()
        if words[:1] == ["udp"]:
            payload = str(payload_of(self.options.mtu))
            return (self.program("udp_bench", row.hosts)
                    + ["-s", row.address or ",".join(ADDRESSES), "-m", payload] + words[1:],
                    {LINE_VARIABLE: ""})
        hosts, extra = row.others.get(name, (row.hosts, row.extra if name == "rvt" else {}))
        if not row.is_within_host():
            extra = {**extra, LINE_VARIABLE: ""}
        provider = "rvt" if name in row.others else name
        listen = ["-s", row.address] if row.address else []
        return self.program("fab_bench", hosts) + ["-p", provider] + listen + row.measure, extra


def payload_of(mtu):
    """What rvt's packets carry on a link of this MTU."""
    return min((mtu - 84) // 64 * 64, 8960)


def run(*words):
    subprocess.run(words, check=True, timeout=30)


def await_link(host):
    """The kernel drops what is sent before it has taken notice that the link is up. It
    is asked again and again: ip(8) has no command that waits for a state."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        shown = subprocess.run(["ip", "-n", host, "link", "show", "eth0"], check=True, timeout=30,
                               capture_output=True, text=True)
        if "state UP" in shown.stdout:
            return
        time.sleep(0.02)
    sys.exit(f"the link of {host} does not come up")


def make_hosts(mtu):
    """Host N is the namespace hN, its interface eth0 has 10.99.0.N."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    os.mkdir("/run/netns")
    for host in HOSTS:
        run("ip", "netns", "add", host)
    run("ip", "link", "add", "eth0", "netns", HOSTS[0], "type", "veth", "peer", "name", "eth0",
        "netns", HOSTS[1])
    for host, address in zip(HOSTS, ADDRESSES):
        run("ip", "-n", host, "link", "set", "lo", "up")
        run("ip", "-n", host, "address", "add", address + "/24", "dev", "eth0")
        run("ip", "-n", host, "link", "set", "eth0", "mtu", str(mtu), "up")
    for host in HOSTS:
        await_link(host)


def mpi_job(contestant, options):
    """Returns: (words, additions to the environment) of a job with a rank on each host."""
    first, second = options.cpus.split(",")[:2]
    pinned = f'exec taskset -c $((OMPI_COMM_WORLD_RANK == 0 ? {first} : {second})) "$0"'
    program = os.path.abspath(os.path.join(options.programs, "mpi_bench"))
    words = ["nsenter", f"--net=/run/netns/{HOSTS[0]}", "unshare", "--uts", "sh", "-c",
             f'hostname {HOSTS[0]} && exec "$@"', "sh", "mpirun", "--allow-run-as-root",
             "--mca", "plm_rsh_agent", os.path.abspath(AGENT), "--host", ",".join(ADDRESSES),
             "--map-by", "node", "--bind-to", "none", "-n", "2"]
    return (words + MPI_JOBS[contestant] + ["sh", "-c", pinned, program],
            {"FI_PROVIDER": "rvt"} if contestant == "rvt" else {})


def compare_mpi(wanted, options):
    """Returns: rows with their values, and the count of the verdicts' words; prints them."""
    jobs = {c: mpi_job(c, options) for c in MPI_JOBS}
    values, _, reasons = mpi_bench.take_turns(jobs, options.repeats)
    results, words = [], collections.Counter()
    for row in wanted:
        of_contestants = values[row.measure[0]]
        words[print_row(row, of_contestants, reasons)] += 1
        results.append((row, of_contestants))
    return results, words


def print_packets(options):
    """What an engine makes of a packet, beside bare sockets: one host, by its loopback device."""
    program = os.path.join(options.programs, "packet_bench")
    print("RC pairs of two devices beside bare UDP sockets, 1,024 bytes of payload in a packet, loopback",
          flush=True)
    try:
        subprocess.run(["nsenter", f"--net=/run/netns/{HOSTS[0]}", program, "127.0.0.1",
                        str(options.repeats)], check=True, timeout=600)
    except subprocess.SubprocessError as error:
        print(f"no table: {error}")


def measure(options):
    """Returns: exit code."""
    contestants = Contestants(options)
    results, words = [], collections.Counter()
    print(f"veth, MTU {options.mtu}: {payload_of(options.mtu)} bytes of payload in a packet of rvt "
          "and of the bare sockets", flush=True)
    measured = list(chosen(rows(), options.only))
    if any(row.is_within_host() for row in measured):
        placed = limit_command(options.programs, options.cpus, "placed-line")
        choose_line(lambda: run_one(placed, {}), options.line)
    for row in measured:
        values, reasons = measure_row(row, contestants, options.repeats)
        words[print_row(row, values, reasons)] += 1
        results.append((row, values))
        write_csv(options.out + ".csv", results)
    os.environ.pop(LINE_VARIABLE, None)
    wanted = chosen(mpi_rows(), options.only)
    if wanted and os.access(os.path.join(options.programs, "mpi_bench"), os.X_OK):
        found, counted = compare_mpi(wanted, options)
        results += found
        words += counted
    elif wanted:
        print("mpi_bench was not built: no comparison with Open MPI's tcp")
    write_csv(options.out + ".csv", results)
    if not options.only:
        print_packets(options)
    print_counts(words, options.out + ".csv")
    return 1 if words["FAIL"] else 0


def go_inside():
    """Replaces this process by one in namespaces of its own, whose end ends all that it started."""
    unshare = ["unshare"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    unshare += ["--net", "--mount"]
    if subprocess.run(unshare + ["true"], check=False).returncode != 0:
        print("SKIPPED: no network namespaces here, rvt was NOT measured between hosts")
        sys.exit(77)
    os.execvp("unshare", unshare + ["--pid", "--fork", "--mount-proc", "--kill-child",
                                    sys.executable, __file__] + sys.argv[1:] + [INSIDE])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--mtu", type=int, default=1500, help="of the link between the hosts")
    parser.add_argument("--out", default="bench_hosts", help="beginning of the name of the values' file")
    add_line_option(parser)
    parser.add_argument(INSIDE, action="store_true", help="in namespaces of its own already")
    options = parse(parser)
    if options.list:
        print_list(chosen(list(rows()) + list(mpi_rows()), options.only))
        return 0
    if not options.inside:
        go_inside()
    os.environ.pop("FI_PROVIDER", None)  # it would hide the others
    make_hosts(options.mtu)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
