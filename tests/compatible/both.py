"""Jobs of either spelling, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.compatible import single_client as sc

_RNG = np.random.default_rng(3)


def value(body: Callable[..., Any], *arrays: np.ndarray, package: Any = flow) -> Any:
    """What a job that is declared with ``package`` returns for these inputs: arrays."""
    annotations = {f"x{i}": tp.Numpy.Placeholder(a.shape, dtype=_dtype(a)) for i, a in enumerate(arrays)}
    names = ", ".join(annotations)
    scope: dict[str, Any] = {"body": body}
    exec(f"def job({names}):\n    return body({names})", scope)  # noqa: S102 - a job of as many parameters
    scope["job"].__annotations__ = annotations
    flow.clear_default_session()
    result = package.global_function()(scope["job"])(*arrays).get()
    return [r.numpy() for r in result] if isinstance(result, (list, tuple)) else result.numpy()


def _dtype(array: np.ndarray) -> Any:
    return sc.bool if array.dtype == np.bool_ else getattr(flow, array.dtype.name)


def floats(*shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return _RNG.standard_normal(shape).astype(np.float32)
