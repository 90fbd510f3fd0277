"""`python -m ringcomm topo`: what it prints, what it saves and loads, what it refuses; the page that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topology_page as page
from ringcomm.tools import topo
from ringcomm.topology import Rank, Topology

ROOT = Path(__file__).parent.parent.parent
ALONE = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "ringcomm", "topo", *arguments]
    return subprocess.run(whole, cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=120)


def test_without_a_job_it_prints_this_machine_and_what_is_missing_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    shown = command("--save", str(file))
    assert shown.returncode == 0 and shown.stderr == ""
    saved = Topology.load(file)
    assert saved.ranks == () and len(saved.machines) == 1
    (machine,) = saved.machines
    assert f"machine {machine.hostname}: boot {machine.boot_id[:8]}" in shown.stdout
    assert all(f"no {missing.what}: {missing.why}" in shown.stdout for missing in machine.missing)
    assert all(f"  {one.name}: " in shown.stdout for one in machine.interfaces)
    assert topo.main(["--load", str(file)]) == 0
    assert capsys.readouterr().out == shown.stdout


def test_the_saved_servers_are_what_discovery_makes_of_their_trees(tmp_path: Path) -> None:
    assert Topology.load(page.SAVED / "two_servers.json") == page.two_servers(tmp_path)


def test_the_page_shows_what_the_tool_prints() -> None:
    text = page.PAGE.read_text()
    assert len(page._BLOCK.findall(text)) == 2
    assert text == page.with_outputs(text), "run: python tests/topology/topology_page.py"


def test_every_word_of_a_matrix_is_in_its_legend() -> None:
    found = Topology.load(page.SAVED / "two_servers.json")
    text = topo.text(found)
    legend = text.partition("legend:")[2]
    for word in ("X", "NV#", "PIX", "PHB", "SYS"):
        assert f"\n  {word} " in legend
    assert "NODE" not in legend  # nothing here is that far apart
    assert "GPU0  X     NV4   SYS   SYS   PIX   SYS   PHB   0-3,16-19     0     Fake GPU 80GB" in text


def test_pairs_are_summed_up_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert topo.main(["--json", "--load", str(page.SAVED / "two_servers.json")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(c["kind"], c["proved"]) for c in answer["connections"]] == [
        ("shm", True),
        ("verbs", False),
        ("verbs", False),
    ]
    assert answer["connections"][0]["pairs"][0] == {"reader": 0, "writers": "1-3"}
    assert "different hosts (gpu-0, gpu-1)" in answer["connections"][1]["why"]
    assert len(answer["asymmetric"]) == 1 and "mlx5_1" in answer["asymmetric"][0]
    assert Topology.from_json(answer["topology"], "x").nodes == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_many_ranks_are_shown_by_reason_without_a_matrix(tmp_path: Path) -> None:
    whole = Topology.load(page.SAVED / "one_machine.json")
    ranks = tuple(Rank(node=r // 8, machine=0, opened="0-63") for r in range(64))
    text = topo.text(Topology(ranks, whole.machines))
    assert "reader \\ writer" not in text and "64 ranks on 8 nodes of 8" in text
    assert "among 0-7; among 8-15;" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--load", "none.json"], "none.json cannot be read"),
        (["--load", "README.md"], "README.md:1 is not JSON"),
        (["--config", "none.yaml"], "ringcomm topo: --config: no file 'none.yaml'"),
        (["--save", "no/such/folder/t.json"], "no/such/folder/t.json"),
    ],
)
def test_what_cannot_be_read_or_written_is_named_without_a_traceback(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RANK", raising=False)
    assert topo.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "environment RANK is 'x'; the launcher's must be a whole number from 0"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "of the job cannot be reached",
        ),
    ],
)
def test_a_job_that_cannot_be_joined_is_one_sentence(
    variables: dict[str, str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert topo.main(["--timeout", "1"]) == 2
    assert words in capsys.readouterr().err
    for wrong in ("-1", "nan", "x"):
        with pytest.raises(SystemExit):
            topo.main(["--timeout", wrong])
        assert f"'{wrong}'; allowed are seconds above 0" in capsys.readouterr().err
