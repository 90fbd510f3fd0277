"""The ways to ask for ringcomm: by name, per device, with options, beside other backends, again, in debug mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import RankError, RankPool, run_ranks

Pools = Callable[..., RankPool]


def init(name: str | None, **kwargs: Any) -> None:
    import ringcomm  # noqa: F401 - makes the name known where the package is not installed

    dist.init_process_group(name, **kwargs)


def total(group: Any = None) -> float:
    tensor = torch.full((5,), 1.0)
    dist.all_reduce(tensor, group=group)
    return tensor[3].item()


def by_name(rank: int, world: int, name: str) -> tuple[str, str, float, float, float]:
    init(name)
    inherited, explicit = dist.new_group(), dist.new_group([0, 1], backend=name)
    results = (dist.get_backend(), dist.get_backend(inherited), total(), total(inherited), total(explicit))
    dist.barrier()
    dist.destroy_process_group()
    return results


@pytest.mark.parametrize("name", ["ringcomm", "RINGCOMM", "cpu:ringcomm"])
def test_the_default_group_and_new_groups(rank_pool: Pools, name: str) -> None:
    for backend, inherited, *totals in rank_pool(2).run(by_name, name):
        assert backend == inherited == name.lower()
        assert totals == [2.0, 2.0, 2.0]


def beside_gloo(rank: int, world: int) -> list[float]:
    init("gloo")
    ours = dist.new_group(backend="ringcomm")
    results = [total(), total(ours)]
    dist.destroy_process_group()
    init("ringcomm")
    theirs = dist.new_group(backend="gloo")
    results += [total(), total(theirs)]
    dist.destroy_process_group()
    return results


def test_beside_gloo(rank_pool: Pools) -> None:
    assert rank_pool(2).run(beside_gloo) == [[2.0] * 4] * 2


def again_and_again(rank: int, world: int, times: int) -> list[float]:
    results = []
    for _ in range(times):
        init("ringcomm")
        results.append(total())
        dist.destroy_process_group()
    return results


@pytest.mark.parametrize("world", [1, 3])
def test_destroy_and_init_again(rank_pool: Pools, world: int) -> None:
    assert rank_pool(world).run(again_and_again, 5) == [[float(world)] * 5] * world


def without_destroy(rank: int, world: int) -> float:
    init("ringcomm")
    return total()


def test_a_process_may_end_without_destroying_its_group() -> None:
    assert run_ranks(without_destroy, 2) == [2.0, 2.0]


RING = {"version": 1, "policy": {"all_reduce": [{"schedule": "ring"}]}}


def with_options(rank: int, world: int, kind: str, log: str) -> float:
    import ringcomm

    given = {"options": ringcomm.Options(config=RING), "dict": RING, "shipped": "single_node", "path": log + ".yaml"}
    init("ringcomm", pg_options=given[kind])
    result = total()
    dist.destroy_process_group()
    return result


@pytest.mark.parametrize("kind", ["options", "dict", "shipped", "path"])
def test_pg_options(kind: str, tmp_path: Any) -> None:
    log = str(tmp_path / "log")
    (tmp_path / "log.yaml").write_text("version: 1\npolicy:\n  all_reduce:\n    - {schedule: ring}\n")
    env: dict[str, str | None] = {"RINGCOMM_DEBUG": "INFO", "RINGCOMM_DEBUG_FILE": log}
    assert run_ranks(with_options, 2, kind, log, env=env) == [2.0, 2.0]
    chosen = [line for line in (tmp_path / "log").read_text().splitlines() if "all_reduce" in line]
    assert len(chosen) == 1
    assert ("ring" if kind != "shipped" else "one_shot") in chosen[0].split("->")[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"version": 1, "policy": {"all_reduce": [{"schedule": "rings"}]}}, ("rings", "ring")),
        ({"version": 1, "polcy": {}}, ("polcy", "policy")),
        ("no_such_file.yaml", ("no_such_file.yaml",)),
        (17, ("17",)),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(with_bad_options, 1, options)
    text = str(caught.value.errors[0])
    assert all(word in text for word in words), text


def with_bad_options(rank: int, world: int, options: Any) -> None:
    init("ringcomm", pg_options=options)


def in_detail(rank: int, world: int) -> list[float]:
    """Torch wraps the backend and compares every collective's shape over gloo, with our sequence numbers."""
    init("ringcomm")
    results = [total(), total(dist.new_group())]
    gathered = [torch.empty(2) for _ in range(world)]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    results.append(gathered[-1][0].item())
    dist.barrier()
    dist.destroy_process_group()
    return results


def test_detail_debug_mode() -> None:
    env: dict[str, str | None] = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "WARNING"}
    assert run_ranks(in_detail, 2, env=env, timeout=120) == [[2.0, 2.0, 1.0]] * 2


def device_mesh(rank: int, world: int) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh

    init("cpu:ringcomm")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    results = []
    for name in ("rows", "columns"):
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=mesh[name].get_group())
        results.append(tensor[0].item())
    dist.destroy_process_group()
    return results


def test_device_mesh(rank_pool: Pools) -> None:
    assert rank_pool(4).run(device_mesh) == [[2.0, 1.0], [4.0, 1.0], [2.0, 5.0], [4.0, 5.0]]


def device_map(rank: int, world: int, cuda: str) -> tuple[str, float]:
    """What a GPU job asks for; without a GPU the CPU side is there all the same."""
    if cuda == "fake":
        import torch.testing._internal.distributed.fake_pg  # noqa: F401 - makes the backend known
    init(f"cpu:ringcomm,cuda:{cuda}")
    result = dist.get_backend(), total()
    dist.destroy_process_group()
    return result


@pytest.mark.parametrize("cuda", ["ringcomm", "fake"])
def test_a_device_map(rank_pool: Pools, cuda: str) -> None:
    """fake: another backend for the GPUs, as NCCL would be, which a CPU build of torch does not have."""
    assert rank_pool(2).run(device_map, cuda) == [(f"cpu:ringcomm,cuda:{cuda}", 2.0)] * 2


def subsets(rank: int, world: int) -> list[str]:
    """Torch's own helpers over new_group."""
    init("ringcomm")
    mine, everyone = dist.new_subgroups(2)
    names = [str(dist.get_backend(group)) for group in everyone if dist.get_rank(group) >= 0]
    ok = total(mine) == 2.0 and dist.get_process_group_ranks(mine) == [rank // 2 * 2, rank // 2 * 2 + 1]
    dist.destroy_process_group()
    return names if ok else []


def test_new_subgroups(rank_pool: Pools) -> None:
    assert rank_pool(4).run(subsets) == [["ringcomm"]] * 4
