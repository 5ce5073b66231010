"""``flow.keras.maths``."""

from __future__ import annotations

from ..ops.binary import add as add
