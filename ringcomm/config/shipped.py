"""Where the shipped configurations are."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# Installed as package data; in a source tree they stand beside the package.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def shipped(name: str) -> Path | None:
    """The file of a shipped configuration ('default', 'single_node', with or without .yaml), or None."""
    stem = name.removesuffix(".yaml")
    for folder in _FOLDERS:
        if stem.isidentifier() and (folder / f"{stem}.yaml").is_file():
            return folder / f"{stem}.yaml"
    return None


def shipped_names() -> list[str]:
    return sorted({p.stem for folder in _FOLDERS for p in folder.glob("*.yaml")})
