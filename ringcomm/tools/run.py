"""`python -m ringcomm run [--backend ringcomm] script.py args...`: runs a program that asks for gloo on ringcomm.

Its children follow, by the environment variable RINGCOMM_REPLACE. `--backend gloo` runs the same program unchanged.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys

from ringcomm import replace


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m ringcomm run", description=__doc__)
    parser.add_argument("--backend", choices=("ringcomm", "gloo"), default="ringcomm", help="default: %(default)s")
    parser.add_argument("-m", action="store_true", dest="module", help="PROGRAM is a module's name, as in python -m")
    parser.add_argument("program", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what PROGRAM finds in sys.argv")
    return parser.parse_args(argv)


def switch(on: bool) -> None:
    """This process and, by the environment, its children."""
    if not on:
        os.environ.pop(replace.VARIABLE, None)
        replace.uninstall()
        return
    os.environ[replace.VARIABLE] = replace.REPLACED
    replace.install()
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        print(
            "ringcomm WARN TORCH_DEVICE_BACKEND_AUTOLOAD switches the entry point off: in fresh interpreters that this "
            "program starts, gloo stays until they import ringcomm",
            file=sys.stderr,
        )


def _missing(name: str) -> str:
    """The module that python -m would not find, '' if there is one. What a package raises itself is not caught."""
    for whole in (name, f"{name}.__main__"):
        try:
            spec = importlib.util.find_spec(whole)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            spec = None
        if spec is None:
            return whole
        if spec.submodule_search_locations is None:
            return ""
    return ""


def main(argv: list[str]) -> int:
    args = arguments(argv)
    if not args.module and not os.path.exists(args.program):
        print(f"ringcomm run: there is no file {args.program!r}", file=sys.stderr)
        return 2
    if not args.module and os.path.isdir(args.program) and not os.path.exists(f"{args.program}/__main__.py"):
        print(f"ringcomm run: there is no __main__.py in the folder {args.program!r}", file=sys.stderr)
        return 2
    switch(args.backend != "gloo")
    if args.module and (missing := _missing(args.program)):  # looked for only now: a package runs when it is looked in
        print(f"ringcomm run: there is no module {missing!r}", file=sys.stderr)
        return 2
    sys.argv = [args.program, *args.arguments]
    if args.module:
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        return 0
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(args.program))  # python puts it there for a script
    runpy.run_path(args.program, run_name="__main__")
    return 0
