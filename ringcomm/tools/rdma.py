"""`python -m ringcomm rdma`: the RDMA devices of this machine, each proved by a message through it and back."""

from __future__ import annotations

import argparse
import sys

from ringcomm.discover import rdma
from ringcomm.discover.rdma_loopback import best_gid, loopback


def main(argv: list[str]) -> int:
    """Prints a line for each port. Returns 0 if all are good, 1 if some are not, 2 if there are none."""
    parser = argparse.ArgumentParser("python -m ringcomm rdma", description=__doc__)
    parser.add_argument("--device", metavar="NAME", action="append", help="only this one; may be given several times")
    parser.add_argument("--gid-index", type=int, help="entry of the GID table; default: what a job would take")
    arguments = parser.parse_args(argv)
    found, why = rdma.devices()
    if not found:
        print(f"ringcomm rdma: {why}", file=sys.stderr)
        return 2
    there = [device.name for device in found]
    unknown = [name for name in arguments.device or () if name not in there]
    if unknown:
        print(f"ringcomm rdma: no device {', '.join(unknown)}; there are {', '.join(there)}", file=sys.stderr)
        return 2
    found, why = rdma.with_verbs(found)
    if why:
        print(why, file=sys.stderr)
    bad = 0
    for device in found:
        for port in device.ports if arguments.device is None or device.name in arguments.device else ():
            gid = best_gid(port)
            if arguments.gid_index is not None:
                gid = next((g for g in port.gids if g.index == arguments.gid_index), None)
            said = loopback(device, port.number, gid)
            bad += bool(said)
            by = f", GID {gid.index} ({gid.kind} {gid.gid})" if gid else ""
            mtu = f", MTU {port.mtu}" if port.mtu else ""
            print(
                f"{device.name} port {port.number}: {port.state}, {port.link_layer}{mtu}{by}: {said or 'loopback good'}"
            )
    return 1 if bad else 0
