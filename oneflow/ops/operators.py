"""The Python operators of Blobs, ``+``, ``<``, ``blob[...]`` and the like; importing this module installs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..graph.node import Blob
from . import binary, elementwise
from ._emit import fail, is_number
from .distribution import parallel_cast
from .matrix import matmul
from .slicing import getitem


def _matmul(left: Any, right: Any) -> Blob:
    if not (isinstance(left, Blob) and isinstance(right, Blob)):
        other = right if isinstance(left, Blob) else left
        hint = "multiply by a number with *" if is_number(other) else ""
        fail(ArgumentError, "matmul", f"needs a Blob on both sides, got {type(other).__name__}",
             [v for v in (left, right) if isinstance(v, Blob)], hint)  # fmt: skip
    return matmul(left, right)


_OPERATORS: dict[str, Callable[[Any, Any], Blob]] = {
    "add": binary.add, "subtract": binary.subtract, "multiply": binary.multiply, "divide": binary.divide,
    "mod": binary.mod, "floordiv": binary.floordiv, "pow": binary.pow, "matmul": _matmul,
    "equal": binary.equal, "not_equal": binary.not_equal, "less": binary.less, "less_equal": binary.less_equal,
    "greater": binary.greater, "greater_equal": binary.greater_equal,
    "negative": lambda x, _: elementwise.negative(x), "abs": lambda x, _: elementwise.abs(x), "getitem": getitem,
    "with_gradient_distribute": lambda x, distribute: parallel_cast(x, gradient_distribute=distribute),
}  # fmt: skip


def operator(name: str, left: Any, right: Any) -> Blob:
    """The result of the operator of that name; at least one side is a Blob."""
    return _OPERATORS[name](left, right)


Blob.operator = staticmethod(operator)
