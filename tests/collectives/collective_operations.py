"""Every collective of c10d as one checked call: makes the inputs, calls, yields (what, got, wanted).

The bodies read like the operation's definition: what rank r gives, what this rank must get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from collective_inputs import COMPLEX, REDUCIBLE, Placed, raw, same_bits, values
from collective_results import PREMUL_FACTOR, fold

Check = tuple[str, Tensor, Tensor]


@dataclass
class Case:
    """One call. `rows` and `shape`: the tensor of a rank is `shape`; what is n times as large has n times its rows."""

    operation: str
    dtype: torch.dtype = torch.float32
    op: str = "sum"
    shape: tuple[int, ...] = (7,)
    layout: str = "contiguous"
    root: int = 0
    seed: int = 1
    lenders: int = 0
    """A bit per rank: whose tensors lie in registered memory."""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "0-dim"
        more = f"root {self.root} seed {self.seed} lenders {self.lenders:b}"
        return f"{self.operation} {self.dtype} {self.op} {shape} {self.layout} {more}"


@dataclass
class Call:
    """A case on one rank of a group, with the tensors it made."""

    case: Case
    rank: int
    ranks: int
    group: Any = None
    inputs: list[Placed] = field(default_factory=list)
    outputs: list[Placed] = field(default_factory=list)

    def give(self, content: Tensor) -> Tensor:
        self.inputs.append(Placed(content, self.layout_for(content), self.registered))
        return self.inputs[-1].tensor

    def take(self, content: Tensor) -> Tensor:
        """A tensor that the call writes; `content` is what it holds before."""
        layout = self.layout_for(content)
        self.outputs.append(Placed(content, "contiguous" if layout == "expanded" else layout, self.registered))
        return self.outputs[-1].tensor

    def blank(self, shape: tuple[int, ...]) -> Tensor:
        return self.take(values(50 + self.rank, 3, shape, self.case.dtype))

    def of(self, rank: int, part: int = 0, shape: tuple[int, ...] | None = None) -> Tensor:
        """What `rank` contributes (its `part`-th tensor)."""
        case = self.case
        wanted = case.shape if shape is None else shape
        own = (*wanted[:-1], 1) if wanted and case.layout == "expanded" else wanted
        return values(rank, case.seed * 16 + part, own, case.dtype, case.op).expand(wanted)

    def all(self, part: int = 0, shape: tuple[int, ...] | None = None) -> list[Tensor]:
        return [self.of(rank, part, shape) for rank in range(self.ranks)]

    def layout_for(self, content: Tensor) -> str:
        return "contiguous" if content.dim() == 0 and self.case.layout != "offset" else self.case.layout

    @property
    def registered(self) -> bool:
        return bool(self.case.lenders >> self.rank & 1)

    @property
    def reduce_op(self) -> Any:
        if self.case.op == "premul_sum":
            return dist._make_nccl_premul_sum(PREMUL_FACTOR)
        return getattr(dist.ReduceOp, self.case.op.upper())

    @property
    def root(self) -> int:
        group: Any = self.group or dist.group.WORLD
        return dist.get_global_rank(group, self.case.root)

    @property
    def is_root(self) -> bool:
        return self.rank == self.case.root

    @property
    def wide(self) -> tuple[int, ...]:
        """The shape of a tensor that holds one of `case.shape` per rank."""
        shape = self.case.shape or (1,)
        return (shape[0] * self.ranks, *shape[1:])


def all_reduce(c: Call) -> Iterator[Check]:
    tensor = c.take(c.of(c.rank))
    dist.all_reduce(tensor, c.reduce_op, c.group)
    yield "tensor", tensor, fold(c.case.op, c.all())


def all_reduce_coalesced(c: Call) -> Iterator[Check]:
    shapes = [c.case.shape, (3, *c.case.shape), ()]
    tensors = [c.take(c.of(c.rank, i, shape)) for i, shape in enumerate(shapes)]
    dist.all_reduce_coalesced(tensors, c.reduce_op, c.group)
    for i, shape in enumerate(shapes):
        yield f"tensor {i}", tensors[i], fold(c.case.op, c.all(i, shape))


def broadcast(c: Call) -> Iterator[Check]:
    tensor = c.give(c.of(c.rank)) if c.is_root else c.blank(c.case.shape)
    dist.broadcast(tensor, c.root, c.group)
    yield "tensor", tensor, c.of(c.case.root)


def reduce(c: Call) -> Iterator[Check]:
    """Only the root's tensor changes: elsewhere it counts as an input."""
    tensor = (c.take if c.is_root else c.give)(c.of(c.rank))
    dist.reduce(tensor, c.root, c.reduce_op, c.group)
    yield "tensor", tensor, fold(c.case.op, c.all()) if c.is_root else c.of(c.rank)


