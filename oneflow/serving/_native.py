"""Functions for fixed sizes, with the native part's lowerings, from the process that exports a job to the server.

The server writes ``FILE.json``, which says for which sizes it compiles, and as how many programs these may share the cores. The
process writes ``FILE.0.prepare`` and ``FILE.0.run``, ``FILE.1.prepare`` and so on, two functions per combination of those, and
``FILE.native.json``, which lists them or has the reason why there are none.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._base import native
from ..export import ExportedFunction, load
from ..export._job import exported_job
from ..export._native import deserialised, serialised, unavailable
from ..export._stablehlo import unexportable
from ._settings import ModelSettings
from ._sizes import combinations

_PARTS = ("prepare", "run")


def ask(file: Path, settings: ModelSettings, sharing: Sequence[int]) -> None:
    """Before the process runs: asks for functions for the sizes of ``settings`` and each number of programs sharing the cores."""
    given = {"batch_sizes": settings.batch_sizes, "max_batch_size": settings.max_batch_size, "sizes": settings.sizes,
             "sharing": sharing}  # fmt: skip
    _settings_file(file).write_text(json.dumps(given), encoding="utf-8")


def is_asked(file: str) -> bool:
    """Whether the server has asked for functions beside this file."""
    return _settings_file(file).exists()


def write_native(job: Any, file: str, checkpoint: str) -> None:
    """Writes the functions of a job, beside its export in ``file``."""
    given = json.loads(_settings_file(file).read_text(encoding="utf-8"))
    settings = ModelSettings(
        max_batch_size=given["max_batch_size"],
        batch_sizes=None if given["batch_sizes"] is None else tuple(given["batch_sizes"]),
        sizes=tuple((name, tuple(values)) for name, values in given["sizes"]),
    )
    model = exported_job("oneflow.serving", job, reason=unexportable, weights=checkpoint, format="StableHLO")
    reason = unavailable(model)
    made: list[tuple[dict[str, int], int, str, tuple[str, ...]]] = []
    for sizes, count in () if reason else itertools.product(combinations(load(file), settings), given["sharing"]):
        name = f"{file}.{len(made)}"
        with native.sharing_cores(count):
            variables, *functions = serialised(model, sizes)
        for part, data in zip(_PARTS, functions, strict=True):
            Path(f"{name}.{part}").write_bytes(data)
        made.append((sizes, count, name, variables))
    _index(file).write_text(json.dumps({"reason": reason, "made": made}), encoding="utf-8")


def read_native(exported: ExportedFunction, file: Path) -> str:
    """Lets ``compile`` of the exported job take the functions that were made; the reason where there are none."""
    index = json.loads(_index(file).read_text(encoding="utf-8"))
    if not index["reason"]:
        made = {
            (_key(sizes), count): deserialised(variables, *(Path(f"{name}.{part}").read_bytes() for part in _PARTS))
            for sizes, count, name, variables in index["made"]
        }
        exported._specialise(lambda sizes: made[_key(sizes), native.programs_sharing()])
    return str(index["reason"])


def _key(sizes: Mapping[str, int]) -> str:
    return json.dumps(dict(sizes), sort_keys=True)


def _settings_file(file: str | Path) -> Path:
    return Path(f"{file}.json")


def _index(file: str | Path) -> Path:
    return Path(f"{file}.native.json")
