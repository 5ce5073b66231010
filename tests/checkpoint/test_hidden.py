"""Remains of killed saves, replacing a checkpoint, and a disk that does not confirm a save."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from oneflow.checkpoint import atomic, hidden
from oneflow.checkpoint.atomic import Save, write
from oneflow.checkpoint.format import Checkpoint
from oneflow.checkpoint.hidden import Hidden
from oneflow.checkpoint.values import whole_values
from oneflow.errors import CheckpointError, CheckpointExistsError


def save(path: Path, number: int, overwrite: bool = True) -> None:
    Save(path, overwrite=overwrite).write(whole_values({"a": np.full(3, number)}), dict)


def number_in(path: Path) -> int:
    stored = Checkpoint(path)
    assert list(stored) == ["a"]
    values = stored["a"].numpy()
    assert len(set(values.tolist())) == 1
    return int(values[0])


# --- what is left of killed saves

KILLED = """
import os, signal, sys
import numpy as np
from oneflow.checkpoint import atomic
atomic._flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)
atomic.write(sys.argv[1], {"a": np.zeros(3)}, {})
"""


def test_a_killed_save_is_cleaned_up_by_the_next_whatever_its_age(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "m")])
    assert done.returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert hidden.is_new(left)
    save(tmp_path / "other", 1)
    assert os.listdir(tmp_path) == ["other"]


def test_a_living_save_is_not(tmp_path: Path) -> None:
    living = Save(tmp_path / "m")
    os.utime(living.directory, (0, 0))
    save(tmp_path / "other", 1)
    living.write(whole_values({"a": np.full(3, 2)}), dict)
    assert sorted(os.listdir(tmp_path)) == ["m", "other"] and number_in(tmp_path / "m") == 2


@pytest.mark.parametrize("killed_after", ["mkdir", "open", "unlink of the rest"])
def test_killed_while_the_hidden_directory_is_made_or_removed(tmp_path: Path, killed_after: str) -> None:
    path = tmp_path / ".oneflow-saving-m-0123456789ab.d"
    path.mkdir()
    if killed_after != "mkdir":
        (path / "lock").write_text("")
    save(tmp_path / "m", 1)
    assert os.listdir(tmp_path) == ["m"]


def test_cleaning_meets_a_save_that_is_about_to_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the directory and its lock, another save takes it for abandoned: the first one makes another directory."""
    mkdir, tries = os.mkdir, []

    def interrupted(path, *args, **kwargs) -> None:
        mkdir(path, *args, **kwargs)
        if str(path).endswith(".d") and len(tries) < 3:
            tries.append(path)
            hidden.clean(str(tmp_path))

    monkeypatch.setattr(os, "mkdir", interrupted)
    save(tmp_path / "m", 1)
    assert len(tries) == 3 and os.listdir(tmp_path) == ["m"]


def test_locks_that_the_file_system_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Hidden(str(tmp_path / "x"))

    def missing(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(hidden.fcntl, "flock", missing)
    save(tmp_path / "m", 1)
    assert os.path.isdir(left.path) and number_in(tmp_path / "m") == 1  # it may be alive


# --- replacing a checkpoint


@pytest.fixture(params=["exchanged", "in two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in two steps":
        monkeypatch.setattr(hidden, "_exchange", lambda one, other: False)
    return request.param


def test_overwrite(tmp_path: Path, way: str) -> None:
    save(tmp_path / "m", 1)
    (tmp_path / "m").chmod(0o750)
    save(tmp_path / "m", 2)
    assert number_in(tmp_path / "m") == 2 and os.listdir(tmp_path) == ["m"]
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o750


def test_overwrite_of_the_working_directory(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "m", 1)
    monkeypatch.chdir(tmp_path / "m")
    save(Path("."), 2)
    assert number_in(Path(".")) == 2 and Path.cwd() == tmp_path / "m"


def test_only_checkpoints_are_overwritten(tmp_path: Path, way: str) -> None:
    save(tmp_path / "m", 1)
    (tmp_path / "m/a/notes.txt").write_text("mine")
    with pytest.raises(CheckpointExistsError, match="holds other things than a checkpoint") as caught:
        save(tmp_path / "m", 2)
    assert "a/notes.txt" in str(caught.value) and number_in(tmp_path / "m") == 1
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointExistsError, match="is a file"):
        save(tmp_path / "file", 2)
    assert (tmp_path / "m/a/notes.txt").read_text() == "mine"


def test_a_replacement_that_fails_leaves_the_old_one(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "m", 1)
    monkeypatch.setattr(atomic, "_flush", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(CheckpointError, match="Input/output error; nothing was changed"):
        save(tmp_path / "m", 2)
    assert number_in(tmp_path / "m") == 1 and os.listdir(tmp_path) == ["m"]


KILLED_BETWEEN = """
import os, signal, sys
import numpy as np
from oneflow.checkpoint import hidden
from oneflow.checkpoint.atomic import Save
from oneflow.checkpoint.values import whole_values
hidden._exchange = lambda one, other: False
rename = os.rename
def killed(*paths):
    rename(*paths)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = killed
Save(sys.argv[1], overwrite=True).write(whole_values({"a": np.full(3, 2)}), dict)
"""


@pytest.mark.parametrize("then", ["load", "save"])
def test_killed_between_the_two_steps(tmp_path: Path, then: str) -> None:
    save(tmp_path / "m", 1)
    done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(tmp_path / "m")])
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "m").exists()
    if then == "save":
        save(tmp_path / "other", 3)
    assert number_in(tmp_path / "m") == 1
    assert sorted(os.listdir(tmp_path)) == ["m", "other"][: 1 + (then == "save")]