def all_gather(c: Call) -> Iterator[Check]:
    outputs = [c.blank(c.case.shape) for _ in range(c.ranks)]
    dist.all_gather(outputs, c.give(c.of(c.rank)), c.group)
    yield from _each("output", outputs, c.all())


def all_gather_into_tensor(c: Call) -> Iterator[Check]:
    output = c.blank(c.wide)
    dist.all_gather_into_tensor(output, c.give(c.of(c.rank)), c.group)
    yield "output", output, torch.cat([t.reshape(c.case.shape or (1,)) for t in c.all()])


def all_gather_coalesced(c: Call) -> Iterator[Check]:
    shapes = [c.case.shape, (2, *c.case.shape)]
    outputs = [[c.blank(shape) for shape in shapes] for _ in range(c.ranks)]
    dist.all_gather_coalesced(outputs, [c.give(c.of(c.rank, i, shape)) for i, shape in enumerate(shapes)], c.group)
    for rank, row in enumerate(outputs):
        yield from _each(f"outputs of rank {rank}", row, [c.of(rank, i, shape) for i, shape in enumerate(shapes)])


def all_gather_into_tensor_coalesced(c: Call) -> Iterator[Check]:
    outputs = [c.blank(c.wide) for _ in range(3)]
    with dist._coalescing_manager(c.group):
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, c.give(c.of(c.rank, i)), c.group)
    for i, output in enumerate(outputs):
        yield f"output {i}", output, torch.cat([t.reshape(c.case.shape or (1,)) for t in c.all(i)])


def reduce_scatter(c: Call) -> Iterator[Check]:
    output = c.blank(c.case.shape)
    inputs = [c.give(c.of(c.rank, part)) for part in range(c.ranks)]
    dist.reduce_scatter(output, inputs, c.reduce_op, c.group)
    yield "output", output, fold(c.case.op, c.all(c.rank))


def reduce_scatter_tensor(c: Call) -> Iterator[Check]:
    output = c.blank(c.case.shape or (1,))
    dist.reduce_scatter_tensor(output, c.give(c.of(c.rank, 0, c.wide)), c.reduce_op, c.group)
    yield "output", output, fold(c.case.op, c.all(0, c.wide)).chunk(c.ranks)[c.rank]


def reduce_scatter_tensor_coalesced(c: Call) -> Iterator[Check]:
    outputs = [c.blank(c.case.shape or (1,)) for _ in range(3)]
    with dist._coalescing_manager(c.group):
        for i, output in enumerate(outputs):
            dist.reduce_scatter_tensor(output, c.give(c.of(c.rank, i, c.wide)), c.reduce_op, c.group)
    for i, output in enumerate(outputs):
        yield f"output {i}", output, fold(c.case.op, c.all(i, c.wide)).chunk(c.ranks)[c.rank]


def all_to_all_single(c: Call) -> Iterator[Check]:
    output = c.blank(c.wide)
    dist.all_to_all_single(output, c.give(c.of(c.rank, 0, c.wide)), group=c.group)
    yield "output", output, torch.cat([t.chunk(c.ranks)[c.rank] for t in c.all(0, c.wide)])


