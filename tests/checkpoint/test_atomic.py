"""Saving: the target is as it was, or whole, whatever happens in between."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from oneflow.checkpoint import atomic
from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.format import Checkpoint
from oneflow.errors import CheckpointError, CheckpointExistsError

ARRAYS = {"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 2), np.int64)}


def is_whole(path: Path) -> bool:
    return (path / "snapshot_done").exists() and all(
        np.array_equal(Checkpoint(path)[name].numpy(), array) for name, array in ARRAYS.items()
    )


def test_parents_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write(tmp_path / "runs/1/model", ARRAYS)
    assert is_whole(tmp_path / "runs/1/model") and os.listdir(tmp_path / "runs/1") == ["model"]


def test_into_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m").chmod(0o750)
    write(tmp_path / "m", ARRAYS)
    assert is_whole(tmp_path / "m") and stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o750


def test_new_directories_have_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    write(tmp_path / "m", ARRAYS)
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("spelling", ["{0}/", "{0}/../m", "{0}/./", "{0}"])
def test_spellings_of_a_path(tmp_path: Path, spelling: str) -> None:
    write(spelling.format(tmp_path / "m"), ARRAYS)
    assert is_whole(tmp_path / "m")


def test_into_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path / "m")
    write(".", ARRAYS)
    assert is_whole(tmp_path / "m") and is_whole(Path(".")) and Path.cwd() == tmp_path / "m"


def test_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "empty").symlink_to("disk")
    (tmp_path / "dangling").symlink_to("disk2")
    write(tmp_path / "empty", ARRAYS)
    write(tmp_path / "dangling", ARRAYS)
    assert is_whole(tmp_path / "disk") and is_whole(tmp_path / "disk2") and (tmp_path / "empty").is_symlink()


def test_long_names(tmp_path: Path) -> None:
    write(tmp_path / ("ü" * 127), ARRAYS)
    assert is_whole(tmp_path / ("ü" * 127))


@pytest.mark.parametrize("taken", ["file", "full", "done", "link"])
def test_what_is_there_is_never_overwritten(tmp_path: Path, taken: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/.hidden").write_text("mine")
    (tmp_path / "link").symlink_to("full")
    write(tmp_path / "done", ARRAYS)
    with pytest.raises(CheckpointExistsError, match="exists already") as caught:
        write(tmp_path / taken, {"other": np.zeros(3)})
    assert isinstance(caught.value, FileExistsError) and isinstance(caught.value, AssertionError)
    text = str(caught.value)
    assert f"remove {str(tmp_path / taken)!r} first, or choose another path" in text and "test_atomic.py" in text
    assert sorted(os.listdir(tmp_path)) == ["done", "file", "full", "link"]
    assert is_whole(tmp_path / "done") and (tmp_path / "file").read_text() == "mine"


def test_a_part_of_the_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="part of the path is a file"):
        write(tmp_path / "file/m", ARRAYS)


def test_two_at_a_time_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4)
    rename = os.rename

    def slow(*paths):
        together.wait()
        rename(*paths)

    monkeypatch.setattr(os, "rename", slow)
    outcomes = []

    def save() -> None:
        try:
            write(tmp_path / "m", ARRAYS)
            outcomes.append("saved")
        except CheckpointExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 3 + ["saved"]
    assert is_whole(tmp_path / "m") and os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("function", ["mkdir", "open", "fsync", "rename"])
@pytest.mark.parametrize("target", ["absent", "empty"])
def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, target: str) -> None:
    if target == "empty":
        (tmp_path / "m").mkdir()
    before = os.listdir(tmp_path)
    for nth in range(3 if function != "rename" else 1):
        calls = iter(range(1000))
        original = getattr(os, function)

        def failing(*args, _calls=calls, _nth=nth, _original=original, **kwargs):
            if next(_calls) >= _nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return _original(*args, **kwargs)

        with monkeypatch.context() as patch:
            # only the writer's view of os: the clean-up and pytest keep the real one
            patch.setattr(atomic, "os", _Os(function, failing))
            with pytest.raises(CheckpointError, match="No space left on device; nothing was changed") as caught:
                write(tmp_path / "m", ARRAYS)
        assert isinstance(caught.value.__cause__, OSError)
        assert os.listdir(tmp_path) == before
    write(tmp_path / "m", ARRAYS)
    assert is_whole(tmp_path / "m")


class _Os:
    """The module os, with one function replaced."""

    def __init__(self, name: str, function):
        setattr(self, name, function)

    def __getattr__(self, name: str):
        return getattr(os, name)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic, "_flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m", ARRAYS)
    assert os.listdir(tmp_path) == []


def test_snapshot_done_is_the_last_file_and_all_is_flushed_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    flush, flush_directory, rename, write_file = atomic._flush, atomic._flush_directory, os.rename, atomic._write_file
    monkeypatch.setattr(atomic, "_flush", lambda p: (events.append(f"flush {Path(p).name}"), flush(p)))
    monkeypatch.setattr(atomic, "_flush_directory", lambda p: (events.append("flush directory"), flush_directory(p)))
    monkeypatch.setattr(atomic, "_write_file", lambda p, d: (events.append(f"write {Path(p).name}"), write_file(p, d))[1])
    monkeypatch.setattr(os, "rename", lambda *p: (events.append("rename"), rename(*p)))
    write(tmp_path / "m", {"a": np.zeros(1)}, {})
    assert events == [
        "write out", "write meta", "write oneflow-jax.json", "flush out", "flush meta", "flush oneflow-jax.json",
        "flush directory", "flush directory", "write snapshot_done", "flush snapshot_done", "flush directory", "rename",
        "flush directory",
    ]  # fmt: skip


# --- left-overs of saves that were killed


def left_over(folder: Path, age: float) -> Path:
    path = folder / f"{atomic._STAGING}m-0123456789ab"
    (path / "a").mkdir(parents=True)
    (path / "a/out").write_bytes(b"1234")
    (path / "snapshot_done").write_bytes(b"")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_old_left_overs_are_removed_by_the_next_save(tmp_path: Path) -> None:
    path = left_over(tmp_path, age=3600)
    write(tmp_path / "m", ARRAYS)
    assert not path.exists() and is_whole(tmp_path / "m")


def test_left_overs_that_may_be_alive_stay(tmp_path: Path) -> None:
    young = left_over(tmp_path, age=0)
    write(tmp_path / "m", ARRAYS)
    assert young.exists()
    lock = atomic._lock(str(young))
    assert lock is not None
    os.utime(young, (0, 0))
    write(tmp_path / "m2", ARRAYS)
    assert young.exists()  # old, but somebody holds its lock
    os.close(lock)
    write(tmp_path / "m3", ARRAYS)
    assert not young.exists()


def test_the_users_own_files_are_not_taken_for_left_overs(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / f"{atomic._STAGING}link").symlink_to(mine)
    os.utime(mine, (0, 0))
    write(tmp_path / "m", ARRAYS)
    assert mine.exists()
