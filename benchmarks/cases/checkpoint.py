"""A checkpoint on the disk, digests included, against ``dd`` with files of the same size in the same place.

``dd of=/dev/null`` reads into one hot buffer. What reads into new memory, as each program that keeps what it reads must, is
``numpy.fromfile`` in a new process, and ``dd`` into a file in memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.format import Checkpoint

from ..effort import Effort
from ..report import Check, Section
from ..stats import Ratio, Spread

VARIABLES = 20
MIB = 1 << 20
OURS, DD = "ours", "dd"
LOADED, READ, NUMPY = "ours, into a session", "ours, as arrays", "numpy.fromfile, without digests"
DD_MEMORY, MEMORY = "dd into /dev/shm", Path("/dev/shm")


def measure(effort: Effort, data: Path) -> list[Section]:
    full = effort.name == "full"
    size, rounds = (1024 if full else 256), (7 if full else 3)
    random = np.random.default_rng(0)
    arrays = {f"v{i}": random.standard_normal(size * MIB // VARIABLES // 4, np.float32) for i in range(VARIABLES)}
    folder = data.parent / "checkpoints"
    folder.mkdir()
    try:
        return [_measured(folder, arrays, size, rounds)]
    finally:
        shutil.rmtree(folder)


def _measured(folder: Path, arrays: dict[str, np.ndarray], size: int, rounds: int) -> Section:
    plain, saved = folder / "plain", folder / "saved"

    def dd(*options: str) -> None:
        subprocess.run(["dd", "bs=4M", *options], check=True, capture_output=True)

    def write_ours() -> None:
        shutil.rmtree(saved, ignore_errors=True)
        write(saved, arrays, {})

    def read_ours() -> None:
        stored = Checkpoint(str(saved))
        for name in stored:
            stored[name].numpy()

    parts: dict[str, dict[str, Callable[[], None]]] = {
        "written and flushed": {
            OURS: write_ours,
            DD: lambda: dd("if=/dev/zero", f"of={plain}", f"count={size // 4}", "conv=fsync"),
        },
        "read from the disk": {
            OURS: lambda: _cold(saved, read_ours),
            DD: lambda: _cold(plain, lambda: dd(f"if={plain}", "of=/dev/null")),
        },
        "read from the page cache": {OURS: read_ours, DD: lambda: dd(f"if={plain}", "of=/dev/null")},
    }
    memory = MEMORY / f"oneflow-benchmark-{os.getpid()}"
    anew: dict[str, Callable[[], float]] = {
        label: partial(_in_new_process, how, saved) for label, how in ((LOADED, "load"), (READ, "read"), (NUMPY, "fromfile"))
    }
    if os.access(MEMORY, os.W_OK):
        anew[DD_MEMORY] = lambda: _seconds(lambda: dd(f"if={plain}", f"of={memory}"))
    made = Section(
        f"A checkpoint of {size} MiB in {VARIABLES} variables", "Digests (CRC-32 per 4 MiB) are made and compared meanwhile.",
        ["", "", "MB/s", "seconds: median", "quartiles"],
    )  # fmt: skip
    for what, contenders in parts.items():
        seconds = _rounds({label: partial(_seconds, function) for label, function in contenders.items()}, rounds)
        _add_rows(made, what, seconds, size)
        made.checks.append(Check(f"{what}: speed of {OURS} / {DD}", Ratio.paired(seconds[DD], seconds[OURS]), 0.8))
    try:
        seconds = _rounds(anew, rounds)
    finally:
        memory.unlink(missing_ok=True)
    what = "read from the page cache into new memory"
    _add_rows(made, what, seconds, size)
    for other in seconds.keys() - {LOADED, READ}:
        made.checks.append(Check(f"{what}: speed of {LOADED} / {other}", Ratio.paired(seconds[other], seconds[LOADED]), None))
    return made


def _rounds(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turns whose order changes."""
    seconds: dict[str, list[float]] = {label: [] for label in contenders}
    for number in range(rounds):
        for label in list(contenders)[:: 1 if number % 2 else -1]:
            seconds[label].append(contenders[label]())
    return seconds


def _add_rows(made: Section, what: str, seconds: dict[str, list[float]], size: int) -> None:
    for label, found in seconds.items():
        s = Spread.of(found)
        made.rows.append([what, label, f"{size * MIB / s.median / 1e6:.0f}", f"{s.median:.2f}", f"{s.low:.2f} .. {s.high:.2f}"])
    made.raw[what] = seconds


def _in_new_process(how: str, saved: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.loading", how, str(saved)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _seconds(function: Callable[[], None]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _cold(path: Path, function: Callable[[], None]) -> None:
    """After the files of ``path`` have left the page cache."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    function()
