"""Asks the RDMA lab for a fault, from inside: `$RDMA_LAB_CTL link 1 down`, or `ask("link", 1, "down")` in Python.

link NODE up|down       the node's RDMA link; returns when the device has followed
netem NODE loss 1%|...  what the node sends by RDMA is treated as tc's netem says; netem NODE off
kill NODE [SIGNAL]      all processes of the node (signal KILL)
counters NODE           prints the hw_counters of the node's device, as JSON
"""

from __future__ import annotations

import json
import os
import socket
import sys


def ask(*words: object) -> str:
    """What the lab answers; RuntimeError where it could not."""
    with socket.socket(socket.AF_UNIX) as lab:
        lab.connect(os.environ["RDMA_LAB_CONTROL"])
        lab.sendall(json.dumps([str(word) for word in words]).encode() + b"\n")
        answer = json.loads(lab.makefile().read() or '{"good": false, "text": "the lab has ended"}')
    if not answer["good"]:
        raise RuntimeError(answer["text"])
    return str(answer["text"])


def counters(node: int) -> dict[str, int]:
    found: dict[str, int] = json.loads(ask("counters", node))
    return found


if __name__ == "__main__":
    try:
        print(ask(*sys.argv[1:]))
    except (RuntimeError, OSError, KeyError) as error:
        sys.exit(f"rdma_lab_ctl: {error}")
