"""Digests: whatever happens to a checkpoint's files, loading says which variable is damaged."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneflow._base.dtype import float32
from oneflow.checkpoint import digests
from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.digests import CHUNK
from oneflow.checkpoint.format import Checkpoint, FileValue, Share
from oneflow.checkpoint.inspection import verify
from oneflow.checkpoint.layout import EXTRA
from oneflow.errors import CheckpointError

ARRAYS = {"v": np.arange(6, dtype=np.float32).reshape(2, 3) + 10, "w": np.arange(6, dtype=np.float32).reshape(2, 3)}
ARRAYS["step"] = np.array([7])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write(tmp_path / "m", ARRAYS, {"random": {"seed": 1, "calls": {"job": 3}}})
    return tmp_path / "m"


def read(path: Path) -> dict[str, np.ndarray]:
    stored = Checkpoint(path)
    stored.extra()
    return {name: stored[name].numpy() for name in stored}


def test_the_json_holds_the_digests_of_all_files(saved: Path) -> None:
    found = json.loads((saved / EXTRA).read_text())["digests"]
    assert (found["algorithm"], found["chunk"]) == ("crc32", 4 << 20)
    files = {f"{p.parent.name}/{p.name}": p for p in saved.glob("*/*")}
    assert found["files"] == {name: [f"{zlib.crc32(path.read_bytes()):08x}"] for name, path in files.items()}
    assert all(np.array_equal(value, ARRAYS[name]) for name, value in read(saved).items())


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_flipped_bit(saved: Path, data: st.DataObject) -> None:
    files = sorted(p for p in saved.rglob("*") if p.is_file() and p.stat().st_size)
    file = data.draw(st.sampled_from(files))
    before = file.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(before) - 1))
    after = bytearray(before)
    after[bit // 8] ^= 1 << bit % 8
    file.write_bytes(after)
    try:
        with pytest.raises(CheckpointError) as caught:
            read(saved)
    finally:
        file.write_bytes(before)
    if file.name == EXTRA:
        assert EXTRA in str(caught.value)
    else:
        assert f"variable {file.parent.name!r}" in str(caught.value) and str(file.parent) in str(caught.value)


def exchange(saved: Path) -> None:
    (saved / "w").rename(saved / "x")
    (saved / "v").rename(saved / "w")
    (saved / "x").rename(saved / "v")


def file_in_place(saved: Path) -> None:
    shutil.rmtree(saved / "w")
    (saved / "w").write_text("no directory")


def link_to_nowhere(saved: Path) -> None:
    shutil.rmtree(saved / "w")
    (saved / "w").symlink_to("nowhere")


def out_to_nowhere(saved: Path) -> None:
    (saved / "w/out").unlink()
    (saved / "w/out").symlink_to("nowhere")


def no_out(saved: Path) -> None:
    (saved / "w/out").unlink()


def shorter(saved: Path) -> None:
    os.truncate(saved / "w/out", 20)


def pipe(saved: Path) -> None:
    (saved / "w/out").unlink()
    os.mkfifo(saved / "w/out")


def device(saved: Path) -> None:
    (saved / "w/meta").unlink()
    (saved / "w/meta").symlink_to("/dev/zero")


def directory(saved: Path) -> None:
    (saved / "w/meta").unlink()
    (saved / "w/meta").mkdir()


def other_dtype(saved: Path) -> None:
    (saved / "w/meta").write_text((saved / "w/meta").read_text().replace("kFloat", "kInt32"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (exchange, "those of 'w/out', as if directories had been exchanged"),
        (file_in_place, "a file is in the place of its directory"),
        (link_to_nowhere, "a symbolic link to nowhere is in the place of its directory"),
        (out_to_nowhere, "'w/out' cannot be opened: it is a symbolic link to nowhere"),
        (no_out, "'w/out' cannot be opened: No such file"),
        (shorter, "its file is truncated"),
        (pipe, "it is a FIFO, not a regular file"),
        (device, "leads outside the checkpoint"),
        (directory, "it is a directory, not a regular file"),
        (other_dtype, "its file 'meta' is damaged: bytes 0 to"),
    ],
)
def test_damage_is_told_by_name(saved: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(saved)
    with pytest.raises(CheckpointError, match=r"variable '[vw]'") as caught:
        read(saved)
    assert says in str(caught.value) and "test_digests.py" in str(caught.value)


def test_not_finished(saved: Path) -> None:
    (saved / "snapshot_done").unlink()
    with pytest.raises(CheckpointError, match="is not finished: it has no file 'snapshot_done'"):
        Checkpoint(saved)


@pytest.mark.parametrize("what", ["FIFO", "directory", "link to nowhere", "device"])
@pytest.mark.timeout(20)
def test_something_else_in_place_of_the_json(saved: Path, what: str) -> None:
    (saved / EXTRA).unlink()
    make = {
        "FIFO": lambda: os.mkfifo(saved / EXTRA),
        "directory": lambda: (saved / EXTRA).mkdir(),
        "link to nowhere": lambda: (saved / EXTRA).symlink_to("nowhere"),
        "device": lambda: (saved / EXTRA).symlink_to("/dev/zero"),
    }
    make[what]()
    with pytest.raises(CheckpointError, match=EXTRA):
        read(saved)


@pytest.mark.timeout(20)
def test_a_fifo_or_a_device_in_place_of_the_checkpoint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(CheckpointError, match="it is a file, and checkpoints are directories"):
            Checkpoint(path)


def test_a_checkpoint_without_digests_loads(saved: Path) -> None:
    extra = json.loads((saved / EXTRA).read_text())
    (saved / EXTRA).write_text(json.dumps({name: extra[name] for name in ("format", "random")}, indent=1))  # of earlier versions
    assert set(read(saved)) == set(ARRAYS) and Checkpoint(saved).extra()["random"] == {"seed": 1, "calls": {"job": 3}}
    (saved / EXTRA).unlink()
    (saved / "snapshot_done").unlink()  # OneFlow's, converted
    assert set(read(saved)) == set(ARRAYS)


def test_a_missing_meta_loses_nothing(saved: Path) -> None:
    (saved / "w/meta").unlink()
    value = Checkpoint(saved)["w"]
    assert value.may_be((2, 3), float32) and not value.may_be((3, 2), float32)


def test_one_variable_alone_is_verified_too(saved: Path) -> None:
    np.testing.assert_array_equal(FileValue(saved / "w").numpy(), ARRAYS["w"])
    data = bytearray((saved / "w/out").read_bytes())
    data[3] ^= 1
    (saved / "w/out").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"'w'.* is damaged: bytes 0 to 23"):
        FileValue(saved / "w").numpy()


def test_a_checkpoint_that_was_replaced_after_it_had_been_opened(saved: Path) -> None:
    opened = Checkpoint(saved)
    value = opened["w"]
    shutil.rmtree(saved)
    write(saved, {**ARRAYS, "w": ARRAYS["w"] + 1}, {"random": {"seed": 1, "calls": {"job": 3}}})
    for read_again in (value.numpy, value.verify):
        with pytest.raises(CheckpointError, match="'w'.* was replaced after it had been opened"):
            read_again()
    np.testing.assert_array_equal(Checkpoint(saved)["w"].numpy(), ARRAYS["w"] + 1)


# --- many chunks


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    value = np.random.default_rng(0).integers(0, 256, (5, CHUNK // 2 + 77), np.uint8)
    path = tmp_path_factory.mktemp("large") / "m"
    write(path, {"w": value}, {})
    return path, value


def test_a_damaged_chunk_is_told_by_its_bytes(large: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    shutil.copytree(large[0], tmp_path / "m")
    assert len(Checkpoint(large[0]).description.digests.files["w/out"]) == 3
    with open(tmp_path / "m/w/out", "r+b") as file:
        file.seek(2 * CHUNK + 5)
        file.write(b"\0\1\2\3")
    with pytest.raises(CheckpointError, match=f"bytes {2 * CHUNK} to {large[1].nbytes - 1} are not those that were saved"):
        Checkpoint(tmp_path / "m")["w"].numpy()
    with pytest.raises(CheckpointError, match="are not those"):
        Checkpoint(tmp_path / "m")["w"].verify()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_blocks(large: tuple[Path, np.ndarray], data: st.DataObject) -> None:
    value, stored = large[1], Checkpoint(large[0])["w"]
    start = tuple(data.draw(st.integers(0, size - 1)) for size in value.shape)
    extent = tuple(data.draw(st.integers(0, size - begin)) for size, begin in zip(value.shape, start, strict=True))
    is_stretch = extent[0] <= 1 or extent[1] == value.shape[1]
    share = None if is_stretch and data.draw(st.booleans()) else Share(data.draw(st.integers(0, 2)), 3)
    (block,) = stored.read_blocks(value.shape, stored.dtype, [(start, extent)], share)
    (a, b), (n, m) = start, extent
    np.testing.assert_array_equal(block, value[a : a + n, b : b + m])


def test_blocks_of_a_damaged_file(large: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    value = large[1]
    shutil.copytree(large[0], tmp_path / "m")
    with open(tmp_path / "m/w/out", "r+b") as file:
        file.seek(CHUNK + 5)
        file.write(b"\0\1\2\3")
    stored = Checkpoint(tmp_path / "m")["w"]
    stored.read_blocks(value.shape, stored.dtype, [((0, 0), (1, 100))], None)  # the first chunk, which is whole
    with pytest.raises(CheckpointError, match=f"bytes {CHUNK} to {2 * CHUNK - 1} are not those"):
        stored.read_blocks(value.shape, stored.dtype, [((2, 0), (1, value.shape[1]))], None)
    told = []
    for index in range(2):  # of two processes, the one that verifies the chunk
        try:
            stored.read_blocks(value.shape, stored.dtype, [((0, 0), (5, 3))], Share(index, 2))
        except CheckpointError:
            told.append(index)
    assert told == [1]


def test_the_seal_covers_every_byte() -> None:
    text = digests.seal({"format": 1, "a": [1, 2, {"b": "ü"}]})
    assert json.loads(text)["a"] == [1, 2, {"b": "ü"}] and digests.is_seal_intact(text)
    for i in range(len(text)):
        for bit in range(8):
            changed = bytearray(text)
            changed[i] ^= 1 << bit
            assert not digests.is_seal_intact(bytes(changed))
    assert not digests.is_seal_intact(text + b"\n") and not digests.is_seal_intact(b"{}")


def test_a_variable_that_was_not_saved_is_not_loaded(saved: Path) -> None:
    shutil.copytree(saved / "w", saved / "x")
    with pytest.raises(CheckpointError, match=r"variable 'x'.*put there after the save"):
        read(saved)
    with pytest.raises(CheckpointError, match=r"variable 'x'.*put there after the save"):
        FileValue(saved / "x")
    verdict = verify(str(saved))
    assert len(verdict.errors) == 1 and "'x'" in str(verdict.errors[0])
    (saved / EXTRA).unlink()  # then nothing has digests, as in a checkpoint of OneFlow
    assert np.array_equal(read(saved)["x"], ARRAYS["w"]) and not verify(str(saved)).errors


@pytest.mark.parametrize("file", ["w/out", "w/meta", EXTRA])
def test_a_link_to_nowhere_is_called_that(saved: Path, tmp_path: Path, file: str) -> None:
    (saved / file).unlink()
    (saved / file).symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="symbolic link to nowhere"):
        read(saved)
    (saved / file).unlink()
    (tmp_path / "there").write_bytes(b"")
    (saved / file).symlink_to(tmp_path / "there")
    with pytest.raises(CheckpointError, match="leads outside the checkpoint"):
        read(saved)


@pytest.mark.parametrize("wrong", [0.5, None, "1234abcd", {"a": "1234abcd"}, [1], [None], ["1"], ["zzzzzzzz"]])
def test_digests_that_make_no_sense_in_a_file_whose_own_digest_fits(saved: Path, wrong: object) -> None:
    content = json.loads((saved / EXTRA).read_bytes())
    del content["crc32"]
    content["digests"]["files"]["w/out"] = wrong
    (saved / EXTRA).write_bytes(digests.seal(content))
    with pytest.raises(CheckpointError, match="is damaged"):
        read(saved)
