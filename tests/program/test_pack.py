"""Packing loses nothing, and a table that is no program is refused with the word that is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ringcomm.program.ops import Opcode, ScheduleError
from ringcomm.program.pack import CONNECTION, HEADER, STEP, TableError, pack, unpack
from ringcomm.schedules import BUILT_IN, build, build_all, roots


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("schedule", sorted(BUILT_IN))
def test_round_trip(schedule: str, ranks: int) -> None:
    for collective in BUILT_IN[schedule].collectives:
        for root in roots(collective, ranks):
            for program in build_all(collective, schedule, ranks, root):
                table = pack(program)
                assert table.dtype == np.int32
                assert unpack(table) == program
                assert pack(unpack(table)).tolist() == table.tolist()


def test_table_by_hand() -> None:
    """The ring at n = 2 on rank 0, every word written out from docs/program.md."""
    i, o, rx, tx = (kind << 28 for kind in range(4))
    header = [0x52434F4D, 2, 0, 2, 0, -1, 2, 2, 3, 6, 1, 1, 2, 4, 0, 0]
    steps = [
        *(1, 4, 0, i | 1, -1, 0, 1, 1),  # send IN 1, lag 0, lends always
        *(5, 5, 1, o | 0, o | 0, 2, 2, 1),  # reduce_send IN 0 + receiver 0 -> OUT 0, finish, lag 1, lends always
        *(2, 0, 2, o | 1, o | 1, 5, 1, 0),  # receive receiver 0 -> OUT 1, lag 2
    ]
    refs = [i | 1, tx | 0, i | 0, rx | 0, tx | 0, rx | 0]
    assert pack(build("all_reduce", "ring", 2, 0)).tolist() == [*header, *steps, *refs, 0, 1, 0, 0, 1, 0]


def _changed(position: int, value: int) -> np.ndarray:
    table = pack(build("all_reduce", "two_shot", 3, 1)).copy()
    table[position] = value
    return table


NSTEPS = 5  # of two_shot at n = 3
NREFS = int(pack(build("all_reduce", "two_shot", 3, 1))[HEADER.index("nrefs")])
SENDERS = len(HEADER) + NSTEPS * len(STEP) + NREFS


@pytest.mark.parametrize(
    ("position", "value", "word"),
    [
        *(
            (HEADER.index(name), value, name)
            for name, value in [
                ("magic", 7),
                ("version", 1),
                ("collective", 8),
                ("collective", -1),
                ("nsteps", -1),
                ("nchunks_in", -3),
                ("max_lag", 1),
                ("slots", 0),
                ("flags", 2),
                ("reserved", 1),
            ]
        ),
        (HEADER.index("nsteps"), 6, "words"),
        (HEADER.index("nrefs"), NREFS + 1, "words"),
        (HEADER.index("nranks"), 0, "ranks"),
        (HEADER.index("rank"), 3, "rank"),
        (HEADER.index("root"), 1, "root"),
        (HEADER.index("nchunks_out"), 2, "nchunks_out"),
        (16 + STEP.index("opcode"), 9, "opcode"),
        (16 + STEP.index("flags"), 6, "flags"),
        (16 + 3 * len(STEP) + STEP.index("flags"), 2, "lend"),  # a receive has nothing to lend
        (16 + STEP.index("lag"), -1, "lag"),
        (16 + STEP.index("chunk"), 5 << 28, "ref"),
        (16 + STEP.index("chunk"), 99, "IN 99"),
        (16 + STEP.index("dst"), 1 << 28 | 3, "destinations"),
        (16 + STEP.index("first_ref"), 1, "first_ref"),
        (16 + STEP.index("nsources"), 100, "nsources"),
        (16 + STEP.index("nsenders"), 100, "nsenders"),
        (16 + NSTEPS * len(STEP), -1, "ref"),
        (16 + NSTEPS * len(STEP), 2 << 28 | 17, "receiver 17"),
        (SENDERS, 2, "connection kind"),
        (SENDERS + CONNECTION.index("peer"), 1, "peer"),
        (SENDERS + CONNECTION.index("reader_set"), 1, "reader_set"),
    ],
)
def test_wrong_word_is_named(position: int, value: int, word: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(word)):
        unpack(_changed(position, value))


def test_truncated_or_mistyped_tables_are_refused() -> None:
    table = pack(build("all_reduce", "ring", 4, 0))
    for length in range(len(table)):
        with pytest.raises(TableError, match="words"):
            unpack(table[:length])
    with pytest.raises(TableError, match="int32"):
        unpack(table.astype(np.int64))  # type: ignore[arg-type]


def test_no_word_can_be_changed_unseen_or_crash() -> None:
    """Every word, a few values: the table is refused as a ScheduleError, or unpacks to a program that packs to it."""
    table = pack(build("broadcast", "tree", 5, 1, 0))
    assert Opcode.forward in [step.opcode for step in unpack(table).steps]
    for position in range(len(table)):
        for value in (-1, 0, 1, 2, 3, 1 << 28, 2 << 28, 3 << 28, 2**31 - 1, -(2**31)):
            changed = table.copy()
            changed[position] = value
            try:
                program = unpack(changed)
            except ScheduleError:
                continue
            assert pack(program).tolist() == changed.tolist()
