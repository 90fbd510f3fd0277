"""Which group a call of ours means, and the check that ringcomm moves its CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ringcomm._register import NAME

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def of_ringcomm(group: ProcessGroup | None, what: str) -> ProcessGroup:
    """The default group for None. what: the caller's name, for the message.

    Raises ValueError where this rank is not in the group or another backend has its CPU tensors, and what torch raises
    where there is no default group.
    """
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"ringcomm.{what}: this rank is not in the group")
    try:
        name = found._get_backend(torch.device("cpu")).name()
    except RuntimeError:
        name = "none"
    if name != NAME:
        raise ValueError(
            f"ringcomm.{what}: the backend for CPU tensors of group {found.group_name!r} is {name}; "
            f'make it with new_group(backend="{NAME}")'
        )
    return found
