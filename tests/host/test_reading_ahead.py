"""Reading ahead, resuming, several devices, and how it all ends."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import made_data
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import DataError


def reader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("oneflow-read-")]


def training(folder: str, shuffled: bool = True) -> Any:
    """A job that trains on random crops, and returns the loss and the labels of the batch."""

    @flow.global_function(type="train")
    def train() -> tuple[tp.Numpy, tp.Numpy]:
        records = flow.data.ofrecord_reader(
            folder, batch_size=4, data_part_num=3, random_shuffle=shuffled, shuffle_buffer_size=6, shuffle_after_epoch=shuffled
        )  # fmt: skip
        label = flow.data.OFRecordRawDecoder(records, "label", (), flow.int32)
        images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded", color_space="RGB")
        images, _, _ = flow.image.Resize(images, target_size=(8, 8))
        x = flow.image.CropMirrorNormalize(images, flow.random.CoinFlip(4), color_space="RGB", mean=[127.0], std=[64.0])
        y = flow.layers.dense(flow.nn.dropout(flow.flatten(x, 1), 0.5), 24, kernel_initializer=flow.random_normal_initializer())
        loss = flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(label, y))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss, label

    return train


@pytest.mark.parametrize("shuffled", [False, True])
def test_training_goes_on_with_the_batch_that_would_have_come_next(tmp_path: Path, shuffled: bool) -> None:
    folder = made_data.image_parts(tmp_path / "data")
    flow.manual_seed(3)
    train = training(folder, shuffled)
    for _ in range(7):
        train()
    flow.checkpoint.save(tmp_path / "saved")
    expected = [train() for _ in range(7)]
    state = json.loads((tmp_path / "saved" / "oneflow-jax.json").read_text())["random"]["readers"]["train"]
    assert state["calls"] == 7 and state["readers"]["OFRecordReader_0"][0]["taken"] == 28
    flow.clear_default_session()
    flow.manual_seed(99)
    train = training(folder, shuffled)
    if shuffled:
        train()  # what was read ahead is dropped
        flow.train.CheckPoint().load(tmp_path / "saved")
    else:
        flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
    for loss, label in expected:
        again = train()
        np.testing.assert_array_equal(again[1], label)
        np.testing.assert_array_equal(again[0], loss)


def test_a_position_of_other_data_is_refused_at_the_call(tmp_path: Path) -> None:
    train = training(made_data.image_parts(tmp_path / "data"))
    train()
    flow.checkpoint.save(tmp_path / "saved")
    flow.clear_default_session()
    saved = tmp_path / "saved" / "oneflow-jax.json"
    content = json.loads(saved.read_text().replace('"parts": 3', '"parts": 4'))
    saved.write_text(json.dumps({name: content[name] for name in ("format", "random")}))  # without digests, which would tell
    train = training(str(tmp_path / "data"))
    flow.train.CheckPoint().load(tmp_path / "saved")
    with pytest.raises(DataError, match="belongs to other parts"):
        train()


def test_variables_without_positions_for_other_data_and_devices(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flow.config.cpu_device_num(2)
    _one_value("consistent", ofrecord_dir=made_data.numbered(tmp_path / "data"), batch_size=4, data_part_num=3)()
    flow.checkpoint.save(saved)

    flow.clear_default_session()
    job = _one_value("consistent", ofrecord_dir=str(tmp_path / "data"), batch_size=4, data_part_num=3)
    flow.load_variables(flow.checkpoint.get(saved))
    with pytest.raises(DataError, match=r"is of 2 devices, and it reads for 1(.|\n)*load_variables\(dict\("):
        job()

    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    other = made_data.numbered(tmp_path / "other", each=9)
    job = _one_value("consistent", ofrecord_dir=other, batch_size=4, data_part_num=3)
    flow.load_variables(flow.checkpoint.get(saved))
    with pytest.raises(DataError, match=r"belongs to other data(.|\n)*load_variables\(dict\("):
        job()

    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    job = _one_value("consistent", ofrecord_dir=other, batch_size=4, data_part_num=3)
    flow.load_variables(dict(flow.checkpoint.get(saved)))
    assert job()[0][0][0] == 0


@pytest.mark.thorough
def test_a_checkpoint_with_a_large_shuffle_buffer_is_read_again(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path / "data")

    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.ofrecord_reader(folder, 4, 3, random_shuffle=True, shuffle_buffer_size=100_000)
        return flow.data.OFRecordRawDecoder(records, "i", (), flow.int32)

    job()
    flow.checkpoint.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "oneflow-jax.json").stat().st_size > 1 << 20
    following = job()
    flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
    np.testing.assert_array_equal(job(), following)


def test_positions_of_other_readers_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = made_data.numbered(tmp_path / "data")

    def job(name: str | None) -> Any:
        @flow.global_function()
        def job() -> tp.Numpy:
            return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder, 4, 3, name=name), "i", (), flow.int32)

        return job

    job(None)()
    flow.checkpoint.save(str(tmp_path / "saved"))
    for name, begins, warned in ((None, 4, False), ("other", 0, True)):
        flow.clear_default_session()
        again = job(name)
        flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
        assert again()[0] == begins
        assert ("'job' has readers other, and a checkpoint the positions of OFRecordReader_0" in caplog.text) == warned


def test_positions_are_those_of_the_calls_not_of_the_thread(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path / "data")
    flow.config.read_ahead_batches(6)

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder, 2, 3), "i", (), flow.int32)

    for k in range(5):
        np.testing.assert_array_equal(job(), [2 * k, 2 * k + 1])
        flow.checkpoint.save(tmp_path / f"saved{k}")
        state = json.loads((tmp_path / f"saved{k}" / "oneflow-jax.json").read_text())["random"]["readers"]["job"]
        assert state["readers"]["OFRecordReader_0"][0]["taken"] == 2 * k + 2


def test_a_seed_set_between_calls_begins_the_random_numbers_anew(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path)

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        records = flow.data.ofrecord_reader(folder, 8, 3)
        numbers = flow.data.OFRecordRawDecoder(records, "i", (1, 1, 1), flow.uint8)
        return flow.image.CropMirrorNormalize(numbers, flow.random.CoinFlip(8), color_space="GRAY"), flow.random.CoinFlip(8)

    flow.manual_seed(1)
    job()
    first = [job()[0].ravel().tolist() for _ in range(2)]
    assert first[0] == list(range(8, 16)) and first[1] == list(range(16, 24))
    flow.manual_seed(1)
    assert job()[0].ravel().tolist() == list(range(8))  # the reader goes on where it was


def test_the_thread_ends_with_its_session_and_its_job(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path)

    def make() -> Any:
        @flow.global_function()
        def job() -> tp.Numpy:
            return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder, 5, 3), "i", (), flow.int32)

        return job

    job = make()
    np.testing.assert_array_equal(job(), range(5))
    assert reader_threads() == ["oneflow-read-job"]
    again = make()  # redefined: the new one starts again, the old one goes on
    np.testing.assert_array_equal(again(), range(5))
    np.testing.assert_array_equal(job(), range(5, 10))
    (first, _) = [t for t in threading.enumerate() if t.name.startswith("oneflow-read-")]
    del job
    gc.collect()
    first.join(5)
    assert not first.is_alive()
    np.testing.assert_array_equal(again(), range(5, 10))
    flow.clear_default_session()
    assert reader_threads() == []
    np.testing.assert_array_equal(make()(), range(5))


def test_calls_from_several_threads_get_every_batch_once(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path, parts=3, each=40)
    found: list[int] = []

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder, 5, 3), "i", (), flow.int32) + 0

    threads = [threading.Thread(target=lambda: [found.extend(job().tolist()) for _ in range(8)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(120))


def _one_value(view: str, **options: Any) -> Any:
    config = flow.FunctionConfig()
    config.default_logical_view(getattr(flow.scope, f"{view}_view")())

    def body() -> Any:
        records = flow.data.ofrecord_reader(**options)
        numbers = flow.data.OFRecordRawDecoder(records, "i", (1,), flow.float)
        return numbers, numbers * 2.0

    def job() -> tuple[tp.ListNumpy, tp.ListNumpy]:
        return body()

    return flow.global_function(function_config=config)(job)


def test_the_consistent_view_reads_shards(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path, parts=5, each=8)
    flow.config.cpu_device_num(2)
    job = _one_value("consistent", ofrecord_dir=folder, batch_size=4, data_part_num=5)
    for k in range(3):
        (numbers,), (doubled,) = job()
        np.testing.assert_array_equal(numbers[:, 0], [2 * k, 2 * k + 1, 24 + 2 * k, 25 + 2 * k])  # parts 0-2, and 3-4
        np.testing.assert_array_equal(doubled, 2 * numbers)


def test_the_mirrored_view_has_a_reader_a_device(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path / "data", parts=3, each=8)
    flow.config.cpu_device_num(2)
    flow.manual_seed(0)
    same = _one_value("mirrored", ofrecord_dir=folder, batch_size=4, data_part_num=3)
    numbers, doubled = same()
    assert len(numbers) == 2 and [n[:, 0].tolist() for n in numbers] == [list(range(4))] * 2
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    options = {"ofrecord_dir": folder, "batch_size": 4, "data_part_num": 3, "random_shuffle": True, "shuffle_buffer_size": 9}
    shuffled = _one_value("mirrored", **options)
    numbers, doubled = shuffled()
    assert not np.array_equal(numbers[0], numbers[1])
    for mine, twice in zip(numbers, doubled, strict=True):
        np.testing.assert_array_equal(twice, 2 * mine)
    flow.checkpoint.save(tmp_path / "saved")
    expected = shuffled()
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    shuffled = _one_value("mirrored", **options)
    flow.train.CheckPoint().load(tmp_path / "saved")
    for a, b in zip(shuffled(), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_readers_that_are_one_for_all_devices(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path / "data", parts=4, each=8)
    annotations, images = made_data.coco(tmp_path / "coco")
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job() -> tp.Bundle[tp.ListNumpy]:
        loaded = flow.data.OFRecordRawDecoder(flow.data.ofrecord_loader(folder, 4, 4), "i", (1,), flow.float)
        conf = flow.data.BlobConf("i", shape=(1,), dtype=flow.float, codec=flow.data.RawCodec())
        (decoded,) = flow.data.decode_ofrecord(folder, (conf,), batch_size=4, data_part_num=4)
        encoded, *_ = flow.data.coco_reader(annotations, images, 4, shuffle=False, group_by_aspect_ratio=False)
        photos, _, _ = flow.image.Resize(flow.image.decode(encoded), target_size=(8, 8))
        return loaded * 2.0, decoded, photos

    for k in range(2):
        expected = [[2 * k, 2 * k + 1], [2 * k + 16, 2 * k + 17]]
        loaded, decoded, photos = job()
        assert [(a / 2)[:, 0].tolist() for a in loaded] == [a[:, 0].tolist() for a in decoded] == expected
        assert [a.shape for a in photos] == [(2, 8, 8, 3)] * 2


PROGRAM = """
import os, signal, sys, threading, time
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job() -> tp.Callback[tp.Numpy]:
    records = flow.data.ofrecord_reader(sys.argv[1], batch_size=8, data_part_num=3)
    images, _, _ = flow.image.Resize(flow.data.OFRecordImageDecoder(records, "encoded"), target_size=(64, 64))
    return flow.cast(images, flow.float) + 1.0

