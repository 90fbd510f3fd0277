"""The bench: its inputs and checks, its arguments, its figures over gloo, and its status where values are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks
from ringcomm.tools import bench
from ringcomm.tools.bench_cases import EXACT, OPERATIONS, PERIOD, REDUCTIONS, count_wrong, fill, operands, payload

ROOT = Path(__file__).parent.parent
ROW_KEYS = {
    "op", "bytes", "count", "dtype", "redop", "in_place", "async_parts", "schedule",
    "us", "min_us", "algbw", "busbw", "wrong", "errors",
}  # fmt: skip


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringcomm", "bench", "--backend", "gloo", "--rounds", "1", "--iters", "2", *argv]
    return subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)


def test_gloo_at_two_ranks_prints_checked_rows_and_writes_the_json(tmp_path: Path) -> None:
    ops = [name for name in OPERATIONS if name != "barrier"]
    out = tmp_path / "out.json"
    done = run(
        "--ranks", "2", "--ops", ",".join(ops), "--sizes", "8,20KiB", "--compare", "cpu:gloo", "--json", str(out)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert table[0].split()[:4] == ["op", "bytes", "count", "type"] and len(table) == 1 + 2 * len(ops)
    assert f"[{2 * len(ops)}/{2 * len(ops)}] {ops[-1]}" in done.stderr and "[1/" not in done.stdout
    result = json.loads(out.read_text())
    assert {"version", "ranks", "torch", "ringcomm", "date", "setup_ms", "probe_ms", "rows", "arguments"} <= set(result)
    assert (result["version"], result["ranks"], set(result["setup_ms"])) == (1, 2, {"gloo", "cpu:gloo"})
    for row in result["rows"]:
        assert set(row) == ROW_KEYS
        assert row["wrong"] == {"gloo": 0, "cpu:gloo": 0} and row["errors"] == {} and row["bytes"] in (8, 20480)
        assert set(row["us"]) == {"gloo", "cpu:gloo", "memcpy"} and min(row["us"].values()) > 0
        assert row["algbw"]["gloo"] == pytest.approx(row["bytes"] / row["us"]["gloo"] / 1e3)
        factor = {"all_reduce": 1.0, "broadcast": 1.0, "reduce": 1.0, "sendrecv": 2.0}.get(row["op"], 0.5)
        assert row["busbw"]["gloo"] == pytest.approx(factor * row["algbw"]["gloo"])


def test_registered_memory_is_timed_beside_slots_and_its_values_are_checked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(
        "--backend", "ringcomm", "--registered", "--ops", "all_reduce,all_gather,scatter", "--sizes", "8,100KiB",
        "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 6 and "registered us" in done.stdout
    for row in rows:
        assert set(row["us"]) == {"ringcomm", "registered", "memcpy"} and min(row["us"].values()) > 0
        assert row["wrong"] == {"ringcomm": 0, "registered": 0} and row["errors"] == {}
    refused = run("--registered")  # on gloo
    assert refused.returncode == 2 and "--registered is for ringcomm" in refused.stderr


def test_asynchronous_parts_in_place_every_reduction_and_several_dtypes_at_three_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(
        "--ranks", "3", "--ops", "all_reduce,all_gather,reduce_scatter", "--sizes", "30KiB", "--place", "both",
        "--async", "3", "--dtypes", "float32,bfloat16,int8", "--redop", "sum,product,min,max", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 3 * (4 + 2 + 2 * 4) and {r["async_parts"] for r in rows} == {3}
    assert {r["in_place"] for r in rows if r["op"] == "all_gather"} == {True, False}


def test_what_a_backend_cannot_do_is_said_in_the_row_and_ends_with_status_3() -> None:
    done = run("--ranks", "2", "--sizes", "8", "--redop", "sum,avg", "--dtypes", "bool", "--timeout", "20")
    assert done.returncode == 3 and "gloo could not run it: RuntimeError" in done.stdout
    assert "# status 3: 0 wrong values" in done.stdout


def spoilt(rank: int, world: int, out: str, spoil: str) -> int:
    """A rank whose all_reduce of 500 elements, or whose all_gather, ends with one wrong element on rank 1."""
    from ringcomm.tools import bench_cases

    def spoiling(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: torch.Tensor, *more: Any) -> Any:
            work = real(x, *more)
            if rank == 1 and x.numel() == 500:
                x[77] += 1
            return work

        return call

    if spoil == "all_reduce":
        dist.all_reduce = spoiling(dist.all_reduce)
    else:
        bench_cases._all_gather = spoiling(bench_cases._all_gather)
    argv = ["--backend", "gloo", "--ops", "all_reduce,all_gather", "--sizes", "2000,4000", "--rounds", "1"]
    return bench.main([*argv, "--iters", "1", "--json", out, "--quiet"])


@pytest.mark.parametrize("spoil", ["all_reduce", "all_gather"])
def test_one_wrong_element_on_one_rank_is_counted_and_ends_every_rank_with_status_1(tmp_path: Path, spoil: str) -> None:
    out = tmp_path / "out.json"
    assert run_ranks(spoilt, 2, str(out), spoil, timeout=120) == [1, 1]
    wrong = {(r["op"], r["bytes"]): r["wrong"]["gloo"] for r in json.loads(out.read_text())["rows"]}
    # Once in the check before the timing and once in that after it.
    assert wrong == {
        (op, n): 2 * (op == spoil and n == 2000) for op in ("all_reduce", "all_gather") for n in (2000, 4000)
    }


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--ops", "all_reduc"], ["--ops", "'all_reduc' is not known", "allowed are all_reduce, broadcast"]),
        (["--dtypes", "float31"], ["--dtypes", "'float31'", "bfloat16"]),
        (["--redop", "mean"], ["--redop", "'mean'", "avg"]),
        (["--sizes", "8,64K"], ["--sizes", "'64K' is not a size", "64KiB"]),
        (["--sizes", "8", "-b", "8"], ["--sizes 8 excludes -b"]),
        (["-e", "8"], ["-e and -f need -b"]),
        (["-b", "64", "-e", "8"], ["-b is 64 and -e is 8"]),
        (["-b", "8", "-f", "1"], ["'1'", "whole number from 2"]),
        (["--ranks", "0"], ["--ranks", "'0'", "whole number from 1"]),
        (["--root", "2"], ["--root is 2", "0 to 1"]),
        (["--ops", "sendrecv", "--ranks", "1"], ["sendrecv needs at least 2 ranks, --ranks is 1"]),
        (["--ops", "sendrecv", "--async"], ["sendrecv has no asynchronous form"]),
        (["--compare", "ringcomm"], ["--compare is ringcomm"]),
        (["--backend", "glo"], ["--backend is glo; available are", "gloo", "ringcomm"]),
        (["--compare", "glo"], ["--compare is glo; available are"]),
        (["--config", "singel_node"], ["--config: ", "'singel_node'", "nearest: 'single_node'"]),
        (["--json", "no/such/folder/x.json"], ["--json is no/such/folder/x.json, which cannot be written"]),
        (["--json", "/"], ["--json is /, which cannot be written"]),
    ],
)
def test_bad_arguments_name_the_argument_the_value_and_what_is_allowed(
    argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as caught:
        bench.main(argv)
    text = capsys.readouterr().err
    assert caught.value.code == 2 and [p for p in parts if p not in text] == [], text


def test_the_number_of_ranks_is_the_launchers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert bench.arguments([]).ranks == 4
    with pytest.raises(SystemExit):
        bench.arguments(["--ranks", "2"])
    assert "--ranks is 2, but the launcher's WORLD_SIZE is 4" in capsys.readouterr().err
    for name, value, least in (("RANK", "x", 0), ("RANK", "-1", 0), ("WORLD_SIZE", "y", 1), ("WORLD_SIZE", "0", 1)):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
            patch.setenv(name, value)
            bench.arguments([])
        said = f"environment {name} is '{value}'; the launcher's must be a whole number from {least}"
        assert caught.value.code == 2 and said in capsys.readouterr().err


def test_sizes_go_from_begin_to_end_by_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert bench.arguments(["-b", "1KiB", "-e", "100KiB", "-f", "4"]).sizes == [1024, 4096, 16384, 65536]
    assert bench.arguments(["-b", "8"]).sizes == [8]


def test_the_probe_names_a_mood_only_where_it_looks_like_one() -> None:
    looks = {7.0: "far", 12.6: "near", 9.5: "like neither", 40.0: "like neither"}
    assert all(text in bench.probe_text(ms, "before") for ms, text in looks.items())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 300])
@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("redop", list(REDUCTIONS))
def test_every_partial_result_of_a_reduction_is_exact_in_its_dtype(redop: str, dtype: str, ranks: int) -> None:
    inputs = operands(redop, ranks, dtype)
    assert inputs.shape == (ranks, PERIOD) and inputs.min() >= 0 and inputs.max() <= EXACT[dtype]
    expected = REDUCTIONS[redop](inputs)
    if redop == "sum" or (redop == "avg" and EXACT[dtype] >= ranks):
        assert inputs.sum(0).max() <= EXACT[dtype]  # of whole numbers from 0, so no part of it is larger
    if redop == "avg":
        assert torch.equal(expected * ranks, inputs.sum(0))
    assert 0 < expected.max() <= EXACT[dtype]
    if redop in ("sum", "avg") and EXACT[dtype] >= ranks:
        assert inputs.min() >= 1, "a contribution that is lost or counted twice must show"


@pytest.mark.parametrize("dtype", list(EXACT))
def test_each_wrong_element_is_found(dtype: str) -> None:
    values = payload(3, dtype)
    x = torch.empty(3 * PERIOD + 10, dtype=getattr(torch, dtype))
    for start in (0, 5, PERIOD + 1):
        fill(x, values, start)
        assert count_wrong(x, values, start) == 0
        assert torch.equal(x[:1].to(torch.float64), values[start % PERIOD : start % PERIOD + 1].to(torch.float64))
        assert count_wrong(x, values, start + 1) > PERIOD // 4, "a shift by one element"
    for index in (0, PERIOD, 3 * PERIOD + 9):
        x.view(torch.uint8)[index * x.element_size()] ^= 1
    assert count_wrong(x, values, PERIOD + 1) == 3
