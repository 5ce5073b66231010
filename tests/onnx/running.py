"""Jobs for rows of the op table, and ONNX models run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import dtype as dtypes

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
ort = pytest.importorskip("onnxruntime", reason="exported models are checked against onnxruntime")


def job_of(build: Callable[..., Any], arrays: Sequence[np.ndarray], name: str = "row") -> Any:
    """A predict job that gives what ``build`` makes of placeholders for these arrays, called x_0, x_1, ..."""
    placeholders = [tp.Numpy.Placeholder(a.shape, dtypes.from_numpy(a.dtype)) for a in arrays]

    def body(*xs: Any) -> Any:
        made = build(*xs)
        return list(made) if isinstance(made, (list, tuple)) else [made]

    parameters = ", ".join(f"x_{i}: p[{i}]" for i in range(len(arrays)))
    passed = ", ".join(f"x_{i}" for i in range(len(arrays)))
    scope: dict[str, Any] = {"p": placeholders, "body": body, "tp": tp}
    exec(f"def {name}({parameters}) -> tp.Bundle[tp.Numpy]: return body({passed})", scope)  # noqa: S102 - written above
    return flow.global_function()(scope[name])


def session(path: Path, *, check: bool = True) -> Any:
    """A checked model, ready to run."""
    if check:
        onnx.checker.check_model(str(path), full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(found: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    names = [i.name for i in found.get_inputs()]
    return found.run(None, dict(zip(names, arrays, strict=True)))


def close(found: np.ndarray, expected: np.ndarray, tolerance: float, what: str = "") -> None:
    """Equal shapes and dtypes; values within a tolerance relative to the largest expected one."""
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    if expected.dtype.kind != "f" or not expected.size:
        np.testing.assert_array_equal(found, expected, what)
        return
    largest = np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(largest, 1e-3), err_msg=what)
