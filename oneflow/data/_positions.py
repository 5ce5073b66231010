"""Saved positions of readers: what is read of them is checked, because a checkpoint may come from anywhere."""

from __future__ import annotations

from typing import Any

WITHOUT_POSITIONS = "flow.load_variables(dict(flow.checkpoint.get(path))) loads variables alone"
_MOST = (1 << 63) - 1


def whole(value: Any, least: int = 0, most: int = _MOST) -> int:
    """An int in [least, most]. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not an integer in [{least}, {most}]"[:300])
    return value
