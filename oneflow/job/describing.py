"""A built job in words: for reports, for ``repr``, and for errors of what it is fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CompileError, FeedShapeError

if TYPE_CHECKING:
    from .building import BuiltJob


def build_lines(built: BuiltJob) -> list[str]:
    """The build time and the memory of each executable, one per line."""
    lines = [f"traced in {built.seconds * 1e3:.1f} ms"]
    for key, executable in built.variants.items:
        s = executable.statistics
        memory = "" if s.temporary_bytes is None else f", {s.temporary_bytes / 1e6:.2f} MB of working memory"
        shapes = "" if key is None else f" for {key}"
        lines.append(
            f"compiled{shapes}: {s.trace_seconds * 1e3:.1f} ms to trace for XLA, {s.lower_seconds * 1e3:.1f} ms to lower, "
            f"{s.compile_seconds * 1e3:.1f} ms to compile{memory}"
        )
    if built.plan.is_empty:
        return [*lines, "nothing to compile: all of it runs on the host"]
    return lines if len(lines) > 1 else [*lines, "not compiled yet"]


def contents(built: BuiltJob) -> str:
    """Its numbers of ops, variables and bytes, and whether it is compiled."""
    variables = [v for v in built.graph.variables.values() if v.role == "parameter"]
    elements = sum(int(np.prod(v.shape)) for v in variables)
    size = sum(int(np.prod(v.shape)) * v.dtype.bytes for v in built.graph.variables.values())
    text = f"{len(built.graph.nodes)} ops, {len(variables)} variables of {elements:,} elements, {size / 1e6:.1f} MB of state"
    return f"{text}, {'compiled' if built.variants.items else 'not compiled yet'}"


def misfit(built: BuiltJob, feeds: tuple[Any, ...], error: CompileError) -> FeedShapeError:
    """The error for arrays that are allowed one by one, but do not fit together, or break code written for the largest."""
    labels = {spec.blob.node: spec.label for spec in built.graph.inputs}
    found = [
        f"  given      {labels.get(blob.node, blob.op_name)}: {tuple(a.shape)}   at most {blob.shape}"
        for blob, feed in zip(built.plan.feeds, feeds, strict=True)
        for a in (feed if isinstance(feed, tuple) else (feed,))
        if blob.is_dynamic
    ]
    first, *rest = str(error).replace("cannot be compiled", "does not fit").splitlines()
    return FeedShapeError(
        "\n".join([f"job {built.graph.name!r} cannot run on arrays of these shapes", *found, f"  because    {first}", *rest])
    )
