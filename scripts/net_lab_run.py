"""`scripts/net_lab`: runs one command on every host of a lab and shows what each says."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time

from net_lab import Lab, LabError, end_with_signals

EXAMPLE = """\
In COMMAND, {host} is the number of the host, {hosts} how many there are, {address} its own and {first} the first host's
address, {name} its name. A job of 2 hosts with 2 ranks each under a limit of 1 Gbit/s:

  scripts/net_lab --hosts 2 --rate 1gbit -- \\
      torchrun --nnodes {hosts} --node-rank {host} --nproc-per-node 2 --master-addr {first} --master-port 29500 train.py

Exit status: 0 if that of the command was 0 on all hosts, else the first other one; 77 if the machine cannot make a lab.
"""
CANNOT = 77
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
    processes, readers = [], []
    for host in range(lab.hosts):
        pipe = subprocess.PIPE
        process = lab.start(host, _filled(lab, host, command), stdout=pipe, stderr=subprocess.STDOUT, text=True)
        reader = threading.Thread(target=_show, args=(lab.name(host), process), daemon=True)
        reader.start()
        processes.append(process)
        readers.append(reader)
    if cut is not None:
        timer = threading.Timer(cut, lab.cut, [lab.hosts - 1])
        timer.daemon = True
        timer.start()
    deadline = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    for process, reader in zip(processes, readers, strict=True):
        if process.poll() is not None:
            reader.join(GRACE)
    return next((status for status in (process.poll() for process in processes) if status != 0), 0) or 0


def _filled(lab: Lab, host: int, command: list[str]) -> list[str]:
    """Not str.format: other braces in the command are its own."""
    known = {
        "{host}": str(host),
        "{hosts}": str(lab.hosts),
        "{address}": lab.address(host),
        "{first}": lab.address(0),
        "{name}": lab.name(host),
    }
    for word, value in known.items():
        command = [part.replace(word, value) for part in command]
    return command


def _show(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"[{name}] {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
