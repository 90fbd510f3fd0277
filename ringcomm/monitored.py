"""A barrier that says who did not come. torch 2.13 refuses its own for every backend whose name is not gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ringcomm.groups import of_ringcomm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Returns when every rank of the group has called it.

    Raises torch.distributed.DistBackendError on every rank that came if some rank did not within `timeout` (the
    group's if None; zero looks once): it names all of them, by their numbers in the job, with host, process id and the
    call they made last. So it does for a rank that died or left, at once, or with wait_all_ranks when the time is up
    or only such ranks are missing. The group stays usable. A rank that comes after the others gave up is told so, and
    is in step with them again for the next one. Works that are under way are not waited for.

    group: one whose CPU tensors ringcomm moves; ValueError otherwise. Not for two threads of a rank at a time.
    """
    found: Any = of_ringcomm(group, "monitored_barrier")  # torch's stub leaves the method out
    if timeout is None:
        found.monitored_barrier(wait_all_ranks=wait_all_ranks)
        return
    if not isinstance(timeout, timedelta) or timeout < timedelta(0):
        raise ValueError(
            f"ringcomm.monitored_barrier: timeout is {timeout!r}; allowed are None and a timedelta that is not negative"
        )
    found.monitored_barrier(timeout, wait_all_ranks)
