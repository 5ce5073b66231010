"""Values on their way from files into a session: small and large files, on several threads, all or none."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import threads
from oneflow.checkpoint import loading
from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.digests import CHUNK
from oneflow.checkpoint.reading import VerifiedFile
from oneflow.errors import CheckpointError

LARGE = CHUNK // 4 + 3  # elements: two chunks, of which the second has 12 bytes
SHAPES = {
    "large": ((LARGE,), flow.float32),
    "exact": ((CHUNK // 8,), flow.float64),
    "odd": ((7, 13), flow.float32),
    "byte": ((1,), flow.int8),
    "half": ((5, 3), flow.bfloat16),
    **{f"small{i}": ((i + 1, 3), flow.int64) for i in range(20)},
}


def declare() -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        for name, (shape, dtype) in SHAPES.items():
            flow.get_variable(name, shape, dtype, initializer=flow.zeros_initializer())
        return flow.constant(1.0, flow.float32, (1,))

    job()


def drawn(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: np.asarray(random.integers(-100, 100, shape)).astype(dtype.numpy_dtype) for name, (shape, dtype) in SHAPES.items()
    }


def values() -> dict[str, np.ndarray]:
    return {name: handle.numpy() for name, handle in flow.get_all_variables().items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
        assert found[name].tobytes() == value.tobytes(), name


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_files_of_all_sizes_are_loaded(tmp_path: Path) -> None:
    declare()
    write(tmp_path / "saved", drawn(1), {})
    flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
    assert_same(values(), drawn(1))


def test_an_empty_array_and_a_number_are_read(tmp_path: Path) -> None:
    """No variable has such a shape, but checkpoints may."""
    written = {"empty": np.zeros((0, 4), np.float32), "number": np.array(3, np.int8)}
    write(tmp_path / "saved", written, {})
    assert_same({name: value.numpy() for name, value in flow.checkpoint.get(tmp_path / "saved").items()}, written)


def test_damage_to_any_file_is_told_and_nothing_is_loaded(tmp_path: Path) -> None:
    declare()
    flow.load_variables(drawn(2))
    write(tmp_path / "saved", drawn(1), {})
    for name, at in (("large", 4 * LARGE - 1), ("odd", 5), ("small7", 0)):
        flip(tmp_path / "saved" / name / "out", at)
    with pytest.raises(flow.errors.CheckpointError, match="also wrong") as caught:
        flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
    assert all(name in str(caught.value) for name in ("large", "odd", "small7"))
    assert_same(values(), drawn(2))


def test_a_small_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    declare()
    flow.load_variables(drawn(2))
    write(tmp_path / "saved", drawn(1), {})
    stored = flow.checkpoint.get(tmp_path / "saved")
    out = tmp_path / "saved" / "small3" / "out"
    out.write_bytes(out.read_bytes()[:-1])
    with pytest.raises(flow.errors.CheckpointError, match="small3"):
        flow.load_variables(stored)
    assert_same(values(), drawn(2))


def test_variables_share_no_memory_with_what_they_were_loaded_from() -> None:
    """Aligned arrays would be taken over by the device without a copy; a step then updates the device's value."""

    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        loss = flow.math.reduce_sum(flow.get_variable("w", (1 << 16,), initializer=flow.zeros_initializer()))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    train()
    given = np.zeros((1 << 16) + 16, np.float32)
    start = -given.ctypes.data % 64 // 4
    array = given[start : start + (1 << 16)]
    array[:] = 5.0
    flow.load_variables({"w": array})
    array[:] = 7.0
    assert (flow.get_all_variables()["w"].numpy() == 5.0).all()
    train()
    assert (flow.get_all_variables()["w"].numpy() == 4.0).all() and (array == 7.0).all()
    flow.load_variables({"w": flow.get_all_variables()["w"]})
    train()
    assert (flow.get_all_variables()["w"].numpy() == 3.0).all()


def test_training_goes_on_from_a_loaded_checkpoint_and_can_load_it_again(tmp_path: Path) -> None:
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        w = flow.get_variable("w", (LARGE,), initializer=flow.zeros_initializer())
        b = flow.get_variable("b", (64,), initializer=flow.zeros_initializer())
        loss = flow.math.reduce_sum(w) + flow.math.reduce_sum(b)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    train()
    flow.checkpoint.save(str(tmp_path / "saved"))
    for _ in range(2):
        flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
        train()
        train()
        found = {name: flow.get_all_variables()[name].numpy() for name in ("w", "b")}
        assert (found["w"] == -3.0).all() and (found["b"] == -3.0).all()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_files_of_several_chunks_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool) -> None:
    names = [f"w{i}" for i in range(10)]

    @flow.global_function()
    def job() -> tp.Numpy:
        for name in names:
            flow.get_variable(name, (LARGE,), initializer=flow.zeros_initializer())
        return flow.constant(1.0, flow.float32, (1,))

    job()
    random = np.random.default_rng(3)
    saved = {name: random.standard_normal(LARGE, np.float32) for name in names}
    write(tmp_path / "saved", saved, {})
    if is_damaged:
        for name, at in (("w2", 4 * LARGE - 1), ("w9", 0)):
            flip(tmp_path / "saved" / name / "out", at)
    monkeypatch.setattr(threads, "most_threads", lambda: 2)
    monkeypatch.setattr(loading, "most_threads", lambda: 2)
    readers: dict[str, set[int]] = {}
    fill = VerifiedFile._fill

    def noted(file: VerifiedFile, offset: int, target: memoryview) -> None:
        readers.setdefault(file._file.name, set()).add(threading.get_ident())
        fill(file, offset, target)

    monkeypatch.setattr(VerifiedFile, "_fill", noted)
    if is_damaged:
        with pytest.raises(flow.errors.CheckpointError, match="'w2'(.|\n)*also wrong(.|\n)*w9"):
            flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
        assert_same(values(), {name: np.zeros(LARGE, np.float32) for name in names})
    else:
        flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
        assert_same(values(), saved)
    again = {"w2", "w9"} if is_damaged else set()  # read once more by the caller's own thread, whose line the error names
    assert len(readers) == 10
    assert all(len(idents) == 1 for file, idents in readers.items() if Path(file).parent.name not in again)


def test_state_of_16_bits_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """As older releases saved it."""

    def declare(kind: Any) -> None:
        @flow.global_function("train")
        def train() -> tp.Numpy:
            w = flow.get_variable("w", (4,), dtype=flow.float16, initializer=flow.ones_initializer())
            kept = flow.get_variable("w-m", (4,), dtype=kind, initializer=flow.ones_initializer(), trainable=False)
            loss = flow.math.reduce_sum(flow.cast(w, flow.float32) * flow.cast(kept, flow.float32))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
            return loss

    declare(flow.float16)
    flow.checkpoint.save(tmp_path / "old")
    flow.clear_default_session()
    declare(flow.float32)
    saved = flow.checkpoint.get(tmp_path / "old")
    with pytest.raises(
        CheckpointError, match=r"'w-m' has another dtype(.|\n)*try .*older releases kept(.|\n)*astype\(np.float32\)"
    ):
        flow.load_variables(saved)
    flow.load_variables({"w": saved["w"], "w-m": saved["w-m"].numpy().astype(np.float32)})