def all_to_all_split(c: Call) -> Iterator[Check]:
    """Rank a sends (a + 2 b + seed) mod 4 of `shape[0]` rows to rank b: some pairs nothing, each pair another size."""
    unit, rest = c.case.shape[0], c.case.shape[1:]
    splits = [[unit * ((a + 2 * b + c.case.seed) % 4) for b in range(c.ranks)] for a in range(c.ranks)]
    sent = [c.of(a, 0, (sum(splits[a]), *rest)) for a in range(c.ranks)]
    incoming = [splits[a][c.rank] for a in range(c.ranks)]
    output = c.blank((sum(incoming), *rest))
    dist.all_to_all_single(output, c.give(sent[c.rank]), incoming, splits[c.rank], c.group)
    yield "output", output, torch.cat([sent[a].split(splits[a])[c.rank] for a in range(c.ranks)])


def all_to_all(c: Call) -> Iterator[Check]:
    """Lists; each pair has its own shape."""
    shapes = [[(a + 2 * b, *c.case.shape) for b in range(c.ranks)] for a in range(c.ranks)]
    outputs = [c.blank(shapes[a][c.rank]) for a in range(c.ranks)]
    dist.all_to_all(outputs, [c.give(c.of(c.rank, b, shapes[c.rank][b])) for b in range(c.ranks)], c.group)
    yield from _each("output", outputs, [c.of(a, c.rank, shapes[a][c.rank]) for a in range(c.ranks)])


def gather(c: Call) -> Iterator[Check]:
    outputs = [c.blank(c.case.shape) for _ in range(c.ranks)] if c.is_root else None
    dist.gather(c.give(c.of(c.rank)), outputs, c.root, c.group)
    yield from _each("output", outputs or [], c.all() if c.is_root else [])


def scatter(c: Call) -> Iterator[Check]:
    inputs = [c.give(c.of(c.rank, part)) for part in range(c.ranks)] if c.is_root else None
    output = c.blank(c.case.shape)
    dist.scatter(output, inputs, c.root, c.group)
    yield "output", output, c.of(c.case.root, c.rank)


def _each(what: str, got: Sequence[Tensor], wanted: Sequence[Tensor]) -> Iterator[Check]:
    for i, pair in enumerate(zip(got, wanted, strict=True)):
        yield f"{what} {i}", *pair


REDUCING: dict[str, Callable[[Call], Iterator[Check]]] = {
    f.__name__: f
    for f in (
        all_reduce,
        all_reduce_coalesced,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        reduce_scatter_tensor_coalesced,
    )
}
MOVING: dict[str, Callable[[Call], Iterator[Check]]] = {
    f.__name__: f
    for f in (
        broadcast,
        all_gather,
        all_gather_into_tensor,
        all_gather_coalesced,
        all_gather_into_tensor_coalesced,
        all_to_all_single,
        all_to_all_split,
        all_to_all,
        gather,
        scatter,
    )
}
OPERATIONS = REDUCING | MOVING
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def run_cases(
    rank: int, world: int, cases: Sequence[Case], group: Any = None, spoil: Callable[[Call], None] | None = None
) -> list[str]:
    """A rank function: runs the cases in order and returns what was wrong, as sentences; empty if nothing was.

    spoil: called after each operation and before the results are looked at; for proving that they are."""
    wrong: list[str] = []
    for case in cases:
        call = Call(case, dist.get_rank(group), dist.get_world_size(group), group)
        try:
            for number, (what, got, wanted) in enumerate(OPERATIONS[case.operation](call)):
                if spoil is not None and number == 0:
                    spoil(call)
                if not same_bits(got, wanted):
                    wrong.append(f"rank {call.rank}: {case}: {what} is {_start(got)}, should be {_start(wanted)}")
        except Exception as error:
            raise RuntimeError(f"rank {call.rank}: {case}") from error
        wrong += [
            f"rank {call.rank}: {case}: input {i} was written" for i, t in enumerate(call.inputs) if not t.unchanged()
        ]
        wrong += [
            f"rank {call.rank}: {case}: memory around output {i} was written"
            for i, t in enumerate(call.outputs)
            if not t.surroundings_kept()
        ]
    return wrong


def _start(tensor: Tensor) -> str:
    flat = tensor.reshape(-1)
    shown = flat[:6] if tensor.dtype in (*REDUCIBLE, *COMPLEX) else raw(flat[:6])  # not all types can be printed
    return f"{tuple(tensor.shape)} {shown.tolist()}{'...' if flat.numel() > 6 else ''}"
