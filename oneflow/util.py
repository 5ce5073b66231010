"""``flow.util``: unique names, and a check for deprecated ones."""

from __future__ import annotations

import itertools as _itertools
from collections.abc import Iterator as _Iterator
from typing import Any as _Any
from weakref import WeakKeyDictionary as _WeakKeyDictionary

from . import typing as _typing
from ._base.refuse import refuse as _refuse
from ._base.refuse import shown as _shown
from .config import _environment
from .errors import ArgumentError as _ArgumentError
from .graph.graph import Graph as _Graph
from .graph.graph import current_or_none as _current_or_none
from .runtime import environment as _runtime

_OLDER = (
    _typing.FixedTensorDef, _typing.MirroredTensorDef, _typing.MirroredTensorListDef, _runtime.delete_worker,
    _environment.grpc_use_no_signal, _runtime.init_worker,
)  # fmt: skip
_outside_jobs = _itertools.count()
_in_job: _WeakKeyDictionary[_Graph, _Iterator[int]] = _WeakKeyDictionary()


def unique_str(prefix: str) -> str:
    """``prefix`` followed by a number that is new in this process, or inside a job, new in that job.

    Example: >>> flow.util.unique_str("dense")
    """
    if not isinstance(prefix, str):
        _refuse(_ArgumentError, f"flow.util.unique_str needs a str, got {_shown(prefix)}")
    graph = _current_or_none()
    numbers = _outside_jobs if graph is None else _in_job.setdefault(graph, _itertools.count())
    return f"{prefix}{next(numbers)}"


def is_deprecated(func_or_class: _Any) -> bool:
    """Whether OneFlow marked a function or class as deprecated. Deprecated names work like others.

    Example: >>> flow.util.is_deprecated(flow.math.add)   # False
    """
    return any(func_or_class is name for name in _OLDER)
