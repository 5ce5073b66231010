"""The example in every docstring is run: those of ops on placeholders, the others as they stand; thoroughly, as programs."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import examples  # noqa: E402

FOUND = examples.examples()
EXAMPLES = {path: made for path, made in FOUND.items() if made is not None}
IN_JOBS = {path: made for path, made in EXAMPLES.items() if examples.in_a_job(made)}
ALONE = {path: made for path, made in EXAMPLES.items() if path not in IN_JOBS}
# Namespaces and classes for which an example says nothing that the sentence does not.
UNSHOWN = ("flow.errors.", "flow.unittest.", "flow.sysconfig.", "flow.typing.", "flow.config.", "flow.env.", "flow.deprecated.",
           "flow.data.", "flow.tensorrt.")  # fmt: skip
BASES = """flow.Blob flow.dtype flow.scope.View flow.scope.PlacementScope flow.distribute.Distribute flow.regularizers.L1L2
 flow.optimizer.warmup.WarmupConf flow.optimizer.grad_clipping.ClipGradientConf flow.optimizer.loss_scale.LossScalePolicy
 flow.optimizer.loss_scale.policy_of flow.scope.DistributeConsistentStrategy flow.scope.DistributeMirroredStrategy
 flow.scope.graph_scope flow.scope.current_scope flow.scope.device flow.experimental.name_scope flow.function
 flow.InitEagerGlobalSession flow.eager_nccl_all_reduce flow.experimental.TensorSpec flow.model.Callback
 flow.model.CheckpointConfig flow.model.DataModule flow.model.NumpyDataModule flow.model.TrainingConfig
 flow.model.ValidationConfig flow.ConfigProto flow.JobConfigProto flow.loggers.FileLogger
 flow.loggers.MLFlowLogger flow.loggers.TrackioLogger flow.loggers.WandbLogger
 flow.checkpoint.Preemption""".split()
UNFED = {f"flow.data.{n}" for n in "coco_reader onerec_reader OneRecDecoder".split()}  # read files that tests/host/ makes
OTHER_FILES = {"flow.experimental.CustomOpModule"}  # tests/ops/test_custom_op_module.py writes them
COMPILERS = {"flow.plan_sweep"}  # runs those of other hardware: tests/planning/


def _execute(code: str) -> dict[str, Any]:
    """Runs a program; ``inspect`` finds its source, as it would that of a file."""
    module = ModuleType("example")
    module.__dict__.update(flow=flow, tp=tp, np=np)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "<example>", "exec"), module.__dict__)  # noqa: S102 - our own docstring
    return module.__dict__


def test_everything_public_has_an_example() -> None:
    without = [p for p, made in FOUND.items() if made is None and not p.startswith(UNSHOWN) and p not in BASES]
    assert not without, f"no example in the docstrings of {without}"


def test_everything_public_is_documented() -> None:
    assert not [path for path, value in examples.public().items() if not inspect.getdoc(value)]


@pytest.mark.parametrize("path", sorted(IN_JOBS.keys() - OTHER_FILES - COMPILERS))
def test_example_of_an_op(path: str) -> None:
    made = IN_JOBS[path]
    with examples.prepared(made):
        results = examples.traced(made).results
    if made.result is not None:
        assert results[0][1] == made.result
    if made.lines[-1].startswith("y = "):
        assert results, "the example gives no Blob"


@pytest.mark.parametrize("path", sorted(ALONE))
def test_example_on_its_own(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [examples.FILES] if path.startswith("flow.data.") else []
    monkeypatch.chdir(tmp_path)
    _execute("\n".join([*before, *examples.SETUP.get(path, []), *ALONE[path].lines]))


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted(IN_JOBS.keys() - OTHER_FILES - UNFED - COMPILERS))
def test_example_as_a_program(path: str) -> None:
    made = IN_JOBS[path]
    if path == "flow.scope.placement":
        flow.config.gpu_device_num(4)  # virtual ones will do
    with examples.prepared(made), contextlib.redirect_stdout(io.StringIO()):
        job = _execute(examples.program(made))["job"]
        job(*examples.arguments(made))
        flow.sync_default_session()
