"""The other end of tests/native/verbs_partner_test.cpp, in pyverbs and from the descriptions in docs/tcp.md and
docs/rdma.md alone: it shares no code with the connections it talks to.

    pyverbs_peer.py DEVICE GID_INDEX FILE

It is rank 1: says `port N`, where it listens, and waits for the file, which holds its partner's address. Runs with the
distribution's Python, which has pyverbs and not torch.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pyverbs.addr as verbs_addr
import pyverbs.wr as verbs_wr
from pyverbs import enums
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

MAGIC = b"ringtcp\x01"
KEY = b"the key of two partners"
TOPIC = bytes(range(16))
SIZES = (0, 8, 56, 57, 4096, 20000, 64 << 10)
MESSAGES, SLOTS, CAPACITY, WINDOW, INLINE = 70, 4, 64 << 10, 64, 56
ASK_FOR_COUNT = 1 << 31
STRIDE = CAPACITY + 64
VERSION, OFFER, ANSWER, ASK, SLOT_NOTE = 2, 1, 2, 3, 4
NOTE = struct.Struct("<IIIIHBBI16sQQII")
SECONDS = 60.0
_RAMP = bytes((i * 7 + (i >> 8)) & 255 for i in range(CAPACITY))


def pattern(stream: int, k: int, size: int) -> bytes:
    """check.h: pattern()."""
    first = stream * 101 + k * 37
    return _RAMP[:size].translate(bytes((value + first) & 255 for value in range(256)))


def exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        assert part, "the partner has hung up"
        data += part
    return data


def sign(who: bytes, acceptors: bytes, diallers: bytes, greeting: bytes) -> bytes:
    return hmac.new(KEY, who + b"\0" + MAGIC + acceptors + diallers + greeting, hashlib.sha256).digest()


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.create_connection((host, int(port)), SECONDS)
    peer.settimeout(SECONDS)
    hello = exactly(peer, 40)
    assert hello[:8] == MAGIC, hello
    # topic; purpose 1: data; kind 16: a pair over verbs; channel 0; from rank 1; version 1
    greeting = struct.pack("<16sBBHiII", TOPIC, 1, 16, 0, 1, MAGIC[7], 0)
    mine = os.urandom(32)
    peer.sendall(MAGIC + greeting + mine + sign(b"dial", hello[8:], mine, greeting))
    assert exactly(peer, 32) == sign(b"accept", hello[8:], mine, greeting), "the partner has another key"
    return peer


def accepted(listener: socket.socket) -> socket.socket:
    peer, _ = listener.accept()
    peer.settimeout(SECONDS)
    mine = os.urandom(32)
    peer.sendall(MAGIC + mine)
    answer = exactly(peer, 104)
    greeting, theirs, proof = answer[8:40], answer[40:72], answer[72:]
    assert answer[:8] == MAGIC and proof == sign(b"dial", mine, theirs, greeting)
    assert struct.unpack("<16sBBHiII", greeting)[:5] == (TOPIC, 1, 16, 0, 0)
    peer.sendall(sign(b"accept", mine, theirs, greeting))
    return peer


class End:
    """A queue pair with a completion queue of its own."""

    def __init__(self, context: Any, pd: Any, gid: str, index: int) -> None:
        self.pd, self.gid, self.index = pd, gid, index
        self.mtu = int(context.query_port(1).active_mtu)
        self.cq = CQ(context, 4 * WINDOW)
        capacity = QPCap(max_send_wr=2 * WINDOW, max_recv_wr=WINDOW, max_send_sge=2, max_recv_sge=1)
        init = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity, sq_sig_all=1)
        self.qp = QP(pd, init)
        self.psn = int.from_bytes(os.urandom(3), "little")
        self.received: list[int] = []
        self.spare = MR(pd, 64, enums.IBV_ACCESS_LOCAL_WRITE)

    def note(self, kind: int, memory: int = 0, rkey: int = 0) -> bytes:
        raw = socket.inet_pton(socket.AF_INET6, self.gid)
        own = (self.qp.qp_num, self.psn, 0, self.mtu, 1, SLOTS, raw)
        return NOTE.pack(kind, VERSION, *own, memory, CAPACITY, rkey, 0)

    def connect(self, note: tuple[Any, ...]) -> None:
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        gid = verbs_addr.GID(note[8].hex(":", 2))  # in full: it does not know the short forms
        route = verbs_addr.GlobalRoute(dgid=gid, sgid_index=self.index)
        attributes.ah_attr = verbs_addr.AHAttr(port_num=1, is_global=1, gr=route)
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = note[2], note[3], self.psn
        attributes.path_mtu = min(self.mtu, note[5])
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry, attributes.min_rnr_timer = 18, 6, 6, 12
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        self.qp.to_rts(attributes)

    def expect(self, receives: int) -> None:
        # Nothing is written there, but pyverbs takes no request without a piece of memory.
        piece = verbs_wr.SGE(self.spare.buf, 64, self.spare.lkey)
        for _ in range(receives):
            self.qp.post_recv(verbs_wr.RecvWR(num_sge=1, sg=[piece]))

    def write(self, data: list[tuple[Any, int, int]], to: tuple[int, int], immediate: int) -> None:
        """data: (memory, offset, bytes) each, which go one behind the other. to: (address, key)."""
        pieces = [verbs_wr.SGE(memory.buf + offset, size, memory.lkey) for memory, offset, size in data]
        opcode = enums.IBV_WR_RDMA_WRITE_WITH_IMM
        request = verbs_wr.SendWR(opcode=opcode, num_sge=len(pieces), sg=pieces, imm_data=socket.htonl(immediate))
        request.set_wr_rdma(to[1], to[0])
        self.qp.post_send(request)

    def poll(self) -> None:
        """Checks every completion; those of receives leave their immediate value."""
        for completion in self.cq.poll(16)[1]:
            assert completion.status == enums.IBV_WC_SUCCESS, f"completion with status {completion.status}"
            if completion.opcode & enums.IBV_WC_RECV:
                self.received.append(socket.ntohl(completion.imm_data))
                self.expect(1)

    def wait(self, what: str, ready: Any) -> None:
        end = time.monotonic() + SECONDS
        while not ready():
            assert time.monotonic() < end, f"{what} did not come in {SECONDS:.0f} s"
            self.poll()


class Writer(End):
    """Messages of ours to the partner."""

    def meet(self, peer: socket.socket) -> None:
        self.peer = peer
        peer.sendall(self.note(OFFER))
        note = NOTE.unpack(exactly(peer, NOTE.size))
        assert note[0] == ANSWER and note[1] == VERSION, note
        self.connect(note)
        self.expect(WINDOW)
        self.lines, self.slots, self.large = (note[9], note[11]), (0, 0), 0
        self.memory = MR(self.pd, 64 * WINDOW + SLOTS * CAPACITY, enums.IBV_ACCESS_LOCAL_WRITE)

    def send(self, k: int, tag: int, payload: bytes) -> None:
        if len(payload) > INLINE and not self.large:
            self.peer.sendall(self.note(ASK))
            note = NOTE.unpack(exactly(self.peer, NOTE.size))
            assert note[0] == SLOT_NOTE, note
            self.slots = note[9], note[11]
        line = struct.pack("<II", k + 1, tag) + (payload if len(payload) <= INLINE else b"")
        offset = 64 * (k % WINDOW)
        self.memory.write(line, len(line), offset)
        data, target = [(self.memory, offset, len(line))], (self.lines[0] + offset, self.lines[1])
        if len(payload) > INLINE:
            slot = self.large % SLOTS
            place = 64 * WINDOW + slot * CAPACITY
            self.memory.write(payload, len(payload), place)
            data, target = [(self.memory, place, len(payload)), *data], (self.slots[0] + slot * STRIDE, self.slots[1])
            self.large += 1
        self.write(data, target, len(payload) | ASK_FOR_COUNT)

    def settle(self, count: int) -> None:
        self.wait(f"the count {count}", lambda: self.received and self.received[-1] == count)


class Reader(End):
    """Messages of the partner's to us."""

    def meet(self, peer: socket.socket) -> None:
        note = NOTE.unpack(exactly(peer, NOTE.size))
        assert (note[0], note[1], note[7], note[10]) == (OFFER, VERSION, SLOTS, CAPACITY), note
        self.peer, self.large = peer, 0
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.lines, self.memory = MR(self.pd, 64 * WINDOW, access), MR(self.pd, SLOTS * STRIDE, access)
        self.connect(note)
        self.expect(WINDOW)
        peer.sendall(self.note(ANSWER, self.lines.buf, self.lines.rkey))
        peer.setblocking(False)

    def asked(self) -> None:
        try:
            data = self.peer.recv(NOTE.size)
        except BlockingIOError:
            return
        if data:
            assert NOTE.unpack(data)[0] == ASK
            self.peer.sendall(self.note(SLOT_NOTE, self.memory.buf, self.memory.rkey))

    def take(self, k: int, tag: int, payload: bytes) -> None:
        def there() -> bool:
            self.asked()
            return len(self.received) > k

        self.wait(f"message {k}", there)
        assert self.received[k] & ~ASK_FOR_COUNT == len(payload), f"message {k} has another length"
        if len(payload) <= INLINE:
            head = self.lines.read(8, 64 * (k % WINDOW))
            found = self.lines.read(len(payload), 64 * (k % WINDOW) + 8) if payload else b""
        else:
            found = self.memory.read(len(payload), self.large % SLOTS * STRIDE)
            head = self.memory.read(8, self.large % SLOTS * STRIDE + len(payload))
            self.large += 1
        position, said = struct.unpack("<II", head)
        assert (position, said) == (k + 1, tag), f"message {k}: position {position}, tag {said}"
        assert found == payload, f"message {k} of {len(payload)} bytes has other content"
        self.write([(self.spare, 0, 0)], (0, 0), k + 1)


def main() -> None:
    device, index, partner = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    gid = Path(f"/sys/class/infiniband/{device}/ports/1/gids/{index}").read_text().strip()
    listener = socket.create_server(("", 0))
    listener.settimeout(SECONDS)
    print(f"port {listener.getsockname()[1]}", flush=True)
    end = time.monotonic() + SECONDS
    while not partner.exists():
        assert time.monotonic() < end, "no partner"
        time.sleep(0.05)
    context = Context(name=device)
    pd = PD(context)
    writer, reader = Writer(context, pd, gid, index), Reader(context, pd, gid, index)
    writer.meet(dialled(partner.read_text()))
    reader.meet(accepted(listener))
    for k in range(MESSAGES):
        size = SIZES[k % len(SIZES)]
        writer.send(k, 3 * k, pattern(2, k, size))
        writer.poll()  # counts have come: for each there must be a receive again
        reader.take(k, 3 * k, pattern(1, k, size))
    writer.settle(MESSAGES)
    reader.wait("what is under way", lambda: True)
    print(f"pyverbs: {MESSAGES} messages each way", flush=True)


if __name__ == "__main__":
    main()