for _ in range(3):
    job()(lambda value: print(value.shape, flush=True))
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise ValueError('mine')", 1), ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -2)],
    ids=["end", "error", "interrupt"],
)  # fmt: skip
def test_programs_end(tmp_path: Path, end: str, status: int) -> None:
    folder = made_data.image_parts(tmp_path / "data")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + end)
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=60)
    assert done.returncode in (status, 130 if status == -2 else status), done.stderr
    if status != -2:
        assert done.stdout.count("(8, 64, 64, 3)") == 3
    assert "Fatal" not in done.stderr and "terminate" not in done.stderr


SLOWLY = """
import atexit, time
import cv2, numpy as np

atexit.register(time.sleep, 0.45)  # runs after the library's own hook
from oneflow.runtime import prefetcher

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

cv2.late = Late()  # the interpreter takes its time to go away
read, decode, large = prefetcher.Prefetcher._read, cv2.imdecode, np.zeros((1500, 1500, 3), np.uint8)

def slowly_read(self, *args):
    read(self, *args)
    time.sleep(0.3)

def slowly_decode(*args):
    for _ in range(4):
        cv2.GaussianBlur(large, (31, 31), 3)
    return decode(*args)

prefetcher.Prefetcher._read, cv2.imdecode = slowly_read, slowly_decode
"""


