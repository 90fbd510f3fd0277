"""A user's file is proved before it is used; the command and the page about it show what really happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringcomm import schedules
from ringcomm.program.ops import Opcode, ScheduleError
from ringcomm.schedules import BUILT_IN, SCHEDULES, build, load_user
from ringcomm.tools.verify import main

EXAMPLES = Path(__file__).parent / "examples"
PAGE = (Path(__file__).parents[2] / "docs/writing_a_schedule.md").read_text()


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    yield
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
            "collective='allreduce'",
        ),
        ("from ringcomm.schedules import Schedule\nSCHEDULES = [Schedule('a b', {'all_reduce': 1})]", "name='a b'"),
    ],
)
def test_files_that_are_no_schedules_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=says):
        load_user(path)


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
