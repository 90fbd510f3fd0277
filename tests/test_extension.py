"""The compiled extension: its stub tells the truth, constants agree, and it reads the programs Python packs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ringcomm
from ringcomm import _load, schedules
from ringcomm.program import pack
from ringcomm.program.ops import Collective, Opcode

EXTENSION = _load.extension()
STUB = ast.parse((Path(ringcomm.__file__).parent / "_C.pyi").read_text())


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith(("__", "_pybind11_"))}


def stub_names(body: list[ast.stmt]) -> set[str]:
    return public([node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))])


def test_the_stub_names_exactly_what_the_extension_has() -> None:
    assert stub_names(STUB.body) == public(dir(EXTENSION))
    for node in STUB.body:
        if isinstance(node, ast.ClassDef):
            assert stub_names(node.body) == public(list(vars(getattr(EXTENSION, node.name))))


def test_the_stub_has_the_extensions_arguments() -> None:
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef):
            signature = getattr(EXTENSION, node.name).__doc__.splitlines()[0]
            arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            found = [
                part.split(":")[0].strip()
                for part in signature.split("(", 1)[1].split(") ->")[0].split(", ")
                if ":" in part
            ]
            assert [name for name in found if name.isidentifier()] == arguments, signature


def test_constants_agree() -> None:
    numbers = EXTENSION.layout_numbers()
    assert numbers["program_magic"] == pack.MAGIC
    assert numbers["program_version"] == pack.VERSION
    assert numbers["collectives"] == len(Collective)
    assert numbers["opcodes"] == len(Opcode)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_the_data_plane_reads_every_built_in_program(ranks: int) -> None:
    read = 0
    for name, schedule in schedules.BUILT_IN.items():
        for collective in schedule.collectives:
            for root in schedules.roots(collective, ranks):
                for program in schedules.build_all(collective, name, ranks, root):
                    assert EXTENSION.check_program(pack.pack(program)) == ""
                    read += 1
    assert read > 10


def test_the_data_plane_refuses_a_broken_table_by_name() -> None:
    good = pack.pack(schedules.build("all_reduce", "ring", 2, 0))
    for word, value, what in [
        (0, 1, "magic"),
        (1, 99, "version"),
        (16, 77, "opcode"),
        (8, 4, "words"),
        (18, 9, "lag"),
        (12, 1, "lag"),
        (14, 5, "flags"),
        (15, 1, "reserved"),
        (21, 1, "first ref"),
    ]:
        table = good.copy()
        table[word] = value
        assert what in EXTENSION.check_program(table)
