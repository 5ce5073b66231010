"""What an ``InferenceSession`` keeps where a call is refused, after ``close``, and while it looks for newer versions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saving import X, save, session

import oneflow as flow
import oneflow.typing as tp
from oneflow.core.serving import saved_model_pb2
from oneflow.errors import ArgumentError, OneFlowError

text_format = pytest.importorskip("google.protobuf.text_format", reason="needs the extra [data]")


def test_a_refused_batch_size_is_not_kept(tmp_path: Path) -> None:
    flow.clear_default_session()

    @flow.global_function("predict")
    def flat(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.reshape(x, (6, 2))

    model = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(1)
    model.AddFunction(flat)
    model.Save()
    s = session()
    s.load_saved_model(str(tmp_path / "net"))
    with pytest.raises(OneFlowError):
        s.set_job_batch_size("flat", 5)
    s.launch()
    model = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(2)
    model.AddFunction(flat)
    model.Save()
    assert s.reload()
    np.testing.assert_array_equal(s.run("flat", Input_0=X)[0], X.reshape(6, 2))
    s.close()


def test_a_closed_session_forgets_what_it_was_told(tmp_path: Path) -> None:
    path = save(tmp_path / "net")
    s = session()
    s.set_checkpoint_path(str(path))
    s.set_job_batch_size("affine", 2)
    s.close()
    s.init()
    s.load_saved_model(str(path))
    assert s.input_info("image", "affine")["shape"] == (4, 3)
    s.close()
    s.init()
    proto = text_format.Parse((path / "1" / "saved_model.prototxt").read_text(), saved_model_pb2.SavedModel())
    with s.open("affine"):
        s.compile(proto.graphs["affine"].op_list)
    with pytest.raises(ArgumentError, match="set_checkpoint_path"):
        s.launch()


def test_the_search_for_newer_versions_goes_on_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = save(tmp_path / "net", 1.0, version=1)
    s = session(reload_seconds=0.01)
    failed, looked = threading.Event(), threading.Event()

    def reload() -> bool:
        if failed.is_set():
            looked.set()
            return False
        failed.set()
        raise RuntimeError("of the device")

    monkeypatch.setattr(s, "reload", reload)
    s.load_saved_model(str(path))
    s.launch()
    assert looked.wait(30)
    s.close()
    assert "a newer version is not loaded" in caplog.text and "of the device" in caplog.text
