"""`scripts/net_lab`: runs one command on every host of a lab and shows what each says."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading

import lab_run
from lab_run import CANNOT
from net_lab import Lab, LabError, end_with_signals

EXAMPLE = """\
In COMMAND, {host} is the number of the host, {hosts} how many there are, {address} its own and {first} the first host's
address, {name} its name. A job of 2 hosts with 2 ranks each under a limit of 1 Gbit/s:

  scripts/net_lab --hosts 2 --rate 1gbit -- \\
      torchrun --nnodes {hosts} --node-rank {host} --nproc-per-node 2 --master-addr {first} --master-port 29500 train.py

Exit status: 0 if that of the command was 0 on all hosts, else the first other one; 77 if the machine cannot make a lab.
"""
GRACE = 10.0
"""Seconds the other hosts get to end by themselves once one has failed."""


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/net_lab", description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--cables", type=int, default=1, help="interfaces of each host, each in a network of its own")
    parser.add_argument("--rate", help="what each host may send, such as 1gbit; no limit if not given")
    parser.add_argument("--cut", type=float, metavar="SECONDS", help="then the cable of the last host is pulled")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        parser.error("which command?")
    end_with_signals()
    try:
        with Lab(arguments.hosts, arguments.rate, own_pids=True, cables=arguments.cables) as lab:
            return _run(lab, command, arguments.cut)
    except LabError as error:
        print(f"net_lab: {error}", file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:
        return 130


def _run(lab: Lab, command: list[str], cut: float | None) -> int:
    def start(host: int) -> lab_run.Process:
        words = {"host": host, "hosts": lab.hosts, "address": lab.address(host), "first": lab.address(0)}
        ready = lab_run.filled(command, {**words, "name": lab.name(host)})
        process: lab_run.Process = lab.start(host, ready, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if cut is not None and host == lab.hosts - 1:
            timer = threading.Timer(cut, lab.cut, [host])
            timer.daemon = True
            timer.start()
        return process

    statuses = lab_run.run(start, [lab.name(host) for host in range(lab.hosts)], GRACE)
    return next((status for status in statuses if status != 0), 0) or 0


if __name__ == "__main__":
    sys.exit(main())
