"""Staged execution: a job on several places, or with repeated parts, as compiled functions and a list of instructions.

``segments`` groups the nodes that one place computes at once, ``functions`` has the functions that are compiled, ``schedule``
decides the order of calls and moves, ``recorder`` records them as instructions, and ``execution`` replays these.
"""

from .execution import Call, Free, Instruction, Move, StagedProgram, Transfer
from .recorder import Compile
from .schedule import staged

__all__ = ["Call", "Compile", "Free", "Instruction", "Move", "StagedProgram", "Transfer", "staged"]
