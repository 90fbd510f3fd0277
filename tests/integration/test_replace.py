"""Putting ringcomm in gloo's place: what is replaced, what is left, that it is said aloud and can be undone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import RankPool, run_ranks
from ringcomm import replace

Pools = Callable[..., RankPool]


@contextlib.contextmanager
def replacing() -> Iterator[io.StringIO]:
    """Gloo is replaced within; the value collects what is said on stderr."""
    said = io.StringIO()
    replace.install()
    try:
        with contextlib.redirect_stderr(said):
            yield said
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        replace.uninstall()


def total(group: Any = None) -> float:
    tensor = torch.full((5,), 1.0)
    dist.all_reduce(tensor, group=group)
    return tensor[3].item()


@pytest.mark.parametrize("function", ["init_process_group", "new_group"])
@pytest.mark.parametrize(
    ("asked", "plain", "beside_cuda"),
    [
        ("gloo", "ringcomm", "cpu:ringcomm,cuda:gloo"),
        ("GLOO", "ringcomm", "cpu:ringcomm,cuda:gloo"),
        ("cpu:gloo", "cpu:ringcomm", "cpu:ringcomm"),
        ("cpu:gloo,cuda:nccl", "cpu:ringcomm,cuda:nccl", "cpu:ringcomm,cuda:nccl"),
        ("cuda:nccl,CPU:Gloo", "cuda:nccl,cpu:ringcomm", "cuda:nccl,cpu:ringcomm"),
        ("cpu:gloo,cuda:gloo", "cpu:ringcomm,cuda:gloo", "cpu:ringcomm,cuda:gloo"),
        ("cuda:gloo", "cuda:gloo", "cuda:gloo"),
        ("nccl", "nccl", "nccl"),
        ("ringcomm", "ringcomm", "ringcomm"),
        (17, 17, 17),
    ],
)
def test_names(function: str, asked: Any, plain: Any, beside_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for accelerator, wanted in ((None, plain), ("cuda", beside_cuda)):
        monkeypatch.setattr(replace, "_accelerator", lambda found=accelerator: found)
        assert replace.replacement(function, asked) == wanted


@pytest.mark.parametrize(
    ("function", "device_id", "accelerator", "wanted"),
    [
        ("init_process_group", None, None, "ringcomm"),
        ("init_process_group", None, "cuda", None),
        ("init_process_group", torch.device("cuda", 0), None, None),
        ("new_group", None, None, None),
    ],
)
def test_no_name(function: str, device_id: Any, accelerator: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replace, "_accelerator", lambda: accelerator)
    assert replace.replacement(function, None, device_id) == wanted


def ask(rank: int, world: int, backend: Any) -> list[Any]:
    with replacing():
        dist.init_process_group(*([] if backend is None else [backend]))
        groups = [dist.new_group([0, 1], None, "gloo"), dist.new_group(), dist.new_subgroups(2, backend="gloo")[0]]
        names = {str(dist.get_backend(group)) for group in (None, *groups)}
        return [names, [total(group) for group in (None, *groups)], dist.is_gloo_available()]


@pytest.mark.parametrize("backend", [None, "gloo", dist.Backend.GLOO, "cpu:gloo"])
def test_every_way_to_ask_gives_ringcomm(rank_pool: Pools, backend: Any) -> None:
    names = {"cpu:ringcomm", "ringcomm"} if backend == "cpu:gloo" else {"ringcomm"}
    assert rank_pool(2).run(ask, backend) == [[names, [2.0] * 4, True]] * 2


def with_a_cuda_device(rank: int, world: int) -> list[Any]:
    """The GPU is pretended; the group beside it is real."""
    real, replace._accelerator = replace._accelerator, lambda: "cuda"
    try:
        with replacing():
            dist.init_process_group("gloo")
            group = dist.group.WORLD
            assert group is not None
            kinds = [type(group._get_backend(torch.device(kind))).__name__ for kind in ("cpu", "cuda")]
            return [*kinds, total()]
    finally:
        replace._accelerator = real


def test_gloo_keeps_serving_cuda_tensors(rank_pool: Pools) -> None:
    ours = rank_pool(2).run(backend_class)[0]
    assert rank_pool(2).run(with_a_cuda_device) == [[ours, "ProcessGroupGloo", 2.0]] * 2


def backend_class(rank: int, world: int) -> str:
    import ringcomm  # noqa: F401 - makes the name known where the package is not installed

    dist.init_process_group("ringcomm")
    group = dist.group.WORLD
    assert group is not None
    name = type(group._get_backend(torch.device("cpu"))).__name__
    dist.destroy_process_group()
    return name


def a_mesh_alone(rank: int, world: int) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    with replacing():
        mesh = init_device_mesh("cpu", (world,))
        return [str(dist.get_backend()), total(mesh.get_group())]


def test_a_device_mesh_that_makes_the_default_group(rank_pool: Pools) -> None:
    assert rank_pool(2).run(a_mesh_alone) == [["ringcomm", 2.0]] * 2


def options_of_gloo(rank: int, world: int) -> float:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    with replacing():
        dist.init_process_group("cpu:gloo", pg_options=options)
        return total()


def test_options_made_for_another_backend_are_left_to_it(rank_pool: Pools) -> None:
    assert rank_pool(2).run(options_of_gloo) == [2.0] * 2


def say(rank: int, world: int) -> str:
    with replacing() as said:
        dist.init_process_group("gloo")
        for _ in range(3):
            dist.new_group(backend="gloo")
        dist.new_group(backend="ringcomm")
        return said.getvalue()


def test_rank_0_says_once_for_each_place_what_and_where(rank_pool: Pools) -> None:
    first, second = rank_pool(2).run(say)
    assert second == ""
    line = say.__code__.co_firstlineno
    init, group = first.splitlines()
    assert init.startswith("ringcomm WARN [") and group.startswith("ringcomm WARN [")
    assert f"init_process_group('gloo') at {__file__}:{line + 2} makes a \"ringcomm\" group" in init
    assert f"new_group('gloo') at {__file__}:{line + 4} makes a \"ringcomm\" group" in group


def barrier(rank: int, world: int) -> list[tuple[object, ...]]:
    """The group's own method is watched, not run: what it does is its own tests' business."""
    seen: list[tuple[object, ...]] = []
    kind: Any = dist.ProcessGroup
    real = kind.monitored_barrier

    def watched(group: Any, **arguments: Any) -> None:
        seen.append((str(dist.get_backend(group)), arguments))

    kind.monitored_barrier = watched
    try:
        with replacing():
            dist.init_process_group("gloo")
            dist.monitored_barrier()
            dist.monitored_barrier(dist.new_group(backend="cpu:gloo"), timedelta(seconds=9), True)
    finally:
        kind.monitored_barrier = real
    return seen


def test_monitored_barrier_is_not_refused_by_name(rank_pool: Pools) -> None:
    wanted = [
        ("ringcomm", {"wait_all_ranks": False}),
        ("cpu:ringcomm", {"timeout": timedelta(seconds=9), "wait_all_ranks": True}),
    ]
    assert rank_pool(2).run(barrier) == [wanted] * 2


def undone(rank: int, world: int) -> list[Any]:
    before = dist.init_process_group, dist.new_group, dist.distributed_c10d.new_group
    with replacing():
        kept = dist.init_process_group
        changed = kept is not before[0] and dist.distributed_c10d.new_group is not before[2]
    after = dist.init_process_group, dist.new_group, dist.distributed_c10d.new_group
    kept("gloo")
    name = str(dist.get_backend())
    dist.destroy_process_group()
    return [changed, before == after, name]


def test_uninstall_gives_gloo_back_even_to_who_kept_our_function(rank_pool: Pools) -> None:
    assert rank_pool(2).run(undone) == [[True, True, "gloo"]] * 2


def our_own_tool(rank: int, world: int) -> str:
    with replacing():
        exec("dist.init_process_group('gloo')", {"__name__": "ringcomm.tools.bench", "dist": dist})
        return str(dist.get_backend())


def test_our_own_tools_get_the_gloo_they_ask_for(rank_pool: Pools) -> None:
    assert rank_pool(2).run(our_own_tool) == ["gloo"] * 2


def refusal(rank: int, world: int) -> str:
    with replacing(), pytest.raises(TypeError) as caught:
        dist.init_process_group("gloo", nonsense=1)  # type: ignore[call-arg]
    return str(caught.value)


def test_wrong_arguments_fail_with_torchs_words(rank_pool: Pools) -> None:
    assert "unexpected keyword argument 'nonsense'" in rank_pool(2).run(refusal)[0]


def by_environment(rank: int, world: int) -> list[Any]:
    dist.init_process_group("gloo")
    result = [str(dist.get_backend()), total(), total(dist.new_group(backend="gloo"))]
    dist.destroy_process_group()
    return result


def test_fresh_interpreters_read_the_environment_and_detail_mode_keeps_its_helper() -> None:
    """TORCH_DISTRIBUTED_DEBUG makes torch wrap the backend and check every call over a ProcessGroupGloo of its own."""
    env: dict[str, str | None] = {"RINGCOMM_REPLACE": "gloo", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert run_ranks(by_environment, 2, env=env, timeout=120) == [["ringcomm", 2.0, 2.0]] * 2


@pytest.mark.parametrize(("value", "wanted"), [("gloo", True), (" GLOO ", True), ("", False), (None, False)], ids=str)
def test_values_of_the_variable(value: str | None, wanted: bool) -> None:
    assert replace.wish({} if value is None else {"RINGCOMM_REPLACE": value}) is wanted


@pytest.mark.parametrize("value", ["glo", "1", "nccl", "gloo,nccl"])
def test_other_values_are_refused_by_name_value_and_what_is_allowed(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        replace.wish({"RINGCOMM_REPLACE": value})
    assert all(word in str(caught.value) for word in ("RINGCOMM_REPLACE", repr(value), "'gloo'", "unset"))
