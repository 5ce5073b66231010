"""Definitions of a job's inputs, under their old path."""

from __future__ import annotations

from ...typing import FixedTensorDef as FixedTensorDef
from ...typing import MirroredTensorDef as MirroredTensorDef
from ...typing import MirroredTensorListDef as MirroredTensorListDef

__all__ = ["FixedTensorDef", "MirroredTensorDef", "MirroredTensorListDef"]
