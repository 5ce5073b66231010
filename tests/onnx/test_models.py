"""The predict jobs of examples/models as ONNX models, run by onnxruntime at two batch sizes, and read back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import BATCH, PARAMS, answers, arrays_of, scramble
from running import close, run, session

import oneflow as flow

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
pytestmark = pytest.mark.timeout(600)
TOLERANCE = 1e-4


@pytest.mark.parametrize("case", PARAMS)
def test_a_model_gives_what_its_job_gives(case: Any, tmp_path: Path) -> None:
    job = case.make()
    scramble()
    path = tmp_path / "model.onnx"
    flow.export.onnx(job, path)
    found = session(path)
    assert all(i.shape[0] == "batch" for i in found.get_inputs())
    for count in (BATCH, 2 * BATCH):
        inputs = case.inputs(count)
        for made, expected in zip(run(found, inputs), answers(job, inputs), strict=True):
            close(made, expected, TOLERANCE, f"{count} samples")
    if case.transposes is not None:
        kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
        assert kinds["Transpose"] == case.transposes
    _read_back(path, inputs, run(found, inputs))


def _read_back(path: Path, inputs: list[np.ndarray], expected: list[np.ndarray]) -> None:
    import running

    flow.clear_default_session()
    model = flow.onnx.load(path)
    job = running.job_of(lambda *xs: model(*xs), inputs, "back")
    for made, wanted in zip(arrays_of(job(*inputs)), expected, strict=True):
        close(made.astype(wanted.dtype), wanted, TOLERANCE, "read back")
