"""all_gather and reduce_scatter of parts whose sizes differ from rank to rank, for which torch has no signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ringcomm.groups import of_ringcomm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


def all_gather_v(
    output: Tensor | Sequence[Tensor],
    input: Tensor,
    counts: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Every rank gets every rank's `input`; the inputs may differ in size.

    output: one tensor per rank, of that rank's size; or one tensor [sum of counts, ...] whose rows are laid out by
    rank. counts: rows (of dim 0) per rank, the same on all ranks, zeros allowed; for one output tensor only. None asks
    the ranks for their input's rows, which costs a small blocking all_gather. Any strides; dtypes are alike.
    With async_op returns a Work. Raises ValueError where sizes do not add up here; where ranks disagree about a size,
    a DistBackendError that names the ranks.
    """
    found = of_ringcomm(group, "all_gather_v")
    outputs = _parts(output, counts, input, found, "all_gather_v", "output")
    return dist.all_gather(outputs, input, group=found, async_op=async_op)


def reduce_scatter_v(
    output: Tensor,
    input: Tensor | Sequence[Tensor],
    counts: Sequence[int] | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces over the ranks; rank r gets part r, and the parts may differ in size.

    input: one tensor per rank, part r for rank r; or one tensor [sum of counts, ...] whose rows are laid out by rank.
    output: this rank's part. counts, async_op and errors as for `all_gather_v`; None asks for the outputs' rows.
    """
    found = of_ringcomm(group, "reduce_scatter_v")
    inputs = _parts(input, counts, output, found, "reduce_scatter_v", "input")
    return dist.reduce_scatter(output, inputs, op=op, group=found, async_op=async_op)


def _parts(
    whole: Tensor | Sequence[Tensor],
    counts: Sequence[int] | None,
    mine: Tensor,
    group: ProcessGroup,
    what: str,
    argument: str,
) -> list[Tensor]:
    """The part of every rank: what the caller listed, or views of the rows of one tensor."""
    ranks = group.size()
    if not isinstance(whole, Tensor):
        if counts is not None:
            raise ValueError(f"ringcomm.{what}: counts go with one {argument} tensor, not with a list")
        if len(whole) != ranks:
            raise ValueError(f"ringcomm.{what}: {len(whole)} {argument} tensors for {ranks} ranks")
        return list(whole)
    if whole.dim() == 0 or mine.dim() == 0:
        raise ValueError(f"ringcomm.{what}: tensors without dimensions have no rows; give a list")
    rows = _asked(mine, group) if counts is None else list(counts)
    if len(rows) != ranks:
        raise ValueError(f"ringcomm.{what}: {len(rows)} counts for {ranks} ranks")
    if min(rows) < 0 or sum(rows) != whole.size(0):
        raise ValueError(
            f"ringcomm.{what}: counts {rows} must be at least 0 and add up to the {whole.size(0)} rows of {argument}"
        )
    return list(whole.split(rows))


def _asked(mine: Tensor, group: ProcessGroup) -> list[int]:
    rows = torch.empty(group.size(), dtype=torch.int64)
    dist.all_gather(list(rows.split(1)), torch.tensor([mine.size(0)]), group=group)
    return rows.tolist()
