"""The sizes that a model is compiled for."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from ..errors import ExportError
from ..export import ExportedFunction
from ._settings import ModelSettings

_MOST_PROGRAMS = 256


def combinations(exported: ExportedFunction, settings: ModelSettings) -> list[dict[str, int]]:
    """Values of the model's open sizes: those other than the batch in the outer loops.

    Raises: ExportError: an open size without a list of values; too many combinations.
    """
    batch = batch_axis(exported)
    accepted = accepted_sizes(exported, settings, batch)
    rest = [size for size in accepted if size != batch]
    keys = list(itertools.product(*(accepted[size] for size in rest)))
    rows = settings.compiled_batches if batch else (1,)
    if len(keys) * len(rows) > _MOST_PROGRAMS:
        raise ExportError(f"model {exported.name!r} would be compiled for {len(keys) * len(rows)} combinations of "
                          f"sizes, more than {_MOST_PROGRAMS}; list fewer in its config.json")  # fmt: skip
    return [dict(zip(rest, key, strict=True)) | ({batch: n} if batch else {}) for key in keys for n in rows]


def batch_axis(exported: ExportedFunction) -> str | None:
    """The open size that is the first of all inputs and results, and occurs nowhere else."""
    tensors = [*exported.inputs, *exported.results]
    first = {spec.shape[0] if spec.shape else None for spec in tensors}
    name = next(iter(first))
    if len(first) != 1 or not isinstance(name, str) or not name.isidentifier() or not exported.inputs:
        return None
    others = {n for spec in tensors for size in spec.shape[1:] for n in _names(size)}
    return None if name in others else name


def _names(size: int | str) -> set[str]:
    """The open sizes in an expression such as ``2*length``."""
    if isinstance(size, int):
        return set()
    return {node.id for node in ast.walk(ast.parse(size.replace("^", "**"), mode="eval")) if isinstance(node, ast.Name)}


def accepted_sizes(exported: ExportedFunction, settings: ModelSettings, batch: str | None) -> dict[str, Sequence[int]]:
    """The values that each open size of a model's inputs may have."""
    given = dict(settings.sizes)
    made: dict[str, Sequence[int]] = {}
    for spec in exported.inputs:
        for size in spec.shape:
            if not isinstance(size, str) or size in made:
                continue
            if size == batch:
                made[size] = range(1, settings.compiled_batches[-1] + 1)
            elif size in given:
                made[size] = given[size]
            else:
                raise ExportError(f"the size {size!r} of input {spec.name!r} is open, and the model is compiled before it is "
                                  f'served\n  try        "sizes": {{"{size}": [...]}} in config.json, with the values to '
                                  "compile")  # fmt: skip
    unknown = sorted(given.keys() - made.keys())
    if unknown:
        raise ExportError(f"config.json lists sizes of {', '.join(unknown)}; the open sizes are {', '.join(made) or 'none'}")
    return made
