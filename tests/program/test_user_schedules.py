"""A user's file is proved before it is used; the command and the page about it show what really happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringcomm import _C, config, plan, schedules
from ringcomm.errors import ConfigError
from ringcomm.program.ops import Collective, Opcode, ScheduleError
from ringcomm.schedules import BUILT_IN, SCHEDULES, build, load_user, user
from ringcomm.tools.verify import main

EXAMPLES = Path(__file__).parent / "examples"
PAGE = (Path(__file__).parents[2] / "docs/writing_a_schedule.md").read_text()


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    yield
    user._kept.clear()
    SCHEDULES.clear()
    SCHEDULES.update(BUILT_IN)
    schedules.build.cache_clear()
    schedules.verify_schedule.cache_clear()


def test_a_right_file_is_registered_and_builds() -> None:
    assert load_user(EXAMPLES / "star.py", ranks=[2, 4]) == ["star"]
    program = build("all_reduce", "star", 4, 1)
    assert [step.opcode for step in program.steps] == [Opcode.send, Opcode.receive]
    assert build("all_reduce", "star", 7, 3).ranks == 7  # not asked for at load: proved now


def test_a_wrong_file_is_refused_and_nothing_of_it_registered() -> None:
    with pytest.raises(ScheduleError, match=r"star_wrong\.py: schedule 'star_wrong' refused: .*deadlock") as caught:
        load_user(str(EXAMPLES / "star_wrong.py"), ranks=[1, 2])
    assert "rank 1, step 0" in str(caught.value)
    assert "star_wrong" not in SCHEDULES


def test_ranks_not_proved_at_load_are_proved_at_build() -> None:
    load_user(EXAMPLES / "star_wrong.py", ranks=[1])
    with pytest.raises(ScheduleError, match="deadlock"):
        build("all_reduce", "star_wrong", 2, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs a list SCHEDULES"),
        ("SCHEDULES = [1]", "needs a list SCHEDULES"),
        ("from ringcomm.schedules import BUILT_IN\nSCHEDULES = [BUILT_IN['ring']]", "'ring' is a built-in schedule"),
        (
            "from ringcomm.schedules import Schedule\ndef f(p): return None\n"
            "SCHEDULES = [Schedule('x', {'all_reduce': f})]",
            "schedule x returned NoneType, not a Program",
        ),
        (
            "from ringcomm.schedules import Schedule, build\ndef f(p): return build('all_reduce', 'ring', 4, 0)\n"
            "SCHEDULES = [Schedule('x', {'all_reduce': f})]",
            "schedule x returned a program for .*, asked for",
        ),
        (
            "from ringcomm.schedules import Schedule\nSCHEDULES = [Schedule('x', {'allreduce': 1})]",
            "collective='allreduce': no program has it; allowed: all_reduce, .*, gather, scatter$",
        ),
        (
            "from ringcomm.schedules import Schedule\nSCHEDULES = [Schedule('x', {'barrier': 1})]",
            "collective='barrier': no program has it; allowed: all_reduce",
        ),
        (
            "from ringcomm.program import Collective\nfrom ringcomm.schedules import Schedule\n"
            "SCHEDULES = [Schedule('x', {Collective.barrier: 1})]",
            "collective=barrier: no program; allowed: all_reduce",
        ),
        ("from ringcomm.schedules import Schedule\nSCHEDULES = [Schedule('a b', {'all_reduce': 1})]", "name='a b'"),
    ],
)
def test_files_that_are_no_schedules_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=says):
        load_user(path)


RAISES = """
from ringcomm.schedules import BUILT_IN, Schedule
def f(p):
    return [][p.rank] if p.ranks == 3 else BUILT_IN["ring"].build(p)
SCHEDULES = [Schedule("oops", {"all_reduce": f})]
"""


@pytest.mark.parametrize(
    ("text", "says", "status"),
    [("def x(:", "SyntaxError: ", 2), ("[][0]", "IndexError: list", 2), (RAISES, "oops raised IndexError: ", 1)],
)
def test_what_the_users_code_raises_names_the_file_and_is_no_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str, status: int
) -> None:
    """For 3 ranks only: a function that refuses some numbers of ranks is taken, one with a bug is not."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=rf"mine\.py: .*{says}") as caught:
        load_user(path)
    assert isinstance(caught.value.__cause__, (SyntaxError, IndexError))
    assert main([str(path)]) == status
    printed = "".join(capsys.readouterr())
    assert says in printed and "Traceback" not in printed


def test_missing_files_and_modules_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"nothing\.py: no such file"):
        load_user(tmp_path / "nothing.py")
    with pytest.raises(ScheduleError, match="'no_such_module_here' is neither a module nor a path"):
        load_user("no_such_module_here")


def test_the_page_shows_the_examples_and_their_real_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert (EXAMPLES / "star.py").read_text() in PAGE
    shown = re.findall(r"^\$ python -m ringcomm verify (.+)\n((?:(?!```).*\n)+)", PAGE, re.M)
    assert [arguments.split()[0] for arguments, _ in shown] == ["star.py", "star_wrong.py"]
    for arguments, output in shown:
        status = main(arguments.split())
        assert capsys.readouterr().out == output
        assert status == ("wrong" in arguments)
    program = build_from_page()
    lines = "".join(f"{i} {step} lag {step.lag}\n" for i, step in enumerate(program.steps))
    assert f"```\n{lines}```" in PAGE


