"""`scripts/rdma_lab`: runs one command on every node of an RDMA lab and shows what each says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lab_run
import rdma_lab_setup
from net_lab import LabError, end_with_signals
from rdma_lab import RdmaLab, RdmaLabError
from rdma_lab_job import Job

EPILOG = """\
COMMAND runs in this folder with this environment; files it writes are gone afterwards, but for those in $OUT, which are
under --out. In its environment: NODE_RANK NNODES NODE_IP NODE_IPS (TCP, eth0), RDMA_DEVICE RDMA_GID_INDEX RDMA_IP
RDMA_IPS (addresses of the devices), MASTER_ADDR MASTER_PORT, OUT, and RDMA_LAB_CTL, a command for faults:

  $RDMA_LAB_CTL link NODE up|down | netem NODE loss 1% | netem NODE off | kill NODE [SIGNAL] | counters NODE

In COMMAND itself {host} {hosts} {address} {first} {name} are as in scripts/net_lab, {device} and {gid} the node's.

  scripts/rdma_lab run -- sh -c 'if [ {host} = 0 ]; then ib_write_bw -d {device} -x {gid}
                                 else sleep 3; ib_write_bw -d {device} -x {gid} {first}; fi'

Exit status: the worst (largest) of all nodes; 124 where one ran past --timeout, 125 where a kernel was lost, 77 if the
machine cannot make a lab.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/rdma_lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("setup", help="install or name what is missing, make the guest's kernel and disk")
    run = commands.add_parser("run", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_argument("--nodes", type=int, default=2)
    run.add_argument("--vms", type=int, default=1, help="2: a kernel for each of two nodes")
    run.add_argument("--where", choices=("auto", "guest", "here"), default="auto", help="whose kernel; default: auto")
    run.add_argument("--devices", default="", help="RDMA devices of this machine to use, as mlx5_0,mlx5_1")
    run.add_argument("--accelerator", choices=("auto", "kvm", "tcg"), default="auto")
    run.add_argument("--memory", default="4G", help="of each guest (default 4G)")
    run.add_argument("--mtu", type=int, default=4200, help="of the interfaces; 4200 makes an RDMA MTU of 4096")
    run.add_argument("--loss", metavar="PERCENT", help="of the packets that each device sends, as 1%%")
    run.add_argument("--rate", help="what each device may send, as tc writes it: 100mbit")
    run.add_argument("--delay", help="of what each device sends, as tc writes it: 2ms")
    run.add_argument("--timeout", type=float, default=600.0, help="seconds for COMMAND (default 600)")
    run.add_argument("--grace", type=float, default=30.0, help="seconds for the others once one has failed")
    run.add_argument("--out", type=Path, help="folder for what the nodes leave in $OUT: node0, node1, ...")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    if arguments.what == "setup":
        return rdma_lab_setup.setup(lambda text: print(f"rdma_lab: {text}", flush=True))
    arguments.command = arguments.command[arguments.command[:1] == ["--"] :]
    if not arguments.command:
        run.error("which command?")
    end_with_signals()
    try:
        return _run(arguments)
    except (RdmaLabError, LabError, ValueError) as error:
        print(f"rdma_lab: {error}", file=sys.stderr)
        return lab_run.CANNOT
    except KeyboardInterrupt:
        return 130


def _run(arguments: argparse.Namespace) -> int:
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with RdmaLab(
        arguments.nodes,
        arguments.vms,
        arguments.where,
        tuple(filter(None, arguments.devices.split(","))),
        arguments.memory,
        arguments.mtu,
        arguments.accelerator,
        arguments.out.resolve() if arguments.out else None,
    ) as lab:
        print(f"rdma_lab: {lab.described}; up in {lab.boot_seconds:.1f} s", file=sys.stderr, flush=True)
        options = {"loss": arguments.loss, "rate": arguments.rate, "delay": arguments.delay}
        words = [word for option, value in options.items() if value for word in (option, value)]
        for node in range(lab.hosts) if words else ():
            lab.fault("netem", node, *words)

        def start(node: int) -> Job:
            known = {"host": node, "hosts": lab.hosts, "address": lab.address(node), "first": lab.address(0)}
            known |= {"name": lab.name(node), "device": lab.device(node), "gid": lab.gid(node)}
            return lab.start(node, lab_run.filled(arguments.command, known), arguments.timeout)

        statuses = lab_run.run(start, [lab.name(node) for node in range(lab.hosts)], arguments.grace)
    return max(status for status in statuses if status is not None)


if __name__ == "__main__":
    sys.exit(main())
