"""Small jobs to save, and sessions that load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp


def affine(weight: float = 2.0, name: str = "affine", batch: int = 4) -> tuple[Any, dict[str, str]]:
    """A job that computes x * weight + bias of a (batch, 3) input, with a label that it does not use for that; and its lbns."""
    lbn: dict[str, str] = {}

    def body(
        x: tp.Numpy.Placeholder((batch, 3)), label: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (3,), initializer=flow.constant_initializer(weight))
        scaled = x * w
        y = scaled + flow.get_variable("b", (3,), initializer=flow.constant_initializer(1.0))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(label, y)
        blobs = {"x": x, "label": label, "scaled": scaled, "y": y, "loss": loss, "half": y * 0.5}
        lbn.update({key: blob.logical_blob_name for key, blob in blobs.items()})
        return y, loss

    body.__name__ = name
    job = flow.global_function("predict")(body)
    job.graph  # noqa: B018 - runs the body, which fills lbn
    return job, lbn


def save(path: Path, weight: float = 2.0, version: int = 1, name: str = "affine") -> Path:
    """Saves the job with two signatures, in a session of its own."""
    flow.clear_default_session()
    job, lbn = affine(weight, name)
    model = flow.saved_model.ModelBuilder(str(path)).ModelName("net").Version(version)
    graph = model.AddFunction(job)
    graph.AddSignature("predict").Input("image", lbn["x"]).Output("prob", lbn["y"])
    graph.AddSignature("rest").Input("scaled", lbn["scaled"]).Output("half", lbn["half"])
    model.Save()
    return path


def session(**options: Any) -> flow.serving.InferenceSession:
    """An open session on the CPU."""
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    for key, value in options.items():
        setattr(option, key, value)
    return flow.serving.InferenceSession(option)


def launched(path: Path, *args: Any, **kwargs: Any) -> flow.serving.InferenceSession:
    """A running session with one model."""
    made = session()
    made.load_saved_model(str(path), *args, **kwargs)
    made.launch()
    return made


X = np.arange(12, dtype=np.float32).reshape(4, 3)
