"""Reading directories of arrays: what is on disk is not trusted."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from oneflow._base.dtype import bfloat16, char, float32, int8
from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.format import Checkpoint, FileValue, MissingMetaError
from oneflow.checkpoint.layout import EXTRA
from oneflow.errors import ArgumentError, CheckpointError, CheckpointNotFoundError

NUMPY_DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i4", "i8", "u1", ">f4", ">i8"])
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..", "snapshot_done", EXTRA) and len(os.fsencode(name)) <= 255
)
ARRAYS = npst.arrays(NUMPY_DTYPES, npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    write(path, {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array([7])}, {"random": {"seed": 1}})
    return path


def test_layout_is_oneflows(saved: Path) -> None:
    files = sorted(str(p.relative_to(saved)) for p in saved.rglob("*") if p.is_file())
    assert files == [EXTRA, "snapshot_done", "step/meta", "step/out", "w/meta", "w/out"]
    assert (saved / "w/out").read_bytes() == np.arange(6, dtype="<f4").tobytes()
    assert (saved / "step/out").read_bytes() == b"\7" + bytes(7)
    assert (saved / "w/meta").read_text() == "shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n"
    assert (saved / "snapshot_done").read_bytes() == b""
    extra = json.loads((saved / EXTRA).read_text())
    assert {name: extra[name] for name in ("format", "random")} == {"format": 1, "random": {"seed": 1}}
    assert set(extra["digests"]["files"]) == {"step/meta", "step/out", "w/meta", "w/out"}


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(NAMES, ARRAYS, max_size=3))
def test_round_trip_of_any_names_shapes_and_dtypes(arrays) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len({os.path.normcase(name) for name in arrays}) == len(arrays):
            write(Path(folder, "model"), arrays)
            stored = Checkpoint(Path(folder, "model"))
            assert set(stored) == set(arrays)
            for name, array in arrays.items():
                value = stored[name].numpy()
                assert value.shape == array.shape and value.dtype == array.dtype.newbyteorder("=") and value.flags.writeable
                assert value.tobytes() == array.astype(value.dtype).tobytes()  # bytes, so that NaNs are compared too


def test_non_contiguous_and_bfloat16(tmp_path: Path) -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T[::-1]
    half = np.arange(3).astype(bfloat16.numpy_dtype)
    write(tmp_path / "m", {"turned": turned, "half": half})
    stored = Checkpoint(tmp_path / "m")
    np.testing.assert_array_equal(stored["turned"].numpy(), turned)
    assert stored["half"].dtype == bfloat16 and stored["half"].numpy().dtype == half.dtype
    assert "kBFloat16" in (tmp_path / "m/half/meta").read_text()
    assert stored.extra() == {}


def test_value_says_what_it_is(saved: Path) -> None:
    value = Checkpoint(saved)["w"]
    assert (value.name, value.shape, value.dtype, value.has_meta_info_) == ("w", (2, 3), float32, True)
    assert value.file_path == str(saved / "w/out")
    assert "float32[2, 3]" in repr(value)
    with pytest.raises(NotImplementedError):
        _ = value.quant_info
    value.numpy()[:] = 0  # a fresh array each time
    assert value.numpy().sum() == 15


def test_char_is_int8(saved: Path) -> None:
    (saved / "oneflow-jax.json").unlink()  # it has no digests of what follows
    (saved / "c").mkdir()
    (saved / "c/out").write_bytes(b"\xff\x01")
    (saved / "c/meta").write_text("shape { dim: 2 } data_type: kChar")
    value = Checkpoint(saved)["c"]
    assert value.dtype == char == int8 and value.numpy().tolist() == [-1, 1]


def test_without_meta_the_reader_must_know(saved: Path) -> None:
    (saved / "w/meta").unlink()
    value = Checkpoint(saved)["w"]
    assert (value.shape, value.dtype, value.has_meta_info_) == (None, None, False)
    with pytest.raises(MissingMetaError, match="no meta file") as caught:
        value.numpy()
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, CheckpointError)
    assert value.read_as((3, 2), float32).shape == (3, 2)
    assert FileValue(saved / "w", float32, [6]).numpy().shape == (6,)
    with pytest.raises(CheckpointError, match="truncated"):
        FileValue(saved / "w", float32, (7,))


@pytest.mark.parametrize(
    ("change", "state"), [(lambda b: b[:-1], "truncated"), (lambda b: b + b"\0", "longer"), (lambda b: b"", "truncated")]
)
def test_size_of_out_must_be_what_meta_says(saved: Path, change, state: str) -> None:
    out = saved / "w/out"
    out.write_bytes(change(out.read_bytes()))
    with pytest.raises(CheckpointError, match=state) as caught:
        _ = Checkpoint(saved)["w"]
    text = str(caught.value)
    assert "variable 'w'" in text and str(out) in text and "24 bytes, for float32[2, 3]" in text
    assert f"found      {out.stat().st_size} bytes" in text and "test_format.py" in text


def test_file_that_changes_after_it_was_looked_at(saved: Path) -> None:
    value = Checkpoint(saved)["w"]
    (saved / "w/out").write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated"):
        value.numpy()


def test_a_huge_meta_allocates_nothing(saved: Path) -> None:
    (saved / "w/meta").write_text("shape { dim: 999999999999999999 dim: 999999999999999999 } data_type: kDouble")
    with pytest.raises(CheckpointError, match="truncated"):
        _ = Checkpoint(saved)["w"]


@pytest.mark.parametrize("text", ["", "shape {", "\0\1\2", "shape { dim: 2 } data_type: kString", "x" * (1 << 21)])
def test_meta_that_is_not_understood(saved: Path, text: str) -> None:
    (saved / "w/meta").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be understood") as caught:
        _ = Checkpoint(saved)["w"]
    assert str(saved / "w/meta") in str(caught.value)


def test_meta_that_is_no_text(saved: Path) -> None:
    (saved / "w/meta").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="cannot be understood"):
        _ = Checkpoint(saved)["w"]


def test_missing_out(saved: Path) -> None:
    (saved / "w/out").unlink()
    with pytest.raises(CheckpointError, match="'w/out' cannot be opened: No such file"):
        _ = Checkpoint(saved)["w"]
    assert not Checkpoint(saved).has_out("w")


# --- links and things that are not files


@pytest.mark.parametrize("what", ["w", "w/out", "w/meta"])
def test_links_that_leave_the_checkpoint(saved: Path, tmp_path: Path, what: str) -> None:
    inside, outside = saved / what, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(CheckpointError, match="symbolic link that leads outside") as caught:
        _ = Checkpoint(saved)["w"]
    assert str(outside) in str(caught.value)


def test_link_that_is_put_in_place_later(saved: Path, tmp_path: Path) -> None:
    value = Checkpoint(saved)["w"]
    (tmp_path / "secret").write_bytes(bytes(24))
    (saved / "w/out").unlink()
    (saved / "w/out").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads outside"):
        value.numpy()


def test_links_inside_and_to_the_checkpoint_are_fine(saved: Path, tmp_path: Path) -> None:
    (saved / "again").symlink_to("w")
    (tmp_path / "latest").symlink_to(saved)
    stored = Checkpoint(tmp_path / "latest")
    assert set(stored) == {"w", "again", "step"}
    np.testing.assert_array_equal(stored["again"].numpy(), stored["w"].numpy())


def test_link_to_itself(saved: Path) -> None:
    (saved / "w/out").unlink()
    (saved / "w/out").symlink_to("out")
    with pytest.raises(CheckpointError, match="'w/out'"):
        _ = Checkpoint(saved)["w"]


def test_a_pipe_does_not_block(saved: Path) -> None:
    (saved / "w/out").unlink()
    os.mkfifo(saved / "w/out")
    with pytest.raises(CheckpointError, match="not a regular file"):
        _ = Checkpoint(saved)["w"]


def test_a_directory_for_out(saved: Path) -> None:
    (saved / "w/out").unlink()
    (saved / "w/out").mkdir()
    with pytest.raises(CheckpointError, match="w/out"):
        _ = Checkpoint(saved)["w"]


# --- what is a checkpoint


def test_one_of_oneflows_needs_no_snapshot_done_and_strangers_are_ignored(saved: Path) -> None:
    (saved / "snapshot_done").unlink()
    (saved / EXTRA).unlink()
    (saved / "notes.txt").write_text("mine")
    (saved / "plots").mkdir()
    assert set(Checkpoint(saved)) == {"w", "step"}


def test_single_variable(saved: Path) -> None:
    assert Checkpoint(saved / "w").is_single
    assert not Checkpoint(saved).is_single


@pytest.mark.parametrize(
    ("path", "says"),
    [("missing", "does not exist"), ("file", "it is a file"), ("empty", "holds no variables"), ("file/x", "it is a file")],
)
def test_no_checkpoint(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty/sub").mkdir(parents=True)
    with pytest.raises(CheckpointNotFoundError, match=says) as caught:
        Checkpoint(tmp_path / path)
    assert isinstance(caught.value, FileNotFoundError) and str(tmp_path / path) in str(caught.value)


def test_a_checkpoint_without_variables(tmp_path: Path) -> None:
    write(tmp_path / "m", {})
    assert dict(Checkpoint(tmp_path / "m")) == {}


@pytest.mark.parametrize("path", ["", None, 3, b"m", "a\0b", ["m"]])
def test_paths_are_text(path) -> None:
    with pytest.raises(ArgumentError, match="path must be"):
        Checkpoint(path)
    with pytest.raises(ArgumentError, match="path must be"):
        write(path, {})


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"format": 2}', "{}", "[" * 100000, "\0"])
def test_json_of_another_kind(saved: Path, text: str) -> None:
    (saved / EXTRA).write_text(text)
    with pytest.raises(CheckpointError, match=EXTRA):
        Checkpoint(saved).extra()
    (saved / EXTRA).unlink()
    assert Checkpoint(saved).extra() == {}


# --- names


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", "a\0b", "snapshot_done", EXTRA, "x" * 256, "ü" * 128, "\ud800x", 3, None]
)
def test_names_that_cannot_be_directories(tmp_path: Path, name) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved") as caught:
        write(tmp_path / "m", {"fine": np.zeros(1), name: np.zeros(1)})
    assert repr(name) in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [np.zeros(2, bool), np.zeros(2, "c8"), np.array(["a"]), np.array([None]), [1, 2], 3.0])
def test_values_that_have_no_place(tmp_path: Path, value) -> None:
    with pytest.raises(CheckpointError, match="variable 'v' cannot be saved"):
        write(tmp_path / "m", {"v": value})
    assert list(tmp_path.iterdir()) == []


def test_size_arithmetic_is_exact(saved: Path) -> None:
    # 2**33 x 2**31 elements would be 0 bytes in 64-bit arithmetic
    assert (2**33 * 2**31) % 2**64 == 0 and math.prod((2**33, 2**31)) > 0
    (saved / "w/meta").write_text(f"shape {{ dim: {2**33} dim: {2**31} }} data_type: kInt8")
    (saved / "w/out").write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated"):
        _ = Checkpoint(saved)["w"]
