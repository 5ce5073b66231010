"""Every row of the op table that ONNX can express: exported, checked, run by onnxruntime at two batch sizes, read back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import ONE_SIZE, OTHERWISE, ROWS, arrays_of, close, dtypes_of, expected_of, first_rows, job_of, run, session

import oneflow as flow
from oneflow.errors import ExportError
from oneflow.onnx._export import OPSETS
from oneflow.onnx.rules import WITHOUT, rules
from oneflow.ops._emit import OPS

pytest.importorskip("onnx", reason="needs the extra [onnx]")
TOLERANCE = 1e-5
THOROUGH = "ONEFLOW_THOROUGH" in os.environ


def exported(job: Any, path: Path, opset: int) -> bool:
    """Writes a job; with fixed sizes where it ties them to numbers. Whether the batch is open."""
    try:
        flow.export.onnx(job, path, opset=opset)
        return True
    except ExportError as error:
        if "does not work for every" not in str(error):
            raise
    flow.export.onnx(job, path, opset=opset, dynamic_axes={})
    return False


def more_of(found: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays with one sample more, where the model leaves the batch open."""
    opened = [bool(i.shape) and isinstance(i.shape[0], str) for i in found.get_inputs()]
    return [np.concatenate([a, a[:1]]) if is_open else a for a, is_open in zip(arrays, opened, strict=True)]


def by_stablehlo(row: Any, arrays: Sequence[np.ndarray], more: Sequence[np.ndarray], path: Path) -> list[np.ndarray]:
    flow.export.stablehlo(job_of(row.build, arrays, "again"), path, ("cpu",))
    return flow.export.load(path)(*more)


def ops_of(job: Any) -> set[str]:
    return {node.op.name for node in job.graph.nodes} - {"input", "variable"}


def refused(job: Any) -> str:
    """Why a job cannot be exported, as far as that is a matter of its ops."""
    without = [op for op in ops_of(job) if op in WITHOUT]
    return WITHOUT[without[0]] if without else ""


FIRST = first_rows()
PARAMS = [  # of an op's further rows every second one is in the long tier
    pytest.param(row, id=f"{family}-{row.name}", marks=[pytest.mark.thorough] * (row.name not in FIRST and i % 2))
    for i, (family, row) in enumerate(ROWS)
    if row.name not in OTHERWISE
]


@pytest.mark.parametrize("row", PARAMS)
def test_row(row: Any, tmp_path: Path) -> None:
    path = tmp_path / "row.onnx"
    for dtype in dtypes_of(row) if THOROUGH else dtypes_of(row)[:1]:
        flow.clear_default_session()
        arrays = arrays_of(row, dtype)
        job = job_of(row.build, arrays)
        if refused(job):
            with pytest.raises(ExportError, match="cannot be exported as ONNX"):
                flow.export.onnx(job, path)
            continue
        is_open = exported(job, path, OPSETS[0] if dtype == dtypes_of(row)[0] else OPSETS[-1])
        found = session(path)
        tolerance = 2e-3 if dtype == "float16" else TOLERANCE
        given = run(found, arrays)
        for made, expected in zip(given, expected_of(row, arrays), strict=True):
            close(made, expected.astype(made.dtype), tolerance)
        if is_open and arrays:
            more = more_of(found, arrays)
            if row.name in ONE_SIZE:  # a second implementation instead of the reference
                wanted = by_stablehlo(row, arrays, more, tmp_path / "row.stablehlo")
            else:
                wanted = expected_of(row, more)
            for made, expected in zip(run(found, more), wanted, strict=True):
                close(made, np.asarray(expected).astype(made.dtype), tolerance, "with one sample more")
        if not THOROUGH and row.name not in FIRST:
            continue
        flow.clear_default_session()
        model = flow.onnx.load(path)
        back = job_of(lambda *xs, model=model: model(*xs), arrays, "back")(*arrays)
        for made, expected in zip(back, given, strict=True):
            close(made.astype(expected.dtype), expected, tolerance, "read back")


def test_rows_that_are_not_tried_exist() -> None:
    names = {row.name for _, row in ROWS}
    assert names >= OTHERWISE.keys() and names >= ONE_SIZE


INT8 = {"int8_round", "int8_round_weights"}  # of jobs in int8: tests/jobs/test_int8.py


def test_every_op_has_a_rule_or_a_reason() -> None:
    assert not rules().keys() & WITHOUT.keys()
    assert OPS.keys() <= rules().keys() | WITHOUT.keys(), "a new op needs a rule in oneflow/onnx/rules, or a reason in WITHOUT"
    assert rules().keys() | WITHOUT.keys() <= OPS.keys() | {"join_runs", *INT8}
    assert len(rules()) >= 200


def test_every_rule_has_a_row() -> None:
    seen: set[str] = set()
    for _, row in ROWS:
        if row.name not in OTHERWISE:
            flow.clear_default_session()
            seen |= ops_of(job_of(row.build, arrays_of(row, dtypes_of(row)[0])))
    assert rules().keys() - seen == {"acc", "join_runs", "pack", "repeat", "unpack", *INT8}  # tests/onnx/test_export.py
