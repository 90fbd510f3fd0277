"""Makes programs that ask for gloo, by name or by taking torch's default, get ringcomm for CPU tensors.

Off unless asked: by RINGCOMM_REPLACE=gloo (`import torch` reads it, so children of any start method follow), by
`python -m ringcomm run`, or by `install()`. Two public functions of torch, `init_process_group` and `new_group`, are
wrapped; the wrapper changes their `backend` argument and nothing else. What does not come through them stays as it
is: code that makes a ProcessGroupGloo itself, as torch's DETAIL mode and RPC do, and groups that exist already.
A third, `monitored_barrier`, is let through to groups of ringcomm, because torch 2.13 asks for the very name gloo.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ringcomm._register import NAME

VARIABLE = "RINGCOMM_REPLACE"
REPLACED = "gloo"
# Frames in here are how a call came to us, not who made it.
_INSIDE = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, sys.modules["ringcomm"]))

_wrapped: dict[str, tuple[Any, Any]] = {}  # name of the function -> (torch's, ours); empty while nothing is replaced
_said: set[str] = set()


def wish(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for replacing. Raises ValueError naming variable, value and what is allowed."""
    value = environ.get(VARIABLE, "").strip()
    if value.lower() not in ("", REPLACED):
        raise ValueError(
            f"{VARIABLE} is {value!r}, so nothing is replaced; allowed are {REPLACED!r} or leaving it unset"
        )
    return bool(value)


def install() -> None:
    """From now on gloo is replaced in this process; a second call changes nothing. Call it before any group is made.

    Names that other modules have already imported from torch.distributed keep torch's own function. Torch's map of
    default backends is left alone: who takes a name from there asks for it in one of the wrapped calls, which can then
    say so; a name changed in the map would come in silence.
    """
    if _wrapped:
        return
    wrappers = {"init_process_group": _maker, "new_group": _maker, "monitored_barrier": _barrier}
    for name, wrapper in wrappers.items():
        original = getattr(dist, name)
        _wrapped[name] = (original, wrapper(name, original))
        _exchange(name, *_wrapped[name])


def uninstall() -> None:
    """Undoes `install`. Groups that were made stay what they are. Without `install` does nothing."""
    for name, (original, ours) in _wrapped.items():
        _exchange(name, ours, original)
    _wrapped.clear()
    _said.clear()


def _exchange(name: str, old: Any, new: Any) -> None:
    """In every module of torch that holds `old` under `name`: torch.distributed, its device_mesh, ..."""
    for key, module in list(sys.modules.items()):
        if key.startswith("torch.") and isinstance(module, ModuleType) and vars(module).get(name) is old:
            setattr(module, name, new)


def _maker(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Somebody may have kept our function beyond `uninstall`; and our tools mean gloo where they say so.
        if not _wrapped or sys._getframe(1).f_globals.get("__name__", "").startswith(f"{NAME}."):
            return original(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # fails with torch's own words
        asked = bound.arguments.get("backend")
        given = replacement(name, asked, bound.arguments.get("device_id"))
        if given != asked:
            bound.arguments["backend"] = given
            _say(name, asked, given, bound.arguments)
        return original(*bound.args, **bound.kwargs)

    return call


def _barrier(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        found: Any = dist.group.WORLD if group is None else group
        if not _wrapped or not _is_ours(found):
            return original(group, timeout, wait_all_ranks)
        limit = {} if timeout is None else {"timeout": timeout}
        return found.monitored_barrier(**limit, wait_all_ranks=wait_all_ranks)

    return call


def _is_ours(group: Any) -> bool:
    """False too where this rank is no member: torch then has another object for a group, and warns."""
    return isinstance(group, dist.ProcessGroup) and NAME in re.split("[:,]", dist.get_backend(group))


def replacement(function: str, asked: Any, device_id: Any = None) -> Any:
    """What `function` is given as its backend when the program asks for `asked`: the same if gloo for CPU is not in it.

    "gloo" also serves CUDA tensors, and goes on doing so where there is an accelerator. None is torch's default for
    the machine, which is gloo where there is no accelerator; in `new_group` it is what the default group is.
    """
    if asked is None:
        # By name, not through torch's map: for its "undefined" backend torch sets the group's default type to GLOO.
        return NAME if function == "init_process_group" and device_id is None and not _accelerator() else None
    if not isinstance(asked, str):
        return asked
    if asked.lower() == REPLACED:
        return f"cpu:{NAME},cuda:{REPLACED}" if _accelerator() == "cuda" else NAME
    parts = asked.split(",")
    if f"cpu:{REPLACED}" not in [part.lower() for part in parts]:
        return asked
    return ",".join(f"cpu:{NAME}" if part.lower() == f"cpu:{REPLACED}" else part for part in parts)


def _accelerator() -> str | None:
    device = torch.accelerator.current_accelerator(check_available=True)
    return device.type if device is not None else None


def _say(function: str, asked: Any, given: str, arguments: Mapping[str, Any]) -> None:
    """One line for each place and name, on rank 0, before the call: should that hang, the line is already there."""
    shown = f"{function}({asked!r})" if asked is not None else f"{function} without a backend"
    text = f'gloo is replaced: {shown} at {_caller()} makes a "{given}" group ({VARIABLE})'
    if text in _said or _rank(arguments) != 0:
        return
    _said.add(text)
    print(f"ringcomm WARN [{socket.gethostname()}:{os.getpid()}] {text}", file=sys.stderr, flush=True)


def _caller() -> str:
    """file:line of the nearest frame outside torch and ringcomm."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"


def _rank(arguments: Mapping[str, Any]) -> int:
    """This process's rank as far as it can be known before the first group is made; 0, which speaks, if it cannot."""
    if dist.is_initialized():
        return dist.get_rank()
    if arguments.get("rank", -1) >= 0:
        return int(arguments["rank"])
    in_url = re.search(r"[?&]rank=(\d+)", arguments.get("init_method") or "")
    return int(in_url[1] if in_url else os.environ.get("RANK", "0"))
