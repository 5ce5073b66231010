"""``flow.util``: names that occur once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from .config._environment import grpc_use_no_signal
from .graph.graph import Graph, current_or_none
from .runtime.environment import delete_worker, init_worker
from .typing import FixedTensorDef, MirroredTensorDef, MirroredTensorListDef

_OLDER = (FixedTensorDef, MirroredTensorDef, MirroredTensorListDef, delete_worker, grpc_use_no_signal, init_worker)
_outside_jobs = itertools.count()
_in_job: WeakKeyDictionary[Graph, Iterator[int]] = WeakKeyDictionary()


def unique_str(prefix: str) -> str:
    """``prefix`` followed by a number that no other call gave; inside a job numbers depend on that job alone.

    Example: >>> flow.util.unique_str("dense")
    """
    graph = current_or_none()
    numbers = _outside_jobs if graph is None else _in_job.setdefault(graph, itertools.count())
    return f"{prefix}{next(numbers)}"


def is_deprecated(func_or_class: Any) -> bool:
    """``flow.is_deprecated``: whether OneFlow had marked this name as one of an older style. All of them go on working.

    Example: >>> flow.util.is_deprecated(flow.math.add)   # False
    """
    return any(func_or_class is name for name in _OLDER)
