"""Settings: what is accepted, what is refused and with which text, and which source stands over which."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import ringcomm
from ringcomm import config
from ringcomm.config import loading
from ringcomm.config.keys import setting_fields
from ringcomm.config.sections import Progress
from ringcomm.config.values import Threshold
from ringcomm.errors import ConfigError
from ringcomm.tools import config as config_tool
from ringcomm.tools import explain as explain_tool

ROOT = Path(__file__).parent.parent
EXPLAIN = ["all_reduce", "1MiB", "--ranks", "2"]


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def refused(options: object, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(options, environ or {})
    return str(caught.value)


def test_the_shipped_default_states_the_built_in_values() -> None:
    loaded = config.load(None, {})
    for section, cls in config.SECTIONS.items():
        assert getattr(loaded, section) == cls()
    assert set(loaded.policy) == set(config.COLLECTIVES)
    assert "default.yaml" in loaded.log_lines()[0]


@pytest.mark.parametrize("name", config.shipped_names())
def test_each_shipped_configuration_loads_by_name(name: str) -> None:
    loaded = config.load(name, {})
    assert set(loaded.policy) == set(config.COLLECTIVES) and name in loaded.origin
    assert config.load(None, {"RINGCOMM_CONFIG": name}).policy == loaded.policy


def test_default_and_single_node_are_shipped() -> None:
    assert {"default", "single_node"} <= set(config.shipped_names())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("shedules_typo_key: [1, 2]\n", ["mine.yaml:1", "'shedules_typo_key'", "allowed are version, net, schedules"]),
        ("version: 1\nmemori:\n  slots: 4\n", ["mine.yaml:2", "'memori'", "nearest: 'memory'"]),
        ("memory:\n  slots: 4\n  slt: 64KiB\n", ["mine.yaml:3", "'slt'", "nearest: 'slot'", "slots, slot, limit"]),
        ("policy:\n  all_reduc:\n    - {schedule: ring}\n", ["mine.yaml:2", "nearest: 'all_reduce'", "barrier"]),
        ("policy:\n  all_reduce:\n    - {maxbytes: 1, schedule: ring}\n", ["mine.yaml:3", "nearest: 'max_bytes'"]),
        ("memory: {slots: 1}\n", ["mine.yaml:1", "memory.slots is 1", "from 2 to 64"]),
        ("memory:\n  slot: 100\n", ["mine.yaml:2", "memory.slot is 100", "4KiB to 64MiB", "multiple of 4096"]),
        ("memory: {slot: 64K}\n", ["memory.slot is '64K'", "KiB"]),
        ("memory: {slots: yes}\n", ["memory.slots is True"]),
        ("memory: {slots: 2.5}\n", ["memory.slots is 2.5"]),
        ("memory: {slots: [4]}\n", ["memory.slots is [4];"]),
        ("progress: {spin: 80}\n", ["progress.spin is 80", "unit ns, us, ms or s"]),
        ("progress: {spin: 2s}\n", ["progress.spin is '2s'", "0us to 1s"]),
        ("connections: {within: tcp}\n", ["connections.within is 'tcp'", "allowed is shm"]),
        ("connections: {accross: tcp}\n", ["mine.yaml:1", "'accross'", "nearest: 'across'"]),
        ("connections:\n  across: shm\n", ["mine.yaml:2", "connections.across is 'shm'", "auto or tcp"]),
        ("net: rdma\n", ["mine.yaml:1", "net is 'rdma'", "one of auto, tcp, verbs"]),
        ("nets: tcp\n", ["mine.yaml:1", "'nets'", "nearest: 'net'"]),
        ("tcp: {interface: eth0}\n", ["mine.yaml:1", "'interface'", "nearest: 'interfaces'"]),
        ("tcp:\n  interfaces:\n    - =eth0\n    - 5\n", ["mine.yaml:4", "5 is no interface", "tcp.interfaces"]),
        ("tcp:\n  interfaces: []\n", ["mine.yaml:2", "tcp.interfaces is []", "a list of interfaces"]),
        ("tcp: {ports: [5, 4]}\n", ["tcp.ports is [5, 4];", "[lowest, highest]", "from 1 to 65535"]),
        ("tcp: {ports: 40000}\n", ["tcp.ports is 40000", "40000-40099"]),
        ("tcp: {dead_after: 3}\n", ["tcp.dead_after is 3", "unit ns, us, ms or s"]),
        (
            "numerics: {accumulate: float64}\n",
            ["numerics.accumulate is 'float64'", "allowed is input or float32"],
        ),
        ("numerics: {reproducible: 1}\n", ["numerics.reproducible is 1", "allowed is true or false"]),
        ("numerics: {reproducable: true}\n", ["'reproducable'", "nearest: 'reproducible'"]),
        ("debug: {level: LOUD}\n", ["debug.level is 'LOUD'", "WARN, INFO, DEBUG"]),
        ("version: 2\n", ["version is 2", "from 1 to 1"]),
        ("memory: {slots: 4, slots: 5}\n", ["'slots' is given twice"]),
        ("memory: 5\n", ["memory must be a mapping"]),
        ("policy:\n  all_reduce: {schedule: ring}\n", ["policy.all_reduce must be a list, not {'schedule': 'ring'}"]),
        ("policy:\n  all_reduce: []\n", ["policy.all_reduce has no rule"]),
        ("policy:\n  all_reduce:\n    - {schedule: rink}\n", ["mine.yaml:3", "'rink' is not known", "nearest: 'ring'"]),
        ("policy:\n  all_reduce:\n    - {max_bytes: 1MB}\n", ["mine.yaml:3", "schedule is missing", "one_shot"]),
        ("policy:\n  all_reduce:\n    - {ranks: 2, min_ranks: 2, schedule: ring}\n", ["ranks excludes min_ranks"]),
        ("policy:\n  reduce:\n    - {min_ranks: 4, max_ranks: 3, schedule: tree}\n", ["could never match"]),
        ("policy:\n  all_to_all:\n    - {max_bytes: 1MB, schedule: pairwise}\n", ["all_to_all takes none", "uneven"]),
        ("policy:\n  all_reduce:\n    - {max_bytes: 1MB/nodes, schedule: ring}\n", ["'1MB/nodes'", "/ranks"]),
        (
            "policy:\n  broadcast:\n    - {schedule: ring}\n",
            ["'ring' does not serve broadcast", "one_shot, tree, chain"],
        ),
        ("schedules: [none.py]\n", ["mine.yaml:1", "'none.py'", "there is no file"]),
        ("memory: {slots: 4\n", ["mine.yaml:", "not YAML"]),
        ("a: 1\n---\nb: 2\n", ["mine.yaml:", "not YAML"]),
        ("- 1\n", ["mine.yaml:1", "must be a mapping of keys to values, not [1]"]),
        (f"policy: [{'1, ' * 99}]\n", ["policy must be a mapping of keys to values, not [1, 1,", "1, 1,..."]),
        ("memory: &m {slots: *m}\n", ["an alias may not stand for a part it lies in"]),
    ],
)
def test_what_is_not_understood_is_refused_with_place_and_allowed_values(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    message = refused(written(tmp_path, text))
    assert [p for p in parts if p not in message] == [], message


def test_a_file_that_is_not_there_names_the_source_and_the_shipped_ones() -> None:
    message = refused(None, {"RINGCOMM_CONFIG": "singel_node"})
    assert "RINGCOMM_CONFIG" in message and "nearest: 'single_node'" in message and "default" in message
    assert "pg_options" in refused("/no/such.yaml")
    assert "allowed are ringcomm.Options" in refused(7)


@pytest.mark.parametrize(
    ("command", "arguments", "name"),
    [(config_tool, ["nope"], "argument CONFIG"), (explain_tool, [*EXPLAIN, "--config", "nope"], "--config")],
)
def test_a_command_calls_its_argument_by_its_own_name(
    command: Any, arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert f": {name}: no file 'nope'" in capsys.readouterr().err


def test_values_and_their_places_are_apart_however_long_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config_tool.main([written(tmp_path, "tcp: {ports: [40000, 40063]}\n")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tcp.ports:")]
    assert " 40000-40063 # " in line


def test_units_are_decimal_and_binary() -> None:
    for text, value in [
        ("1MB", 10**6),
        ("1MiB", 1 << 20),
        ("1.5KiB", 1536),
        (4096, 4096),
        ("2GB", 2 * 10**9),
        ("7kB", 7000),
    ]:
        loaded = config.load({"policy": {"all_reduce": [{"max_bytes": text, "schedule": "ring"}]}}, {})
        assert loaded.policy["all_reduce"][0].max_bytes == Threshold(value)
    assert config.load({"progress": {"spin": "1.5ms"}}, {}).progress.spin == 1_500_000


def test_pg_options_stand_over_the_variable_which_stands_over_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, "memory: {slots: 6}\n")
    assert config.load(None, {"RINGCOMM_CONFIG": path}).memory.slots == 6
    for options in (
        {"memory": {"slots": 7}},
        ringcomm.Options({"memory": {"slots": 7}}),
        ringcomm.Options(config={"memory": {"slots": 7}}),
    ):
        loaded = config.load(options, {"RINGCOMM_CONFIG": path})
        assert loaded.memory.slots == 7
        assert any("pg_options stands over RINGCOMM_CONFIG" in line for line in loaded.log_lines())
    assert config.load(Path(path), {}).memory.slots == config.load(ringcomm.Options(path), {}).memory.slots == 6


def test_the_log_names_the_file_that_was_read(tmp_path: Path) -> None:
    path = written(tmp_path, "memory: {slots: 6}\n")
    assert path in config.load(None, {"RINGCOMM_CONFIG": path}).log_lines()[0]


def test_no_file_in_a_default_place_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("default.yaml", "ringcomm.yaml", ".ringcomm.yaml", "single_node.yaml"):
        (tmp_path / name).write_text("memory: {slots: 9}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.load(None, {}).memory.slots == 4


def test_single_keys_from_the_environment_stand_over_the_file_and_are_logged(tmp_path: Path) -> None:
    path = written(tmp_path, "progress:\n  spin: 10us\n")
    loaded = config.load(path, {"RINGCOMM_SPIN": "20us", "RINGCOMM_DEBUG": "info", "RINGCOMM_WORKERS": "3"})
    assert (loaded.progress.spin, loaded.debug.level, loaded.progress.workers) == (20_000, "INFO", 3)
    line = next(x for x in loaded.log_lines() if "progress.spin" in x)
    assert "RINGCOMM_SPIN" in line and "over 10us" in line and "mine.yaml:2" in line
    message = refused(path, {"RINGCOMM_SPIN": "20"})
    assert "environment RINGCOMM_SPIN" in message and "'20'" in message


@pytest.mark.parametrize(
    ("given", "allowed", "shown"),
    [
        ("eth", "eth0 eth1 eth10", "eth"),
        ("=eth0,eth1", "eth0 eth1", "=eth0,=eth1"),
        ("=eth0", "eth0", "=eth0"),
        ("^docker,lo", "eth0 eth1 eth10", "^docker,^lo"),
        ("^=eth1", "docker0 eth0 eth10 lo", "^=eth1"),
        (["eth", "^=eth1"], "eth0 eth10", "eth,^=eth1"),
        (["=lo", "=eth0"], "eth0 lo", "=lo,=eth0"),
    ],
)
def test_interfaces_are_named_as_nccl_does(given: object, allowed: str, shown: str) -> None:
    found = config.load({"tcp": {"interfaces": given}}, {})
    assert found.tcp.interfaces is not None
    names = [name for name in ("docker0", "eth0", "eth1", "eth10", "lo") if found.tcp.interfaces.allow(name)]
    assert names == allowed.split()
    assert found.values()["tcp.interfaces"] == shown
    if isinstance(given, str):
        assert config.load(None, {"RINGCOMM_SOCKET_IFNAME": given}).tcp == found.tcp


def test_keys_at_the_top_have_variables_and_must_agree_too(tmp_path: Path) -> None:
    loaded = config.load(
        written(tmp_path, "net: auto\n"), {"RINGCOMM_NET": "tcp", "RINGCOMM_PORT_RANGE": "40000-40003"}
    )
    assert loaded.net == "tcp" and loaded.tcp.ports == (40000, 40003)
    assert loaded.sources["net"] == "environment RINGCOMM_NET" and loaded.digest_parts()["net"] == "tcp"
    assert any("net is tcp by environment RINGCOMM_NET, over auto at" in line for line in loaded.log_lines())
    assert "environment RINGCOMM_NET: net is 'rdma'" in refused(None, {"RINGCOMM_NET": "rdma"})
    assert config.load({"tcp": {"ports": [1, 2]}}, {}).values()["tcp.ports"] == "1-2"


def test_settings_that_exclude_each_other_name_both_sources(tmp_path: Path) -> None:
    path = written(tmp_path, "policy:\n  all_reduce:\n    - {schedule: ring, slot: 256KiB}\n")
    message = refused(path, {"RINGCOMM_SLOT": "64KiB"})
    assert (
        "mine.yaml:3" in message
        and "environment RINGCOMM_SLOT" in message
        and "256KiB" in message
        and "64KiB" in message
    )
    message = refused({"memory": {"limit": "1MiB"}}, {"RINGCOMM_SLOT": "1MiB"})
    assert "environment RINGCOMM_SLOT" in message and "pg_options: memory.limit" in message


def test_an_unknown_variable_is_warned_about_once_with_the_nearest_name() -> None:
    loading._warned.clear()
    with pytest.warns(RuntimeWarning, match=r"RINGCOMM_DEBUGG .*nearest: 'RINGCOMM_DEBUG'"):
        config.load(None, {"RINGCOMM_DEBUGG": "INFO"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.load(None, {"RINGCOMM_DEBUGG": "INFO", "RINGCOMM_TEST_X": "1", "RINGCOMM_BUILD_X": "1", "OTHER": "1"})


def test_a_policy_for_one_collective_leaves_the_shipped_rules_for_the_others() -> None:
    loaded = config.load({"policy": {"all_reduce": [{"schedule": "ring"}]}}, {})
    assert [r.schedule for r in loaded.policy["all_reduce"]] == ["ring"]
    assert loaded.policy["broadcast"] == config.load(None, {}).policy["broadcast"]


OWN = """
from ringcomm.schedules import BUILT_IN, Schedule
SCHEDULES = [Schedule("mine", {"all_reduce": BUILT_IN["ring"].generators[0]}, min_slots=2)]
"""


def test_schedule_files_are_relative_to_the_yaml_verified_and_part_of_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringcomm import schedules

    monkeypatch.setattr(schedules, "SCHEDULES", dict(schedules.SCHEDULES))
    text = "schedules: [own.py]\npolicy:\n  all_reduce:\n    - {schedule: mine}\n"
    (tmp_path / "own.py").write_text("x = 1 /\n")
    assert "mine.yaml:1" in (message := refused(written(tmp_path, text))) and "SyntaxError" in message
    (tmp_path / "own.py").write_text(OWN)
    loaded = config.load(written(tmp_path, text), {})
    assert loaded.schedules == (str(tmp_path / "own.py"),) and loaded.policy["all_reduce"][0].schedule == "mine"
    before = loaded.digest_parts()["schedules"]
    (tmp_path / "own.py").write_text(OWN + "# changed\n")
    assert loaded.digest_parts()["schedules"] != before
    assert "absolute" in refused({"schedules": ["own.py"]})


def test_the_digest_covers_what_must_agree_and_nothing_else() -> None:
    plain = config.load(None, {}).digest_parts()
    assert plain == config.load("default", {"RINGCOMM_DEBUG": "INFO", "RINGCOMM_SPIN": "0us"}).digest_parts()
    other = config.load({"memory": {"slot": "64KiB"}, "policy": {"reduce": [{"schedule": "tree"}]}}, {}).digest_parts()
    assert {k for k in plain if plain[k] != other[k]} == {"memory.slot", "policy.reduce"}
    assert other["memory.slot"] == "64KiB"
    strict = config.load({"numerics": {"accumulate": "float32", "reproducible": True}}, {}).digest_parts()
    changed = {"numerics.accumulate": "float32", "numerics.reproducible": "true"}
    assert {k: strict[k] for k in plain if plain[k] != strict[k]} == changed


def test_settings_are_frozen_and_each_has_a_text() -> None:
    loaded = config.load(None, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.memory.slots = 5  # type: ignore[misc]
    for cls in (*config.SECTIONS.values(), config.PolicyRule):
        assert all(f.metadata["doc"].endswith(".") for f in setting_fields(cls))
        with pytest.raises(TypeError):
            cls(4)


def test_auto_workers_and_spin_follow_ranks_and_cores() -> None:
    progress = Progress()
    assert [progress.workers_for(2, cores) for cores in (1, 2, 8, 128)] == [1, 1, 4, 8]
    assert [progress.spin_ns_for(ranks, 2) for ranks in (1, 2, 3)] == [80_000, 80_000, 0]
    assert Progress(spin=5, workers=2).spin_ns_for(9, 1) == 5


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, ringcomm; sys.exit(sum(m in sys.modules for m in ('yaml', 'ringcomm.config', 'ringcomm.program')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def test_config_warns_of_groups_that_would_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hole = written(tmp_path, "policy: {all_reduce: [{max_bytes: 64KiB, schedule: one_shot}]}\n")
    assert config_tool.main([hole]) == 0
    assert "groups of 2, 3, 4, 8, 64 ranks will be refused" in (text := capsys.readouterr().err)
    assert "no rule for messages above 64KiB" in text
    for name in config.shipped_names():
        assert config_tool.main([name]) == 0
        assert capsys.readouterr().err == ""


def test_the_documentation_is_what_the_code_says() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "ringcomm", "config", "--markdown"],
        cwd=ROOT,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout == (ROOT / "docs" / "configuration.md").read_text(), (
        "run: python -m ringcomm config --markdown > docs/configuration.md"
    )