def build_from_page() -> schedules.Program:
    load_user("star.py", ranks=[2, 4])
    return build("all_reduce", "star", ranks=4, rank=1)


def test_the_command_knows_built_in_names_and_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chain", "--ranks", "2-3,5", "--slots", "2"]) == 0
    assert capsys.readouterr().out.count("right") == 6
    assert main(["chains"]) == 2
    assert "'chains' is neither a file ending in .py nor one of chain, " in capsys.readouterr().err
    assert main(["ring", "--ranks", "2", "--slots", "1"]) == 1
    assert "slots=1: schedule ring needs at least 2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["ring", "--ranks", "0"])


LIMITED = """
from ringcomm.program import ScheduleError
from ringcomm.schedules import BUILT_IN, Schedule
def only(p):
    if p.ranks not in ({served}):
        raise ScheduleError(f"ranks={{p.ranks}}: this schedule is for {served}")
    return BUILT_IN[{of!r}].build(p)
SCHEDULES = [Schedule("limited", {{"all_reduce": only}})]
"""


@pytest.mark.parametrize(("served", "ranks"), [("2, 3", 3), ("48,", 48)])
def test_a_schedule_may_refuse_numbers_of_ranks_when_nobody_asked_for_one(
    tmp_path: Path, served: str, ranks: int
) -> None:
    path = tmp_path / "limited.py"
    path.write_text(LIMITED.format(served=served, of="ring"))
    assert load_user(path) == ["limited"]
    assert build("all_reduce", "limited", ranks, 1).ranks == ranks
    with pytest.raises(ScheduleError, match=f"ranks=4: this schedule is for {served}"):
        load_user(path, ranks=[4])
    path.write_text(LIMITED.format(served="", of="ring"))
    with pytest.raises(ScheduleError, match="ranks=1: this schedule is for"):
        load_user(path)


def test_a_schedule_that_only_some_ranks_refuse_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "limited.py"
    path.write_text(LIMITED.format(served="2,", of="ring").replace("not in (2,)", "== 3 and p.rank == 1"))
    with pytest.raises(ScheduleError, match="ranks=3: this schedule"):
        load_user(path)


def test_a_group_is_made_with_limited_schedules_where_its_rules_choose_them(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(LIMITED.format(served="2,", of="ring"))
    rules = [{"ranks": 2, "schedule": "limited"}, {"schedule": "ring"}]
    settings = config.load({"schedules": [str(tmp_path / "limited.py")], "policy": {"all_reduce": rules}}, {})
    for ranks in (2, 4):
        made = plan.of_group(settings, ranks, None, _C)
        chosen = [row[2] for row in made.rules((0,) * ranks) if row[0] == int(Collective.all_reduce)]
        assert chosen == ["limited" if ranks == 2 else "ring"]
    rules[0] = {"min_ranks": 3, "schedule": "limited"}
    settings = config.load({"schedules": [str(tmp_path / "limited.py")], "policy": {"all_reduce": rules}}, {})
    with pytest.raises(
        ScheduleError, match=r"all_reduce chooses 'limited' in a group of 3 ranks: ranks=3: this schedule"
    ):
        plan.of_group(settings, 3, None, _C)


def test_two_files_of_one_configuration_that_define_one_name_are_refused(tmp_path: Path) -> None:
    """Else the last would win, and the next group of the same configuration be refused."""
    first, second, copy = (tmp_path / f"{name}.py" for name in ("first", "second", "copy"))
    first.write_text(LIMITED.format(served="1, 2, 3, 4", of="ring"))
    second.write_text(LIMITED.format(served="1, 2, 3, 4", of="one_shot"))
    copy.write_text(first.read_text())
    policy = {"all_reduce": [{"schedule": "limited"}]}
    with pytest.raises(ConfigError, match=r"schedules\[1\]: .*second\.py defines schedule 'limited', .*first\.py;"):
        config.load({"schedules": [str(first), str(second)], "policy": policy}, {})
    assert len(config.load({"schedules": [str(first), str(copy)], "policy": policy}, {}).schedules) == 2


def test_a_name_that_a_group_was_made_with_stays_what_it_is(tmp_path: Path) -> None:
    """Else the ranks that are in both groups would build other programs than those that are in one."""
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(LIMITED.format(served="1, 2, 3, 4", of="ring"))
    second.write_text(LIMITED.format(served="1, 2, 3, 4", of="one_shot"))
    policy = {"all_reduce": [{"schedule": "limited"}]}
    config.load({"schedules": [str(second)], "policy": policy}, {})  # read, and no group made
    settings = config.load({"schedules": [str(first)], "policy": policy}, {})
    plan.of_group(settings, 2, None, _C)
    ring = build("all_reduce", "ring", 2, 1).steps
    assert build("all_reduce", "limited", 2, 1).steps == ring
    with pytest.raises(ConfigError, match=r"second\.py.*'limited' is taken.* the one of .*first\.py; choose another"):
        config.load({"schedules": [str(second)], "policy": policy}, {})
    text = first.read_text()
    first.write_text(text + "# changed\n")
    with pytest.raises(ScheduleError, match=r"the one of .*first\.py as it was; choose another"):
        load_user(first)
    assert build("all_reduce", "limited", 2, 1).steps == ring
    first.write_text(text)
    second.write_text(text)  # the same schedules, in another place
    assert load_user(first) == load_user(second) == ["limited"]
