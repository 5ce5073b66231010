"""Errors of the disk at each call of every form of saving, a limit on the size of files, and a file system that is full.

After each error the earlier checkpoint is whole, training goes on bit for bit, and the next save succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from . import jobs
from .children import PATIENCE, running
from .report import Budget, Report
from .saving import FORMS, patch_calls, reference

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EACCES, errno.ENOMEM)
_WATCHED = ("open", "mkdir", "rename", "replace", "fsync", "chmod", "write", "pwrite", "truncate", "close", "link")


class _Faults:
    """Has the n-th of the calls that saving makes fail."""

    def __init__(self) -> None:
        self.left = self.number = 0
        self.failed = ""
        patch_calls(self._before)

    def arm(self, nth: int, number: int) -> None:
        self.left, self.number, self.failed = nth, number, ""

    def _before(self, name: str) -> None:
        if name in _WATCHED and self.left:
            self.left -= 1
            if not self.left:
                self.failed = name
                raise OSError(self.number, os.strerror(self.number))


def _whole(folder: str) -> list[str]:
    """Digests of the checkpoints that can be seen."""
    paths = sorted(p for p in Path(folder).iterdir() if not p.name.startswith("."))
    return [jobs.digest(jobs.stored(str(p))) for p in paths if os.listdir(p)]


class _Trial:
    """One training, whose saves fail now and then."""

    def __init__(self, form: int, folder: str):
        self.train, self.folder, self.step = jobs.declare(), folder, 0
        self.saver = FORMS[form].begin(folder)
        self.saved: list[str] = []
        self.go_on()

    def go_on(self) -> None:
        """A step, and a save that succeeds."""
        self._step()
        self._save()
        self.saved.append(jobs.digest(jobs.state()))
        if (found := _whole(self.folder)) != self.saved:
            print("wrong", f"{len(found)} checkpoints, {len(self.saved)} expected; the last differs: {found[-1:]}", flush=True)
        while len(self.saved) > 2:  # keeps the folder small
            oldest = sorted(p for p in Path(self.folder).iterdir() if not p.name.startswith("."))[0]
            shutil.rmtree(oldest)
            self.saved.pop(0)

    def _step(self) -> None:
        print("loss", self.step, self.train(jobs.batch(self.step)).tobytes().hex(), flush=True)
        self.step += 1

    def _save(self) -> None:
        self.saver.save(self.step)
        self.saver.wait()

    def fail(self, what: str, faults: _Faults | None = None) -> None:
        """A step, and a save that must fail with an error of the library, or succeed, and leave the others alone."""
        import oneflow as flow

        self._step()
        saved = jobs.digest(jobs.state())
        begun = time.monotonic()
        try:
            self._save()
            told = "saved"
        except flow.errors.CheckpointError as error:
            told = "told"
            if not any(word in str(error) for word in ("nothing was changed", "saved, but", "but the disk", "did not confirm")):
                print("wrong", f"{what}: the error does not say what became of it: {str(error).splitlines()[0]}", flush=True)
        except BaseException as error:
            print("wrong", f"{what}: raised {type(error).__name__}: {error}", flush=True)
            told = "raw"
        finally:
            if faults is not None:
                faults.left = 0
        seconds = time.monotonic() - begun
        found = _whole(self.folder)
        if found not in (self.saved, [*self.saved, saved]):
            print("wrong", f"{what}: {told}, {len(found)} checkpoints are there, {len(self.saved)} were before", flush=True)
        if told == "saved" and found == self.saved:
            print("wrong", f"{what}: no error, and no checkpoint", flush=True)
        self.saved = found
        print("tried", told, f"{seconds:.3f}", flush=True)


def _injected(form: int, seed: int, seconds: float) -> None:
    """An error at the first, second, ... call of a save, until none is left."""
    end = time.monotonic() + seconds
    trial, faults = _Trial(form, tempfile.mkdtemp(prefix="errors-")), _Faults()
    nth = 0
    while not nth or time.monotonic() < end:
        nth += 1
        faults.arm(nth, ERRORS[(nth + seed) % len(ERRORS)])
        trial.fail(f"{FORMS[form].name}, error {nth}", faults)
        if not faults.failed:
            print("calls", nth - 1, flush=True)
            break
        trial.go_on()


def _limited(form: int, seed: int, seconds: float) -> None:
    """No file may be larger than a few hundred bytes for a while."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    end = time.monotonic() + seconds
    trial = _Trial(form, tempfile.mkdtemp(prefix="limit-"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 1, 100, 1000, 3000):
        if size and time.monotonic() > end:
            return
        told = io.StringIO()  # standard output is a file, too
        with contextlib.redirect_stdout(told):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                trial.fail(f"{FORMS[form].name}, files of {size} bytes")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(told.getvalue(), flush=True)
        trial.go_on()


def _full(form: int, folder: str, seconds: float) -> None:
    """On a file system of its own, which is filled except for a few blocks."""
    end = time.monotonic() + seconds
    trial = _Trial(form, folder)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    for spare in (0, 4096, 8192, 16384, 32768, 65536):
        if spare and time.monotonic() > end:
            return
        filler = Path(folder) / ".filler"
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            file.write(bytes(max(free - spare, 0)))
        trial.fail(f"{FORMS[form].name}, {spare} bytes free")
        filler.unlink()
        trial.go_on()


@contextlib.contextmanager
def _small_file_system() -> Any:
    """A folder on a tmpfs of 1 MiB; None where this system does not let the process mount one."""
    folder = tempfile.mkdtemp(prefix="full-")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode == 0
    try:
        yield folder if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", folder], capture_output=True)


def run(budget: Budget) -> Report:
    """Every form that saves in one process, with each of the three kinds of errors, in an order that the seed decides."""
    report, notes = Report(), {"told": 0, "saved": 0}
    forms = [i for i, form in enumerate(FORMS) if form.processes == 1]
    with running(reference, False) as child:
        if child.wait(PATIENCE) != 0:
            raise RuntimeError(child.errors)
        expected = {int(row[0]): row[1] for row in (line.split() for line in child.output.splitlines())}
    full = "a full tmpfs of 1 MiB"
    calls = {}
    rng, plan, seed = random.Random(budget.seed), [], budget.seed
    while budget.allows(report.runs):
        if not plan:
            plan = [(function, form) for function in (_injected, _limited, _full) for form in forms]
            rng.shuffle(plan)
            seed += 1  # another kind of error at each call
        share = max(budget.left, 0.0) / len(plan)
        function, form = plan.pop()
        with _small_file_system() if function is _full else contextlib.nullcontext(seed) as argument:
            if argument is None:
                full = "no full file system: this process may not mount one"
                continue
            with running(function, form, argument, share) as child:
                status = child.wait(share + PATIENCE)
                rows = [line.split(maxsplit=2) for line in child.output.splitlines() if line]
                if status != 0:
                    report.fail(f"{FORMS[form].name}, {function.__name__}: ended with {status}: {child.errors}")
        for row in rows:
            if row[0] == "tried":
                report.runs += 1
                notes[row[1]] = notes.get(row[1], 0) + 1
                report.took(float(row[2]))
            elif row[0] == "wrong":
                report.fail(" ".join(row[1:]))
            elif row[0] == "calls":
                calls[form] = f"{FORMS[form].name} {row[1]}"
            elif row[0] == "loss" and expected.get(int(row[1]), row[2]) != row[2]:
                report.fail(f"{FORMS[form].name}: the loss of step {row[1]} is another than without errors")
        if status != 0:
            break
    report.notes = f"{notes['told']} told, {notes['saved']} saved nevertheless; all calls of: {', '.join(calls.values())}; {full}"
    return report
