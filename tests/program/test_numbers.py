"""One set of numbers: Python's, those of core/types.h and those of docs/program.md are the same."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from ringcomm.program import pack
from ringcomm.program.ops import DEFAULT_SLOTS, LEGAL, Collective, ConnectionKind, Lend, Opcode, RefKind

ROOT = Path(__file__).parents[2]
TYPES = (ROOT / "ringcomm_ext/core/types.h").read_text()
DOC = (ROOT / "docs/program.md").read_text()


def _enum_in_header(name: str) -> dict[str, int]:
    body = re.search(rf"enum class {name} : \w+ \{{(.*?)\}};", TYPES, re.S)
    assert body is not None, f"types.h has no enum class {name}"
    pairs = re.findall(r"(\w+)\s*=\s*(\d+)", body[1])
    return {key: int(value) for key, value in pairs}


def _constant(name: str) -> int:
    found = re.search(rf"constexpr \w+ {name} = (-?(?:0x)?[0-9a-fA-F]+);", TYPES)
    assert found is not None, f"types.h has no constant {name}"
    return int(found[1], 0)


def _struct_words(name: str) -> list[str]:
    body = re.search(rf"struct {name} \{{(.*?)\}};", TYPES, re.S)
    assert body is not None, f"types.h has no struct {name}"
    return [word.strip() for line in re.findall(r"int32_t ([^;]+);", body[1]) for word in line.split(",")]


@pytest.mark.parametrize("kind", [Collective, Opcode, RefKind, ConnectionKind, Lend])
def test_enums(kind: type[IntEnum]) -> None:
    assert {member.name.lower(): int(member) for member in kind} == _enum_in_header(kind.__name__)


def test_constants() -> None:
    assert _constant("kProgramMagic") == pack.MAGIC
    assert _constant("kProgramVersion") == pack.VERSION
    assert _constant("kRefKindShift") == pack.REF_KIND_SHIFT
    assert _constant("kNoRef") == pack.NO_REF
    assert _constant("kFlagFinish") == pack.FLAG_FINISH
    assert _constant("kLendShift") == pack.LEND_SHIFT
    assert _constant("kFlagDrain") == pack.FLAG_DRAIN
    assert _constant("kCollectives") == len(Collective)
    assert _constant("kOpcodes") == len(Opcode)


def test_layout() -> None:
    assert list(pack.HEADER) == _struct_words("ProgramHeader")
    assert list(pack.STEP) == _struct_words("PackedStep")
    assert list(pack.CONNECTION) == _struct_words("PackedConnection")


def test_document_opcodes() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d) \| (.+?) \| (.+?) \| (.+?) \|", DOC, re.M)
    assert {name: int(number) for name, number, *_ in rows} == {op.name: int(op) for op in Opcode}
    for name, _, sources, dst, senders in rows:
        rule = LEGAL[Opcode[name]]
        assert rule.sources == ((2, None) if sources == "2 or more" else (1, 1)), name
        assert rule.local == ((1, 1) if sources == "1 local" else (0, None) if "or more" in sources else (0, 0)), name
        assert rule.dst == {"yes": (1, 1), "no": (0, 0), "optional": (0, 1)}[dst], name
        assert rule.senders == ((1, None) if senders == "1 or more" else (0, 0)), name


def test_document_numbers() -> None:
    for member in list(Collective)[:8]:
        assert re.search(rf"\b{member.name} {int(member)}\b", DOC), member
    assert f"magic 0x{pack.MAGIC:x}, format version {pack.VERSION}" in DOC
    assert f"({DEFAULT_SLOTS} by default)" in DOC
