"""The self-test of an RDMA device: two of its queue pairs send one another a checked message, by pyverbs.

Independent of our own verbs code on purpose: where this passes and a job does not, the device is not to blame.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from ringcomm.topology.facts import Gid, Port, Rdma

BYTES = 4096
SECONDS = 10.0
"""A message that stays inside the device takes microseconds; an emulated machine may sleep for a second in between."""


def best_gid(port: Port) -> Gid | None:
    """RoCE v2 of an IPv4 address, else RoCE v2, else the first."""
    gids = sorted(port.gids, key=lambda g: ("v2" not in g.kind, ":ffff:" not in g.gid, g.index))
    return gids[0] if gids else None


def loopback(device: Rdma, number: int, gid: Gid | None) -> str:
    """'' if a message came through the port as it was sent, else why not."""
    port = next((port for port in device.ports if port.number == number), None)
    if port is None:
        return f"there is no port {number}"
    if port.state != "ACTIVE":
        return f"the port is {port.state}, not ACTIVE"
    if gid is None:
        return "the port has no GID"
    try:
        verbs = _Verbs()
    except (ImportError, OSError) as error:
        return f"pyverbs cannot be used: {type(error).__name__}: {error} (docs/rdma_lab.md says how to have it)"
    try:
        return _exchange(verbs, device.name, port, gid)
    except Exception as error:  # pyverbs' own errors; a device may refuse any of the calls
        return f"{type(error).__name__}: {error}"


class _Verbs:
    """The modules of pyverbs. Their constants have another home since release 50 or so."""

    def __init__(self) -> None:
        for name in ("addr", "cq", "device", "mr", "pd", "qp", "wr"):
            setattr(self, name, importlib.import_module(f"pyverbs.{name}"))
        try:
            self.enums = importlib.import_module("pyverbs.libibverbs_enums")
        except ImportError:
            self.enums = importlib.import_module("pyverbs.enums")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _exchange(verbs: Any, name: str, port: Port, gid: Gid) -> str:
    enums = verbs.enums
    with verbs.device.Context(name=name) as context:
        pd, cq = verbs.pd.PD(context), verbs.cq.CQ(context, 8)
        memory = verbs.mr.MR(pd, 2 * BYTES, enums.IBV_ACCESS_LOCAL_WRITE)
        capacity = verbs.qp.QPCap(max_send_wr=2, max_recv_wr=2, max_send_sge=1, max_recv_sge=1)
        init = verbs.qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=capacity, sq_sig_all=1)
        writer, reader = (verbs.qp.QP(pd, init) for _ in range(2))
        mtu = context.query_port(port.number).active_mtu
        for own, other in ((writer, reader), (reader, writer)):
            own.to_rts(_attributes(verbs, port, gid, mtu, other.qp_num))
        sent = os.urandom(BYTES)
        memory.write(sent, BYTES, 0)
        memory.write(bytes(BYTES), BYTES, BYTES)
        reader.post_recv(verbs.wr.RecvWR(num_sge=1, sg=[verbs.wr.SGE(memory.buf + BYTES, BYTES, memory.lkey)]))
        piece = verbs.wr.SGE(memory.buf, BYTES, memory.lkey)
        writer.post_send(verbs.wr.SendWR(opcode=enums.IBV_WR_SEND, num_sge=1, sg=[piece]))
        why = _completed(cq, verbs)
        return why or ("" if memory.read(BYTES, BYTES) == sent else "the message came, with other bytes than were sent")


def _attributes(verbs: Any, port: Port, gid: Gid, mtu: int, to: int) -> Any:
    route = verbs.addr.GlobalRoute(dgid=verbs.addr.GID(gid.gid), sgid_index=gid.index)
    attributes = verbs.qp.QPAttr(port_num=port.number)
    attributes.ah_attr = verbs.addr.AHAttr(dlid=port.lid, port_num=port.number, is_global=1, gr=route)
    attributes.dest_qp_num = to
    attributes.path_mtu = mtu
    attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 14, 6, 6
    attributes.min_rnr_timer = 12
    attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
    return attributes


def _completed(cq: Any, verbs: Any) -> str:
    """Both completions, the sender's and the receiver's."""
    done, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        _, completions = cq.poll(2)
        for completion in completions:
            if completion.status != verbs.enums.IBV_WC_SUCCESS:
                return f"completion with status {completion.status}"
            done += 1
        if done == 2:
            return ""
    return f"{done} of 2 completions came in {SECONDS:.0f} s"
