"""The lines of docs/frameworks work: each page is run as it stands, where its framework is installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (ROOT / "docs" / "frameworks").glob("*.md") if path.stem != "README")
PINS = dict(
    re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)$", (ROOT / "requirements" / "frameworks.txt").read_text(), re.MULTILINE)
)
MODULES = {"torchrun": "torch", "ray_train": "ray"}  # where a page is not named as its module


@pytest.mark.ci
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_lines_of_a_page_do_what_it_says(path: Path, tmp_path: Path) -> None:
    module = MODULES.get(path.stem, path.stem)
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed here; scripts/framework_pages installs it and runs its page")
    assert page.run(path.read_text(), tmp_path) > 0


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_was_run(path: Path) -> None:
    """With the version that requirements/frameworks.txt installs."""
    stated = re.search(r"^Run with (.*?) on \d+ \w+ \d{4}", path.read_text(), re.MULTILINE)
    assert stated is not None
    name = MODULES.get(path.stem, path.stem)
    version = PINS.get(name, "2.13.0")
    assert f"{name} {version}" in stated[1]


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "frameworks" / "README.md").read_text()
    assert [path.name for path in PAGES if f"({path.name})" not in index] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\necho one\n```\n```text\ntwo\n```\n", "not printed: ['two']"),
        ("```sh\nfalse\ntrue\n```\n", "ended with 1"),
        ("```python a.py\nraise SystemExit(3)\n```\n```sh\npython a.py | cat\n```\n", "ended with 3"),
    ],
)
def test_a_page_that_is_wrong_fails(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        page.run(text, tmp_path)
    assert said in str(caught.value)
