"""The program: opcodes, packing, the numpy executor that defines them, and the verifier (docs/program.md)."""

from ringcomm.program.build import Builder
from ringcomm.program.check import check
from ringcomm.program.ops import Collective, Problem, Program, ScheduleError
from ringcomm.program.pack import pack, unpack
from ringcomm.program.verify import verify, verify_sequence

__all__ = [
    "Builder",
    "Collective",
    "Problem",
    "Program",
    "ScheduleError",
    "check",
    "pack",
    "unpack",
    "verify",
    "verify_sequence",
]
