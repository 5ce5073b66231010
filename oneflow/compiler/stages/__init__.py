"""Stages: a job on several places, or one that repeats a part, as compiled functions and a list of instructions.

``segments`` says what one place computes in one go, ``functions`` what is compiled of it, ``schedule`` in which order it is
called and what is moved between places, ``recorder`` writes that down, and ``execution`` replays it.
"""

from .execution import Call, Free, Instruction, Move, StagedProgram, Transfer
from .schedule import staged

__all__ = ["Call", "Free", "Instruction", "Move", "StagedProgram", "Transfer", "staged"]
