"""A checkpoint on the disk, digests included, against ``dd`` with files of the same size in the same place."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
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


def measure(effort: Effort, data: Path) -> list[Section]:
    full = effort.name == "full"
    size, rounds = (1024 if full else 256), (7 if full else 3)
    random = np.random.default_rng(0)
    arrays = {f"v{i}": random.integers(0, 2**31, size * MIB // VARIABLES // 4, np.int32) for i in range(VARIABLES)}
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
    made = Section(
        f"A checkpoint of {size} MiB in {VARIABLES} variables", "Digests (CRC-32 per 4 MiB) are made and compared meanwhile.",
        ["", "", "MB/s", "seconds: median", "quartiles"],
    )  # fmt: skip
    for what, contenders in parts.items():
        seconds: dict[str, list[float]] = {label: [] for label in contenders}
        for number in range(rounds):
            for label in (OURS, DD) if number % 2 else (DD, OURS):
                seconds[label].append(_seconds(contenders[label]))
        for label, found in seconds.items():
            s = Spread.of(found)
            made.rows.append(
                [what, label, f"{size * MIB / s.median / 1e6:.0f}", f"{s.median:.2f}", f"{s.low:.2f} .. {s.high:.2f}"]
            )
        made.checks.append(Check(f"{what}: speed of {OURS} / {DD}", Ratio.paired(seconds[DD], seconds[OURS]), 0.8))
        made.raw[what] = seconds
    return made


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
