"""Jobs for rows of the op table, and ONNX models run by onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import table

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import dtype as dtypes

TABLES = [importlib.import_module(path.stem) for path in sorted(Path(table.__file__).parent.glob("table_*.py"))]
ROWS = [(found.__name__.removeprefix("table_"), row) for found in TABLES for row in getattr(found, "ROWS", [])]
# Rows of other things than what an exported job computes.
OTHERWISE = {
    "gather outside": "ONNX takes no index outside an axis",
    "gather far outside": "ONNX takes no index outside an axis",
    "batch_normalization_training": "predict jobs use the moving statistics",
    "batch_normalization_training without parameters": "predict jobs use the moving statistics",
    "moving_average, its first batch": "predict jobs only read the averages",
    "moving_average affine": "predict jobs only read the averages",
    "min_max_observer cambricon": "a power of two that is measured at each call",
    "fake_quantization cambricon": "a power of two that is measured at each call",
    "dropout": "predict jobs drop nothing",
    "dynamic_binary_split": "its results have sizes that depend on data",
    "dynamic_binary_concat": "its results have sizes that depend on data",
}
# Rows whose references are written for one batch size.
ONE_SIZE = {
    "slice_v2 of some axes", "reduce_sum wraps", "reduce_variance in float16", "reduced_shape_elem_cnt", "elem_cnt",
    "count_not_finite", "xdivy of 0", "xlogy of 0", "divide number by 0", "divide by number 0", "one_hot outside",
    "in_top_k", "min_max_observer a channel", "reshape with -1", "flatten from 1", "flatten in front",
    "broadcast_to_compatible_with", "expand", "sparse_softmax_cross_entropy of labels",
    "sparse_softmax_cross_entropy int64 column", "sparse_softmax_cross_entropy of more classes than int8 counts",
    "sparse_softmax_cross_entropy of as many classes as uint8 counts", "sparse_cross_entropy", "argwhere", "argwhere of floats",
    "argwhere of nothing", "argwhere of a Blob of dynamic size", "nonzero", "where alone", "sync_dynamic_resize",
    "elements that a mask chooses", "dynamic reshape",
}  # fmt: skip


def first_rows() -> set[str]:
    """The rows whose names begin otherwise than those before them: about one per op, which the fast tier takes."""
    found: dict[str, str] = {}
    for _, row in ROWS:
        found.setdefault(row.name.split()[0].rstrip(","), row.name)
    return set(found.values())


def dtypes_of(row: Any) -> list[str]:
    """The dtypes to try a row in; the first one is enough for most changes."""
    wide = [d for d in row.dtypes if d != "float64"] or ["float32"]
    return wide if any(a.dtype.kind == "f" for a in row.inputs) or "float32" not in row.dtypes else ["float32"]


def arrays_of(row: Any, dtype: str) -> list[np.ndarray]:
    whole = np.dtype(dtype).kind in "iu"
    return [a.astype(dtype) if a.dtype.kind == "f" or whole else a for a in row.inputs]


def expected_of(row: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The expected result of a row: by its reference in float64, or else by the ops' own definitions."""
    exact = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    if row.ref is None:
        with jax.enable_x64(True):
            return table.run(row, exact)
    made = row.ref(*exact)
    return [np.asarray(a) for a in made] if isinstance(made, (list, tuple)) else [np.asarray(made)]


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


def session(path: Any, *, check: bool = True) -> Any:
    """A checked model, ready to run."""
    onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
    ort = pytest.importorskip("onnxruntime", reason="exported models are checked against onnxruntime")
    if check:
        onnx.checker.check_model(str(path), full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(found: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a model for arrays in the order of its inputs."""
    return found.run(None, dict(zip([i.name for i in found.get_inputs()], arrays, strict=True)))


def close(found: np.ndarray, expected: np.ndarray, tolerance: float, what: str = "") -> None:
    """Equal shapes and dtypes; values within a tolerance relative to the largest expected one."""
    assert found.shape == expected.shape and found.dtype == expected.dtype, f"{what} {found.dtype}{found.shape}"
    if expected.dtype.kind not in "fV" or not expected.size:
        np.testing.assert_array_equal(found, expected, what)
        return
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(largest, 1e-3), err_msg=what)