def test_an_interrupt_while_batches_are_read_and_decoded(tmp_path: Path) -> None:
    """No thread begins to decode when the others have been ended: OpenCV in a thread aborts a program that ends."""
    folder = made_data.image_parts(tmp_path / "data")
    program = tmp_path / "program.py"
    text = SLOWLY + PROGRAM.replace("range(3)", "range(1)").replace("batch_size=8", "batch_size=2")
    program.write_text(text + "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)")
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode in (-2, 130), done.stderr


TOGETHER = """
import sys
import oneflow as flow
import oneflow.typing as tp

flow.manual_seed(5)

@flow.global_function()
def job() -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
    records = flow.data.ofrecord_reader(sys.argv[1], batch_size=4, data_part_num=3, random_shuffle=True, shuffle_buffer_size=5)
    numbers = flow.data.OFRecordRawDecoder(records, "i", (1,), flow.float)
    return numbers, numbers * 2.0, flow.data.OFRecordRawDecoder(records, "i", (1,), flow.float) * 3.0

for _ in range(3):
    numbers, doubled, tripled = job()
    assert (tripled == 3 * numbers).all()
    print(numbers[:, 0].tolist(), doubled[:, 0].tolist(), flush=True)
"""


def test_several_processes_read_as_one_does(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path / "data")
    program = tmp_path / "program.py"
    program.write_text(TOGETHER)
    command = [sys.executable, "-m", "oneflow.launch", "--nproc", "2", str(program), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(f"[{line.replace('] [', '], [')}]") for line in done.stdout.splitlines() if line.startswith("[")]
    flow.manual_seed(5)
    flow.config.cpu_device_num(2)
    job = _one_value("consistent", ofrecord_dir=folder, batch_size=4, data_part_num=3, random_shuffle=True, shuffle_buffer_size=5)
    for numbers, doubled in found:
        (expected,), _ = job()
        assert numbers == expected[:, 0].tolist() and doubled == (2 * expected[:, 0]).tolist()
    assert len(found) == 3
