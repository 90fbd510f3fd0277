"""Program <-> the int32 table of docs/program.md. The only Python that knows the binary layout."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ringcomm.program.check import check
from ringcomm.program.ops import (
    WITH_PROGRAM,
    Collective,
    Connection,
    ConnectionKind,
    Lend,
    Opcode,
    Program,
    Ref,
    RefKind,
    ScheduleError,
    Step,
)

MAGIC = 0x52434F4D  # "RCOM"
VERSION = 2
HEADER = (
    *("magic", "version", "collective", "nranks", "rank", "root", "nchunks_in", "nchunks_out"),
    *("nsteps", "nrefs", "nsenders", "nreceivers", "max_lag", "slots", "flags", "reserved"),
)
STEP = ("opcode", "flags", "lag", "chunk", "dst", "first_ref", "nsources", "nsenders")
CONNECTION = ("kind", "peer", "reader_set")
REF_KIND_SHIFT = 28
NO_REF = -1
FLAG_FINISH = 1
LEND_SHIFT = 1
FLAG_DRAIN = 1

Table = npt.NDArray[np.int32]
_Enum = TypeVar("_Enum", bound=IntEnum)


class TableError(ScheduleError):
    """A table that is no program; the message names the word that is wrong, its value and what is allowed."""


def pack(program: Program) -> Table:
    """One-dimensional int32 array in native byte order (little endian on every machine we support)."""
    check(program)
    steps: list[int] = []
    refs: list[int] = []
    for s in program.steps:
        dst = NO_REF if s.dst is None else _word(s.dst)
        counts = (len(refs), len(s.sources), len(s.senders))
        flags = (FLAG_FINISH if s.finish else 0) | s.lend << LEND_SHIFT
        steps += [s.opcode, flags, s.lag, _word(s.chunk), dst, *counts]
        refs += [_word(ref) for ref in (*s.sources, *s.senders)]
    p = program
    header = [
        *(MAGIC, VERSION, p.collective, p.ranks, p.rank, NO_REF if p.root is None else p.root),
        *(p.nchunks_in, p.nchunks_out, len(p.steps), len(refs), len(p.senders), len(p.receivers)),
        *(p.max_lag, p.slots, FLAG_DRAIN if p.drain else 0, 0),
    ]
    connections = [word for c in (*p.senders, *p.receivers) for word in (c.kind, c.peer, 0)]
    return np.array([*header, *steps, *refs, *connections], dtype=np.int32)


def unpack(table: Table) -> Program:
    """The inverse of pack. Raises TableError for a malformed table, ScheduleError for a program that is not legal."""
    if not isinstance(table, np.ndarray) or table.dtype != np.int32 or table.ndim != 1:
        raise TableError(f"table: must be a one-dimensional int32 array, not {getattr(table, 'dtype', type(table))}")
    words = table.tolist()
    if len(words) < len(HEADER):
        raise TableError(f"table: {len(words)} words; the header alone has {len(HEADER)}")
    head = dict(zip(HEADER, words, strict=False))
    _check_header(head, len(words))
    step_at = len(HEADER)
    ref_at = step_at + len(STEP) * head["nsteps"]
    sender_at = ref_at + head["nrefs"]
    receiver_at = sender_at + len(CONNECTION) * head["nsenders"]
    refs = [_ref(words, ref_at + i) for i in range(head["nrefs"])]
    program = Program(
        Collective(head["collective"]),
        head["nranks"],
        head["rank"],
        None if head["root"] == NO_REF else head["root"],
        head["nchunks_in"],
        head["nchunks_out"],
        steps=_steps(words, step_at, head["nsteps"], refs),
        senders=_connections(words, sender_at, head["nsenders"]),
        receivers=_connections(words, receiver_at, head["nreceivers"]),
        slots=head["slots"],
        drain=head["flags"] == FLAG_DRAIN,
    )
    if program.max_lag != head["max_lag"]:
        raise _wrong(
            HEADER.index("max_lag"), "max_lag", head["max_lag"], f"{program.max_lag}, the largest of the steps"
        )
    check(program)
    return program


def _check_header(head: dict[str, int], nwords: int) -> None:
    def require(name: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise _wrong(HEADER.index(name), name, head[name], allowed)

    require("magic", head["magic"] == MAGIC, f"{MAGIC} (0x{MAGIC:x})")
    require("version", head["version"] == VERSION, f"{VERSION}")
    require("collective", head["collective"] in WITH_PROGRAM, f"0..{max(WITH_PROGRAM)}")
    for name in ("nsteps", "nrefs", "nsenders", "nreceivers", "nchunks_in", "nchunks_out", "max_lag"):
        require(name, head[name] >= 0, "0 or more")
    require("slots", head["slots"] >= 1, "1 or more")
    require("flags", head["flags"] in (0, FLAG_DRAIN), f"0 or {FLAG_DRAIN}")
    require("reserved", head["reserved"] == 0, "0")
    ends = len(CONNECTION) * (head["nsenders"] + head["nreceivers"])
    want = len(HEADER) + len(STEP) * head["nsteps"] + head["nrefs"] + ends
    if nwords != want:
        raise TableError(
            f"table: {nwords} words, but the counts in words 8..11 (nsteps {head['nsteps']}, nrefs {head['nrefs']}, "
            f"nsenders {head['nsenders']}, nreceivers {head['nreceivers']}) make {want}"
        )


def _steps(words: list[int], at: int, count: int, refs: list[Ref]) -> tuple[Step, ...]:
    steps = []
    next_ref = 0
    for i in range(count):
        base = at + len(STEP) * i
        row = dict(zip(STEP, words[base : base + len(STEP)], strict=True))

        def require(
            name: str, ok: bool, allowed: str, base: int = base, row: dict[str, int] = row, where: str = f"step {i} "
        ) -> None:
            if not ok:
                raise _wrong(base + STEP.index(name), where + name, row[name], allowed)

        most = FLAG_FINISH | max(Lend) << LEND_SHIFT
        require("flags", 0 <= row["flags"] <= most, f"0..{most}, {FLAG_FINISH} for finish and lend << {LEND_SHIFT}")
        require("lag", row["lag"] >= 0, "0 or more")
        require("first_ref", row["first_ref"] == next_ref, f"{next_ref}, where the previous step's refs end")
        left = len(refs) - next_ref
        require("nsources", 0 <= row["nsources"] <= left, f"0..{left}")
        left -= row["nsources"]
        require("nsenders", 0 <= row["nsenders"] <= left, f"0..{left}")
        middle = next_ref + row["nsources"]
        first, next_ref = next_ref, middle + row["nsenders"]
        steps.append(
            Step(
                _enum(Opcode, words, base, f"step {i} opcode"),
                _ref(words, base + STEP.index("chunk")),
                tuple(refs[first:middle]),
                None if row["dst"] == NO_REF else _ref(words, base + STEP.index("dst")),
                tuple(refs[middle:next_ref]),
                bool(row["flags"] & FLAG_FINISH),
                row["lag"],
                Lend(row["flags"] >> LEND_SHIFT),
            )
        )
    if next_ref != len(refs):
        raise _wrong(HEADER.index("nrefs"), "nrefs", len(refs), f"{next_ref}, what the steps name")
    return tuple(steps)


def _connections(words: list[int], at: int, count: int) -> tuple[Connection, ...]:
    found = []
    for base in range(at, at + len(CONNECTION) * count, len(CONNECTION)):
        if words[base + 2] != 0:
            raise _wrong(base + 2, "reader_set", words[base + 2], "0 (all other ranks)")
        found.append(Connection(_enum(ConnectionKind, words, base, "connection kind"), words[base + 1]))
    return tuple(found)


def _word(ref: Ref) -> int:
    return ref.kind << REF_KIND_SHIFT | ref.index


def _ref(words: list[int], at: int) -> Ref:
    kind, index = words[at] >> REF_KIND_SHIFT, words[at] & ((1 << REF_KIND_SHIFT) - 1)
    if kind not in tuple(RefKind):
        raise _wrong(at, "ref", words[at], f"kind << {REF_KIND_SHIFT} | index with kind 0..{max(RefKind)}")
    return Ref(RefKind(kind), index)


def _enum(kind: type[_Enum], words: list[int], at: int, name: str) -> _Enum:
    if words[at] not in tuple(kind):
        raise _wrong(at, name, words[at], f"0..{max(kind)}")
    return kind(words[at])


def _wrong(at: int, name: str, value: int, allowed: str) -> TableError:
    return TableError(f"table word {at} ({name}): {value}; allowed: {allowed}")
