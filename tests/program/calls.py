"""Shared by the program tests: random data for one collective on all ranks, and what numpy says the result is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringcomm.program.ops import CUT, REDUCING, Collective, Program
from ringcomm.program.reference import OPS, Array, Call, cut, execute

Chunks = list[list[Array]]


def lengths(programs: Sequence[Program], rng: np.random.Generator, sizes: Sequence[int]) -> np.ndarray:
    """lengths[i, j]: elements rank i has for rank j; all one number where one message is cut."""
    n = len(programs)
    c = programs[0].collective
    table = rng.choice(sizes, size=(n, n))
    if c in CUT:
        table[:] = table[0, 0]
    elif c in (Collective.all_gather, Collective.gather):
        table[:] = table[:, :1]
    elif c in (Collective.reduce_scatter, Collective.scatter):
        table[:] = table[:1]
    return table


def random_data(rng: np.random.Generator, count: int, dtype: str) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(count).astype(dtype)
    return rng.integers(-1000, 1000, count).astype(dtype)


def make_call(
    programs: Sequence[Program],
    table: np.ndarray,
    piece: int,
    dtype: str,
    seed: int,
    op: str = "sum",
    in_place: bool = False,
) -> tuple[Call, Chunks]:
    """(the call, a copy of its inputs). OUT starts as garbage; in place, IN and OUT share memory where they may."""
    rng = np.random.default_rng(seed)
    c = programs[0].collective
    ins: Chunks = []
    outs: Chunks = []
    for p in programs:
        r = p.rank
        if c in CUT:
            message = random_data(rng, int(table[0, 0]), dtype)
            result = message if in_place else random_data(rng, len(message), dtype)
            ins.append(cut(message, p.nchunks_in) if p.nchunks_in else [])
            outs.append(cut(result, p.nchunks_out) if p.nchunks_out else [])
            continue
        ins.append([random_data(rng, int(table[r, j if p.nchunks_in > 1 else 0]), dtype) for j in range(p.nchunks_in)])
        if c in (Collective.all_gather, Collective.gather, Collective.all_to_all):
            sizes = [int(table[i, r]) for i in range(p.nchunks_out)]
        else:
            sizes = [int(table[0, r])]
        out = [random_data(rng, size, dtype) for size in sizes]
        if in_place and c in (Collective.all_gather, Collective.gather) and out:
            out[r] = ins[-1][0]
        if in_place and c in (Collective.reduce_scatter, Collective.scatter) and p.nchunks_in:
            out[0] = ins[-1][r]
        outs.append(out)
    return Call(programs, ins, outs, piece, op), [[chunk.copy() for chunk in rank] for rank in ins]


def expected(call: Call, inputs: Chunks) -> Chunks:
    """What every OUT chunk must hold, from numpy in float64 (floats) or wrapping integers."""
    programs = call.programs
    n, c, root = len(programs), programs[0].collective, programs[0].root
    cuts = range(max(p.nchunks_in for p in programs))

    def reduced(chunk: int) -> Array:
        stacked = [inputs[i][chunk] for i in range(n)]
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in stacked]
        total = wide[0]
        for x in wide[1:]:
            total = OPS[call.op](total, x)
        if call.op != "avg":
            return total
        return total / n if total.dtype.kind == "f" else np.trunc(total / n).astype(total.dtype)

    results: Chunks = []
    for p in programs:
        r = p.rank
        if c in (Collective.all_reduce, Collective.reduce):
            results.append([reduced(i) for i in cuts] if p.nchunks_out else [])
        elif c == Collective.reduce_scatter:
            results.append([reduced(r)])
        elif c == Collective.broadcast:
            results.append(inputs[root or 0])
        elif c == Collective.scatter:
            results.append([inputs[root or 0][r]])
        elif c == Collective.all_to_all:
            results.append([inputs[i][r] for i in range(n)])
        else:
            results.append([inputs[i][0] for i in range(n)] if p.nchunks_out else [])
    return results


def check_values(call: Call, inputs: Chunks) -> None:
    """After execute: OUT is numpy's: exactly for integers and moved data, closely for float sums; ranks agree."""
    want = expected(call, inputs)
    exact = call.programs[0].collective not in REDUCING or len(call.programs) == 1
    for rank, (got, right) in enumerate(zip(call.outs, want, strict=True)):
        for chunk, (a, b) in enumerate(zip(got, right, strict=True)):
            where = f"rank {rank} OUT {chunk}"
            if exact or a.dtype.kind != "f":
                np.testing.assert_array_equal(a, b, err_msg=where)
            else:
                tolerance = {2: 2e-2, 4: 1e-4, 8: 1e-12}[a.dtype.itemsize]
                np.testing.assert_allclose(a.astype(np.float64), b, rtol=tolerance, atol=tolerance, err_msg=where)
    if call.programs[0].collective == Collective.all_reduce:
        for got in call.outs[1:]:
            for a, b in zip(got, call.outs[0], strict=True):
                assert a.tobytes() == b.tobytes(), "ranks differ in bits"


def run_and_check(
    programs: Sequence[Program], seed: int, dtype: str = "float32", op: str = "sum", in_place: bool = False
) -> None:
    """Random sizes (0, 1, odd, many pieces), then execute twice back to back and compare with numpy.

    Every other seed or so the ranks run in random order and lend what they may.
    """
    rng = np.random.default_rng(seed)
    piece = int(rng.choice([1, 3, 16]))
    sizes = [0, 1, 7, 16, 33, 16 * len(programs) * 5 + 3]
    pairs = [make_call(programs, lengths(programs, rng, sizes), piece, dtype, seed + k, op, in_place) for k in range(2)]
    execute([call for call, _ in pairs], rng=rng if rng.random() < 0.5 else None)
    for call, inputs in pairs:
        check_values(call, inputs)
