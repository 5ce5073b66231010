"""safetensors files: written, read by the format's own library, read back bit by bit; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint.__main__ import main
from oneflow.checkpoint.safetensors import File
from oneflow.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointWarning,
    DtypeError,
    ShapeError,
)

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra [export]")
RANDOM = np.random.default_rng(0)
DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64, "I32": np.int32,
    "I8": np.int8, "U8": np.uint8,
}  # fmt: skip


def declare(name: str = "predict", shape: tuple[int, ...] = (3, 4), dtype: Any = flow.float) -> Any:
    def body(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        w = flow.get_variable("w", shape, dtype, flow.random_uniform_initializer())
        b = flow.get_variable("b", (1,), initializer=flow.zeros_initializer())
        return x + b + flow.math.reduce_sum(w)

    body.__name__ = name
    return flow.global_function()(body)


def train() -> Any:
    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        loss = flow.nn.dropout(x * w, 0.5, name="drop")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
        return loss

    return step


@pytest.mark.parametrize("code", DTYPES)
def test_values_are_kept_bit_by_bit(code: str, tmp_path: Path) -> None:
    raw = RANDOM.integers(0, 256, (6, 8 * np.dtype(DTYPES[code]).itemsize), np.uint8)  # NaNs and subnormal numbers, too
    value = raw.view(DTYPES[code])
    path = tmp_path / "x.safetensors"
    given = {"value": value, "turned": value.T, "one": value[:1, 0].reshape(())}
    flow.checkpoint.save(path, given, format="safetensors")
    found = flow.checkpoint.get(path)
    for name, expected in given.items():
        stored = found[name]
        assert (stored.shape, stored.dtype.numpy_dtype) == (expected.shape, expected.dtype)
        assert stored.numpy().tobytes() == expected.tobytes()
        if code != "BF16":  # whose dtype NumPy does not have
            assert safetensors.load_file(path)[name].tobytes() == expected.tobytes()
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert header["value"]["dtype"] == code


def test_a_training_goes_on_from_a_file(tmp_path: Path) -> None:
    x, path = np.ones(2, np.float32), tmp_path / "new" / "trained.safetensors"
    job = train()
    job(x)
    flow.checkpoint.save(path, format="safetensors")
    expected = [job(x) for _ in range(4)]
    flow.clear_default_session()
    job = train()
    flow.load_variables(path)
    np.testing.assert_array_equal([job(x) for _ in range(4)], expected)  # optimizer state, step and random state included


def test_a_file_of_any_name_is_known_by_how_it_begins(tmp_path: Path) -> None:
    for name in ("w.st", "w"):
        flow.checkpoint.save(tmp_path / name, {"w": np.ones((3, 4), np.float32)}, format="safetensors")
        assert list(flow.checkpoint.get(tmp_path / name)) == ["w"]
    declare()
    with pytest.warns(CheckpointWarning, match="lacks 1 of the program's 2 variables"):
        flow.load_variables(tmp_path / "w.st")
    assert (flow.get_all_variables()["w"].numpy() == 1).all()
    for content in (b"", b"text that is longer than nine bytes", (1 << 40).to_bytes(8, "little") + b"{}"):
        (tmp_path / "w.st").write_bytes(content)
        with pytest.raises(CheckpointNotFoundError, match="is a file, and checkpoints are directories"):
            flow.checkpoint.get(tmp_path / "w.st")


def test_the_header_tells_the_jobs(tmp_path: Path) -> None:
    declare("one"), declare("two")
    flow.checkpoint.save(tmp_path / "x.safetensors", format="safetensors")
    found = flow.checkpoint.get(tmp_path / "x.safetensors")
    assert found.jobs == {"one": ["b", "w"], "two": ["b", "w"]}
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="np") as file:
        assert json.loads(file.metadata()["oneflow-jax"])["jobs"] == found.jobs


def test_values_are_read_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"w": np.ones((3, 4), np.float32), "large": np.ones(1000, np.float32)}, path)
    read: list[str] = []
    original = File.read
    monkeypatch.setattr(File, "read", lambda file, name: (read.append(name), original(file, name))[1])
    declare()
    with pytest.warns(CheckpointWarning, match="lacks 1 of the program's 2 variables: 1 parameter.*: b;|'large'"):
        flow.load_variables(path)
    assert read == ["w"]


def test_names_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    w, b = RANDOM.standard_normal((3, 4), np.float32), np.ones(1, np.float32)
    safetensors.save_file({"model.w": w, "model.b": b, "other": b}, path)
    declare()
    tables = ({"model.w": "w", "model.b": "b", "other": "unused"}, lambda n: n[-1] if n.startswith("model.") else None)
    for rename in tables:
        flow.load_variables({"w": np.zeros_like(w)})
        if isinstance(rename, dict):
            with pytest.warns(CheckpointWarning, match="'unused'"):
                flow.load_variables(path, rename=rename)
        else:
            flow.load_variables(path, rename=rename, strict=True)
        np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), w)
    for wrong, text in (
        ({"model.w": "w", "model.b": "w"}, "rename calls both 'model.w' and 'model.b' 'w'|calls both 'model.b' and 'model.w'"),
        (lambda name: 3, "must return a str or None, got 3"),
        (3, "rename must be a dict of names, or a function"),
        (lambda name: None, "rename leaves out all 3 values(?s:.*)return the new name"),
    ):
        with pytest.raises(ArgumentError, match=text):
            flow.load_variables(path, rename=wrong)


def test_a_checkpoint_loads_by_its_path(tmp_path: Path) -> None:
    declare()
    flow.checkpoint.save(tmp_path / "saved")
    before = flow.get_all_variables()["w"].numpy()
    flow.load_variables({"w": np.zeros_like(before)})
    flow.load_variables(tmp_path / "saved", strict=True)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)
    with pytest.raises(CheckpointNotFoundError, match="is the directory of one variable"):
        flow.load_variables(str(tmp_path / "saved" / "w"))


def test_stored_values_are_saved_again(tmp_path: Path) -> None:
    first, second = tmp_path / "1.safetensors", tmp_path / "2"
    flow.checkpoint.save(first, {"w": np.arange(3, dtype=np.float32)}, format="safetensors")
    flow.checkpoint.save(second, flow.checkpoint.get(first))
    np.testing.assert_array_equal(flow.checkpoint.get(second)["w"].numpy(), [0, 1, 2])


# --- refused


def test_misfits_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    declare()
    before = flow.get_all_variables()["w"].numpy()
    ones = np.ones(1, np.float32)
    for value, error in ((np.ones((4, 3), np.float32), ShapeError), (np.ones((3, 4), np.float16), DtypeError)):
        safetensors.save_file({"b": ones, "w": value}, path)
        with pytest.raises(error, match="variable 'w' has another"):
            flow.load_variables(path)
    assert flow.get_all_variables()["b"].numpy() == 0
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)


def test_a_save_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    flow.checkpoint.save(path, {"w": np.ones(2)}, format="safetensors")
    content = path.read_bytes()
    for taken in (path, tmp_path):
        with pytest.raises(CheckpointExistsError, match="exists already|is a directory"):
            flow.checkpoint.save(taken, {"w": np.zeros(2)}, format="safetensors")
    assert path.read_bytes() == content and [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("cut", [0, 9, 40, None])
def test_overwriting_replaces_files_of_its_kind_only(cut: int | None, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    flow.checkpoint.save(path, {"w": np.ones(2)}, format="safetensors")
    path.write_bytes(path.read_bytes()[:cut])  # as an interrupted download leaves it
    flow.checkpoint.save(path, {"w": np.full(2, 3.0)}, format="safetensors", overwrite=True)
    np.testing.assert_array_equal(flow.checkpoint.get(path)["w"].numpy(), 3.0)
    path.write_text('{"text": "of mine"}')
    with pytest.raises(CheckpointExistsError, match="is not a safetensors file"):
        flow.checkpoint.save(path, {"w": np.zeros(2)}, format="safetensors", overwrite=True)
    assert path.read_text() == '{"text": "of mine"}' and len(list(tmp_path.iterdir())) == 1


def test_values_without_a_place(tmp_path: Path) -> None:
    for values, error, text in (
        ({"w": np.ones(2, np.complex64)}, CheckpointError, "no place for NumPy's complex64"),
        ({"": np.ones(2)}, CheckpointError, "cannot be saved: its name"),
        ({"__metadata__": np.ones(2)}, CheckpointError, "no place for that name"),
        ({"w": [1.0]}, ArgumentError, "it is a list"),
        ([1.0], ArgumentError, "must be a dict"),
    ):
        with pytest.raises(error, match=text):
            flow.checkpoint.save(tmp_path / "x.safetensors", values, format="safetensors")
    with pytest.raises(ArgumentError, match='format must be "oneflow" or "safetensors", got \'numpy\''):
        flow.checkpoint.save(tmp_path / "x", {}, format="numpy")
    assert not list(tmp_path.iterdir())


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(CheckpointNotFoundError, match="there is no file"):
        flow.checkpoint.get(path)
    flow.checkpoint.save(path, {"w": np.ones(100)}, format="safetensors")
    whole = path.read_bytes()
    for content in (b"", b"text" * 10, whole[:-1], whole + b"x", b"\xff" * 8 + whole[8:], whole[:20]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a safetensors file, or is damaged"):
            flow.checkpoint.get(path)
    for metadata, text in (
        ({"oneflow-jax": "{"}, "not JSON"),
        ({"oneflow-jax": "[]"}, "a format that this version does not know"),
        ({"oneflow-jax": '{"format": 2}'}, "a format that this version does not know"),
        ({"oneflow-jax": '{"jobs": 3}'}, "do not list jobs"),
    ):
        safetensors.save_file({"w": np.ones(2)}, path, metadata)
        with pytest.raises(CheckpointError, match=text):
            flow.checkpoint.get(path)


def test_tensors_that_no_blob_can_hold_are_in_nobodys_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"w": np.full(2, 3, np.float32), "mask": np.ones(2, bool), "n": np.ones((2, 3), np.uint16)}, path)

    @flow.global_function("predict")
    def job() -> tp.Numpy:
        return flow.get_variable("w", (2,), initializer=flow.ones_initializer())

    flow.load_variables(path, rename=lambda name: name if name == "w" else None)
    assert job().tolist() == [3, 3]
    with pytest.warns(CheckpointWarning, match="no variable of the program has"):
        flow.load_variables(path)
    found = flow.checkpoint.get(path)
    with pytest.raises(CheckpointError, match="'mask' in .* is of BOOL, which is not a dtype of Blobs"):
        found["mask"].numpy()
    with pytest.raises(CheckpointError, match="is of BOOL"):
        flow.load_variables(path, rename={"mask": "w", "w": "v"})
    assert main(["verify", str(path)]) == 0 and main(["show", str(path)]) == 0
    assert "BOOL[2]" in (told := capsys.readouterr().out) and "U16[2, 3]" in told and "float32[2]" in told


def test_a_file_that_changed_since_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"w": np.ones(2, np.float32)}, path)
    found = flow.checkpoint.get(path)
    safetensors.save_file({"w": np.ones(3, np.float32)}, path)
    with pytest.raises(CheckpointError, match="has changed since"):
        found["w"].numpy()
    safetensors.save_file({"v": np.ones(3, np.float32)}, path)
    with pytest.raises(CheckpointError, match="'w' cannot be read"):
        found["w"].numpy()
