"""The program: opcodes, packing, the numpy executor that defines them, and the verifier (docs/program.md).

Functions stay in their modules (`from ringcomm.program.pack import pack`): several are named as their module is.
"""

from ringcomm.program.build import Builder
from ringcomm.program.ops import Collective, Problem, Program, ScheduleError

__all__ = ["Builder", "Collective", "Problem", "Program", "ScheduleError"]
