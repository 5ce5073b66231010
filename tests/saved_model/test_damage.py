"""Damaged files: only the library's own errors, and what runs goes on running."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from saving import X, launched, save, session

from oneflow.core.serving import saved_model_pb2
from oneflow.errors import CheckpointError, JobWarning, OneFlowError, SavedModelError

pytest.importorskip("google.protobuf", reason="needs the extra [data]")
pytest.importorskip("flatbuffers", reason="the compiled form needs the extra [export]")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "net")


def mutations(data: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(len(data))
    for i in range(count):
        at = rng.randrange(len(data))
        if i % 3 == 0:
            yield data[:at]
        elif i % 3 == 1:
            yield data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        else:
            yield data[:at] + rng.randbytes(rng.randrange(1, 6)) + data[at + rng.randrange(4) :]


@pytest.mark.parametrize("suffix", ["pb", "prototxt"])
def test_mutated_messages(model: Path, suffix: str) -> None:
    """What is left of a mutated message is refused, or it is a graph that runs."""
    running = launched(model)
    folder = model / "1"
    shutil.rmtree(folder / "compiled")
    for other in {"pb", "prototxt"} - {suffix}:
        (folder / f"saved_model.{other}").unlink()
    path = folder / f"saved_model.{suffix}"
    refused = 0
    for data in mutations(path.read_bytes(), 90):
        path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", JobWarning)
                session().load_saved_model(str(model))
        except OneFlowError:
            refused += 1
    assert refused > 30
    np.testing.assert_allclose(running.run("affine", image=X)[0], X * 2 + 1)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 64, b"\x0a\x01n\x10\x01"])
def test_files_that_are_no_message(model: Path, data: bytes) -> None:
    (model / "1" / "saved_model.pb").write_bytes(data)
    with pytest.raises(SavedModelError, match=r"saved_model.pb' is not a saved model"):
        session().load_saved_model(str(model))
    (model / "1" / "saved_model.pb").unlink()
    (model / "1" / "saved_model.prototxt").write_bytes(data or b"}")
    with pytest.raises(SavedModelError, match=r"saved_model.prototxt' is not a saved model"):
        session().load_saved_model(str(model))


def test_hostile_messages(model: Path) -> None:
    path = model / "1" / "saved_model.pb"
    good = path.read_bytes()

    def refused(message: str) -> None:
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(SavedModelError, match=message), warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)
            session().load_saved_model(str(model))

    def ops() -> dict[str, object]:
        return {conf.name: conf for conf in proto.graphs["affine"].op_list}

    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.checkpoint_dir = "../../../etc"
    refused("leads outside")
    proto = saved_model_pb2.SavedModel.FromString(good)
    ops()["w"].variable_conf.shape.dim[0] = 2**60  # type: ignore[attr-defined]
    refused("'w' has shape")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.graphs["affine"].signatures["predict"].inputs["image"].blob_conf.shape.dim[0] = -4
    refused("'image' has shape")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.graphs["affine"].signatures["predict"].inputs["image"].blob_conf.data_type = 8
    refused("'image' is of .*record")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.graphs["affine"].signatures["predict"].outputs["prob"].lbi.op_name = "nothing"
    refused("bound to 'nothing/out_0', which no op makes")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.graphs["affine"].op_list.add().CopyFrom(ops()["Multiply_0"])
    refused("two ops make 'Multiply_0/out_0'")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.graphs["affine"].default_signature_name = "gone"
    refused("has no signature 'gone'")
    proto = saved_model_pb2.SavedModel.FromString(good)
    proto.default_graph_name = "gone"
    refused("has no graph 'gone'")


def test_a_damaged_compiled_form_is_never_run(model: Path) -> None:
    folder = model / "1" / "compiled"
    index = folder / "compiled.json"
    file = folder / json.loads(index.read_text())['["affine", "predict"]']["file"]
    data, text = file.read_bytes(), index.read_text()
    for wrong in (data[:-5], data[:100] + b"x" + data[101:], b""):
        file.write_bytes(wrong)
        with pytest.raises(SavedModelError, match="its compiled form is damaged(?s:.*)remove .*compiled"):
            session().load_saved_model(str(model))
    file.write_bytes(data)
    for wrong_text in ("", "[]", text[:50], '{"[\\"affine\\", \\"predict\\"]": {"file": 3}}'):
        index.write_text(wrong_text)
        with pytest.raises(SavedModelError, match="its compiled form cannot be read"):
            session().load_saved_model(str(model))
    index.write_text(text)
    s = session()
    s.load_saved_model(str(model))
    s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)


def test_other_ops_than_the_compiled_ones(model: Path) -> None:
    path = model / "1" / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for conf in proto.graphs["affine"].op_list:
        if conf.name == "Multiply_0":
            conf.user_conf.op_type_name = "broadcast_sub"
    path.write_bytes(proto.SerializeToString())
    s = session()
    with pytest.warns(JobWarning, match="was made from other ops than those of the model, or one of its files is damaged"):
        s.load_saved_model(str(model))
    s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X - 2 + 1)


def test_damaged_variables(model: Path) -> None:
    out = model / "1" / "variables" / "w" / "out"
    data = out.read_bytes()
    for wrong in (data[:-1], data + b"\0", b"\1" + data[1:]):
        out.write_bytes(wrong)
        s = session()
        s.load_saved_model(str(model))
        with pytest.raises(CheckpointError, match="variable 'w'"):
            s.launch()
    out.write_bytes(data)
    s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)
