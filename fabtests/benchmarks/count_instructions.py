#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Counts the instructions of a message: runs one rank of a count measure of fab_bench under callgrind.

Counted is what the thread that calls libfabric runs outside the kernel, in all libraries, but for the program
itself. What polls cost that found nothing is taken off, by what such polls cost when nothing is under way. Other
threads are left out: what they run goes with time more than with messages, and an emulated processor has much of
that. The two ranks find each other's figures by --folder.
Prints the instructions of a message, both ends together; ends with 77 where there is no valgrind.
"""
import argparse
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

MESSAGES_PART, IDLE_PART = 2, 3  # of those that fab_count.cc makes
NEXT_PART, IDLE_POLL, COUNT_THIS = "fab_count_next_part", "fab_count_idle_poll", "fab_count_this"
LIMIT_S = 280
PEER_LIMIT_S = 120


class Part:
    """What callgrind has written about one part of a run. `cost` is by (library, function)."""

    def __init__(self, path, program):
        self.cost, self.idle_polls = collections.Counter(), 0
        self.names = {"ob": {}, "fn": {}}
        library = function = called = None
        is_of_call = False
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.rstrip("\n").partition("=")
                if key == "ob":
                    library = self.name(key, value)
                elif key == "fn":
                    function = self.name(key, value)
                elif key in ("cob", "cfn"):
                    called = self.name(key[1:], value)  # the function comes last
                elif key == "calls":
                    self.idle_polls += int(value.split()[0]) if called == IDLE_POLL else 0
                    is_of_call = True
                elif re.match(r"[-+*\d]", line):
                    # What is counted of a call stands with the function called, too.
                    if not is_of_call and library != program:
                        self.cost[library, function] += int((line.split() + ["0"])[1])
                    is_of_call = False

    def name(self, kind, value):
        """Names stand in a file once, then their numbers."""
        number, _, name = value.partition(" ")
        return self.names[kind].setdefault(number, name)


def run(command, folder):
    """Returns: what the command printed."""
    valgrind = ["valgrind", "-q", "--tool=callgrind", f"--dump-before={NEXT_PART}", f"--toggle-collect={COUNT_THIS}",
                f"--callgrind-out-file={folder}/%p"]
    done = subprocess.run(valgrind + command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout


def parts_of(folder, program):
    """Returns: the part of the messages and that of idle polls, of the one process that has parts."""
    for path in glob.glob(f"{folder}/*.{IDLE_PART}"):
        base = path.rpartition(".")[0]
        return [Part(f"{base}.{number}", program) for number in (MESSAGES_PART, IDLE_PART)]
    sys.exit("callgrind has written no parts")


def counted(command):
    """Returns: the instructions of all messages by function, and the polls that found nothing."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run(command, folder)
        messages, idle = parts_of(folder, os.path.realpath(command[0]))
    factor = messages.idle_polls / idle.idle_polls
    cost = {f"{os.path.basename(key[0])}: {key[1]}": messages.cost[key] - factor * idle.cost[key]
            for key in set(messages.cost) | set(idle.cost)}
    return {"printed": printed, "cost": cost, "idle_polls": messages.idle_polls,
            "idle_poll": sum(idle.cost.values()) / idle.idle_polls}


def wait_for(path):
    """Returns: what the other rank has counted."""
    end = time.monotonic() + PEER_LIMIT_S
    # Between machines that share nothing but a folder, looking is the only way to wait.
    while not os.path.exists(path):
        if time.monotonic() > end:
            sys.exit("the other rank has counted nothing")
        time.sleep(0.05)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def show(end, result, messages, functions):
    total = sum(result["cost"].values()) / messages
    print(f"{end}: {total:.0f}; beside them {result['idle_polls'] / messages:.2f} idle polls of "
          f"{result['idle_poll']:.0f} each", file=sys.stderr)
    dearest = sorted(result["cost"].items(), key=lambda one: -one[1])
    for name, count in dearest[:functions]:
        print(f"{count / messages:8.1f} {name}", file=sys.stderr)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True, help="as the command has it")
    parser.add_argument("--folder", required=True, help="that both ranks see, empty at first")
    parser.add_argument("--functions", type=int, default=0, help="how many of the dearest to show")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="fab_bench and its arguments, after --")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is missing", file=sys.stderr)
        return 77
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    result = counted(command)
    path = os.path.join(options.folder, f"count.{options.rank}")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.rename(path + ".new", path)
    if options.rank == 0:
        messages = float(result["printed"].split()[0])
        other = wait_for(os.path.join(options.folder, "count.1"))
        total = show("send", result, messages, options.functions)
        total += show("receive", other, messages, options.functions)
        print(f"{total:.6g} instructions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
