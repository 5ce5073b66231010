"""How ops are written in ONNX: one function per op, in a file for each family, beside which ``oneflow/ops`` has the op itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from .._emitter import Emitter, Result

Rule = Callable[[Emitter], Result | Sequence[Result] | None]
_RULES: dict[str, Rule] = {}


class NoForm(Exception):
    """ONNX cannot express this use of an op; the text says why."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of ops. It emits nodes and returns what holds each output; None where it called ``alias``."""

    def register(function: Rule) -> Rule:
        for name in names:
            if _RULES.setdefault(name, function) is not function:
                raise ValueError(f"there is a rule for {name!r} already")
        return function

    return register


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """All rules, by the op's name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _RULES
