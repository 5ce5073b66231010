"""Files that others made: whatever stands in the place of one is an error of the library's within a moment, never a wait."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.data.coco import CocoAnnotations
from oneflow.errors import OneFlowError
from oneflow.loggers import CSVLogger
from oneflow.serving import __main__ as serving
from oneflow.serving import _settings
from oneflow.summary import Projector

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")]


def _projector(path: Path) -> None:
    projector = Projector(str(path.parent))
    projector.create_embedding_projector()
    projector.embedding_projector(value=np.zeros((2, 3), np.float32), tag="t", step=0)


def _custom_op(path: Path) -> None:
    flow.experimental.custom_op_module("m", str(path.parent.parent)).cpp_def()


def _csv(path: Path) -> None:
    logger = CSVLogger(path.parent, "logs", 0)
    logger.prepare(str(path.parent), {"version": 0})
    path.replace(logger.path)
    logger.begin({"version": 0}, 3)


# the name that the file must have, and how it is read
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "StableHLO": ("m.stablehlo", lambda path: flow.export.load(path)),
    "ONNX": ("m.onnx", lambda path: flow.onnx.load(path)),
    "safetensors": ("m.safetensors", lambda path: flow.checkpoint.get(path)),
    "COCO": ("annotations.json", lambda path: CocoAnnotations(path, path.parent)),
    "settings of a model": ("config.json", lambda path: _settings.read(path.parent, _settings.ModelSettings())),
    "token": ("token", lambda path: serving._token(str(path))),
    "list of vectors": ("projector_config.pbtxt", _projector),
    "declarations of an op": ("m_cpp_def.cpp", _custom_op),
    "logged numbers": ("metrics.csv", _csv),
}
every_reader = pytest.mark.parametrize("kind", READERS)


def refused(kind: str, path: Path) -> str:
    with pytest.raises(OneFlowError) as caught:
        READERS[kind][1](path)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m" / "logs" / "version_0").mkdir(parents=True)
    return tmp_path / "m"


@every_reader
def test_a_fifo(folder: Path, kind: str) -> None:
    os.mkfifo(folder / READERS[kind][0])
    message = refused(kind, folder / READERS[kind][0])
    assert "FIFO" in message or "not a regular file" in message


@every_reader
def test_a_directory_and_a_link_to_nowhere(folder: Path, kind: str) -> None:
    path = folder / READERS[kind][0]
    path.mkdir()
    refused(kind, path)
    if kind == "logged numbers":  # the directory has been moved to where the logger reads
        (folder / "logs" / "version_0" / "metrics.csv").rmdir()
    else:
        path.rmdir()
    path.symlink_to(folder / "nowhere")
    refused(kind, path)


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("safetensors", "logged numbers")])
def test_a_file_that_is_too_long_is_not_read(folder: Path, kind: str) -> None:
    """A sparse file of 5 GB, in a process that is not to allocate as much."""
    path = folder / READERS[kind][0]
    path.touch()
    os.truncate(path, 5 << 30)
    assert "longer than" in refused(kind, path)


@pytest.mark.parametrize("path", ["a\ud800", "\udfff/b"])
def test_paths_that_cannot_be_encoded(path: str) -> None:
    for call in (
        flow.checkpoint.get, flow.checkpoint.save, flow.load_variables, flow.train.CheckPoint().load, flow.export.load,
        flow.onnx.load, flow.checkpoint.CheckpointManager, flow.train.SimpleCheckPointManager,
    ):  # fmt: skip
        with pytest.raises(OneFlowError, match="path"):
            call(path)


@pytest.mark.parametrize("content", [b"step,a\n1," + b"x" * 200_000 + b"\n", b"\xff\xfe", b"a,b\n1,2\n"])
def test_a_table_that_no_logger_wrote(folder: Path, content: bytes) -> None:
    (folder / "metrics.csv").write_bytes(content)
    assert "cannot continue its file" in refused("logged numbers", folder / "metrics.csv")


def onnx_model(folder: Path, **external: Any) -> Path:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = onnx.TensorProto(name="w", data_type=1, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in external.items():
        weight.external_data.add(key=key, value=str(value))
    place = [helper.make_tensor_value_info(name, 1, [2, 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", place[:1], place[1:], [weight])
    (folder / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "m.onnx"


def test_external_data_of_an_onnx_model(folder: Path) -> None:
    (folder / "data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    model = flow.onnx.load(onnx_model(folder, location="data"))
    assert np.array_equal(model.variables["w"], [[0, 1], [2, 3]])
    os.mkfifo(folder / "pipe")
    (folder.parent / "outside").write_bytes(bytes(16))
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 1 << 40)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"location": "pipe"}, "FIFO"), ({"location": "../outside"}, "not in the"), ({"location": "/dev/zero"}, "not in the"),
        ({"location": "link"}, "leads outside"), ({"location": "sparse"}, "the tensor has 16"), ({"location": "none"}, "No such"),
        ({"location": "data", "offset": 8}, ""), ({"location": "data", "length": 1 << 40}, "the tensor has 16"),
    ]  # fmt: skip
    for external, message in wrong:
        assert message in refused("ONNX", onnx_model(folder, **external))


def test_onnx_models_that_make_no_sense(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    place = [helper.make_tensor_value_info(name, 1, [2, 2]) for name in "xy"]

    def model(node: Any, *weights: Any) -> Path:
        graph = helper.make_graph([node], "g", place[:1], place[1:], weights)
        (folder / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
        return folder / "m.onnx"

    short = onnx.TensorProto(name="w", data_type=1, dims=[1 << 20, 1 << 20], raw_data=bytes(16))
    assert "is not an ONNX model" in refused("ONNX", model(helper.make_node("Add", ["x", "w"], ["y"]), short))
    for node in (
        helper.make_node("Add", ["x", "nothing"], ["y"]), helper.make_node("Add", ["x"], ["y"]),
        helper.make_node("Concat", ["x", "x"], ["y"], axis="left"), helper.make_node("Relu", ["x"], ["z"]),
        helper.make_node("Transpose", ["x"], ["y"], perm=[0, 10**12]), helper.make_node("Softmax", ["x"], ["y"], axis=[1]),
    ):  # fmt: skip
        with pytest.raises(OneFlowError):
            flow.global_function()(_job_of(flow.onnx.load(model(node)))).graph  # noqa: B018 - traces it


def _job_of(read: Any) -> Any:
    def job(x: flow.typing.Numpy.Placeholder((2, 2))) -> flow.typing.Numpy:
        return read(x)

    return job


def test_coco_images_that_are_links_to_nowhere(tmp_path: Path) -> None:
    photo = {"id": 1, "file_name": "a.jpg", "height": 24, "width": 32}
    entry = {"id": 1, "image_id": 1, "category_id": 3, "iscrowd": 0, "bbox": [1.0, 2.0, 10.0, 5.5]}
    content = {"images": [photo], "annotations": [entry], "categories": [{"id": 3, "name": "a"}]}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").symlink_to(tmp_path / "gone.jpg")
    annotations = CocoAnnotations(tmp_path / "annotations.json", tmp_path / "images")
    with pytest.raises(flow.errors.DataError, match="symbolic link to nowhere"):
        annotations.load(0)


def test_a_part_that_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-0")
    with pytest.raises(flow.errors.PartNotFoundError, match="not a regular file"):
        flow.data.part_paths(tmp_path, 1)