REPLACES_FOR_EVER = """
import itertools, sys
import numpy as np
from oneflow.checkpoint import hidden
from oneflow.checkpoint.atomic import Save
from oneflow.checkpoint.values import whole_values
if sys.argv[2] == "in two steps":
    hidden._exchange = lambda one, other: False
for i in itertools.count():
    Save(sys.argv[1], overwrite=True).write(whole_values({"a": np.full(3, i)}), dict)
    print(i, flush=True)
"""


def test_killed_while_it_replaces(tmp_path: Path, way: str) -> None:
    rng = np.random.default_rng(0)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command = [sys.executable, "-c", REPLACES_FOR_EVER, str(folder / "m"), way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:
            assert saver.stdout is not None
            saver.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            saver.send_signal(signal.SIGKILL)
            last = [0, *map(int, saver.stdout.read().split())][-1]
        save(folder / "other", 0)  # cleans up
        assert number_in(folder / "m") in (last, last + 1) and sorted(os.listdir(folder)) == ["m", "other"]


# --- a disk that does not confirm


def test_saved_but_not_confirmed(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_flush_directory", _failing_for(str(tmp_path)))
        for number in (1, 2):
            with pytest.raises(CheckpointError, match="was saved, but the disk did not confirm it: Input/output error"):
                save(tmp_path / "m", number, overwrite=False)
            assert number_in(tmp_path / "m") == number and os.listdir(tmp_path) == ["m"]
    save(tmp_path / "m", 3, overwrite=False)
    assert number_in(tmp_path / "m") == 3
    with pytest.raises(CheckpointExistsError):  # now it is confirmed
        save(tmp_path / "m", 4, overwrite=False)


def test_what_somebody_else_put_there_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_flush_directory", _failing_for(str(tmp_path)))
        with pytest.raises(CheckpointError, match="did not confirm"):
            save(tmp_path / "m", 1, overwrite=False)
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    write(tmp_path / "m", {"a": np.full(3, 9)}, {})
    with pytest.raises(CheckpointExistsError):
        save(tmp_path / "m", 2, overwrite=False)
    assert number_in(tmp_path / "m") == 9


def _failing_for(parent: str):
    flush = atomic._flush_directory

    def failing(path: str) -> None:
        if path == parent:
            raise OSError(errno.EIO, "Input/output error")
        flush(path)

    return failing


def test_a_lock_that_cannot_be_closed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def complaining(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(hidden, "os", _Closing(complaining))
        save(tmp_path / "m", 1, overwrite=False)
    assert number_in(tmp_path / "m") == 1 and os.listdir(tmp_path) == ["m"]
    save(tmp_path / "m", 2, overwrite=True)
    assert number_in(tmp_path / "m") == 2


class _Closing:
    """The module os, with another ``close``."""

    def __init__(self, close):
        self.close = close

    def __getattr__(self, name: str):
        return getattr(os, name)


@pytest.mark.parametrize("step", ["mkdir", "fsync", "rename"])
def test_the_next_save_removes_what_ctrl_c_left_in_one_and_in_its_cleaning_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupted(*args: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", interrupted)
        patch.setattr(os, step, interrupted)
        write(tmp_path / "m", {"a": np.zeros(2, np.float32)})
    write(tmp_path / "m", {"a": np.ones(2, np.float32)})
    assert os.listdir(tmp_path) == ["m"] and Checkpoint(tmp_path / "m")["a"].numpy().sum() == 2
