"""`python -m ringcomm dtypes`: which element types move and which reduce op takes which; --markdown: docs/dtypes.md."""

from __future__ import annotations

import argparse

from ringcomm import _load, dtype_docs


def show() -> str:
    """A line for each type: its name and the ops that are defined for it."""
    extension = _load.extension()
    return "\n".join(
        f"{dtype_docs.name(t):<18}{'moves' if extension.moves(t) else 'refused':<9}{' '.join(extension.reduce_ops(t))}"
        for t in dtype_docs.element_types()
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m ringcomm dtypes", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the documentation page")
    arguments = parser.parse_args(argv)
    print(dtype_docs.markdown() if arguments.markdown else show(), end="" if arguments.markdown else "\n")
    return 0
